"""Drawing rows of every site, by weight, so that padding is never drawn and a row of weight 2 counts as two rows."""

from math import log

import numpy as np

from fedgrem.data.stack import CACHE, Stack
from fedgrem.types import Array

FARTHEST, MORE_TRIALS = 0.25, 6
"""Where rows may be of no component: the share of the farthest rows that count as no farther than the others, and
further draws to choose among."""


def draw_rows(stack: Stack, uniforms: Array) -> Array:
    """Places of rows, ``(c, ...)`` like ``uniforms``, each with probability proportional to its weight."""
    places = [
        np.minimum(np.searchsorted(total, u * total[-1], side="right"), np.searchsorted(total, total[-1]))
        for total, u in zip(np.cumsum(stack.weight, axis=1), uniforms, strict=True)
    ]
    return np.stack(places)


def far_rows(
    stack: Stack, rows: Array, seed: int, purpose: str, n_init: int, n_components: int, *, robust: bool = False
) -> Array:
    """Greedy k-means++: rows far from each other, ``(c, n_init, R, p)``.

    Each next row is the best of a few drawn with probability proportional to their squared distance from the rows
    chosen so far. With ``robust`` a quarter of the rows, the farthest, count as no farther than the others: few rows
    far from everything are then no better a choice than a component is.
    """
    places = far_places(stack, rows, seed, purpose, n_init, n_components, robust=robust)
    return np.asarray(rows[np.arange(len(stack))[:, None, None], places])


def far_places(
    stack: Stack, rows: Array, seed: int, purpose: str, n_init: int, n_components: int, *, robust: bool = False
) -> Array:
    """Where they are, ``(c, n_init, R)``."""
    n_trials = 2 + int(log(n_components)) + MORE_TRIALS * robust
    uniforms = stack.uniforms(seed, purpose, (n_init, n_components, n_trials))
    at_once = max(1, CACHE // max(1, rows.shape[1] * n_trials * n_init))
    parts = [
        _far_places(rows[a : a + at_once], stack.weight[a : a + at_once], uniforms[a : a + at_once], robust)
        for a in range(0, len(stack), at_once)
    ]
    return np.concatenate(parts)


def _far_places(rows: Array, weight: Array, uniforms: Array, robust: bool) -> Array:
    c, n_init, n_components, _ = uniforms.shape
    # Distances from one matrix product, about the mean of all rows to keep the digits.
    middle = (weight[:, None] @ rows) / weight.sum(axis=1)[:, None, None]
    about = rows - middle
    square = np.vecdot(about, about)
    site = np.arange(c)[:, None, None]

    def pick(density: Array, u: Array) -> Array:
        """Places ``(c, n_init, trials)`` drawn from densities ``(c, n_init, n)``."""
        total = np.cumsum(density, axis=-1)
        below = total[:, :, None] <= (u * total[..., -1:])[..., None]
        last = (total < total[..., -1:]).sum(axis=-1, keepdims=True)
        return np.asarray(np.minimum(below.sum(axis=-1), last))

    def distances(places: Array) -> Array:
        chosen = about[site, places]
        flat = chosen.reshape(c, -1, rows.shape[-1])
        found = np.vecdot(flat, flat)[..., None] - 2.0 * (flat @ about.swapaxes(-1, -2)) + square[:, None]
        return np.asarray(np.maximum(found, 0.0).reshape(*places.shape, -1))

    def capped(after: Array, nearest: Array) -> Array:
        """Distances ``(c, n_init, ..., n)``, none farther than most are now, ``(c, n_init, n)``."""
        if not robust:
            return after
        used = weight > 0
        most = np.stack([np.quantile(o[:, u], 1.0 - FARTHEST, axis=-1) for o, u in zip(nearest, used, strict=True)])
        return np.asarray(np.minimum(after, most.reshape(*most.shape, *(1,) * (after.ndim - 2))))

    even = np.broadcast_to(weight[:, None], (c, n_init, weight.shape[1]))
    first = pick(even, uniforms[:, :, 0, :1])
    found, nearest = [first[:, :, 0]], distances(first)[:, :, 0]
    for r in range(1, n_components):
        potential = weight[:, None] * capped(nearest, nearest)
        density = np.where(potential.sum(axis=-1, keepdims=True) > 0, potential, even)
        tried = pick(density, uniforms[:, :, r])
        after = np.minimum(distances(tried), nearest[:, :, None])
        left = (capped(after, nearest) @ weight[:, None, :, None])[..., 0]
        # The first of those that tie but for rounding.
        best = (left <= left.min(axis=-1, keepdims=True) * (1.0 + 1e-6)).argmax(axis=-1)[:, :, None]
        found.append(np.take_along_axis(tried, best, axis=2)[:, :, 0])
        nearest = np.take_along_axis(after, best[..., None], axis=2)[:, :, 0]
    return np.asarray(np.stack(found, axis=2))
