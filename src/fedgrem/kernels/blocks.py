"""Stochastic block models: nodes' communities given densities between these, and the sums over edges that follow."""

from itertools import permutations
from typing import Any, NamedTuple

import numpy as np
from scipy.special import xlogy

from fedgrem.types import Array

ALL_ORDERS = 5
"""Communities up to which all relabellings are compared; of more, those that are found by exchanging pairs."""
TRIALS = 60
"""Random relabellings from which pairs are exchanged."""
LEAST_HELD = 1e-3
"""Nodes that a community has at least."""
LEAST_DENSITY = 1e-6
"""Relative to that of the network."""


class BlockSums(NamedTuple):
    """What a network is known by; ``(..., R)`` and ``(..., R, R)``, however many nodes it has."""

    held: Array
    """Nodes of every community."""
    edges: Array
    """Weight of the edges between two, each seen from either end."""
    pairs: Array
    """Pairs of nodes, seen from either end, each for the product of its degrees where these are corrected for."""
    bound: Array
    """() the variational lower bound of the log-likelihood, but for what labels do not change."""


def block_sums(network: Any, labels: Array, density: Array, degree: Array) -> BlockSums:
    """Sums over a network's edges given soft labels ``(n, R)``, and their bound under densities ``(R, R)``.

    ``degree`` (n,) is by how much a node has more edges than others of its community; a pair of nodes counts for the
    product of theirs.
    """
    held = labels.sum(axis=0)
    edges = labels.T @ (network @ labels)
    counted = labels * degree[:, None]
    pairs = np.outer(counted.sum(axis=0), counted.sum(axis=0)) - counted.T @ counted
    bound = 0.5 * (xlogy(edges, density) - pairs * density).sum()
    bound += xlogy(held, held / held.sum()).sum() - xlogy(labels, labels).sum()
    return BlockSums(held, edges, pairs, np.asarray(bound))


def communities(network: Any, labels: Array, density: Array, degree: Array, steps: int) -> Array:
    """Soft labels after some mean-field steps: the number of edges between two nodes is Poisson given their labels.

    Parameters
    ----------
    network : (n, n) sparse; labels : (n, M R) M candidates side by side; density : (R, R) or (M, R, R).
    degree : (n,) as in :func:`block_sums`.
    """
    n, n_communities = len(labels), density.shape[-1]
    found = labels.reshape(n, -1, n_communities)
    density = np.broadcast_to(density, (found.shape[1], n_communities, n_communities))
    log_density = np.log(density)
    for _ in range(steps):
        held = found.sum(axis=0)
        seen = (network @ found.reshape(n, -1)).reshape(found.shape)
        counted = degree[:, None, None] * found
        others = degree[:, None, None] * (counted.sum(axis=0) - counted)
        score = np.einsum("nms,mrs->nmr", seen, log_density) - np.einsum("nms,mrs->nmr", others, density)
        score += np.log(np.maximum(held, LEAST_HELD) / n)
        score -= score.max(axis=2, keepdims=True)
        found = np.exp(score, out=score)
        found /= found.sum(axis=2, keepdims=True)
    return np.asarray(found.reshape(n, -1))


def densities(sums: BlockSums) -> Array:
    """Edges per pair, ``(..., R, R)``; nowhere 0, as if every pair of communities had seen a pair of nodes more."""
    level = sums.edges.sum(axis=(-2, -1)) / sums.pairs.sum(axis=(-2, -1))
    level = level[..., None, None]
    return np.asarray(np.maximum((sums.edges + level) / (sums.pairs + 1.0), LEAST_DENSITY * level))


def level_of(sums: BlockSums, density: Array) -> Array:
    """How dense a network is, relative to densities ``(R, R)``, whatever its communities' sizes; ``(...)``."""
    return np.asarray(sums.edges.sum(axis=(-2, -1)) / (sums.pairs * density).sum(axis=(-2, -1)))


def relabelled(sums: BlockSums, order: Array) -> BlockSums:
    """Sums with communities in another order, ``(R,)`` or ``(M, R)``."""
    i, j = order[..., :, None], order[..., None, :]
    return BlockSums(sums.held[order], sums.edges[i, j], sums.pairs[i, j], sums.bound)


def misfit(sums: BlockSums, center: Array) -> Array:
    """How far densities are from the center's, about chi-squared, ``(...)``.

    Twice the root of a Poisson count over its exposure has the variance 1 / exposure, whatever its mean.
    """
    exposure = level_of(sums, center)[..., None, None] * sums.pairs
    away = 2.0 * (np.sqrt(sums.edges / np.maximum(exposure, 1e-12)) - np.sqrt(center))
    return np.asarray(0.5 * (exposure * away**2).sum(axis=(-2, -1)))


def likely_orders(sums: BlockSums, center: Array, most: int, generator: np.random.Generator) -> Array:
    """Relabellings ``(M, R)`` under which a network is most like the center, the best first."""
    n_communities = len(center)
    if n_communities <= ALL_ORDERS:
        orders = np.array(list(permutations(range(n_communities))))
    else:
        starts = [generator.permutation(n_communities) for _ in range(TRIALS)]
        orders = np.unique([_exchanged(sums, center, start) for start in starts], axis=0)
    cost = misfit(relabelled(sums, orders), center)
    return np.asarray(orders[np.argsort(cost, kind="stable")[:most]])


def _exchanged(sums: BlockSums, center: Array, order: Array) -> Array:
    """The relabelling that no exchange of two communities makes better."""
    first, second = np.triu_indices(len(order), 1)
    places = np.arange(len(first))
    cost = float(misfit(relabelled(sums, order), center))
    while True:
        tried = np.tile(order, (len(first), 1))
        tried[places, first], tried[places, second] = order[second], order[first]
        costs = misfit(relabelled(sums, tried), center)
        best = int(costs.argmin())
        if costs[best] >= cost * (1.0 - 1e-9):
            return order
        order, cost = tried[best], float(costs[best])
