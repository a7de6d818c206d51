"""Triangular factors of many small matrices, as loops over their rows.

JAX has all of this through LAPACK. There, on a machine with c cores, c + 1 batches of one program that are large enough
to be spread over threads wait for each other for ever (seen with jaxlib 0.10.2). Loops have nothing to wait for, and
for matrices of a few dozen rows they are as fast.
"""

import jax
import jax.numpy as jnp

from fedgrem.types import Array


@jax.jit
def cholesky(matrix: Array) -> Array:
    """Lower triangular factors of positive definite matrices ``(..., p, p)``; NaN where one is not.

    Examples
    --------
    >>> cholesky(jnp.array([[4.0, 2.0], [2.0, 5.0]])).tolist()
    [[2.0, 0.0], [1.0, 2.0]]
    """
    size = matrix.shape[-1]
    below = jnp.arange(size)

    def fill(j: Array, rows: Array) -> Array:
        # Rows of the transpose, so that what is written lies together. Those not yet filled are 0.
        beside = jnp.take(rows, j, axis=-1)
        column = jnp.take(matrix, j, axis=-1) - jnp.einsum("...ab,...a->...b", rows, beside)
        column = jnp.where(below >= j, column, 0.0) / jnp.sqrt(jnp.take(column, j, axis=-1))[..., None]
        return jnp.where(below[:, None] == j, column[..., None, :], rows)

    factor = jnp.swapaxes(jax.lax.fori_loop(0, size, fill, jnp.zeros_like(matrix)), -1, -2)
    # What was not positive has spoilt all that follows it, the last number included.
    return jnp.where(jnp.isfinite(factor[..., -1:, -1:]), factor, jnp.nan)


@jax.jit
def solve_lower(factor: Array, right: Array) -> Array:
    """``X`` with ``factor @ X = right``, for lower triangular ``(..., p, p)`` and ``(..., p, q)``.

    Examples
    --------
    >>> solve_lower(jnp.array([[2.0, 0.0], [1.0, 2.0]]), jnp.array([[4.0], [6.0]])).tolist()
    [[2.0], [2.0]]
    """
    size = factor.shape[-1]
    place = jnp.arange(size)[:, None]

    def fill(i: Array, rows: Array) -> Array:
        ahead = jnp.take(factor, i, axis=-2)
        rest = jnp.take(right, i, axis=-2) - jnp.einsum("...a,...ab->...b", ahead, rows)
        row = rest / jnp.take(ahead, i, axis=-1)[..., None]
        return jnp.where(place == i, row[..., None, :], rows)

    shape = (*jnp.broadcast_shapes(factor.shape[:-2], right.shape[:-2]), *right.shape[-2:])
    solution: Array = jax.lax.fori_loop(0, size, fill, jnp.zeros(shape, right.dtype))
    return solution


def inverse_lower(factor: Array) -> Array:
    """Inverses of lower triangular matrices ``(..., p, p)``."""
    inverse: Array = solve_lower(factor, jnp.eye(factor.shape[-1], dtype=factor.dtype))
    return inverse


def solve_positive(matrix: Array, right: Array) -> Array:
    """Solve positive definite systems, ``(..., p, p), (..., p) -> (..., p)``."""
    inverse = inverse_lower(cholesky(matrix))
    return jnp.einsum("...ba,...bc,...c->...a", inverse, inverse, right)
