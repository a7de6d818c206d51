"""The choice of the penalty: a path of fits from "each alone" to "one for all", judged on rows they have not seen.

Every site cuts its rows in two by chance. For each penalty of the path two fits are played, each on one half of every
site, all in the same messages; then each site says how much better each penalty describes its rows, by the fit that has
not seen them, than fitting alone does. The center puts these gains together, robustly, and picks.
"""

from collections.abc import Callable
from dataclasses import replace
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
HALVES = 2
ROUNDS, LOCAL_STEPS, MEMORY = 8, 10, 5
"""Of every fit on the path: enough to tell penalties apart, and not to settle the last digits."""
TRIMMED = 0.25
"""Share of the sites left out at either end when gains are put together: what a minority sends does not matter."""
CLEAR = 2.0
"""Standard errors below zero at which a site loses clearly by being pulled."""
LARGEST_GAIN = 1e6
"""Per row; stands for infinity, which a message may not hold."""


class PathRequest(NamedTuple):
    """What a site is sent in a round of the path."""

    key: Array
    """(2,) from which it derives who is in which half."""
    members: Broadcast
    """(B, ...) to each of the B = M * 2 fits what the algorithm itself would send; halves within penalties."""


class PathReply(NamedTuple):
    """What it answers."""

    members: Upload
    """(B, ...)"""
    n_rows: Array
    """() the total row weight of both halves."""


class ScoreRequest(NamedTuple):
    """What a site is sent to judge the fits."""

    key: Array
    """(2,) as in the rounds."""
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
    exchanges: int
    numbers: int
    """Sent and received in them."""

    def at_choice(self) -> tuple[NumpyArray, NumpyArray]:
        """(K,) and (K,): each site's gain at the chosen penalty, and its standard error."""
        place = int(np.flatnonzero(self.penalties == self.penalty)[0])
        return self.site_gain[:, place], self.site_error[:, place]

    def as_arrays(self, fallback: bool) -> dict[str, NumpyArray]:
        """Everything by name; with ``fallback``, which sites were given their own fit back, too."""
        arrays = {name: np.asarray(value) for name, value in self._asdict().items()}
        return arrays | {"released": self.losers() & fallback}

    def losers(self) -> NumpyArray:
        """(K,) which sites clearly lose by being pulled with the chosen penalty."""
        gain, error = self.at_choice()
        return np.asarray(gain < -CLEAR * error)


# -- at a site


def path_step(algorithm: FedGrEM, data: SiteData, request: PathRequest) -> PathReply:
    """The algorithm's own local step for every fit of the path, each on its half of the rows."""
    half_of_row, playing = _half_of_row(request.key, data), hurried(algorithm)

    def one(member: tuple[Array, Broadcast]) -> Upload:
        half, mail = member
        return playing.local_step(data._replace(row_weight=data.row_weight * (half_of_row == half)), mail)

    count = request.members.params.weights.shape[0]
    halves = jnp.arange(count) % HALVES
    # Penalty by penalty: all of them at once would leave the processor's cache.
    members: Upload = jax.lax.map(one, (halves, request.members), batch_size=HALVES)
    return PathReply(members, data.row_weight.sum())


def path_score(family: Family, data: SiteData, request: ScoreRequest) -> ScoreReply:
    """Every row judged by the fits that have not seen it: what each penalty gains over the first, per row."""
    half_of_row = _half_of_row(request.key, data)

    def held_out(halves: Params) -> Array:
        def log_likelihood(params: Params) -> Array:
            return row_posterior(family.log_density(data, params.theta, params.spread), params.weights)[1]

        first, second = jax.vmap(log_likelihood)(halves)
        return jnp.where(half_of_row == 0, second, first)

    pairs = jax.tree.map(lambda leaf: leaf.reshape(-1, HALVES, *leaf.shape[1:]), request.members)
    per_row = jax.lax.map(held_out, pairs)
    n_rows = data.row_weight.sum()
    share = data.row_weight / n_rows
    away = jnp.where(data.row_weight > 0, per_row - per_row[:1], 0.0)
    away = jnp.clip(jnp.nan_to_num(away), -LARGEST_GAIN, LARGEST_GAIN)
    gain = away @ share
    variance = (away - gain[:, None]) ** 2 @ share
    return ScoreReply(gain, jnp.sqrt(variance / jnp.maximum(n_rows - 1.0, 1.0)), n_rows)


def _half_of_row(key: Array, data: SiteData) -> Array:
    """(n,) 0 or 1, as many of each as can be; rows added as padding come last and do not change it."""
    draws = jnp.where(data.row_weight > 0, uniforms(key, data.row_weight.shape, jnp.float32), 2.0)
    return jnp.argsort(jnp.argsort(draws)) % HALVES


def hurried(algorithm: FedGrEM) -> FedGrEM:
    """The algorithm in few rounds, whatever its own options say of them."""
    return replace(algorithm, local_steps=LOCAL_STEPS, memory=MEMORY)


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
) -> Choice:
    """Play the path from aligned starts ``(K, ...)`` and pick; ``tell`` is called with the number of each round.

    With a penalty ``given``, the path only tells what the sites gain by it.
    """
    playing = hurried(algorithm)
    along = jnp.repeat(jnp.asarray(penalties, dtype=params.theta.dtype), HALVES)
    keys = jnp.asarray(np.stack([derive_key(seed, name, "halves") for name in engine.site_names]))
    held = _begin(playing, along, params, n_rows)
    numbers = 0
    for number in range(1, ROUNDS + 1):
        tell(number)
        request = PathRequest(keys, _mail(playing, held))
        reply: PathReply = engine.ask("path_step", request)
        held = _advance(playing, held, reply.members)
        numbers += _count((request, reply))
    score = ScoreRequest(keys, _sites_first(held.params))
    judged: ScoreReply = engine.ask("path_score", score)
    numbers += _count((score, judged))
    gain, error = np.asarray(judged.gain, dtype=float), np.asarray(judged.error, dtype=float)
    place, common, behind = pick(gain, penalties)
    penalty = float(penalties[place]) if given is None else given
    return Choice(penalty, np.array(penalties), common, behind, gain, error, exchanges=ROUNDS + 1, numbers=numbers)


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
    gain = np.nan_to_num(gain, nan=-LARGEST_GAIN, posinf=LARGEST_GAIN, neginf=-LARGEST_GAIN)
    n_sites = len(gain)
    cut = int(TRIMMED * n_sites)
    common = _trimmed(gain, cut)
    best = int(np.argmax(common))
    behind = np.sort(gain[:, [best]] - gain, axis=0)
    tame = np.clip(behind, behind[cut], behind[n_sites - 1 - cut])
    kept = (n_sites - 2 * cut) / n_sites
    error = tame.std(axis=0, ddof=1) / (kept * np.sqrt(n_sites)) if n_sites > 1 else np.zeros(len(common))
    close = np.flatnonzero((_trimmed(behind, cut) <= error) & np.isfinite(penalties))
    return int(close.max(initial=-1)) if len(close) else best, common, np.asarray(error)


def _trimmed(values: NumpyArray, cut: int) -> NumpyArray:
    """Mean over the first axis without the ``cut`` smallest and largest."""
    return np.asarray(np.sort(values, axis=0)[cut : len(values) - cut].mean(axis=0))


@jax.jit
def _begin(algorithm: FedGrEM, along: Array, params: Params, n_rows: Array) -> Central:
    """What the center holds for every fit of the path, stacked ``(B, ...)``."""
    begun: Central = jax.vmap(lambda penalty: replace(algorithm, penalty=penalty).central_start(params, n_rows))(along)
    return begun


@jax.jit
def _mail(algorithm: FedGrEM, held: Central) -> Broadcast:
    mail: Broadcast = _sites_first(jax.vmap(algorithm.broadcast)(held))
    return mail


@jax.jit
def _advance(algorithm: FedGrEM, held: Central, uploads: Upload) -> Central:
    after: Central = jax.vmap(lambda mine, mail: algorithm.central_step(mine, mail)[0])(held, _sites_first(uploads))
    return after


def _sites_first(tree: Any) -> Any:
    """``(B, K, ...)`` to ``(K, B, ...)``, and back."""
    return jax.tree.map(lambda leaf: jnp.swapaxes(leaf, 0, 1), tree)


def _count(message: Any) -> int:
    return int(sum(np.size(leaf) for leaf in jax.tree.leaves(message)))
