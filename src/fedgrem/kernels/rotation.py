"""Embeddings are known up to a rotation: sites' components matched and rotated onto each other (Procrustes)."""

from itertools import product

import numpy as np
from scipy.optimize import linear_sum_assignment

from fedgrem.types import Array

TURNS, SWEEPS = 15, 5
"""Times that components are matched and rotated in turn, and that all sites are rotated to their common means."""
MOST_FLIPS = 64
RANDOM = 40
"""Starts of a rotation: every reversal of axes up to so many, and so many at random."""


def procrustes(points: Array, target: Array, weight: Array) -> Array:
    """The orthogonal Q ``(d, d)`` for which ``points Q`` is nearest to the target, ``(R, d)`` with weights ``(R,)``.

    Examples
    --------
    >>> procrustes(np.array([[0.0, 1.0], [2.0, 0.0]]), np.array([[1.0, 0.0], [0.0, 2.0]]), np.ones(2)).round(6).tolist()
    [[0.0, 1.0], [1.0, 0.0]]
    """
    left, _, right = np.linalg.svd((points * weight[:, None]).T @ target)
    return np.asarray(left @ right)


def align_rotations(means: Array, held: Array, generator: np.random.Generator) -> tuple[Array, Array]:
    """The order ``(K, R)`` of every site's components and the rotation ``(K, d, d)`` that bring sites together.

    Nothing but means ``(K, R, d)`` and rows ``(K, R)`` is needed. Sites are matched and rotated to the one with the
    most rows, then to their median.
    """
    n_sites, n_components, size = means.shape
    flips = [np.diag(signs) for signs in list(product((1.0, -1.0), repeat=min(size, 6)))[:MOST_FLIPS]]
    flips = [np.pad(f, (0, size - len(f))) + np.diag(np.arange(size) >= len(f)) for f in flips]
    random = [np.linalg.qr(generator.normal(size=(size, size)))[0] for _ in range(RANDOM)]
    center = means[int(held.sum(axis=1).argmax())]
    order = np.tile(np.arange(n_components), (n_sites, 1))
    rotation = np.tile(np.eye(size), (n_sites, 1, 1))
    for _ in range(SWEEPS):
        for k in range(n_sites):
            tried = [_matched(means[k], held[k], center, start) for start in [rotation[k], *flips, *random]]
            _, order[k], rotation[k] = min(tried, key=lambda one: one[0])
        center = np.median([means[k][order[k]] @ rotation[k] for k in range(n_sites)], axis=0)
    return order, rotation


def _matched(means: Array, held: Array, center: Array, rotation: Array) -> tuple[float, Array, Array]:
    """Components matched and rotated in turn, from a rotation; first what is left of the distance."""
    order = np.arange(len(means))
    for turn in range(TURNS):
        apart = np.square((means @ rotation)[:, None] - center).sum(axis=-1) * held[:, None]
        _, found = linear_sum_assignment(apart.T)
        if turn and np.array_equal(found, order):
            break
        order = np.asarray(found)
        rotation = procrustes(means[order], center, held[order])
    left = float((held[order] * np.square(means[order] @ rotation - center).sum(axis=-1)).sum())
    return left, order, rotation
