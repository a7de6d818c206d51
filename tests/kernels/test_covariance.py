"""Weighted moments, against their definition."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import multivariate_normal

from fedgrem.families.gaussian import Gaussian
from fedgrem.kernels.covariance import moments, second_moments
from fedgrem.kernels.precision import precision
from fedgrem.kernels.spread import from_covariance
from fedgrem.types import SiteData


@pytest.mark.parametrize("n_features", [3, 7], ids=["few features", "more than two for each component"])
def test_moments_are_sums_over_the_rows_about_the_reference(n_features):
    generator = np.random.default_rng(0)
    rows, mass = 50.0 + generator.normal(size=(20, n_features)), generator.uniform(size=(2, 20))
    reference = 50.0 + generator.normal(size=(2, n_features))
    with precision("float64"):
        data = SiteData(jnp.asarray(rows.T), jnp.zeros(20), jnp.ones(20))
        found = moments(data, jnp.asarray(mass), jnp.asarray(reference))
    away = rows - reference[:, None]
    np.testing.assert_allclose(found.mass, mass.sum(axis=1))
    np.testing.assert_allclose(found.first, np.einsum("rn,rnp->rp", mass, away), atol=1e-10)
    np.testing.assert_allclose(found.second, np.einsum("rn,rnp,rnq->rpq", mass, away, away), atol=1e-10)


@pytest.mark.parametrize("n_features", [3, 7], ids=["few features", "more than two for each component"])
def test_second_moments_are_sums_of_products(n_features):
    generator = np.random.default_rng(0)
    rows, mass = generator.normal(size=(20, n_features)), generator.uniform(size=(2, 20))
    data = SiteData(jnp.asarray(rows.T), jnp.zeros(20), jnp.ones(20))
    found = second_moments(data, jnp.asarray(mass))
    np.testing.assert_allclose(found, np.einsum("rn,np,nq->rpq", mass, rows, rows), atol=1e-12)
    sites = jax.tree.map(lambda leaf: jnp.stack([leaf, 2.0 * leaf]), data)
    both = jax.jit(jax.vmap(second_moments))(sites, jnp.stack([jnp.asarray(mass)] * 2))
    np.testing.assert_allclose(both, jnp.stack([found, 4.0 * found]), rtol=1e-12)


@pytest.mark.parametrize("n_features", [1, 3, 7])
@pytest.mark.parametrize("far", [0.0, 1e4])
def test_full_densities_are_those_of_scipy_also_far_from_zero(n_features, far):
    generator = np.random.default_rng(n_features)
    rows = far + generator.normal(size=(30, n_features))
    means = far + generator.normal(size=(2, n_features))
    roots = generator.normal(size=(2, n_features, n_features)) + 0.1 * np.eye(n_features)
    covariances = roots @ np.swapaxes(roots, 1, 2)
    family = Gaussian("full")
    data = SiteData(jnp.asarray(rows.T), jnp.zeros(30), jnp.ones(30))
    found = family.log_density(data, jnp.asarray(means), from_covariance("full", jnp.asarray(covariances)))
    expected = [multivariate_normal(*parameters).logpdf(rows) for parameters in zip(means, covariances, strict=True)]
    np.testing.assert_allclose(found, expected, rtol=1e-6)
