"""The rounds: when they stop, what they report, and who is still unsettled."""

import numpy as np
import pytest

from fedgrem.algorithms.fedgrem import FedGrEM
from fedgrem.engines.inprocess import InProcess
from fedgrem.fit.conversation import Agreed, Replies
from fedgrem.fit.rounds import RoundRecord, play_rounds, tolerated_stragglers
from fedgrem.types import Central, Influence, Params, Upload, map_arrays
from tests.conformance.engines import fit, spec_for
from tests.conformance.families import BY_NAME, GAUSSIAN, REGRESSION

DATA = GAUSSIAN.federation(0, (30, 20, 25, 22, 28))
START = GAUSSIAN.near(0, 5)


class Scripted:
    """An algorithm whose parameters move as a test says; it only knows the number of the round."""

    def __init__(self, movements, center, n_sites):
        self.movements, self.center_moves, self.n_sites = movements, center, n_sites

    def invited(self, seed, number, names):
        return np.ones(len(names), dtype=bool)

    def broadcast(self, family, central):
        return ()

    def central_step(self, family, central, uploads, present):
        played = int(central.extra) + 1
        moves = np.asarray(self.movements(played), dtype=float)
        theta = central.params.theta + moves[:, None, None] * np.array([0.0, 1.0, 0.0])
        center = central.center + np.array([0.0, 0.0, self.center_moves(played)])
        zero = np.zeros(())
        influence = Influence(np.ones((self.n_sites, 1)), np.ones((self.n_sites, 1)), zero, zero, zero)
        after = Central(Params(central.params.weights, theta), center, central.n_rows, None, np.asarray(played))
        return after, influence


class UnknownErrors(type(GAUSSIAN.family)):
    """A family of which nobody knows what a standard error is: only the tolerance counts."""

    name = "own"


def rounds_until_stop(movements, center=lambda t: 0.0, tol=1e-6, limit=1000):
    """Feed the stopping rule: movements(t) -> (K,), t from 1; returns the round in which it stops, or None."""
    n_sites = len(movements(1))
    algorithm = Scripted(movements, center, n_sites)
    spec = spec_for(BY_NAME["gaussian-identity"], algorithm, rounds=limit, tol=tol)
    object.__setattr__(spec, "family", UnknownErrors())
    params = Params(np.ones((n_sites, 1)), np.zeros((n_sites, 1, 3)))
    central = Central(params, np.zeros((1, 3)), np.full(n_sites, 100.0), None, np.zeros((), dtype=int))
    rounds = play_rounds(spec, central, tuple(map(str, range(n_sites))))
    next(rounds)
    blank = Upload(params, np.ones((n_sites, 1)), np.ones(n_sites), np.zeros(n_sites))
    try:
        while True:
            rounds.send(Replies(np.ones(n_sites, dtype=bool), blank))
    except StopIteration as end:
        return end.value.n_rounds if end.value.stopped else None


def test_it_stops_in_the_first_round_in_which_everything_is_settled():
    assert rounds_until_stop(lambda t: np.full(5, 0.0 if t >= 7 else 1.0)) == 7


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


@pytest.mark.parametrize("max_rounds", [1, 7, 23])
def test_tolerance_zero_takes_exactly_max_rounds(max_rounds):
    result = fit(GAUSSIAN, DATA, FedGrEM(), START, rounds=max_rounds)
    assert result.n_rounds == max_rounds
    assert not result.converged
    assert result.unsettled == DATA.names
    assert set(result.history) == set(RoundRecord._fields)
    assert {len(kept) for kept in result.history.values()} == {max_rounds}


def test_no_rounds_at_all_give_the_starts_back():
    result = fit(GAUSSIAN, DATA, FedGrEM(), START, rounds=0)
    np.testing.assert_array_equal(result.theta, START[1])
    assert (result.n_rounds, result.converged) == (0, False)
    assert {len(kept) for kept in result.history.values()} == {0}


def test_a_settled_fit_says_so_and_stops_before_the_cap():
    result = fit(GAUSSIAN, DATA, FedGrEM(), START, rounds=1000, tol=1e-5)
    assert result.converged
    assert result.n_rounds < 1000
    assert result.unsettled == ()
    last = {name: kept[-1] for name, kept in result.history.items()}
    assert np.all((last["movement"] < 1e-5) | (last["movement_in_errors"] < 0.003))


def test_a_tighter_tolerance_takes_more_rounds_and_ends_closer():
    loose, tight, tightest = (
        fit(REGRESSION, REGRESSION.federation(1, (60, 50, 70)), FedGrEM(), REGRESSION.near(1, 3), rounds=1000, tol=tol)
        for tol in (1e-3, 1e-8, 1e-12)
    )
    assert loose.n_rounds < tight.n_rounds
    assert np.abs(tight.theta - tightest.theta).max() < np.abs(loose.theta - tightest.theta).max()


def test_playing_on_is_playing_the_same_rounds():
    once, longer = (fit(GAUSSIAN, DATA, FedGrEM(), START, rounds=rounds) for rounds in (6, 9))
    for name, kept in once.history.items():
        np.testing.assert_array_equal(longer.history[name][:6], kept, err_msg=name)


def test_the_history_of_movement_is_the_largest_relative_step_of_each_site():
    before, after = (fit(GAUSSIAN, DATA, FedGrEM(), START, rounds=rounds) for rounds in (4, 5))
    step = np.linalg.norm(after.theta - before.theta, axis=-1) / (1 + np.linalg.norm(before.theta, axis=-1))
    expected = np.maximum(step.max(axis=1), np.abs(after.weights - before.weights).max(axis=1))
    np.testing.assert_allclose(after.history["movement"][-1], expected, rtol=1e-6)
    distance = np.linalg.norm(after.theta - after.center, axis=-1).max(axis=1)
    np.testing.assert_allclose(after.history["distance"][-1], distance, rtol=1e-10, atol=1e-12)


def test_the_result_is_numpy_all_through_and_counts_its_cost():
    result = fit(GAUSSIAN, DATA, FedGrEM(pool_weights=False), START, rounds=2)
    arrays = [result.weights, result.theta, result.center, result.n_rows, result.start_choice, *result.history.values()]
    assert {type(array) for array in arrays} == {np.ndarray}
    np.testing.assert_array_equal(result.n_rows, [30, 20, 25, 22, 28])
    assert result.cost["rounds"] == 2
    # Down: 2 weights, 4 of theta, 4 of the center, lambda, steps, round; up: 6 numbers, 2 scales, rows, likelihood.
    assert result.cost["numbers_per_round"] == 5 * (2 + 4 + 4 + 3) + 5 * (2 + 4 + 2 + 2)


def test_progress_is_told_by_stage_and_round():
    told = []
    fit(GAUSSIAN, DATA, FedGrEM(), START, rounds=4, on_progress=told.append)
    assert [step.round for step in told if step.stage == "rounds"] == [1, 2, 3, 4]
    assert all(step.max_rounds == 4 for step in told)


# -- absent sites


class Away(InProcess):
    """Site 1 is away in some rounds, counted from 1."""

    away = ()

    def __init__(self, *args):
        super().__init__(*args)
        self.played = 0

    def ask(self, ask):
        replies = super().ask(ask)
        if ask.task != "step":
            return replies
        self.played += 1
        if self.played not in self.away:
            return replies
        present = np.arange(len(self.site_names)) != 1

        def lost(leaf):
            found = np.array(leaf, dtype=float)
            found[~present] = np.nan
            return found

        return Replies(present, map_arrays(lost, replies.mail))


def away_in(rounds):
    return type("Away", (Away,), {"away": tuple(rounds)})


def test_a_site_that_was_never_heard_has_infinite_movement_and_is_named():
    result = fit(GAUSSIAN, DATA, FedGrEM(), START, rounds=300, tol=1e-5, engine=away_in(range(1, 1000)))
    assert result.converged  # the others have settled, and it got its extra rounds
    assert result.unsettled == (DATA.names[1],)
    assert np.isinf(result.history["movement"][:, 1]).all()
    assert np.isinf(result.history["movement_in_errors"][:, 1]).all()
    assert np.isnan(result.history["log_likelihood"][:, 1]).all()
    np.testing.assert_array_equal(result.weights[1], START[0][1])


def test_the_movement_of_an_absent_site_is_that_of_when_it_was_last_heard():
    everyone = fit(GAUSSIAN, DATA, FedGrEM(), START, rounds=5)
    result = fit(GAUSSIAN, DATA, FedGrEM(), START, rounds=5, engine=away_in((3, 4, 5)))
    movement, said = (result.history[name][:, 1] for name in ("movement", "log_likelihood"))
    np.testing.assert_array_equal(movement[:2], everyone.history["movement"][:2, 1])
    np.testing.assert_array_equal(movement[2:], movement[1])
    np.testing.assert_array_equal(said[2:], said[1])
    assert np.isfinite(result.history["center_movement"]).all()


def test_a_site_that_was_still_moving_when_it_left_is_unsettled():
    result = fit(GAUSSIAN, DATA, FedGrEM(), START, rounds=300, tol=1e-5, engine=away_in(range(2, 1000)))
    assert result.unsettled == (DATA.names[1],)


def test_a_site_that_comes_back_ends_where_it_would_have():
    everyone = fit(GAUSSIAN, DATA, FedGrEM(), START, rounds=200, tol=1e-10)
    result = fit(GAUSSIAN, DATA, FedGrEM(), START, rounds=200, tol=1e-10, engine=away_in((1, 2, 5, 6)))
    np.testing.assert_allclose(result.theta, everyone.theta, atol=1e-5)
    np.testing.assert_allclose(result.weights, everyone.weights, atol=1e-5)


def test_absence_after_the_rounds_is_nan_and_no_end():
    class AwayLater(InProcess):
        def ask(self, ask):
            replies = super().ask(ask)
            if ask.task not in ("look", "information", "score"):
                return replies
            assert ask.optional
            present = np.arange(5) != 1

            def lost(leaf):
                found = np.array(leaf, dtype=float)
                found[~present] = np.nan
                return found

            return Replies(present, map_arrays(lost, replies.mail))

    result = fit(
        GAUSSIAN, DATA, FedGrEM(), START, rounds=20, look=True, standard_errors=True, score=True, engine=AwayLater
    )
    assert np.isnan(result.log_likelihood).tolist() == [False, True, False, False, False]
    assert np.isnan(result.look["log_likelihood"]).tolist() == [False, True, False, False, False]
    assert np.isnan(result.weights_variance[1]).all()
    assert np.isfinite(result.weights_variance[[0, 2, 3, 4]]).all()


def test_agreed_units_are_said_in_every_message():
    said = []

    class Watched(InProcess):
        def ask(self, ask):
            said.append((ask.task, ask.agreed))
            return super().ask(ask)

    fit(GAUSSIAN, DATA, FedGrEM(), START, rounds=2, engine=Watched)
    assert said[0][0] == "census"
    assert {agreed for _, agreed in said[1:]} == {Agreed(None, False)}
