"""Compressors: unbiased, within their variance bound, and as sparse as they say."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgrem.kernels.compression import quantize, sparsify, variance_factor

VALUES = np.random.default_rng(0).normal(size=(3, 4))
DRAWS = np.random.default_rng(1).random((6_000, 13))


@pytest.mark.parametrize(
    ("compress", "bound"),
    [
        (lambda u: sparsify(u[0], VALUES, 0.3), variance_factor(12, 0.3, 0)),
        (lambda u: quantize(u[1:].reshape(3, 4), VALUES, 2), variance_factor(4, 1.0, 2)),
    ],
    ids=["sparsify", "quantize"],
)
def test_compressors_are_unbiased_and_keep_their_variance_bound(compress, bound):
    drawn = np.stack([compress(u) for u in DRAWS])
    np.testing.assert_allclose(drawn.mean(axis=0), VALUES, atol=0.09)
    assert (drawn**2).sum(axis=(1, 2)).mean() <= 1.02 * bound * (VALUES**2).sum()


@given(st.floats(0.0, 1.0, exclude_max=True), st.integers(1, 40), st.floats(0.01, 1.0))
def test_exactly_the_share_asked_for_is_kept_rounded_up(place, size, keep):
    kept = sparsify(place, np.ones(size), keep)
    count = int(np.ceil(keep * size))
    assert np.count_nonzero(kept) == count
    np.testing.assert_allclose(kept[kept > 0], size / count)


@given(st.integers(1, 40))
def test_every_coordinate_is_kept_equally_often(size):
    places = (np.arange(size) + 0.5) / size
    kept = np.sum([sparsify(place, np.ones(size), 0.3) > 0 for place in places], axis=0)
    np.testing.assert_array_equal(kept, kept[0])


@given(st.integers(0, 10_000), st.integers(1, 16))
def test_a_rounded_coordinate_is_a_multiple_of_its_unit_next_to_the_exact_one(seed, levels):
    generator = np.random.default_rng(seed)
    values = generator.normal(size=(2, 5))
    found = quantize(generator.random((2, 5)), values, levels)
    unit = np.linalg.norm(values, axis=1, keepdims=True) / levels
    steps = found / unit
    np.testing.assert_allclose(steps, np.round(steps), atol=1e-9)
    assert np.all(np.abs(found - values) < unit * (1 + 1e-9))


def test_nothing_stays_nothing():
    np.testing.assert_array_equal(quantize(np.full((2, 3), 0.5), np.zeros((2, 3)), 4), 0.0)
    np.testing.assert_array_equal(sparsify(0.9, np.zeros(5), 0.2), 0.0)
