"""The one loop: when it stops, what it reports; who was away; and the conversation that carries it."""

from types import SimpleNamespace

import numpy as np
import pytest

from fedgrem.algorithms.base import Pull
from fedgrem.algorithms.fedgrem import FedGrEM
from fedgrem.data.units import Units, UnitsPlan
from fedgrem.engines.inprocess import InProcess
from fedgrem.fit.conversation import Agreed, Ask, Cost, Progress, Replies, converse, everyone, with_agreement
from fedgrem.fit.fit import fit as whole_fit
from fedgrem.fit.fit import run
from fedgrem.fit.networks import TASKS as NETWORK_TASKS
from fedgrem.fit.private_site import TASKS as PRIVATE_TASKS
from fedgrem.fit.rounds import RoundRecord, play_rounds, tolerated_stragglers
from fedgrem.fit.spec import FitSpec, StartPlan
from fedgrem.fit.tasks import TASKS
from fedgrem.types import Central, Influence, Params, Upload, map_arrays
from tests.conformance.families import BY_NAME, GAUSSIAN

SIZES = (30, 20, 25, 22, 28)
DATA = GAUSSIAN.federation(0, SIZES)
WEIGHTS, THETA = GAUSSIAN.near(0, 5)
GIVEN = Params(WEIGHTS, THETA)
QUIET = {"fallback": False, "look": False, "standard_errors": False}


def spec_of(algorithm=None, *, penalty=2.0, given=GIVEN, **options):
    options = QUIET | {"start": StartPlan(n_init=4, alignment="none" if given else "assignment")} | options
    return FitSpec(GAUSSIAN.family, algorithm or FedGrEM(), 2, penalty, given=given, **options)


def fit(algorithm=None, *, data=DATA, on_progress=None, **options):
    spec = spec_of(algorithm, **options)
    return run(spec, InProcess(data, spec), on_progress)


# -- the stopping rule


class Scripted:
    """An algorithm whose sites and center jump as they are told, in rounds from 1."""

    def __init__(self, movements, center_movements, asked=None):
        self.movements, self.center_movements, self.round = movements, center_movements, 0
        self.asked = asked or (lambda t, n_sites: np.ones(n_sites, dtype=bool))

    def invited(self, seed, number, names):
        return self.asked(number + 1, len(names))

    def broadcast(self, family, central):
        return ()

    def central_step(self, family, central, uploads, present):
        self.round += 1
        theta = central.params.theta + np.asarray(self.movements(self.round))[:, None, None]
        center = central.center + self.center_movements(self.round)
        none = np.zeros(central.params.weights.shape)
        told = Influence(none, none, np.zeros(()), np.zeros(()), np.zeros(()))
        return central._replace(params=central.params._replace(theta=theta), center=center), told


def rounds_until_stop(movements, center_movements=lambda t: 0.0, limit=1000, asked=None):
    """movements(t) -> (K,); returns the round in which it stops, or None."""
    n_sites = len(movements(1))
    # What an error of a parameter of one's own is about nobody knows: movements alone decide.
    family = SimpleNamespace(exponential=False, whiten=lambda theta, units: theta)
    spec = SimpleNamespace(
        family=family, algorithm=Scripted(movements, center_movements, asked), max_rounds=limit, tol=1e-6, seed=0
    )
    params = Params(np.ones((n_sites, 1)), np.zeros((n_sites, 1, 1)))
    upload = Upload(params, np.ones((n_sites, 1)), np.ones(n_sites), np.zeros(n_sites))
    engine = SimpleNamespace(ask=lambda ask: Replies(everyone(n_sites) if ask.to is None else ask.to, upload))
    played, _ = converse(
        play_rounds(spec, Central(params, np.zeros((1, 1)), np.ones(n_sites)), tuple(map(str, range(n_sites)))), engine
    )
    assert played.n_rounds == spec.algorithm.round
    return played.n_rounds if played.stopped else None


def test_it_stops_in_the_first_round_in_which_everything_is_settled():
    assert rounds_until_stop(lambda t: np.full(5, 0.0 if t >= 7 else 1.0)) == 7


def one_by_one(t, n_sites):
    """Everyone in round 1, then one site after the other."""
    return np.arange(n_sites) == (t - 2) % n_sites if t > 1 else np.ones(n_sites, dtype=bool)


def test_sites_asked_in_turn_are_judged_when_all_of_them_have_been():
    """Rounds 2 to 6 and 7 to 11 are a turn each: what moved in round 1 is judged when all were asked again."""
    assert rounds_until_stop(lambda t: np.full(5, 0.0 if t >= 2 else 1.0), asked=one_by_one) == 6
    assert rounds_until_stop(lambda t: np.full(5, 0.0 if t >= 3 else 1.0), asked=one_by_one) == 11


def test_a_center_that_moved_while_others_were_asked_holds_up_everyone():
    assert rounds_until_stop(lambda t: np.zeros(5), lambda t: float(t in (1, 3)), asked=one_by_one) == 11


def test_a_site_is_judged_by_how_far_it_came_since_it_answered_before():
    """Sites 0 and 1 are asked in rounds 2 and 7, 3 and 8: that they moved in round 4 shows in 7 and 8, until 12."""
    moved = np.array([1.0, 1.0, 0.0, 0.0, 0.0])
    assert rounds_until_stop(lambda t: moved * (t == 4), lambda t: float(t in (1, 5)), asked=one_by_one) == 16


def test_a_center_that_moves_holds_up_everyone():
    assert rounds_until_stop(lambda t: np.zeros(5), lambda t: 0.0 if t >= 9 else 1.0) == 9


def test_one_creeping_site_gets_half_as_many_rounds_again_and_ten():
    # Four of five are settled from round 20 on: 1.5 * 20 + 10 = 40.
    assert rounds_until_stop(lambda t: np.array([1.0] + [0.0 if t >= 20 else 1.0] * 4)) == 40


def test_a_site_that_never_gives_a_number_cannot_hold_up_the_others():
    assert rounds_until_stop(lambda t: np.array([np.nan] + [0.0] * 4)) == 12


def test_two_creeping_sites_of_five_do_hold_it_up():
    assert rounds_until_stop(lambda t: np.array([1.0, 1.0, 0.0, 0.0, 0.0]), limit=60) is None


def test_a_relapse_of_the_others_starts_the_patience_again():
    # Settled from 10, a relapse in round 15, settled again from 16: 1.5 * 16 + 10 = 34 instead of 25.
    assert rounds_until_stop(lambda t: np.array([1.0] + [0.0 if t >= 10 and t != 15 else 1.0] * 4)) == 34


def test_of_two_sites_both_must_settle():
    assert rounds_until_stop(lambda t: np.array([1.0, 0.0]), limit=60) is None
    assert rounds_until_stop(lambda t: np.array([1.0 if t < 30 else 0.0, 0.0])) == 30


def test_one_site_in_four_may_creep_and_one_of_three():
    assert [tolerated_stragglers(k) for k in (1, 2, 3, 4, 5, 9, 10, 100)] == [0, 0, 1, 1, 1, 2, 2, 25]


# -- rounds of a fit


@pytest.mark.parametrize("max_rounds", [1, 7, 20])
def test_tolerance_zero_takes_exactly_max_rounds(max_rounds):
    result = fit(max_rounds=max_rounds, tol=0.0)
    assert result.n_rounds == max_rounds
    assert not result.converged
    assert result.unsettled == DATA.names
    assert {len(kept) for kept in result.history.values()} == {max_rounds}


def test_a_settled_fit_says_so_and_stops_before_the_cap():
    result = fit(tol=1e-5)
    assert result.converged
    assert result.n_rounds < 1000
    assert result.unsettled == ()
    last = {name: kept[-1] for name, kept in result.history.items()}
    assert np.all((last["movement"] < 1e-5) | (last["movement_in_errors"] < 0.003))
    assert last["center_movement"] < 1e-3


def test_a_site_that_moves_by_a_trifle_of_its_errors_is_settled_unless_more_is_asked_for():
    loose, tight = (fit(tol=tol) for tol in (1e-6, 1e-9))
    assert loose.n_rounds < tight.n_rounds
    assert loose.history["movement_in_errors"][-1].max() < 0.003
    assert tight.history["movement_in_errors"][-1].max() < 3e-6
    errors = 1.0 / np.sqrt(loose.n_rows[:, None] * loose.weights)
    assert np.all(np.linalg.norm(loose.theta - tight.theta, axis=-1) < 0.05 * errors)


def test_more_rounds_begin_as_fewer_do():
    once, longer = fit(max_rounds=20, tol=0.0), fit(max_rounds=23, tol=0.0)
    for name, kept in once.history.items():
        np.testing.assert_array_equal(longer.history[name][:20], kept, err_msg=name)


@pytest.mark.parametrize("name", ["gaussian-identity", "gaussian-full"])
def test_the_history_of_movement_is_the_largest_relative_step_of_each_site(name):
    case = BY_NAME[name]
    results = []
    for max_rounds in (4, 5):
        spec = FitSpec(case.family, FedGrEM(), 2, 2.0, given=GIVEN, max_rounds=max_rounds, tol=0.0, **QUIET)
        results.append(run(spec, InProcess(case.federation(0, SIZES), spec)))
    before, after = results
    step = np.linalg.norm(after.theta - before.theta, axis=-1) / (1 + np.linalg.norm(before.theta, axis=-1))
    expected = np.maximum(step.max(axis=1), np.abs(after.weights - before.weights).max(axis=1))
    if before.noise is not None:
        expected = np.maximum(expected, np.abs(after.noise - before.noise).max(axis=(1, 2)))
    np.testing.assert_allclose(after.history["movement"][-1], expected, rtol=1e-6)
    np.testing.assert_allclose(after.history["distance"][-1], after.distance.max(axis=1), rtol=1e-10)
    if before.noise is None:
        np.testing.assert_allclose(after.distance, np.linalg.norm(after.theta - after.center, axis=-1), rtol=1e-10)


def test_the_result_is_numpy_all_through():
    result = fit(max_rounds=2, tol=0.0)
    arrays = [result.weights, result.theta, result.center, result.n_rows, result.start_choice, *result.history.values()]
    assert {type(array) for array in arrays} == {np.ndarray}
    np.testing.assert_array_equal(result.n_rows, SIZES)
    assert result.cost["rounds"] == 2
    # Sent: parameters, center, lambda, steps, round, common weights and their lambda; back: parameters, step scales,
    # rows, log-likelihood.
    assert result.cost["numbers_per_round"] == 5 * ((6 + 4 + 3 + 3) + (6 + 2 + 2))


def test_progress_is_told_by_stage_and_round():
    told = []
    fit(max_rounds=9, tol=0.0, on_progress=told.append, look=True, standard_errors=True)
    assert [step.round for step in told if step.stage == "rounds"] == list(range(1, 10))
    assert [step.stage for step in told if step.stage != "rounds"] == ["census", "sizes", "look", "standard errors"]
    assert all(step.max_rounds == 9 for step in told)
    assert np.isnan(told[2].movement)
    assert all(step.movement > 0 for step in told[3:5])


# -- sites that are away


class Leaky:
    """An engine that loses the replies of some sites in some rounds, from 1."""

    def __init__(self, engine, away):
        self.engine, self.away, self.round, self.site_names = engine, away, 0, engine.site_names

    def ask(self, ask):
        replies = self.engine.ask(ask)
        if ask.task != "step":
            return replies
        self.round += 1
        present = replies.present.copy()
        present[list(self.away(self.round))] = False

        def lost(leaf):
            leaf = np.array(leaf, dtype=float)
            leaf[~present] = np.nan
            return leaf

        return Replies(present, map_arrays(lost, replies.mail))


def leaky_fit(away, algorithm=None, **options):
    spec = spec_of(algorithm, **options)
    return run(spec, Leaky(InProcess(DATA, spec), away))


PLAIN = FedGrEM(local_steps=1, memory=0)


@pytest.mark.parametrize("name", ["gaussian-identity", "gaussian-tied", "gaussian-full"])
def test_absent_sites_keep_their_parameters_and_their_last_movement(name):
    case = BY_NAME[name]
    results = []
    for max_rounds in (3, 6):
        spec = FitSpec(case.family, PLAIN, 2, 2.0, given=GIVEN, max_rounds=max_rounds, tol=0.0, **QUIET)
        engine = Leaky(InProcess(case.federation(0, SIZES), spec), lambda t: [1, 3] if t > 3 else [])
        results.append(run(spec, engine))
    before, after = results
    away, here = [1, 3], [0, 2, 4]
    np.testing.assert_array_equal(after.weights[away], before.weights[away])
    for leaf in ("theta", "noise"):
        old, new = getattr(before, leaf), getattr(after, leaf)
        centers = [getattr(r, {"theta": "center", "noise": "center_noise"}[leaf]) for r in results]
        if old is not None:  # what sat on the center follows it
            there = (old == centers[0]).all(axis=-1, keepdims=True)
            np.testing.assert_array_equal(new[away], np.where(there, centers[1], old)[away])
    assert np.all((after.theta != before.theta)[here].any(axis=(1, 2)))
    for kind in ("movement", "movement_in_errors", "log_likelihood"):
        kept = after.history[kind]
        np.testing.assert_array_equal(kept[3:, away], np.broadcast_to(kept[2, away], (3, 2)))
        assert np.all(kept[3:, here] != kept[2:-1, here])
    np.testing.assert_array_equal(after.influence.weight[away], 0.0)
    assert all(np.isfinite(kept).all() for kept in after.history.values())


def test_absent_sites_have_no_say_in_the_center():
    # Wherever they were left: the center is that of the others.
    far = THETA + np.array([0.0, 0.3, 0.0, -0.3, 0.0])[:, None, None]
    near = [leaky_fit(lambda t: [1, 3], PLAIN, max_rounds=1, given=Params(WEIGHTS, theta)) for theta in (THETA, far)]
    np.testing.assert_allclose(near[0].center, near[1].center, rtol=1e-9)


def test_a_site_that_was_never_heard_is_unsettled_and_named():
    result = leaky_fit(lambda t: [2])
    assert result.unsettled == (DATA.names[2],)
    assert result.converged  # one of five may creep
    assert np.all(np.isinf(result.history["movement"][:, 2]))
    assert np.all(np.isnan(result.history["log_likelihood"][:, 2]))
    np.testing.assert_array_equal(result.theta[2], THETA[2])


def test_a_site_is_as_settled_as_when_it_was_last_heard():
    early = leaky_fit(lambda t: [2] if t > 2 else [])
    assert early.unsettled == (DATA.names[2],)
    late = leaky_fit(lambda t: [2] if t == 3 else [])
    assert late.unsettled == ()
    assert late.converged


def test_two_absent_sites_of_five_hold_up_the_end():
    result = leaky_fit(lambda t: [0, 2], max_rounds=40)
    assert not result.converged
    assert result.unsettled == (DATA.names[0], DATA.names[2])


# -- a part of the rows, a part of the sites

LARGER = GAUSSIAN.federation(3, (120,) * 8, drift=0.05)


def partly(seed=0, **options):
    return fit(FedGrEM(**options), data=LARGER, given=None, seed=seed, standard_errors=True)


@pytest.fixture(scope="module")
def full():
    return partly()


def away_in_errors(one, full):
    """How far two fits are apart in standard errors of the full one: of parameters, and of weights."""
    errors = np.sqrt(np.diagonal(full.theta_covariance, axis1=-2, axis2=-1)), np.sqrt(full.weights_variance)
    return (np.abs(one.theta - full.theta) / errors[0]).max(), (np.abs(one.weights - full.weights) / errors[1]).max()


@pytest.mark.parametrize(
    ("options", "share", "most"),
    [
        ({"sites": 0.5}, 0.01, 60),
        ({"sites": 0.25}, 0.01, 120),
        ({"batch": 0.5}, 0.1, 40),
        ({"batch": 0.1}, 0.1, 40),
        ({"sites": 0.5, "batch": 0.3}, 0.1, 90),
    ],
    ids=str,
)
def test_sampled_sites_and_mini_batches_settle_by_themselves_where_the_full_fit_does(full, options, share, most):
    one, again, other = (partly(seed=seed, **options) for seed in (0, 0, 1))
    np.testing.assert_array_equal(one.theta, again.theta)
    np.testing.assert_array_equal(one.history["movement"], again.history["movement"])
    assert not np.array_equal(one.theta, other.theta)
    for found, whole in ((one, full), (other, partly(seed=1))):
        assert found.converged
        assert found.n_rounds <= most
        assert max(away_in_errors(found, whole)) < share
        np.testing.assert_array_equal(found.n_rows, full.n_rows)


def test_a_center_counts_sites_that_were_not_asked_by_what_they_sent_last():
    algorithm, names = FedGrEM(sites=0.5, memory=0, penalty_decay=0.0), tuple("abcd")
    theta = np.arange(4.0)[:, None, None] * np.ones((4, 1, 2))
    pull = Pull(np.asarray(2.0), np.asarray(2.0), everyone(4))
    family, ones = GAUSSIAN.family, np.ones((4, 1))

    def uploads(theta):
        return Upload(Params(ones, theta), ones, np.full(4, 50.0), np.zeros(4))

    central = algorithm.begin(family, Params(ones, theta), np.full(4, 50.0), pull)
    central, _ = algorithm.central_step(family, central, uploads(theta), everyone(4))
    asked = algorithm.invited(0, 1, names)
    told = np.where(asked[:, None, None], theta + 0.25, np.nan)
    after, influence = algorithm.central_step(family, central, uploads(told), asked)
    whole = np.where(asked[:, None, None], theta + 0.25, theta)
    expected, _ = algorithm.central_step(family, central, uploads(whole), everyone(4))
    np.testing.assert_array_equal(after.center, expected.center)
    np.testing.assert_array_equal(after.params.theta, expected.params.theta)
    assert np.all(influence.weight > 0)


def test_a_site_that_never_answered_has_no_say_where_sites_are_sampled():
    algorithm = FedGrEM(sites=0.5, memory=0)
    theta = np.arange(4.0)[:, None, None] * np.ones((4, 1, 2))
    family, ones, present = GAUSSIAN.family, np.ones((4, 1)), np.arange(4) != 3
    pull = Pull(np.asarray(2.0), np.asarray(2.0), everyone(4))
    central = algorithm.begin(family, Params(ones, theta), np.full(4, 50.0), pull)
    told = Upload(Params(ones, np.where(present[:, None, None], theta, np.nan)), ones, np.full(4, 50.0), np.zeros(4))
    after, influence = algorithm.central_step(family, central, told, present)
    assert np.isfinite(after.center).all()
    assert influence.weight[:, 0].tolist() == [50.0, 50.0, 50.0, 0.0]


def test_a_mini_batch_grows_until_it_is_all_rows_and_never_starves_a_component():
    def shares(batch, n_rows):
        algorithm = FedGrEM(batch=batch)
        ones = np.ones((3, 2)) / 2
        pull = Pull(np.asarray(2.0), np.asarray(2.0), everyone(3))
        central = algorithm.begin(GAUSSIAN.family, Params(ones, np.zeros((3, 2, 2))), np.full(3, n_rows), pull)
        at = [central._replace(extra=central.extra._replace(played=np.asarray(t))) for t in range(30)]
        return [algorithm.broadcast(GAUSSIAN.family, one).extra.batch[0] for one in at]

    found = shares(0.1, 4000.0)
    assert found[0] == 0.1
    np.testing.assert_allclose(np.divide(found[1:10], found[:9]), 1.25)
    assert set(found[11:]) == {1.0}
    assert shares(0.1, 50.0)[0] == 0.8  # 40 rows of two components
    assert shares(0.1, 30.0)[0] == 1.0


def test_all_rows_are_a_batch_and_all_sites_a_sample(full):
    everything = partly(batch=1.0, sites=1.0)
    np.testing.assert_array_equal(everything.theta, full.theta)
    np.testing.assert_array_equal(everything.history["movement"], full.history["movement"])


def test_half_of_the_sites_are_asked_but_all_in_round_one_and_never_fewer_than_two():
    half, names = FedGrEM(sites=0.5), tuple("abcdefgh")
    asked = np.array([half.invited(0, number, names) for number in range(30)])
    assert asked.sum(axis=1).tolist() == [8] + [4] * 29
    assert np.all(asked[1:].any(axis=0))
    assert not np.array_equal(asked[1:], [half.invited(1, number, names) for number in range(1, 30)])
    assert FedGrEM(sites=0.01).invited(0, 5, names).sum() == 2
    assert FedGrEM(sites=0.01).invited(0, 5, ("a",)).tolist() == [True]


# -- the conversation


class Echo:
    """An engine that answers with what it was asked."""

    site_names = ("a", "b")

    def __init__(self):
        self.asks = []

    def ask(self, ask):
        self.asks.append(ask)
        return Replies(everyone(2), ask.mail)


def talk(n):
    total = 0.0
    for i in range(n):
        told = Progress("talk", i, n, 0.0) if i % 2 == 0 else None
        replies = yield Ask("step" if i else "census", Params(np.full(2, float(i)), np.zeros((2, 3))), told)
        total += replies.mail.weights.sum()
    return total


def test_a_conversation_ends_with_what_the_phase_found_and_what_it_cost():
    told, engine = [], Echo()
    found, cost = converse(talk(4), engine, told.append)
    assert found == 12.0
    assert [ask.task for ask in engine.asks] == ["census", "step", "step", "step"]
    assert [step.round for step in told] == [0, 2]
    assert cost.as_dict() == {
        "rounds": 3, "numbers_per_round": 16, "census_exchanges": 1, "census_numbers": 16,
    }  # fmt: skip


def test_a_phase_that_asks_nothing_costs_nothing():
    found, cost = converse(talk(0), Echo())
    assert found == 0.0
    assert cost.as_dict() == {"rounds": 0, "numbers_per_round": 0}


def test_cost_adds_up_by_purpose_and_leaves_out_what_was_not_asked():
    cost, nothing = Cost(), Replies(everyone(2), ())
    for task in ("start", "compare", "path_step", "path_step", "path_score", "look"):
        cost.count(Ask(task, np.zeros((2, 5))), nothing)
    cost.count(Ask("start", None), nothing)
    assert cost.as_dict() == {
        "rounds": 0, "numbers_per_round": 0, "start_exchanges": 3, "start_numbers": 20, "penalty_exchanges": 3,
        "penalty_numbers": 30, "look_exchanges": 1, "look_numbers": 10,
    }  # fmt: skip


def test_every_task_of_the_table_has_a_purpose():
    purposes = {task for _, tasks in Cost.PURPOSES for task in tasks} | set(Cost.ROUNDS)
    assert purposes == {*TASKS, *PRIVATE_TASKS, *NETWORK_TASKS, "census"}


def test_every_message_of_a_phase_says_what_was_agreed_and_nothing_else_changes():
    agreed = Agreed(Units(np.zeros(2), np.ones(2)), True)
    plain, told = Echo(), Echo()
    found, _ = converse(talk(3), plain)
    again, _ = converse(with_agreement(talk(3), agreed), told)
    assert found == again
    assert [ask.task for ask in plain.asks] == [ask.task for ask in told.asks]
    assert all(ask.agreed is agreed for ask in told.asks)
    assert all(ask.agreed.units is None for ask in plain.asks)


def test_what_goes_wrong_in_a_phase_is_not_swallowed():
    def broken():
        yield Ask("census", ())
        raise ValueError("no")

    for phase in (broken(), with_agreement(broken(), Agreed(None, False))):
        with pytest.raises(ValueError, match="no"):
            converse(phase, Echo())


def test_a_fit_says_its_units_in_every_message_but_the_first():
    spec = spec_of(given=None, units=UnitsPlan(standardize=True), look=True, max_rounds=3)
    engine, asks = InProcess(DATA, spec), []

    def ask(message):
        asks.append(message)
        return engine.ask(message)

    result, cost = converse(whole_fit(spec, DATA.names), SimpleNamespace(ask=ask))
    assert asks[0].task == "census"
    assert asks[0].agreed.units is None
    assert len({id(message.agreed) for message in asks[1:]}) == 1
    np.testing.assert_array_equal(asks[1].agreed.units.scale, result.scale)
    # Before the rounds everyone is needed; in rounds and after them the fit goes on without those who are away.
    assert [m.task for m in asks if m.optional] == ["step"] * 3 + ["look"]
    assert cost.as_dict()["rounds"] == 3


def test_the_fields_of_the_history_are_those_of_a_record():
    assert tuple(fit(max_rounds=1).history) == RoundRecord._fields


def test_no_rounds_at_all_give_the_starts_back():
    result = fit(max_rounds=0)
    np.testing.assert_array_equal(result.theta, THETA)
    np.testing.assert_array_equal(result.weights, WEIGHTS)
    assert result.n_rounds == 0
    assert not result.converged
    assert result.unsettled == DATA.names
    shapes = {name: kept.shape for name, kept in result.history.items()}
    assert shapes == {name: (0, *kept.shape[1:]) for name, kept in fit(max_rounds=1).history.items()}
