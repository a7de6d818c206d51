"""Spreads: the way there and back, and coordinates that know no units."""

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgrem.kernels import spread as spreads
from fedgrem.kernels.precision import precision

KINDS = ("spherical", "diag", "tied", "full")


def covariances(seed, size=3, count=4):
    """Well-conditioned matrices of the structure of a kind that has any: (count, p, p)."""
    factor = np.random.default_rng(seed).normal(size=(count, size, size + 3))
    return factor @ factor.transpose(0, 2, 1) / size


def shaped(kind, matrices):
    if kind == "spherical":
        return np.mean(np.diagonal(matrices, axis1=1, axis2=2), axis=1)[:, None, None] * np.eye(matrices.shape[-1])
    return matrices * np.eye(matrices.shape[-1]) if kind == "diag" else matrices


@pytest.mark.parametrize("kind", KINDS)
def test_a_covariance_survives_the_way_to_a_spread_and_back(kind):
    with precision("float64"):
        matrices = shaped(kind, covariances(1))
        spread = spreads.from_covariance(kind, jnp.asarray(matrices))
        assert spread.shape == (4, spreads.spread_size(kind, 3))
        np.testing.assert_allclose(spreads.to_covariance(kind, spread, 3), matrices, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
@given(st.integers(0, 2**32 - 1))
def test_any_numbers_are_a_covariance(kind, seed):
    with precision("float64"):
        numbers = jnp.asarray(np.random.default_rng(seed).normal(scale=2.0, size=spreads.spread_size(kind, 3)))
        assert np.linalg.eigvalsh(np.asarray(spreads.to_covariance(kind, numbers, 3))).min() > 0


@pytest.mark.parametrize("kind", KINDS)
def test_noise_units_are_those_in_which_the_covariance_is_the_identity(kind):
    with precision("float64"):
        matrix = shaped(kind, covariances(2))[0]
        spread = spreads.from_covariance(kind, jnp.asarray(matrix))
        white = spreads.in_noise_units(kind, jnp.asarray(np.linalg.cholesky(matrix).T), spread)
        np.testing.assert_allclose(white, np.eye(3), atol=1e-12)
        np.testing.assert_allclose(
            spreads.from_noise_units(kind, white, spread), np.linalg.cholesky(matrix).T, atol=1e-12
        )


@pytest.mark.parametrize("kind", ["diag", "tied", "full"])
def test_coordinates_about_a_reference_do_not_depend_on_units(kind):
    with precision("float64"):
        matrices, units = shaped(kind, covariances(3)), np.array([1e-3, 1.0, 1e3])
        scaled = matrices * units[:, None] * units
        own, other = (
            spreads.relative_spread(
                kind,
                spreads.from_covariance(kind, jnp.asarray(m[:3])),
                spreads.from_covariance(kind, jnp.asarray(m[3])),
                3,
            )
            for m in (matrices, scaled)
        )
        np.testing.assert_allclose(own, other, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_relative_coordinates_lead_back(kind):
    with precision("float64"):
        spread = spreads.from_covariance(kind, jnp.asarray(covariances(4)))
        away = spreads.relative_spread(kind, spread, spread[0], 3)
        np.testing.assert_allclose(away[0], 0.0, atol=1e-12)
        np.testing.assert_allclose(spreads.absolute_spread(kind, away, spread[0], 3), spread, atol=1e-10)


@pytest.mark.parametrize("kind", KINDS)
def test_n_rows_know_every_coordinate_to_about_one_over_root_n(kind):
    n, generator = 400, np.random.default_rng(5)
    matrix = covariances(6)[0] if kind in spreads.CHOLESKY else 4.0 * np.eye(3)
    draws = generator.multivariate_normal(np.zeros(3), matrix, size=(300, n))
    estimates = np.einsum("dnp,dnq->dpq", draws, draws) / n
    with precision("float64"):
        truth = spreads.from_covariance(kind, jnp.asarray(matrix))
        away = spreads.relative_spread(kind, spreads.from_covariance(kind, jnp.asarray(estimates)), truth, 3)
    np.testing.assert_allclose(np.asarray(away).std(axis=0) * np.sqrt(n), 1.0, rtol=0.15)
