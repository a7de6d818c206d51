"""Verdicts on sites: what a look from the center finds, and how often and by what a site becomes suspect."""

import numpy as np
import pytest

from fedgrem.algorithms.fedgrem import FedGrEM
from fedgrem.data.federation import Site
from fedgrem.families.gaussian import Gaussian
from fedgrem.families.regression import LinearRegression
from fedgrem.fit.spec import FitSpec
from fedgrem.fit.tasks import look
from fedgrem.fit.verdicts import (
    AT_CENTER,
    FALSE_ALARM,
    NOT_JUDGED,
    OWN_ANSWER,
    SIMILAR,
    SUSPECT,
    Sightings,
    by_chance,
    left_out,
    left_out_of_median,
    p_value,
    score,
    words,
)
from fedgrem.kernels.center import shrink_to_center
from fedgrem.types import Params
from tests.conformance.families import NOISY, unpadded

DEGREES = 20.0


def draw(generator, n_sites=10, spread=0.0, n_rows=150.0):
    """Sites that differ from the center by Gaussian deviations of variance ``spread`` in every parameter."""
    rows = np.broadcast_to(n_rows, n_sites).astype(float)
    deviance = (1.0 + rows * spread) * generator.chisquare(DEGREES, n_sites)
    log_likelihood = rows * (-15.0 + 0.2 * generator.normal(size=n_sites) * np.sqrt(150.0 / rows))
    return Sightings(rows, 10.0 * rows, log_likelihood + 0.5 * DEGREES, deviance, np.zeros(n_sites), DEGREES)


def suspects(seen, others=None):
    return p_value(score(seen, others)) <= FALSE_ALARM


def verdict(seen, **options):
    nothing = np.zeros((len(seen.n_rows), 2))
    return words(score(seen), seen, nothing, np.ones_like(nothing), pulled=False, **options).tolist()


# -- the look


def looked(family, rows, target, center):
    """What one site finds from a center of one component."""
    spec = FitSpec(family, FedGrEM(), 1)
    return look(spec, unpadded(Site("a", rows, target, np.ones(len(rows)))), center)


def test_one_gaussian_gains_its_squared_distance_from_the_center():
    rows = np.random.default_rng(0).normal(size=(40, 3)) + 2.0
    found = looked(Gaussian(), rows, None, Params(np.ones((1, 1)), np.zeros((1, 1, 3))))
    np.testing.assert_allclose(found.params.theta[0, 0], rows.mean(axis=0), rtol=1e-9)
    gained = 2.0 * float(found.log_likelihood[0] - found.at_center[0])
    assert gained == pytest.approx(40 * np.sum(rows.mean(axis=0) ** 2), rel=1e-9)


def test_one_regression_gains_what_least_squares_explain():
    generator = np.random.default_rng(0)
    rows = generator.normal(size=(200, 2))
    y = rows @ [1.0, -1.0] + generator.normal(size=200)
    found = looked(LinearRegression(), rows, y, Params(np.ones((1, 1)), np.zeros((1, 1, 2))))
    best = np.linalg.lstsq(rows, y, rcond=None)[0]
    gained = 2.0 * float(found.log_likelihood[0] - found.at_center[0])
    assert gained == pytest.approx(np.sum((rows @ best) ** 2), rel=1e-6)


@pytest.mark.parametrize("case", NOISY, ids=repr)
def test_a_look_compares_the_center_with_the_sites_own_weights_and_an_answer_that_is_no_worse(case):
    stack, center = case.stack(0, 120), case.params(shift=0.3)
    found = look(FitSpec(case.family, FedGrEM(), 2), stack, center)
    assert found.at_center[0] >= case.log_likelihood(stack, center) - 1e-9
    assert found.log_likelihood[0] > found.at_center[0]
    assert found.log_likelihood[0] == pytest.approx(case.log_likelihood(stack, found.params), rel=1e-9)


# -- scores and words


@pytest.mark.parametrize("n_sites", [5, 10, 30])
@pytest.mark.parametrize("spread", [0.0, 0.1])
def test_honest_sites_are_suspect_no_more_often_than_stated(n_sites, spread):
    generator = np.random.default_rng(0)
    sizes = generator.choice([40.0, 150.0, 1000.0], size=n_sites) if n_sites > 5 else 150.0
    found = np.concatenate([suspects(draw(generator, n_sites, spread, sizes)) for _ in range(900 // n_sites)])
    assert found.mean() <= 1.5 * FALSE_ALARM  # 900 sites: two standard errors above 1% is 1.7%


@pytest.mark.parametrize("n_hostile", [1, 2, 3])
def test_far_sites_are_suspect_and_do_not_hide_each_other(n_hostile):
    generator = np.random.default_rng(1)
    for _ in range(20):
        seen = draw(generator, spread=0.1)
        seen.deviance[:n_hostile] *= 30.0
        assert suspects(seen).tolist() == [True] * n_hostile + [False] * (10 - n_hostile)


@pytest.mark.parametrize("shift", [-6.0, 6.0])
def test_rows_that_fit_oddly_make_a_site_suspect(shift):
    seen = draw(np.random.default_rng(2))
    seen.log_likelihood[3] += shift * seen.n_rows[3]
    assert np.flatnonzero(suspects(seen)).tolist() == [3]


def test_a_small_site_may_be_farther_out():
    rows = np.array([20.0] + [200.0] * 9)
    limit = score(draw(np.random.default_rng(3), n_rows=rows)).limit
    assert np.sqrt(limit[0] / 20.0) > 2.0 * np.sqrt(limit[1:] / 200.0).max()


def test_of_three_sites_nobody_can_be_suspect():
    seen = draw(np.random.default_rng(4), n_sites=3)
    seen.deviance[0] *= 1e6
    assert verdict(seen)[0] == OWN_ANSWER


def test_what_a_site_was_fitted_and_what_it_admits_must_agree():
    seen = draw(np.random.default_rng(5))
    seen.fitted[2] = 1e4
    assert verdict(seen)[2] == SUSPECT


def test_a_site_that_was_away_is_not_judged_and_the_others_are():
    seen = draw(np.random.default_rng(6))
    seen.deviance[4] = np.nan
    found = verdict(seen)
    assert found[4] == NOT_JUDGED
    assert found.count(NOT_JUDGED) == 1


def test_a_site_of_few_cells_is_not_judged_and_says_nothing_about_the_others():
    seen = draw(np.random.default_rng(6))
    few = np.arange(10) < 4
    odd = seen._replace(
        cells=np.where(few, 2.0 * DEGREES - 1.0, seen.cells),
        deviance=np.where(few, 1e4, seen.deviance),
        log_likelihood=np.where(few, 1e6, seen.log_likelihood),
    )
    assert (np.array(verdict(odd)) == NOT_JUDGED).tolist() == few.tolist()
    alone = Sightings(*(leaf[~few] for leaf in seen[:5]), DEGREES)
    np.testing.assert_allclose(p_value(score(odd))[~few], p_value(score(alone)))
    assert NOT_JUDGED not in verdict(odd._replace(cells=np.full(10, 2.0 * DEGREES)))


def test_words_go_by_components_where_the_pull_decides():
    seen = draw(np.random.default_rng(7), n_sites=4)
    distance = np.array([[0.0, 0.0], [0.0, 0.9], [0.5, 1.1], [0.0, 0.0]])
    found = words(score(seen), seen, distance, np.ones_like(distance), pulled=True)
    assert found.tolist() == [AT_CENTER, SIMILAR, OWN_ANSWER, AT_CENTER]


def test_words_go_by_deviance_where_no_pull_decides():
    seen = draw(np.random.default_rng(7), n_sites=3)._replace(deviance=np.array([20.0, 90.0, 500.0]))
    assert verdict(seen) == [AT_CENTER, SIMILAR, OWN_ANSWER]


def test_the_order_of_sites_does_not_matter():
    seen = draw(np.random.default_rng(8), spread=0.1)
    order = np.random.default_rng(9).permutation(10)
    turned = Sightings(*(leaf[order] for leaf in seen[:5]), seen.degrees)
    np.testing.assert_allclose(p_value(score(turned)), p_value(score(seen))[order])


def test_a_site_cannot_gain_less_than_nothing_from_its_own_answer():
    seen = draw(np.random.default_rng(10))
    seen.deviance[1] = -3.0 * DEGREES - 1.0  # its rows are said to fit the center better than the best answer to them
    found = score(seen)
    assert found.impossible.tolist() == [k == 1 for k in range(10)]
    assert p_value(found)[1] == 0.0


def test_one_more_site_is_held_against_those_that_were_there():
    generator = np.random.default_rng(11)
    others, new = draw(generator), draw(generator, n_sites=2)
    new.deviance[1] *= 30.0
    assert suspects(new, others).tolist() == [False, True]
    alone = Sightings(*(leaf[:1] for leaf in new[:5]), DEGREES)
    assert p_value(score(alone, others))[0] == p_value(score(new, others))[0]


def test_of_sites_at_the_center_chance_explains_19_in_20():
    found = [draw(np.random.default_rng(seed), n_sites=50) for seed in range(20)]
    within = np.mean([seen.deviance <= by_chance(seen) for seen in found])
    assert within == pytest.approx(0.95, abs=0.02)


# -- what one site does to the center


def test_leaving_out_a_site_moves_a_mean_by_what_is_said():
    generator = np.random.default_rng(12)
    theta, weight = generator.normal(size=(5, 2, 3)), generator.uniform(1.0, 3.0, size=(5, 2))
    mean = np.einsum("kr,krq->rq", weight, theta) / weight.sum(axis=0)[:, None]
    moved = []
    for k in range(5):
        rest, without = (np.delete(leaf, k, axis=0) for leaf in (theta, weight))
        there = np.einsum("kr,krq->rq", without, rest) / without.sum(axis=0)[:, None]
        moved.append(np.linalg.norm(there - mean, axis=1).max())
    np.testing.assert_allclose(left_out(theta - mean, weight, None), moved, rtol=1e-12)


def test_leaving_out_a_far_site_moves_a_penalized_center_by_about_what_is_said():
    theta = np.random.default_rng(13).normal(size=(30, 1, 2))
    theta[0] += 50.0
    ones = np.ones((30, 1))
    center = shrink_to_center(theta, ones, ones, np.zeros((1, 2))).center
    without = shrink_to_center(theta[1:], ones[1:], ones[1:], center).center
    said = left_out(theta - center, ones, ones)
    assert np.linalg.norm(without - center) == pytest.approx(said[0], rel=0.6)
    assert said[0] < 0.1  # of 50


def test_a_site_that_was_away_moves_nothing_and_hides_nobody():
    away = np.random.default_rng(14).normal(size=(6, 2, 2))
    away[2] = np.nan
    weight = np.ones((6, 2))
    weight[2] = np.nan
    kept = np.arange(6) != 2
    found = left_out(away, weight, None)
    np.testing.assert_allclose(found[kept], left_out(away[kept], weight[kept], None))
    np.testing.assert_allclose(left_out_of_median(away)[kept], left_out_of_median(away[kept]))


def test_a_site_without_a_column_is_judged_by_its_distance_alone():
    generator = np.random.default_rng(0)
    n_rows = np.full(10, 200.0)
    deviance = generator.chisquare(12.0, size=10)
    log_likelihood = -10.0 * n_rows + generator.normal(scale=10.0, size=10)
    log_likelihood[3] += 1.4 * n_rows[3]  # a column less to explain
    seen = Sightings(n_rows, 10.0 * n_rows, log_likelihood, deviance, deviance / 4.0, 12.0)
    assert p_value(score(seen))[3] < 0.01
    found = score(seen._replace(whole=np.arange(10) != 3))
    assert np.isnan(found.fit[3])
    assert p_value(found)[3] > 0.01
    np.testing.assert_array_equal(np.isnan(found.p_fit), np.arange(10) == 3)


# -- what several sites do together


def answered(generator, n_sites=10, shift=0.0, shifted=()):
    """Sites at a common center, of five components in ten columns, and what their log-likelihoods say of them."""
    rows = np.full(n_sites, 150.0)
    held = np.full((n_sites, 5), 30.0)
    own = generator.normal(size=(n_sites, 5, 10)) / np.sqrt(30.0)
    own[list(shifted)] += shift
    deviance = (held * np.vecdot(own, own)).sum(axis=1)
    log_likelihood = rows * (-15.0 + 0.2 * generator.normal(size=n_sites)) + 25.0
    return Sightings(rows, 10.0 * rows, log_likelihood, deviance, np.zeros(n_sites), 50.0, None, own, held)


@pytest.mark.parametrize("n_sites", [5, 10, 30])
def test_honest_answers_make_no_site_suspect_more_often_than_stated(n_sites):
    generator = np.random.default_rng(0)
    told = [verdict(answered(generator, n_sites)) for _ in range(900 // n_sites)]
    assert sum(found.count(SUSPECT) for found in told) <= 1.5 * FALSE_ALARM * 900
    assert sum(found.count(NOT_JUDGED) for found in told) == 0


def test_a_small_shift_that_several_sites_share_is_found_by_all_of_them_together():
    generator, alone, shifted = np.random.default_rng(1), [], [2, 5, 9, 12, 15, 18]
    for _ in range(10):
        seen = answered(generator, 20, 0.2, shifted)
        alone.append(suspects(seen._replace(own=None, held=None))[shifted].mean())
        assert np.flatnonzero(suspects(seen)).tolist() == shifted
        assert (score(seen).group[shifted] == 0).all()
    assert np.mean(alone) < 0.5  # of what each of them shows by itself


def test_an_answer_that_is_farther_out_than_its_log_likelihoods_admit_counts_as_far_as_it_is():
    seen = answered(np.random.default_rng(2))
    seen.own[4] *= 2.0
    assert not suspects(seen._replace(own=None, held=None))[4]
    assert np.flatnonzero(suspects(seen)).tolist() == [4]


def test_sites_that_repeat_what_one_says_are_named_and_make_nobody_else_suspect():
    generator = np.random.default_rng(3)
    for _ in range(10):
        seen = answered(generator)
        for leaf in (seen.own, seen.deviance, seen.log_likelihood):
            leaf[6:] = leaf[1]
        assert verdict(seen) == [AT_CENTER, NOT_JUDGED, *[AT_CENTER] * 4, *[NOT_JUDGED] * 4]
        assert score(seen).same.tolist() == [-1, 1, -1, -1, -1, -1, 1, 1, 1, 1]


def test_where_most_sites_seem_odd_it_is_not_they_who_are():
    seen = answered(np.random.default_rng(4))
    seen.deviance[:6] = -1e4  # their own answers fit worse than the center: of six in ten, the fit is wrong
    assert verdict(seen)[:6] == [NOT_JUDGED] * 6
    assert SUSPECT not in verdict(seen)
    seen.deviance[:2] = 50.0
    assert verdict(seen)[2:6] == [SUSPECT] * 4


def test_of_very_many_sites_pairs_are_not_compared():
    seen = answered(np.random.default_rng(5), n_sites=301, shift=0.3, shifted=range(20))
    assert (score(seen).group == -1).all()
