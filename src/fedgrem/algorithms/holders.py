"""Components that only some sites have: the center of each is that of the sites that have it."""

from collections.abc import Callable

import numpy as np

from fedgrem.algorithms.centered import Centered
from fedgrem.types import Array

FEWEST = 3
"""Sites that have a component in common from which it has a center; what fewer have is their own."""


RuleForSome = Callable[..., Centered]
"""A center rule, as :class:`~fedgrem.algorithms.centered.CenterRule`, that is told the places of the sites and of the
components first."""


def by_holders(
    lacking: Array | None, rule: RuleForSome, theta: Array, weight: Array, threshold: Array, held: Array, start: Array,
    present: Array,
) -> Centered:  # fmt: skip
    """A center rule applied to every component among the sites that have it; of the others nothing is said.

    Where fewer than three sites have a component it is their own: nobody is pulled, and its center is their mean. Sites
    that lack a component get its center.

    Parameters
    ----------
    lacking : (K, R) which components a site lacks; None where all sites have all. What is common to all components,
        such as one noise, is estimated among all sites.
    """
    if lacking is None or theta.shape[-2] != lacking.shape[-1]:
        return rule(slice(None), slice(None), theta, weight, threshold, held, start, present)
    shrunk, center = theta.copy(), start.copy()
    trust, between = np.zeros(lacking.shape), np.zeros(lacking.shape[1])
    iterations, gap, estimated = np.zeros((), dtype=int), np.zeros(()), False
    patterns, which = np.unique(lacking, axis=1, return_inverse=True)
    for number, pattern in enumerate(patterns.T):
        sites, components = np.flatnonzero(~pattern), np.flatnonzero(which.ravel() == number)
        if len(sites) < FEWEST:
            center[components] = _mean(
                theta[np.ix_(sites, components)], weight[np.ix_(sites, components)], start[components]
            )
            continue
        place = np.ix_(sites, components)
        parts = (leaf[place] for leaf in (theta, weight, threshold, held))
        found = rule(sites, components, *parts, start[components], present[sites])
        shrunk[place], center[components], trust[place] = found.shrunk, found.center, found.trust
        iterations, gap = np.maximum(iterations, found.iterations), np.maximum(gap, found.gap)
        if found.between is not None:
            between[components], estimated = found.between, True
    shrunk = np.where(lacking[..., None], center, shrunk)
    return Centered(shrunk, center, trust, iterations, gap, between if estimated else None)


def _mean(theta: Array, weight: Array, otherwise: Array) -> Array:
    """Of sites ``(k, R, q)``, to the bit where there is only one; ``otherwise`` where nobody has a say."""
    total = weight.sum(axis=0)[..., None]
    away = (weight[..., None] * (theta - theta[:1])).sum(axis=0) / np.where(total > 0, total, 1.0)
    return np.asarray(np.where(total > 0, theta[:1].sum(axis=0) + away, otherwise)) if len(theta) else otherwise


def without_lacking(weights: Array, lacking: Array) -> Array:
    """Mixture weights ``(K, R)``, exactly 0 for what a site lacks.

    Examples
    --------
    >>> without_lacking(np.array([[0.5, 0.4, 0.1]]), np.array([[False, False, True]])).round(3).tolist()
    [[0.556, 0.444, 0.0]]
    """
    kept = np.where(lacking, 0.0, weights)
    return np.asarray(kept / kept.sum(axis=-1, keepdims=True))


def weights_of_holders(weights: Array) -> Array:
    """Common weights ``(R,)`` of sites ``(K, R)``: the middle one of those that have a component, times their part.

    What fewer than three sites have is nobody else's, and has none.

    Examples
    --------
    >>> of_sites = np.array([[0.5, 0.5, 0.0], [0.5, 0.5, 0.0], [1.0, 0.0, 0.0], [0.4, 0.4, 0.2]])
    >>> weights_of_holders(of_sites).round(3).tolist()
    [0.571, 0.429, 0.0]
    """
    has = weights > 0
    middle = np.array(
        [np.median(own[there]) if there.any() else 0.0 for own, there in zip(weights.T, has.T, strict=True)]
    )
    found = np.where(has.sum(axis=0) >= FEWEST, middle * has.mean(axis=0), 0.0)
    if not found.any():
        found = middle * has.mean(axis=0)
    return np.asarray(found / found.sum())


def weights_to_look_from(weights: Array) -> Array:
    """(K, R) the common weights, and for each site those that its own components have there."""
    own = (weights > 0).sum(axis=0) < FEWEST
    found = np.where(
        own, weights, weights_of_holders(weights) * (1.0 - np.where(own, weights, 0.0).sum(axis=1))[:, None]
    )
    return np.asarray(found / found.sum(axis=1, keepdims=True))
