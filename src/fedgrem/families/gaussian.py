"""Gaussian components: with known identity covariance, the paper's Example 1, or with an estimated one."""

from dataclasses import dataclass
from math import log, pi
from typing import Literal, TypeAlias

import jax.numpy as jnp

from fedgrem.families.sampling import spread_rows
from fedgrem.kernels import gaps
from fedgrem.kernels import spread as spreads
from fedgrem.kernels.covariance import second_moments, white_log_density
from fedgrem.types import Array, SiteData

Covariance: TypeAlias = Literal["identity", "spherical", "diag", "tied", "full"]
COVARIANCES: tuple[Covariance, ...] = ("identity", "spherical", "diag", "tied", "full")
LEAST_MASS = 1e-3
"""Rows, at the least, that a covariance is divided by."""


@dataclass(frozen=True)
class Gaussian:
    """Components ``N(theta_r, Sigma)``.

    Parameters
    ----------
    covariance : "identity" is known and the paper's; "tied" is one matrix for all components, "full" one for each,
        "diag" and "spherical" are a component's variances, per feature or one for all. Where each component has its
        own, it counts a few rows of the pooled one (p + 2, or 2 of variances) as its own.
    reg_covar : added to every variance, in the units of the columns as the family sees them.
    """

    covariance: Covariance = "identity"
    reg_covar: float = 1e-6
    safe_step = True
    has_target = False
    start_tracks = 0
    path_steps = 10

    def n_parameters(self, n_features: int) -> int:
        """A mean per feature."""
        return n_features

    # -- density and M-step

    def log_density(self, data: SiteData, theta: Array, spread: Array | None = None) -> Array:
        """Log density of every row under every component, ``(R, n)``, from one matrix product where it can."""
        if data.observed is not None:
            return gaps.log_density(data.columns, data.observed, theta, self._covariances(theta, spread))
        x = data.columns
        constant = 0.5 * x.shape[0] * log(2.0 * pi)
        if spread is None:
            return _unit_log_density(x, theta) - constant
        if self.covariance == "tied":
            whitener = spreads.whitener(spread[0])
            log_scale = jnp.sum(jnp.log(jnp.diagonal(whitener)))
            return _unit_log_density(whitener @ x, theta @ whitener.T) + log_scale - constant
        if self.covariance == "full":
            return white_log_density(x, theta, spreads.whitener(spread))
        logs = jnp.broadcast_to(spread, theta.shape)
        precision = jnp.exp(-2.0 * jnp.clip(logs, -spreads.MOST, spreads.MOST))
        square = precision @ (x * x) - 2.0 * ((precision * theta) @ x)
        return -0.5 * square - (0.5 * jnp.sum(precision * theta * theta, axis=1) + logs.sum(axis=1))[:, None] - constant

    def relative_log_density(self, data: SiteData, theta: Array, spread: Array | None) -> tuple[Array, Array]:
        r"""Log densities ``(R, n)`` but for a part that a row's components have in common, and the sum of that part.

        With one covariance for all, :math:`x'\Sigma^{-1}x` is the same for every component. An E-step need not know it:
        one product of means and rows is left, and rows need not be divided by the noise in every round. Its sum over
        the rows, ``()``, follows from their scatter, which no round changes.
        """
        if self.covariance != "tied" or spread is None or data.observed is not None:
            return self.log_density(data, theta, spread), jnp.zeros((), dtype=data.columns.dtype)
        whitener = spreads.whitener(spread[0])
        middle, scatter = _about_middle(data)
        away = theta - middle
        slopes = (away @ whitener.T) @ whitener
        offset = jnp.sum(slopes * (middle + 0.5 * away), axis=1)
        log_scale = jnp.sum(jnp.log(jnp.diagonal(whitener))) - 0.5 * len(middle) * log(2.0 * pi)
        common = data.row_weight.sum() * log_scale - 0.5 * jnp.sum((whitener @ scatter) * whitener)
        return slopes @ data.columns - offset[:, None], common

    def q_gradient(self, data: SiteData, theta: Array, mass: Array, spread: Array | None = None) -> Array:
        """Gradient of Q in the means, in the metric of the noise, ``(R, p)``."""
        if data.observed is not None:
            return gaps.first_moment(data.columns, data.observed, theta, self._covariances(theta, spread), mass)
        return mass @ data.rows - mass.sum(axis=1)[:, None] * theta

    def curvature(self, data: SiteData, theta: Array, mass: Array) -> Array:
        """Q is quadratic with curvature equal to the mass a component holds, ``(R,)``."""
        return mass.sum(axis=1)

    def exact_step(self, data: SiteData, theta: Array, mass: Array, spread: Array | None = None) -> Array:
        """Weighted means, ``(R, p)``; a component that holds nothing stays where it is."""
        held = mass.sum(axis=1)[:, None]
        if data.observed is not None:
            return theta + self.q_gradient(data, theta, mass, spread) / jnp.where(held > 0, held, 1.0)
        return jnp.where(held > 0, mass @ data.rows / jnp.where(held > 0, held, 1.0), theta)

    def draw_start(self, key: Array, data: SiteData, n_components: int, spread: Array | None = None) -> Array:
        """Rows far from each other, by greedy k-means++."""
        if spread is None:
            return spread_rows(key, data, n_components)
        rows = spreads.in_noise_units(self.covariance, data.rows, spread[0])
        return self.from_noise_units(spread_rows(key, data._replace(columns=rows.T), n_components), spread[:1])

    # -- the spread

    def first_spread(self, data: SiteData, theta: Array) -> Array | None:
        """From the rows nearest to each component."""
        if self.covariance == "identity":
            return None
        score = _unit_log_density(data.columns, theta)
        nearest = jnp.argmax(score, axis=0)
        mass = jnp.where(nearest == jnp.arange(len(theta))[:, None], data.row_weight, 0.0)
        # A component with a single row has no covariance of its own: all begin with that of all.
        # Missing cells count as their column's middle here, as they do where starts are drawn.
        filled = data._replace(observed=None)
        covariance = self._pooled(self._scatter(filled, self.exact_step(filled, theta, mass), mass), mass.sum(axis=1))
        count = 1 if self.covariance == "tied" else len(theta)
        first = spreads.from_covariance(self.covariance, covariance)
        return jnp.broadcast_to(first, (count, *first.shape))

    def spread_step(self, data: SiteData, theta: Array, mass: Array, spread: Array | None) -> Array | None:
        """Covariances about ``theta``; a component that holds next to nothing has that of all."""
        if self.covariance == "identity" or spread is None:
            return None
        if data.observed is None:
            return self._from_scatter(self._scatter(data, theta, mass), mass.sum(axis=1))
        scatter = gaps.scatter(data.columns, data.observed, theta, self._covariances(theta, spread), mass)
        if self.covariance == "tied":
            scatter = scatter.sum(axis=0)
        elif self.covariance != "full":
            scatter = jnp.diagonal(scatter, axis1=1, axis2=2)
        return self._from_scatter(scatter, mass.sum(axis=1))

    def _covariances(self, theta: Array, spread: Array | None) -> Array:
        """Matrices ``(C, p, p)``, C = 1 where all components share one."""
        size = theta.shape[1]
        if spread is None:
            return jnp.eye(size, dtype=theta.dtype)[None]
        matrices: Array = spreads.to_covariance(self.covariance, spread, size)
        return matrices

    def _scatter(self, data: SiteData, theta: Array, mass: Array) -> Array:
        """``sum_i m_ri (x_i - theta_r)(x_i - theta_r)'``: (R, p, p), their sum over r, or their diagonals."""
        held, sums = mass.sum(axis=1), mass @ data.rows
        if self.covariance == "tied":
            # The masses of a row add up to its weight, whoever holds it: what does not depend on theta never changes.
            middle, total = _about_middle(data)
            away = theta - middle
            cross = away.T @ (sums - held[:, None] * middle)
            return total - cross - cross.T + (away.T * held) @ away
        if self.covariance == "full":
            cross = theta[:, :, None] * sums[:, None, :]
            square = held[:, None, None] * theta[:, :, None] * theta[:, None, :]
            return second_moments(data, mass) - cross - jnp.swapaxes(cross, 1, 2) + square
        return mass @ (data.rows * data.rows) - 2.0 * theta * sums + held[:, None] * theta * theta

    def _pooled(self, scatter: Array, held: Array) -> Array:
        """One covariance ``(p, p)`` for all components."""
        total = scatter if self.covariance == "tied" else scatter.sum(axis=0)
        matrix = total if total.ndim == 2 else jnp.diag(total)
        return self._lifted(matrix / jnp.maximum(held.sum(), LEAST_MASS))

    def _lifted(self, covariance: Array) -> Array:
        """``reg_covar`` more on the diagonal, and what rounding could have taken from it."""
        size = covariance.shape[-1]
        # Where features differ in scale by 1e8, the rounding of the largest must not drown the smallest: by feature.
        own = jnp.maximum(jnp.diagonal(covariance, axis1=-2, axis2=-1), 0.0)
        rounding = 1e-12 if covariance.dtype == jnp.float64 else 1e-5
        lift = self.reg_covar + rounding * own
        return covariance + lift[..., :, None] * jnp.eye(size, dtype=covariance.dtype)

    def _from_scatter(self, scatter: Array, held: Array) -> Array:
        if self.covariance == "tied":
            return spreads.from_covariance("tied", self._pooled(scatter, held))[None]
        # A component of a few rows would shrink to a point; a few rows of the pooled covariance keep it from that.
        pooled = scatter.sum(axis=0) / jnp.maximum(held.sum(), LEAST_MASS)
        more = scatter.shape[-1] + 2.0 if self.covariance == "full" else 2.0
        if self.covariance == "full":
            covariance = (scatter + more * pooled) / (held + more)[:, None, None]
            return spreads.from_covariance("full", self._lifted(covariance))
        variance = (jnp.maximum(scatter, 0.0) + more * pooled) / (held + more)[:, None] + self.reg_covar
        if self.covariance == "spherical":
            variance = variance.mean(axis=1, keepdims=True)
        return 0.5 * jnp.log(variance)

    def in_noise_units(self, theta: Array, spread: Array | None) -> Array:
        """Means divided by a square root of the covariance."""
        return theta if spread is None else spreads.in_noise_units(self.covariance, theta, spread)

    def from_noise_units(self, theta: Array, spread: Array | None) -> Array:
        """The way back."""
        return theta if spread is None else spreads.from_noise_units(self.covariance, theta, spread)

    def relative_spread(self, spread: Array, reference: Array, n_features: int) -> Array:
        """Coordinates about a reference."""
        return spreads.relative_spread(self.covariance, spread, reference, n_features)

    def absolute_spread(self, coordinates: Array, reference: Array, n_features: int) -> Array:
        """The way back."""
        return spreads.absolute_spread(self.covariance, coordinates, reference, n_features)

    def average_spread(self, spread: Array, share: Array) -> Array:
        """The spread of the mean covariance."""
        if self.covariance in spreads.CHOLESKY:
            covariance = spreads.to_covariance(self.covariance, spread, 0)
            return spreads.from_covariance(self.covariance, jnp.einsum("k,k...->...", share, covariance))
        return spreads.average_log_scales(spread, share)

    def structured(self, covariance: Array, share: Array) -> Array | None:
        """The spread ``(C, s)`` of this structure for a covariance per component, weighted by ``share`` (R,)."""
        if self.covariance == "identity":
            return None
        if self.covariance == "tied":
            covariance = jnp.einsum("r,rpq->pq", share / share.sum(), covariance)[None]
        return spreads.from_covariance(self.covariance, covariance)

    # -- scores of rows whose component is known

    def complete_scores(self, data: SiteData, theta: Array, spread: Array | None) -> tuple[Array, Array | None]:
        """In the means, and about the present covariance: in logs of scales, or in entries of ``L^-1 L'``."""
        away = data.columns - theta[:, :, None]
        if spread is None:
            return away, None
        if self.covariance in spreads.CHOLESKY:
            whitener = gaps.by_component(theta, spreads.whitener(spread))
            white = whitener @ away
            rows, columns = jnp.tril_indices(theta.shape[1])
            products = white[:, rows] * white[:, columns] - (rows == columns)[:, None]
            return jnp.swapaxes(whitener, 1, 2) @ white, products
        scale = jnp.exp(-jnp.clip(jnp.broadcast_to(spread, theta.shape), -spreads.MOST, spreads.MOST))[:, :, None]
        white = away * scale
        squares = white * white - 1.0
        return white * scale, squares.sum(axis=1, keepdims=True) if self.covariance == "spherical" else squares

    def complete_information(
        self, data: SiteData, theta: Array, mass: Array, spread: Array | None
    ) -> tuple[Array, Array | None]:
        """A row tells one unit of every mean, in units of the noise, and one or two of the covariance."""
        held, size = mass.sum(axis=1), theta.shape[1]
        identity = jnp.eye(size, dtype=theta.dtype)
        if spread is None:
            return held[:, None, None] * identity, None
        counted = (held.sum()[None] if len(spread) == 1 and self.covariance == "tied" else held)[:, None]
        # A component without rows has a noise all the same: one row's worth keeps its matrix regular.
        counted = jnp.maximum(counted, 1.0)
        if self.covariance in spreads.CHOLESKY:
            whitener = gaps.by_component(theta, spreads.whitener(spread))
            rows, columns = jnp.tril_indices(size)
            precision = jnp.swapaxes(whitener, 1, 2) @ whitener
            return held[:, None, None] * precision, counted * (1.0 + (rows == columns))
        precision = jnp.exp(-2.0 * jnp.clip(jnp.broadcast_to(spread, theta.shape), -spreads.MOST, spreads.MOST))
        of_spread = jnp.full(spread.shape, 2.0 * (size if self.covariance == "spherical" else 1))
        return (held[:, None] * precision)[:, :, None] * identity, counted * of_spread

    # -- sufficient statistics

    def n_statistics(self, n_parameters: int) -> int:
        """The mass a component holds, its weighted sum of rows and, with a covariance, half of their products."""
        products = 0 if self.covariance == "identity" else n_parameters * (n_parameters + 1) // 2
        return 1 + n_parameters + products

    def sufficient_statistics(self, data: SiteData, mass: Array) -> Array:
        """Mass, weighted sums and products, ``(R, s)``."""
        parts = [mass.sum(axis=1)[:, None], mass @ data.rows]
        if self.covariance != "identity":
            rows, columns = jnp.tril_indices(data.columns.shape[0])
            parts.append(self._products(data, mass)[:, rows, columns])
        return jnp.concatenate(parts, axis=1)

    def _products(self, data: SiteData, mass: Array) -> Array:
        """``(R, p, p)``, of which only the sum over components matters where they share one covariance.

        That sum does not depend on who holds which row: each component gets its share of it, at a tenth of the cost.
        """
        if self.covariance != "tied":
            return second_moments(data, mass)
        total = (data.columns * data.row_weight) @ data.rows
        held = mass.sum(axis=1)
        return (held / held.sum())[:, None, None] * total

    def from_statistics(self, statistics: Array, theta: Array) -> Array:
        """Weighted means, ``(R, p)``; a component that holds nothing stays where it is."""
        held, sums = statistics[:, :1], statistics[:, 1 : 1 + theta.shape[1]]
        return jnp.where(held > 0, sums / jnp.where(held > 0, held, 1.0), theta)

    def spread_from_statistics(self, statistics: Array, theta: Array, spread: Array | None) -> Array | None:
        """Covariances; directions in which noisy statistics know no variance get ``reg_covar``."""
        if self.covariance == "identity" or spread is None:
            return None
        size = theta.shape[1]
        held, sums, half = statistics[:, 0], statistics[:, 1 : 1 + size], statistics[:, 1 + size :]
        rows, columns = jnp.indices((size, size))
        place = jnp.where(rows >= columns, rows * (rows + 1) // 2 + columns, columns * (columns + 1) // 2 + rows)
        cross = theta[:, :, None] * sums[:, None, :]
        square = held[:, None, None] * theta[:, :, None] * theta[:, None, :]
        scatter = half[:, place] - cross - jnp.swapaxes(cross, 1, 2) + square
        held = jnp.maximum(held, 0.0)
        values, axes = jnp.linalg.eigh(scatter.sum(axis=0)[None] if self.covariance == "tied" else scatter)
        scatter = jnp.einsum("rpa,ra,rqa->rpq", axes, jnp.maximum(values, 0.0), axes)
        if self.covariance == "tied":
            return self._from_scatter(scatter[0], held)
        if self.covariance != "full":
            scatter = jnp.diagonal(scatter, axis1=1, axis2=2)
        return self._from_scatter(scatter, held)


def _about_middle(data: SiteData) -> tuple[Array, Array]:
    """The mean of a site's rows, ``(p,)``, and their scatter about it, ``(p, p)``."""
    middle = data.columns @ data.row_weight / data.row_weight.sum()
    away = data.columns - middle[:, None]
    return middle, (away * data.row_weight) @ away.T


def _unit_log_density(x: Array, theta: Array) -> Array:
    """Under unit covariance and but for the constant, ``(R, n)``."""
    return theta @ x - 0.5 * jnp.sum(theta * theta, axis=1)[:, None] - 0.5 * jnp.sum(x * x, axis=0)
