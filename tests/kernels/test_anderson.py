"""Anderson acceleration: exact on affine maps, silent where it knows nothing, and with a guard."""

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
    return lambda x: point + (x - point) @ matrix, point


def along(points, residuals, memory):
    """The trail of one iteration through these points, ``(T, d)``."""
    trail = new_trail(np.zeros((1, points.shape[1])), memory)
    for x, f in zip(points, residuals, strict=True):
        trail = extend(trail, (x + f)[None], f[None])
    return trail


@given(st.integers(0, 2**32 - 1), st.integers(1, 4))
def test_an_affine_map_with_few_slow_directions_is_solved_in_a_few_steps(seed, slow):
    g, point = affine(seed, slow)
    x = np.zeros((1, 6))
    trail = new_trail(x, memory=5)
    for _ in range(2 * slow + 3):  # rounding costs a few more than the slow + 2 of exact arithmetic
        trail = extend(trail, g(x), g(x) - x)
        x = g(x) + correction(trail)
    np.testing.assert_allclose(x[0], point, atol=1e-5)


@given(st.integers(0, 2**32 - 1))
def test_iterations_side_by_side_do_not_see_each_other(seed):
    generator = np.random.default_rng(seed)
    points, residuals = generator.normal(size=(2, 4, 3, 6))
    residuals[:, 1] = 0.0, np.nan, 1.0, 0.0, 0.0, 0.0  # one that has left the numbers
    together = new_trail(np.zeros((3, 6)), memory=3)
    for x, f in zip(points, residuals, strict=True):
        together = extend(together, x + f, f)
    for b in range(3):
        np.testing.assert_array_equal(correction(along(points[:, b], residuals[:, b], 3))[0], correction(together)[b])
    np.testing.assert_array_equal(correction(together)[1], 0.0)


def test_a_trail_of_one_point_says_nothing():
    np.testing.assert_array_equal(correction(along(np.ones((1, 3)), np.ones((1, 3)), 4)), 0.0)


def test_a_settled_trail_says_nothing_and_no_nan():
    np.testing.assert_array_equal(correction(along(np.ones((4, 3)), np.zeros((4, 3)), 2)), 0.0)


def test_the_oldest_point_gives_way():
    trail = along(np.arange(5.0)[:, None] ** 2, np.zeros((5, 1)), 2)
    np.testing.assert_array_equal(trail.images.ravel(), [5.0, 7.0, 16.0])
    assert trail.length.tolist() == [3]


@pytest.mark.parametrize(("growth", "astray"), [(0.9, False), (GROWTH * 0.99, False), (GROWTH * 1.01, True)])
def test_a_residual_that_grows_too_much_is_noticed(growth, astray):
    trail = along(np.zeros((2, 2)), np.tile([1.0, 0.0], (2, 1)), 2)
    assert went_astray(trail, growth * np.array([[0.0, 1.0]])).tolist() == [astray]
    assert went_astray(trail, np.array([[np.nan, 0.0]])).tolist() == [True]


def test_the_first_points_cannot_be_astray():
    trail = along(np.zeros((1, 1)), np.ones((1, 1)), 2)
    assert went_astray(trail, np.array([[100.0]])).tolist() == [False]
