"""How far an estimate is from the truth, up to relabelling."""

import numpy as np
from scipy.optimize import linear_sum_assignment

from fedgrem.kernels.matching import pair_costs
from fedgrem.types import Array


def parameter_errors(weights: Array, theta: Array, true_weights: Array, true_theta: Array) -> tuple[Array, Array]:
    """Largest error over components of the weights and of theta at each site, ``(K,)`` each.

    Each site is relabelled to the truth by the assignment of least total distance in theta, as in the paper's
    best permutation, and both errors are taken under that labelling.

    Examples
    --------
    >>> w, t = parameter_errors(np.array([[0.4, 0.6]]), np.array([[[9.0], [0.0]]]),
    ...                         np.array([[0.5, 0.5]]), np.array([[[0.0], [8.0]]]))
    >>> w.round(6).tolist(), t.tolist()
    ([0.1], [1.0])
    """
    n_sites = theta.shape[0]
    weight_error, theta_error = np.empty(n_sites), np.empty(n_sites)
    for k in range(n_sites):
        cost = pair_costs(true_theta[k], theta[k])
        truth, found = linear_sum_assignment(cost)
        theta_error[k] = np.linalg.norm(true_theta[k][truth] - theta[k][found], axis=-1).max()
        weight_error[k] = np.abs(true_weights[k][truth] - weights[k][found]).max()
    return weight_error, theta_error


def misclustering_rate(labels: Array, predicted: Array) -> float:
    """Share of rows in the wrong group under the best relabelling of ``predicted``.

    Examples
    --------
    >>> misclustering_rate(np.array(["a", "a", "b", "b"]), np.array([1, 1, 0, 1]))
    0.25
    """
    return float(misclustering_by_site(np.zeros(len(labels), dtype=int), labels, predicted)[0])


def misclustering_by_site(site: Array, labels: Array, predicted: Array) -> Array:
    """The same for the rows of every site, numbered from 0, each relabelled as suits it best; ``(K,)``.

    Examples
    --------
    >>> misclustering_by_site(np.array([0, 0, 1, 1]), np.array([5, 6, 5, 6]), np.array([0, 1, 1, 1])).tolist()
    [0.0, 0.5]
    """
    true_names, true_index = np.unique(labels, return_inverse=True)
    found_names, found_index = np.unique(predicted, return_inverse=True)
    shape = (int(site.max()) + 1, len(true_names), len(found_names))
    tables = np.bincount(np.ravel_multi_index((site, true_index, found_index), shape), minlength=np.prod(shape))
    tables = tables.reshape(shape)
    right = [table[linear_sum_assignment(table, maximize=True)].sum() for table in tables]
    return np.asarray(1.0 - np.array(right) / tables.sum(axis=(1, 2)))
