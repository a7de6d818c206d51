"""The one-site method that sparse fits are compared with, transcribed: EM with sparse discriminants.

Cai, Ma and Zhang, "CHIME: Clustering of high-dimensional Gaussian mixtures with EM algorithm and its optimality"
(Annals of Statistics, 2019), for R components: each against the first.
"""

from typing import NamedTuple

import numpy as np
from sklearn.cluster import KMeans

from fedgrem.families.base import largest_eigenvalue_bound
from fedgrem.types import Array

FIRST, KEPT = 0.1, 0.7
"""Lambda before the first step, and the part of it that the next one keeps, as in the authors' program."""
CONSTANTS = (0.1, 0.3, 1.0)
"""Of the penalty: the authors choose by the truth as well."""
STEPS, LASSO_STEPS = 20, 50


class Chime(NamedTuple):
    """What it finds at a site."""

    labels: Array
    """(n,)"""
    beta: Array
    """(R - 1, p) discriminants of every further component against the first."""


def chime(rows: Array, n_components: int, constant: float, seed: int) -> Chime:
    r"""EM from k-means, with posteriors by sparse discriminants.

    They are :math:`\beta_r = \arg\min \tfrac12 \beta'\hat\Sigma\beta - \beta'(\mu_r - \mu_1) + \lambda\|\beta\|_1`; to
    a covariance of more columns than rows :math:`\sqrt{\log p / n}` times the identity is added, as in the authors'
    program.
    """
    n, p = rows.shape
    labels = KMeans(n_components, n_init=10, random_state=seed).fit(rows).labels_
    posterior = (labels[:, None] == np.arange(n_components)).astype(float)
    beta, level = np.zeros((n_components - 1, p)), np.sqrt(np.log(p) / n)
    penalty = FIRST + constant * level
    for _ in range(STEPS):
        held = np.maximum(posterior.sum(axis=0), 1e-6)
        means = posterior.T @ rows / held[:, None]
        middle = (held / n) @ means
        about = rows - middle
        across = np.sqrt(held / n)[:, None] * (means - middle)
        before, ridge = beta, level if p >= n else 0.0
        beta = np.array(
            [
                sparse_discriminant(about / np.sqrt(n), across, ridge, mean - means[0], penalty, start)
                for mean, start in zip(means[1:], beta, strict=True)
            ]
        )
        penalty = KEPT * penalty + constant * level
        ratio = np.zeros((n, n_components))
        for r in range(1, n_components):
            ratio[:, r] = np.log(held[r] / held[0]) + (rows - 0.5 * (means[r] + means[0])) @ beta[r - 1]
        ratio -= ratio.max(axis=1, keepdims=True)
        posterior = np.exp(ratio)
        posterior /= posterior.sum(axis=1, keepdims=True)
        if np.abs(beta - before).max() < 1e-3:
            break
    return Chime(posterior.argmax(axis=1), beta)


def sparse_discriminant(
    about: Array, across: Array, ridge: float, difference: Array, penalty: float, start: Array
) -> Array:
    """By accelerated proximal gradient steps; the covariance is ``A'A - B'B`` and the ridge."""
    step = 1.0 / (float(largest_eigenvalue_bound(about @ about.T)) + ridge + 1e-12)
    here, ahead, momentum = start, start, 1.0
    for _ in range(LASSO_STEPS):
        slope = about.T @ (about @ ahead) - across.T @ (across @ ahead) + ridge * ahead - difference
        moved = ahead - step * slope
        new = np.sign(moved) * np.maximum(np.abs(moved) - step * penalty, 0.0)
        following = 0.5 * (1.0 + np.sqrt(1.0 + 4.0 * momentum**2))
        ahead = new + (momentum - 1.0) / following * (new - here)
        done = np.abs(new - here).max() < 1e-4
        here, momentum = new, following
        if done:
            break
    return np.asarray(here)
