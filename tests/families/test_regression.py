"""Regression components: weighted least squares, and starts that are finite on awkward rows."""

import jax
import numpy as np
import pytest

from fedgrem.families import LinearRegression
from fedgrem.families.base import q_value
from fedgrem.types import SiteData
from tests.conformance.families import FAMILIES

CASE = FAMILIES[1]


def some_mass(seed):
    return np.random.default_rng(seed).dirichlet(np.ones(2), size=20).T


def test_without_ridge_the_exact_step_is_weighted_least_squares():
    data, mass = CASE.site_data(0, 20), some_mass(0)
    root = np.sqrt(mass)
    expected = [np.linalg.lstsq(data.columns.T * s[:, None], data.target * s, rcond=None)[0] for s in root]
    np.testing.assert_allclose(LinearRegression(ridge=0.0).exact_step(data, CASE.theta, mass), expected, rtol=1e-10)


def test_the_default_ridge_costs_next_to_nothing():
    data, mass = CASE.site_data(1, 20), some_mass(1)
    free, ridged = (
        LinearRegression(ridge=r).exact_step(data, CASE.theta, mass) for r in (0.0, LinearRegression().ridge)
    )
    np.testing.assert_allclose(ridged, free, rtol=1e-4)


@pytest.mark.parametrize("factor", [1e-3, 1.0, 1e3])
def test_no_coefficients_near_the_exact_step_have_a_higher_q(factor):
    data, mass = CASE.site_data(2, 20), some_mass(2)
    data = data._replace(columns=factor * data.columns, rows_first=None)
    family = LinearRegression(ridge=0.0)
    best = np.asarray(family.exact_step(data, CASE.theta, mass))
    top = np.asarray(q_value(family, data, best, mass))
    for seed in range(20):
        away = best + np.random.default_rng(seed).normal(scale=0.01 / factor, size=best.shape)
        assert np.all(np.asarray(q_value(family, data, away, mass)) < top)


def test_coefficients_follow_the_units_of_the_covariates():
    data, mass = CASE.site_data(3, 20), some_mass(3)
    plain = LinearRegression().exact_step(data, CASE.theta, mass)
    scaled = LinearRegression().exact_step(data._replace(columns=1e3 * data.columns, rows_first=None), CASE.theta, mass)
    np.testing.assert_allclose(1e3 * np.asarray(scaled), plain, rtol=1e-9)


def test_a_component_that_holds_nothing_has_a_finite_exact_step():
    data = CASE.site_data(4, 20)
    mass = np.stack([np.ones(20), np.zeros(20)])
    assert np.all(np.isfinite(LinearRegression().exact_step(data, CASE.theta, mass)))


def test_starts_are_finite_where_covariates_are_collinear_or_zero():
    columns = np.stack([np.arange(6.0), 2.0 * np.arange(6.0), np.zeros(6)])
    data = SiteData(columns, np.arange(6.0), np.ones(6))
    theta = LinearRegression().draw_start(jax.random.PRNGKey(0), data, 4)
    assert theta.shape == (4, 3)
    assert np.all(np.isfinite(theta))
