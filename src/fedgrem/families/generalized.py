r"""Generalized linear regressions: components of logistic or of Poisson regressions, by Newton's steps on Q.

With :math:`\eta = x'\theta_r`, a response has the log density :math:`y\eta - A(\eta)` but for a part of its own, so
that :math:`(1, xy)` are features and :math:`A(\eta)` is none. What a step needs of it are the sums of a weighted least
squares problem, as in iteratively reweighted least squares: with :math:`v = A''(\eta)`, of :math:`v\,xx'` and of
:math:`x (v\eta + y - A'(\eta))`.

Both responses are self-concordant in the sense of Sun and Tran-Dinh (2019): along a step d, curvature grows by at
most :math:`e^{t\delta}` with :math:`\delta = \max_i |x_i'd|`. So a Newton step of length
:math:`\log(1 + \delta)/\delta` never loses, and is a full one near the maximum.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeAlias

import numpy as np
from scipy.special import gammaln

from fedgrem.data.stack import Stack
from fedgrem.errors import InputError
from fedgrem.families.base import ExponentialFamily, KnownNoise, Term, largest_eigenvalue_bound, log_weights, with_ones
from fedgrem.families.information import louis
from fedgrem.families.regression import START_RIDGE, least_squares
from fedgrem.families.seeding import draw_rows
from fedgrem.kernels.triangle import products, symmetric
from fedgrem.types import Array, Params, Sums

Response: TypeAlias = Literal["binary", "count"]
RESPONSES: tuple[Response, ...] = ("binary", "count")
FARTHEST = 30.0
"""The largest log rate: what is beyond says that something is wrong, without overflowing."""
LEAST_GRAM = 1e-12
"""Relative to the largest, below which a direction is not moved in."""


@dataclass(frozen=True)
class GeneralizedRegression(KnownNoise, ExponentialFamily):
    """Components of logistic regressions of a response that is 0 or 1, or of Poisson regressions of counts.

    Parameters
    ----------
    response : "binary" or "count".
    ridge : of the coefficients, for every row that a component holds: where a covariate tells yes from no without an
        error, coefficients stay finite.
    """

    name: ClassVar[str] = "generalized-regression"
    has_target: ClassVar[bool] = True
    exponential: ClassVar[bool] = False
    joint_starts: ClassVar[int] = 12
    path_steps: ClassVar[int] = 6
    steps_of_q: ClassVar[int] = 3
    response: Response = "binary"
    ridge: float = 1e-8

    def n_parameters(self, n_features: int) -> int:
        """A coefficient per covariate."""
        return n_features

    @property
    def unit(self) -> float:
        """Log odds or log rates of one unit of a coefficient: of log odds, n rows know about ``2 / sqrt(n)``."""
        return 2.0 if self.response == "binary" else 1.0

    def check_target(self, name: str, target: Array) -> None:
        """Refuse what is no such response."""
        bad = target[(target != 0) & (target != 1)] if self.response == "binary" else target[_no_counts(target)]
        if len(bad):
            needed = "0 or 1 in every row" if self.response == "binary" else "whole numbers from 0 on"
            raise InputError(
                f"site {name!r} has a response of {bad[0]:g}, and response={self.response!r} needs {needed}; code it "
                "so, or use response='gaussian'."
            )

    # -- the response

    def mean(self, eta: Array) -> Array:
        """What is expected of the response at these log odds or log rates."""
        return self._cumulant(eta)[1]

    def _variance(self, mean: Array) -> Array:
        return mean * (1.0 - mean) if self.response == "binary" else mean

    def _cumulant(self, eta: Array) -> tuple[Array, Array]:
        """A and its slope, the mean."""
        if self.response == "count":
            mean = np.exp(np.minimum(eta, FARTHEST))
            return mean, mean
        small = np.exp(-np.abs(eta))
        mean = np.where(eta >= 0, 1.0, small) / (1.0 + small)
        return np.maximum(eta, 0.0) + np.log1p(small), mean

    def _log_base(self, target: Array) -> Array:
        """What no component changes of the log density."""
        return np.zeros_like(target) if self.response == "binary" else -gammaln(1.0 + np.maximum(target, 0.0))

    # -- features and sums

    def _rows(self, stack: Stack) -> Array:
        found: Array = stack.derive((self, "rows"), lambda whole: self.unit * whole.rows)
        return found

    def _squares(self, stack: Stack) -> Array:
        found: Array = stack.derive((self, "squares"), lambda whole: products(self.unit * whole.rows))
        return found

    def features(self, stack: Stack) -> Array:
        """``(1, x y)``."""
        assert stack.target is not None
        return with_ones(self._rows(stack) * stack.target[..., None])

    def rest(self, stack: Stack) -> Array:
        """The responses' part alone; and, no sum, the length of the longest row, which bounds steps."""
        assert stack.target is not None
        rows = self._rows(stack)
        own = (stack.weight * self._log_base(stack.target)).sum(axis=1)
        return np.stack([own, np.sqrt(np.vecdot(rows, rows).max(axis=1))], axis=-1)

    def natural(self, weights: Array, theta: Array, scale: Any) -> Array:
        """``log w, theta``."""
        return np.concatenate([log_weights(weights)[..., None], theta], axis=-1)

    def rows_part(self, rest: Array, n_rows: Array, scale: Any) -> Array:
        """That of the responses alone."""
        return rest[..., 0]

    def row_part(self, stack: Stack, scale: Any, lead: tuple[int, ...]) -> Array:
        """The same of every row."""
        assert stack.target is not None
        return self._log_base(stack.target).reshape(len(stack), *(1,) * (len(lead) - 1), -1)

    def terms(self, stack: Stack, params: Params, scale: Any) -> tuple[Term, ...]:
        """What is not linear in the coefficients."""
        return (ResponseTerm(self, self._rows(stack), self._squares(stack), params.theta),)

    def _parts(self, sums: Sums, n_parameters: int) -> tuple[Array, Array]:
        """Weighted ``v x x'`` (..., R, p, p) with the ridge, and ``x (v eta + y - mean)`` (..., R, p)."""
        told, p = sums.features, n_parameters
        gram = symmetric(told[..., 1 + p : -p])
        size = np.arange(p)
        gram[..., size, size] += self.ridge * sums.held[..., None]
        return gram, told[..., 1 : 1 + p] + told[..., -p:]

    # -- the M-step

    def gradient(self, sums: Sums) -> Callable[[Array], Array]:
        """Of the quadratic that touches Q where the sums were made, with its curvature there."""

        def slope(theta: Array) -> Array:
            gram, cross = self._parts(sums, theta.shape[-1])
            return np.asarray(cross - (gram @ theta[..., None])[..., 0])

        return slope

    def curvature(self, sums: Sums, theta: Array) -> Array:
        """Of Q on the way that a step of this length goes."""
        gram, cross = self._parts(sums, theta.shape[-1])
        bound = largest_eigenvalue_bound(gram)
        slope = cross - (gram @ theta[..., None])[..., 0]
        longest = sums.rest[..., 1, None]
        return np.asarray(bound + longest * np.sqrt(np.vecdot(slope, slope)) / 3.0)

    def solve(self, sums: Sums, theta: Array) -> Array:
        """A Newton step, no longer than is safe; a component that holds nothing stays where it is."""
        gram, cross = self._parts(sums, theta.shape[-1])
        size = np.arange(theta.shape[-1])
        mean_square = np.trace(gram, axis1=-2, axis2=-1)
        lift = LEAST_GRAM * np.maximum(mean_square, LEAST_GRAM * mean_square.max(axis=-1, keepdims=True))
        slope = cross - (gram @ theta[..., None])[..., 0]
        gram[..., size, size] += lift[..., None] + np.finfo(float).tiny
        step = np.linalg.solve(gram, slope[..., None])[..., 0]
        reach = sums.rest[..., 1, None] * np.sqrt(np.vecdot(step, step))
        reach = np.maximum(reach, 1e-12)
        return np.asarray(theta + (np.log1p(reach) / reach)[..., None] * step)

    # -- starts and standard errors

    def draw(self, stack: Stack, seed: int, purpose: str, n_init: int, n_components: int, noise: Array | None) -> Array:
        """Least squares of half log odds of 3 to 1, or log counts, on small random subsets of rows."""
        assert stack.target is not None
        n_features = stack.rows.shape[-1]
        places = draw_rows(stack, stack.uniforms(seed, purpose, (n_init, n_components, 2 * n_features)))
        y = stack.target
        level = (2.0 * y - 1.0) if self.response == "binary" else np.log(np.maximum(y, 0.0) + 0.5)
        found = []
        for rows, own, place in zip(self._rows(stack), level, places, strict=True):
            x, z = rows[place], own[place]
            gram, cross = x.swapaxes(-1, -2) @ x, (x.swapaxes(-1, -2) @ z[..., None])[..., 0]
            found.append(least_squares(gram, cross, START_RIDGE))
        return np.stack(found)

    def information(self, stack: Stack, params: Params) -> Array:
        """By the scores of every row."""
        assert stack.target is not None
        posterior, _ = self.row_scores(stack, params)
        gram, _ = self._parts(self.expect(stack, params, scored=False), params.theta.shape[-1])
        rows, target = self._rows(stack), stack.target

        def scores(k: int, places: Array, r: int) -> tuple[Array, None]:
            x = rows[k, places]
            return (target[k, places] - self.mean(x @ params.theta[k, r]))[:, None] * x, None

        return louis(stack, params, posterior, scores, gram, None)


class ResponseTerm:
    """Responses of a stack's rows under all fits, but for their features."""

    def __init__(self, family: GeneralizedRegression, rows: Array, squares: Array, theta: Array) -> None:
        self._family, self._rows, self._squares = family, rows, squares
        self._theta = theta.reshape(len(rows), -1, theta.shape[-1])
        self._kept: tuple[slice, Array, Array] | None = None

    def density(self, place: slice) -> Array:
        """Minus A, ``(c, B R, n)``; what the sums of the same rows need of it is kept."""
        eta = np.asarray(self._theta @ self._rows[:, place].swapaxes(-1, -2))
        value, mean = self._family._cumulant(eta)
        self._kept = place, eta, mean
        return -value

    def sums(self, mass: Array, place: slice) -> Array:
        """Of ``v x x'`` and ``x (v eta - mean)``."""
        if self._kept is None or self._kept[0] != place:
            self.density(place)
        assert self._kept is not None
        _, eta, mean = self._kept
        curved = self._family._variance(mean)
        return np.concatenate(
            [(mass * curved) @ self._squares[:, place], (mass * (curved * eta - mean)) @ self._rows[:, place]], axis=-1
        )


def _no_counts(target: Array) -> Array:
    return np.asarray((target < 0) | (target % 1 != 0))
