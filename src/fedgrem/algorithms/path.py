"""The choice of the penalty: a path of fits from "each alone" to "one for all", judged on rows they have not seen.

Every site cuts its rows in two by chance (or, where rows are few, in four). For each penalty of the path two fits are
played, each without one of the first two parts of every site, all in the same messages; then each site says how much
better each penalty describes these rows, by the fit that has not seen them, than fitting alone does. The center puts
these gains together, robustly, and picks.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedgrem.algorithms.align import derive_key
from fedgrem.algorithms.base import Engine
from fedgrem.algorithms.fedgrem import FedGrEM
from fedgrem.families.base import Family
from fedgrem.kernels.randomness import uniforms
from fedgrem.kernels.responsibilities import row_posterior
from fedgrem.types import Array, Broadcast, Central, NumpyArray, Params, SiteData, Upload

PENALTIES = (0.0, 0.35, 0.5, 0.7, 1.0, 1.4, 2.0, 2.8, 4.0, np.inf)
"""The path. It begins with fitting alone, which all others are compared with."""
NOISE_PENALTIES = (0.0, 0.0, 0.7, 1.0, 1.4, 2.0, 2.8, 4.0, 8.0, np.inf)
"""The path of the noise, as long as the other; it too begins with fitting alone."""
MEANWHILE = 1.0
"""The penalty of everything else while that of the noise is chosen."""
TWO = 2
"""Fits for each penalty, and parts that are held out."""
ROUNDS = 8
"""Of every fit on the path: enough to tell penalties apart, and not to settle the last digits."""
LOCAL_STEPS, MEMORY = 10, 5
"""Of a fit that is to settle: steps of a site per round, and steps that the center extrapolates from. On the path the
family says how many a site takes: where they are short, too few leave large penalties behind small ones."""
NOISE_ROUNDS = 4
"""Of the path of the noise, which is found sooner."""
TOGETHER = 2.8
"""The largest penalty whose fit the sites may begin the rounds at."""
TRIMMED = 0.25
"""Share of the sites left out at either end when gains are put together: what a minority sends does not matter."""
CLEAR = 2.0
"""Standard errors beyond which a gain or a loss counts as clear."""
RELEASED = 3.0
"""Standard errors of a loss beyond which a site is fitted alone: of dozens of sites some lose by two of them by chance,
and fitting those alone costs more than the pull does."""
MOST_PER_ROW = 5.0
"""Of log-likelihood that one row can speak for or against a penalty: a row far from everything must not decide."""
ENOUGH = 20.0
"""Rows per component of the middle site with which half of them are enough to fit."""


class PathRequest(NamedTuple):
    """What a site is sent in a round of the path."""

    key: Array
    """(2,) from which it derives who is in which part."""
    parts: Array
    """() how many parts there are."""
    members: Broadcast
    """(B, ...) to each of the B = M * 2 fits what the algorithm itself would send; halves within penalties."""


class PathReply(NamedTuple):
    """What it answers."""

    members: Upload
    """(B, ...)"""
    n_rows: Array
    """() the total row weight."""


class ScoreRequest(NamedTuple):
    """What a site is sent to judge the fits."""

    key: Array
    """(2,) as in the rounds."""
    parts: Array
    """() as in the rounds."""
    members: Params
    """(B, ...)"""


class ScoreReply(NamedTuple):
    """What it answers: held-out log-likelihoods, and no more of them than one number per penalty."""

    gain: Array
    """(M,) mean log-likelihood per row, less that of the first penalty."""
    error: Array
    """(M,) its standard error, from the differences of single rows."""
    n_rows: Array
    """()"""


class Choice(NamedTuple):
    """What came of it: NumPy arrays only, to be kept with a fit."""

    penalty: float
    covariance_penalty: float
    """Of the noise; chosen if it is estimated and was not given."""
    penalties: NumpyArray
    """(M,) the path."""
    gain: NumpyArray
    """(M,) trimmed mean over the sites of their gains per held-out row over fitting alone."""
    error: NumpyArray
    """(M,) standard error of what each penalty is behind the best one."""
    site_gain: NumpyArray
    """(K, M)"""
    site_error: NumpyArray
    """(K, M)"""
    noise_penalties: NumpyArray
    """(M,) the path of the noise; empty if there was none."""
    noise_gain: NumpyArray
    """(M,)"""
    noise_error: NumpyArray
    """(M,)"""
    exchanges: int
    numbers: int
    """Sent and received in them."""

    def at_choice(self) -> tuple[NumpyArray, NumpyArray]:
        """(K,) and (K,): each site's gain at the chosen penalty, and its standard error."""
        place = int(np.flatnonzero(self.penalties == self.penalty)[0])
        return self.site_gain[:, place], self.site_error[:, place]

    def as_arrays(self, fallback: bool) -> dict[str, NumpyArray]:
        """Everything by name, and what each site gains and who was, with ``fallback``, given its own fit back."""
        arrays = {name: np.asarray(value) for name, value in self._asdict().items()}
        gain, error = self.at_choice()
        return arrays | {"chosen_gain": gain, "chosen_error": error, "released": self.losers() & fallback}

    def losers(self) -> NumpyArray:
        """(K,) which sites clearly lose by being pulled with the chosen penalty."""
        gain, error = self.at_choice()
        return np.asarray(gain < -RELEASED * error)


# -- at a site


def path_step(algorithm: FedGrEM, data: SiteData, request: PathRequest) -> PathReply:
    """The algorithm's own local step for every fit of the path, each on the rows that it may see."""
    part_of_row, playing = _part_of_row(request, data), hurried(algorithm)

    def one(member: tuple[Array, Broadcast]) -> Upload:
        held_out, mail = member
        return playing.local_step(data._replace(row_weight=data.row_weight * (part_of_row != held_out)), mail)

    count = request.members.params.weights.shape[0]
    # Penalty by penalty: all of them at once would leave the processor's cache.
    members: Upload = jax.lax.map(one, (jnp.arange(count) % TWO, request.members), batch_size=TWO)
    return PathReply(members, data.row_weight.sum())


def path_score(family: Family, data: SiteData, request: ScoreRequest) -> ScoreReply:
    """Every row judged by the fits that have not seen it: what each penalty gains over the first, per row."""
    part_of_row = _part_of_row(request, data)

    def held_out(halves: Params) -> Array:
        def log_likelihood(params: Params) -> Array:
            return row_posterior(family.log_density(data, params.theta, params.spread), params.weights)[1]

        first, second = jax.vmap(log_likelihood)(halves)
        return jnp.where(part_of_row == 0, first, second)

    pairs = jax.tree.map(lambda leaf: leaf.reshape(-1, TWO, *leaf.shape[1:]), request.members)
    per_row = jax.lax.map(held_out, pairs)
    weight = data.row_weight * (part_of_row < TWO)
    n_judged = weight.sum()
    share = weight / n_judged
    # Against the middle of the path, and bounded: alone, a site of few rows may fit so badly that all else looks equal.
    away = jnp.where(weight > 0, per_row - per_row[len(per_row) // 2], 0.0)
    away = jnp.clip(jnp.nan_to_num(away, nan=-MOST_PER_ROW), -MOST_PER_ROW, MOST_PER_ROW)
    away = away - away[:1]
    gain = away @ share
    variance = (away - gain[:, None]) ** 2 @ share
    return ScoreReply(gain, jnp.sqrt(variance / jnp.maximum(n_judged - 1.0, 1.0)), data.row_weight.sum())


def _part_of_row(request: PathRequest | ScoreRequest, data: SiteData) -> Array:
    """(n,) 0, 1, ..., as many of each as can be; rows added as padding come last and do not change it."""
    draws = jnp.where(data.row_weight > 0, uniforms(request.key, data.row_weight.shape, jnp.float32), 2.0)
    return jnp.argsort(jnp.argsort(draws)) % request.parts


def hurried(algorithm: FedGrEM) -> FedGrEM:
    """The algorithm in few rounds, whatever its own options say of them."""
    return replace(algorithm, local_steps=algorithm.family.path_steps, memory=MEMORY)


# -- at the center


def choose_penalty(
    algorithm: FedGrEM,
    engine: Engine,
    params: Params,
    n_rows: Array,
    seed: int,
    tell: Callable[[int], None],
    penalties: tuple[float, ...] = PENALTIES,
    given: float | None = None,
) -> tuple[Choice, Params]:
    """Play the path from aligned starts ``(K, ...)`` and pick; ``tell`` is called with the number of each round.

    Also returns where the sites are to begin the fit: at their starts or, in families with many poor optima (those with
    joint starts), where a strong pull has taken a site, if that serves it better than fitting alone. Alone, each is in
    an optimum of its own; from there even the right pull may not bring it back.

    Where the noise is estimated and its penalty not given, that is chosen first, on a path of its own: far more numbers
    are shrunk there than in a component's mean, and what is good for one is not good for the other. With a penalty
    ``given``, the path only tells what the sites gain by it, and they begin at their starts.
    """
    keys = jax.device_put(np.stack([derive_key(seed, name, "parts") for name in engine.site_names]))
    enough = float(np.median(n_rows)) >= ENOUGH * params.weights.shape[1]
    parts = jax.device_put(np.full(len(n_rows), TWO if enough else 2 * TWO, dtype=np.int32))
    walk = partial(_walk, hurried(algorithm), engine, params, n_rows, (keys, parts))
    fixed = algorithm.covariance_penalty
    nothing, exchanges, numbers, said = np.zeros(0), 0, 0, 0
    noise, noise_gain, noise_error = nothing, nothing, nothing
    if params.spread is not None and fixed is None and given is None:
        others = (0.0, *(MEANWHILE,) * (len(NOISE_PENALTIES) - 1))
        trip = walk(others, NOISE_PENALTIES, NOISE_ROUNDS, tell)
        place, noise_gain, noise_error = pick(trip.gain, NOISE_PENALTIES)
        noise, fixed = np.array(NOISE_PENALTIES), NOISE_PENALTIES[place]
        exchanges, numbers, said = trip.exchanges, trip.numbers, NOISE_ROUNDS
    along_noise = penalties if fixed is None else (0.0, *(float(fixed),) * (len(penalties) - 1))
    trip = walk(penalties, along_noise, ROUNDS, lambda number: tell(said + number))
    place, gain, error = pick(trip.gain, penalties)
    penalty = float(penalties[place]) if given is None else given
    together = given is None and algorithm.family.start_tracks > 0
    begin = _begin_together(params, trip, penalties) if together else params
    choice = Choice(
        penalty=penalty,
        covariance_penalty=penalty if fixed is None else float(fixed),
        penalties=np.array(penalties),
        gain=gain,
        error=error,
        site_gain=trip.gain,
        site_error=trip.error,
        noise_penalties=noise,
        noise_gain=noise_gain,
        noise_error=noise_error,
        exchanges=exchanges + trip.exchanges,
        numbers=numbers + trip.numbers,
    )
    return choice, begin


def _begin_together(params: Params, trip: "_Trip", penalties: tuple[float, ...]) -> Params:
    """Where the sites begin: at the fit with a strong pull, or, where that loses on held-out rows, at their starts."""
    place = max(m for m, penalty in enumerate(penalties) if penalty <= TOGETHER)
    gains = trip.gain[:, place] > 0

    def first(start: Array, members: Array) -> Array:
        there, here = np.asarray(members)[TWO * place], np.asarray(start)
        begun: Array = jax.device_put(np.where(gains.reshape(-1, *(1,) * (here.ndim - 1)), there, here))
        return begun

    begin: Params = jax.tree.map(first, params, trip.params)
    return begin


def first_requests(
    algorithm: FedGrEM, params: Params, n_rows: Array, key: Array, penalties: tuple[float, ...]
) -> tuple[PathRequest, ScoreRequest]:
    """What one site that starts at ``params`` is sent on the path, for a rehearsal."""
    playing, along = hurried(algorithm), _for_every_fit(penalties, params)
    alone, rows = jax.tree.map(lambda leaf: leaf[None], (params, n_rows))
    held = _begin(playing, along, along, alone, rows)
    cut = key, jnp.asarray(TWO, dtype=jnp.int32)
    step, members = jax.tree.map(lambda leaf: leaf[0], (_mail(playing, held), _members(held)))
    return PathRequest(*cut, step), ScoreRequest(*cut, members)


class _Trip(NamedTuple):
    """What the sites said of one path."""

    gain: NumpyArray
    """(K, M)"""
    error: NumpyArray
    """(K, M)"""
    params: Params
    """(B, K, ...) where the fits ended."""
    exchanges: int
    numbers: int


def _walk(
    algorithm: FedGrEM,
    engine: Engine,
    params: Params,
    n_rows: Array,
    cut: tuple[Array, Array],
    penalties: tuple[float, ...],
    noise: tuple[float, ...],
    rounds: int,
    tell: Callable[[int], None],
) -> _Trip:
    """Play the fits of a path and let the sites judge them."""
    along, along_noise = (_for_every_fit(c, params) for c in (penalties, noise))
    held = _begin(algorithm, along, along_noise, params, n_rows)
    numbers = 0
    for number in range(1, rounds + 1):
        tell(number)
        request = PathRequest(*cut, _mail(algorithm, held))
        reply: PathReply = engine.ask("path_step", request)
        held = _advance(algorithm, held, reply.members)
        numbers += _count((request, reply))
    score = ScoreRequest(*cut, _members(held))
    judged: ScoreReply = engine.ask("path_score", score)
    gain, error = (np.asarray(told, dtype=float) for told in (judged.gain, judged.error))
    return _Trip(gain, error, held.params, rounds + 1, numbers + _count((score, judged)))


def pick(gain: NumpyArray, penalties: tuple[float, ...] = PENALTIES) -> tuple[int, NumpyArray, NumpyArray]:
    """Which penalty of the path to take, given what every site gains by each, ``(K, M)``.

    The largest finite one that is within one standard error of the best: where penalties do equally well, sites that
    agree exactly are easier to read than sites that nearly do, and any finite one leaves an odd site a way out. Gains
    are trimmed means over the sites, and the error is that of the trimmed mean of the differences from the best, from
    their winsorized variance.

    Returns
    -------
    its place, (M,) the trimmed means, (M,) the standard errors.

    Examples
    --------
    >>> gain = np.array([[0.0, 0.20, 0.21], [0.0, 0.22, 0.20], [0.0, 0.18, 0.19], [0.0, 0.21, -9.0]])
    >>> pick(gain, (0.0, 1.0, 2.0))[0]
    2
    """
    worst = 2.0 * MOST_PER_ROW
    gain = np.clip(np.nan_to_num(gain, nan=-worst, posinf=worst, neginf=-worst), -worst, worst)
    n_sites = len(gain)
    cut = int(TRIMMED * n_sites)
    middle = slice(cut, n_sites - cut)
    common = np.asarray(np.sort(gain, axis=0)[middle].mean(axis=0))
    best = int(np.argmax(common))
    behind = np.sort(gain[:, [best]] - gain, axis=0)
    tame = np.clip(behind, behind[cut], behind[n_sites - 1 - cut])
    kept = (n_sites - 2 * cut) / n_sites
    error = tame.std(axis=0, ddof=1) / (kept * np.sqrt(n_sites)) if n_sites > 1 else np.zeros(len(common))
    close = np.flatnonzero((behind[middle].mean(axis=0) <= error) & np.isfinite(penalties))
    return int(close[-1]) if len(close) else best, common, np.asarray(error)


@jax.jit
def _begin(algorithm: FedGrEM, along: Array, along_noise: Array, params: Params, n_rows: Array) -> Central:
    """What the center holds for every fit of the path, stacked ``(B, ...)``."""

    def one(penalty: Array, noise: Array) -> Central:
        return replace(algorithm, penalty=penalty, covariance_penalty=noise).central_start(params, n_rows)

    begun: Central = jax.vmap(one)(along, along_noise)
    return begun


@jax.jit
def _mail(algorithm: FedGrEM, held: Central) -> Broadcast:
    mail: Broadcast = _sites_first(jax.vmap(algorithm.broadcast)(held))
    return mail


@jax.jit
def _members(held: Central) -> Params:
    members: Params = _sites_first(held.params)
    return members


@jax.jit
def _advance(algorithm: FedGrEM, held: Central, uploads: Upload) -> Central:
    after: Central = jax.vmap(lambda mine, mail: algorithm.central_step(mine, mail)[0])(held, _sites_first(uploads))
    return after


def _for_every_fit(penalties: tuple[float, ...], params: Params) -> Array:
    """(B,) the penalty of each fit."""
    each: Array = jax.device_put(np.repeat(np.array(penalties, dtype=params.theta.dtype), TWO))
    return each


def _sites_first(tree: Any) -> Any:
    """``(B, K, ...)`` to ``(K, B, ...)``, and back."""
    return jax.tree.map(lambda leaf: jnp.swapaxes(leaf, 0, 1), tree)


def _count(message: Any) -> int:
    return int(sum(np.size(leaf) for leaf in jax.tree.leaves(message)))
