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
from typing import Any, NamedTuple

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


class Candidates(NamedTuple):
    """Components that may be of some sites: births, answers of a site too far out for their place, and own ones."""

    site: Array
    """(M,) whose they are."""
    place: Array
    """(M,) which component of that site; R for one that it does not have yet."""
    theta: Array
    """(M, q)"""
    noise: Array | None
    """(M, s) where every component has one."""
    rows: Array
    """(M,) that they hold."""
    gain: Array
    """(M,) of log-likelihood."""


class Born(NamedTuple):
    """A component and who has it."""

    members: Array
    """Places among the candidates."""
    sites: Array
    """Places of their sites."""
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


def every_message(
    spec: FitSpec, central: Central, result: FitResult, pull: Pull, play: Play
) -> Phase[tuple[Central, FitResult]]:
    """One pass in which nothing changes, for who wants to know what its messages look like."""
    own, nothing = central.params, np.zeros((len(result.n_rows), 2))
    both: Params = map_arrays(lambda leaf: np.stack([leaf, leaf], axis=1), own)
    yield Ask("birth", Bases(both, nothing, np.zeros(both.weights.shape)), optional=True)
    yield Ask("hold", Prices(own, np.zeros(own.weights.shape)), optional=True)
    lacking = np.zeros(own.weights.shape, dtype=bool)
    return (yield from play(own, pull._replace(lacking=lacking, weights_penalty=0.0)))


def _changed(spec: FitSpec, central: Central, result: FitResult, pull: Pull) -> Phase[tuple[bool, Params, Array]]:
    """Whether anything is to change, the starts ``(K, R + new)`` from there, and which components sites lack."""
    told = Progress("components of some sites", result.n_rounds, spec.max_rounds, float("nan"))
    own, size = central.params, _size(spec, central.params)
    has = np.ones(own.weights.shape, dtype=bool) if result.held is None else result.held
    center, between, several = _at_center(central, has), _between(result), has.sum(axis=0) >= FEWEST
    of_theta, of_noise, of_all = cost_by_component(result)
    mine = (_by_distance(result, of_theta) + of_noise).sum(axis=1) + of_all
    both: Params = map_arrays(lambda a, b: np.stack([a, b], axis=1), own, center)
    free = np.stack([np.zeros(has.shape), np.broadcast_to(between, has.shape)], axis=1)
    replies = yield Ask("birth", Bases(both, np.stack([mine, 0.0 * mine], axis=1), free), told, optional=True)
    born: Birth = replies.mail
    near, pulled = near_center(result), pull.pulled[:, None]
    from_center = born.base == 1
    weights = np.nan_to_num(born.params.weights)
    common = np.where(from_center[:, None], True, near) & pulled & several
    able = replies.present & ((weights[:, :-1] * common).sum(axis=1) >= MOSTLY)
    odd = ~replies.present | ((own.weights * (near & pulled & several)).sum(axis=1) < MOSTLY) & ~able

    # A site may be in a poor optimum, with two components for one of the others'.
    back = ~odd & (born.lead < -CLEAR) & ~near.all(axis=1)
    apart = has & ~odd[:, None] & (_astray(spec, central, result) & ~back[:, None] | ~several)
    loss = np.zeros(has.shape)
    if apart.any():
        replies = yield Ask("hold", Prices(own, np.full(has.shape, -np.inf)), told, optional=True)
        loss = np.nan_to_num(replies.mail.loss)
    pool = _candidates(spec, own, born, able, apart, loss, result.n_rows)
    # What is a site's own already is no news, unless others have it too.
    known = np.append(~several, False)
    children = [
        child
        for child in families_of(spec, central, result, pool)
        if len(child.members) > 1 or not known[pool.place[child.members[0]]]
    ][: max(0, spec.some - len(several))]
    parents = np.unique([pool.site[m] for child in children for m in child.members if pool.place[m] == len(several)])
    grown = np.isin(np.arange(len(has)), parents) & from_center
    back &= ~grown
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
    each = 0.5 * np.log(np.maximum(result.n_rows, 1.0))[:, None]
    price = np.where(moved, integrated, of_theta + of_noise)
    price = np.where(several, price, size * each) - np.log((has.sum(axis=0) + 1.0) / (len(has) + 1.0))
    # What is a site's own may turn out to be what others have, which a site that lacks it is offered again.
    offered = np.where(~has & several & ~odd[:, None], FIRST, base.weights)
    for child in children:
        for site, place in zip(pool.site[child.members], pool.place[child.members], strict=True):
            if place < len(several):
                offered[site, place] = FIRST * several[place]
                base.theta[site, place] = center.theta[site, place]
                price[site, place] = 0.0
    start, prices = _offered(base._replace(weights=offered), price, children, odd, result.n_rows, size)
    replies = yield Ask("hold", Prices(start, prices), told, optional=True)
    held: Holds = replies.mail
    kept = np.where((replies.present & ~odd)[:, None], held.weights, start.weights)
    lacking = kept == 0.0
    there = np.flatnonzero(~lacking.all(axis=0))
    start = start._replace(weights=np.where(lacking, 0.0, np.maximum(kept, LEAST)))
    start, lacking = components_of(start, there), lacking[:, there]
    start = start._replace(weights=start.weights / start.weights.sum(axis=1, keepdims=True))
    changed = back.any() or not np.array_equal(~lacking, has)
    return bool(changed), start, lacking


def _astray(spec: FitSpec, central: Central, result: FitResult) -> Array:
    """(K, R) answers that are not pulled and farther from their center than half way to the nearest other one."""
    places = spec.family.to_noise(central.center, _one_noise(central))
    apart = np.sqrt(np.square(places[:, None] - places).sum(axis=-1)) + np.where(np.eye(len(places)) > 0, np.inf, 0.0)
    return np.asarray(~near_center(result) & (result.distance > 0.5 * apart.min(axis=1)))


def _one_noise(central: Central) -> Array | None:
    """One noise ``(1, s)`` in whose units components are compared."""
    return None if central.noise is None else np.median(central.noise, axis=0)[None]


def _candidates(
    spec: FitSpec, own: Params, born: Birth, able: Array, apart: Array, loss: Array, n_rows: Array
) -> Candidates:
    """Births of those who are able, and components of sites that are apart from the center."""
    births = np.flatnonzero(able & (born.gain > 0) & np.isfinite(born.params.theta[:, -1]).all(axis=1))
    sites, places = np.nonzero(apart)
    noise = None
    if own.noise is not None and born.params.noise is not None and noise_by_component(spec.family, own.theta.shape[-1]):
        noise = np.concatenate([born.params.noise[births, -1], own.noise[sites, places]])
    weights = np.concatenate([born.params.weights[births, -1], own.weights[sites, places]])
    site = np.concatenate([births, sites])
    return Candidates(
        site,
        np.concatenate([np.full(len(births), own.weights.shape[1]), places]),
        np.concatenate([born.params.theta[births, -1], own.theta[sites, places]]),
        noise,
        np.maximum(weights * n_rows[site], 1.0),
        np.concatenate([born.gain[births], loss[sites, places]]),
    )


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


def families_of(spec: FitSpec, central: Central, result: FitResult, pool: Candidates) -> list[Born]:
    """The candidates that are worth it, those that are one component together; the worthiest first."""
    places = spec.family.to_noise(pool.theta[:, None], _one_noise(central))[:, 0]
    size, spread = _size(spec, central.params), float(np.median(_between(result)))
    left, limit, found = np.ones(len(places), dtype=bool), chdtri(pool.theta.shape[-1], CHANCE), []
    while left.any():
        options = []
        for m in np.flatnonzero(left):
            square = np.square(places - places[m]).sum(axis=1)
            near = left & (square <= limit * (1.0 / pool.rows + 1.0 / pool.rows[m] + 2.0 * spread))
            options += [_worth(some, pool, places, result.n_rows, size, spread) for some in (np.flatnonzero(near), [m])]
        worth, members = max(options, key=lambda option: option[0])
        if worth <= 0:
            break
        share = pool.rows[members] / pool.rows[members].sum()
        one = None if pool.noise is None else spec.family.average_noise(pool.noise[members][:, None], share)[0]
        found.append(Born(members, pool.site[members], share @ pool.theta[members], one))
        left[members] = False
    return found


def _worth(
    members: Any, pool: Candidates, places: Array, n_rows: Array, size: int, spread: float
) -> tuple[float, Array]:
    """What a component is worth to these candidates' sites, without those who would rather not have it."""
    order = np.asarray(members)[np.argsort(-pool.gain[members], kind="stable")]
    members = order[np.unique(pool.site[order], return_index=True)[1]]  # of one site only one
    each, rows = 0.5 * np.log(n_rows[pool.site[members]]), pool.rows[members]
    middle = rows @ places[members] / rows.sum()
    square = np.square(places[members] - middle).sum(axis=1)
    net = pool.gain[members] - 0.5 * rows * square / (1.0 + rows * spread) - each
    if (net > 0).sum() >= FEWEST:
        kept = net > 0
        return float(net[kept].sum() - 0.5 * size * np.log(n_rows[pool.site[members[kept]]].sum())), members[kept]
    # Of fewer, each pays for its own, and one alone is as good as several.
    alone = pool.gain[members] - (1.0 + size) * each
    best = int(np.argmax(alone))
    return float(alone[best]), members[[best]]


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


def _size(spec: FitSpec, params: Params) -> int:
    """Numbers of a component with its noise, where that is its own."""
    size = params.theta.shape[-1]
    if params.noise is not None and noise_by_component(spec.family, size):
        size += params.noise.shape[-1]
    return int(size)


def _offered(
    base: Params, price: Array, children: list[Born], odd: Array, n_rows: Array, size: int
) -> tuple[Params, Array]:
    """Everything that a site may have ``(K, R + new)``, weights of 0 for what it is not offered, and the prices."""
    (weights, theta, noise), n_sites = base, len(n_rows)
    each = 0.5 * np.log(np.maximum(n_rows, 1.0))
    price = np.where(odd[:, None], -np.inf, price + each[:, None])
    for child in children:
        common = len(child.sites) >= FEWEST
        offered = (~odd if common else np.isin(np.arange(n_sites), child.sites))[:, None]
        weights = np.append(weights * (1.0 - FIRST * offered), FIRST * offered, axis=1)
        theta = np.append(theta, np.broadcast_to(child.theta, (n_sites, 1, theta.shape[-1])), axis=1)
        if noise is not None and child.noise is not None:
            noise = np.append(noise, np.broadcast_to(child.noise, (n_sites, 1, noise.shape[-1])), axis=1)
        price = np.append(price, (each if common else (1.0 + size) * each)[:, None], axis=1)
    return Params(weights / weights.sum(axis=1, keepdims=True), theta, noise), price
