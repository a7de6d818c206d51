r"""Gaussians of rows with missing cells: what is seen of a row, and what is expected of the rest given that.

With M the diagonal 0/1 matrix of what is observed of a row and :math:`G = M (M \Sigma M + I - M)^{-1} M`, the observed
part has Mahalanobis distance :math:`(x - \theta)' G (x - \theta)`, the whole row the conditional mean
:math:`\theta + \Sigma G (x - \theta)` and the conditional covariance :math:`\Sigma - \Sigma G \Sigma`. Covariances
come as ``(C, p, p)``, with C = 1 where all components share one.
"""

from math import log, pi

import jax
import jax.numpy as jnp

from fedgrem.kernels.triangular import cholesky, solve_lower
from fedgrem.types import Array


def _seen_precision(observed: Array, covariance: Array) -> tuple[Array, Array]:
    """G ``(n, p, p)`` and the log determinant of what is seen, ``(n,)``, of rows with this covariance ``(p, p)``."""
    identity = jnp.eye(covariance.shape[0], dtype=covariance.dtype)

    def one(seen: Array) -> tuple[Array, Array]:
        factor = cholesky(seen[:, None] * covariance * seen + (1.0 - seen) * identity)
        half = solve_lower(factor, seen * identity)
        return half.T @ half, 2.0 * jnp.sum(jnp.log(jnp.diagonal(factor)))

    return jax.vmap(one)(observed.T)


def by_component(theta: Array, leaf: Array) -> Array:
    """What belongs to a covariance, ``(C, ...)``, for every component, ``(R, ...)``."""
    return jnp.broadcast_to(leaf, (theta.shape[0], *leaf.shape[1:]))


def log_density(columns: Array, observed: Array, theta: Array, covariance: Array) -> Array:
    """Log density of what is seen of every row under every component, ``(R, n)``."""
    precision, log_scale = jax.vmap(lambda c: _seen_precision(observed, c))(covariance)
    constant = observed.sum(axis=0) * log(2.0 * pi)

    def one(mean: Array, precision: Array, log_scale: Array) -> Array:
        away = columns.T - mean
        square = jnp.einsum("np,npq,nq->n", away, precision, away)
        return -0.5 * (square + log_scale + constant)

    return jax.vmap(one)(theta, by_component(theta, precision), by_component(theta, log_scale))


def _expected(columns: Array, mean: Array, covariance: Array, precision: Array) -> Array:
    """Expected rows less ``mean``, ``(n, p)``."""
    return jnp.einsum("npq,nq->np", precision, columns.T - mean) @ covariance


def first_moment(columns: Array, observed: Array, theta: Array, covariance: Array, mass: Array) -> Array:
    """``sum_i m_ri (E x_i - theta_r)``, ``(R, p)``."""
    precision, _ = jax.vmap(lambda c: _seen_precision(observed, c))(covariance)

    def one(mean: Array, covariance: Array, precision: Array, mass: Array) -> Array:
        return mass @ _expected(columns, mean, covariance, precision)

    return jax.vmap(one)(theta, by_component(theta, covariance), by_component(theta, precision), mass)


def scatter(columns: Array, observed: Array, theta: Array, covariance: Array, mass: Array) -> Array:
    """``sum_i m_ri E (x_i - theta_r)(x_i - theta_r)'``, ``(R, p, p)``."""
    precision, _ = jax.vmap(lambda c: _seen_precision(observed, c))(covariance)

    def one(mean: Array, covariance: Array, precision: Array, mass: Array) -> Array:
        away = _expected(columns, mean, covariance, precision)
        known = covariance @ jnp.einsum("n,npq->pq", mass, precision) @ covariance
        return (away.T * mass) @ away + mass.sum() * covariance - known

    return jax.vmap(one)(theta, by_component(theta, covariance), by_component(theta, precision), mass)
