"""A user's own density: only the density and a start are asked for."""

import jax
import jax.numpy as jnp
import numpy as np

from fedgrem.families import Custom, Gaussian
from fedgrem.families.base import ascend
from tests.conformance.families import FAMILIES

GAUSSIAN = FAMILIES[0]


def gaussian_row(row, theta):
    return -0.5 * jnp.sum((row - theta) ** 2) - 0.5 * row.shape[0] * jnp.log(2.0 * jnp.pi)


def two_numbers(key, rows):
    return jnp.stack([rows.mean(), rows.std()])


def test_a_gaussian_written_by_the_user_takes_the_steps_of_ours():
    own = Custom(gaussian_row, lambda key, rows: rows[0])
    data = GAUSSIAN.site_data(0, 20)
    mass = np.random.default_rng(0).dirichlet(np.ones(2), size=20).T
    ours = ascend(Gaussian(), data, GAUSSIAN.theta, mass, step_size=0.5)
    theirs = ascend(own, data, GAUSSIAN.theta, mass, step_size=0.5)
    # Its curvature goes through the bound for symmetric matrices, at most 2^(1/16) too large.
    direction = np.asarray(ours.theta) - GAUSSIAN.theta
    ratio = (np.asarray(theirs.theta) - GAUSSIAN.theta) / direction
    np.testing.assert_allclose(ratio, np.asarray(theirs.step_scale)[:, None] * np.ones((1, 2)), rtol=1e-9)
    assert np.all(np.asarray(theirs.step_scale) >= 2 ** (-1 / 16) * (1 - 1e-12))


def test_parameters_are_as_many_as_the_start_returns():
    assert Custom(gaussian_row, two_numbers).n_parameters(7) == 2


def test_every_component_starts_from_rows_of_its_own_and_never_from_padding():
    family = Custom(gaussian_row, lambda key, rows: rows.min(axis=0), start_rows=3)
    data = GAUSSIAN.site_data(1, 20, n_padded=32)
    data = data._replace(columns=np.where(data.row_weight > 0, data.columns + 100.0, 0.0), rows_first=None)
    theta = np.asarray(family.draw_start(jax.random.PRNGKey(1), data, 6))
    assert theta.shape == (6, 2)
    assert np.all(theta > 50.0)
    assert len({tuple(row) for row in theta}) > 1
