r"""Covariances as unconstrained numbers, in the units of a common reference, and back.

A *spread* describes the covariance of a component: the logs of standard deviations (``"spherical"``, one number;
``"diag"``, one per feature), or the Cholesky factor with the log of its diagonal (``"tied"`` and ``"full"``). Any
numbers are a valid covariance, so that spreads can be averaged and shrunk like means.

Relative to a reference, a spread has coordinates in which an estimate from n rows has an error of about
:math:`1/\sqrt n` each, whatever the units of the features: :math:`\sqrt2` times a log standard deviation, and the
entries below the diagonal of :math:`L_0^{-1} L`.
"""

from functools import partial
from math import sqrt

import jax
import jax.numpy as jnp
import numpy as np

from fedgrem.kernels.triangular import cholesky, inverse_lower
from fedgrem.types import Array

CHOLESKY = ("tied", "full")
"""Kinds whose spread is a Cholesky factor; the others hold log standard deviations."""
MOST = 30.0
"""Logs of scales are kept within this of zero where they are exponentiated: exp(30) is 1e13."""


def spread_size(kind: str, n_features: int) -> int:
    """Numbers in one spread."""
    return {"spherical": 1, "diag": n_features}.get(kind, n_features * (n_features + 1) // 2)


def features_of(kind: str, size: int) -> int:
    """How many features a Cholesky spread of this size is for; the size itself for "diag"."""
    return (int(sqrt(8 * size + 1)) - 1) // 2 if kind in CHOLESKY else size


def pack_factor(factor: Array) -> Array:
    """Lower triangular ``(..., p, p)`` with positive diagonal to a spread ``(..., s)``."""
    rows, columns = np.tril_indices(factor.shape[-1])
    flat = factor[..., rows, columns]
    on_diagonal = rows == columns
    return jnp.where(on_diagonal, jnp.log(jnp.where(on_diagonal, flat, 1.0)), flat)


@jax.jit
def unpack_factor(spread: Array) -> Array:
    """The lower triangular factor ``(..., p, p)`` of a Cholesky spread ``(..., s)``."""
    size = features_of("full", spread.shape[-1])
    rows, columns = np.indices((size, size))
    place = np.where(rows >= columns, rows * (rows + 1) // 2 + columns, 0)
    square = spread[..., place]
    square = jnp.where(rows == columns, jnp.exp(jnp.clip(square, -MOST, MOST)), square)
    return jnp.where(rows >= columns, square, 0.0)


def whitener(spread: Array) -> Array:
    """Inverses ``(..., p, p)`` of the factors of Cholesky spreads: what makes their Gaussians white."""
    return inverse_lower(unpack_factor(spread))


def from_covariance(kind: str, covariance: Array) -> Array:
    """The spread ``(..., s)`` of positive definite matrices ``(..., p, p)``; their diagonal is all "diag" looks at."""
    if kind in CHOLESKY:
        return pack_factor(cholesky(covariance))
    variance = jnp.diagonal(covariance, axis1=-2, axis2=-1)
    if kind == "spherical":
        variance = variance.mean(axis=-1, keepdims=True)
    return 0.5 * jnp.log(variance)


@partial(jax.jit, static_argnames=("kind", "n_features"))
def to_covariance(kind: str, spread: Array, n_features: int) -> Array:
    """Covariance matrices ``(..., p, p)`` of spreads ``(..., s)``."""
    if kind in CHOLESKY:
        factor: Array = unpack_factor(spread)
        return factor @ jnp.swapaxes(factor, -1, -2)
    variance = jnp.exp(2.0 * jnp.clip(spread, -MOST, MOST))
    return variance[..., :, None] * jnp.eye(n_features, dtype=spread.dtype)


@partial(jax.jit, static_argnames="kind")
def in_noise_units(kind: str, points: Array, spread: Array) -> Array:
    r"""Points ``(..., p)`` in coordinates in which a Gaussian of this spread ``(..., s)`` has unit covariance."""
    if kind in CHOLESKY:
        return jnp.einsum("...pq,...q->...p", whitener(spread), points)
    return points * jnp.exp(-jnp.clip(spread, -MOST, MOST))


@partial(jax.jit, static_argnames="kind")
def from_noise_units(kind: str, points: Array, spread: Array) -> Array:
    """The way back."""
    if kind in CHOLESKY:
        return jnp.einsum("...pq,...q->...p", unpack_factor(spread), points)
    return points * jnp.exp(jnp.clip(spread, -MOST, MOST))


def _per_log(kind: str, n_features: int) -> float:
    """By what a log standard deviation is multiplied to have an error of ``1/sqrt(n)``."""
    return sqrt(2.0 * n_features) if kind == "spherical" else sqrt(2.0)


def relative_spread(kind: str, spread: Array, reference: Array, n_features: int) -> Array:
    """Coordinates of spreads ``(..., s)`` about a reference ``(..., s)``, at which they are 0.

    Examples
    --------
    >>> about = jnp.array([0.3, 1.0, -0.2])
    >>> relative_spread("full", about, about, 2).round(6).tolist()
    [0.0, 0.0, 0.0]
    """
    if kind not in CHOLESKY:
        return _per_log(kind, n_features) * (spread - reference)
    packed = pack_factor(whitener(reference) @ unpack_factor(spread))
    return packed * _diagonal_scale(n_features)


def absolute_spread(kind: str, coordinates: Array, reference: Array, n_features: int) -> Array:
    """The way back."""
    if kind not in CHOLESKY:
        return reference + coordinates / _per_log(kind, n_features)
    factor = unpack_factor(coordinates / _diagonal_scale(n_features))
    return pack_factor(unpack_factor(reference) @ factor)


def _diagonal_scale(n_features: int) -> Array:
    rows, columns = np.tril_indices(n_features)
    return jnp.asarray(np.where(rows == columns, sqrt(2.0), 1.0))


def average_log_scales(spread: Array, share: Array) -> Array:
    """Logs of the standard deviations of the mean variance over sites ``(K, ...)``, weighted by ``share`` (K,)."""
    variance = jnp.exp(2.0 * jnp.clip(spread, -MOST, MOST))
    return 0.5 * jnp.log(jnp.einsum("k,k...->...", share, variance))
