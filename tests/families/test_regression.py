"""Regression components: weighted least squares, and starts that are finite on awkward rows."""

import numpy as np
import pytest

from fedgrem.data.federation import Site
from fedgrem.families.regression import LinearRegression
from fedgrem.types import Sums
from tests.conformance.families import REGRESSION, REGRESSIONS, unpadded


def some_mass(seed, n=20):
    return np.random.default_rng(seed).dirichlet(np.ones(2), size=n).T


def sums_of(stack, mass, family=None):
    family = family or LinearRegression()
    return Sums(mass[None] @ family.features_of(stack), family.rest_of(stack), np.zeros(1))


def exact(stack, mass, ridge=0.0):
    return LinearRegression(ridge=ridge).solve(sums_of(stack, mass), REGRESSION.theta[None])[0]


def scaled(seed, factor):
    site = REGRESSION.site(seed, 20)
    return unpadded(Site("a", factor * site.rows, site.target, site.row_weight))


def test_without_ridge_the_exact_step_is_weighted_least_squares():
    stack, mass = REGRESSION.stack(0, 20), some_mass(0)
    expected = [np.linalg.lstsq(stack.rows[0] * s[:, None], stack.target[0] * s, rcond=None)[0] for s in np.sqrt(mass)]
    np.testing.assert_allclose(exact(stack, mass), expected, rtol=1e-10)


def test_the_default_ridge_costs_next_to_nothing():
    stack, mass = REGRESSION.stack(1, 20), some_mass(1)
    np.testing.assert_allclose(exact(stack, mass, LinearRegression().ridge), exact(stack, mass), rtol=1e-4)


def test_coefficients_follow_the_units_of_the_covariates():
    mass, ridge = some_mass(3), LinearRegression().ridge
    plain, large = (exact(scaled(3, factor), mass, ridge) for factor in (1.0, 1e3))
    np.testing.assert_allclose(1e3 * large, plain, rtol=1e-9)


@pytest.mark.parametrize("case", REGRESSIONS, ids=repr)
def test_starts_are_finite_where_covariates_are_collinear_or_zero(case):
    rows = np.stack([np.arange(6.0), 2.0 * np.arange(6.0), np.zeros(6)], axis=1)
    stack = unpadded(Site("a", rows, np.arange(6.0), np.ones(6)))
    drawn = case.family.draw(stack, 0, "start", 2, 4, None)
    assert drawn.shape == (1, 2, 4, 3)
    assert np.isfinite(drawn).all()
    noise = case.family.first_noise(stack, drawn)
    assert noise is None or np.isfinite(noise).all()


@pytest.mark.parametrize("case", REGRESSIONS[1:], ids=repr)
def test_the_noise_is_the_mean_squared_residual(case):
    family = LinearRegression(case.family.noise, reg_covar=0.0)
    stack, mass, theta = case.stack(4, 20), some_mass(4), case.theta
    found = np.exp(2.0 * family.noise_step(sums_of(stack, mass, family), theta[None], None))[0, :, 0]
    squares = (mass * (stack.target[0] - theta @ stack.rows[0].T) ** 2).sum(axis=1)
    pooled, held = squares.sum() / 20.0, mass.sum(axis=1)
    own = (squares + 3.0 * pooled) / (held + 3.0)  # q + 1 rows of the pooled noise count as a component's own
    np.testing.assert_allclose(found, [pooled] if family.noise == "shared" else own, rtol=1e-9)


def test_noisy_sums_still_give_finite_coefficients_and_clean_ones_the_same():
    generator = np.random.default_rng(9)
    noise = Sums(generator.normal(size=(1, 4, 11)), np.zeros((1, 0)), np.zeros(1))
    assert np.isfinite(LinearRegression().solve_noisy(noise, np.zeros((1, 4, 3)))).all()
    stack, mass = REGRESSION.stack(5, 20), some_mass(5)
    clean = LinearRegression().solve_noisy(sums_of(stack, mass), REGRESSION.theta[None])[0]
    np.testing.assert_allclose(clean, exact(stack, mass, LinearRegression().ridge), rtol=1e-6)
    nothing = Sums(np.zeros((1, 1, 11)), np.zeros((1, 0)), np.zeros(1))
    np.testing.assert_array_equal(LinearRegression().solve_noisy(nothing, np.zeros((1, 1, 3))), 0.0)
