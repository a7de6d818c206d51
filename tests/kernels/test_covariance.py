"""Weighted moments, against their definition."""

import jax.numpy as jnp
import numpy as np
import pytest

from fedgrem.kernels.covariance import moments
from fedgrem.kernels.precision import precision
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
