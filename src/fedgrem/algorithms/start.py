"""What a site does alone before round 1: restarts of EM, and a comparison with starts found elsewhere."""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp

from fedgrem.families.base import LEAST_SHARE, Family, expect, maximize
from fedgrem.kernels.center import group_soft_threshold
from fedgrem.kernels.randomness import split_key
from fedgrem.types import Array, Params, SiteData, StartReply, StartRequest


@dataclass(frozen=True, slots=True)
class StartPlan:
    """How starts are found. Hashable: the shape of a compiled program."""

    n_components: int
    n_init: int = 10
    """Restarts at each site."""
    short: int = 20
    """EM iterations from every restart."""
    restart_rows: int | None = None
    """About how many rows of a larger site restarts look at; the best goes on with all. None is all for these too."""
    long: int = 100
    """Further EM iterations from the best restart, and from every candidate of an exchange."""
    exchanges: int = 1
    """Rounds in which each site tries starts found at other sites, and keeps what fits its own rows best."""
    donors: int = 0
    """Starts of single sites sent round in an exchange, besides the coordinate-wise median of all sites."""
    alignment: Literal["assignment", "stepwise", "exhaustive"] = "assignment"
    tracks: int | None = None
    """Joint starts that all sites improve together before the exchanges; None leaves it to the family, 0 is none."""
    generations: int = 5
    """Times that poor tracks give way to variants of good ones, plus one."""
    generation: int = 6
    """Rounds of a generation."""
    stride: int = 4
    """EM iterations at every site in such a round."""


FAR = 3.0
"""A component farther from the common start than this many thresholds costs a candidate no more: it is its own."""


class Prior(NamedTuple):
    """A common start that a site's EM is pulled towards, as the rounds to come will do."""

    center: Array
    """(R, q)"""
    penalty: Array
    """() lambda"""
    spread: Array | None = None
    """(C, s) in the units of which the pull is measured; it is not pulled itself."""


def em(
    family: Family,
    data: SiteData,
    params: Params,
    iterations: int,
    prior: Prior | None = None,
    *,
    hold_noise: bool = False,
) -> tuple[Params, Array]:
    r"""EM with the family's M-step; returns the parameters and the objective they reach.

    The objective is the log-likelihood or, with a prior, the log-likelihood less
    :math:`\sqrt{n}\lambda\sum_r w_r \min(\|\theta_r - c_r\|, 3\lambda/\sqrt n)`, and each M-step is pulled to the
    center accordingly. With ``hold_noise`` the spread stays as it is: few rows leave it free to fit whatever partition
    EM happens to be in.
    """
    n_rows = data.row_weight.sum()

    def step(params: Params, mass: Array) -> Params:
        after = maximize(family, data, params, mass)
        if hold_noise:
            after = after._replace(spread=params.spread)
        if prior is None:
            return after
        # A component rarer than its least share is pulled in proportion: Q weighs w, the penalty the share.
        threshold = prior.penalty / jnp.sqrt(n_rows) * _share(after.weights) / jnp.maximum(after.weights, 1e-12)
        theta, center = (family.in_noise_units(t, prior.spread) for t in (after.theta, prior.center))
        pulled = group_soft_threshold(theta[None], center, threshold[None])[0]
        return after._replace(theta=family.from_noise_units(pulled, prior.spread))

    def once(i: Array, carry: tuple[Params, Array]) -> tuple[Params, Array]:
        params, _ = carry
        mass, log_likelihood = expect(family, data, params)
        after = jax.tree.map(lambda old, new: jnp.where(i < iterations, new, old), params, step(params, mass))
        return after, objective(family, params, log_likelihood, n_rows, prior)

    # The last time round only judges: an E-step of its own for that would take as long to compile as the loop.
    first = params, jnp.zeros((), dtype=params.theta.dtype)
    reached: tuple[Params, Array] = jax.lax.fori_loop(0, iterations + 1, once, first)
    return reached


def objective(family: Family, params: Params, log_likelihood: Array, n_rows: Array, prior: Prior | None) -> Array:
    """What :func:`em` climbs, at parameters of this log-likelihood; minus infinity where that is not a number."""
    value = log_likelihood
    if prior is not None:
        away = family.in_noise_units(params.theta - prior.center, prior.spread)
        distance = jnp.minimum(jnp.sqrt(jnp.sum(away**2, axis=1)), FAR * prior.penalty / jnp.sqrt(n_rows))
        value = value - prior.penalty * jnp.sqrt(n_rows) * _share(params.weights) @ distance
    return jnp.where(jnp.isfinite(value), value, -jnp.inf)


def _share(weights: Array) -> Array:
    return jnp.maximum(weights, LEAST_SHARE / weights.shape[0])


def local_start(family: Family, plan: StartPlan, data: SiteData, request: StartRequest) -> StartReply:
    """Several short EM runs from random starts; the best goes on for longer.

    If the center says how large the noise is, starts are drawn in its units and EM holds it.
    """
    even = jnp.full(plan.n_components, 1.0 / plan.n_components, dtype=data.columns.dtype)
    noise = request.candidates.spread
    held = noise is not None
    sample = data if plan.restart_rows is None else _thinned(data, plan.restart_rows)

    def restart(key: Array) -> tuple[Params, Array]:
        theta = family.draw_start(key, sample, plan.n_components, noise)
        spread = noise if held else family.first_spread(sample, theta)
        return em(family, sample, Params(even, theta, spread), plan.short, hold_noise=held)

    # One restart at a time, all sites at once: memory stays that of one E-step.
    runs, log_likelihood = jax.lax.map(restart, split_key(request.key, plan.n_init))
    best = _take(runs, _first_best(log_likelihood))
    params, value = em(family, data, best, plan.long, hold_noise=held)
    return _reply(data, _own_noise(family, data, params) if held else params, value, jnp.asarray(0))


def _thinned(data: SiteData, most: int) -> SiteData:
    """Every so-manieth row, so that about ``most`` are left: rows are in the order of their values, so all are met."""
    stride = max(1, data.row_weight.shape[0] // most)
    return SiteData(
        data.columns[:, ::stride],
        data.target[::stride],
        data.row_weight[::stride],
        None if data.rows_first is None else data.rows_first[::stride],
        None if data.observed is None else data.observed[:, ::stride],
    )


def local_compare(family: Family, plan: StartPlan, data: SiteData, request: StartRequest) -> StartReply:
    """EM from every candidate, pulled towards the common start; the one that fits these rows best is kept.

    Candidate 0 is this site's own start, candidate 1 the common one. Without the pull, a site that has few or no rows
    of a component would rather split another one in two.
    """
    common = _take(request.candidates, 1)
    prior = Prior(common.theta, request.penalty, common.spread)

    def follow(start: Params) -> tuple[Params, Array]:
        return em(family, data, start._replace(spread=common.spread), plan.long, prior, hold_noise=True)

    runs, value = jax.lax.map(follow, request.candidates)
    best = _first_best(value)
    return _reply(data, _own_noise(family, data, _take(runs, best)), value[best], best)


def local_track(family: Family, plan: StartPlan, data: SiteData, request: StartRequest) -> StartReply:
    """A few EM iterations from every candidate, each pulled towards where it came from; the last M-step is free.

    The pull keeps labels and lets a site fill what it has few rows of; the free step says where its rows would go.
    """

    def follow(start: Params) -> tuple[Params, Array]:
        params, value = em(family, data, start, plan.stride, Prior(start.theta, request.penalty, start.spread))
        mass, _ = expect(family, data, params)
        return maximize(family, data, params, mass), value

    runs, value = jax.lax.map(follow, request.candidates)
    return _reply(data, runs, value, jnp.zeros(value.shape, dtype=int))


def _own_noise(family: Family, data: SiteData, params: Params) -> Params:
    """The same parameters with the noise that these rows have about them."""
    mass, _ = expect(family, data, params)
    return params._replace(spread=family.spread_step(data, params.theta, mass, params.spread))


def _take(params: Params, index: int | Array) -> Params:
    """One of several, ``(M, ...)``."""
    taken: Params = jax.tree.map(lambda leaf: leaf[index], params)
    return taken


def _first_best(value: Array) -> Array:
    """The first of those that are best but for rounding: which of two ways to one optimum wins must not hang on it."""
    return jnp.argmax(value >= jnp.max(value) - 1e-7 * (1.0 + jnp.abs(jnp.max(value))))


def _reply(data: SiteData, params: Params, log_likelihood: Array, choice: Array) -> StartReply:
    return StartReply(params, data.row_weight.sum(), log_likelihood, choice)
