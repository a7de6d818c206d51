"""What a site says of the components that it has: of one that it misses, and of those that it can do without."""

from typing import NamedTuple

import numpy as np

from fedgrem.data.stack import Stack
from fedgrem.families.base import Family, weights_of
from fedgrem.fit.em import first_best, take
from fedgrem.fit.spec import FitSpec
from fedgrem.types import Array, Params, map_arrays

POOR = 0.3
"""Share of the rows, those explained worst, that a further component may begin at."""
BEGINNINGS, FIRST_WEIGHT = 20, 0.1
"""Rows or fits to a few of them that it begins at, and the weight that it begins with."""
SHORT, LONG = 15, 100
"""EM iterations from every beginning, and from the best."""
STEPS = 30
"""EM iterations in which weights settle while everything else is held."""


class Bases(NamedTuple):
    """What a site is sent to find a component that is missing."""

    params: Params
    """(2, R), (2, R, q), (2, C, s): its own parameters, and the center with its weights."""
    cost: Array
    """(2,) what they cost it, in units of log-likelihood."""
    between: Array
    """(2, R) variances in noise units with which its components may differ from these; 0 holds them."""


class Birth(NamedTuple):
    """What it answers: one more component. No shape depends on the number of rows."""

    params: Params
    """(R + 1,), (R + 1, q), (C, s): the better of the two bases, and the new component last."""
    gain: Array
    """() of log-likelihood over the better base alone, both less what a base costs."""
    base: Array
    """() which base this is: 0 for its own parameters, 1 for the center."""
    lead: Array
    """() of log-likelihood, likewise, by which its own parameters alone are better than the center."""
    n_rows: Array
    """() the total row weight."""


class Prices(NamedTuple):
    """What a site is sent to say which components it has."""

    params: Params
    """(R,), (R, q), (C, s)"""
    price: Array
    """(R,) what each must be worth to it, in units of log-likelihood; minus infinity for those it is to keep."""


class Holds(NamedTuple):
    """What it answers."""

    weights: Array
    """(R,) exactly 0 for what it lacks."""
    loss: Array
    """(R,) of log-likelihood without each; 0 for what it lacks."""
    n_rows: Array
    """() the total row weight."""


def birth(spec: FitSpec, stack: Stack, sent: Bases) -> Birth:
    """EM for one more component from rows that are explained poorly, the others held or pulled to where they were."""
    family, c = spec.family, len(stack)
    bases, reached = _climb(family, stack, sent.params, STEPS, sent.params.theta, sent.between)
    reached = _finite(reached - sent.cost)
    before = reached.max(axis=1)
    beginnings = _beginnings(spec, stack, take(bases, first_best(reached)))
    n_base, count = bases.weights.shape[1], beginnings.shape[1]

    def spread(leaf: Array) -> Array:
        return np.repeat(leaf, count, axis=1)

    # Not from where the others have moved to, which may be where one is missing.
    weights = np.concatenate(
        [(1.0 - FIRST_WEIGHT) * spread(sent.params.weights), np.full((c, n_base * count, 1), FIRST_WEIGHT)], axis=-1
    )
    theta = np.concatenate([spread(sent.params.theta), np.tile(beginnings[:, :, None], (1, n_base, 1, 1))], axis=-2)
    noise = None if bases.noise is None else spread(bases.noise)
    if noise is not None and noise_by_component(family, stack.rows.shape[-1]):
        noise = np.concatenate([noise, np.median(noise, axis=-2, keepdims=True)], axis=-2)
    about, between = spread(sent.params.theta), spread(sent.between)
    grown, value = _climb(family, stack, Params(weights, theta, noise), SHORT, about, between)
    best = first_best(_finite(value - np.repeat(sent.cost, count, axis=1)))
    base, sites = best // count, np.arange(c)
    one: Params = map_arrays(lambda leaf: leaf[:, None], take(grown, best))
    end, value = _climb(family, stack, one, LONG, about[sites, best][:, None], between[sites, best][:, None])
    value = value[:, 0] - sent.cost[sites, base]
    found: Params = map_arrays(lambda leaf: leaf[:, 0], end)
    with np.errstate(invalid="ignore"):
        lead = np.nan_to_num(reached[:, 0] - reached[:, 1], nan=0.0)
    return Birth(found, np.nan_to_num(value - before), base, lead, stack.n_rows)


def noise_by_component(family: Family, n_features: int) -> bool:
    """Whether every component has a noise of its own."""
    shape = family.noise_shape(2, n_features)
    return shape is not None and shape[0] == 2


def _finite(value: Array) -> Array:
    return np.where(np.isfinite(value), value, -np.inf)


def _beginnings(spec: FitSpec, stack: Stack, base: Params) -> Array:
    """Components drawn from the rows that a base ``(c, R)`` explains worst, ``(c, BEGINNINGS, q)``."""
    _, value = spec.family.row_scores(stack, base)
    value = np.where(stack.weight > 0, np.nan_to_num(value, nan=-1e300, neginf=-1e300), np.inf)
    order = np.argsort(value, axis=1, kind="stable")
    passed = np.cumsum(np.take_along_axis(stack.weight, order, axis=1), axis=1)
    poor = np.empty(value.shape, dtype=bool)
    np.put_along_axis(poor, order, passed <= np.maximum(POOR * stack.n_rows[:, None], passed[:, :1]), axis=1)
    rows = Stack(stack.names, stack.rows, stack.target, stack.weight * poor, stack.observed)
    noise = None if base.noise is None else base.noise
    return np.asarray(spec.family.draw(rows, spec.seed, "birth", BEGINNINGS, 1, noise)[:, :, 0])


def _climb(
    family: Family, stack: Stack, params: Params, steps: int, about: Array, between: Array
) -> tuple[Params, Array]:
    r"""EM in which the first components are pulled to where they were, and any further one is free.

    With :math:`N(c, \tau^2)` about these, ``(..., r, q)`` and ``(..., r)``, in noise units; also the log-likelihood
    there, with their distances integrated out.
    """
    width, old = stack.rows.shape[-1], about.shape[-2]
    own_noise = noise_by_component(family, width)
    n_rows = stack.n_rows.reshape(-1, *(1,) * (params.weights.ndim - 1))
    scale = family.open(stack, params.noise, width)
    for _ in range(steps):
        sums = family.expect(stack, params, scale, scored=False)
        weights, theta, noise = weights_of(sums), params.theta.copy(), params.noise
        free = family.maximize(stack, params, sums)
        x = (n_rows * weights[..., :old] * between)[..., None]
        theta[..., :old, :] = about + x / (1.0 + x) * (free[..., :old, :] - about)
        theta[..., old:, :] = free[..., old:, :]
        if own_noise and noise is not None and old < noise.shape[-2]:
            noise = noise.copy()
            moved = family.noise_step(sums, theta, params.noise)
            assert moved is not None
            noise[..., old:, :] = moved[..., old:, :]
            scale = family.open(stack, noise, width)
        params = Params(weights, theta, noise)
    x = n_rows * params.weights[..., :old] * between
    noise = params.noise[..., :old, :] if own_noise and params.noise is not None else params.noise
    square = np.square(family.to_noise(params.theta[..., :old, :] - about, noise)).sum(axis=-1)
    integrated = about.shape[-1] * np.log1p(x) + square / np.where(between > 0, between, 1.0)
    return params, family.expect(stack, params, scale).log_likelihood - 0.5 * integrated.sum(axis=-1)


def hold(spec: FitSpec, stack: Stack, sent: Prices) -> Holds:
    """Drop the component that is missed least, as long as it is not worth its price; the others are held."""
    n_components = sent.params.weights.shape[-1]
    even = sent.params._replace(weights=np.full_like(sent.params.weights, 1.0 / n_components))
    posterior, value = spec.family.row_scores(stack, even)
    density = np.log(posterior) + value[:, None]
    found = [_kept(*site) for site in zip(density, stack.weight, sent.params.weights, sent.price, strict=True)]
    return Holds(np.stack([w for w, _ in found]), np.stack([loss for _, loss in found]), stack.n_rows)


def _kept(density: Array, weight: Array, start: Array, price: Array) -> tuple[Array, Array]:
    """Weights and losses ``(R,)`` of one site, from log densities ``(R, n)``."""
    used = weight > 0
    density, weight = density[:, used], weight[used]
    peak = density.max(axis=0)
    share = np.exp(density - peak)

    def settled(w: Array) -> tuple[Array, float]:
        for _ in range(STEPS):
            held = w[:, None] * share
            w = (held / np.maximum(held.sum(axis=0), 1e-300)) @ weight
            w = w / w.sum()
        return w, float(weight @ (np.log(np.maximum(w @ share, 1e-300)) + peak))

    now, reached = settled(np.maximum(start, 1e-3 / len(start)) * (start > 0))
    while True:
        loss = np.zeros(len(now))
        tried = {}
        for r in np.flatnonzero(now > 0):
            rest = np.where(np.arange(len(now)) == r, 0.0, now)
            if rest.any():
                tried[int(r)] = settled(rest)
                loss[r] = reached - tried[int(r)][1]
            else:
                loss[r] = np.inf
        surplus = np.where(now > 0, loss - price, np.inf)
        least = int(np.argmin(surplus))
        if not surplus[least] < 0:
            return now, np.where(np.isfinite(loss), loss, 0.0)
        now, reached = tried[least]
