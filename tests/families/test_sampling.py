"""Drawing rows: by weight, never a row of weight 0."""

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fedgrem.families.sampling import draw_rows, spread_rows
from fedgrem.types import SiteData

draw = jax.jit(draw_rows, static_argnames="shape")
spread = jax.jit(spread_rows, static_argnames="n_components")


def site(rows, weight):
    return SiteData(jnp.asarray(rows.T), jnp.zeros(len(rows)), jnp.asarray(weight, dtype=float))


@given(
    st.integers(0, 10_000),
    st.lists(st.sampled_from([0.0, 0.0, 1e-8, 0.1, 1.0, 3.0, 1e8]), min_size=16, max_size=16).filter(any),
)
def test_rows_of_weight_zero_are_never_drawn(seed, weight):
    weight = np.array(weight)
    index = np.asarray(draw(jax.random.PRNGKey(seed), weight, (500,)))
    assert np.all(weight[index] > 0)


def test_rows_are_drawn_in_proportion_to_their_weight():
    weight = np.array([0.0, 1.0, 2.0, 0.0, 5.0, 0.0])
    index = np.asarray(draw(jax.random.PRNGKey(0), weight, (40_000,)))
    share = np.bincount(index, minlength=6) / 40_000
    np.testing.assert_allclose(share, weight / 8.0, atol=0.012)


@given(st.integers(0, 10_000), st.lists(st.integers(0, 3), min_size=8, max_size=8).filter(any))
def test_integer_weights_draw_the_same_as_repeated_rows(seed, times):
    times = np.array(times)
    repeated = np.zeros(24)
    repeated[: times.sum()] = 1.0
    owner = np.append(np.repeat(np.arange(8), times), np.full(24 - times.sum(), -1))
    key = jax.random.PRNGKey(seed)
    weighted = np.asarray(draw(key, times.astype(float), (50,)))
    np.testing.assert_array_equal(weighted, owner[np.asarray(draw(key, repeated, (50,)))])


@given(st.integers(0, 10_000))
def test_spread_rows_of_integer_weights_are_those_of_repeated_rows(seed):
    generator = np.random.default_rng(seed)
    # Distinct weights: two equally heavy rows that are each other's nearest tie exactly, and rounding would decide.
    rows, times = generator.normal(size=(8, 2)), generator.permutation(8)
    key = jax.random.PRNGKey(seed)
    weighted = spread(key, site(rows, times), n_components=4)
    repeated = spread(key, site(np.repeat(rows, times, axis=0), np.ones(28)), n_components=4)
    np.testing.assert_array_equal(weighted, repeated)


@given(st.integers(0, 10_000))
def test_spread_rows_takes_one_row_from_each_of_a_few_tight_clumps(seed):
    generator = np.random.default_rng(seed)
    clumps = 1e3 * np.array([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0], [0.0, -1.0]])
    rows = np.repeat(clumps, 4, axis=0) + generator.normal(size=(16, 2))
    chosen = np.asarray(spread(jax.random.PRNGKey(seed), site(rows, np.ones(16)), n_components=4))
    nearest = np.linalg.norm(chosen[:, None] - clumps, axis=-1).argmin(axis=1)
    assert sorted(nearest.tolist()) == [0, 1, 2, 3]


def test_fewer_distinct_rows_than_components_still_gives_rows_of_the_site():
    rows = np.array([[1.0, 2.0]] * 5 + [[9.0, 9.0]] * 3)
    chosen = np.asarray(spread(jax.random.PRNGKey(0), site(rows, [1.0] * 5 + [0.0] * 3), n_components=3))
    np.testing.assert_array_equal(chosen, [[1.0, 2.0]] * 3)
