"""Triangular factors: LAPACK's numbers, derivatives, what is not positive, and no waiting."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedgrem.kernels.triangular import cholesky, inverse_lower, solve_lower, solve_positive


def positive(*shape, seed=0):
    square = np.random.default_rng(seed).normal(size=(*shape, shape[-1]))
    return square @ np.swapaxes(square, -1, -2) + np.eye(shape[-1])


@pytest.mark.parametrize("shape", [(1,), (4,), (3, 5), (2, 3, 12)])
def test_factors_and_solutions_are_numpys(shape):
    matrix = positive(*shape)
    factor = np.linalg.cholesky(matrix)
    right = np.random.default_rng(1).normal(size=(*shape, 3))
    np.testing.assert_allclose(cholesky(matrix), factor, atol=1e-12)
    np.testing.assert_allclose(inverse_lower(factor), np.linalg.inv(factor), atol=1e-12)
    np.testing.assert_allclose(solve_lower(factor, right), np.linalg.solve(factor, right), atol=1e-12)
    np.testing.assert_allclose(
        solve_positive(matrix, right[..., 0]), np.linalg.solve(matrix, right[..., :1])[..., 0], atol=1e-10
    )


@pytest.mark.parametrize("spoilt", [-np.eye(3), np.diag([1.0, 0.0, 1.0]), np.diag([1.0, 1.0, np.nan])])
def test_a_matrix_that_is_not_positive_is_nan_and_alone(spoilt):
    factors = cholesky(jnp.stack([jnp.eye(3), spoilt, 4.0 * jnp.eye(3)]))
    assert np.isnan(factors[1]).all()
    np.testing.assert_array_equal(factors[::2], np.stack([np.eye(3), 2.0 * np.eye(3)]))


def test_derivatives_are_those_of_the_log_determinant():
    matrix = positive(4)
    slope = jax.grad(lambda m: 2.0 * jnp.sum(jnp.log(jnp.diagonal(cholesky(m)))))(matrix)
    np.testing.assert_allclose((slope + slope.T) / 2, np.linalg.inv(matrix), atol=1e-12)
    curved = jax.hessian(lambda s: jnp.sum(inverse_lower(s * jnp.eye(3))))(2.0)
    np.testing.assert_allclose(curved, 3 * 2 / 2.0**3, atol=1e-12)


WAITING = """
import jax, os, numpy as np
from fedgrem.kernels.triangular import cholesky, inverse_lower
jax.config.update("jax_enable_x64", True)
many = 2 * os.cpu_count() + 1
run = jax.jit(lambda *batches: [inverse_lower(cholesky(batch)).sum() for batch in batches])
for _ in range(100):
    jax.block_until_ready(run(*[(2.0 + i) * np.tile(np.eye(10), (1000, 1, 1)) for i in range(many)]))
"""


def test_more_batches_than_cores_do_not_wait_for_each_other():
    subprocess.run([sys.executable, "-c", WAITING], check=True, timeout=300)
