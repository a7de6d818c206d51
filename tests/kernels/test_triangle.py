"""Lower triangles and Cholesky factors, one bad matrix among good ones included."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgrem.kernels.triangle import matrix_size, products, safe_cholesky, symmetric


@given(st.integers(1, 60))
def test_the_size_of_a_matrix_follows_from_its_entries(size):
    assert matrix_size(size * (size + 1) // 2) == size


@pytest.mark.parametrize("size", [1, 2, 5])
def test_products_of_columns_are_the_triangle_of_the_outer_product(size):
    rows = np.random.default_rng(size).normal(size=(3, 4, size))
    np.testing.assert_array_equal(symmetric(products(rows)), rows[..., :, None] * rows[..., None, :])


def test_a_singular_matrix_does_not_spoil_the_factors_of_the_others():
    generator = np.random.default_rng(0)
    root = generator.normal(size=(3, 4, 6))
    good = root @ root.swapaxes(1, 2)
    spoiled = good.copy()
    spoiled[1] = np.outer(np.arange(4.0), np.arange(4.0))
    factor = safe_cholesky(spoiled)
    np.testing.assert_array_equal(factor[[0, 2]], np.linalg.cholesky(good[[0, 2]]))
    np.testing.assert_allclose(factor[1] @ factor[1].T, spoiled[1], atol=1e-8)
    assert np.all(np.diagonal(factor[1]) > 0)


@pytest.mark.parametrize("neighbour", [np.diag([4.0, 9.0]), np.zeros((2, 2))], ids=["regular", "singular"])
def test_what_is_not_a_number_stays_so_whatever_its_neighbours(neighbour):
    factor = safe_cholesky(np.stack([np.full((2, 2), np.nan), neighbour]))
    assert np.isnan(factor[0][np.tril_indices(2)]).all()
    assert np.isfinite(factor[1]).all()


@given(st.integers(0, 10_000))
def test_an_indefinite_matrix_has_the_factor_of_a_near_one(seed):
    matrix = np.random.default_rng(seed).normal(size=(3, 3))
    matrix = matrix + matrix.T
    values, axes = np.linalg.eigh(matrix)
    factor = safe_cholesky(matrix)
    np.testing.assert_allclose(factor @ factor.T, (axes * np.maximum(values, 0.0)) @ axes.T, atol=1e-6)
