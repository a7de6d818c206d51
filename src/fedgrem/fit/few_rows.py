r"""Sites of few rows: fewer than components, columns or parameters. They take part with what they have.

Such a site has no start of its own and takes the common one; it is pulled to the center like any other, and its size
sees to it that it ends there. Its mixture weights are what its rows and the other sites say together: with c the middle
of the others' weights and n its rows,

.. math:: \hat w = \frac{n w + a c}{n + a},

where the others' weights are taken to vary about c like a Dirichlet distribution of a rows, found by moments.
"""

import numpy as np

from fedgrem.families.base import Family
from fedgrem.kernels.center import median
from fedgrem.types import Array, Params

FOR_WEIGHTS = 5.0
"""Rows per component from which a site's mixture weights are its own."""


def least_rows(family: Family, params: Params) -> float:
    """Rows with as many numbers as a site ``(K, R, q)`` has parameters: a response tells of one, a row of q."""
    _, n_components, size = params.theta.shape
    noise = 0 if params.noise is None else params.noise[0].size
    return float((n_components * size + noise) / (1 if family.has_target else size))


def has_enough(family: Family, params: Params, n_rows: Array) -> Array:
    """(K,) whether a site has so many rows; of the larger half of the sites all have, for somebody must begin."""
    return _reaches(least_rows(family, params), n_rows)


def knows_weights(family: Family, params: Params, n_rows: Array) -> Array:
    """(K,) whether a site also has rows enough for mixture weights of its own; of the larger half again all have."""
    return _reaches(max(least_rows(family, params), FOR_WEIGHTS * params.weights.shape[-1]), n_rows)


def _reaches(least: float, n_rows: Array) -> Array:
    return np.asarray(n_rows >= min(least, float(median(n_rows))))


def lean_on_others(weights: Array, n_rows: Array, enough: Array) -> Array:
    """The weights ``(K, R)``, those of sites without enough rows shrunk to the others' middle.

    Examples
    --------
    >>> weights = np.array([[0.5, 0.5], [0.5, 0.5], [1.0, 0.0]])
    >>> lean_on_others(weights, np.array([90.0, 90.0, 2.0]), np.array([True, True, False])).tolist()
    [[0.5, 0.5], [0.5, 0.5], [0.5, 0.5]]
    """
    if enough.all():
        return weights
    common = median(weights[enough])
    common = common / common.sum()
    chance = 1.0 - np.sum(common**2)
    if chance <= 0.0:  # the others have one component only
        return np.where(enough[:, None], weights, common)
    # The variance of a share about c is c (1 - c) (1 / rows + 1 / (a + 1)), but for their product.
    excess = np.sum((weights[enough] - common) ** 2, axis=1) / chance - 1.0 / n_rows[enough]
    spread = float(np.clip(median(excess), 0.0, 1.0))
    if spread == 0.0:
        return np.where(enough[:, None], weights, common)
    prior = 1.0 / spread - 1.0
    rows = n_rows[:, None]
    return np.where(enough[:, None], weights, (rows * weights + prior * common) / (rows + prior))
