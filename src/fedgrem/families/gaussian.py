"""Gaussian components with known identity covariance: the paper's Example 1."""

from dataclasses import dataclass
from math import log, pi

import jax.numpy as jnp

from fedgrem.families.sampling import spread_rows
from fedgrem.types import Array, SiteData


@dataclass(frozen=True, slots=True)
class Gaussian:
    """Components ``N(theta_r, I)``: the means are unknown, the covariance is not."""

    safe_step = True
    has_target = False
    start_tracks = 0

    def n_parameters(self, n_features: int) -> int:
        """A mean per feature."""
        return n_features

    def log_density(self, data: SiteData, theta: Array) -> Array:
        """Log density of every row under every component, ``(R, n)``, from one matrix product."""
        x = data.columns
        constant = 0.5 * (jnp.sum(x * x, axis=0) + x.shape[0] * log(2.0 * pi))
        return theta @ x - 0.5 * jnp.sum(theta * theta, axis=1)[:, None] - constant

    def q_gradient(self, data: SiteData, theta: Array, mass: Array) -> Array:
        """Gradient of Q in the means, ``(R, p)``."""
        return mass @ data.rows - mass.sum(axis=1)[:, None] * theta

    def curvature(self, data: SiteData, theta: Array, mass: Array) -> Array:
        """Q is quadratic with curvature equal to the mass a component holds, ``(R,)``."""
        return mass.sum(axis=1)

    def exact_step(self, data: SiteData, theta: Array, mass: Array) -> Array:
        """Weighted means, ``(R, p)``; a component that holds nothing stays where it is."""
        held = mass.sum(axis=1)[:, None]
        return jnp.where(held > 0, mass @ data.rows / jnp.where(held > 0, held, 1.0), theta)

    def draw_start(self, key: Array, data: SiteData, n_components: int) -> Array:
        """Rows far from each other, by greedy k-means++."""
        return spread_rows(key, data, n_components)

    def n_statistics(self, n_parameters: int) -> int:
        """The mass a component holds, and its weighted sum of rows."""
        return 1 + n_parameters

    def sufficient_statistics(self, data: SiteData, mass: Array) -> Array:
        """Mass and weighted sums, ``(R, 1 + p)``."""
        return jnp.concatenate([mass.sum(axis=1)[:, None], mass @ data.rows], axis=1)

    def from_statistics(self, statistics: Array, theta: Array) -> Array:
        """Weighted means, ``(R, p)``; a component that holds nothing stays where it is."""
        held = statistics[:, :1]
        return jnp.where(held > 0, statistics[:, 1:] / jnp.where(held > 0, held, 1.0), theta)
