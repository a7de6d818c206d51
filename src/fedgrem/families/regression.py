"""Linear-regression components: with known unit noise, the paper's Example 2, or with an estimated one."""

from dataclasses import dataclass
from math import log, pi
from typing import Literal, TypeAlias

import jax.numpy as jnp

from fedgrem.families.base import largest_eigenvalue_bound
from fedgrem.families.sampling import draw_rows
from fedgrem.kernels import spread as spreads
from fedgrem.kernels.covariance import second_moments
from fedgrem.kernels.triangular import solve_positive
from fedgrem.types import Array, SiteData

Noise: TypeAlias = Literal["unit", "shared", "component"]
NOISES: tuple[Noise, ...] = ("unit", "shared", "component")
LEAST_MASS = 1e-3
"""Rows, at the least, that a variance is divided by."""
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


@dataclass(frozen=True)
class LinearRegression:
    """Components ``y = x' theta_r + N(0, sigma^2)``; the covariates are taken as they are.

    Parameters
    ----------
    noise : "unit" is known and the paper's; "shared" is one variance for all components, "component" one for each,
        which counts q + 1 rows of the pooled one as its own.
    ridge : of the exact step, relative to the covariates' mean square.
    reg_covar : added to every noise variance.
    """

    ridge: float = 1e-6
    noise: Noise = "unit"
    reg_covar: float = 1e-6
    safe_step = True
    has_target = True
    start_tracks = 12
    path_steps = 30

    def n_parameters(self, n_features: int) -> int:
        """A coefficient per covariate."""
        return n_features

    def log_density(self, data: SiteData, theta: Array, spread: Array | None = None) -> Array:
        """Log density of every response given its covariates, ``(R, n)``."""
        residual = data.target - theta @ data.columns
        if spread is None:
            return -0.5 * (residual * residual + log(2.0 * pi))
        logs = jnp.clip(spread, -spreads.MOST, spreads.MOST)
        residual = residual * jnp.exp(-logs)
        return -0.5 * (residual * residual + log(2.0 * pi)) - logs

    def q_gradient(self, data: SiteData, theta: Array, mass: Array, spread: Array | None = None) -> Array:
        """Gradient of Q in the coefficients, in units of the noise, ``(R, p)``."""
        return (mass * (data.target - theta @ data.columns)) @ data.rows

    def curvature(self, data: SiteData, theta: Array, mass: Array) -> Array:
        """Largest eigenvalue (bounded) of the weighted second moments of the covariates, ``(R,)``."""
        return largest_eigenvalue_bound(second_moments(data, mass))

    def exact_step(self, data: SiteData, theta: Array, mass: Array, spread: Array | None = None) -> Array:
        """Weighted least squares, ``(R, p)``, with a ridge that only matters when a component holds too few rows."""
        return weighted_least_squares(data, mass, self.ridge)

    # -- the noise: spreads are (1, 1) or (R, 1) logs of standard deviations

    def first_spread(self, data: SiteData, theta: Array) -> Array | None:
        """From every row's smallest residual."""
        if self.noise == "unit":
            return None
        residual = (data.target - theta @ data.columns) ** 2
        nearest = jnp.argmin(residual, axis=0)
        mass = jnp.where(nearest == jnp.arange(len(theta))[:, None], data.row_weight, 0.0)
        first = 0.5 * jnp.log(jnp.sum(mass * residual) / data.row_weight.sum() + self.reg_covar)
        return jnp.full((1 if self.noise == "shared" else len(theta), 1), first)

    def spread_step(self, data: SiteData, theta: Array, mass: Array, spread: Array | None) -> Array | None:
        """Mean squared residuals; a component that holds next to nothing has the noise of all."""
        if spread is None:
            return None
        residual = data.target - theta @ data.columns
        return self._from_squares(jnp.sum(mass * residual * residual, axis=1), mass.sum(axis=1), theta.shape[1])

    def _from_squares(self, squares: Array, held: Array, n_parameters: int) -> Array:
        if self.noise == "shared":
            squares, held = squares.sum()[None], held.sum()[None]
        squares = jnp.maximum(squares, 0.0)
        # A component of as many rows as coefficients has no residuals; as many rows of the pooled noise keep it honest.
        more = 0.0 if self.noise == "shared" else n_parameters + 1.0
        pooled = squares.sum() / jnp.maximum(held.sum(), LEAST_MASS)
        variance = (squares + more * pooled) / jnp.maximum(held + more, LEAST_MASS) + self.reg_covar
        return 0.5 * jnp.log(variance)[:, None]

    def in_noise_units(self, theta: Array, spread: Array | None) -> Array:
        """Coefficients divided by the noise."""
        return theta if spread is None else spreads.in_noise_units("diag", theta, spread)

    def from_noise_units(self, theta: Array, spread: Array | None) -> Array:
        """The way back."""
        return theta if spread is None else spreads.from_noise_units("diag", theta, spread)

    def relative_spread(self, spread: Array, reference: Array, n_features: int) -> Array:
        """Coordinates about a reference."""
        return spreads.relative_spread("diag", spread, reference, n_features)

    def absolute_spread(self, coordinates: Array, reference: Array, n_features: int) -> Array:
        """The way back."""
        return spreads.absolute_spread("diag", coordinates, reference, n_features)

    def average_spread(self, spread: Array, share: Array) -> Array:
        """The spread of the mean variance."""
        return spreads.average_log_scales(spread, share)

    def draw_start(self, key: Array, data: SiteData, n_components: int, spread: Array | None = None) -> Array:
        """Least squares on small random subsets of rows, one per component, ``(R, p)``."""
        n_features, n_rows = data.columns.shape
        rows = draw_rows(key, data.row_weight, (n_components, 2 * n_features))
        mass = jnp.zeros((n_components, n_rows), dtype=data.columns.dtype)
        mass = mass.at[jnp.arange(n_components)[:, None], rows].add(1.0)
        return weighted_least_squares(data, mass, 1e-2)

    def complete_scores(self, data: SiteData, theta: Array, spread: Array | None) -> tuple[Array, Array | None]:
        """In the coefficients, and in the log of the noise."""
        residual = data.target - theta @ data.columns
        if spread is None:
            return residual[:, None] * data.columns, None
        scale = jnp.exp(-jnp.clip(spread, -spreads.MOST, spreads.MOST))
        white = residual * scale
        return (white * scale)[:, None] * data.columns, (white * white - 1.0)[:, None]

    def complete_information(
        self, data: SiteData, theta: Array, mass: Array, spread: Array | None
    ) -> tuple[Array, Array | None]:
        """Second moments of the covariates, in units of the noise, and two units of the log noise per row."""
        moments = second_moments(data, mass)
        if spread is None:
            return moments, None
        held = mass.sum(axis=1)
        counted = jnp.maximum(held.sum()[None] if self.noise == "shared" else held, 1.0)
        precision = jnp.exp(-2.0 * jnp.clip(spread, -spreads.MOST, spreads.MOST))
        return moments * precision[:, :, None], 2.0 * counted[:, None]

    def n_statistics(self, n_parameters: int) -> int:
        """Half of a symmetric matrix and a vector; with a noise to estimate, the mass and the sum of squares."""
        return n_parameters * (n_parameters + 1) // 2 + n_parameters + (0 if self.noise == "unit" else 2)

    def sufficient_statistics(self, data: SiteData, mass: Array) -> Array:
        """Weighted second moments of the covariates (upper triangle) and their products with y, ``(R, s)``."""
        rows, columns = jnp.triu_indices(data.columns.shape[0])
        parts = [second_moments(data, mass)[:, rows, columns], (mass * data.target) @ data.rows]
        if self.noise != "unit":
            parts.append(jnp.stack([mass.sum(axis=1), mass @ (data.target * data.target)], axis=1))
        return jnp.concatenate(parts, axis=1)

    def from_statistics(self, statistics: Array, theta: Array) -> Array:
        """Weighted least squares with the same ridge, ``(R, p)``.

        Statistics that carry noise may belong to no rows at all: along directions of negative curvature nothing is
        known, and the coefficient is 0.
        """
        n_features = theta.shape[1]
        products, cross = self._parts(statistics, n_features)
        values, axes = jnp.linalg.eigh(products)
        mean_square = values.sum(axis=1) / n_features
        lift = jnp.where(mean_square > 0, self.ridge * mean_square, 1.0)[:, None]
        along = jnp.einsum("rpq,rp->rq", axes, cross)
        solved = jnp.where(values > 0, along / (jnp.maximum(values, 0.0) + lift), 0.0)
        return jnp.einsum("rpq,rq->rp", axes, solved)

    def spread_from_statistics(self, statistics: Array, theta: Array, spread: Array | None) -> Array | None:
        """Mean squared residuals."""
        if spread is None:
            return None
        products, cross = self._parts(statistics, theta.shape[1])
        held, squares = statistics[:, -2], statistics[:, -1]
        squares = squares - 2.0 * jnp.sum(theta * cross, axis=1) + jnp.einsum("rp,rpq,rq->r", theta, products, theta)
        return self._from_squares(squares, jnp.maximum(held, 0.0), theta.shape[1])

    @staticmethod
    def _parts(statistics: Array, n_features: int) -> tuple[Array, Array]:
        """Second moments of the covariates ``(R, p, p)`` and their products with y, ``(R, p)``."""
        rows, columns = jnp.triu_indices(n_features)
        half = jnp.zeros((len(statistics), n_features, n_features), statistics.dtype)
        half = half.at[:, rows, columns].set(statistics[:, : len(rows)])
        return half + jnp.triu(half, 1).swapaxes(1, 2), statistics[:, len(rows) : len(rows) + n_features]
