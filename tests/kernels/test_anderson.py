"""Anderson acceleration: exact on affine maps, silent where it knows nothing, and with a guard."""

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgrem.kernels.anderson import GROWTH, correction, extend, new_trail, went_astray


def affine(seed, slow):
    """A contraction of 6 coordinates with ``slow`` slow directions, and its fixed point."""
    generator = np.random.default_rng(seed)
    rotation, _ = np.linalg.qr(generator.normal(size=(6, 6)))
    rates = np.concatenate([np.linspace(0.9, 0.97, slow), np.zeros(6 - slow)])
    matrix, point = rotation * rates @ rotation.T, generator.normal(size=6)
    return lambda x: point + matrix @ (x - point), point


@given(st.integers(0, 2**32 - 1), st.integers(1, 4))
def test_an_affine_map_with_few_slow_directions_is_solved_in_a_few_steps(seed, slow):
    g, point = affine(seed, slow)
    x, trail = jnp.zeros(6), new_trail(jnp.zeros(6), memory=5)
    for _ in range(2 * slow + 3):  # rounding costs a few more than the slow + 2 of exact arithmetic
        trail = extend(trail, x, g(x) - x)
        x = g(x) + correction(trail)
    np.testing.assert_allclose(x, point, atol=1e-5)


def test_a_trail_of_one_point_says_nothing():
    trail = extend(new_trail(jnp.zeros(3), memory=4), jnp.ones(3), jnp.ones(3))
    np.testing.assert_array_equal(correction(trail), 0.0)


def test_a_settled_trail_says_nothing_and_no_nan():
    trail = new_trail(jnp.zeros(3), memory=2)
    for _ in range(4):
        trail = extend(trail, jnp.ones(3), jnp.zeros(3))
    np.testing.assert_array_equal(correction(trail), 0.0)


def test_the_oldest_point_gives_way():
    trail = new_trail(jnp.zeros(1), memory=2)
    for place in range(5):
        trail = extend(trail, jnp.array([float(place)]), jnp.zeros(1))
    np.testing.assert_array_equal(trail.points.ravel(), [2.0, 3.0, 4.0])
    assert int(trail.length) == 3


@pytest.mark.parametrize(("growth", "astray"), [(0.9, False), (GROWTH * 0.99, False), (GROWTH * 1.01, True)])
def test_a_residual_that_grows_too_much_is_noticed(growth, astray):
    trail = new_trail(jnp.zeros(2), memory=2)
    for _ in range(2):
        trail = extend(trail, jnp.zeros(2), jnp.array([1.0, 0.0]))
    assert bool(went_astray(trail, growth * jnp.array([0.0, 1.0]))) is astray
    assert bool(went_astray(trail, jnp.array([jnp.nan, 0.0])))


def test_the_first_points_cannot_be_astray():
    trail = extend(new_trail(jnp.zeros(1), memory=2), jnp.zeros(1), jnp.ones(1))
    assert not bool(went_astray(trail, jnp.array([100.0])))
