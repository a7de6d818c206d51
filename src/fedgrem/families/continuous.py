r"""Continuous columns of a table: Gaussian given the component, each by itself or with a covariance among them.

By itself, a column that is missing contributes nothing. With a covariance, rows of one pattern of missing cells share
the precision :math:`G = M (M \Sigma M + I - M)^{-1} M` of what is seen of them (M says which cells are), so that both
their log densities and the sums of what is expected of the whole rows follow from sums of the cells that are there.
"""

from dataclasses import dataclass
from math import log, pi
from typing import Any, NamedTuple

import numpy as np

from fedgrem.data.stack import Stack, scratch
from fedgrem.families.covariance import LEAST_MASS, Scale, lifted
from fedgrem.kernels.triangle import lower, products, symmetric
from fedgrem.types import Array

LOG_2PI = log(2.0 * pi)


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

    def features(self, rows: Array, seen: Array) -> Array:
        """Cells and their products, zeros for a cell that is missing; the rows held stand for those that are there."""
        cells = rows[..., self.columns] * seen[..., self.columns]
        return np.concatenate([cells, products(cells)], axis=-1)

    def natural(self, theta: Array, precision: Array) -> tuple[Array, Array]:
        """By what 1 is multiplied but for the determinant, and by what these are."""
        slopes = (precision @ theta[..., None])[..., 0]
        i, j, diagonal = lower(theta.shape[-1])
        quadratic = precision[..., i, j] * np.where(diagonal, -0.5, -1.0)
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


class Pattern(NamedTuple):
    """Rows of one site that lack the same cells."""

    seen: Array
    """(p,) 1 where a cell is there."""
    places: Array
    """(m,) rows, in order."""


class Listed(list[Any]):
    """Per-site values that are cut like arrays."""

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return Listed(super().__getitem__(index))
        if isinstance(index, int | np.integer):
            return super().__getitem__(int(index))
        return Listed(super(Listed, self).__getitem__(int(k)) for k in index)


def patterns_of(stack: Stack, columns: tuple[int, ...]) -> list[list[Pattern]]:
    """Of every site, found once."""

    def make(whole: Stack) -> Listed:
        assert whole.observed is not None
        found = Listed()
        for seen in whole.observed[..., columns]:
            every, of_row = np.unique(seen, axis=0, return_inverse=True)
            of_row = of_row.reshape(-1)
            found.append([Pattern(one.astype(float), np.flatnonzero(of_row == u)) for u, one in enumerate(every)])
        return found

    listed: list[list[Pattern]] = stack.derive(("patterns", columns), make)
    return listed


class Precision(NamedTuple):
    """What is seen of the rows of one site's patterns, U of them."""

    matrix: Array
    """(..., C, U, p, p) G"""
    log_scale: Array
    """(..., C, U) half the log determinant of the covariance of what is seen."""


def precisions(patterns: list[Pattern], covariance: Array) -> Precision:
    """Of one site, for covariances ``(..., C, p, p)``."""
    seen = np.stack([pattern.seen for pattern in patterns])
    both = seen[:, :, None] * seen[:, None]
    matrix = covariance[..., None, :, :] * both + (1.0 - seen)[:, :, None] * np.eye(seen.shape[1])
    return Precision(np.linalg.inv(matrix) * both, 0.5 * np.linalg.slogdet(matrix)[1])


class GapsTerm:
    """Correlated columns of which cells are missing, under all fits of a stack."""

    def __init__(
        self, part: Together, features: Array, patterns: list[list[Pattern]], theta: Array, covariance: Array
    ) -> None:
        self._features, self._patterns = features, patterns
        c, size = len(theta), theta.shape[-1]
        self._theta = theta.reshape(c, -1, size)
        shape = (*theta.shape[:-1], size, size)
        self._precision, self._offset, self._slopes = [], [], []
        self._covariance = np.broadcast_to(covariance, shape).reshape(c, -1, size, size)
        for k, own in enumerate(patterns):
            found = precisions(own, covariance[k])
            n_patterns = len(own)
            matrix = np.broadcast_to(found.matrix, (*shape[1:-2], n_patterns, size, size))
            matrix = matrix.reshape(-1, n_patterns, size, size)
            wide = np.broadcast_to(self._theta[k, :, None], (*matrix.shape[:2], size))
            constant, slopes = part.natural(wide, matrix)
            scale = np.broadcast_to(found.log_scale, (*shape[1:-2], n_patterns)).reshape(-1, n_patterns)
            self._precision.append(matrix)
            self._offset.append(constant - scale)
            self._slopes.append(slopes)

    def _here(self, k: int, place: slice) -> list[tuple[int, Array, Array]]:
        """Patterns with rows in this block: number, places in the block and in the stack."""
        found = []
        for u, pattern in enumerate(self._patterns[k]):
            first, last = np.searchsorted(pattern.places, [place.start, place.stop])
            if last > first:
                places = pattern.places[first:last]
                found.append((u, places - place.start, places))
        return found

    def density(self, place: slice) -> Array:
        """Log densities, ``(c, B R, n)``."""
        found = np.empty((*self._theta.shape[:2], place.stop - place.start))
        for k, slopes in enumerate(self._slopes):
            for u, at, rows in self._here(k, place):
                value = slopes[:, u] @ self._features[k, rows].T
                value += self._offset[k][:, u, None]
                found[k][:, at] = value
        return found

    def sums(self, mass: Array, place: slice) -> Array:
        """(c, B R, t) cells and products as they are expected given what is seen."""
        size = self._theta.shape[-1]
        i, j, _ = lower(size)
        found = np.empty((*mass.shape[:2], size + len(i)))
        pulled = scratch("gaps", (mass.shape[1], mass.shape[2], size))
        for k, precision in enumerate(self._precision):
            theta, covariance = self._theta[k], self._covariance[k]
            by_pattern = np.zeros(precision.shape[:2])
            for u, at, rows in self._here(k, place):
                pulled[:, at] = (self._features[k, rows, :size] - theta[:, None]) @ precision[:, u]
                by_pattern[:, u] = mass[k][:, at].sum(axis=-1)
            # With g = G (x - theta), a row is expected at theta + S g, with the covariance S - S G S about it.
            held = by_pattern.sum(axis=-1)
            shift = (covariance @ (mass[k][:, None] @ pulled).swapaxes(-1, -2))[..., 0]
            known = (by_pattern[:, None] @ precision.reshape(*by_pattern.shape, -1))[:, 0].reshape(-1, size, size)
            second = (pulled * mass[k][..., None]).swapaxes(-1, -2) @ pulled
            raw = covariance @ (second - known) @ covariance + held[:, None, None] * covariance
            cross = theta[:, :, None] * shift[:, None]
            raw += cross + cross.swapaxes(-1, -2) + held[:, None, None] * theta[:, :, None] * theta[:, None]
            found[k] = np.concatenate([shift + held[:, None] * theta, raw[:, i, j]], axis=-1)
        return found
