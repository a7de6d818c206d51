"""The choice of the penalty: a path of fits from "each alone" to "one for all", judged on rows they have not seen.

Every site cuts its rows in two by chance (or, where rows are few, in four). For each penalty of the path two fits are
played, each without one of the first two parts of every site, all in the same messages; then each site says how much
better each penalty describes these rows, by the fit that has not seen them, than fitting alone does. The center puts
these gains together, robustly, and picks.
"""

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from fedgrem.algorithms.base import Algorithm, Pull, full_penalty, middle_weights
from fedgrem.algorithms.center_rules import MOST_BAD, pool_weights
from fedgrem.fit.conversation import Ask, Phase, Progress, everyone
from fedgrem.fit.rounds import Near, movements
from fedgrem.fit.spec import FitSpec
from fedgrem.fit.starts import Starts
from fedgrem.fit.tasks import MOST_PER_ROW, PathReply, PathRequest, ScoreReply, ScoreRequest
from fedgrem.types import Array, Broadcast, Params, map_arrays

PENALTIES = (0.0, 0.35, 0.5, 0.7, 1.0, 1.4, 2.0, 2.8, 4.0, np.inf)
"""The path. It begins with fitting alone, which all others are compared with."""
ESTIMATED = (0.0, np.inf)
"""The path where the center rule finds how strongly to pull, which nothing bounds."""
NOISE_PENALTIES = (0.0, 0.0, 0.7, 1.0, 1.4, 2.0, 2.8, 4.0, 8.0, np.inf)
"""The path of the noise, as long as the other; it too begins with fitting alone."""
MEANWHILE = 1.0
"""The penalty of everything else while that of the noise is chosen."""
ROUNDS, NOISE_ROUNDS = 8, 4
"""Of every fit on the path: enough to tell penalties apart, and not to settle the last digits. The noise is found
sooner."""
MEMORY = 5
"""Steps of the center that fits on the path extrapolate from."""
WEIGHTS_PENALTIES = (0.0, 0.35, 0.7, 1.4, 2.8, np.inf)
"""Penalties of the mixture weights that are compared where weights may be pooled."""
TRIMMED = MOST_BAD
"""Share of the sites left out at either end when gains are put together: what a minority sends does not matter."""
ALIKE = 1e-5
"""Of log-likelihood per row: penalties that differ by less do equally well, whatever rounding says."""
ERROR_OF_MEDIAN = 1.25
"""Standard errors of a median, and nearly of the mean of the middle fifth, in those of a mean."""
NEARLY = 0.5
"""Standard errors behind the best by which a larger penalty may be: under attack too much pull is worse than too
little."""
CLEAR = 2.0
"""Standard errors beyond which a gain counts as clear."""
RELEASED = 3.0
"""Standard errors of a loss beyond which a site is fitted alone: of dozens of sites some lose by two of them by chance,
and fitting those alone costs more than the pull does."""
SETTLED = 0.02
"""Standard errors: once most sites move by less than this in a round, in every fit, a path ends before its last round:
what is still to come changes a held-out log-likelihood by less than its own error."""
MOST_MOVED = 0.75
"""Part of the sites that must."""
ENOUGH = 20.0
"""Rows per component of the middle site with which half of them are enough to fit."""


class Choice(NamedTuple):
    """What came of it."""

    penalty: float
    noise_penalty: float
    """Of the noise; chosen if it is estimated and was not given."""
    penalties: Array
    """(M,) the path."""
    gain: Array
    """(M,) trimmed mean over the sites of their gains per held-out row over fitting alone."""
    error: Array
    """(M,) standard error of what each penalty is behind the best one."""
    site_gain: Array
    """(K, M)"""
    site_error: Array
    """(K, M)"""
    noise_penalties: Array
    """(M,) the path of the noise; empty if there was none."""
    noise_gain: Array
    """(M,)"""
    noise_error: Array
    """(M,)"""
    weights_penalty: float = 0.0
    """Of the mixture weights; 0 leaves every site its own."""

    def at_choice(self) -> tuple[Array, Array]:
        """(K,) and (K,): each site's gain at the chosen penalty, and its standard error."""
        place = int(np.flatnonzero(self.penalties == self.penalty)[0])
        return self.site_gain[:, place], self.site_error[:, place]

    def as_arrays(self, local_only: Array) -> dict[str, Array]:
        """Everything by name, what each site gains, and which sites were given their own fit."""
        arrays = {name: np.asarray(value) for name, value in self._asdict().items()}
        gain, error = self.at_choice()
        return arrays | {"chosen_gain": gain, "chosen_error": error, "local_only": local_only}

    def losers(self) -> Array:
        """(K,) which sites clearly lose by being pulled with the chosen penalty."""
        gain, error = self.at_choice()
        return np.asarray(gain < -RELEASED * error)


class Trip(NamedTuple):
    """What the sites said of one path."""

    gain: Array
    """(K, M)"""
    error: Array
    """(K, M)"""
    params: Params
    """(K, 2, M, ...) where the fits ended."""


def for_path(algorithm: Any, steps: int) -> Algorithm:
    """The algorithm in few rounds, whatever its own options say of them."""
    found: Algorithm = replace(algorithm, local_steps=steps, memory=MEMORY)
    return found


def choose_penalty(spec: FitSpec, starts: Starts) -> Phase[Choice]:
    """Play the path from aligned starts ``(K, ...)`` and pick.

    Where the noise is estimated and its penalty not given, that is chosen first, on a path of its own, if it has as
    many numbers as a component: what is good for few is not good for many. A single variance has the components'
    penalty. With a given penalty, the path only tells what the sites gain by it. Where the center rule finds by itself
    how strongly to pull, that is compared with fitting alone, and with nothing else.
    """
    params = starts.params
    given = spec.penalty
    estimated = spec.estimates_pull
    penalties = ESTIMATED if estimated else PENALTIES if given is None else (0.0, float(given))
    fixed = spec.algorithm.noise_penalty
    noise, said = (np.zeros(0), np.zeros(0), np.zeros(0)), 0
    large = params.noise is not None and params.noise.shape[-1] >= params.theta.shape[-1]
    if large and fixed is None and given is None and not estimated:
        others = (0.0, *(MEANWHILE,) * (len(NOISE_PENALTIES) - 1))
        trip = yield from walk(spec, starts, others, NOISE_PENALTIES, NOISE_ROUNDS, 0)
        place, noise_gain, noise_error = pick(trip.gain, NOISE_PENALTIES)
        noise, fixed, said = (np.array(NOISE_PENALTIES), noise_gain, noise_error), NOISE_PENALTIES[place], NOISE_ROUNDS
    along = penalties if fixed is None else (0.0, *(float(fixed),) * (len(penalties) - 1))
    trip = yield from walk(spec, starts, penalties, along, ROUNDS, said)
    place, gain, error = pick(trip.gain, penalties, bounded=not estimated)
    penalty = float(penalties[place]) if given is None else float(given)
    weights_penalty = yield from choose_pooling(
        spec, starts, trip, int(np.flatnonzero(np.array(penalties) == penalty)[0])
    )
    return Choice(
        penalty, penalty if fixed is None else float(fixed), np.array(penalties), gain, error, trip.gain, trip.error,
        *noise, weights_penalty,
    )  # fmt: skip


def choose_pooling(spec: FitSpec, starts: Starts, trip: Trip, place: int) -> Phase[float]:
    """The penalty of the mixture weights: the best of a few on held-out rows, 0 unless it is clearly better.

    Only the weights of the fits with the chosen penalty are changed, so that one exchange tells.
    """
    wanted = spec.algorithm.pool_weights
    if wanted is False or spec.n_components == 1:
        return 0.0
    n_sites, count = len(starts.n_rows), len(WEIGHTS_PENALTIES)
    chosen: Params = map_arrays(lambda leaf: leaf[:, :, place], trip.params)
    parts = _parts(spec, starts)
    constants = full_penalty(np.array(WEIGHTS_PENALTIES), spec.n_components - 1.0, n_sites)
    shape = (n_sites, 2, count)
    common = np.repeat(middle_weights(chosen.weights)[:, None], count, axis=1)
    own = np.broadcast_to(chosen.weights[:, :, None], (*shape, spec.n_components))
    tried, _ = pool_weights(
        spec.algorithm.rule, own, common, np.broadcast_to(constants, shape), _seen(starts, parts), everyone(n_sites)
    )
    fits: Params = map_arrays(
        lambda leaf: np.broadcast_to(leaf[:, :, None], (n_sites, 2, count, *leaf.shape[2:])), chosen
    )
    replies = yield Ask("weights_score", ScoreRequest(parts, fits._replace(weights=tried)))
    # A fit to a part of the rows knows its weights less well, and gains more by pooling than one to all rows will.
    excess = 0.5 * (spec.n_components - 1.0) * (1.0 / _seen(starts, parts) - 1.0 / starts.n_rows)
    gain = replies.mail.gain - excess[:, None] * (np.arange(count) > 0)
    return WEIGHTS_PENALTIES[clearly_best(gain, must=wanted is True)]


def clearly_best(gain: Array, *, must: bool = False) -> int:
    """The place of the best in gains ``(K, M)`` over the first, trimmed over the sites; the first unless it is clear.

    With ``must`` the best of the others, clear or not.

    Examples
    --------
    >>> clearly_best(np.array([[0.0, 0.1, -1.0], [0.0, 0.2, -1.0], [0.0, 0.1, -1.0]]))
    1
    >>> clearly_best(np.array([[0.0, -0.1], [0.0, 0.2], [0.0, -0.2]]))
    0
    """
    n_sites = len(gain)
    cut = int(TRIMMED * n_sites)
    ordered = np.sort(_possible(gain), axis=0)
    common = ordered[cut : n_sites - cut].mean(axis=0)
    best = 1 + int(np.argmax(common[1:]))
    error = float(_error_of_middle(ordered[:, best])) if n_sites > 1 else np.inf
    # No minority can have weights pooled by claiming large gains; but those who would lose much are heard.
    bounded = np.minimum(ordered[:, best], ordered[n_sites - 1 - cut, best]).mean()
    return best if must or (common[best] > CLEAR * error and bounded > 0) else 0


def _possible(gain: Array) -> Array:
    """Gains as far as rows can speak for or against anything; what is not a number speaks against."""
    most = 2.0 * MOST_PER_ROW
    return np.asarray(np.clip(np.nan_to_num(gain, nan=-most, posinf=most, neginf=-most), -most, most))


def _error_of_middle(values: Array) -> Array:
    """() or (M,) the standard error of a trimmed mean of values ``(K, ...)``, from their winsorized variance."""
    n_sites, ordered = len(values), np.sort(values, axis=0)
    cut = int(TRIMMED * n_sites)
    tame = np.clip(values, ordered[cut], ordered[n_sites - 1 - cut])
    kept = (n_sites - 2 * cut) / n_sites
    return np.asarray(tame.std(axis=0, ddof=1) / (kept * np.sqrt(n_sites)))


def _parts(spec: FitSpec, starts: Starts) -> Array:
    """(K,) in how many parts rows are cut: two where half of them are enough to fit, else four."""
    enough = float(np.median(starts.n_rows)) >= ENOUGH * spec.n_components
    return np.full(len(starts.n_rows), 2 if enough else 4)


def _seen(starts: Starts, parts: Array) -> Array:
    """(K,) rows that a fit of the path sees."""
    return np.asarray(starts.n_rows * (1.0 - 1.0 / parts))


def walk(
    spec: FitSpec,
    starts: Starts,
    penalties: tuple[float, ...],
    noise_penalties: tuple[float, ...],
    rounds: int,
    said: int,
) -> Phase[Trip]:
    """Play the fits of a path, two for each penalty, and let the sites judge them."""
    family, n_sites, count = spec.family, len(starts.n_rows), len(penalties)
    algorithm = for_path(spec.algorithm, family.path_steps)
    parts = _parts(spec, starts)
    fits: Params = map_arrays(
        lambda leaf: np.broadcast_to(leaf[:, None, None], (n_sites, 2, count, *leaf.shape[1:])), starts.params
    )
    along, along_noise = (np.broadcast_to(np.array(c, dtype=float), (2, count)) for c in (penalties, noise_penalties))
    # The rows that a fit may see decide its pull: half of them, or three quarters.
    pull = Pull(along, along_noise, everyone(n_sites), estimated=spec.estimates_pull)
    central = algorithm.begin(family, fits, _seen(starts, parts), pull)
    for number in range(1, rounds + 1):
        told = Progress(
            "penalties", said + number, ROUNDS + NOISE_ROUNDS * (said > 0 or rounds == NOISE_ROUNDS), float("nan")
        )
        mail: Broadcast = algorithm.broadcast(family, central)
        replies = yield Ask("path_step", PathRequest(parts, mail), told)
        reply: PathReply = replies.mail
        after, _ = algorithm.central_step(family, central, reply.fits, replies.present)
        _, moved = movements(family, central.params, after, Near.of(family, after))
        central = after
        if np.quantile(moved, MOST_MOVED, axis=0).max() < SETTLED:
            break
    replies = yield Ask("path_score", ScoreRequest(parts, central.params))
    judged: ScoreReply = replies.mail
    return Trip(judged.gain, judged.error, central.params)


def pick(gain: Array, penalties: tuple[float, ...] = PENALTIES, *, bounded: bool = True) -> tuple[int, Array, Array]:
    """Which penalty of the path to take, given what every site gains by each, ``(K, M)``.

    The largest finite one that is within half a standard error of the best finite one: where penalties do equally well,
    sites that agree exactly are easier to read than sites that nearly do, and any finite one leaves an odd site a way
    out. Where nothing needs to be ``bounded``, infinity counts as the others. Gains are trimmed means over the sites,
    and the error is that of the middle of the differences from the best, from their median absolute deviation.

    Returns
    -------
    its place, (M,) the trimmed means, (M,) the standard errors.

    Examples
    --------
    >>> gain = np.array([[0.0, 0.20, 0.21], [0.0, 0.22, 0.20], [0.0, 0.18, 0.19], [0.0, 0.21, -9.0]])
    >>> pick(gain, (0.0, 1.0, 2.0))[0]
    2
    """
    gain = _possible(gain)
    n_sites = len(gain)
    cut = int(TRIMMED * n_sites)
    middle = slice(cut, n_sites - cut)
    common = np.asarray(np.sort(gain, axis=0)[middle].mean(axis=0))
    best = int(np.argmax(common))
    behind = np.sort(gain[:, [best]] - gain, axis=0)
    # Of few sites two or three are left when the others are trimmed, and say nothing of how sites differ.
    spread = 1.4826 * np.median(np.abs(behind - np.median(behind, axis=0)), axis=0)
    error = ERROR_OF_MEDIAN * spread / np.sqrt(n_sites)
    finite, near = np.isfinite(penalties) | (not bounded), NEARLY if bounded else 1.0
    close = np.flatnonzero((behind[middle].mean(axis=0) <= near * error + ALIKE) & finite)
    # Where only the infinite one is that good, the best finite one comes closest: any finite one leaves a way out.
    place = int(close[-1]) if len(close) else int(np.argmax(np.where(finite, common, -np.inf)))
    return place, common, np.asarray(error)
