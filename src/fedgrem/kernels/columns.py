r"""Which of many columns tell components apart: sparse differences of means, and the columns that vary together.

Where columns are independent given the component, those in which components differ are correlated with each other and
with nothing else. So they are the support of the leading eigenvectors of the columns' correlations (sparse principal
components; Johnstone and Lu 2009), which the sites find together by orthogonal iteration: no site sends a matrix of all
columns by all columns.
"""

import numpy as np
from scipy.special import chdtri

from fedgrem.types import Array

FALSE_COLUMNS = 0.1
"""Uninformative columns, of all, that are expected to pass a threshold."""
TRACY_WIDOM = 2.02
"""The 99% point of its distribution of order 1."""
LEAST_KNOWN = 1e-3
"""Of a combination of coefficients, relative to the one that is known best."""
TRIMMED = 0.2
"""Share of the sites at either end whose entries are taken as those of the next: a minority cannot turn the axes."""


def column_scores(center: Array, rows: Array) -> tuple[Array, Array]:
    """How clearly each column differs between components, and where it lies if it does not.

    Parameters
    ----------
    center : (..., R, q) in noise units; rows : (..., R) how many are behind each component's.

    Returns
    -------
    (..., q) chi-squared of R - 1 degrees where all components are alike; (..., q) their common level.

    Examples
    --------
    >>> score, level = column_scores(np.array([[1.0, 3.0], [1.0, 5.0]]), np.array([50.0, 50.0]))
    >>> score.tolist(), level.tolist()
    ([0.0, 100.0], [1.0, 4.0])
    """
    total = rows.sum(axis=-1, keepdims=True)
    share = np.where(total > 0, rows, 1.0) / np.where(total > 0, total, rows.shape[-1])
    level = (share[..., None] * center).sum(axis=-2)
    return (rows[..., None] * np.square(center - level[..., None, :])).sum(axis=-2), level


def slope_scores(slope: Array, known: Array) -> Array:
    """How clearly each covariate goes with what R components leave unexplained, ``(p,)``, per row: a score test.

    Times the number of rows it is chi-squared of R degrees if it does not. ``slope`` (R, p) are the means of residuals
    times the covariate, which have the covariance ``known`` (R, R).

    Examples
    --------
    >>> slope_scores(np.array([[0.2, 0.0], [0.1, 0.0]]), np.diag([0.5, 0.5])).round(3).tolist()
    [0.1, 0.0]
    """
    values, axes = np.linalg.eigh(known)
    values = np.maximum(values, LEAST_KNOWN * max(float(values[-1]), np.finfo(float).tiny))
    return np.asarray((np.square(axes.T @ slope) / values[:, None]).sum(axis=0))


def coefficient_scores(theta: Array, known: Array, gram: Array) -> Array:
    """How clearly each covariate has a coefficient in any of R components, ``(q,)``, per row: Wald's test.

    It is chi-squared as above if the covariate has none, however it goes with the others.

    Parameters
    ----------
    theta : (R, q) coefficients in noise units.
    known : (R, R) what a row tells of a covariate's coefficients; less than the components' shares where it is not sure
        which one a row is of.
    gram : (q, q) mean products of the covariates.

    Examples
    --------
    >>> coefficient_scores(np.array([[1.0, 0.0], [2.0, 0.1]]), np.diag([0.5, 0.5]), 4.0 * np.eye(2)).round(2).tolist()
    [10.0, 0.02]
    """
    variance = np.diagonal(np.linalg.pinv(gram, hermitian=True))
    size = np.maximum(np.vecdot(theta.T, (known @ theta).T), 0.0)
    return np.asarray(size / np.maximum(variance, np.finfo(float).tiny))


def least_score(degrees: int, n_columns: int) -> float:
    r"""The universal threshold of chi-squared scores, about :math:`2\log p`, which few of p false ones are beyond.

    Examples
    --------
    >>> [round(least_score(2, p), 1) for p in (10, 200, 800)]
    [9.2, 15.2, 18.0]
    """
    return float(chdtri(degrees, FALSE_COLUMNS / n_columns))


def threshold_differences(center: Array, rows: Array) -> tuple[Array, Array]:
    r"""Centers whose components differ in few columns, ``(..., R, q)``, and in which, ``(..., q)``.

    Differences from a column's level are multiplied by :math:`(1 - \lambda^2 / T)_+`, with T its score: the soft
    threshold of the nonnegative garrote (Breiman 1995), which hardly touches what is far above it.

    Examples
    --------
    >>> found, informative = threshold_differences(np.array([[1.0, 3.0], [1.1, 9.0]]), np.array([50.0, 50.0]))
    >>> informative.tolist(), found.round(2).tolist()
    ([False, True], [[1.05, 3.01], [1.05, 8.99]])
    """
    n_components, size = center.shape[-2:]
    score, level = column_scores(center, rows)
    least = least_score(max(1, n_components - 1), size)
    informative = score > least
    kept = np.where(informative, 1.0 - least / np.where(informative, score, 1.0), 0.0)[..., None, :]
    level = level[..., None, :]
    return np.where(kept > 0, level + kept * (center - level), level), informative


def combined(told: Array, n_rows: Array) -> Array:
    """The weighted mean over sites ``(K, ...)`` of numbers of which the extreme ones count as the next.

    Examples
    --------
    >>> combined(np.array([0.9, 1.0, 1.0, 1.1, 99.0]), np.ones(5)).round(6).tolist()
    1.04
    """
    cut = int(TRIMMED * len(told))
    ordered = np.sort(told, axis=0)
    tame = np.clip(told, ordered[cut], ordered[len(told) - 1 - cut])
    return np.asarray(np.tensordot(n_rows / n_rows.sum(), tame, axes=1))


def leading(product: Array, axes: Array, edge: float) -> tuple[Array, Array]:
    """M times the eigenvectors of M in the span of V that stand out, at least one, and their eigenvalues."""
    values, turn = np.linalg.eigh(0.5 * (axes.T @ product + product.T @ axes))
    order = np.argsort(-values)
    order = order[: max(1, int((values[order] > edge).sum()))]
    return product @ turn[:, order], values[order]


def largest_value(product: Array, axes: Array) -> float:
    """The largest eigenvalue of M in the span of V, from ``product`` (p, d), which is M V."""
    return float(np.linalg.eigvalsh(0.5 * (axes.T @ product + product.T @ axes))[-1])


def noise_value(n_columns: int, n_rows: float) -> float:
    """What the largest eigenvalue of correlations of p unrelated columns, less 1, seldom exceeds (Johnstone 2001).

    Examples
    --------
    >>> round(noise_value(100, 400.0), 2)
    1.33
    """
    p, n = np.sqrt(n_columns), np.sqrt(n_rows)
    return float((p / n + 1.0) ** 2 - 1.0 + TRACY_WIDOM * (n + p) * (1.0 / n + 1.0 / p) ** (1.0 / 3.0) / n_rows)


def association(product: Array, values: Array, n_rows: float) -> Array:
    """How clearly each column varies with the d directions, ``(p,)``: chi-squared of d degrees if it does not.

    ``product`` (p, d) is M V and ``values`` (d,) the eigenvalues of M, which is without its diagonal.
    """
    return np.asarray(n_rows * (np.square(product) / np.maximum(1.0 + values, 1.0)).sum(axis=1))
