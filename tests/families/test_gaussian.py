"""Gaussian components: closed forms."""

import jax
import numpy as np

from fedgrem.families import Gaussian
from fedgrem.families.base import ascend
from tests.conformance.families import FAMILIES

CASE = FAMILIES[0]


def test_a_full_gradient_step_is_the_exact_m_step():
    data = CASE.site_data(0, 20)
    mass = np.random.default_rng(0).dirichlet(np.ones(2), size=20).T
    moved = ascend(Gaussian(), data, CASE.theta, mass, step_size=1.0)
    np.testing.assert_allclose(moved.theta, Gaussian().exact_step(data, CASE.theta, mass), rtol=1e-12, atol=1e-12)
    np.testing.assert_array_equal(moved.step_scale, np.ones(2))


def test_the_exact_step_is_the_weighted_mean():
    data = CASE.site_data(1, 20)
    mass = np.random.default_rng(1).dirichlet(np.ones(2), size=20).T
    expected = [np.average(data.columns.T, axis=0, weights=m) for m in mass]
    np.testing.assert_allclose(Gaussian().exact_step(data, CASE.theta, mass), expected, rtol=1e-12)


def test_the_gradient_vanishes_at_the_exact_step():
    data = CASE.site_data(2, 20)
    mass = np.random.default_rng(2).dirichlet(np.ones(2), size=20).T
    best = Gaussian().exact_step(data, CASE.theta, mass)
    np.testing.assert_allclose(Gaussian().q_gradient(data, best, mass), 0.0, atol=1e-12)


def test_a_component_that_holds_nothing_stays_where_it_is():
    data = CASE.site_data(3, 20)
    mass = np.stack([np.ones(20), np.zeros(20)])
    np.testing.assert_array_equal(Gaussian().exact_step(data, CASE.theta, mass)[1], CASE.theta[1])
    np.testing.assert_array_equal(ascend(Gaussian(), data, CASE.theta, mass, step_size=1.0).theta[1], CASE.theta[1])


def test_starts_are_rows_of_the_site():
    data = CASE.site_data(4, 20, n_padded=24)
    draw = jax.jit(Gaussian().draw_start, static_argnums=2)
    theta = np.asarray(draw(jax.random.PRNGKey(0), data, 5))
    rows = {tuple(row) for row in data.columns.T[:20]}
    assert {tuple(row) for row in theta} <= rows
    assert len({tuple(row) for row in theta}) == 5
