"""Symmetric matrices by their lower triangle, and factors of covariances."""

from functools import lru_cache

import numpy as np

from fedgrem.types import Array


@lru_cache
def lower(size: int) -> tuple[Array, Array, Array]:
    """Rows and columns of the lower triangle, and which of its entries are on the diagonal."""
    rows, columns = np.tril_indices(size)
    return rows, columns, rows == columns


@lru_cache
def _places(size: int) -> Array:
    """Where in a lower triangle every entry of a symmetric matrix is, ``(p, p)``."""
    i, j, _ = lower(size)
    places = np.empty((size, size), dtype=int)
    places[i, j] = places[j, i] = np.arange(len(i))
    return places


def matrix_size(entries: int) -> int:
    """How large a matrix is whose lower triangle has so many entries.

    Examples
    --------
    >>> matrix_size(6)
    3
    """
    return int((np.sqrt(8 * entries + 1) - 1) / 2 + 0.5)


def products(rows: Array) -> Array:
    """Products of two columns, ``(..., p) -> (..., p (p + 1) / 2)``, lower triangle."""
    i, j, _ = lower(rows.shape[-1])
    return np.asarray(np.take(rows, i, axis=-1) * np.take(rows, j, axis=-1))


def symmetric(packed: Array) -> Array:
    """The symmetric matrices ``(..., p, p)`` of lower triangles.

    Examples
    --------
    >>> symmetric(np.array([1.0, 2.0, 3.0])).tolist()
    [[1.0, 2.0], [2.0, 3.0]]
    """
    return np.take(packed, _places(matrix_size(packed.shape[-1])), axis=-1)


def safe_cholesky(matrix: Array) -> Array:
    """Cholesky factors ``(..., p, p)``; of a matrix that is not positive definite, of the nearest one that is.

    NumPy's raises for a whole batch if one site's is singular. What is not a number stays so, whatever its neighbours.
    """
    try:
        return np.asarray(np.linalg.cholesky(matrix))
    except np.linalg.LinAlgError:
        flat = matrix.reshape(-1, *matrix.shape[-2:])
        return np.stack([_nearest_cholesky(one) for one in flat]).reshape(matrix.shape)


def safe_inverse(matrix: Array) -> Array:
    """Inverses ``(..., p, p)``, not a number where there is none: NumPy's raises for a whole batch then.

    Examples
    --------
    >>> safe_inverse(np.array([[[2.0]], [[0.0]]])).ravel().tolist()
    [0.5, nan]
    """
    try:
        return np.asarray(np.linalg.inv(matrix))
    except np.linalg.LinAlgError:
        flat = matrix.reshape(-1, *matrix.shape[-2:])
        if len(flat) == 1:
            return np.full(matrix.shape, np.nan)
        return np.stack([safe_inverse(one) for one in flat]).reshape(matrix.shape)


def _nearest_cholesky(matrix: Array) -> Array:
    try:
        return np.asarray(np.linalg.cholesky(matrix))
    except np.linalg.LinAlgError:
        if not np.isfinite(matrix).all():
            return np.full(matrix.shape, np.nan)
        values, axes = np.linalg.eigh(0.5 * (matrix + matrix.T))
        least = max(1e-12 * float(values[-1]), 1e-12)
        whole = (axes * np.maximum(values, least)) @ axes.T
        whole[np.diag_indices(len(whole))] *= 1.0 + 1e-10
        return np.asarray(np.linalg.cholesky(whole))
