"""Linear-regression components with unit noise: the paper's Example 2."""

from dataclasses import dataclass
from math import log, pi

import jax
import jax.numpy as jnp

from fedgrem.families.base import largest_eigenvalue_bound
from fedgrem.families.sampling import draw_rows
from fedgrem.types import Array, SiteData

EMPTY = 1e-12
"""The mass, in rows, below which a component's coefficients go to zero instead of to whatever rounding makes them."""


def weighted_least_squares(data: SiteData, mass: Array, ridge: float) -> Array:
    """Coefficients of every component, ``(R, p)``, with ``ridge`` relative to the covariates' mean square."""
    x, y = data.columns, data.target
    gram = second_moments(data, mass)
    mean_square = jnp.trace(gram, axis1=1, axis2=2) / x.shape[0]
    # A component may hold a mass of 1e-300: relative to that alone, the ridge would underflow and the solution be NaN.
    lift = ridge * mean_square + EMPTY * jnp.max(x * x)
    lift = jnp.where(lift > 0, lift, 1.0)
    gram = gram + lift[:, None, None] * jnp.eye(x.shape[0], dtype=x.dtype)
    return solve_positive(gram, (mass * y) @ data.rows)


def solve_positive(matrix: Array, right: Array) -> Array:
    """Solve positive definite systems, ``(R, p, p), (R, p) -> (R, p)``: much less to compile than a general solver."""
    factor = jnp.linalg.cholesky(matrix)
    solution: Array = jax.scipy.linalg.cho_solve((factor, True), right[..., None])[..., 0]
    return solution


def second_moments(data: SiteData, mass: Array) -> Array:
    """``sum_i m_ri x_i x_i'``, ``(R, p, p)``."""
    x = data.columns
    moments: Array = jax.vmap(lambda m: (x * m) @ data.rows)(mass)
    return moments


@dataclass(frozen=True, slots=True)
class LinearRegression:
    """Components ``y = x' theta_r + N(0, 1)``; the covariates are taken as they are."""

    ridge: float = 1e-6
    safe_step = True
    has_target = True
    start_tracks = 12

    def n_parameters(self, n_features: int) -> int:
        """A coefficient per covariate."""
        return n_features

    def log_density(self, data: SiteData, theta: Array) -> Array:
        """Log density of every response given its covariates, ``(R, n)``."""
        residual = data.target - theta @ data.columns
        return -0.5 * (residual * residual + log(2.0 * pi))

    def q_gradient(self, data: SiteData, theta: Array, mass: Array) -> Array:
        """Gradient of Q in the coefficients, ``(R, p)``."""
        return (mass * (data.target - theta @ data.columns)) @ data.rows

    def curvature(self, data: SiteData, theta: Array, mass: Array) -> Array:
        """Largest eigenvalue (bounded) of the weighted second moments of the covariates, ``(R,)``."""
        return largest_eigenvalue_bound(second_moments(data, mass))

    def exact_step(self, data: SiteData, theta: Array, mass: Array) -> Array:
        """Weighted least squares, ``(R, p)``, with a ridge that only matters when a component holds too few rows."""
        return weighted_least_squares(data, mass, self.ridge)

    def draw_start(self, key: Array, data: SiteData, n_components: int) -> Array:
        """Least squares on small random subsets of rows, one per component, ``(R, p)``."""
        n_features, n_rows = data.columns.shape
        rows = draw_rows(key, data.row_weight, (n_components, 2 * n_features))
        mass = jnp.zeros((n_components, n_rows), dtype=data.columns.dtype)
        mass = mass.at[jnp.arange(n_components)[:, None], rows].add(1.0)
        return weighted_least_squares(data, mass, 1e-2)

    def n_statistics(self, n_parameters: int) -> int:
        """Half of a symmetric matrix, and a vector."""
        return n_parameters * (n_parameters + 1) // 2 + n_parameters

    def sufficient_statistics(self, data: SiteData, mass: Array) -> Array:
        """Weighted second moments of the covariates (upper triangle) and their products with y, ``(R, s)``."""
        rows, columns = jnp.triu_indices(data.columns.shape[0])
        cross = (mass * data.target) @ data.rows
        return jnp.concatenate([second_moments(data, mass)[:, rows, columns], cross], axis=1)

    def from_statistics(self, statistics: Array, theta: Array) -> Array:
        """Weighted least squares with the same ridge, ``(R, p)``.

        Statistics that carry noise may belong to no rows at all: along directions of negative curvature nothing is
        known, and the coefficient is 0.
        """
        n_features = theta.shape[1]
        rows, columns = jnp.triu_indices(n_features)
        half = jnp.zeros((len(theta), n_features, n_features), statistics.dtype)
        half = half.at[:, rows, columns].set(statistics[:, : len(rows)])
        values, axes = jnp.linalg.eigh(half + jnp.triu(half, 1).swapaxes(1, 2))
        mean_square = values.sum(axis=1) / n_features
        lift = jnp.where(mean_square > 0, self.ridge * mean_square, 1.0)[:, None]
        along = jnp.einsum("rpq,rp->rq", axes, statistics[:, len(rows) :])
        solved = jnp.where(values > 0, along / (jnp.maximum(values, 0.0) + lift), 0.0)
        return jnp.einsum("rpq,rq->rp", axes, solved)
