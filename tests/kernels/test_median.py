"""The median over sites is NumPy's."""

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedgrem.kernels.median import median
from fedgrem.kernels.precision import precision


@given(st.sampled_from(["float32", "float64"]), st.data())
def test_the_median_is_that_of_numpy(dtype, data):
    # Compiled programs take the tiniest numbers for zero.
    width = 32 if dtype == "float32" else 64
    elements = st.floats(-(2.0**100), 2.0**100, width=width, allow_subnormal=False) | st.sampled_from([0.0, -0.0, 1.0])
    values = data.draw(arrays(dtype, st.sampled_from([(1, 3), (2, 3), (5, 3), (8, 3)]), elements=elements))
    with precision(dtype):
        found = np.asarray(median(jnp.asarray(values)))
    assert found.dtype == dtype
    np.testing.assert_allclose(found, np.median(values, axis=0), rtol=1e-6 if dtype == "float32" else 1e-15)


@pytest.mark.parametrize("n_values", [4, 5])
def test_ties_infinities_and_missing_values_are_as_in_numpy(n_values):
    values = np.ones((n_values, 4))
    values[:, 1] = [np.inf, np.inf, -np.inf, 2.0, 3.0][:n_values]
    values[0, 2] = np.nan
    values[:2, 3] = [-np.inf, -7.0]
    with precision("float64"):
        found = np.asarray(median(jnp.asarray(values)))
    np.testing.assert_array_equal(found, np.median(values, axis=0))


def test_any_shape_is_kept():
    values = np.random.default_rng(0).normal(size=(7, 2, 3, 4))
    with precision("float64"):
        np.testing.assert_array_equal(median(jnp.asarray(values)), np.median(values, axis=0))
        assert median(jnp.asarray(values[:, 0, 0, 0])).shape == ()
