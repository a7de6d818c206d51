"""Estimated noise: densities against SciPy, M-steps against their definitions, and against each other."""

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import multivariate_normal, norm

from fedgrem.families import Gaussian, LinearRegression
from fedgrem.families.base import expect
from fedgrem.kernels import spread as spreads
from fedgrem.kernels.precision import precision
from fedgrem.kernels.responsibilities import posterior
from fedgrem.types import Params
from tests.conformance.families import WITH_NOISE

GAUSSIANS = [case for case in WITH_NOISE if isinstance(case.family, Gaussian)]
REGRESSIONS = [case for case in WITH_NOISE if isinstance(case.family, LinearRegression)]
THETA = np.array([[1.0, -2.0], [-1.0, 0.5]])


@pytest.fixture(autouse=True)
def double():
    with precision("float64"):
        yield


def some_spread(family, seed=0):
    matrices = np.random.default_rng(seed).normal(size=(2, 2, 4))
    matrices = matrices @ matrices.transpose(0, 2, 1)
    return family.structured(jnp.asarray(matrices), jnp.array([0.3, 0.7]))


@pytest.mark.parametrize("case", GAUSSIANS, ids=repr)
def test_the_log_density_is_scipys(case):
    data, spread = case.site_data(0, 12), some_spread(case.family)
    covariance = np.asarray(spreads.to_covariance(case.family.covariance, spread, 2))
    covariance = np.broadcast_to(covariance, (2, 2, 2))
    expected = [multivariate_normal(THETA[r], covariance[r]).logpdf(np.asarray(data.rows)) for r in range(2)]
    np.testing.assert_allclose(case.family.log_density(data, jnp.asarray(THETA), spread), expected, rtol=1e-10)


@pytest.mark.parametrize("case", REGRESSIONS, ids=repr)
def test_the_log_density_of_a_response_is_scipys(case):
    data = case.site_data(0, 12)
    logs = jnp.array([[0.5]]) if case.family.noise == "shared" else jnp.array([[0.5], [-0.3]])
    mean = THETA @ np.asarray(data.columns)
    expected = norm(mean, np.exp(np.broadcast_to(logs, (2, 1)))).logpdf(np.asarray(data.target))
    np.testing.assert_allclose(case.family.log_density(data, jnp.asarray(THETA), logs), expected, rtol=1e-10)


@pytest.mark.parametrize("case", GAUSSIANS, ids=repr)
@pytest.mark.parametrize("away", [0.0, 1e4])
def test_an_e_step_leaves_out_only_what_the_components_of_a_row_have_in_common(case, away):
    data, spread = case.site_data(0, 12), some_spread(case.family)
    weight = jnp.ones(12).at[3].set(2.5).at[-1].set(0.0)
    data = data._replace(columns=jnp.asarray(data.columns) + away, rows_first=None, row_weight=weight)
    params = Params(jnp.array([0.3, 0.7]), jnp.asarray(THETA) + away, spread)
    mass, log_likelihood = expect(case.family, data, params)
    density = case.family.log_density(data, params.theta, spread)
    expected, expected_value = posterior(density, params.weights, weight)
    np.testing.assert_allclose(mass, expected, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(log_likelihood, expected_value, rtol=1e-6)


@pytest.mark.parametrize("case", WITH_NOISE, ids=repr)
def test_the_m_step_of_the_noise_raises_q(case):
    """Where nothing is borrowed it is the maximizer; where a few pooled rows are, it is near it."""
    data, theta = case.site_data(3, 400), jnp.asarray(case.theta)
    first = case.family.first_spread(data, theta)
    params = Params(jnp.array([0.5, 0.5]), theta, first)
    mass, _ = expect(case.family, data, params)
    best = case.family.spread_step(data, theta, mass, first)

    def q(spread):
        return float(jnp.sum(mass * case.family.log_density(data, theta, spread)))

    generator = np.random.default_rng(0)
    for size in (0.05, 0.2):
        for _ in range(20):
            other = best + size * jnp.asarray(generator.normal(size=best.shape))
            assert q(best) > q(other) - (0.0 if best.shape[0] == 1 else 1.0)


@pytest.mark.parametrize("kind", ["tied", "full", "diag", "spherical"])
def test_covariances_are_the_weighted_moments(kind):
    family, generator = Gaussian(kind, reg_covar=0.0), np.random.default_rng(2)
    case = GAUSSIANS[0]
    data, mass = case.site_data(5, 50), jnp.asarray(generator.dirichlet([1.0, 1.0], size=50).T)
    found = family.spread_step(data, jnp.asarray(THETA), mass, family.first_spread(data, jnp.asarray(THETA)))
    away = np.asarray(data.rows)[None] - THETA[:, None]
    scatter = np.einsum("rn,rnp,rnq->rpq", mass, away, away)
    held = np.asarray(mass.sum(axis=1))
    pooled = scatter.sum(axis=0) / held.sum()
    more = 4.0 if kind == "full" else 2.0
    own = (scatter + more * pooled) / (held + more)[:, None, None]
    expected = {"tied": pooled[None], "full": own, "diag": own * np.eye(2)}.get(
        kind, np.trace(own, axis1=1, axis2=2)[:, None, None] / 2 * np.eye(2)
    )
    np.testing.assert_allclose(spreads.to_covariance(kind, found, 2), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("case", WITH_NOISE, ids=repr)
def test_the_noise_from_statistics_is_that_from_the_rows(case):
    data, theta = case.site_data(4, 60), jnp.asarray(case.theta)
    spread = case.family.first_spread(data, theta)
    mass, _ = expect(case.family, data, Params(jnp.array([0.4, 0.6]), theta, spread))
    statistics = case.family.sufficient_statistics(data, mass)
    assert statistics.shape == (2, case.family.n_statistics(2))
    found = case.family.from_statistics(statistics, theta)
    np.testing.assert_allclose(
        case.family.spread_from_statistics(statistics, found, spread),
        case.family.spread_step(data, found, mass, spread),
        rtol=1e-6, atol=1e-7,
    )  # fmt: skip


@pytest.mark.parametrize("case", WITH_NOISE, ids=repr)
def test_a_component_of_no_rows_and_a_singular_site_stay_finite(case):
    data = case.site_data(6, 20)
    flat = data._replace(columns=data.columns * 0.0 + 1.0, rows_first=None, target=data.target * 0.0)
    mass = jnp.stack([jnp.ones(20), jnp.zeros(20)])
    for rows in (data, flat):
        spread = case.family.first_spread(rows, jnp.asarray(case.theta))
        after = case.family.spread_step(rows, jnp.asarray(case.theta), mass, spread)
        assert np.isfinite(np.asarray(spread)).all()
        assert np.isfinite(np.asarray(after)).all()


@pytest.mark.parametrize("case", WITH_NOISE, ids=repr)
def test_the_average_noise_is_that_of_the_average_variance(case):
    family, logs = case.family, np.array([0.0, 1.0])
    if isinstance(family, Gaussian):
        kind = family.covariance
        matrices = jnp.asarray(np.exp(2.0 * logs)[:, None, None, None] * np.eye(2))
        spread = spreads.from_covariance(kind, matrices)
        average = spreads.to_covariance(kind, family.average_spread(spread, jnp.array([0.25, 0.75])), 2)[0]
        np.testing.assert_allclose(average, (0.25 + 0.75 * np.exp(2.0)) * np.eye(2), rtol=1e-12)
    else:
        average = family.average_spread(jnp.asarray(logs)[:, None, None], jnp.array([0.25, 0.75]))
        np.testing.assert_allclose(np.exp(2.0 * average), 0.25 + 0.75 * np.exp(2.0), rtol=1e-12)
