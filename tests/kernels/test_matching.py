"""Relabelling: optimal on small problems, right on large ones, unmoved by a minority of bad sites."""

from itertools import permutations, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgrem.errors import InputError
from fedgrem.kernels import matching
from fedgrem.kernels.matching import (
    align_by_assignment,
    align_exhaustive,
    align_stepwise,
    alignment_score,
    best_assignment,
    pair_costs,
    relabel,
)


def planted(seed, n_sites, n_components, n_parameters=4, noise=0.1, spread=5.0):
    """Sites whose components are a common set, shuffled, with noise; and the relabelling that undoes the shuffle."""
    generator = np.random.default_rng(seed)
    centers = generator.normal(scale=spread, size=(n_components, n_parameters))
    shuffle = np.stack([generator.permutation(n_components) for _ in range(n_sites)])
    theta = centers[shuffle] + noise * generator.normal(size=(n_sites, n_components, n_parameters))
    return theta, shuffle


def brute_score(theta, orders):
    total = 0.0
    for k, other in product(range(len(theta)), repeat=2):
        for r in range(theta.shape[1]):
            total += np.linalg.norm(theta[k, orders[k][r]] - theta[other, orders[other][r]])
    return total


def assert_same_component_in_every_place(shuffle, order):
    """Place r holds the same planted component at every site."""
    found = np.take_along_axis(shuffle, order, axis=1)
    np.testing.assert_array_equal(found, np.broadcast_to(found[0], found.shape))


def test_relabel_puts_component_order_kr_in_place_r():
    array = np.array([[10.0, 11.0, 12.0], [20.0, 21.0, 22.0]])
    order = np.array([[2, 0, 1], [0, 2, 1]])
    np.testing.assert_array_equal(relabel(array, order), [[12.0, 10.0, 11.0], [20.0, 22.0, 21.0]])
    np.testing.assert_array_equal(relabel(array[..., None], order)[..., 0], relabel(array, order))


def test_pair_costs_are_euclidean_distances():
    generator = np.random.default_rng(0)
    a, b = generator.normal(size=(3, 4)), generator.normal(size=(5, 2, 4))
    expected = np.linalg.norm(a[:, None, None] - b[None], axis=-1)
    np.testing.assert_allclose(pair_costs(a, b), expected, rtol=1e-12)


def test_pair_costs_keep_their_digits_far_from_the_origin():
    a = np.array([[1e8, 1e8]]) + np.array([[0.0, 0.0], [3.0, 4.0]])
    np.testing.assert_allclose(pair_costs(a[:1], a), [[0.0, 5.0]], atol=1e-6)


def test_score_is_the_papers_sum_over_ordered_pairs():
    theta, _ = planted(1, 4, 3)
    orders = np.tile(np.arange(3), (4, 1))
    assert alignment_score(theta) == pytest.approx(brute_score(theta, orders), rel=1e-12)


@given(st.integers(0, 10_000), st.integers(2, 5))
def test_best_assignment_of_one_site_is_the_best_of_all_its_relabellings(seed, n_components):
    generator = np.random.default_rng(seed)
    theta, others = generator.normal(size=(n_components, 3)), generator.normal(size=(4, n_components, 3))

    def score(order):
        return sum(np.linalg.norm(theta[list(order)] - other, axis=1).sum() for other in others)

    best = min(map(score, permutations(range(n_components))))
    assert score(best_assignment(theta, others)) == pytest.approx(best, rel=1e-12)


@given(st.integers(0, 10_000), st.sampled_from([(2, 4), (3, 3), (4, 3), (6, 2)]))
def test_exhaustive_search_finds_the_lowest_score_of_all(seed, shape):
    n_sites, n_components = shape
    if n_components**n_sites > 81:
        n_sites = 3
    theta = np.random.default_rng(seed).normal(size=(n_sites, n_components, 2))
    every = product(permutations(range(n_components)), repeat=n_sites - 1)
    best = min(brute_score(theta, (tuple(range(n_components)), *orders)) for orders in every)
    assert alignment_score(relabel(theta, align_exhaustive(theta))) == pytest.approx(best, rel=1e-12)


@given(st.integers(0, 10_000), st.sampled_from([(2, 5), (3, 4), (4, 3), (6, 2)]), st.sampled_from([0.1, 1.0]))
def test_assignment_reaches_the_exhaustive_optimum_on_planted_sites(seed, shape, noise):
    theta, _ = planted(seed, *shape, n_parameters=2, noise=noise)
    best = alignment_score(relabel(theta, align_exhaustive(theta)))
    found = alignment_score(relabel(theta, align_by_assignment(theta, np.random.default_rng(seed))))
    assert found == pytest.approx(best, rel=1e-12)


def test_assignment_reaches_the_exhaustive_optimum_on_nearly_all_sites_of_pure_noise():
    # Nothing to find here, so a local optimum is allowed now and then; it must stay rare and shallow.
    excess = []
    for seed in range(60):
        theta = np.random.default_rng(seed).normal(size=(4, 3, 2))
        best = alignment_score(relabel(theta, align_exhaustive(theta)))
        found = alignment_score(relabel(theta, align_by_assignment(theta, np.random.default_rng(seed))))
        excess.append(found / best - 1.0)
    assert min(excess) >= -1e-12
    assert max(excess) < 0.05
    assert np.mean(np.array(excess) > 1e-9) <= 0.1


@given(st.integers(0, 10_000))
def test_stepwise_search_is_its_definition(seed):
    theta = np.random.default_rng(seed).normal(size=(5, 3, 2))
    chosen = [tuple(range(3))]
    for k in range(1, 5):
        chosen.append(min(permutations(range(3)), key=lambda order: brute_score(theta[: k + 1], [*chosen, order])))
    np.testing.assert_array_equal(align_stepwise(theta), chosen)


@given(st.integers(0, 10_000))
def test_relabelling_the_input_does_not_change_the_score_found(seed):
    generator = np.random.default_rng(seed)
    theta = generator.normal(size=(6, 4, 3))
    shuffle = np.stack([generator.permutation(4) for _ in range(6)])
    plain = alignment_score(relabel(theta, align_by_assignment(theta, np.random.default_rng(1))))
    mixed = relabel(theta, shuffle)
    again = alignment_score(relabel(mixed, align_by_assignment(mixed, np.random.default_rng(1))))
    assert again == pytest.approx(plain, rel=1e-12)


@pytest.mark.parametrize(
    "align", [align_exhaustive, align_stepwise, None], ids=["exhaustive", "stepwise", "assignment"]
)
def test_the_first_site_keeps_its_labels(align):
    theta, shuffle = planted(3, 4, 3)
    order = align_by_assignment(theta, np.random.default_rng(0)) if align is None else align(theta)
    np.testing.assert_array_equal(order[0], np.arange(3))
    assert_same_component_in_every_place(shuffle, order)


def test_thirty_components_at_two_hundred_sites_are_aligned_exactly():
    theta, shuffle = planted(4, 200, 30, n_parameters=10, noise=0.5, spread=2.0)
    order = align_by_assignment(theta, np.random.default_rng(0))
    assert_same_component_in_every_place(shuffle, order)


def test_sites_beyond_the_committee_are_aligned_with_it(monkeypatch):
    monkeypatch.setattr(matching, "COMMITTEE", 7)
    theta, shuffle = planted(5, 40, 6)
    order = align_by_assignment(theta, np.random.default_rng(0))
    np.testing.assert_array_equal(np.sort(order, axis=1), np.tile(np.arange(6), (40, 1)))
    assert_same_component_in_every_place(shuffle, order)


@pytest.mark.parametrize("distance", [10.0, 1e3, 1e6, 1e10, 1e13])
def test_far_hostile_sites_do_not_break_the_alignment_of_the_others(distance):
    theta, shuffle = planted(6, 12, 4)
    generator = np.random.default_rng(7)
    theta[:4] = distance * generator.normal(size=(4, 4, 4))
    order = align_by_assignment(theta, np.random.default_rng(0))
    assert_same_component_in_every_place(shuffle[4:], order[4:])


def test_hostile_sites_that_imitate_the_others_do_not_break_their_alignment():
    theta, shuffle = planted(8, 12, 4)
    # Every component of a hostile site is the same honest component, so that any labelling of it looks as good.
    theta[:4] = theta[11, 0]
    order = align_by_assignment(theta, np.random.default_rng(0))
    assert_same_component_in_every_place(shuffle[4:], order[4:])


def test_one_site_or_one_component_needs_no_relabelling():
    generator = np.random.default_rng(0)
    np.testing.assert_array_equal(align_by_assignment(generator.normal(size=(1, 3, 2)), generator), [[0, 1, 2]])
    np.testing.assert_array_equal(align_by_assignment(generator.normal(size=(3, 1, 2)), generator), [[0], [0], [0]])


def test_exhaustive_search_refuses_what_it_could_not_finish():
    with pytest.raises(
        InputError, match=r"exhaustive alignment of 10 sites with 5 components .* alignment='assignment'"
    ):
        align_exhaustive(np.zeros((10, 5, 2)))


def test_stepwise_search_refuses_too_many_components():
    with pytest.raises(
        InputError, match=r"stepwise alignment lists all 9! relabellings, at most 8 .*alignment='assignment'"
    ):
        align_stepwise(np.zeros((2, 9, 2)))
