"""Anderson acceleration of a fixed point, one step at a time, with a guard."""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from fedgrem.kernels.triangular import solve_positive
from fedgrem.types import Array

GROWTH = 2.0
"""A residual this many times the last one says that the last extrapolation was a mistake."""


class Trail(NamedTuple):
    """The last few points of an iteration ``x -> g(x)``, oldest first; zeros where there are none yet."""

    points: Array
    """(m + 1, d) x"""
    residuals: Array
    """(m + 1, d) g(x) - x"""
    length: Array
    """() how many of them there are."""


def new_trail(point: Array, memory: int) -> Trail:
    """An empty trail for points of this shape that remembers ``memory`` steps."""
    blank = jnp.zeros((memory + 1, point.size), dtype=point.dtype)
    return Trail(blank, blank, jnp.asarray(0))


def went_astray(trail: Trail, residual: Array) -> Array:
    """Whether a residual has grown so much that the step before it should be taken back."""
    before = jnp.sum(trail.residuals[-1] ** 2)
    return (trail.length > 1) & ~(jnp.sum(residual**2) <= GROWTH**2 * before)


def extend(trail: Trail, point: Array, residual: Array) -> Trail:
    """The trail with one more point; the oldest gives way."""
    points = jnp.concatenate([trail.points[1:], point.reshape(1, -1)])
    residuals = jnp.concatenate([trail.residuals[1:], residual.reshape(1, -1)])
    return Trail(points, residuals, jnp.minimum(trail.length + 1, len(points)))


def correction(trail: Trail) -> Array:
    r"""What to add to :math:`g(x)` of the last point, ``(d,)``; zeros where the trail is too short to tell.

    :math:`-\sum_i \gamma_i (\Delta x_i + \Delta f_i)` with the :math:`\gamma` that brings
    :math:`f - \sum_i \gamma_i \Delta f_i` closest to zero: for an affine map with a few slow directions that is its
    fixed point.

    Examples
    --------
    >>> g = lambda x: 0.9 * x + 1.0  # the fixed point is 10
    >>> trail = new_trail(jnp.zeros(1), memory=1)
    >>> for x in (jnp.array([0.0]), jnp.array([1.0])):
    ...     trail = extend(trail, x, g(x) - x)
    >>> float((g(x) + correction(trail)).round(3)[0])
    10.0
    """
    steps, changes = jnp.diff(trail.points, axis=0), jnp.diff(trail.residuals, axis=0)
    memory = len(steps)
    known = (jnp.arange(memory) >= memory - (trail.length - 1)).astype(steps.dtype)[:, None]
    steps, changes = steps * known, changes * known
    square = changes @ changes.T
    tiny = np.finfo(steps.dtype).tiny
    ridge = 100.0 * float(np.finfo(steps.dtype).eps) * jnp.trace(square) + tiny
    share = solve_positive(square + ridge * jnp.eye(memory, dtype=steps.dtype), changes @ trail.residuals[-1])
    moved = -share @ (steps + changes)
    return jnp.where(jnp.all(jnp.isfinite(moved)), moved, 0.0)
