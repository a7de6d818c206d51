"""Anderson acceleration of fixed points, one step at a time, with a guard; several iterations side by side."""

from typing import NamedTuple

import numpy as np

from fedgrem.types import Array

EPS, TINY = float(np.finfo(float).eps), float(np.finfo(float).tiny)
GROWTH = 2.0
"""A residual this many times the last one says that the last extrapolation was a mistake."""


class Trail(NamedTuple):
    """The last few points of B iterations ``x -> g(x)``, oldest first; zeros where there are none yet."""

    points: Array
    """(B, m + 1, d) x"""
    residuals: Array
    """(B, m + 1, d) g(x) - x"""
    length: Array
    """(B,) how many of them there are."""


def new_trail(points: Array, memory: int) -> Trail:
    """An empty trail for points ``(B, d)`` that remembers ``memory`` steps."""
    blank = np.zeros((len(points), memory + 1, points.shape[1]))
    return Trail(blank, blank, np.zeros(len(points), dtype=int))


def went_astray(trail: Trail, residuals: Array) -> Array:
    """Which residuals ``(B, d)`` have grown so much that the step before should be taken back, ``(B,)``."""
    before, now = (np.vecdot(r, r) for r in (trail.residuals[:, -1], residuals))
    return np.asarray((trail.length > 1) & ~(now <= GROWTH**2 * before))


def extend(trail: Trail, points: Array, residuals: Array) -> Trail:
    """The trail with one more point each; the oldest gives way."""
    longer = np.concatenate([trail.points[:, 1:], points[:, None]], axis=1)
    residuals = np.concatenate([trail.residuals[:, 1:], residuals[:, None]], axis=1)
    return Trail(longer, residuals, np.minimum(trail.length + 1, longer.shape[1]))


def correction(trail: Trail) -> Array:
    r"""What to add to :math:`g(x)` of the last points, ``(B, d)``; zeros where the trail is too short to tell.

    :math:`-\sum_i \gamma_i (\Delta x_i + \Delta f_i)` with the :math:`\gamma` that brings
    :math:`f - \sum_i \gamma_i \Delta f_i` closest to zero: for an affine map with a few slow directions that is its
    fixed point.

    Examples
    --------
    >>> g = lambda x: 0.9 * x + 1.0  # the fixed point is 10
    >>> trail = new_trail(np.zeros((1, 1)), memory=1)
    >>> for x in (np.array([[0.0]]), np.array([[1.0]])):
    ...     trail = extend(trail, x, g(x) - x)
    >>> (g(x) + correction(trail)).round(6).tolist()
    [[10.0]]
    """
    points, residuals = trail.points, trail.residuals
    steps, changes = points[:, 1:] - points[:, :-1], residuals[:, 1:] - residuals[:, :-1]
    memory = steps.shape[1]
    if (trail.length <= memory).any():
        known = (np.arange(memory) >= memory - (trail.length[:, None] - 1))[..., None]
        steps, changes = steps * known, changes * known
    square = changes @ changes.swapaxes(1, 2)
    diagonal = square.reshape(len(square), -1)[:, :: memory + 1]
    diagonal += (100.0 * EPS * diagonal.sum(axis=1) + TINY)[:, None]
    right = changes @ residuals[:, -1, :, None]
    usable = np.isfinite(square).all(axis=(1, 2)) & np.isfinite(right).all(axis=(1, 2))
    if not usable.all():
        square[~usable], right[~usable] = np.eye(memory), 0.0
    moved = -(np.linalg.solve(square, right).swapaxes(1, 2) @ (steps + changes))[:, 0]
    return np.where(np.isfinite(moved).all(axis=1, keepdims=True), moved, 0.0)
