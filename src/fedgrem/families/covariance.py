r"""Covariance structures of Gaussian components, one class each.

A noise is unconstrained numbers ``(..., C, s)``: logs of standard deviations, or the Cholesky factor with the log of
its diagonal. Any numbers are a valid covariance, so that noises can be averaged and shrunk like means. About a
reference, a noise has coordinates in which an estimate from n rows has an error of about :math:`1/\sqrt n` each,
whatever the units of the columns: :math:`\sqrt2` times a log standard deviation, and the entries below the diagonal of
:math:`L_0^{-1} L`.
"""

from dataclasses import dataclass
from math import sqrt
from typing import Any, ClassVar, NamedTuple

import numpy as np

from fedgrem.kernels.triangle import lower, matrix_size, products, safe_cholesky, safe_inverse, symmetric
from fedgrem.types import Array

MOST = 30.0
"""Logs of scales are kept within this of zero where they are exponentiated: exp(30) is 1e13."""
LEAST_MASS = 1e-3
"""Rows, at the least, that a covariance is divided by."""
ROUNDING = 1e-12
"""Of a variance, added to it: what rounding could have taken from it."""


class Scale(NamedTuple):
    """An opened noise: what every step needs of it."""

    white: Array
    """(..., C, p, p) inverses of the Cholesky factors; (..., C, p) of standard deviations where columns are apart."""
    factor: Array
    """The same, of the factors themselves."""
    precision: Array
    """The same, of the inverse covariances."""
    log_scale: Array
    """(..., C) logs of the determinants of the factors."""


class LogScales:
    """Variances without covariances: "spherical" and "diag"."""

    shared: ClassVar[bool] = False
    prior_rows: ClassVar[float] = 2.0

    def open(self, noise: Array, n_features: int) -> Scale:
        """Standard deviations ``(..., C, p)`` and what follows."""
        logs = np.clip(np.broadcast_to(noise, (*noise.shape[:-1], n_features)), -MOST, MOST)
        white = np.exp(-logs)
        return Scale(white, np.exp(logs), white * white, logs.sum(axis=-1))

    def whiten(self, points: Array, scale: Scale) -> Array:
        """Points ``(..., R, p)`` in units in which the covariance is the identity."""
        return np.asarray(points * scale.white)

    def unwhiten(self, points: Array, scale: Scale) -> Array:
        """The way back."""
        return np.asarray(points * scale.factor)

    def relative(self, noise: Array, reference: Array, n_features: int) -> Array:
        """Coordinates of noises ``(..., s)`` about a reference, at which they are 0."""
        return np.asarray(self._per_log(n_features) * (noise - reference))

    def absolute(self, coordinates: Array, reference: Array, n_features: int) -> Array:
        """The way back."""
        return np.asarray(reference + coordinates / self._per_log(n_features))

    def _per_log(self, n_features: int) -> float:
        return sqrt(2.0)

    def matrices(self, noise: Array, n_features: int) -> Array:
        """Covariance matrices ``(..., C, p, p)``."""
        factor = self.open(noise, n_features).factor
        return np.asarray((factor * factor)[..., None] * np.eye(n_features))

    def from_matrices(self, covariance: Array) -> Array:
        """The noise ``(..., s)`` of positive definite matrices ``(..., p, p)``: their diagonal."""
        return np.asarray(0.5 * np.log(np.diagonal(covariance, axis1=-2, axis2=-1)))

    def average(self, noise: Array, share: Array) -> Array:
        """The noise of the mean variance over sites ``(K, ...)``, weighted by ``share`` (K,)."""
        variance = np.exp(2.0 * np.clip(noise, -MOST, MOST))
        return np.asarray(0.5 * np.log(np.einsum("k,k...->...", share, variance)))

    def scores(self, white: Array) -> Array:
        """Scores in logs of scales of rows ``(..., p)`` in noise units."""
        return np.asarray(white * white - 1.0)

    def information(self, n_features: int) -> Array:
        """(s,) what one row tells of each coordinate of the scores, as expected."""
        return np.full(n_features, 2.0)


@dataclass(frozen=True)
class Diagonal(LogScales):
    """Every component has a variance per column."""

    name: ClassVar[str] = "diag"

    def size(self, n_features: int) -> int:
        """Numbers in one noise."""
        return n_features

    def features(self, rows: Array) -> Array:
        """``(x, x^2)``."""
        return np.concatenate([rows, rows * rows], axis=-1)

    def of_products(self, sums: Array) -> Array:
        """Sums of the features beyond x, from those of products of two columns, lower triangle."""
        return np.asarray(sums[..., lower(matrix_size(sums.shape[-1]))[2]])

    def quadratic(self, precision: Array) -> Array:
        """By what the features beyond x are multiplied."""
        return -0.5 * precision

    def variances(self, scatter: Array, held: Array, reg_covar: float) -> Array:
        """Noises ``(..., R, s)`` from squares about the means ``(..., R, s)`` and rows held."""
        scatter = np.maximum(scatter, 0.0)
        pooled = scatter.sum(axis=-2, keepdims=True) / np.maximum(held.sum(axis=-1), LEAST_MASS)[..., None, None]
        # A component of a few rows would shrink to a point; a few rows of the pooled variance keep it from that.
        variance = (scatter + self.prior_rows * pooled) / (held + self.prior_rows)[..., None] + reg_covar
        return np.asarray(0.5 * np.log(variance))

    def scatter(self, second: Array, sums: Array, theta: Array, held: Array) -> Array:
        """``sum_i m_i (x_i - theta)^2``, from sums of squares and of rows."""
        return np.asarray(second - 2.0 * theta * sums + held[..., None] * theta * theta)


@dataclass(frozen=True)
class Spherical(Diagonal):
    """Every component has one variance for all columns."""

    name: ClassVar[str] = "spherical"

    def size(self, n_features: int) -> int:
        """One number."""
        return 1

    def features(self, rows: Array) -> Array:
        """``(x, |x|^2)``."""
        return np.concatenate([rows, np.vecdot(rows, rows)[..., None]], axis=-1)

    def of_products(self, sums: Array) -> Array:
        """Sums of ``|x|^2``."""
        return np.asarray(super().of_products(sums).sum(axis=-1, keepdims=True))

    def quadratic(self, precision: Array) -> Array:
        """By what the feature beyond x is multiplied."""
        return -0.5 * precision[..., :1]

    def scatter(self, second: Array, sums: Array, theta: Array, held: Array) -> Array:
        """Mean over the columns of squares about the means, ``(..., R, 1)``."""
        square = second - 2.0 * np.vecdot(theta, sums)[..., None]
        return np.asarray((square + (held * np.vecdot(theta, theta))[..., None]) / theta.shape[-1])

    def _per_log(self, n_features: int) -> float:
        return sqrt(2.0 * n_features)

    def from_matrices(self, covariance: Array) -> Array:
        """The log of the root mean variance."""
        return np.asarray(0.5 * np.log(np.diagonal(covariance, axis1=-2, axis2=-1).mean(axis=-1, keepdims=True)))

    def scores(self, white: Array) -> Array:
        """Scores in the log of the scale."""
        return np.asarray((white * white - 1.0).sum(axis=-1, keepdims=True))

    def information(self, n_features: int) -> Array:
        """(1,) what one row tells, as expected."""
        return np.full(1, 2.0 * n_features)


class Cholesky:
    """Whole covariance matrices: "tied" and "full"."""

    def size(self, n_features: int) -> int:
        """Numbers in one noise."""
        return n_features * (n_features + 1) // 2

    def open(self, noise: Array, n_features: int) -> Scale:
        """Factors ``(..., C, p, p)`` and what follows."""
        factor = unpack_factor(noise)
        white = safe_inverse(factor)
        log_scale = np.log(np.diagonal(factor, axis1=-2, axis2=-1)).sum(axis=-1)
        return Scale(white, factor, white.swapaxes(-1, -2) @ white, log_scale)

    def whiten(self, points: Array, scale: Scale) -> Array:
        """Points ``(..., R, p)`` in units in which the covariance is the identity."""
        return _times(points, scale.white)

    def unwhiten(self, points: Array, scale: Scale) -> Array:
        """The way back."""
        return _times(points, scale.factor)

    def relative(self, noise: Array, reference: Array, n_features: int) -> Array:
        """Coordinates of noises ``(..., s)`` about a reference, at which they are 0."""
        return pack_factor(np.linalg.inv(unpack_factor(reference)) @ unpack_factor(noise)) * _diagonal_scale(n_features)

    def absolute(self, coordinates: Array, reference: Array, n_features: int) -> Array:
        """The way back."""
        return pack_factor(unpack_factor(reference) @ unpack_factor(coordinates / _diagonal_scale(n_features)))

    def matrices(self, noise: Array, n_features: int) -> Array:
        """Covariance matrices ``(..., C, p, p)``."""
        factor = unpack_factor(noise)
        return np.asarray(factor @ factor.swapaxes(-1, -2))

    def from_matrices(self, covariance: Array) -> Array:
        """The noise ``(..., s)`` of positive definite matrices ``(..., p, p)``."""
        return pack_factor(safe_cholesky(covariance))

    def average(self, noise: Array, share: Array) -> Array:
        """The noise of the mean covariance over sites ``(K, ...)``, weighted by ``share`` (K,)."""
        return self.from_matrices(np.einsum("k,k...->...", share, self.matrices(noise, 0)))

    def quadratic(self, precision: Array) -> Array:
        """By what products of two columns are multiplied."""
        i, j, diagonal = lower(precision.shape[-1])
        return np.asarray(precision[..., i, j] * np.where(diagonal, -0.5, -1.0))

    def scores(self, white: Array) -> Array:
        """Scores in entries of ``L^-1 L'`` of rows ``(..., p)`` in noise units."""
        return products(white) - lower(white.shape[-1])[2]

    def information(self, n_features: int) -> Array:
        """(s,) what one row tells of each coordinate of the scores, as expected."""
        return np.asarray(1.0 + lower(n_features)[2])


@dataclass(frozen=True)
class Tied(Cholesky):
    """All components of a site share one covariance matrix."""

    name: ClassVar[str] = "tied"
    shared: ClassVar[bool] = True

    def features(self, rows: Array) -> Array:
        """``x``: the products of two columns are the same for all components, and so no component's."""
        return rows


@dataclass(frozen=True)
class Full(Cholesky):
    """Every component has a covariance matrix."""

    name: ClassVar[str] = "full"
    shared: ClassVar[bool] = False

    def features(self, rows: Array) -> Array:
        """``(x, x x')``, lower triangle."""
        return np.concatenate([rows, products(rows)], axis=-1)

    def of_products(self, sums: Array) -> Array:
        """As they are."""
        return sums

    def variances(self, scatter: Array, held: Array, reg_covar: float) -> Array:
        """Noises ``(..., R, s)`` from scatter matrices ``(..., R, p, p)`` and rows held."""
        pooled = scatter.sum(axis=-3, keepdims=True) / np.maximum(held.sum(axis=-1), LEAST_MASS)[..., None, None, None]
        more = scatter.shape[-1] + 2.0  # rows of the pooled covariance, so that no component shrinks to a point
        covariance = (scatter + more * pooled) / (held + more)[..., None, None]
        return self.from_matrices(lifted(covariance, reg_covar))

    def scatter(self, second: Array, sums: Array, theta: Array, held: Array) -> Array:
        """``sum_i m_i (x_i - theta)(x_i - theta)'``, from sums of products and of rows."""
        cross = theta[..., :, None] * sums[..., None, :]
        square = held[..., None, None] * theta[..., :, None] * theta[..., None, :]
        return np.asarray(symmetric(second) - cross - cross.swapaxes(-1, -2) + square)


@dataclass(frozen=True)
class Identity:
    """The known identity covariance, the paper's."""

    name: ClassVar[str] = "identity"
    shared: ClassVar[bool] = True

    def features(self, rows: Array) -> Array:
        """``x``."""
        return rows

    def size(self, n_features: int) -> int:
        """Nothing is estimated."""
        return 0

    def matrices(self, noise: Any, n_features: int) -> Array:
        """The identity, ``(1, p, p)``."""
        return np.eye(n_features)[None]


STRUCTURES: dict[str, Any] = {s.name: s for s in (Identity, Spherical, Diagonal, Tied, Full)}
"""name -> class; ``covariance_type`` takes a name."""


def lifted(covariance: Array, reg_covar: float) -> Array:
    """``reg_covar`` more on the diagonal, and what rounding could have taken from it, column by column."""
    size = np.arange(covariance.shape[-1])
    covariance = covariance.copy()
    own = np.maximum(covariance[..., size, size], 0.0)
    covariance[..., size, size] += reg_covar + ROUNDING * own
    return covariance


def pack_factor(factor: Array) -> Array:
    """Lower triangular ``(..., p, p)`` with positive diagonal to a noise ``(..., s)``."""
    i, j, diagonal = lower(factor.shape[-1])
    flat = factor[..., i, j]
    flat[..., diagonal] = np.log(flat[..., diagonal])
    return np.asarray(flat)


def unpack_factor(noise: Array) -> Array:
    """The lower triangular factor ``(..., p, p)`` of a noise ``(..., s)``."""
    size = matrix_size(noise.shape[-1])
    i, j, _ = lower(size)
    full = np.zeros((*noise.shape[:-1], size, size))
    full[..., i, j] = noise
    place = np.arange(size)
    full[..., place, place] = np.exp(np.clip(full[..., place, place], -MOST, MOST))
    return full


def _times(points: Array, matrix: Array) -> Array:
    """``M_r x_r`` for points ``(..., R, p)`` and matrices ``(..., C, p, p)``."""
    if matrix.shape[-3] == 1:
        return np.asarray(points @ matrix[..., 0, :, :].swapaxes(-1, -2))
    return np.asarray((matrix @ points[..., None])[..., 0])


def _diagonal_scale(n_features: int) -> Array:
    return np.where(lower(n_features)[2], sqrt(2.0), 1.0)
