"""A first noise that rows of no component do not make large: by the rows nearest to drawn components.

Were it large, rows far from all components would be near.
"""

from functools import lru_cache

import numpy as np
from scipy.special import gammaincinv

from fedgrem.data.stack import Stack
from fedgrem.kernels.triangle import safe_cholesky
from fedgrem.types import Array

KEPT, SWEEPS = 0.7, 4
"""The share of the rows nearest to drawn components that a first noise rests on, and how often these are found anew."""
POINTS = 4000
"""Of a chi-squared distribution, where something is averaged over it."""


def first_covariances(stack: Stack, theta: Array, lift: float) -> Array:
    """(c, B, p, p) of the rows about the nearest of drawn components ``(c, B, R, p)``, by the rows nearest to these.

    A few sweeps of concentration, as for a minimum covariance determinant: rows far from all components would else
    make the noise so large that they are near.
    """
    (c, count, n_components, size), rows = theta.shape, stack.rows
    used, label = stack.weight > 0, np.arange(n_components)[:, None]
    mean, covariance = theta, np.broadcast_to(np.eye(size), (c, count, size, size))
    for _ in range(SWEEPS):
        factor = safe_cholesky(covariance)
        white = np.linalg.solve(factor, np.broadcast_to(rows.swapaxes(-1, -2)[:, None], (c, count, size, stack.size)))
        middle = np.linalg.solve(factor, mean.swapaxes(-1, -2)).swapaxes(-1, -2)
        square = np.vecdot(middle, middle)[..., None] - 2.0 * (middle @ white)
        square += np.square(white).sum(axis=2)[:, :, None]
        nearest, least = square.argmin(axis=2), square.min(axis=2)
        bound = np.stack([np.quantile(one[:, here], KEPT, axis=-1) for one, here in zip(least, used, strict=True)])
        weight = stack.weight[:, None] * (least <= bound[..., None])
        mass = (nearest[:, :, None] == label) * weight[:, :, None]
        total = mass.sum(axis=-1)
        sums = mass @ rows[:, None]
        mean = np.where(total[..., None] > 0, sums / np.where(total > 0, total, 1.0)[..., None], mean)
        own = np.take_along_axis(mean, nearest[..., None], axis=2)
        away = rows[:, None] - own
        scatter = (away * weight[..., None]).swapaxes(-1, -2) @ away
        covariance = scatter / np.maximum(weight.sum(axis=-1), 1.0)[..., None, None] / _kept_variance(size)
        covariance = covariance + lift * np.eye(size)
    return np.asarray(covariance)


def first_variances(stack: Stack, square: Array) -> Array:
    """(c, B) of squared residuals ``(c, B, n)`` of a response, by the smaller ones."""
    used = stack.weight > 0
    bound = np.stack([np.quantile(one[:, here], KEPT, axis=-1) for one, here in zip(square, used, strict=True)])
    weight = stack.weight[:, None] * (square <= bound[..., None])
    return np.asarray((weight * square).sum(axis=-1) / weight.sum(axis=-1) / _kept_variance(1))


@lru_cache(maxsize=256)
def _kept_variance(degrees: int) -> float:
    """The variance of clean rows of which those nearest to the middle are kept, relative to that of all."""
    square = 2.0 * gammaincinv(0.5 * degrees, (np.arange(POINTS) + 0.5) / POINTS * KEPT)
    return float(square.mean() / degrees)
