"""Linear-regression components: with known unit noise, the paper's Example 2, or with an estimated one."""

from collections.abc import Callable
from dataclasses import dataclass
from math import log, pi
from typing import Any, ClassVar, Literal, TypeAlias

import numpy as np

from fedgrem.data.stack import Stack
from fedgrem.families import bounded, concentrated
from fedgrem.families.base import ExponentialFamily, kept_by_few, largest_eigenvalue_bound, log_weights, with_ones
from fedgrem.families.covariance import LEAST_MASS, MOST, Diagonal
from fedgrem.families.information import louis
from fedgrem.families.seeding import draw_rows
from fedgrem.kernels.triangle import lower, matrix_size, products, symmetric
from fedgrem.types import Array, Params, Sums

Noise: TypeAlias = Literal["unit", "shared", "component"]
NOISES: tuple[Noise, ...] = ("unit", "shared", "component")
EMPTY = 1e-12
"""The mass, in rows, below which a component's coefficients go to zero instead of to whatever rounding makes them."""
START_RIDGE = 1e-2
_LOGS = Diagonal()


@dataclass(frozen=True)
class LinearRegression(ExponentialFamily):
    """Components ``y = x' theta_r + N(0, sigma^2)``; the covariates are taken as they are.

    Features are ``(1, x x', x y)``, and ``y^2`` where components differ in their noise: elsewhere that is a part of the
    row alone, and a large one. A noise is ``(C, 1)`` logs of standard deviations.

    Parameters
    ----------
    noise : "unit" is known and the paper's; "shared" is one variance for all components, "component" one for each,
        which counts q + 1 rows of the pooled one as its own.
    ridge : of the exact M-step, relative to the covariates' mean square.
    reg_covar : added to every noise variance.
    robust_rows : whether what a row says is bounded in units of its component's noise.
    """

    name: ClassVar[str] = "regression"
    has_target: ClassVar[bool] = True
    joint_starts: ClassVar[int] = 12
    path_steps: ClassVar[int] = 6
    steps_of_q: ClassVar[int] = 5
    noise: Noise = "unit"
    ridge: float = 1e-6
    reg_covar: float = 1e-6
    robust_rows: bool = False

    def n_parameters(self, n_features: int) -> int:
        """A coefficient per covariate."""
        return n_features

    def noise_shape(self, n_components: int, n_features: int) -> tuple[int, int] | None:
        """(1, 1) or (R, 1)."""
        return {"unit": None, "shared": (1, 1), "component": (n_components, 1)}[self.noise]

    # -- features and natural parameters

    def features(self, stack: Stack) -> Array:
        """``(1, x x', x y, y^2)``, the products by their lower triangle, the last where it is a component's own."""
        assert stack.target is not None
        y = stack.target[..., None]
        parts = [products(stack.rows), stack.rows * y]
        return with_ones(np.concatenate(parts if self._common else [*parts, y * y], axis=-1))

    @property
    def _common(self) -> bool:
        """Whether all components have one noise."""
        return self.noise != "component"

    def rest(self, stack: Stack) -> Array:
        """With one noise for all, ``y^2`` is no component's."""
        assert stack.target is not None
        if not self._common:
            return super().rest(stack)
        return np.asarray((stack.weight * stack.target**2).sum(axis=1, keepdims=True))

    def open(self, stack: Stack | None, noise: Array | None, n_features: int) -> Any:
        """(..., C) logs of standard deviations, within bounds."""
        return None if noise is None else np.clip(noise[..., 0], -MOST, MOST)

    def natural(self, weights: Array, theta: Array, scale: Array | None) -> Array:
        """``log w - log sigma, -theta theta' / 2, theta, -1/2``, the last three over the variance."""
        i, _, diagonal = lower(theta.shape[-1])
        last = 1 + len(i) + theta.shape[-1]
        eta = np.empty((*theta.shape[:-1], last if self._common else 1 + last))
        eta[..., 0] = log_weights(weights)
        np.multiply(products(theta), np.where(diagonal, -0.5, -1.0), out=eta[..., 1 : 1 + len(i)])
        eta[..., 1 + len(i) : last] = theta
        eta[..., last:] = -0.5
        if scale is not None:
            eta[..., 0] -= scale
            eta[..., 1:] *= np.exp(-2.0 * scale)[..., None]
        return eta

    def rows_part(self, rest: Array, n_rows: Array, scale: Array | None) -> Array:
        """The constant of every row, and its square where all components have one noise."""
        constant = -0.5 * n_rows * log(2.0 * pi)
        return np.asarray(constant - 0.5 * self._over_variance(rest[..., 0], scale) if self._common else constant)

    def row_part(self, stack: Stack, scale: Array | None, lead: tuple[int, ...]) -> Array:
        """The same of every row."""
        assert stack.target is not None
        constant = -0.5 * log(2.0 * pi)
        if not self._common:
            return np.asarray(constant)
        square = stack.target.reshape(len(stack), *(1,) * (len(lead) - 1), -1) ** 2
        return np.asarray(constant - 0.5 * self._over_variance(square, scale))

    def crest(self, stack: Stack, scale: Array | None, lead: tuple[int, ...]) -> Array:
        """On the line."""
        height = -0.5 * log(2.0 * pi)
        return np.full((*lead, 1, 1), height) if scale is None else np.asarray(height - scale[..., None])

    def row_size(self, stack: Stack) -> Array:
        """One: the response."""
        return np.ones((len(stack), 1), dtype=int)

    def points(self, stack: Stack) -> Array | None:
        """Covariates and response."""
        assert stack.target is not None
        return np.concatenate([stack.rows, stack.target[..., None]], axis=-1)

    def rest_rows(self, stack: Stack) -> Array:
        """``y^2``, where all components have one noise."""
        assert stack.target is not None
        return stack.target[..., None] ** 2 if self._common else super().rest_rows(stack)

    @staticmethod
    def _over_variance(square: Array, scale: Array | None) -> Array:
        """Squares ``(..., 1 or n)`` or ``(...)`` over the variance that all components have, ``scale`` (..., 1)."""
        if scale is None:
            return square
        precision = np.exp(-2.0 * scale)
        return square * (precision[..., 0] if square.ndim < precision.ndim else precision)

    def _parts(self, sums: Sums) -> tuple[Array, Array, Array]:
        """Weighted ``x x'`` (..., R, p, p), ``x y`` (..., R, p) and ``y^2`` (..., R), or (..., 1) of all components."""
        n_features = matrix_size(sums.features.shape[-1] - (not self._common)) - 1
        last = 1 + n_features * (n_features + 1) // 2
        squares = sums.rest if self._common else sums.features[..., -1]
        return symmetric(sums.features[..., 1:last]), sums.features[..., last : last + n_features], squares

    # -- the M-step

    def gradient(self, sums: Sums) -> Callable[[Array], Array]:
        """In units of the noise."""
        gram, cross, _ = self._parts(sums)
        return lambda theta: np.asarray(cross - (gram @ theta[..., None])[..., 0])

    def curvature(self, sums: Sums, theta: Array) -> Array:
        """The largest eigenvalue (bounded) of the covariates' second moments."""
        return largest_eigenvalue_bound(self._parts(sums)[0])

    def solve(self, sums: Sums, theta: Array) -> Array:
        """Weighted least squares, with a ridge that only matters when a component holds too few rows."""
        gram, cross, _ = self._parts(sums)
        return least_squares(gram, cross, self.ridge)

    def solve_noisy(self, sums: Sums, theta: Array) -> Array:
        """The same from sums that carry noise and may belong to no rows: where nothing is known, coefficients are 0."""
        gram, cross, _ = self._parts(sums)
        values, axes = np.linalg.eigh(gram)
        mean_square = values.sum(axis=-1) / theta.shape[-1]
        lift = np.where(mean_square > 0, self.ridge * mean_square, 1.0)[..., None]
        along = (cross[..., None, :] @ axes)[..., 0, :]
        solved = np.where(values > 0, along / (np.maximum(values, 0.0) + lift), 0.0)
        return np.asarray((axes @ solved[..., None])[..., 0])

    def noise_step(self, sums: Sums, theta: Array, noise: Array | None) -> Array | None:
        """Mean squared residuals; a component that holds next to nothing has the noise of all."""
        if self.noise == "unit":
            return None
        gram, cross, squares = self._parts(sums)
        explained = 2.0 * np.vecdot(theta, cross) - np.vecdot(theta, (gram @ theta[..., None])[..., 0])
        squares = squares - (explained.sum(axis=-1, keepdims=True) if self._common else explained)
        squares = squares / (bounded.consistency(1) if self.robust_rows else 1.0)
        found = self._from_squares(np.maximum(squares, 0.0), np.maximum(sums.held, 0.0), theta.shape[-1])
        return kept_by_few(found, noise, sums.held)

    def _from_squares(self, squares: Array, held: Array, n_parameters: int) -> Array:
        pooled = squares.sum(axis=-1, keepdims=True) / np.maximum(held.sum(axis=-1, keepdims=True), LEAST_MASS)
        if self.noise == "shared":
            return np.asarray(0.5 * np.log(pooled + self.reg_covar)[..., None])
        # A component of as many rows as coefficients has no residuals; as many rows of the pooled noise keep it honest.
        more = n_parameters + 1.0
        return np.asarray(0.5 * np.log((squares + more * pooled) / (held + more) + self.reg_covar)[..., None])

    # -- starts

    def draw(self, stack: Stack, seed: int, purpose: str, n_init: int, n_components: int, noise: Array | None) -> Array:
        """Least squares on small random subsets of rows, one per component, ``(c, n_init, R, p)``."""
        n_features = stack.rows.shape[-1]
        uniforms = stack.uniforms(seed, purpose, (n_init, n_components, 2 * n_features))
        places = draw_rows(stack, uniforms)
        features = self.features_of(stack)
        found = []
        for own, place in zip(features, places, strict=True):
            sums = Sums(own[place].sum(axis=-2), np.zeros(0), np.zeros(0))
            gram, cross, _ = self._parts(sums)
            found.append(least_squares(gram, cross, START_RIDGE))
        return np.stack(found)

    def first_noise(self, stack: Stack, theta: Array) -> Array | None:
        """From every row's smallest residual, ``(c, n_init, C, 1)``."""
        if self.noise == "unit":
            return None
        assert stack.target is not None
        c, n_init, n_components, size = theta.shape
        fitted = (theta.reshape(c, -1, size) @ stack.rows.swapaxes(-1, -2)).reshape(c, n_init, n_components, -1)
        square = ((stack.target[:, None, None] - fitted) ** 2).min(axis=2)
        if self.robust_rows:
            variance = concentrated.first_variances(stack, square) + self.reg_covar
        else:
            variance = (square * stack.weight[:, None]).sum(axis=-1) / stack.n_rows[:, None] + self.reg_covar
        count = 1 if self.noise == "shared" else n_components
        return np.repeat(0.5 * np.log(variance)[..., None, None], count, axis=-2)

    # -- standard errors

    def information(self, stack: Stack, params: Params) -> Array:
        """By the scores of every row."""
        assert stack.target is not None
        posterior, _ = self.row_scores(stack, params)
        scale = self.open(None, params.noise, stack.rows.shape[-1])
        held = (posterior * stack.weight[:, None]).sum(axis=-1)
        mass = posterior * stack.weight[:, None]
        moments = symmetric(mass @ products(stack.rows))
        shared = self.noise == "shared"

        def scores(k: int, rows: Array, r: int) -> tuple[Array, Array | None]:
            assert stack.target is not None
            x = stack.rows[k, rows]
            residual = stack.target[k, rows] - x @ params.theta[k, r]
            if scale is None:
                return residual[:, None] * x, None
            inverse = np.exp(-scale[k, 0 if shared else r])
            white = residual * inverse
            return (white * inverse)[:, None] * x, (white * white - 1.0)[:, None]

        if scale is None:
            return louis(stack, params, posterior, scores, moments, None)
        counted = np.maximum(held.sum(axis=1, keepdims=True) if shared else held, 1.0)
        precision = np.exp(-2.0 * scale)[..., None, None]
        return louis(stack, params, posterior, scores, moments * precision, 2.0 * counted[..., None])

    # -- the noise as units and as coordinates

    def whiten(self, theta: Array, scale: Array | None) -> Array:
        """Coefficients divided by the noise."""
        return theta if scale is None else np.asarray(theta * np.exp(-scale)[..., None])

    def unwhiten(self, theta: Array, scale: Array | None) -> Array:
        """The way back."""
        return theta if scale is None else np.asarray(theta * np.exp(scale)[..., None])

    def relative_noise(self, noise: Array, reference: Array, n_features: int) -> Array:
        """Coordinates about a reference."""
        return _LOGS.relative(noise, reference, 1)

    def absolute_noise(self, coordinates: Array, reference: Array, n_features: int) -> Array:
        """The way back."""
        return _LOGS.absolute(coordinates, reference, 1)

    def average_noise(self, noise: Array, share: Array) -> Array:
        """The noise of the mean variance."""
        return _LOGS.average(noise, share)


def least_squares(gram: Array, cross: Array, ridge: float) -> Array:
    """Coefficients ``(..., R, p)`` from weighted ``x x'`` and ``x y``, with a ridge relative to the mean square."""
    size = np.arange(gram.shape[-1])
    mean_square = np.trace(gram, axis1=-2, axis2=-1) / len(size)
    # A component may hold a mass of 1e-300: relative to that alone, the ridge would underflow.
    largest = mean_square.max(axis=-1, keepdims=True)
    lift = ridge * mean_square + EMPTY * np.where(largest > 0, largest, 1.0) + np.finfo(float).tiny
    gram = gram.copy()
    gram[..., size, size] += lift[..., None]
    return np.asarray(np.linalg.solve(gram, cross[..., None])[..., 0])
