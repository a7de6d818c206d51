r"""Differential privacy by Gaussian noise: sums of bounded vectors, one a row, and what they may be told apart by.

Two tables are neighbours if one is the other without one row. Where every row adds a vector of length at most 1, the
sum with noise of standard deviation :math:`1/\mu` is :math:`\mu`-Gaussian differentially private (Dong, Roth and Su,
2022), which is zero-concentrated differential privacy with :math:`\rho = \mu^2/2` (Bun and Steinke, 2016). Squares of
:math:`\mu` add up, exactly, however the later sums were chosen by what came of the earlier ones, and the total converts
exactly to :math:`(\epsilon, \delta)` (Balle and Wang, 2018).
"""

import os
from collections.abc import Callable, Iterable
from math import exp, inf, isfinite, sqrt

import numpy as np
from scipy.optimize import brentq
from scipy.special import log_ndtr, ndtr, ndtri

from fedgrem.types import Array

LARGEST_EPSILON = 1000.0
"""Beyond which there is nothing that is worth a name."""
GRID = 2.0**-26
"""Standard deviations of the noise to which sums and noise are rounded, so that the digits of a number tell nothing of
the numbers that it is a sum of (Mironov, 2012)."""
ROUNDED = 1e-4
"""By so much, relatively, the noise is larger than it would have to be, for the rounding of up to 10^13 numbers."""

Draw = Callable[[int], Array]
"""So many independent standard normal numbers."""


def secure_normals(count: int) -> Array:
    """Standard normal numbers from the operating system's own source of randomness: nobody can guess or repeat them.

    Examples
    --------
    >>> bool(abs(secure_normals(10_000).std() - 1.0) < 0.05)
    True
    """
    drawn = np.frombuffer(os.urandom(8 * count), dtype="<u8")
    tail = ((drawn >> np.uint64(11)).astype(float) + 0.5) * 2.0**-54  # in (0, 1/2), so far tails are as fine as any
    return np.asarray(np.where(drawn & np.uint64(1), 1.0, -1.0) * ndtri(tail))


def delta_of(mu: float, epsilon: float) -> float:
    r"""The smallest :math:`\delta` that goes with an :math:`\epsilon`."""
    if mu <= 0.0:
        return 0.0
    if not isfinite(mu):
        return 1.0
    return float(ndtr(0.5 * mu - epsilon / mu) - exp(epsilon + log_ndtr(-0.5 * mu - epsilon / mu)))


def mu_of(epsilon: float, delta: float) -> float:
    r"""The largest :math:`\mu` within :math:`(\epsilon, \delta)`; infinity where :math:`\epsilon` is.

    Examples
    --------
    >>> round(mu_of(4.0, 1e-6), 3), round(1.0 / mu_of(1.0, 1e-5), 2)
    (0.838, 3.73)
    """
    if epsilon == inf:
        return inf
    return float(brentq(lambda mu: delta_of(mu, epsilon) - delta, 1e-9, 10.0 + 3.0 * sqrt(epsilon), xtol=1e-12))


def epsilon_of(mu: float, delta: float) -> float:
    r"""The smallest :math:`\epsilon` that goes with a :math:`\delta`; the way back.

    Examples
    --------
    >>> round(epsilon_of(mu_of(2.5, 1e-6), 1e-6), 6)
    2.5
    """
    if mu == inf:
        return inf
    if delta_of(mu, 0.0) <= delta:
        return 0.0
    return float(brentq(lambda epsilon: delta_of(mu, epsilon) - delta, 0.0, 50.0 + mu * (mu + 20.0), xtol=1e-10))


def bounded(vectors: Array) -> Array:
    """Vectors ``(n, m)`` no longer than 1: what is longer is shortened, and what is no number is nothing.

    Whatever somebody has a site compute of its rows, this is what a row can change; nothing else has to be believed.

    Examples
    --------
    >>> bounded(np.array([[3.0, 4.0], [0.1, 0.0], [np.nan, 0.5]])).round(2).tolist()
    [[0.6, 0.8], [0.1, 0.0], [0.0, 0.5]]
    """
    vectors = np.nan_to_num(vectors, nan=0.0, posinf=0.0, neginf=0.0)
    largest = np.abs(vectors).max(axis=-1, keepdims=True, initial=1.0)  # squares of larger numbers could overflow
    length = largest * np.sqrt(np.square(vectors / largest).sum(axis=-1, keepdims=True))
    return np.asarray(vectors / np.maximum(length, 1.0))


def noisy_sum(blocks: Iterable[Array], mu: float, draw: Draw = secure_normals) -> tuple[Array, float]:
    r"""The sum ``(m,)`` of the vectors of all rows, :math:`\mu`-Gaussian differentially private, and how noisy it is.

    Parameters
    ----------
    blocks : vectors ``(n, m)`` of some rows each.
    mu : infinity adds no noise.
    draw : where the noise comes from.

    Examples
    --------
    >>> noisy_sum([np.eye(2), np.ones((1, 2))], np.inf)[0].round(3).tolist()
    [1.707, 1.707]
    """
    total = np.sum([bounded(block).sum(axis=0) for block in blocks], axis=0)
    if mu == inf:
        return total, 0.0
    deviation = (1.0 + ROUNDED) / mu
    unit = GRID * 2.0 ** np.floor(np.log2(deviation))
    noise = deviation * draw(len(total))
    return unit * (np.rint(total / unit) + np.rint(noise / unit)), deviation
