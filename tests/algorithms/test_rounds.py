"""The one loop: when it stops, what it reports."""

import jax.numpy as jnp
import numpy as np
import pytest
from fedgrem.algorithms.plan import Plan
from fedgrem.algorithms.rounds import LoopState, _advance, run, tolerated_stragglers
from fedgrem.algorithms.start import StartPlan

from fedgrem.algorithms.fedgrem import FedGrEM
from fedgrem.engines import InProcess
from fedgrem.engines.inprocess import BLOCK
from fedgrem.types import Params
from tests.conformance.families import FAMILIES

GAUSSIAN = FAMILIES[0]
START = StartPlan(n_components=2)
DATA = GAUSSIAN.federation(0, (30, 20, 25, 22, 28))
WEIGHTS, THETA = GAUSSIAN.near(0, 5)


def fit(*, on_progress=None, **plan):
    algorithm = FedGrEM(GAUSSIAN.family)
    given = Params(jnp.asarray(WEIGHTS), jnp.asarray(THETA))
    return run(algorithm, InProcess(algorithm, DATA, START), Plan(start=START, given=given, **plan), on_progress)


def rounds_until_stop(movements, center_movements=None, tol=1e-6, limit=1000):
    """Feed the stopping rule: movements(t) -> (K,), t from 1; returns the round in which it stops, or None."""
    zero = jnp.asarray(0)
    state = LoopState(None, zero, zero, jnp.asarray(False))
    for t in range(1, limit + 1):
        center = 0.0 if center_movements is None else center_movements(t)
        state = _advance(state, None, jnp.asarray(movements(t)) < tol, jnp.asarray(center) < tol)
        assert int(state.round) == t
        if bool(state.stop):
            return t
    return None


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


@pytest.mark.parametrize("max_rounds", [1, 7, BLOCK, BLOCK + 3])
def test_tolerance_zero_takes_exactly_max_rounds(max_rounds):
    result = fit(max_rounds=max_rounds, tol=0.0)
    assert result.n_rounds == max_rounds
    assert not result.converged
    assert result.unsettled == DATA.names
    assert {len(kept) for kept in result.history.values()} == {max_rounds}


def test_no_rounds_at_all_give_the_starts_back():
    result = fit(max_rounds=0, align=False)
    np.testing.assert_array_equal(result.theta, THETA)
    assert result.n_rounds == 0


def test_a_settled_fit_says_so_and_stops_before_the_cap():
    result = fit(max_rounds=1000, tol=1e-5)
    assert result.converged
    assert result.n_rounds < 1000
    assert result.unsettled == ()
    assert result.history["movement"][-1].max() < 1e-5
    assert result.history["center_movement"][-1] < 1e-5


def test_playing_on_in_blocks_is_playing_at_once():
    once, longer = fit(max_rounds=BLOCK, tol=0.0), fit(max_rounds=BLOCK + 3, tol=0.0)
    for name, kept in once.history.items():
        np.testing.assert_array_equal(longer.history[name][:BLOCK], kept, err_msg=name)


def test_the_history_of_movement_is_the_largest_relative_step_of_each_site():
    before, after = fit(max_rounds=4, tol=0.0), fit(max_rounds=5, tol=0.0)
    step = np.linalg.norm(after.theta - before.theta, axis=-1) / (1 + np.linalg.norm(before.theta, axis=-1))
    expected = np.maximum(step.max(axis=1), np.abs(after.weights - before.weights).max(axis=1))
    np.testing.assert_allclose(after.history["movement"][-1], expected, rtol=1e-6)
    distance = np.linalg.norm(after.theta - after.center, axis=-1).max(axis=1)
    np.testing.assert_allclose(after.history["distance"][-1], distance, rtol=1e-10)


def test_the_result_is_numpy_all_through():
    result = fit(max_rounds=2, tol=0.0)
    arrays = [result.weights, result.theta, result.center, result.n_rows, result.start_choice, *result.history.values()]
    assert {type(array) for array in arrays} == {np.ndarray}
    np.testing.assert_array_equal(result.n_rows, [30, 20, 25, 22, 28])
    assert result.cost["rounds"] == 2
    assert result.cost["numbers_per_round"] == 5 * (2 + 2 * 2)


def test_progress_is_told_by_stage_and_round():
    told = []
    fit(max_rounds=BLOCK + 3, tol=0.0, on_progress=told.append)
    assert [step.round for step in told if step.stage == "rounds"] == [BLOCK, BLOCK + 3]
    assert all(step.max_rounds == BLOCK + 3 for step in told)
