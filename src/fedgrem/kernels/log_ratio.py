r"""Mixture weights in log-ratio coordinates, in which they can be averaged and shrunk like means.

About common weights :math:`c`, weights w have coordinates :math:`\sqrt{c_r}\,(\log w_r - \log c_r)`: an estimate from n
rows has an error of about :math:`1/\sqrt n` in each (Aitchison's log-ratios, scaled by their standard errors).
"""

import numpy as np

from fedgrem.kernels.center import shrink
from fedgrem.types import Array

LEAST_ROWS = 0.5
"""Rows that a component is taken to hold at the least: the logarithm of no rows is infinite."""


def to_log_ratio(weights: Array, common: Array, n_rows: Array) -> Array:
    """Coordinates ``(..., R)`` of weights about common ones; ``n_rows`` is broadcastable to them.

    Examples
    --------
    >>> to_log_ratio(np.array([0.5, 0.5]), np.array([0.5, 0.5]), np.array([100.0])).tolist()
    [0.0, 0.0]
    """
    held = np.maximum(weights, LEAST_ROWS / n_rows)
    ratio = np.log(held) - np.log(common)
    # Weights are known up to a factor: that which the common weights would not notice.
    ratio = ratio - np.vecdot(np.broadcast_to(common, ratio.shape), ratio)[..., None]
    return np.asarray(np.sqrt(common) * ratio)


def from_log_ratio(coordinates: Array, common: Array) -> Array:
    """The way back, to weights that add up to 1.

    Examples
    --------
    >>> w, c = np.array([0.2, 0.8]), np.array([0.5, 0.5])
    >>> from_log_ratio(to_log_ratio(w, c, np.array([1000.0])), c).round(6).tolist()
    [0.2, 0.8]
    """
    logs = np.log(common) + coordinates / np.sqrt(common)
    raised = np.exp(logs - logs.max(axis=-1, keepdims=True))
    return np.asarray(raised / raised.sum(axis=-1, keepdims=True))


def shrink_weights(weights: Array, common: Array, penalty: Array, n_rows: Array) -> Array:
    """Weights shrunk towards common ones by ``penalty / sqrt(rows)``, in log-ratio coordinates."""
    about = to_log_ratio(weights, common, n_rows)
    within = (penalty / np.sqrt(n_rows))[..., 0]
    return from_log_ratio(shrink(about, np.zeros_like(about), within), common)
