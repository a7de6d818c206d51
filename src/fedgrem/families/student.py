r"""Robust continuous columns: Student's t, fitted by its weights.

A row at distance d from a component, in units of its scale, weighs :math:`u = (\nu + 1) / (\nu + d^2)`: rows far out
count for less. Weights depend on the component, and so these columns have no features but sums of their own (Liu and
Rubin 1995): of the rows seen, of u, ux and ux^2, and of log u - u, from which the degrees of freedom follow.
"""

from dataclasses import dataclass
from math import log, pi
from typing import NamedTuple

import numpy as np
from scipy.special import digamma, gammaln

from fedgrem.types import Array

OF_A_COLUMN = 5
"""Sums of each."""
LEAST_DEGREES, MOST_DEGREES = 1.0, 200.0
FIRST_DEGREES = 8.0
"""Where an estimate of them begins."""
HALVINGS = 36


class Scales(NamedTuple):
    """The noise of robust columns."""

    scale: Array
    """(..., C, p)"""
    degrees: Array
    """(..., C, p) or something to be broadcast to it."""


@dataclass(frozen=True)
class Robust:
    """Columns whose rows may lie far out; ``degrees`` None estimates the degrees of freedom of every column."""

    columns: tuple[int, ...]
    degrees: float | None

    @property
    def n_parameters(self) -> int:
        """A location per column."""
        return len(self.columns)

    @property
    def noise_size(self) -> int:
        """A log scale per column, and the log of its degrees of freedom if these are estimated."""
        return len(self.columns) * (1 if self.degrees is not None else 2)

    def open(self, noise: Array) -> Scales:
        """Scales and degrees of freedom of a noise ``(..., C, s)``."""
        size = len(self.columns)
        scale = np.exp(np.clip(noise[..., :size], -30.0, 30.0))
        if self.degrees is not None:
            return Scales(scale, np.full_like(scale, self.degrees))
        return Scales(scale, np.clip(np.exp(np.clip(noise[..., size:], 0.0, 30.0)), LEAST_DEGREES, MOST_DEGREES))

    def solve(self, sums: Array, theta: Array) -> tuple[Array, Array]:
        """Means by the weights, and the rows that they rest on."""
        seen, mass, first, _, _ = np.split(sums, OF_A_COLUMN, axis=-1)
        return np.where(seen > 0, first / np.where(mass > 0, mass, 1.0), theta), seen

    def noise_step(self, sums: Array, theta: Array, noise: Array, prior_rows: float, reg_covar: float) -> Array:
        """Scales about ``theta`` and degrees of freedom; a column without a cell keeps its own."""
        shared = noise.shape[-2] == 1
        seen, mass, first, second, told = np.split(sums, OF_A_COLUMN, axis=-1)
        squares = np.maximum(second - 2.0 * theta * first + mass * theta * theta, 0.0)
        every = squares.sum(axis=-2, keepdims=True) / np.maximum(mass.sum(axis=-2, keepdims=True), 1e-3)
        variance = every if shared else (squares + prior_rows * every) / np.maximum(mass + prior_rows, 1e-3)
        there = seen.sum(axis=-2, keepdims=True) > 0
        size = len(self.columns)
        scales = np.where(there, 0.5 * np.log(variance + reg_covar), noise[..., :size])
        if self.degrees is not None:
            return np.asarray(scales)
        half = 0.5 * (self.open(noise).degrees + 1.0)
        # The expectation of log u - u given the rows, a mean over all components: they share degrees of freedom.
        expected = (told + seen * (digamma(half) - np.log(half))).sum(axis=-2, keepdims=True)
        expected = expected / np.maximum(seen.sum(axis=-2, keepdims=True), 1e-3)
        degrees = np.log(_degrees(expected))
        return np.concatenate([scales, np.where(there, degrees, noise[..., size:])], axis=-1)

    def relative(self, noise: Array, reference: Array) -> Array:
        """Coordinates that n rows know to about ``1 / sqrt(n)``, at the degrees of freedom that are usual."""
        return np.asarray((noise - reference) * self._per_log)

    def absolute(self, coordinates: Array, reference: Array) -> Array:
        """The way back."""
        return np.asarray(reference + coordinates / self._per_log)

    @property
    def _per_log(self) -> Array:
        """Roots of the information of one row in log scales and log degrees of freedom, where these are four."""
        size = len(self.columns)
        return np.repeat([1.07, 0.3], size)[: self.noise_size]

    def average(self, noise: Array, share: Array) -> Array:
        """The noise of the mean squared scale over sites, weighted by ``share`` (K,)."""
        size = len(self.columns)
        square = np.exp(2.0 * np.clip(noise[..., :size], -30.0, 30.0))
        scales = 0.5 * np.log(np.einsum("k,k...->...", share, square))
        return np.concatenate([scales, np.einsum("k,k...->...", share, noise[..., size:])], axis=-1)

    def curved(self, sums: Array, scales: Scales) -> Array:
        """(..., R, q, q) the information that is expected if components are known."""
        seen = np.split(sums, OF_A_COLUMN, axis=-1)[0]
        told = seen * (scales.degrees + 1.0) / (scales.degrees + 3.0) / scales.scale**2
        return np.asarray(told[..., None] * np.eye(len(self.columns)))

    def of_noise(self, sums: Array, scales: Scales, shared: bool) -> Array:
        """(..., C, s) likewise of the noise; degrees of freedom are taken as known."""
        seen = np.split(sums, OF_A_COLUMN, axis=-1)[0]
        seen = seen.sum(axis=-2, keepdims=True) if shared else seen
        told = np.maximum(seen, 1.0) * 2.0 * scales.degrees / (scales.degrees + 3.0)
        return np.concatenate([told, np.ones_like(told)], axis=-1)[..., : self.noise_size]

    def scores(self, rows: Array, seen: Array, theta: Array, scale: Array, degrees: Array) -> tuple[Array, Array]:
        """(m, q) and (m, s) derivatives of the log density of some rows in location, log scale and degrees."""
        away = (rows[:, self.columns] - theta) / scale
        weight = seen[:, self.columns] * (degrees + 1.0) / (degrees + away * away)
        of_scale = weight * away * away - seen[:, self.columns]
        whole = np.concatenate([of_scale, np.zeros_like(of_scale)], axis=-1)
        return weight * away / scale, whole[:, : self.noise_size]


class RobustTerm:
    """Student's t of a stack's rows under all fits."""

    def __init__(self, rows: Array, seen: Array, theta: Array, scales: Scales) -> None:
        c, size = len(rows), rows.shape[-1]
        wide = np.broadcast_arrays(theta, *scales)
        self._theta, self._scale, self._degrees = (leaf.reshape(c, -1, size) for leaf in wide)
        self._rows, self._seen, self._size = rows, seen, size

    def _square(self, j: int, place: slice) -> Array:
        away = self._rows[:, None, place, j] - self._theta[..., j, None]
        away /= self._scale[..., j, None]
        away *= away
        return np.asarray(away)

    def density(self, place: slice) -> Array:
        """Log densities, ``(c, B R, n)``."""
        found: Array | float = 0.0
        for j in range(self._size):
            nu = self._degrees[..., j, None]
            constant = gammaln(0.5 * (nu + 1.0)) - gammaln(0.5 * nu) - 0.5 * np.log(nu) - 0.5 * log(pi)
            constant -= np.log(self._scale[..., j, None])
            value = constant - 0.5 * (nu + 1.0) * np.log1p(self._square(j, place) / nu)
            found = found + value * self._seen[:, None, place, j]
        return np.asarray(found)

    def sums(self, mass: Array, place: slice) -> Array:
        """Of the rows seen, u, ux, ux^2 and log u - u, ``(c, B R, 5 p)``."""
        found = np.empty((*mass.shape[:2], OF_A_COLUMN, self._size))
        for j in range(self._size):
            nu, x = self._degrees[..., j, None], self._rows[:, None, place, j]
            there = mass * self._seen[:, None, place, j]
            weight = (nu + 1.0) / (nu + self._square(j, place))
            found[..., 0, j] = there.sum(axis=-1)
            found[..., 4, j] = (there * (np.log(weight) - weight)).sum(axis=-1)
            weight *= there
            found[..., 1, j] = weight.sum(axis=-1)
            weight *= x
            found[..., 2, j] = weight.sum(axis=-1)
            found[..., 3, j] = (weight * x).sum(axis=-1)
        return found.reshape(*mass.shape[:2], -1)


def _degrees(expected: Array) -> Array:
    """The root of ``log(nu / 2) - digamma(nu / 2) + 1 + expected``, which falls as nu grows, by halving."""
    low = np.full(expected.shape, np.log(LEAST_DEGREES))
    high = np.full(expected.shape, np.log(MOST_DEGREES))
    for _ in range(HALVINGS):
        middle = 0.5 * (low + high)
        half = 0.5 * np.exp(middle)
        above = np.log(half) - digamma(half) + 1.0 + expected > 0
        low, high = np.where(above, middle, low), np.where(above, high, middle)
    return np.asarray(np.exp(0.5 * (low + high)))
