"""The E-step against scipy's log-sum-exp, where densities underflow and weights vanish."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import logsumexp

from fedgrem.kernels.responsibilities import ROWS_AT_ONCE, posterior, row_posterior


def reference(log_density, weights, row_weight):
    with np.errstate(divide="ignore"):
        joint = log_density + np.log(weights)[:, None]
    log_row = logsumexp(joint, axis=0)
    return row_weight * np.exp(joint - log_row), row_weight @ log_row


@given(st.integers(0, 10_000), st.sampled_from([1.0, 100.0, 1e5]))
def test_posterior_agrees_with_scipy_logsumexp_on_every_scale(seed, scale):
    generator = np.random.default_rng(seed)
    log_density = -scale * generator.exponential(size=(3, 8))
    weights, row_weight = generator.dirichlet(np.ones(3)), generator.uniform(0.0, 2.0, size=8)
    mass, log_likelihood = posterior(log_density, weights, row_weight)
    expected_mass, expected = reference(log_density, weights, row_weight)
    np.testing.assert_allclose(mass, expected_mass, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(log_likelihood, expected, rtol=1e-12)


def test_rows_a_hundred_thousand_nats_away_still_get_a_posterior():
    log_density = np.array([[-1e5, -1e5 - 1.0], [-1e5, -1e5]])
    mass, log_likelihood = posterior(log_density, np.array([0.5, 0.5]), np.ones(2))
    odds = 1.0 / (1.0 + np.e)
    np.testing.assert_allclose(mass, [[0.5, odds], [0.5, 1.0 - odds]], rtol=1e-9)
    assert np.isfinite(log_likelihood)


def test_mass_of_a_row_adds_up_to_its_weight():
    generator = np.random.default_rng(0)
    row_weight = np.array([0.0, 0.25, 1.0, 7.0])
    mass, _ = posterior(generator.normal(size=(3, 4)), np.array([0.2, 0.3, 0.5]), row_weight)
    np.testing.assert_allclose(mass.sum(axis=0), row_weight, rtol=1e-14)


def test_a_component_of_weight_zero_gets_no_mass_and_changes_nothing():
    generator = np.random.default_rng(1)
    log_density, row_weight = generator.normal(size=(3, 6)), np.ones(6)
    mass, log_likelihood = posterior(log_density, np.array([0.4, 0.0, 0.6]), row_weight)
    without, expected = posterior(log_density[[0, 2]], np.array([0.4, 0.6]), row_weight)
    np.testing.assert_array_equal(mass[1], np.zeros(6))
    np.testing.assert_allclose(np.asarray(mass)[[0, 2]], without, rtol=1e-14)
    np.testing.assert_allclose(log_likelihood, expected, rtol=1e-14)


def test_rows_of_weight_zero_count_for_nothing_whatever_their_density():
    generator = np.random.default_rng(2)
    log_density, weights = generator.normal(size=(2, 4)), np.array([0.5, 0.5])
    hostile = np.array([[-np.inf, np.nan, np.inf, -1e300], [-np.inf, np.nan, np.inf, 5.0]])
    padded = np.concatenate([log_density, hostile], axis=1)
    mass, log_likelihood = posterior(padded, weights, np.concatenate([np.ones(4), np.zeros(4)]))
    expected_mass, expected = posterior(log_density, weights, np.ones(4))
    np.testing.assert_array_equal(mass[:, 4:], np.zeros((2, 4)))
    np.testing.assert_array_equal(mass[:, :4], expected_mass)
    np.testing.assert_allclose(log_likelihood, expected, rtol=1e-14)


def test_rows_that_nothing_explains_leave_the_gradient_of_the_others_alone():
    density = jnp.log(jnp.array([[0.2, 0.0], [0.6, 0.0]]))
    weights, counted = jnp.array([0.5, 0.5]), jnp.array([1.0, 0.0])
    gradient = jax.grad(lambda d: posterior(d, weights, counted)[1])(density)
    np.testing.assert_allclose(gradient, [[0.25, 0.0], [0.75, 0.0]], rtol=1e-12)


def test_a_row_that_only_one_component_can_explain_belongs_to_it_wholly():
    mass, log_likelihood = posterior(np.array([[-np.inf], [-3.0]]), np.array([0.9, 0.1]), np.ones(1))
    np.testing.assert_array_equal(mass, [[0.0], [1.0]])
    np.testing.assert_allclose(log_likelihood, np.log(0.1) - 3.0, rtol=1e-14)


@pytest.mark.parametrize("n_rows", [ROWS_AT_ONCE, ROWS_AT_ONCE + 1, 3 * ROWS_AT_ONCE - 5])
def test_many_rows_are_met_in_parts_each_counted_once(n_rows):
    generator = np.random.default_rng(3)
    log_density, weights = generator.normal(size=(3, n_rows)), np.array([0.2, 0.3, 0.5])
    row_weight = generator.integers(0, 3, size=n_rows).astype(float)
    mass, log_likelihood = posterior(log_density, weights, row_weight)
    share, by_row = row_posterior(log_density, weights)
    np.testing.assert_allclose(mass, row_weight * share, rtol=1e-12)
    np.testing.assert_allclose(log_likelihood, row_weight @ np.asarray(by_row), rtol=1e-12)
