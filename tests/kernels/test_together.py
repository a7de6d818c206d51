"""Who says the same, and who stands apart together: how often by chance, and what is found."""

from math import comb

import numpy as np
import pytest
from scipy.stats import f

from fedgrem.kernels.together import nearly_same, standing_apart

CHANCE = 0.01


def draw(generator, n_sites=10, spread=0.0, directions=10, rows=None):
    """Honest estimates of five components in ten columns, in units of the noise, and the rows they rest on."""
    rows = generator.choice([10.0, 30.0, 90.0], size=(n_sites, 5)) if rows is None else np.full((n_sites, 5), rows)
    own = np.zeros((n_sites, 5, 10))
    own[..., :directions] = spread * generator.normal(size=(n_sites, 5, directions))
    return own + generator.normal(size=own.shape) / np.sqrt(rows)[..., None], rows


def apart(points, rows, most=None, size=None):
    n_sites = len(points)
    size = np.ones(n_sites, dtype=int) if size is None else size
    found = standing_apart(points, rows, size, int(0.4 * n_sites) if most is None else most, CHANCE)
    return [group.members.tolist() for group in found]


@pytest.mark.parametrize("n_sites", [5, 10, 20])
@pytest.mark.parametrize(("spread", "directions"), [(0.0, 10), (0.3, 10), (0.5, 3)], ids=str)
def test_honest_sites_form_no_group_and_say_different_things(n_sites, spread, directions):
    generator = np.random.default_rng(0)
    groups = same = 0
    for _ in range(100):
        points, rows = draw(generator, n_sites, spread, directions)
        groups += len(apart(points, rows)) > 0
        same += bool((nearly_same(points, rows, CHANCE) != np.arange(n_sites)).any())
    assert groups <= 4  # of 100: at one in a hundred, five and more have a chance of 0.4%
    assert same <= 4


@pytest.mark.parametrize("bad", [[9], [3, 9], [2, 5, 9], [1, 4, 6, 9]], ids=str)
def test_a_shift_too_small_for_any_one_site_is_found_where_several_have_it(bad):
    generator = np.random.default_rng(1)
    for _ in range(20):
        points, rows = draw(generator, rows=30.0)
        points[bad] += 0.35  # 1.9 standard errors of every coordinate
        assert apart(points, rows) == ([bad] if len(bad) > 1 else [])


def test_where_sites_truly_differ_the_shift_has_to_be_larger_by_that():
    generator = np.random.default_rng(2)
    points, rows = draw(generator, spread=0.5, rows=1e4)
    shifted = points.copy()
    shifted[[2, 5, 9]] += 0.1
    assert apart(shifted, rows) == []
    shifted[[2, 5, 9]] += 1.0
    assert apart(shifted, rows) == [[2, 5, 9]]


def test_one_that_is_far_off_is_no_group_and_hides_none():
    generator = np.random.default_rng(3)
    for _ in range(10):
        points, rows = draw(generator, 12, rows=30.0)
        points[0] += 1e8 * generator.normal(size=points[0].shape)
        assert apart(points, rows) == []
        points[[4, 7, 9]] += 0.4
        assert apart(points, rows) == [[4, 7, 9]]


def test_a_group_that_is_far_off_hides_none_nearby():
    points, rows = draw(np.random.default_rng(4), 15, rows=30.0)
    points[[1, 2, 3]] += 0.4
    points[[4, 5, 6], :, ::2] -= 9.0
    assert apart(points, rows) == [[4, 5, 6], [1, 2, 3]]


def test_no_more_than_it_is_told_are_a_group():
    points, rows = draw(np.random.default_rng(5), rows=30.0)
    points[:6] += 1.0
    assert apart(points, rows) == [[6, 7, 8, 9]]
    assert apart(points, rows, most=3) == []


def test_sites_that_say_the_same_are_one_voice_and_a_group_by_themselves():
    points, rows = draw(np.random.default_rng(6), rows=30.0)
    points[[3, 7, 8]] = points[3] + 0.4
    first = nearly_same(points, rows, CHANCE)
    assert first.tolist() == [0, 1, 2, 3, 4, 5, 6, 3, 3, 9]
    heard, size = np.unique(first, return_counts=True)
    assert heard[apart(points[heard], rows[heard], most=4, size=size)[0]].tolist() == [3]


def test_those_who_differ_by_much_less_than_their_rows_would_have_it_say_nearly_the_same():
    generator = np.random.default_rng(7)
    points, rows = draw(generator, rows=30.0)
    points[7:] = points[7] + 0.3 * generator.normal(size=(3, 5, 10)) / np.sqrt(30.0)
    assert nearly_same(points, rows, CHANCE).tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 7, 7]


def test_sites_without_rows_of_a_component_do_not_agree_for_standing_where_they_were_told():
    points, rows = draw(np.random.default_rng(8), rows=30.0)
    points[:4, 1:], rows[:4, 1:] = 0.0, 1e-3
    assert (nearly_same(points, rows, CHANCE) == np.arange(10)).all()


def test_what_a_site_claims_to_hold_makes_it_no_yardstick():
    points, rows = draw(np.random.default_rng(9), rows=30.0)
    points[[2, 5, 9]] += 0.3
    rows[[2, 5, 9]] *= 1e6
    assert apart(points, rows) == [[2, 5, 9]]


def test_order_does_not_matter():
    points, rows = draw(np.random.default_rng(10))
    points[[2, 5, 9]] += 0.5
    order = np.random.default_rng(0).permutation(10)
    assert sorted(order[apart(points[order], rows[order])[0]]) == apart(points, rows)[0] == [2, 5, 9]


def test_the_chance_of_a_group_that_is_given_is_that_of_an_f_number():
    """With one candidate subset the chance is the textbook one, times the subsets there might have been."""
    points = np.random.default_rng(11).normal(size=(7, 1, 40))
    points[[0, 1]] += 1.2
    group = standing_apart(points, np.ones((7, 1)), np.ones(7, dtype=int), 2, CHANCE)[0]
    assert group.members.tolist() == [0, 1]
    gap = points[:2].mean(axis=0) - points[2:].mean(axis=0)
    between = np.sum(gap**2) / (1 / 2 + 1 / 5) / 40
    within = np.sum((points[2:] - points[2:].mean(axis=0)) ** 2) / (4 * 40)
    exact = 2 * comb(7, 2) * f.sf(between / max(within, 1.0), 40, 160)
    assert group.p_value == pytest.approx(exact, rel=1e-9)
