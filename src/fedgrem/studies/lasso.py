"""The one-site method that sparse regressions are compared with: EM with a lasso in its M-step.

Städler, Bühlmann and van de Geer, "l1-penalization for mixture regression models" (TEST, 2010), without an intercept:
the penalty of a component is in proportion to its noise and its share of the rows.
"""

from typing import NamedTuple

import numpy as np
from scipy.special import logsumexp
from sklearn.linear_model import Lasso

from fedgrem.types import Array

PENALTIES = (0.5, 1.0)
"""Times the universal level, the square root of 2 log p over the rows; the better one in hindsight is reported."""
STARTS, STEPS = 5, 20
SURE = 0.8
"""Of its first component, at a start, which is drawn."""
LEAST_NOISE = 1e-3


class LassoMixture(NamedTuple):
    """What it finds at a site."""

    labels: Array
    """(n,)"""
    coef: Array
    """(R, p)"""


def lasso_mixture(rows: Array, target: Array, n_components: int, constant: float, seed: int) -> LassoMixture:
    """The best of some starts, by the penalized likelihood."""
    generator = np.random.default_rng(seed)
    found = [_climbed(rows, target, n_components, constant, generator) for _ in range(STARTS)]
    return max(found, key=lambda one: one[0])[1]


def _climbed(
    rows: Array, target: Array, n_components: int, constant: float, generator: np.random.Generator
) -> tuple[float, LassoMixture]:
    n, p = rows.shape
    posterior = np.full((n, n_components), (1.0 - SURE) / max(1, n_components - 1))
    posterior[np.arange(n), generator.integers(0, n_components, size=n)] = SURE
    coef, noise, value = np.zeros((n_components, p)), np.full(n_components, target.std()), -np.inf
    for _ in range(STEPS):
        held = np.maximum(posterior.sum(axis=0), 1e-6)
        level = constant * noise * np.sqrt(2.0 * np.log(p) / held)
        for r in range(n_components):
            lasso = Lasso(alpha=float(level[r]), fit_intercept=False, tol=1e-3, max_iter=2000)
            coef[r] = lasso.fit(rows, target, sample_weight=posterior[:, r]).coef_
        residual = target[:, None] - rows @ coef.T
        noise = np.maximum(np.sqrt((posterior * residual**2).sum(axis=0) / held), LEAST_NOISE * target.std())
        density = np.log(held / n) - np.log(noise) - 0.5 * (residual / noise) ** 2
        total = logsumexp(density, axis=1)
        posterior = np.exp(density - total[:, None])
        before, value = value, float(total.sum() - (held * level * np.abs(coef).sum(axis=1) / noise**2).sum())
        if abs(value - before) < 1e-3 * n:
            break
    return value, LassoMixture(posterior.argmax(axis=1), coef)
