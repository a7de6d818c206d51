"""Drawing rows: by weight, never a row of weight 0."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fedgrem.data.federation import Site, stack_sites
from fedgrem.families import seeding
from fedgrem.families.seeding import draw_rows, far_rows
from tests.conformance.families import unpadded


def stack(rows, weight, name="a"):
    return unpadded(Site(name, np.asarray(rows, dtype=float), None, np.asarray(weight, dtype=float)))


def drawn(weight, seed, count):
    """Places of rows; one column, in order."""
    return draw_rows(stack(np.arange(len(weight))[:, None], weight), np.random.default_rng(seed).random((1, count)))[0]


@given(
    st.integers(0, 10_000),
    st.lists(st.sampled_from([0.0, 0.0, 1e-8, 0.1, 1.0, 3.0, 1e8]), min_size=16, max_size=16).filter(any),
)
def test_rows_of_weight_zero_are_never_drawn(seed, weight):
    weight = np.array(weight)
    assert np.all(weight[drawn(weight, seed, 500)] > 0)


def test_the_ends_of_the_range_draw_rows_of_weight():
    ends = np.array([[0.0, np.nextafter(1.0, 0.0)]])
    places = draw_rows(stack(np.arange(4.0)[:, None], [0.0, 0.1, 0.7, 0.0]), ends)
    assert places.tolist() == [[1, 2]]


def test_rows_are_drawn_in_proportion_to_their_weight():
    weight = np.array([0.0, 1.0, 2.0, 0.0, 5.0, 0.0])
    share = np.bincount(drawn(weight, 0, 40_000), minlength=6) / 40_000
    np.testing.assert_allclose(share, weight / 8.0, atol=0.012)


@given(st.integers(0, 10_000), st.lists(st.integers(0, 3), min_size=8, max_size=8).filter(any))
def test_integer_weights_draw_the_same_as_repeated_rows(seed, times):
    owner = np.repeat(np.arange(8), times)
    np.testing.assert_array_equal(drawn(times, seed, 50), owner[drawn(np.ones(len(owner)), seed, 50)])


@given(st.integers(0, 10_000))
def test_far_rows_are_one_from_each_of_a_few_tight_clumps(seed):
    generator = np.random.default_rng(seed)
    clumps = 1e3 * np.array([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0], [0.0, -1.0]])
    site = stack(np.repeat(clumps, 4, axis=0) + generator.normal(size=(16, 2)), np.ones(16))
    for chosen in far_rows(site, site.rows, seed, "start", 3, 4)[0]:
        nearest = np.linalg.norm(chosen[:, None] - clumps, axis=-1).argmin(axis=1)
        assert sorted(nearest.tolist()) == [0, 1, 2, 3]


def test_fewer_distinct_rows_than_components_still_gives_rows_of_the_site():
    site = stack([[1.0, 2.0]] * 5 + [[9.0, 9.0]] * 3, [1.0] * 5 + [0.0] * 3)
    np.testing.assert_allclose(far_rows(site, site.rows, 0, "start", 2, 3)[0], np.full((2, 3, 2), [1.0, 2.0]))


def test_sites_drawn_a_few_at_a_time_draw_the_same(monkeypatch):
    generator = np.random.default_rng(1)
    sites = [Site(f"s{k}", generator.normal(size=(20, 3)), None, np.ones(20)) for k in range(7)]
    whole = stack_sites(sites, gaps=False)
    together = far_rows(whole, whole.rows, 0, "start", 4, 3)
    monkeypatch.setattr(seeding, "CACHE", 1)
    np.testing.assert_array_equal(far_rows(whole, whole.rows, 0, "start", 4, 3), together)
