"""Four of ten sites may say what they like: most parts of a fit stand it. docs/attacks.md has the table."""

from types import SimpleNamespace

import numpy as np
import pytest

from fedgrem.algorithms.center_rules import EmpiricalBayes, Redescending, away_from_colluders
from fedgrem.data.simulate import simulate
from fedgrem.families.gaussian import Gaussian
from fedgrem.fit.fit import worse_than_start
from fedgrem.fit.penalty import clearly_best, pick
from fedgrem.fit.selection import robust_total
from fedgrem.fit.starts import Starts, joint_scores, next_guess
from fedgrem.fit.tasks import StartReply
from fedgrem.kernels.center import bounded_pull
from fedgrem.kernels.matching import align_by_assignment, relabel
from fedgrem.studies.attacks import OURS
from fedgrem.studies.under_attack import Scenario, trial
from fedgrem.types import Params

N_SITES, N_BAD = 10, 4
BAD = np.arange(N_SITES) >= N_SITES - N_BAD
LIES = [5.0, -5.0, 1e300, np.nan]


def gains(generator, *means):
    return np.stack([np.zeros(N_SITES), *(m + 0.02 * generator.normal(size=N_SITES) for m in means)], axis=1)


@pytest.mark.parametrize("lie", LIES)
@pytest.mark.parametrize(("means", "wanted"), [((0.3, 0.1), 1), ((-0.3, -0.5), 0), ((0.1, 0.3), 2)])
def test_the_choice_of_the_penalty(means, wanted, lie):
    told = gains(np.random.default_rng(0), *means)
    told[BAD, 1:] = lie * np.array([-1.0, 1.0])
    assert pick(told, (0.0, 1.0, 2.0))[0] == wanted


@pytest.mark.parametrize("lie", LIES)
def test_whether_weights_are_pooled(lie):
    told = gains(np.random.default_rng(0), -0.3)
    told[BAD, 1] = lie
    assert clearly_best(told) == 0


def test_alignment():
    generator = np.random.default_rng(1)
    theta = 6.0 * generator.normal(size=(3, 5)) + 0.5 * generator.normal(size=(N_SITES, 3, 5))
    order = np.stack([generator.permutation(3) for _ in range(N_SITES)])
    told = relabel(theta, order)
    told[BAD] = 9.0 * generator.normal(size=(N_BAD, 3, 5))
    found = relabel(told, align_by_assignment(told, generator))[~BAD]
    assert np.abs(found - found[0]).max() < 6.0, "as the honest sites differ, and no more"


@pytest.mark.parametrize("distance", [3.0, 1e6])
def test_every_other_joint_start_moves_with_the_honest_sites(distance):
    generator = np.random.default_rng(2)
    theta = np.repeat(generator.normal(size=(N_SITES, 1, 1, 10)), 2, axis=1)
    theta[BAD] = distance
    reply = StartReply(
        Params(np.ones((N_SITES, 2, 1)), theta), np.where(BAD, 1e6, 100.0), np.zeros((N_SITES, 2)),
        np.zeros((N_SITES, 2), dtype=int),
    )  # fmt: skip
    guess = Params(np.ones((2, 1)), np.zeros((2, 1, 10)))
    for _ in range(5):
        guess = next_guess(Gaussian(), reply, guess)
    off = np.linalg.norm(guess.theta[1] - theta[~BAD, 1].mean(axis=0))
    assert off < np.sqrt(10.0), "less than honest sites are off"


@pytest.mark.parametrize("lie", [1e9, -1e9, np.nan])
def test_the_best_of_joint_starts(lie):
    value = np.tile([0.0, 1.0, 0.5], (N_SITES, 1)) + 0.1 * np.random.default_rng(3).normal(size=(N_SITES, 3))
    value[BAD] = [lie, 0.0, lie]
    reply = StartReply(Params(np.ones(1), np.ones(1)), np.ones(N_SITES), value, np.zeros(N_SITES, dtype=int))
    assert joint_scores(reply).argmax() == 1


@pytest.mark.parametrize("lie", [1e9, -1e9, np.nan])
def test_the_number_of_components(lie):
    value = np.cumsum(np.tile([[-900.0], [100.0], [-5.0]], (1, N_SITES)), axis=0)
    value[1:, BAD] += lie * np.array([[-1.0], [1.0]])
    assert robust_total(value, np.full(N_SITES, 100.0)).argmax() == 1


@pytest.mark.parametrize(("rule", "loud"), [(EmpiricalBayes(), 1.0), (EmpiricalBayes(), 50.0), (Redescending(), 1.0)])
@pytest.mark.parametrize("distance", [4.0, 1e3])
def test_the_center_of_few_loud_sites(rule, loud, distance):
    generator = np.random.default_rng(4)
    theta = generator.normal(size=(N_SITES, 1, 10)) / 10.0
    theta[BAD] = distance / 10.0
    held = np.where(BAD, loud, 1.0)[:, None] * 100.0
    center, everyone = np.median(theta, axis=0), np.ones(N_SITES, dtype=bool)
    for _ in range(6):
        center = rule(theta, held, 4.0 / np.sqrt(held), held, center, everyone).center
    usual = np.sqrt(10.0) / 10.0
    assert np.linalg.norm(center - theta[~BAD].mean(axis=0)) < 1.6 * usual


@pytest.mark.parametrize("loud", [4.0, 50.0])
def test_no_site_pulls_much_harder_than_the_middle_one(loud):
    weight = np.array([1.0, 1.0, 1.0, 1.0, loud])[:, None] * 100.0
    threshold = 3.0 / np.sqrt(weight)
    found = bounded_pull(weight, threshold)
    np.testing.assert_allclose(found[:4], weight[:4])
    np.testing.assert_allclose((found * threshold)[4], 1.5 * (found * threshold)[0])


def test_what_does_not_pull_does_not_count_among_the_pulls():
    threshold = np.array([0.0, 0.0, 0.0, 1.0, np.inf])[:, None]
    np.testing.assert_array_equal(bounded_pull(np.ones((5, 1)), threshold), 1.0)


def test_a_loud_site_does_not_ruin_this_fit_of_regressions():
    drawn = simulate("mor", n_sites=10, n_outliers=0, seed=1)
    clean, bad = (trial(Scenario("mor", 0.0, 10, 0.1, name), drawn, 1, OURS) for name in ("none", "edge-loud"))
    assert bad["theta_error"] <= 2.0 * clean["theta_error"]


def test_colluders_do_not_ruin_this_fit_of_regressions():
    drawn = simulate("mor", n_sites=10, n_outliers=0, seed=0)
    clean, bad = (trial(Scenario("mor", 0.0, 10, 0.3, name), drawn, 0, OURS) for name in ("none", "edge-loud"))
    assert bad["theta_error"] <= 2.5 * clean["theta_error"], "two hundred times, when pulls were only bounded"


def by_penalties(theta):
    held, start = np.full(theta.shape[:-1], 30.0), np.median(theta, axis=0)
    threshold, everyone = np.full(held.shape, 4.0), np.ones(len(theta), dtype=bool)
    found = Redescending()(theta, held, threshold, held, start, everyone)
    return found, away_from_colluders(found, theta, held, threshold, held, start, None)


def test_a_center_of_penalties_is_contradicted_where_a_minority_agrees():
    theta = np.random.default_rng(5).normal(size=(N_SITES, 1, 10)) / np.sqrt(30.0)
    theta[7:] = theta[:7].mean(axis=0) + 2.0 / np.sqrt(30.0)
    plain, (found, part) = by_penalties(theta)
    off, less = (np.linalg.norm(one.center - theta[:7].mean(axis=0)) for one in (plain, found))
    assert part == 1.0
    assert less < 0.6 * off
    np.testing.assert_array_equal(found.shrunk, np.broadcast_to(found.center, theta.shape))


def test_honest_sites_hardly_ever_contradict_a_center_of_penalties():
    draws = np.random.default_rng(6).normal(size=(50, N_SITES, 1, 10))
    assert np.mean([by_penalties(theta)[1][1] > 0 for theta in draws]) <= 0.02


def told(behind):
    """What is behind its start by so much, of fits of two components in three columns: seven parameters."""
    starts = Starts(
        Params(np.full((N_SITES, 2), 0.5), np.zeros((N_SITES, 2, 3))),
        np.ones(N_SITES),
        np.zeros(N_SITES),
        np.zeros(N_SITES),
    )
    return worse_than_start(starts, SimpleNamespace(history={"log_likelihood": -np.array([behind])}))


def test_only_rows_of_its_own_send_a_site_back_to_its_start():
    np.testing.assert_array_equal(
        told(np.array([1e9, -1e9, 7.0, 7.1, np.nan, np.inf] + [0.0] * 4)).nonzero()[0], [0, 3, 5]
    )


def test_where_most_sites_go_back_to_their_starts_all_do():
    behind = np.where(np.arange(N_SITES) < 5, 100.0, 0.0)
    assert told(behind).all()
    behind[:2] = 0.0, np.nan
    np.testing.assert_array_equal(told(behind), behind > 0)


def test_pulled_sites_begin_at_the_joint_start():
    own, joint = Params(np.full((3, 2), 0.5), np.ones((3, 2, 1))), Params(np.full(2, 0.5), np.zeros((2, 1)))
    nothing = np.zeros(3)
    starts = Starts(own, nothing, nothing, nothing, joint)
    np.testing.assert_array_equal(starts.begin(np.array([True, False, True])).theta[:, 0, 0], [0.0, 1.0, 0.0])
    assert starts._replace(joint=None).begin(np.ones(3, dtype=bool)) is own


def test_liars_do_not_make_what_penalties_lose_look_like_chance():
    honest, lies = [0.29, 0.24, 0.06, 0.33, 0.05, 0.54, 0.27], [-0.42, -0.43, -0.63]
    gain = np.array([[0.0, 0.5, 0.5 - lost] for lost in honest + lies])
    assert pick(gain, (0.0, 1.0, 4.0))[0] == 1
