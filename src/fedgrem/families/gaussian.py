"""Gaussian components: with known identity covariance, the paper's Example 1, or with an estimated one."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from fedgrem.data.stack import Stack
from fedgrem.families import bounded, concentrated
from fedgrem.families.base import ExponentialFamily, Term, kept_by_few, log_weights, with_ones
from fedgrem.families.covariance import LEAST_MASS, Identity, Scale, lifted
from fedgrem.families.gaps import LOG_2PI, Gaps, GapsTerm, open_gaps
from fedgrem.families.information import louis
from fedgrem.families.seeding import far_rows
from fedgrem.kernels.triangle import products, symmetric
from fedgrem.types import Array, Params, Sums

NOTHING = 1e-6
"""Rows of which a component holds less, at a site that lies elsewhere, tell nothing of where it is: their mean would be
that of rows which belong to others, and count fully where sites are averaged."""


@dataclass(frozen=True)
class Gaussian(ExponentialFamily):
    """Components ``N(theta_r, Sigma)``.

    Parameters
    ----------
    covariance : one of the structures of :mod:`fedgrem.families.covariance`; the identity is known and the paper's.
    reg_covar : added to every variance, in the units of the fit.
    robust_rows : whether what a row says is bounded in units of its component's noise.
    """

    name: ClassVar[str] = "gaussian"
    has_target: ClassVar[bool] = False
    joint_starts: ClassVar[int] = 0
    path_steps: ClassVar[int] = 10
    unit_errors: ClassVar[bool] = True
    covariance: Any = field(default_factory=Identity)
    reg_covar: float = 1e-6
    robust_rows: bool = False

    @property
    def _known(self) -> bool:
        return isinstance(self.covariance, Identity)

    @property
    def _tied(self) -> bool:
        return bool(self.covariance.shared)

    def n_parameters(self, n_features: int) -> int:
        """A mean per column."""
        return n_features

    def noise_shape(self, n_components: int, n_features: int) -> tuple[int, int] | None:
        """(C, s), C = 1 where all components share one covariance."""
        if self._known:
            return None
        return 1 if self._tied else n_components, self.covariance.size(n_features)

    # -- features and natural parameters

    def features(self, stack: Stack) -> Array:
        """``(1, x)``, and squares or products where covariances are components' own; 1 where cells are missing."""
        if stack.observed is not None:
            return np.ones((*stack.weight.shape, 1))
        return with_ones(self.covariance.features(stack.rows))

    def rest(self, stack: Stack) -> Array:
        """With one covariance for all, ``x x'`` is no component's; with the identity, its trace.

        Where cells are missing, the number of those that are not.
        """
        if stack.observed is not None:
            return np.asarray((stack.weight * self.row_size(stack)).sum(axis=1, keepdims=True))
        if not self._tied:
            return np.zeros((len(stack), 0))
        weight = stack.weight[:, None]
        if self._known:
            square = (weight[:, 0] * np.vecdot(stack.rows, stack.rows)).sum(axis=1)
            return np.stack([square, stack.n_rows * stack.rows.shape[-1]], axis=1)
        return np.asarray((weight @ products(stack.rows))[:, 0])

    def open(self, stack: Stack | None, noise: Array | None, n_features: int) -> Any:
        """Factors of the covariances; where cells are missing, precisions of what is seen."""
        if stack is None or stack.observed is None:
            return None if noise is None else self.covariance.open(noise, n_features)
        known = np.broadcast_to(np.eye(n_features), (len(stack), 1, n_features, n_features))
        covariance = known if noise is None else self.covariance.matrices(noise, n_features)
        return open_gaps(stack, covariance, tuple(range(n_features)))

    def terms(self, stack: Stack, params: Params, scale: Any) -> tuple[Term, ...]:
        """Where cells are missing, all that depends on the row."""
        return (GapsTerm(scale, params.theta),) if isinstance(scale, Gaps) else ()

    def natural(self, weights: Array, theta: Array, scale: Scale | Gaps | None) -> Array:
        """``log w - theta' P theta / 2, P theta``, and the quadratic part where it is a component's own."""
        if isinstance(scale, Gaps):
            return log_weights(weights)[..., None]
        if scale is None:
            slopes = theta
        elif scale.precision.ndim == scale.log_scale.ndim + 1:  # columns are apart
            slopes = theta * scale.precision
        elif self._tied:
            slopes = theta @ scale.precision[..., 0, :, :]
        else:
            slopes = (scale.precision @ theta[..., None])[..., 0]
        offset = log_weights(weights) - 0.5 * np.vecdot(slopes, theta)
        if self._tied:
            eta = np.empty((*theta.shape[:-1], 1 + theta.shape[-1]))
            eta[..., 0], eta[..., 1:] = offset, slopes
            return eta
        assert scale is not None
        quadratic = np.broadcast_to(
            self.covariance.quadratic(scale.precision), (*theta.shape[:-1], self.covariance.size(theta.shape[-1]))
        )
        return np.concatenate([(offset - scale.log_scale)[..., None], slopes, quadratic], axis=-1)

    def rows_part(self, rest: Array, n_rows: Array, scale: Scale | Gaps | None) -> Array:
        """The sum over rows of ``-x' P x / 2`` where all components share P, and of the constant."""
        if isinstance(scale, Gaps):
            return np.asarray(-0.5 * LOG_2PI * rest[..., 0])
        if scale is None:
            return np.asarray(-0.5 * (rest[..., 0] + rest[..., 1] * LOG_2PI))
        constant = -0.5 * n_rows * scale.white.shape[-1] * LOG_2PI
        if not self._tied:
            return np.asarray(constant)
        square = np.einsum("...ij,...ij->...", scale.precision[..., 0, :, :], symmetric(rest))
        return np.asarray(constant - n_rows * scale.log_scale[..., 0] - 0.5 * square)

    def row_part(self, stack: Stack, scale: Scale | Gaps | None, lead: tuple[int, ...]) -> Array:
        """The same of every row."""
        if isinstance(scale, Gaps):
            return np.asarray(-0.5 * LOG_2PI * self.row_size(stack)).reshape(len(stack), *(1,) * (len(lead) - 1), -1)
        rows = stack.rows.reshape(len(stack), *(1,) * (len(lead) - 1), *stack.rows.shape[1:])
        constant = -0.5 * rows.shape[-1] * LOG_2PI
        if not self._tied:
            return np.asarray(constant)
        if scale is None:
            return np.asarray(constant - 0.5 * np.vecdot(rows, rows))
        white = rows @ scale.white[..., 0, :, :].swapaxes(-1, -2)
        return np.asarray(constant - 0.5 * np.vecdot(white, white) - scale.log_scale)

    # -- rows that are bounded

    def crest(self, stack: Stack, scale: Any, lead: tuple[int, ...]) -> Array:
        """At the mean."""
        if isinstance(scale, Gaps):
            return scale.crest(lead)
        height = -0.5 * stack.rows.shape[-1] * LOG_2PI
        return np.full((*lead, 1, 1), height) if scale is None else np.asarray(height - scale.log_scale[..., None])

    def row_size(self, stack: Stack) -> Array:
        """Columns that are seen."""
        return np.full((len(stack), 1), stack.rows.shape[-1]) if stack.observed is None else stack.observed.sum(axis=-1)

    def points(self, stack: Stack) -> Array | None:
        """The rows."""
        return stack.rows

    def rest_rows(self, stack: Stack) -> Array:
        """Products, where all components share a covariance that is estimated."""
        own = self._tied and not self._known and stack.observed is None
        return products(stack.rows) if own else super().rest_rows(stack)

    # -- the M-step

    def gradient(self, sums: Sums) -> Callable[[Array], Array]:
        """In the metric of the noise; Q is quadratic with curvature equal to the rows held."""
        held = sums.held[..., None]
        return lambda theta: np.asarray(sums.features[..., 1 : 1 + theta.shape[-1]] - held * theta)

    def solve(self, sums: Sums, theta: Array) -> Array:
        """Weighted means; a component that holds next to nothing stays where it is."""
        held, rows = sums.held[..., None], sums.features[..., 1 : 1 + theta.shape[-1]]
        return np.asarray(np.where(held > NOTHING, rows / np.maximum(held, NOTHING), theta))

    def noise_step(self, sums: Sums, theta: Array, noise: Array | None) -> Array | None:
        """Covariances about ``theta``; a component that holds next to nothing has that of all."""
        if self._known:
            return None
        size, held = theta.shape[-1], sums.held
        taken = bounded.consistency(size) if self.robust_rows else 1.0
        rows = sums.features[..., 1 : 1 + size]
        if not self._tied:
            scatter = self.covariance.scatter(sums.features[..., 1 + size :], rows, theta, held)
            return kept_by_few(self.covariance.variances(scatter / taken, held, self.reg_covar), noise, held)
        covariance = self._pooled(theta, rows, held, sums.rest) / taken
        found = np.asarray(self.covariance.from_matrices(lifted(covariance, self.reg_covar)))[..., None, :]
        return kept_by_few(found, noise, held)

    def _pooled(self, theta: Array, rows: Array, held: Array, rest: Array) -> Array:
        """One covariance for all components, ``(..., p, p)``."""
        cross = theta.swapaxes(-1, -2) @ rows
        square = (theta.swapaxes(-1, -2) * held[..., None, :]) @ theta
        scatter = symmetric(rest) - cross - cross.swapaxes(-1, -2) + square
        return np.asarray(scatter / np.maximum(held.sum(axis=-1), LEAST_MASS)[..., None, None])

    def expect(self, stack: Stack, params: Params, scale: Any = None, *, scored: bool = True) -> Sums:
        """The E-step; where cells are missing, on what is expected of them given the rest of their row."""
        sums = super().expect(stack, params, scale, scored=scored)
        if stack.observed is None:
            return sums
        whole, second = np.split(sums.features, [1 + stack.rows.shape[-1]], axis=-1)
        if not self._tied:
            own = np.concatenate([whole, self.covariance.of_products(second)], axis=-1)
            return Sums(own, np.zeros((*sums.log_likelihood.shape, 0)), sums.log_likelihood)
        rest = np.zeros((*sums.log_likelihood.shape, 2)) if self._known else second.sum(axis=-2)
        return Sums(whole, rest, sums.log_likelihood)

    def information(self, stack: Stack, params: Params) -> Array:
        """By the scores of every row; where cells are missing, the covariance is taken as known."""
        n_features = stack.rows.shape[-1]
        scale = self.open(stack, params.noise, n_features)
        posterior, _ = self.row_scores(stack, params)
        mass = posterior * stack.weight[:, None]

        def scores(k: int, rows: Array, r: int) -> tuple[Array, Array | None]:
            away = stack.rows[k, rows] - params.theta[k, r]
            if isinstance(scale, Gaps):
                return scale.pulled(k, r, rows, away), None
            if scale is None:
                return away, None
            c = 0 if self._tied else r
            one = Scale(*(leaf[k, [c]] for leaf in scale))
            white = self.covariance.whiten(away, one)
            back = white @ one.white[0] if one.white.ndim == 3 else white * one.white
            return back, self.covariance.scores(white)

        if isinstance(scale, Gaps):
            return louis(stack, params, posterior, scores, scale.seen_by(mass), None)
        held = mass.sum(axis=-1)
        if scale is None:
            return louis(stack, params, posterior, scores, held[..., None, None] * np.eye(n_features), None)
        matrix = scale.precision if scale.white.ndim == 4 else scale.precision[..., None] * np.eye(n_features)
        # A component without rows has a noise all the same: one row's worth keeps its matrix regular.
        counted = np.maximum(held.sum(axis=1, keepdims=True) if self._tied else held, 1.0)
        of_noise = counted[..., None] * self.covariance.information(n_features)
        return louis(stack, params, posterior, scores, held[..., None, None] * matrix, of_noise)

    # -- starts

    def draw(self, stack: Stack, seed: int, purpose: str, n_init: int, n_components: int, noise: Array | None) -> Array:
        """Rows far from each other, by greedy k-means++, in units of the noise ``(c, C, s)``."""
        if noise is None:
            return far_rows(stack, stack.rows, seed, purpose, n_init, n_components, robust=self.robust_rows)
        scale = self.covariance.open(noise[:, :1], stack.rows.shape[-1])
        white = self.covariance.whiten(stack.rows, scale)
        chosen = far_rows(stack, white, seed, purpose, n_init, n_components, robust=self.robust_rows)
        one = Scale(*(leaf[:, None] for leaf in scale))
        return np.asarray(self.covariance.unwhiten(chosen, one))

    def first_noise(self, stack: Stack, theta: Array) -> Array | None:
        """From the rows nearest to each component, ``(c, n_init, C, s)``; all components begin with that of all."""
        if self._known:
            return None
        (c, n_init, n_components, size), rows = theta.shape, stack.rows
        if self.robust_rows:
            matrices = concentrated.first_covariances(stack, theta, self.reg_covar)
            return self._of_all(matrices, n_components)
        score = theta.reshape(c, -1, size) @ rows.swapaxes(-1, -2)
        score -= 0.5 * np.vecdot(theta, theta).reshape(c, -1, 1)
        nearest = score.reshape(c, n_init, n_components, -1).argmax(axis=2)
        mass = (nearest[:, :, None] == np.arange(n_components)[:, None]) * stack.weight[:, None, None]
        held, sums = mass.sum(axis=-1), mass @ rows[:, None]
        mean = np.where(held[..., None] > 0, sums / np.where(held > 0, held, 1.0)[..., None], theta)
        second = stack.derive("second moments", lambda s: (s.weight[:, None] @ products(s.rows))[:, 0])
        covariance = lifted(self._pooled(mean, sums, held, second[:, None]), self.reg_covar)
        return self._of_all(covariance, n_components)

    def _of_all(self, covariance: Array, n_components: int) -> Array:
        """The noise ``(..., C, s)`` with one covariance ``(..., p, p)`` for all components."""
        first = self.covariance.from_matrices(covariance)[..., None, :]
        return np.repeat(first, 1 if self._tied else n_components, axis=-2)

    # -- the noise as units and as coordinates

    def whiten(self, theta: Array, scale: Scale | None) -> Array:
        """Means divided by a square root of the covariance."""
        return theta if scale is None else np.asarray(self.covariance.whiten(theta, scale))

    def unwhiten(self, theta: Array, scale: Scale | None) -> Array:
        """The way back."""
        return theta if scale is None else np.asarray(self.covariance.unwhiten(theta, scale))

    def relative_noise(self, noise: Array, reference: Array, n_features: int) -> Array:
        """Coordinates about a reference."""
        return np.asarray(self.covariance.relative(noise, reference, n_features))

    def absolute_noise(self, coordinates: Array, reference: Array, n_features: int) -> Array:
        """The way back."""
        return np.asarray(self.covariance.absolute(coordinates, reference, n_features))

    def average_noise(self, noise: Array, share: Array) -> Array:
        """The noise of the mean covariance."""
        return np.asarray(self.covariance.average(noise, share))
