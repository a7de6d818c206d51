"""Posterior and log-likelihood of rows under a fitted mixture, compiled once per size class."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from fedgrem.families.base import Family
from fedgrem.kernels.responsibilities import row_posterior
from fedgrem.types import Array, NumpyArray, SiteData


@partial(jax.jit, static_argnames=("family",))
def _scores(family: Family, data: SiteData, weights: Array, theta: Array) -> tuple[Array, Array]:
    return row_posterior(family.log_density(data, theta), weights)


def row_scores(
    family: Family,
    rows: NumpyArray,
    target: NumpyArray | None,
    weights: NumpyArray,
    theta: NumpyArray,
    dtype: type,
) -> tuple[NumpyArray, NumpyArray]:
    """Posterior ``(n, R)`` and log-likelihood ``(n,)`` of rows ``(n, p)`` under one mixture.

    A regression without a target says nothing about components: its posterior is the weights.
    """
    n, p = rows.shape
    if family.has_target and target is None:
        return np.tile(weights, (n, 1)), np.full(n, np.nan)
    size = 1 << max(6, (n - 1).bit_length())
    columns, response = np.zeros((p, size), dtype), np.zeros(size, dtype)
    columns[:, :n] = rows.T
    if target is not None:
        response[:n] = target
    data = SiteData(jnp.asarray(columns), jnp.asarray(response), jnp.ones(size, dtype))
    share, log_likelihood = _scores(family, data, jnp.asarray(weights, dtype), jnp.asarray(theta, dtype))
    return np.array(share.T[:n], dtype=float), np.array(log_likelihood[:n], dtype=float)
