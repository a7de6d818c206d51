"""The E-step, in log space, for every family."""

import jax
import jax.numpy as jnp

from fedgrem.types import Array

ROWS_AT_ONCE = 2048
"""Rows of a site whose posteriors are found together: those of tens of thousands do not fit into the processor's cache,
and take five times as long."""


def row_posterior(log_density: Array, weights: Array) -> tuple[Array, Array]:
    r"""Posterior probability of every component for every row, ``(R, n)``, and every row's log-likelihood, ``(n,)``.

    Components come first and rows last, so that sums over components run over whole contiguous vectors of rows.

    Examples
    --------
    >>> share, loglik = row_posterior(jnp.log(jnp.array([[0.5], [0.5]])), jnp.array([0.25, 0.75]))
    >>> [round(float(s), 6) for s in share.ravel()], round(float(jnp.exp(loglik[0])), 6)
    ([0.25, 0.75], 0.5)
    """
    likelihood, total, peak = _scaled(log_density, weights)
    return likelihood / total, peak + jnp.log(total)


def _scaled(log_density: Array, weights: Array) -> tuple[Array, Array, Array]:
    """Weighted likelihoods ``(R, n)`` relative to each row's largest, their sums, and the logs of the largest."""
    joint = log_density + jnp.log(weights)[:, None]
    peak = joint.max(axis=0)
    # A row that no component can explain belongs to all alike; its log-likelihood says that something is wrong.
    likelihood = jnp.exp(jnp.where(jnp.isfinite(peak), joint - peak, 0.0))
    return likelihood, likelihood.sum(axis=0), peak


def posterior(log_density: Array, weights: Array, row_weight: Array) -> tuple[Array, Array]:
    r"""Posterior mass of every component on every row, and the log-likelihood of one site.

    Row i contributes ``row_weight[i]`` of mass in all: :math:`m_{ri} = v_i\,P(z_i = r \mid x_i)`.

    Parameters
    ----------
    log_density : (R, n) log density of each row under each component.
    weights : (R,) mixture weights.
    row_weight : (n,) sample weights, 0 for padding.

    Returns
    -------
    mass : (R, n), and the log-likelihood, a scalar.
    """
    n_rows = row_weight.shape[0]
    if n_rows <= ROWS_AT_ONCE:
        mass, log_likelihood = _weighted(log_density, weights, row_weight)
        return mass, log_likelihood.sum()

    def part(i: Array, found: tuple[Array, Array]) -> tuple[Array, Array]:
        first = jnp.minimum(i * ROWS_AT_ONCE, n_rows - ROWS_AT_ONCE)  # the last part meets some rows again
        rows = jax.lax.dynamic_slice_in_dim(log_density, first, ROWS_AT_ONCE, axis=1)
        new = _weighted(rows, weights, jax.lax.dynamic_slice_in_dim(row_weight, first, ROWS_AT_ONCE))
        mass, log_likelihood = (
            jax.lax.dynamic_update_slice_in_dim(old, some, first, axis=-1) for old, some in zip(found, new, strict=True)
        )
        return mass, log_likelihood

    nothing = jnp.zeros_like(log_density), jnp.zeros_like(row_weight)
    mass, log_likelihood = jax.lax.fori_loop(0, -(-n_rows // ROWS_AT_ONCE), part, nothing)
    return mass, log_likelihood.sum()


def _weighted(log_density: Array, weights: Array, row_weight: Array) -> tuple[Array, Array]:
    """Masses ``(R, n)`` and log-likelihoods of the rows, ``(n,)``, both times the rows' weights."""
    likelihood, total, peak = _scaled(log_density, weights)
    # A row of weight 0 must not bring in an infinity of its own, as 0 * inf is not 0; likelihoods here are at most 1.
    return likelihood * (row_weight / total), row_weight * jnp.where(row_weight > 0, peak + jnp.log(total), 0.0)
