"""Gaussians with a full covariance: log density, moments that add up over sites, and what they estimate."""

from math import log, pi
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_batching import sequential_vmap

from fedgrem.kernels.triangular import cholesky, inverse_lower
from fedgrem.types import Array, SiteData


class Moments(NamedTuple):
    """Weighted moments of M components about reference points; those of several sites are simply added."""

    mass: Array
    """(M,)"""
    first: Array
    """(M, p) ``sum_i m_i (x_i - c)``"""
    second: Array
    """(M, p, p) ``sum_i m_i (x_i - c)(x_i - c)'``"""


class FullGaussians(NamedTuple):
    """M Gaussians with a covariance each."""

    mean: Array
    """(M, p)"""
    covariance: Array
    """(M, p, p)"""


def full_log_density(columns: Array, mean: Array, covariance: Array) -> Array:
    """Log density of every row under every Gaussian, ``(M, n)``, for ``columns`` (p, n)."""
    # The inverse of a p x p factor, then one product with all rows: faster than a solve per row.
    return white_log_density(columns, mean, inverse_lower(cholesky(covariance)))


def white_log_density(columns: Array, mean: Array, whitener: Array) -> Array:
    """The same, given the inverses ``(M, p, p)`` of the Cholesky factors of the covariances."""
    if products_pay(len(columns), len(mean)):
        middle = mean.mean(axis=0)  # rows far from zero would be lost in rounding
        density = _quadratic(columns - middle[:, None], mean - middle, whitener)
    else:
        white = jax.vmap(lambda center, matrix: matrix @ (columns - center[:, None]))(mean, whitener)
        density = _log_scale(whitener)[:, None] - 0.5 * jnp.sum(white * white, axis=1)
    return density - 0.5 * len(columns) * log(2.0 * pi)


def products_pay(n_features: int, n_components: int) -> bool:
    """Whether all products of two features, once for all components, take less room than rows per component."""
    return n_features <= 2 * n_components


def _quadratic(columns: Array, mean: Array, whitener: Array) -> Array:
    r"""Log density but for a constant, ``(M, n)``.

    :math:`-\tfrac12 x'Px + x'P\mu` is linear in the products of two features and in the features. These are the same
    for all Gaussians, and one product of matrices is faster than a small one for each of them.
    """
    precision = jnp.swapaxes(whitener, 1, 2) @ whitener
    first, second = np.tril_indices(len(columns))
    half = np.where(first == second, 0.5, 1.0).astype(columns.dtype)
    slopes = jnp.einsum("rab,rb->ra", precision, mean)
    offset = _log_scale(whitener) - 0.5 * jnp.sum(slopes * mean, axis=1)
    products = columns[first] * columns[second]
    return slopes @ columns - (half * precision[:, first, second]) @ products + offset[:, None]


def _log_scale(whitener: Array) -> Array:
    return jnp.sum(jnp.log(jnp.diagonal(whitener, axis1=1, axis2=2)), axis=1)


def moments(data: SiteData, mass: Array, reference: Array) -> Moments:
    """Moments of one site's rows about ``reference`` (M, p), weighted by ``mass`` (M, n).

    They are summed about the mean of the rows, the same for all components and in every round, and then moved.
    """
    middle = data.columns @ data.row_weight / data.row_weight.sum()
    columns, away = data.columns - middle[:, None], reference - middle
    held, first = mass.sum(axis=1), mass @ columns.T
    cross = away[:, :, None] * first[:, None, :]
    square = held[:, None, None] * away[:, :, None] * away[:, None, :]
    second = _second_about_zero(columns, mass) - cross - jnp.swapaxes(cross, 1, 2) + square
    return Moments(held, first - held[:, None] * away, second)


def _second_about_zero(columns: Array, mass: Array) -> Array:
    """``sum_i m_ri x_i x_i'``, ``(M, p, p)``, for ``columns`` (p, n).

    Of several sites one after the other: the products of one stay in the processor's cache, which takes half the time.
    """
    one_by_one = sequential_vmap(_sums_of_products)  # type: ignore[no-untyped-call]
    second: Array = one_by_one(columns, mass)
    return second


def _sums_of_products(columns: Array, mass: Array) -> Array:
    n_features = len(columns)
    if not products_pay(n_features, len(mass)):
        by_component: Array = jax.lax.map(lambda weight: (columns * weight) @ columns.T, mass)
        return by_component
    first, second = np.tril_indices(n_features)
    place = np.zeros((n_features, n_features), dtype=int)
    place[first, second] = place[second, first] = np.arange(len(first))
    # Many products from the left and few masses from the right: the other way round takes twice as long.
    return ((columns[first] * columns[second]) @ mass.T).T[:, place]


def from_moments(total: Moments, before: FullGaussians, reg_covar: Array | float) -> FullGaussians:
    """Means and covariances from moments about the present means; a Gaussian that holds nothing stays as it was.

    ``reg_covar`` is added to every variance, and a little more where rounding could make a covariance indefinite.

    Examples
    --------
    >>> before = FullGaussians(jnp.zeros((1, 1)), jnp.ones((1, 1, 1)))
    >>> two_rows = SiteData(jnp.array([[1.0, 3.0]]), jnp.zeros(2), jnp.ones(2))
    >>> after = from_moments(moments(two_rows, jnp.ones((1, 2)), before.mean), before, 0.0)
    >>> round(after.mean.item(), 3), round(after.covariance.item(), 3)
    (2.0, 1.0)
    """
    # What is left of a vanished component is rounding, and its ratios are noise or overflow.
    held = total.mass > 1e-10 * total.mass.sum()
    count = jnp.where(held, total.mass, 1.0)
    shift = total.first / count[:, None]
    spread = total.second / count[:, None, None] - shift[:, :, None] * shift[:, None, :]
    size = jnp.trace(total.second, axis1=1, axis2=2) / count
    rounding = float(jnp.finfo(size.dtype).eps)  # type: ignore[no-untyped-call]
    lift = reg_covar + 100.0 * rounding * size
    spread = spread + lift[:, None, None] * jnp.eye(spread.shape[-1], dtype=spread.dtype)
    mean = jnp.where(held[:, None], before.mean + shift, before.mean)
    return FullGaussians(mean, jnp.where(held[:, None, None], spread, before.covariance))


def second_moments(data: SiteData, mass: Array) -> Array:
    """``sum_i m_ri x_i x_i'``, ``(R, p, p)``."""
    return _second_about_zero(data.columns, mass)
