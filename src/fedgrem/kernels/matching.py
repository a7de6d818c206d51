"""Relabelling: component r must mean the same thing at every site (the paper's appendix on label permutation).

Everything here is NumPy: it runs once per fit at the center, on K x R small vectors.
"""

from itertools import permutations, product
from math import factorial

import numpy as np
from scipy.optimize import linear_sum_assignment

from fedgrem.errors import InputError
from fedgrem.types import Array

EXHAUSTIVE_LIMIT = 2_000_000
"""Most relabellings that :func:`align_exhaustive` will try, ``(R!)^(K-1)``."""
STEPWISE_LIMIT = 8
"""Most components for which :func:`align_stepwise` lists all R! relabellings."""
FAR = 1e6
"""Distances beyond this many times the median distance count alike where sites are matched."""
COMMITTEE = 200
"""Most sites that are aligned against each other; any further site is aligned against these."""
COMMITTEE_COMPONENTS = 4000
"""Most components of these sites, all told: their distances from each other are kept, 128 MB of them."""


def pair_costs(theta_a: Array, theta_b: Array) -> Array:
    """Distances between the components of two sets, ``(R_a, q), (..., R_b, q) -> (R_a, ..., R_b)``."""
    flat = theta_b.reshape(-1, theta_b.shape[-1])
    # |a - b|^2 = |a|^2 - 2ab + |b|^2 in one matrix product, about a common origin to keep the digits.
    origin = np.median(theta_a, axis=0)  # not a mean, which a hostile site can move anywhere
    a, b = theta_a - origin, flat - origin
    square = a @ b.T
    square *= -2.0
    square += (a * a).sum(axis=-1)[:, None]
    square += (b * b).sum(axis=-1)
    distance: Array = np.sqrt(np.maximum(square, 0.0, out=square), out=square)
    return distance.reshape(theta_a.shape[0], *theta_b.shape[:-1])


def alignment_score(theta: Array) -> float:
    r"""The paper's score of sites as labelled: :math:`\sum_r\sum_{k \ne k'}\|\theta_{k,r} - \theta_{k',r}\|`.

    Examples
    --------
    >>> alignment_score(np.array([[[0.0], [5.0]], [[1.0], [5.0]]]))
    2.0
    """
    by_component = np.swapaxes(theta, 0, 1)
    return float(sum(np.linalg.norm(t[:, None] - t[None], axis=-1).sum() for t in by_component))


def relabel(array: Array, order: Array) -> Array:
    """Reorder components: ``out[k, r] = array[k, order[k, r]]`` for ``(K, R, ...)`` arrays."""
    index = order.reshape(order.shape + (1,) * (array.ndim - 2))
    return np.take_along_axis(array, index, axis=1)


def best_assignment(theta: Array, others: Array) -> Array:
    """The relabelling of one site, ``(R,)``, with the lowest score against other sites ``(M, R, q)`` as labelled.

    The score is a sum over components, so this is an assignment problem: R^3 steps instead of R! trials.
    """
    cost = _limited(pair_costs(theta, others)).sum(axis=1)  # cost[s, r]: our component s in place r
    _, order = linear_sum_assignment(cost.T)
    return np.asarray(order)


def _limited(pairs: Array) -> Array:
    """Distances from one site; beyond some length all alike, lest a hostile site's drown the digits of the others."""
    return np.minimum(pairs, _far(pairs.ravel()))


def _far(pairs: Array) -> Array:
    """That length, from the distances ``(..., M)`` that each site has; infinite where most of them are 0."""
    middle = np.median(pairs[..., :: max(1, pairs.shape[-1] // 1000)], axis=-1)
    return np.asarray(np.where(middle > 0, FAR * middle, np.inf))


def align_exhaustive(theta: Array) -> Array:
    """Alignment Algorithm 1: the relabellings ``(K, R)`` of lowest score among all, site 0 fixed."""
    n_sites, n_components = theta.shape[:2]
    trials = factorial(n_components) ** (n_sites - 1)
    if trials > EXHAUSTIVE_LIMIT:
        raise InputError(
            f"exhaustive alignment of {n_sites} sites with {n_components} components would try {trials:.3g} "
            f"relabellings, more than {EXHAUSTIVE_LIMIT:,}; use alignment='assignment' (the default), which solves "
            "the same problem without listing them."
        )
    orders = np.array(list(permutations(range(n_components))))
    places = np.arange(n_components)
    # between[k, l][i, j]: distance of site k under order i from site l under order j
    between = {}
    for k in range(n_sites):
        for other in range(k):
            cost = pair_costs(theta[k], theta[other])
            between[k, other] = cost[orders[:, None, places], orders[None, :, places]].sum(-1)
    best, best_score = None, np.inf
    for choice in product(range(len(orders)), repeat=n_sites - 1):
        pick = (0, *choice)
        score = sum(between[k, other][pick[k], pick[other]] for k, other in between)
        if score < best_score:
            best, best_score = pick, score
    assert best is not None
    return orders[list(best)]


def align_stepwise(theta: Array) -> Array:
    """Alignment Algorithm 2: sites in the order given, each matched to those before it, over all R! relabellings."""
    n_sites, n_components = theta.shape[:2]
    if n_components > STEPWISE_LIMIT:
        raise InputError(
            f"stepwise alignment lists all {n_components}! relabellings, at most {STEPWISE_LIMIT} components are "
            "allowed; use alignment='assignment' (the default), which has no such limit."
        )
    orders = np.array(list(permutations(range(n_components))))
    places = np.arange(n_components)
    result = np.tile(places, (n_sites, 1))
    for k in range(1, n_sites):
        cost = pair_costs(theta[k], relabel(theta[:k], result[:k])).sum(axis=1)
        result[k] = orders[cost[orders, places].sum(axis=1).argmin()]
    return result


def align_by_assignment(
    theta: Array, generator: np.random.Generator, *, n_orders: int = 5, max_sweeps: int = 20
) -> Array:
    """Relabel all sites by repeated assignment; the default.

    For each of several random site orders (the paper's remedy for bad sites among the first), every site is matched to
    those before it; then sweeps rematch each site against all others until none wants to change; the order with the
    lowest score wins, and once a second one has led to it no more are tried. Beyond ``COMMITTEE`` sites, a random
    committee is aligned this way and every other site is matched to it once.

    Returns
    -------
    order : (K, R) with component ``order[k, r]`` of site k in place r.
    """
    n_sites, n_components = theta.shape[:2]
    identity = np.tile(np.arange(n_components), (n_sites, 1))
    if n_components == 1 or n_sites == 1:
        return identity
    committee = generator.permutation(n_sites)[: max(2, min(COMMITTEE, COMMITTEE_COMPONENTS // n_components))]
    members = theta[committee]
    distance = _distances(members)
    best, best_score = None, np.inf
    for _ in range(n_orders):
        order, score = _one_alignment(distance, generator.permutation(len(members)), max_sweeps)
        if abs(score - best_score) <= 1e-9 * score:
            break
        if score < best_score:
            best, best_score = order, score
    assert best is not None
    # Labels are only fixed up to one common relabelling: leave the first site of the committee as it came.
    best = best[:, np.argsort(best[committee.argmin()])]
    reference = relabel(members, best)
    result = identity
    result[committee] = best
    for k in np.setdiff1d(np.arange(n_sites), committee):
        result[k] = best_assignment(theta[k], reference)
    return result


def _distances(theta: Array) -> Array:
    """``out[k, s, j, t]``: how far component s of site k is from t of site j, as j sees it; 0 within a site.

    A site has no say in its own labels. Found once for all orders: sites are matched to each other thousands of times.
    """
    n_sites, n_components, size = theta.shape
    flat = theta.reshape(-1, size).astype(float)
    distance = pair_costs(flat, flat).reshape(n_sites, n_components, n_sites, n_components)
    sites = np.arange(n_sites)
    distance[sites, :, sites] = 0.0
    far = _far(distance.reshape(n_sites, -1))
    if distance.max() > far.min():
        np.minimum(distance, far[:, None], out=distance)
    return distance


def _one_alignment(distance: Array, site_order: Array, max_sweeps: int) -> tuple[Array, float]:
    """Relabellings ``(K, R)`` that no site wants to change alone, and their score, from ``(K, R, K, R)`` distances."""
    n_sites, n_components = distance.shape[:2]
    places = np.arange(n_components)
    result = np.tile(places, (n_sites, 1))
    # costs[r, k, s]: what component s of site k would cost in place r, against the sites labelled so far
    costs = np.zeros((n_components, n_sites, n_components))
    for k in site_order:
        _, result[k] = linear_sum_assignment(costs[:, k])
        costs += distance[k, result[k]]
    for _ in range(max_sweeps):
        changed = False
        # A site that has the cheapest component in every place can do no better.
        wanting = (costs.argmin(axis=2).T != result).any(axis=1)
        for k in site_order[wanting[site_order]]:
            own = costs[:, k]
            _, order = linear_sum_assignment(own)
            # Sums that are moved along differ from fresh ones in their last digits: a tie is no reason to change.
            if own[places, order].sum() < own[places, result[k]].sum() * (1.0 - 1e-9):
                costs += distance[k, order] - distance[k, result[k]]
                result[k], changed = order, True
        if not changed:
            break
    score = float(np.take_along_axis(costs, result.T[:, :, None], axis=2).sum())
    return result, score
