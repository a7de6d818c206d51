"""Anderson acceleration of fixed points, one step at a time, with a guard; several iterations side by side."""

from typing import NamedTuple

import numpy as np

from fedgrem.types import Array

EPS, TINY = float(np.finfo(float).eps), float(np.finfo(float).tiny)
GROWTH = 2.0
"""A residual this many times the last one says that the last extrapolation was a mistake."""


class Trail(NamedTuple):
    """What is known of B iterations ``x -> g(x)``, with residuals f = g(x) - x; zeros where there is nothing yet."""

    images: Array
    """(B, m + 1, d) the last m changes of g(x), oldest first, and the last g(x)"""
    residuals: Array
    """(B, m + 1, d) likewise of f"""
    length: Array
    """(B,) of how many of the last points they tell."""


def new_trail(points: Array, memory: int) -> Trail:
    """An empty trail for points ``(B, d)`` that remembers ``memory`` steps."""
    blank = np.zeros((len(points), memory + 1, points.shape[1]))
    return Trail(blank, blank, np.zeros(len(points), dtype=int))


def went_astray(trail: Trail, residuals: Array) -> Array:
    """Which residuals ``(B, d)`` have grown so much that the step before should be taken back, ``(B,)``."""
    before, now = (np.vecdot(r, r) for r in (trail.residuals[:, -1], residuals))
    return np.asarray((trail.length > 1) & ~(now <= GROWTH**2 * before))


def extend(trail: Trail, images: Array, residuals: Array) -> Trail:
    """The trail with one more point each, of which g(x) and f are given; the oldest gives way."""

    def longer(kept: Array, last: Array) -> Array:
        return np.concatenate([kept[:, 1:-1], (last - kept[:, -1])[:, None], last[:, None]], axis=1)

    length = np.minimum(trail.length + 1, trail.images.shape[1])
    return Trail(longer(trail.images, images), longer(trail.residuals, residuals), length)


def correction(trail: Trail) -> Array:
    r"""What to add to :math:`g(x)` of the last points, ``(B, d)``; zeros where the trail is too short to tell.

    :math:`-\sum_i \gamma_i \Delta g_i` with the :math:`\gamma` that brings
    :math:`f - \sum_i \gamma_i \Delta f_i` closest to zero: for an affine map with a few slow directions that is its
    fixed point.

    Examples
    --------
    >>> g = lambda x: 0.9 * x + 1.0  # the fixed point is 10
    >>> trail = new_trail(np.zeros((1, 1)), memory=1)
    >>> for x in (np.array([[0.0]]), np.array([[1.0]])):
    ...     trail = extend(trail, g(x), g(x) - x)
    >>> (g(x) + correction(trail)).round(6).tolist()
    [[10.0]]
    """
    changes, images = trail.residuals, trail.images[:, :-1]
    memory = images.shape[1]
    if (trail.length <= memory).any():  # the first point is no change
        known = (np.arange(memory + 1) > memory - trail.length[:, None])[..., None]
        changes, images = np.where(known, changes, 0.0), np.where(known[:, :-1], images, 0.0)
    square = changes @ changes.swapaxes(1, 2)
    diagonal = square.reshape(len(square), -1)[:, :: memory + 2]
    total = diagonal[:, :-1].sum(axis=1)
    usable = np.isfinite(total + diagonal[:, -1])
    diagonal += (100.0 * EPS * total + TINY)[:, None]
    if not usable.all():
        square[~usable] = np.eye(memory + 1)
    part = np.linalg.solve(square[:, :-1, :-1], square[:, :-1, -1:])
    moved = -(part.swapaxes(1, 2) @ images)[:, 0]
    return np.where(np.isfinite(moved).all(axis=1, keepdims=True), moved, 0.0)
