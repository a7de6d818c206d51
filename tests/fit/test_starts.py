"""Starts: planted mixtures are found, labels agree across sites, and EM says what it has reached."""

from dataclasses import replace

import numpy as np
import pytest

from fedgrem.algorithms.fedgrem import FedGrEM
from fedgrem.data.federation import Federation, Site, stack_sites
from fedgrem.engines.inprocess import InProcess
from fedgrem.families.gaussian import Gaussian
from fedgrem.fit.em import Prior, em, first_best
from fedgrem.fit.fit import run
from fedgrem.fit.spec import FitSpec, StartPlan
from fedgrem.fit.starts import breed, grown, joint_scores
from fedgrem.fit.tasks import StartReply, _thinned
from fedgrem.kernels.scores import parameter_errors
from fedgrem.types import Params
from tests.conformance.families import BY_NAME, FAMILIES, GAUSSIAN, REGRESSION


def fit(case, data, alignment="assignment", **options):
    start = StartPlan(n_init=4, short=10, long=20, alignment=alignment)
    quiet = {"fallback": False, "look": False, "standard_errors": False}
    spec = FitSpec(case.family, FedGrEM(), 2, 2.0, start=start, **quiet, **options)
    return run(spec, InProcess(data, spec))


SOME = [BY_NAME[name] for name in ("gaussian-identity", "gaussian-tied", "regression-unit", "poisson")]
ALIGNED = [(c, "assignment") for c in FAMILIES] + [(c, kind) for c in SOME for kind in ("stepwise", "exhaustive")]


@pytest.mark.parametrize(("case", "alignment"), ALIGNED, ids=lambda value: str(value))
def test_planted_components_are_found_with_the_same_labels_at_every_site(case, alignment):
    result = fit(case, case.federation(20, (150, 120, 180), drift=0.05), alignment, max_rounds=10, tol=0.0)
    labels = np.linalg.norm(result.theta[0][:, None] - case.theta, axis=-1).argmin(axis=1)
    np.testing.assert_array_equal(np.sort(labels), [0, 1])
    truth = case.theta[labels]
    assert np.linalg.norm(result.theta - truth, axis=-1).max() < 0.3 * np.linalg.norm(case.theta[0] - case.theta[1])
    _, error = parameter_errors(result.weights, result.theta, np.full((3, 2), 0.5), np.stack([truth] * 3))
    np.testing.assert_allclose(error, np.linalg.norm(result.theta - truth, axis=-1).max(axis=1))


@pytest.mark.parametrize("case", [GAUSSIAN, REGRESSION], ids=repr)
def test_starts_do_not_hang_on_the_order_of_the_sites(case):
    data = case.federation(20, (60, 50, 70))
    turned = Federation(data.sites[::-1], data.columns)
    here, there = (fit(case, sites, max_rounds=1) for sites in (data, turned))
    order = np.linalg.norm(here.theta[0][:, None] - there.theta[2], axis=-1).argmin(axis=1)  # labels are free
    np.testing.assert_allclose(here.theta, there.theta[::-1, order], rtol=1e-8)
    np.testing.assert_array_equal(here.start_choice, there.start_choice[::-1])


def test_a_smaller_fit_is_grown_by_what_it_lacks():
    smaller = Params(np.array([0.4, 0.6]), np.array([[0.0, 0.0], [5.0, 0.0]]))
    found = Params(np.full(3, 1 / 3), np.array([[5.1, 0.0], [0.0, 4.0], [0.2, 0.1]]))
    start = grown(GAUSSIAN.family, smaller, found, 7)
    np.testing.assert_allclose(start.weights, np.tile([0.8 / 3, 1.2 / 3, 1 / 3], (7, 1)))
    np.testing.assert_array_equal(start.theta, np.tile([[0.0, 0.0], [5.0, 0.0], [0.0, 4.0]], (7, 1, 1)))
    assert start.noise is None
    np.testing.assert_array_equal(grown(GAUSSIAN.family, found, smaller, 2).theta[1], found.theta)


def test_a_fit_that_begins_badly_is_saved_by_a_smaller_one():
    data = GAUSSIAN.federation(20, (150, 120, 180))
    alone = fit(GAUSSIAN, data, max_rounds=50)
    alike = Params(np.full((3, 2), 0.5), np.zeros((3, 2, 2)))  # EM cannot tell two components apart that are one
    spec = FitSpec(GAUSSIAN.family, FedGrEM(), 2, 2.0, fallback=False, look=False, given=alike, score=True)
    bad = run(spec, InProcess(data, spec))
    spec = replace(spec, smaller=Params(alone.weights.mean(axis=0), alone.center, alone.center_noise))
    saved = run(spec, InProcess(data, spec))
    assert saved.log_likelihood.sum() > bad.log_likelihood.sum() + 100.0
    np.testing.assert_allclose(saved.center, alone.center, atol=1e-3)
    assert saved.cost["rounds"] > saved.n_rounds


def test_restarts_that_look_at_some_rows_see_all_of_the_range_and_no_padding():
    whole = stack_sites(GAUSSIAN.federation(0, (100,)).sites, gaps=False)
    assert whole.size == 104
    some = _thinned(whole, 25)
    np.testing.assert_array_equal(some.rows, whole.rows[:, ::4])
    np.testing.assert_array_equal(some.weight, whole.weight[:, ::4])
    assert some.n_rows.tolist() == [25]
    assert _thinned(whole, 25) is some
    np.testing.assert_array_equal(_thinned(whole, 200).rows, whole.rows)


@pytest.mark.parametrize("iterations", [0, 3])
def test_em_reports_the_objective_of_the_parameters_it_returns(iterations):
    rows = np.random.default_rng(5).normal(size=(30, 2))
    stack = stack_sites([Site("a", rows, None, np.ones(30))], gaps=False)
    family = Gaussian()
    start = Params(np.array([[[0.4, 0.6]]]), np.array([[[[-1.0, 0.0], [1.0, 0.5]]]]))
    end = em(family, stack, start, iterations)
    np.testing.assert_allclose(end.value, family.expect(stack, end.params).log_likelihood, rtol=1e-12)
    np.testing.assert_array_equal(end.value, end.log_likelihood)
    assert np.array_equal(end.params.theta, start.theta) == (iterations == 0)
    end = em(family, stack, start, iterations, Prior(np.zeros((1, 1, 2, 2)), np.array([0.5])))
    params = end.params
    distance = np.minimum(np.linalg.norm(params.theta, axis=-1), 3.0 * 0.5 / np.sqrt(30))
    penalty = 0.5 * np.sqrt(30) * (params.weights * distance).sum(axis=-1)
    np.testing.assert_allclose(end.value, family.expect(stack, params).log_likelihood - penalty, rtol=1e-12)


def test_em_climbs_and_leaves_the_given_parameters_alone():
    stack = GAUSSIAN.stack(1, 40)
    weights, theta = GAUSSIAN.near(1, 3, scale=1.0)
    start = Params(weights[None], theta[None])
    kept = Params(weights[None].copy(), theta[None].copy())
    reached = np.array([em(GAUSSIAN.family, stack, start, n).value[0] for n in range(5)])
    assert np.all(np.diff(reached, axis=0) > -1e-9)
    assert np.all(reached[1] > reached[0])
    np.testing.assert_array_equal(start.theta, kept.theta)
    np.testing.assert_array_equal(start.weights, kept.weights)


def test_a_fit_that_settles_early_does_not_stop_its_neighbours():
    stack = stack_sites(GAUSSIAN.federation(2, (40, 37, 33, 39)).sites, gaps=False)
    weights, theta = GAUSSIAN.near(2, 4)
    start = Params(np.tile(weights[:, None], (1, 2, 1)), np.stack([theta, 3.0 * theta + 1.0], axis=1))
    settled = em(GAUSSIAN.family, stack, start, 500).params
    begun = Params(*(leaf.copy() for leaf in start[:2]))
    for leaf, end in zip(begun[:2], settled[:2], strict=True):
        leaf[:3] = end[:3]
    again = em(GAUSSIAN.family, stack, begun, 500).params
    np.testing.assert_allclose(again.theta[:3], settled.theta[:3], atol=1e-5)
    np.testing.assert_allclose(again.theta[3], settled.theta[3], atol=1e-12)


def test_of_starts_that_are_equal_but_for_rounding_the_first_wins():
    value = np.array([[-10.0, -9.0, -9.0 + 1e-12], [-np.inf, -np.inf, -5.0], [-np.inf, -np.inf, -np.inf]])
    assert first_best(value).tolist() == [1, 2, 0]


def test_a_site_that_has_lost_a_component_takes_it_from_the_others():
    data = GAUSSIAN.federation(21, (100, 100, 100, 100), drift=0.0)
    lonely = GAUSSIAN.draw(np.random.default_rng(0), np.repeat(GAUSSIAN.theta[:1], 100, axis=0))[0]
    data = Federation((*data.sites[:3], Site("site-3", lonely, None, np.ones(100))), data.columns)
    result = fit(GAUSSIAN, data, max_rounds=100)
    label = np.linalg.norm(result.center - GAUSSIAN.theta[0], axis=1).argmin()
    assert result.weights[3, label] > 0.9
    assert np.linalg.norm(result.theta[3, label] - GAUSSIAN.theta[0]) < 0.5


# -- joint starts


def reply(log_likelihood):
    n_sites = len(log_likelihood)
    return StartReply(Params(np.zeros(0), np.zeros(0)), np.full(n_sites, 10.0), log_likelihood, np.zeros(n_sites))


@pytest.mark.parametrize("claimed", [1e9, -1e9, np.inf, np.nan])
def test_a_minority_of_sites_cannot_decide_which_joint_start_is_best(claimed):
    said = np.tile([-30.0, -10.0, -20.0], (10, 1)) + np.random.default_rng(0).normal(size=(10, 3))
    said[:3, 0] = claimed
    scores = joint_scores(reply(said))
    assert np.all(np.isfinite(scores))
    assert scores.argmax() == 1


def test_the_better_half_of_the_guesses_lives_on_and_a_variant_has_one_component_from_the_pool():
    generator = np.random.default_rng(3)
    theta, pool = generator.normal(size=(4, 3, 2)), 50.0 + generator.normal(size=(9, 2))
    guesses = Params(np.full((4, 3), 1.0 / 3.0), theta)
    bred = breed(guesses, np.array([0.0, 3.0, 1.0, 2.0]), pool, 4, generator)
    np.testing.assert_array_equal(bred.theta[:2], theta[[1, 3]])
    np.testing.assert_allclose(bred.weights.sum(axis=1), 1.0)
    for variant in bred.theta[2:]:
        new = (variant[:, None] == pool).all(axis=-1).any(axis=1)
        assert new.sum() == 1
        assert any(np.array_equal(variant[~new], parent[~new]) for parent in theta[[1, 3]])
