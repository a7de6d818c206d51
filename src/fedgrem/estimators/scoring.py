"""Posterior and log-likelihood of rows under a fitted mixture, compiled once per size class."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedgrem.families.base import Family
from fedgrem.kernels.responsibilities import row_posterior
from fedgrem.types import Array, NumpyArray, SiteData


class FittedParams(NamedTuple):
    """One mixture, as NumPy arrays in the units of the rows."""

    weights: NumpyArray
    """(R,)"""
    theta: NumpyArray
    """(R, q)"""
    spread: NumpyArray | None
    """(C, s)"""


@partial(jax.jit, static_argnames=("family",))
def _scores(family: Family, data: SiteData, weights: Array, theta: Array, spread: Array | None) -> tuple[Array, Array]:
    return row_posterior(family.log_density(data, theta, spread), weights)


def row_scores(
    family: Family,
    rows: NumpyArray,
    target: NumpyArray | None,
    params: FittedParams,
    dtype: type,
) -> tuple[NumpyArray, NumpyArray]:
    """Posterior ``(n, R)`` and log-likelihood ``(n,)`` of rows ``(n, p)`` under one mixture.

    A regression without a target says nothing about components: its posterior is the weights.
    """
    n, p = rows.shape
    weights, theta, spread = params
    if family.has_target and target is None:
        return np.tile(weights, (n, 1)), np.full(n, np.nan)
    size = 1 << max(6, (n - 1).bit_length())
    columns, response = np.zeros((p, size), dtype), np.zeros(size, dtype)
    missing = np.isnan(rows.T)
    columns[:, :n] = np.where(missing, 0.0, rows.T)
    observed = None
    if missing.any():
        seen = np.ones((p, size), dtype)
        seen[:, :n] = ~missing
        observed = jnp.asarray(seen)
    if target is not None:
        response[:n] = target
    data = SiteData(jnp.asarray(columns), jnp.asarray(response), jnp.ones(size, dtype), observed=observed)
    share, log_likelihood = _scores(
        family,
        data,
        jnp.asarray(weights, dtype),
        jnp.asarray(theta, dtype),
        None if spread is None else jnp.asarray(spread, dtype),
    )
    return np.array(share.T[:n], dtype=float), np.array(log_likelihood[:n], dtype=float)
