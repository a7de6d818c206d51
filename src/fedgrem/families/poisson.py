"""Counts: components of independent Poisson columns."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from scipy.special import gammaln, xlogy

from fedgrem.data.stack import Stack
from fedgrem.families.base import ExponentialFamily, KnownNoise, log_weights
from fedgrem.families.information import louis
from fedgrem.families.seeding import far_rows
from fedgrem.types import Array, Params, Sums

LEAST_RATE = 1e-6
"""Of a column in which a component has only zeros."""


@dataclass(frozen=True)
class Poisson(KnownNoise, ExponentialFamily):
    """Counts: column j of component r has rate ``exp(theta_rj)``."""

    name: ClassVar[str] = "poisson"
    has_target: ClassVar[bool] = False
    joint_starts: ClassVar[int] = 0
    path_steps: ClassVar[int] = 10
    robust_rows: bool = False

    def n_parameters(self, n_features: int) -> int:
        """A log rate per column."""
        return n_features

    def features(self, stack: Stack) -> Array:
        """``(1, x)`` and, for every column, whether the cell is there; zeros where it is not."""
        there = seen_of(stack)
        return np.concatenate([np.ones((*there.shape[:-1], 1)), there * stack.rows, there], axis=-1)

    def rest(self, stack: Stack) -> Array:
        """``log x!``, which no component changes."""
        return np.asarray((stack.weight * _log_factorials(stack)).sum(axis=1, keepdims=True))

    def natural(self, weights: Array, theta: Array, scale: Any) -> Array:
        """``log w``, the log rates, and minus the rates."""
        return np.concatenate([log_weights(weights)[..., None], theta, -np.exp(theta)], axis=-1)

    def rows_part(self, rest: Array, n_rows: Array, scale: Any) -> Array:
        """Minus the sum of ``log x!``."""
        return -rest[..., 0]

    def row_part(self, stack: Stack, scale: Any, lead: tuple[int, ...]) -> Array:
        """Minus ``log x!``."""
        own = -_log_factorials(stack)
        return np.asarray(own.reshape(len(stack), *(1,) * (len(lead) - 1), -1))

    def crest(self, stack: Stack, scale: Any, lead: tuple[int, ...]) -> Array:
        """Where the rates are the counts of the row."""
        there = xlogy(stack.rows, stack.rows) - stack.rows - gammaln(1.0 + stack.rows)
        return np.asarray((seen_of(stack) * there).sum(axis=-1).reshape(len(stack), *(1,) * len(lead), -1))

    def row_size(self, stack: Stack) -> Array:
        """Cells that are seen: twice what their log-likelihood lacks of that is about chi-squared."""
        return np.asarray(seen_of(stack).sum(axis=-1), dtype=int)

    def points(self, stack: Stack) -> Array | None:
        """None: small counts are often the same."""
        return None

    def gradient(self, sums: Sums) -> Callable[[Array], Array]:
        """Counts less rates."""
        counts, cells = _split(sums)
        return lambda theta: np.asarray(counts - cells * np.exp(theta))

    def curvature(self, sums: Sums, theta: Array) -> Array:
        """At most that at whichever of theta and the M-step is larger."""
        counts, cells = _split(sums)
        return np.asarray(np.maximum(cells * np.exp(theta), counts).max(axis=-1))

    def solve(self, sums: Sums, theta: Array) -> Array:
        """Logs of mean counts; a component that holds no cell stays where it is."""
        counts, cells = _split(sums)
        rates = np.maximum(counts / np.where(cells > 0, cells, 1.0), LEAST_RATE)
        return np.where(cells > 0, np.log(rates), theta)

    def draw(self, stack: Stack, seed: int, purpose: str, n_init: int, n_components: int, noise: Array | None) -> Array:
        """Rows far from each other in square roots, in which counts vary alike, each half way to the site's mean."""
        roots = np.sqrt(stack.rows)
        chosen = far_rows(stack, roots, seed, purpose, n_init, n_components, robust=self.robust_rows)
        mean = (stack.weight[:, None] @ stack.rows)[:, None] / stack.n_rows[:, None, None, None]
        return np.asarray(np.log(0.5 * chosen**2 + 0.5 * mean + LEAST_RATE))

    def information(self, stack: Stack, params: Params) -> Array:
        """By the scores of every row."""
        posterior, _ = self.row_scores(stack, params)
        there = seen_of(stack)
        rates = np.exp(params.theta)
        complete = (((posterior * stack.weight[:, None]) @ there) * rates)[..., None] * np.eye(rates.shape[-1])

        def scores(k: int, rows: Array, r: int) -> tuple[Array, None]:
            return there[k, rows] * (stack.rows[k, rows] - rates[k, r]), None

        return louis(stack, params, posterior, scores, complete, None)


def seen_of(stack: Stack) -> Array:
    """(c, n, p) 1 where a cell is there, 0 where it is missing."""
    return np.ones(stack.rows.shape) if stack.observed is None else stack.observed.astype(float)


def _split(sums: Sums) -> tuple[Array, Array]:
    """Counts and cells of every column, ``(..., R, p)``."""
    size = sums.features.shape[-1] // 2
    return sums.features[..., 1 : 1 + size], sums.features[..., 1 + size :]


def _log_factorials(stack: Stack) -> Array:
    """(c, n) of what is seen of every row."""
    return np.asarray((seen_of(stack) * gammaln(1.0 + stack.rows)).sum(axis=-1))
