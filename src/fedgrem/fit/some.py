r"""Components that only some sites have: births, matches and deaths, once a fit in which all have all is settled.

Every site looks among the rows that it explains worst for one more component, from its own parameters and from the
center, and says what it gains. In noise units two sites' components are one if chance explains their distance. With
:math:`g_k` the gain of a site, less what it loses by the common component, a component of the sites S is worth

.. math:: \sum_{k \in S} (g_k - \tfrac12\log n_k) - \tfrac{d}{2} \log \sum_{k \in S} n_k

for d parameters that they share, if they are at least three; fewer pay each for their own. What is worth most comes
first, and what is worth nothing is not there. Then every site drops what it does not miss: a component is to be worth
its weight, :math:`\tfrac12\log n_k`, and what is the site's own in it. The rounds go on from there, with weights of
exactly 0 and centers of those that have a component (:mod:`fedgrem.algorithms.holders`).

A site whose rows are mostly its own has nothing in common with the others that a component could be added to: it stays
as it is, for the verdicts to speak of.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy.special import chdtri

from fedgrem.algorithms.base import Pull
from fedgrem.algorithms.holders import FEWEST
from fedgrem.fit.births import Bases, Birth, Holds, Prices, noise_by_component
from fedgrem.fit.conversation import Ask, Phase, Progress
from fedgrem.fit.selection import CLEAR, cost_by_component
from fedgrem.fit.spec import FitSpec
from fedgrem.types import Array, Central, FitResult, Params, components_of, map_arrays

PASSES = 3
"""Times that sites are asked for a further component: each brings at most one a site."""
CHANCE = 1e-3
"""With this chance two estimates of one component are farther apart than what is matched."""
MOSTLY = 0.5
"""Part of a site's rows that is to be explained by what it has in common with others."""
NEARLY = 1e-9
LEAST = 1e-4
"""Weight that a component which a site has begins with at the least."""
FIRST = 0.05
"""Weight that a component begins with where it is offered."""

Play = Callable[[Params, Pull], Phase[tuple[Central, FitResult]]]
"""The rounds from a start, with a pull that says what sites lack."""


class Born(NamedTuple):
    """A component and who asked for it."""

    sites: Array
    """Their places."""
    theta: Array
    """(q,)"""
    noise: Array | None
    """(s,) where every component has one."""


def components_of_some(
    spec: FitSpec, central: Central, result: FitResult, pull: Pull, play: Play
) -> Phase[tuple[Central, FitResult]]:
    """Look for components that only some sites have and play on, until nobody finds another one."""
    for _ in range(PASSES):
        changed, start, lacking = yield from _changed(spec, central, result, pull)
        if not changed:
            break
        central, result = yield from play(start, pull._replace(lacking=lacking, weights_penalty=0.0))
        say, threshold = result.influence.weight, result.influence.threshold
        unpulled = lacking | ((~lacking).sum(axis=0) < FEWEST)
        influence = result.influence._replace(
            weight=np.where(lacking, 0.0, say), threshold=np.where(unpulled, 0.0, threshold)
        )
        result = result._replace(held=~lacking, influence=influence)
    return central, result


def _changed(spec: FitSpec, central: Central, result: FitResult, pull: Pull) -> Phase[tuple[bool, Params, Array]]:
    """Whether anything is to change, the starts ``(K, R + new)`` from there, and which components sites lack."""
    told = Progress("components of some sites", result.n_rounds, spec.max_rounds, float("nan"))
    own, n_components = central.params, central.params.weights.shape[1]
    has = np.ones(own.weights.shape, dtype=bool) if result.held is None else result.held
    center, between = _at_center(central, has), _between(result)
    of_theta, of_noise, of_all = cost_by_component(result)
    mine = (_by_distance(result, of_theta) + of_noise).sum(axis=1) + of_all
    both: Params = map_arrays(lambda a, b: np.stack([a, b], axis=1), own, center)
    free = np.stack([np.zeros(has.shape), np.broadcast_to(between, has.shape)], axis=1)
    replies = yield Ask("birth", Bases(both, np.stack([mine, 0.0 * mine], axis=1), free), told, optional=True)
    born: Birth = replies.mail
    shared = near_center(result) & pull.pulled[:, None] & (has.sum(axis=0) >= FEWEST)
    from_center = born.base == 1
    weights = np.nan_to_num(born.params.weights)
    common = np.where(from_center[:, None], pull.pulled[:, None] & (has.sum(axis=0) >= FEWEST), shared)
    able = replies.present & ((weights[:, :-1] * common).sum(axis=1) >= MOSTLY)
    odd = ~replies.present | ((own.weights * shared).sum(axis=1) < MOSTLY) & ~able
    children = families_of(spec, central, result, born, able)
    parents = np.isin(np.arange(len(has)), [place for child in children for place in child.sites])
    grown = parents & from_center
    # A site may be in a poor optimum, with two components for one of the others'.
    back = ~odd & ~parents & (born.lead < -CLEAR) & ~near_center(result).all(axis=1)
    moved = (grown | back)[:, None]
    noise = own.noise
    if noise is not None and center.noise is not None:
        noise = np.where(moved[..., None], center.noise, noise)
    base = Params(
        np.where(grown[:, None], weights[:, :-1], np.where(moved, center.weights, own.weights)),
        np.where(grown[:, None, None], born.params.theta[:, :-1], np.where(moved[..., None], center.theta, own.theta)),
        noise,
    )
    x = base.weights * result.n_rows[:, None] * between
    integrated = 0.5 * own.theta.shape[-1] * (np.log1p(x) + x / (1.0 + x))
    price = np.where(moved, integrated, of_theta + of_noise)
    start, prices = _offered(base, price, children, odd, result.n_rows)
    replies = yield Ask("hold", Prices(start, prices), told, optional=True)
    held: Holds = replies.mail
    kept = np.where((replies.present & ~odd)[:, None], held.weights, start.weights)
    lacking, old = kept == 0.0, np.arange(kept.shape[1]) < n_components
    lacking[:, lacking.all(axis=0) & old] = False
    there = np.flatnonzero(old | ~lacking.all(axis=0))
    start = start._replace(weights=np.where(lacking, 0.0, np.maximum(kept, LEAST)))
    start, lacking = components_of(start, there), lacking[:, there]
    start = start._replace(weights=start.weights / start.weights.sum(axis=1, keepdims=True))
    changed = len(there) > n_components or back.any() or (lacking[:, :n_components] & has).any()
    return bool(changed), start, lacking


def _at_center(central: Central, has: Array) -> Params:
    """Every site's weights about the center's components."""
    weights = np.where(has, np.maximum(central.params.weights, LEAST), 0.0)
    noise = None if central.noise is None else np.broadcast_to(central.noise, (len(weights), *central.noise.shape))
    return Params(
        weights / weights.sum(axis=1, keepdims=True),
        np.broadcast_to(central.center, (len(weights), *central.center.shape)),
        noise,
    )


def near_center(result: FitResult) -> Array:
    """(K, R) which components are on the center or pulled to it; the others have nothing in common with it."""
    if result.influence.between is not None:
        return np.asarray((result.distance == 0.0) | (result.influence.threshold > NEARLY))
    return np.asarray(result.distance <= result.influence.threshold)


def families_of(spec: FitSpec, central: Central, result: FitResult, born: Birth, able: Array) -> list[Born]:
    """The births that are worth it, those that are one component together; the worthiest first."""
    theta, n_rows = born.params.theta[:, -1], result.n_rows
    by_component = noise_by_component(spec.family, theta.shape[-1])
    noise = None if central.noise is None else np.median(central.noise, axis=0)[None]
    places = spec.family.to_noise(theta[:, None], noise)[:, 0]
    size = theta.shape[-1] + (0 if not by_component or central.noise is None else central.noise.shape[-1])
    rows = np.maximum(np.nan_to_num(born.params.weights[:, -1]) * n_rows, 1.0)
    spread = float(np.median(_between(result)))
    left = able & (born.gain > 0) & np.isfinite(places).all(axis=1)
    limit = chdtri(theta.shape[-1], CHANCE)
    found = []
    while left.any():
        options = []
        for k in np.flatnonzero(left):
            square = np.square(places - places[k]).sum(axis=1)
            near = left & (square <= limit * (1.0 / rows + 1.0 / rows[k] + 2.0 * spread))
            for sites in (np.flatnonzero(near), np.array([k])):
                options.append(_worth(sites, places, rows, born.gain, n_rows, size, spread))
        worth, sites = max(options, key=lambda option: option[0])
        if worth <= 0:
            break
        share = rows[sites] / rows[sites].sum()
        one = None
        if by_component and born.params.noise is not None:
            one = spec.family.average_noise(born.params.noise[sites][:, -1:], share)[0]
        found.append(Born(sites, share @ theta[sites], one))
        left[sites] = False
    return found


def _worth(
    sites: Array, places: Array, rows: Array, gain: Array, n_rows: Array, size: int, spread: float
) -> tuple[float, Array]:
    """What a component is worth to these sites, without those who would rather not have it."""
    each = 0.5 * np.log(n_rows)
    if len(sites) >= FEWEST:
        middle = rows[sites] @ places[sites] / rows[sites].sum()
        square = np.square(places[sites] - middle).sum(axis=1)
        lost = 0.5 * rows[sites] * square / (1.0 + rows[sites] * spread)
        net = gain[sites] - lost - each[sites]
        sites, net = sites[net > 0], net[net > 0]
        if len(sites) >= FEWEST:
            return float(net.sum() - 0.5 * size * np.log(n_rows[sites].sum())), sites
    if not len(sites):
        return -np.inf, sites
    # Of fewer, each pays for its own, and one alone is as good as several.
    best = sites[[int(np.argmax(gain[sites] - (1.0 + size) * each[sites]))]]
    return float((gain[best] - (1.0 + size) * each[best]).sum()), best


def _by_distance(result: FitResult, cost: Array) -> Array:
    """What the parameters of every component ``(K, R)`` cost, where variances between sites say how far they may be."""
    between, size = result.influence.between, result.theta.shape[-1]
    if between is None:
        return cost
    x = result.weights * result.n_rows[:, None] * between
    square = np.square(result.distance) / np.where(between > 0, between, 1.0)
    full = 0.5 * size * np.log(np.maximum(result.n_rows, 1.0))[:, None]
    own = np.where(between > 0, np.minimum(0.5 * (size * np.log1p(x) + square), full), full)
    return np.where(result.distance > 0, own, 0.0)


def _between(result: FitResult) -> Array:
    """The between-site variances of the components ``(R,)``, in noise units."""
    if result.influence.between is not None:
        return result.influence.between
    near = near_center(result)
    return np.full(near.shape[1], float(np.median(np.square(result.distance[near]))) / result.theta.shape[-1])


def _offered(base: Params, price: Array, children: list[Born], odd: Array, n_rows: Array) -> tuple[Params, Array]:
    """Everything that a site may have ``(K, R + new)``, weights of 0 for what it is not offered, and the prices."""
    (weights, theta, noise), n_sites = base, len(n_rows)
    each = 0.5 * np.log(np.maximum(n_rows, 1.0))
    price = np.where(odd[:, None], -np.inf, price + each[:, None])
    by_component = any(child.noise is not None for child in children)
    size = theta.shape[-1] + (noise.shape[-1] if by_component and noise is not None else 0)
    for child in children:
        common = len(child.sites) >= FEWEST
        offered = (~odd if common else np.isin(np.arange(n_sites), child.sites))[:, None]
        weights = np.append(weights * (1.0 - FIRST * offered), FIRST * offered, axis=1)
        theta = np.append(theta, np.broadcast_to(child.theta, (n_sites, 1, theta.shape[-1])), axis=1)
        if noise is not None and child.noise is not None:
            noise = np.append(noise, np.broadcast_to(child.noise, (n_sites, 1, noise.shape[-1])), axis=1)
        price = np.append(price, (each if common else (1.0 + size) * each)[:, None], axis=1)
    return Params(weights, theta, noise), price
