"""The field's robust means against closed forms, brute force, and what each must not depend on."""

import numpy as np
import pytest
from scipy.optimize import minimize

from fedgrem.algorithms.robust_rules import ROBUST_RULES
from fedgrem.kernels.robust import (
    best_scored,
    centered_clipping,
    coordinate_median,
    geometric_median,
    krum_scores,
    mean_of,
    nearest_neighbor_mixing,
    trimmed_mean,
)

POINTS = np.random.default_rng(0).normal(size=(9, 3, 4))
RULES = [rule(bad=0.25, mixing=mixing) for rule in ROBUST_RULES.values() for mixing in (False, True)]


def center(rule, theta, start=None, present=None, threshold=1.0):
    ones = np.ones(theta.shape[:-1])
    start = np.zeros(theta.shape[1:]) if start is None else start
    present = np.ones(len(theta), dtype=bool) if present is None else present
    return rule(theta, ones * present[:, None], threshold * ones, ones, start, present)


def test_median_and_trimmed_mean_are_those_of_every_coordinate():
    np.testing.assert_allclose(coordinate_median(POINTS), np.median(POINTS, axis=0))
    ordered = np.sort(POINTS, axis=0)
    np.testing.assert_allclose(trimmed_mean(POINTS, 2), ordered[2:7].mean(axis=0))
    np.testing.assert_allclose(trimmed_mean(POINTS, 0), POINTS.mean(axis=0))
    np.testing.assert_allclose(trimmed_mean(POINTS, 99), np.median(POINTS, axis=0))


def test_geometric_median_has_the_least_total_distance():
    found = geometric_median(POINTS)
    for r in range(3):
        best = minimize(lambda c, r=r: np.linalg.norm(POINTS[:, r] - c, axis=1).sum(), np.zeros(4), tol=1e-12)
        np.testing.assert_allclose(found[r], best.x, atol=1e-5)


def test_geometric_median_of_points_on_one_another_is_where_most_of_them_are():
    points = np.array([[1.0, 2.0]] * 4 + [[5.0, 5.0], [-7.0, 0.0]])
    np.testing.assert_allclose(geometric_median(points), [1.0, 2.0], atol=1e-9)


def test_krum_scores_are_sums_over_the_nearest_others():
    scores = krum_scores(POINTS, 3)
    for r in range(3):
        for k in range(9):
            others = np.sort([np.sum((POINTS[k, r] - POINTS[j, r]) ** 2) for j in range(9) if j != k])
            np.testing.assert_allclose(scores[k, r], others[: 9 - 3 - 2].sum())


def test_the_best_scored_are_as_many_as_asked_for_and_their_mean_is_theirs():
    scores = np.array([[3.0], [1.0], [1.0], [2.0]])
    np.testing.assert_array_equal(best_scored(scores, 1)[:, 0], [False, True, False, False])
    chosen = best_scored(scores, 3)
    np.testing.assert_array_equal(chosen[:, 0], [False, True, True, True])
    np.testing.assert_allclose(mean_of(POINTS[:4, :1], chosen)[0], POINTS[1:4, 0].mean(axis=0))


def test_clipping_adds_the_cut_steps():
    points, start = np.array([[1.0], [2.0], [30.0]]), np.zeros(1)
    # Distances 1, 2 and 30 have the median 2: steps of 1, 2 and 2.
    np.testing.assert_allclose(centered_clipping(points, start, steps=1), [5.0 / 3.0])


def test_mixing_is_the_mean_of_the_nearest():
    points = np.array([[0.0], [1.0], [3.0], [50.0]])
    np.testing.assert_allclose(nearest_neighbor_mixing(points, 2).ravel(), [0.5, 0.5, 2.0, 26.5])


@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_every_rule_follows_shifts_and_rotations_and_ignores_order_and_problems_beside_it(rule):
    generator = np.random.default_rng(1)
    start, move = generator.normal(size=(3, 4)), generator.normal(size=(3, 4))
    plain = center(rule, POINTS, start).center
    np.testing.assert_allclose(center(rule, POINTS + move, start + move).center, plain + move, atol=1e-6)
    order = generator.permutation(9)
    np.testing.assert_allclose(center(rule, POINTS[order], start).center, plain, atol=1e-8)
    np.testing.assert_allclose(center(rule, POINTS[:, 1:2], start[1:2]).center, plain[1:2], atol=1e-8)
    turn, _ = np.linalg.qr(generator.normal(size=(4, 4)))
    if rule.name not in ("median", "trimmed-mean"):  # which know the axes
        np.testing.assert_allclose(center(rule, POINTS @ turn, start @ turn).center, plain @ turn, atol=1e-6)


@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_only_the_mean_goes_wherever_two_of_nine_want(rule):
    points = POINTS.copy()
    points[:2] = 1e6
    # Mixing spares no mean: what the liars mix among themselves is as far as they are.
    moved = np.abs(center(rule, points).center - POINTS[2:].mean(axis=0)).max()
    assert (moved > 1e4) == (rule.name == "mean")


@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_a_site_that_is_fitted_alone_or_absent_has_no_say(rule):
    expected = center(rule, POINTS[2:]).center
    odd = POINTS.copy()
    odd[:2] = np.nan
    present = np.arange(9) >= 2
    np.testing.assert_allclose(center(rule, odd, present=present).center, expected, atol=1e-9)
    threshold = np.ones((9, 1)) * present[:, None]
    odd[:2] = 77.0
    found = center(rule, odd, threshold=threshold)
    assert found.center.shape == (3, 4)
    np.testing.assert_allclose(found.center, expected, atol=1e-9)
    np.testing.assert_array_equal(found.shrunk[:2], odd[:2])
