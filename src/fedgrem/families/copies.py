"""Rows that are copies of each other, next to how far apart rows are: a clump, which is no component."""

import numpy as np

from fedgrem.data.stack import Stack
from fedgrem.types import Array

FEWEST, NEIGHBOURS = 20, 500
"""Rows of a site from which on it is asked whether some are copies, and among how many neighbours are sought."""
CLUMP, LEAST_CLUMP = 0.03, 3
"""The share of rows that must be near a row, and how many at the least."""
ALIKE, DENSER = 1.0 / 6.0, 100.0
"""How near, relative to the middle row's neighbours; and how many times denser rows are than in a Gaussian's middle."""


def single_rows(stack: Stack, points: Array | None) -> Array:
    """(c, n) 0 for rows whose neighbours are so near, next to others', that they must be copies of each other.

    The few rows of a clump may fit a component that they have to themselves better than any other rows fit theirs.
    Rows that lack half of their cells are not judged; without ``points`` (c, n, u) none are.
    """
    found = np.ones(stack.weight.shape)
    if points is None:
        return found
    for one, x, weight in zip(found, points, stack.weight, strict=True):
        used = np.flatnonzero(weight > 0)
        if len(used) < FEWEST:
            continue
        some = used[np.linspace(0, len(used) - 1, min(len(used), NEIGHBOURS)).astype(int)]
        place = max(LEAST_CLUMP, int(np.ceil(CLUMP * len(some))))
        scale = x[some].std(axis=0)
        x = x / np.where(scale > 0, scale, 1.0)
        square = np.vecdot(x, x)
        radius = np.empty(len(x))
        for part in np.array_split(np.arange(len(x)), -(-len(x) // NEIGHBOURS)):
            near = square[part, None] - 2.0 * (x[part] @ x[some].T) + square[some]
            radius[part] = np.maximum(np.partition(near, place, axis=1)[:, place], 0.0)
        size = x.shape[1]
        limit = min(ALIKE, np.exp(-0.5) * DENSER ** (-1.0 / size))
        one[radius < limit**2 * np.median(radius[used])] = 0.0
    if stack.observed is not None:
        found[stack.observed.mean(axis=-1) <= 0.5] = 1.0
    return found
