"""The choice of the penalty: halves, scores, the pick, pooled weights, and what a fit does with it."""

from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import multivariate_normal

from fedgrem import FederatedGaussianMixture, FederatedRegressionMixture
from fedgrem.algorithms.base import Pull
from fedgrem.algorithms.center_rules import Huber, Redescending
from fedgrem.algorithms.fedgrem import FedGrEM
from fedgrem.data.federation import Federation, Site, stack_sites
from fedgrem.data.simulate import simulate
from fedgrem.data.stack import Stack
from fedgrem.engines.inprocess import InProcess
from fedgrem.errors import InputError
from fedgrem.families.gaussian import Gaussian
from fedgrem.families.regression import LinearRegression
from fedgrem.fit.conversation import Replies, converse, everyone
from fedgrem.fit.fit import run
from fedgrem.fit.penalty import (
    ESTIMATED,
    PENALTIES,
    ROUNDS,
    WEIGHTS_PENALTIES,
    Trip,
    choose_pooling,
    clearly_best,
    for_path,
    pick,
    walk,
)
from fedgrem.fit.spec import FitSpec, StartPlan
from fedgrem.fit.starts import Starts
from fedgrem.fit.tasks import MOST_PER_ROW, PathRequest, ScoreReply, ScoreRequest, path_score, path_step
from fedgrem.kernels.center import trust
from fedgrem.kernels.log_ratio import LEAST_ROWS, from_log_ratio, to_log_ratio
from fedgrem.types import Params, Upload
from tests.conformance.families import GAUSSIAN

PAPER = {"n_components": 5, "covariance_type": "identity", "random_state": 0, "standard_errors": False}
SPEC = FitSpec(Gaussian(), FedGrEM(), 2, seed=7, look=False, standard_errors=False)
PATH = (0, 1, 2, 4, np.inf)


def site(rows, padding=0):
    """A stack of one site; padding repeats its first row, with no weight."""
    n = len(rows)
    whole = stack_sites([Site("a", rows, None, np.ones(n))], gaps=False)
    more = np.concatenate([whole.rows[:, :n], np.repeat(whole.rows[:, :1], padding, axis=1)], axis=1)
    return Stack(whole.names, more, None, np.concatenate([np.ones((1, n)), np.zeros((1, padding))], axis=1))


def request(weights, theta, parts):
    """Two penalties by two fits, as (1, 2, M, ...): both halves of the first penalty, then of the second."""
    by_half = (
        np.asarray(leaf, dtype=float).reshape(2, 2, *np.shape(leaf)[1:]).swapaxes(0, 1) for leaf in (weights, theta)
    )
    return ScoreRequest(np.array([parts]), Params(*(leaf[None] for leaf in by_half)))


@pytest.fixture(scope="module")
def alike():
    return simulate("gmm", h=0.0, seed=1)


@pytest.fixture(scope="module")
def chosen(alike):
    return FederatedGaussianMixture(**PAPER).fit(alike.rows)


# -- at a site


def rows_of(half):
    return {tuple(row) for row, weight in zip(half[0], half[1], strict=True) if weight > 0}


@given(n=st.integers(1, 40), padding=st.integers(0, 9), parts=st.sampled_from([2, 4]))
def test_parts_are_as_equal_as_can_be_and_padding_does_not_move_a_row(n, padding, parts):
    rows = np.random.default_rng(n).normal(size=(n, 2))
    found = []
    for more in (0, padding):
        seen, unseen = site(rows, more).halves(7, parts)
        found.append([[rows_of(half) for half in zip(cut.rows, cut.weight, strict=True)] for cut in (seen, unseen)])
    assert found[0] == found[1]
    (outer, inner), everything = found[0], {tuple(row) for row in rows}
    for without, within in zip(outer, inner, strict=True):
        assert without | within == everything
        assert not without & within
        assert len(within) in (n // parts, -(-n // parts))
    assert not inner[0] & inner[1]


@pytest.mark.parametrize("parts", [2, 4])
def test_a_score_is_the_log_likelihood_by_the_fit_that_has_not_seen_the_row(parts):
    rows = np.random.default_rng(0).normal(size=(11, 2))
    theta = np.random.default_rng(1).normal(size=(4, 2, 2))  # two penalties by two fits, two components each
    weights = np.array([[0.3, 0.7], [0.5, 0.5], [0.9, 0.1], [0.2, 0.8]])
    _, unseen = site(rows).halves(SPEC.seed, parts)
    reply = path_score(SPEC, site(rows, padding=3), request(weights, theta, parts))

    def log_likelihood(member, rows):
        density = np.stack([multivariate_normal(mean, np.eye(2)).pdf(rows) for mean in theta[member]])
        return np.log(weights[member] @ density)

    away = []
    for half in range(2):
        mine = unseen.rows[half][unseen.weight[half] > 0]
        away.append(log_likelihood(2 + half, mine) - log_likelihood(half, mine))
    away = np.clip(np.concatenate(away), -MOST_PER_ROW, MOST_PER_ROW)
    np.testing.assert_allclose(reply.gain, [[0.0, away.mean()]], atol=1e-12)
    np.testing.assert_allclose(reply.error, [[0.0, away.std() / np.sqrt(len(away) - 1)]], atol=1e-12)
    assert reply.n_rows.tolist() == [11]


def test_one_row_cannot_speak_for_more_than_its_bound():
    far = np.concatenate([np.zeros((9, 1)), [[1e4]]])
    near_it = np.array([0.0, 0.0, 1e4, 1e4])[:, None, None]
    gain = path_score(SPEC, site(far), request(np.ones((4, 1)), near_it, 2)).gain[0, 1]
    assert gain == pytest.approx((MOST_PER_ROW - 9 * MOST_PER_ROW) / 10)


def test_a_fit_on_the_path_does_not_move_with_the_rows_it_may_not_see():
    rows = np.random.default_rng(3).normal(size=(12, 2))
    _, unseen = site(rows).halves(SPEC.seed, 2)
    weights, theta = np.full((1, 2, 1, 2), 0.5), GAUSSIAN.theta[None, None, None] + np.zeros((1, 2, 1, 2, 2))
    pull = Pull(np.ones((2, 1)), np.ones((2, 1)), everyone(1))
    algorithm = for_path(SPEC.algorithm, 3)
    sent = algorithm.broadcast(SPEC.family, algorithm.begin(SPEC.family, Params(weights, theta), np.array([6.0]), pull))
    first = path_step(SPEC, site(rows), PathRequest(np.array([2]), sent)).fits.params.theta
    held_out = {tuple(row) for row in unseen.rows[0]}
    # Moved along the second column only, by which rows are not ordered: they keep their places.
    moved = rows + np.array([[0.0, 9.0 * (tuple(row) in held_out)] for row in rows])
    second = path_step(SPEC, site(moved), PathRequest(np.array([2]), sent)).fits.params.theta
    np.testing.assert_array_equal(first[0, 0], second[0, 0])
    assert not np.allclose(first[0, 1], second[0, 1])


# -- the pick


def test_the_largest_penalty_within_a_standard_error_is_picked_and_infinity_is_not():
    rise = np.array([0.0, 0.2, 0.3, 0.3, 0.3])
    noise = 0.01 * np.random.default_rng(0).normal(size=(8, 5))
    assert pick(rise + noise, PATH)[0] == 3
    assert pick(rise + noise - np.array([0, 0, 0, 0.2, 0.2]), PATH)[0] == 2


@given(worst=st.floats(-1e6, 1e6), place=st.integers(0, 4), hostile=st.integers(0, 2))
def test_a_minority_of_sites_cannot_steer_the_pick(worst, place, hostile):
    gain = np.array([0.0, 0.2, 0.4, 0.1, -0.3]) + 0.01 * np.random.default_rng(2).normal(size=(10, 5))
    gain[:hostile, place] = worst
    assert pick(gain, PATH)[0] == 2


def test_what_is_not_a_number_counts_against_a_penalty():
    gain = np.tile([0.0, 0.2, 0.4], (6, 1)) + 0.01 * np.random.default_rng(2).normal(size=(6, 3))
    gain[:, 2] = np.nan
    assert pick(gain, (0.0, 1.0, 2.0))[0] == 1


GAINS = st.floats(-20.0, 20.0) | st.sampled_from([np.nan, np.inf, -np.inf])


@given(
    gain=st.integers(1, 9).flatmap(lambda k: st.lists(st.lists(GAINS, min_size=5, max_size=5), min_size=k, max_size=k))
)
def test_infinity_is_never_picked(gain):
    place, common, error = pick(np.array(gain), PATH)
    assert np.isfinite(PATH[place])
    assert np.all(np.isfinite(common))
    assert np.all(error >= 0)


def test_where_only_infinity_does_well_the_best_finite_penalty_is_picked():
    gain = np.tile([0.0, 0.1, 0.2, 0.15, 3.0], (8, 1)) + 0.01 * np.random.default_rng(0).normal(size=(8, 5))
    place, common, _ = pick(gain, PATH)
    assert place == 2
    assert common.argmax() == 4


# -- the center


def test_regressions_take_more_steps_on_the_path_than_means_whatever_the_fit_takes():
    algorithm = FedGrEM(local_steps=1)
    families = Gaussian(), LinearRegression()
    steps = [for_path(algorithm, family.path_steps).local_steps * family.steps_of_q for family in families]
    assert steps[1] >= 2 * steps[0] > 2
    assert for_path(algorithm, 10) == replace(algorithm, local_steps=10, memory=5)


def test_only_a_noise_of_many_numbers_has_a_penalty_of_its_own():
    few = simulate("mor", n_sites=4, n_rows=60)
    one = FederatedRegressionMixture(2, random_state=0).fit(few.rows, few.targets)
    thresholds = FedGrEM(center="redescending")
    many = FederatedGaussianMixture(2, algorithm=thresholds, random_state=0)
    many.fit(simulate("gmm", n_sites=4, n_rows=60).rows)
    assert len(one.penalty_path_["noise_penalties"]) == 0
    assert one.noise_penalty_ == one.penalty_
    assert len(many.penalty_path_["noise_penalties"]) > 2


def central_step(algorithm, theta, penalty, n_rows, weights=None, center=None):
    """One central step from where the sites are."""
    weights = np.ones(theta.shape[:2]) if weights is None else weights
    n_rows = np.full(len(theta), float(n_rows))
    pull = Pull(np.asarray(penalty), np.asarray(penalty), everyone(len(theta)))
    begun = algorithm.begin(Gaussian(), Params(weights, theta), n_rows, pull)
    begun = begun if center is None else begun._replace(center=center)
    uploads = Upload(Params(weights, theta), np.ones(theta.shape[:2]), n_rows, np.zeros(len(theta)))
    return begun, algorithm.central_step(Gaussian(), begun, uploads, everyone(len(theta)))[0]


def test_far_sites_do_not_move_the_center_however_large_the_penalty():
    generator = np.random.default_rng(0)
    theta = np.concatenate([generator.normal(size=(9, 1, 2)), 60.0 + np.zeros((1, 1, 2))])
    for penalty in (2.0, 50.0):
        begun, with_all = central_step(FedGrEM(center=Redescending(), memory=0), theta, penalty, 9)
        _, without = central_step(FedGrEM(center=Huber(), memory=0), theta[:9], penalty, 9, center=begun.center)
        # lambda knows the number of sites, hence not equal to the last digit where it matters who is at the center
        np.testing.assert_allclose(with_all.center, without.center, atol=0.05)
    assert trust(theta, np.ones((10, 1)), begun.center)[-1] == 0.0


def test_rare_components_are_pulled_as_if_their_rows_were_all_there_is():
    theta = np.random.default_rng(0).normal(size=(5, 2, 3))
    weights = np.tile([0.1, 0.9], (5, 1))
    _, after = central_step(FedGrEM(center=Huber(), memory=0), theta, 0.5, 100, weights)
    for r, held in enumerate((20.0, 180.0)):  # twice the share of the rows: the same as one component of so many
        plain = FedGrEM(center=Huber(), memory=0, penalty_rows="site")
        _, expected = central_step(plain, theta[:, r : r + 1], 0.5, held)
        np.testing.assert_allclose(after.params.theta[:, r], expected.params.theta[:, 0], atol=1e-9)


def rounds_of_path(data, given, penalties=(0.0, 1.0, np.inf)):
    starts = Starts(
        given,
        np.array([len(s.rows) for s in data.sites], dtype=float),
        np.zeros(len(data.sites), dtype=int),
        np.full(len(data.sites), np.nan),
    )
    trip, cost = converse(walk(SPEC, starts, penalties, penalties, ROUNDS, 0), InProcess(data, SPEC))
    return trip, cost.exchanges


def test_a_path_ends_early_when_most_sites_are_settled():
    data = GAUSSIAN.federation(0, (60,) * 5)
    settled = Params(np.full((5, 2), 0.5), np.broadcast_to(3.0 * GAUSSIAN.theta, (5, 2, 2)).copy())
    apart = Federation.from_sites(data.names, [s.rows + 2.0 * np.sign(s.rows[:, :1]) * [1, -1] for s in data.sites])
    trip, asked = rounds_of_path(apart, settled)
    assert asked["path_step"] < ROUNDS
    assert asked["path_score"] == 1
    assert trip.params.theta.shape == (5, 2, 3, 2, 2)
    near = Federation.from_sites(data.names, [0.4 * s.rows for s in data.sites])  # overlapping: EM creeps
    _, asked = rounds_of_path(near, Params(*GAUSSIAN.near(0, 5)))
    assert asked["path_step"] == ROUNDS


# -- pooled weights


weight_vectors = st.lists(st.floats(0.01, 1.0), min_size=4, max_size=4).map(lambda w: np.array(w) / np.sum(w))


@given(weights=weight_vectors, common=weight_vectors)
def test_weights_go_to_log_ratios_and_back(weights, common):
    about = to_log_ratio(weights, common, np.array([1e6]))
    np.testing.assert_allclose(from_log_ratio(about, common), weights, rtol=1e-9)
    np.testing.assert_allclose(np.sqrt(common) @ about, 0.0, atol=1e-9)  # one degree of freedom less
    np.testing.assert_allclose(to_log_ratio(common, common, np.array([1e6])), 0.0, atol=1e-12)


@given(
    coordinates=st.lists(st.floats(-40.0, 40.0), min_size=4, max_size=4).map(np.array),
    common=weight_vectors,
    places=st.permutations(range(4)),
)
def test_whatever_the_coordinates_weights_are_weights_and_labels_do_not_matter(coordinates, common, places):
    weights = from_log_ratio(coordinates, common)
    assert np.all(weights >= 0)
    assert weights.sum() == pytest.approx(1.0)
    np.testing.assert_allclose(from_log_ratio(coordinates[places], common[places]), weights[places], rtol=1e-12)


def test_the_logarithm_of_no_rows_is_that_of_half_a_row():
    common, rows = np.array([0.5, 0.5]), np.array([100.0])
    none, half = (to_log_ratio(np.array(w), common, rows) for w in ([0.0, 1.0], [LEAST_ROWS / 100.0, 1.0]))
    np.testing.assert_array_equal(none, half)
    assert np.all(np.isfinite(none))


def test_an_estimate_has_an_error_of_one_over_root_n_in_each_coordinate_but_one():
    truth, n = np.array([0.1, 0.3, 0.6]), 2000
    drawn = np.random.default_rng(0).multinomial(n, truth, size=4000) / n
    covariance = n * np.cov(to_log_ratio(drawn, truth, np.array([n])).T)
    root = np.sqrt(truth)
    np.testing.assert_allclose(covariance, np.eye(3) - np.outer(root, root), atol=0.08)


def test_several_fits_and_sites_are_one_call():
    generator = np.random.default_rng(0)
    weights, common = generator.dirichlet(np.ones(3), size=(4, 2)), generator.dirichlet(np.ones(3), size=2)
    rows = np.array([50.0, 60.0, 70.0, 80.0])[:, None, None]
    about = to_log_ratio(weights, common, rows)
    for k in range(4):
        for m in range(2):
            np.testing.assert_allclose(about[k, m], to_log_ratio(weights[k, m], common[m], rows[k, 0]), rtol=1e-12)
    floor = np.maximum(weights, LEAST_ROWS / rows)
    np.testing.assert_allclose(from_log_ratio(about, common), floor / floor.sum(axis=-1, keepdims=True), rtol=1e-12)


def test_pooling_is_taken_only_where_it_is_clearly_better():
    noise = np.random.default_rng(0).normal(size=(12, 3))
    noise[:, 0] = 0.0
    assert clearly_best(np.array([0.0, 0.05, 0.1]) + 0.01 * noise) == 2
    assert clearly_best(np.array([0.0, 0.05, 0.1]) + 1.0 * noise) == 0
    assert clearly_best(np.array([0.0, -0.05, -0.1]) + 0.01 * noise) == 0
    assert clearly_best(np.array([0.0, -0.05, -0.1]) + 0.01 * noise, must=True) == 1
    assert clearly_best(np.array([[0.0, 1.0]])) == 0  # one site has no error


@pytest.mark.parametrize("claimed", [1e9, np.nan, -1e9])
def test_a_minority_of_sites_cannot_decide_on_pooling(claimed):
    gain = np.array([0.0, -0.1, 0.1]) + 0.01 * np.random.default_rng(0).normal(size=(12, 3))
    gain[:3, 1] = claimed
    assert clearly_best(gain) == 2
    gain = np.array([0.0, -0.1, -0.1]) + 0.01 * np.random.default_rng(0).normal(size=(12, 3))
    gain[:3, 1] = claimed
    assert clearly_best(gain) == 0


@given(
    gain=st.integers(1, 9).flatmap(lambda k: st.lists(st.lists(GAINS, min_size=3, max_size=3), min_size=k, max_size=k))
)
def test_whatever_the_sites_claim_of_pooling_there_is_an_answer(gain):
    assert clearly_best(np.array(gain)) in (0, 1, 2)
    assert clearly_best(np.array(gain), must=True) in (1, 2)


def test_where_sites_are_too_few_to_trim_one_that_claims_everything_does_not_decide():
    for claimed in (np.inf, 1e308, 1e9):
        assert clearly_best(np.array([[0.0, claimed], [0.0, -0.1], [0.0, -0.1]])) == 0


def pooling(gain, algorithm=None, n_components=2, n_sites=6):
    """Drive the phase with sites that gain so much by each penalty of the weights; what it chose and asked."""
    generator = np.random.default_rng(1)
    weights = generator.dirichlet(np.full(n_components, 9.0), size=(n_sites, 2, 3))
    params = Params(weights, np.zeros((*weights.shape, 1)))
    trip = Trip(np.zeros((n_sites, 3)), np.zeros((n_sites, 3)), params)
    starts = Starts(params, np.full(n_sites, 100.0), np.zeros(n_sites, dtype=int), np.full(n_sites, np.nan))
    asks = []

    class Sites:
        def ask(self, ask):
            asks.append(ask)
            told = np.tile(gain, (n_sites, 1))
            return Replies(everyone(n_sites), ScoreReply(told, told, starts.n_rows))

    spec = replace(SPEC, algorithm=algorithm or FedGrEM(), n_components=n_components)
    found, _ = converse(choose_pooling(spec, starts, trip, 1), Sites())
    return found, asks, weights[:, :, 1]


def test_pooling_is_asked_for_in_one_message_in_which_only_weights_differ():
    found, (ask,), own = pooling([0.0, 0.1, 0.2, 0.3, 0.2, 0.1])
    assert found == WEIGHTS_PENALTIES[3]
    assert ask.task == "weights_score"
    assert ask.mail.parts.tolist() == [2] * 6
    tried = ask.mail.fits.weights
    assert tried.shape == (6, 2, len(WEIGHTS_PENALTIES), 2)
    np.testing.assert_allclose(tried.sum(axis=-1), 1.0)
    np.testing.assert_allclose(tried[:, :, 0], own, rtol=1e-9)
    np.testing.assert_allclose(tried[:, :, -1], np.broadcast_to(tried[:1, :, -1], own.shape), rtol=1e-12)
    spread = tried.std(axis=0).max(axis=-1)  # the stronger the pull, the closer
    assert np.all(np.diff(spread, axis=-1) <= 1e-12)
    assert np.all(ask.mail.fits.theta == ask.mail.fits.theta[:, :, :1])


def test_pooling_is_not_asked_about_where_there_is_nothing_to_choose():
    assert pooling(np.zeros(6), FedGrEM(pool_weights=False))[:2] == (0.0, [])
    assert pooling(np.zeros(6), FedGrEM(pool_weights=True), n_components=1)[:2] == (0.0, [])
    assert pooling(-np.arange(6.0))[0] == 0.0
    assert pooling(-np.arange(6.0), FedGrEM(pool_weights=True))[0] == WEIGHTS_PENALTIES[1]


PLANTED = np.array([[-4.0, 0.0], [4.0, 0.0], [0.0, 6.0]])
SHARES = np.array([0.2, 0.3, 0.5])


def weighted_sites(shares, n=60):
    """Three components far apart; each site has its own shares of them, (K, 3)."""
    generator = np.random.default_rng(0)
    rows = [PLANTED[generator.choice(3, size=n, p=p)] + generator.normal(size=(n, 2)) for p in shares]
    return Federation.from_sites([f"s{k}" for k in range(len(shares))], rows)


def weights_found(data, penalty=None, **options):
    """(K, 3) weights in the order of the planted components, and the fit."""
    start = StartPlan(n_init=3)
    spec = replace(SPEC, algorithm=FedGrEM(**options), n_components=3, penalty=penalty, fallback=False, start=start)
    result = run(spec, InProcess(data, spec))
    order = np.linalg.norm(result.center - PLANTED[:, None], axis=-1).argmin(axis=1)
    return result.weights[:, order], result


def test_sites_of_equal_weights_know_them_better_together():
    data = weighted_sites([SHARES] * 16)
    pooled, result = weights_found(data)
    own, alone = weights_found(data, pool_weights=False)
    assert result.path["weights_penalty"] > 0
    assert alone.path["weights_penalty"] == 0
    assert result.cost["penalty_exchanges"] == alone.cost["penalty_exchanges"] + 1
    assert np.abs(pooled - SHARES).max() < 0.5 * np.abs(own - SHARES).max()
    assert np.square(pooled - SHARES).mean() < 0.2 * np.square(own - SHARES).mean()
    np.testing.assert_allclose(pooled.sum(axis=1), 1.0)


def test_sites_of_very_different_weights_keep_their_own():
    shares = np.stack([np.roll([0.1, 0.2, 0.7], k) for k in range(9)])
    data = weighted_sites(shares)
    found, result = weights_found(data)
    own, _ = weights_found(data, pool_weights=False)
    assert result.path["weights_penalty"] == 0
    np.testing.assert_allclose(found, own, atol=1e-9)
    assert np.abs(found - shares).max() < 0.2


def test_pooling_on_demand_takes_the_given_penalty():
    data = weighted_sites([SHARES] * 6)
    common, _ = weights_found(data, penalty=np.inf, pool_weights=True)
    np.testing.assert_allclose(common, np.broadcast_to(common[0], common.shape), atol=1e-9)
    own, _ = weights_found(data, penalty=np.inf)  # nothing is compared: every site keeps its own
    assert own.std(axis=0).min() > 0.01
    alone, _ = weights_found(data, penalty=0.0, pool_weights=True)
    np.testing.assert_allclose(alone, weights_found(data, penalty=0.0, pool_weights=False)[0], atol=1e-9)


# -- the fit


def test_alike_sites_are_pulled_strongly_and_beat_the_papers_penalty(alike, chosen):
    honest = alike.honest
    assert chosen.penalty_path_["penalties"].tolist() == list(ESTIMATED)
    np.testing.assert_array_equal(chosen.between_site_variance_, 0.0)
    by_threshold = FederatedGaussianMixture(**PAPER, algorithm=FedGrEM(center="redescending")).fit(alike.rows)
    assert by_threshold.penalty_ >= 1.4
    assert by_threshold.penalty_path_["penalties"].tolist() == list(PENALTIES)
    assert np.isnan(by_threshold.between_site_variance_).all()
    assert np.all(chosen.site_gain_[honest] > 0)
    assert np.sum(chosen.site_gain_[honest] > 2 * chosen.site_gain_se_[honest]) >= 7
    fixed = FederatedGaussianMixture(**PAPER, penalty=2.0).fit(alike.rows)

    def error(model):
        away = np.linalg.norm(model.means_[honest][:, :, None] - alike.theta[honest][:, None], axis=-1)
        return away.min(axis=2).max()

    assert error(chosen) < 0.8 * error(fixed)
    assert error(by_threshold) < 0.8 * error(fixed)
    # The rounds, a score, and a score of pooled weights.
    assert 3 <= chosen.cost_["penalty_exchanges"] <= ROUNDS + 2
    assert "penalty_exchanges" not in fixed.cost_
    assert fixed.penalty_ == 2.0
    assert fixed.penalty_path_ == {}


def test_a_fit_with_a_chosen_penalty_judges_its_sites_and_takes_one_more(alike, chosen):
    assert chosen.site_verdict_[-1] == "suspect"
    assert "suspect" not in chosen.site_verdict_[:-1]
    more = deepcopy(chosen).fit_site(alike.rows["site-01"], name="again")
    assert more.site_verdict_[-1] == chosen.site_verdict_[0]
    np.testing.assert_allclose(more.means_[-1], chosen.means_[0], atol=0.05)
    assert len(more.site_gain_) == len(more.local_only_) == len(more.means_) == 11
    assert np.isnan(more.site_gain_[-1])


def test_sites_that_have_nothing_in_common_are_hardly_pulled():
    generator = np.random.default_rng(0)
    rows = {f"s{k}": 12 * generator.normal(size=(2, 1, 3)) + generator.normal(size=(2, 60, 3)) for k in range(5)}
    model = FederatedGaussianMixture(2, covariance_type="identity", random_state=0)
    model.fit({name: both.reshape(-1, 3) for name, both in rows.items()})
    assert (model.between_site_variance_ > 10.0).all()
    assert (model.site_threshold_ < 0.05 * model.site_distance_).all()


def test_a_site_that_loses_clearly_is_given_its_own_fit_back(alike):
    generator = np.random.default_rng(5)
    rows = {name: alike.rows[name] for name in list(alike.rows)[:6]}
    rows["odd"] = np.tile(alike.theta[0] + 0.9, (40, 1)) + generator.normal(size=(200, 10))
    options = PAPER | {"penalty": 4.0}
    pulled = FederatedGaussianMixture(**options).fit(rows)
    released = FederatedGaussianMixture(**options, fallback="local").fit(rows)
    alone = FederatedGaussianMixture(**options | {"penalty": 0.0}).fit(rows)
    assert released.local_only_.tolist() == [False] * 6 + [True]
    assert released.penalty_path_["penalties"].tolist() == [0.0, 4.0]
    np.testing.assert_allclose(np.sort(released.means_[6], axis=0), np.sort(alone.means_[6], axis=0), atol=1e-2)
    assert np.abs(pulled.means_[6] - released.means_[6]).max() > 0.3
    assert not pulled.local_only_.any()


def test_one_site_has_nothing_to_choose():
    rows = np.random.default_rng(0).normal(size=(30, 2))
    model = FederatedGaussianMixture(1, random_state=0).fit(rows)
    assert model.penalty_ == 2.0
    assert model.penalty_path_ == {}


def test_a_model_tells_with_which_penalty_its_weights_were_pooled():
    rows = {site.name: site.rows for site in weighted_sites([SHARES] * 3).sites}
    for asked, told in ((True, 2.0), (False, 0.0), ("auto", 0.0)):
        model = FederatedGaussianMixture(**PAPER | {"n_components": 3}, penalty=2.0)
        model.set_params(algorithm=FedGrEM(pool_weights=asked)).fit(rows)
        assert model.weights_penalty_ == told


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"fallback": "none"}, r"fallback must be one of 'auto', 'local'; got 'none'"),
        ({"algorithm": FedGrEM(penalty_rows="all")}, r"penalty_rows='all', expected one of component, site"),
        ({"algorithm": FedGrEM(pool_weights="some")}, r"pool_weights='some', expected true or false or one of auto"),
        ({"penalty": -1.0}, r"penalty must be in \[0, inf\], got -1.0"),
    ],
)
def test_bad_options_are_refused(options, words):
    with pytest.raises(InputError, match=words):
        FederatedGaussianMixture(2, **options).fit(np.zeros((9, 2)))


def test_a_few_sites_that_would_lose_much_by_pooling_are_heard():
    gain = np.array([[0.0, g] for g in (-0.9, -0.3, 0.05, 0.05, 0.06, 0.05, 0.06, 0.05)])
    assert clearly_best(gain) == 0
    assert clearly_best(np.maximum(gain, -0.01)) == 1


def test_gains_of_pooling_count_for_what_fits_to_all_rows_gain():
    """Two weights, known from 50 of 100 rows: half of 1/50 - 1/100 a row is the fit's to a part, not the pooling's."""
    assert pooling([0.0, *[0.0049] * 5])[0] == 0.0
    assert pooling([0.0, *[0.0051] * 5])[0] == WEIGHTS_PENALTIES[1]
