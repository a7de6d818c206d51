"""The penalized center by passes of sums: each site clips its displacement from it, and only sums travel.

What :func:`~fedgrem.kernels.center.shrink_to_center` solves where all estimates are in one place is solved here from
sums over sites: Huber's location needs of a site only its displacement clipped to its threshold, the weight that this
leaves it, and, for Newton's steps, the curvature of its part. Shapes are those of that module.
"""

from typing import NamedTuple

import numpy as np

from fedgrem.kernels.center import EPS, LONGEST, row_norm
from fedgrem.types import Array

MOST_CURVED = 64
"""Dimensions up to which second derivatives are summed: a pass is dearer than its numbers."""


class ClippedSums(NamedTuple):
    """One site's part ``(K, ...)`` of a pass, or the sum of all parts."""

    total: Array
    """(..., R) m."""
    mass: Array
    """(..., R) m u, with u = min(1, tau / distance)."""
    slope: Array
    """(..., R, q) m u times the displacement: no longer than m tau."""
    strength: Array
    """(..., R) m times the length of the clipped displacement."""
    curvature: Array
    """(..., R, q (q + 1) / 2) lower triangle of the second derivatives; (..., R, 0) in many dimensions."""


def clipped(theta: Array, weight: Array, threshold: Array, center: Array) -> ClippedSums:
    """What every site adds to a pass; thresholds are positive.

    Parameters
    ----------
    theta : (K, ..., R, q); weight, threshold : (K, ..., R); center : (..., R, q).

    Examples
    --------
    >>> clipped(np.array([[[3.0, 4.0]]]), np.ones((1, 1)), np.ones((1, 1)), np.zeros((1, 2))).slope.ravel().tolist()
    [0.6000000000000001, 0.8]
    """
    away = theta - center
    distance = row_norm(away)
    bounded = np.minimum(distance, threshold)
    u = weight * np.divide(bounded, distance, out=np.ones_like(distance), where=distance > 0)
    size = theta.shape[-1]
    triangle = np.zeros((*distance.shape, 0))
    if size <= MOST_CURVED:
        i, j = np.tril_indices(size)
        unit = away / np.where(distance > 0, distance, 1.0)[..., None]
        lost = np.where(bounded < distance, u, 0.0)[..., None] * unit[..., i] * unit[..., j]
        triangle = u[..., None] * (i == j) - lost
    return ClippedSums(np.broadcast_to(weight, u.shape), u, u[..., None] * away, weight * bounded, triangle)


def sums_like(lead: tuple[int, ...], size: int) -> ClippedSums:
    """Zeros of the shapes of a sum of ``lead`` problems ``(..., R)`` in so many dimensions."""
    packed = size * (size + 1) // 2 if size <= MOST_CURVED else 0
    one = np.zeros(lead)
    return ClippedSums(one, one, np.zeros((*lead, size)), one, np.zeros((*lead, packed)))


class Search(NamedTuple):
    """Where the search for centers is."""

    center: Array
    """(..., R, q) at which the next sums are wanted; where it is done, the answer."""
    gap: Array
    """(..., R) norm of the gradient at the last one, relative to the weight of all sites; infinity after a step that
    was taken back."""
    plain: Array
    """(..., R, q) the reweighted mean after it, to go to where a Newton step leads astray."""
    done: Array
    """(..., R)"""


def begin(start: Array) -> Search:
    """Begin at the last center."""
    none = np.full(start.shape[:-1], np.inf)
    return Search(start, none, start, np.zeros(start.shape[:-1], dtype=bool))


def advance(search: Search, sums: ClippedSums, *, tol: float = 1e-10, rounding: float = 0.0) -> Search:
    """The next center of every component, by a Newton step or, where that fails or is dear, by the reweighted mean.

    A gradient is small enough at ``tol`` times what the sites pull with, as in one place; ``rounding`` is how far the
    sums may be off.
    """
    total = np.where(sums.total > 0, sums.total, 1.0)
    length = row_norm(sums.slope) / total
    strength = sums.strength / total
    enough = tol * strength + 4.0 * EPS * (row_norm(search.center) + strength) + rounding / total
    astray = np.isfinite(search.gap) & ~(length < search.gap)
    done = search.done | (length <= enough) | (sums.total <= 0)
    mass = np.where(sums.mass > 0, sums.mass, 1.0)[..., None]
    plain = search.center + sums.slope / mass
    new, size = plain, search.center.shape[-1]
    if sums.curvature.shape[-1]:
        i, j = np.tril_indices(size)
        matrix = np.zeros((*length.shape, size, size))
        matrix[..., i, j] = sums.curvature
        matrix[..., j, i] = sums.curvature
        place = np.arange(size)
        matrix[..., place, place] += 1e-9 * mass
        step = np.linalg.solve(matrix, sums.slope[..., None])[..., 0]
        most = LONGEST * length * total / mass[..., 0]
        step = step * np.minimum(1.0, most / np.maximum(row_norm(step), np.finfo(float).tiny))[..., None]
        new = np.where(np.isfinite(step).all(axis=-1, keepdims=True), search.center + step, plain)
    # A center that was astray is left for the reweighted mean of the one before it, which never ascends.
    new = np.where(astray[..., None], search.plain, new)
    return Search(
        np.where(done[..., None], search.center, new),
        np.where(search.done, search.gap, np.where(astray & ~done, np.inf, length)),
        np.where(astray[..., None], search.plain, plain),
        done,
    )
