"""Graphs of sites: who is linked with whom, how far apart they are, and how fast neighbours agree.

A graph is a symmetric (K, K) array of booleans without a diagonal.
"""

from itertools import pairwise

import numpy as np
from scipy.sparse.csgraph import connected_components, shortest_path

from fedgrem.types import Array


def ring(count: int) -> Array:
    """Every site linked with the next one, and the last with the first."""
    return _linked(count, [*pairwise(range(count)), (count - 1, 0)])


def star(count: int) -> Array:
    """The first site linked with all others."""
    return _linked(count, [(0, k) for k in range(1, count)])


def grid(count: int) -> Array:
    """Rows of about the square root of the number of sites; the last row may be shorter.

    Examples
    --------
    >>> int(grid(5).sum()) // 2  # two rows of two, and one
    5
    """
    width = max(1, int(np.sqrt(count)))
    beside = [(k, k + 1) for k in range(count - 1) if (k + 1) % width]
    return _linked(count, beside + [(k, k + width) for k in range(count - width)])


def erdos_renyi(count: int, generator: np.random.Generator) -> Array:
    """Every two sites linked with a chance of 2 log K / K; drawn again until it is in one piece."""
    chance = min(1.0, 2.0 * np.log(max(count, 2)) / count)
    while True:
        upper = np.triu(generator.random((count, count)) < chance, 1)
        graph = upper | upper.T
        if len(parts(graph)) == 1:
            return np.asarray(graph)


def _linked(count: int, edges: list[tuple[int, int]]) -> Array:
    graph = np.zeros((count, count), dtype=bool)
    for one, other in edges:
        if one != other:
            graph[one, other] = graph[other, one] = True
    return graph


def parts(graph: Array) -> list[Array]:
    """The pieces of a graph, the largest first; each as the places of its sites."""
    count, label = connected_components(graph, directed=False)
    found = [np.flatnonzero(label == k) for k in range(count)]
    return sorted(found, key=len, reverse=True)


def diameter(graph: Array) -> int:
    """The longest of the shortest ways within the largest piece."""
    here = parts(graph)[0]
    return int(shortest_path(graph[np.ix_(here, here)], unweighted=True, directed=False).max())


def diameter_after_a_loss(graph: Array) -> int:
    """The largest diameter after one site or edge is gone; an edge makes it at most twice as long (Plesnik 1975)."""
    rest = [diameter(np.delete(np.delete(graph, k, axis=0), k, axis=1)) for k in range(len(graph))]
    return max(2 * diameter(graph), *rest)


def metropolis(graph: Array) -> Array:
    """(K, K) weights with which neighbours mix what they have: symmetric, and every row sums to 1.

    They depend on the numbers of neighbours of the two sites alone (Xiao, Boyd, Kim 2007).

    Examples
    --------
    >>> metropolis(ring(3)).round(2).tolist()
    [[0.33, 0.33, 0.33], [0.33, 0.33, 0.33], [0.33, 0.33, 0.33]]
    """
    degree = graph.sum(axis=1)
    weights = np.where(graph, 1.0 / (1.0 + np.maximum(degree[:, None], degree)), 0.0)
    weights[np.diag_indices(len(graph))] = 1.0 - weights.sum(axis=1)
    return weights
