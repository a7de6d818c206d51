"""Continuous columns of a table: Gaussian given the component, each by itself or with a covariance among them.

By itself, a column that is missing contributes nothing; with a covariance, see :mod:`fedgrem.families.gaps`.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from fedgrem.families.covariance import LEAST_MASS, Scale, lifted
from fedgrem.kernels.triangle import products, symmetric
from fedgrem.types import Array


@dataclass(frozen=True)
class Apart:
    """Columns with a variance each, a part like those of other types; ``structure`` is a ``Diagonal``."""

    columns: tuple[int, ...]
    structure: Any

    @property
    def n_parameters(self) -> int:
        """A mean per column."""
        return len(self.columns)

    def features(self, rows: Array, seen: Array) -> Array:
        """Whether a cell is there, the cell and its square."""
        there = seen[..., self.columns].astype(float)
        cells = there * rows[..., self.columns]
        return np.concatenate([there, cells, cells * cells], axis=-1)

    def natural(self, theta: Array, scale: Scale) -> Array:
        """By what these are multiplied."""
        slopes = theta * scale.precision
        logs = np.broadcast_to(np.log(scale.factor), theta.shape)
        return np.concatenate(
            [-0.5 * slopes * theta - logs, slopes, np.broadcast_to(-0.5 * scale.precision, theta.shape)], axis=-1
        )

    def solve(self, sums: Array, theta: Array, prior_rows: float) -> tuple[Array, Array]:
        """Means."""
        seen, first, _ = np.split(sums, 3, axis=-1)
        return np.where(seen > 0, first / np.where(seen > 0, seen, 1.0), theta), seen

    def noise_step(self, sums: Array, theta: Array, noise: Array, prior_rows: float, reg_covar: float) -> Array:
        """Variances about ``theta``; a column without a cell keeps its own."""
        seen, first, second = np.split(sums, 3, axis=-1)
        squares = np.maximum(second - 2.0 * theta * first + seen * theta * theta, 0.0)
        cells = seen.sum(axis=-2, keepdims=True)
        every = squares.sum(axis=-2, keepdims=True) / np.maximum(cells, LEAST_MASS)
        variance = (squares + prior_rows * every) / np.maximum(seen + prior_rows, LEAST_MASS) + reg_covar
        return np.where(cells > 0, 0.5 * np.log(variance), noise)

    def curved(self, sums: Array, theta: Array, scale: Scale) -> Array:
        """Cells over variances."""
        seen = np.split(sums, 3, axis=-1)[0]
        return np.asarray((seen * scale.precision)[..., None] * np.eye(theta.shape[-1]))

    def of_noise(self, sums: Array) -> Array:
        """(..., R, s) what the cells tell of log standard deviations."""
        return np.asarray(2.0 * np.maximum(np.split(sums, 3, axis=-1)[0], 1.0))

    def scores(self, rows: Array, seen: Array, theta: Array, scale: Scale) -> tuple[Array, Array]:
        """(m, q), (m, s) in means and log standard deviations, for the scale of one component, ``(p,)``."""
        there = seen[:, self.columns]
        white = (rows[:, self.columns] - theta) * scale.white
        return there * white * scale.white, there * (white * white - 1.0)


@dataclass(frozen=True)
class Together:
    """Columns with a covariance among them; ``structure`` is ``Tied`` or ``Full``."""

    columns: tuple[int, ...]
    structure: Any

    @property
    def n_parameters(self) -> int:
        """A mean per column."""
        return len(self.columns)

    def features(self, rows: Array) -> Array:
        """Cells and their products; the rows held stand for those that are there."""
        cells = rows[..., self.columns]
        return np.concatenate([cells, products(cells)], axis=-1)

    def natural(self, theta: Array, precision: Array) -> tuple[Array, Array]:
        """By what 1 is multiplied but for the determinant, and by what these are."""
        slopes = (precision @ theta[..., None])[..., 0]
        quadratic = self.structure.quadratic(precision)
        wide = np.broadcast_to(quadratic, (*theta.shape[:-1], quadratic.shape[-1]))
        return -0.5 * np.vecdot(slopes, theta), np.concatenate([slopes, wide], axis=-1)

    def solve(self, held: Array, sums: Array, theta: Array) -> tuple[Array, Array]:
        """Means of whole rows."""
        wide = np.broadcast_to(held[..., None], theta.shape)
        return np.where(wide > 0, sums[..., : theta.shape[-1]] / np.where(wide > 0, wide, 1.0), theta), wide

    def noise_step(self, held: Array, sums: Array, theta: Array, prior_rows: float, reg_covar: float) -> Array:
        """Covariances about ``theta``; a component of few rows has some of those of all."""
        size = theta.shape[-1]
        cross = theta[..., :, None] * sums[..., None, :size]
        square = held[..., None, None] * theta[..., :, None] * theta[..., None, :]
        scatter = symmetric(sums[..., size:]) - cross - cross.swapaxes(-1, -2) + square
        every = scatter.sum(axis=-3, keepdims=True)
        every = every / np.maximum(held.sum(axis=-1), LEAST_MASS)[..., None, None, None]
        if self.structure.shared:
            return np.asarray(self.structure.from_matrices(lifted(every, reg_covar)))
        more = size + prior_rows if prior_rows > 0 else 0.0
        mass = np.maximum(held + more, LEAST_MASS)[..., None, None]
        return np.asarray(self.structure.from_matrices(lifted((scatter + more * every) / mass, reg_covar)))
