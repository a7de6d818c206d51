"""Sites that are away for a while, or once the rounds are over; and what a result is made of."""

import copy
import pickle

import numpy as np
import pytest

from fedgrem.algorithms.fedgrem import FedGrEM
from fedgrem.engines.inprocess import InProcess
from fedgrem.fit.conversation import Replies
from fedgrem.types import FitResult, map_arrays
from tests.conformance.engines import assert_same_fit, fit
from tests.conformance.families import BY_NAME, GAUSSIAN

DATA, START = GAUSSIAN.federation(0, (30, 20, 25, 22, 28)), GAUSSIAN.near(0, 5)


def engine(tasks, rounds=()):
    """Site 1 does not answer some tasks; of the rounds, only those with these numbers, from 1."""

    class Away(InProcess):
        played = 0

        def ask(self, ask):
            replies = super().ask(ask)
            self.played += ask.task == "step"
            if ask.task not in tasks or (ask.task == "step" and self.played not in rounds):
                return replies
            assert ask.optional
            present = np.arange(5) != 1

            def lost(leaf):
                found = np.array(leaf, dtype=float)
                found[~present] = np.nan
                return found

            return Replies(present, map_arrays(lost, replies.mail))

    return Away


@pytest.mark.parametrize("rounds", [(1,), (1, 2, 5, 6), (2, 4, 6, 8)], ids=str)
def test_a_site_that_comes_back_ends_where_it_would_have(rounds):
    everyone = fit(GAUSSIAN, DATA, FedGrEM(), START, rounds=200, tol=1e-10)
    result = fit(GAUSSIAN, DATA, FedGrEM(), START, rounds=200, tol=1e-10, engine=engine(["step"], rounds))
    np.testing.assert_allclose(result.theta, everyone.theta, atol=1e-5)
    np.testing.assert_allclose(result.weights, everyone.weights, atol=1e-5)
    assert result.unsettled == ()


def test_absence_after_the_rounds_is_nan_and_no_end():
    wanted = {"look": True, "standard_errors": True, "score": True}
    away = engine(["look", "information", "score"])
    result, everyone = (fit(GAUSSIAN, DATA, FedGrEM(), START, rounds=20, engine=e, **wanted) for e in (away, InProcess))
    np.testing.assert_array_equal(result.theta, everyone.theta)
    for found, whole in (
        (result.log_likelihood, everyone.log_likelihood),
        (result.entropy, everyone.entropy),
        (result.look["log_likelihood"], everyone.look["log_likelihood"]),
    ):
        np.testing.assert_array_equal(found, np.where(np.arange(5) == 1, np.nan, whole))
    assert np.isnan(result.weights_variance[1]).all()
    assert np.isfinite(result.weights_variance[[0, 2, 3, 4]]).all()
    assert np.isfinite(result.center_covariance).all()


@pytest.mark.parametrize("name", ["gaussian-identity", "gaussian-tied"])
def test_a_result_can_be_copied_and_pickled(name):
    case = BY_NAME[name]
    result = fit(case, case.federation(1, (30, 25, 28)), FedGrEM(), rounds=3, look=True, standard_errors=True)
    for again in (copy.deepcopy(result), pickle.loads(pickle.dumps(result))):
        assert_same_fit(again, result, rtol=0, atol=0)
        assert again.cost == result.cost


def test_a_result_with_nothing_but_what_is_needed_can_be_copied_and_pickled():
    needed = [name for name in FitResult._fields if name not in FitResult._field_defaults]
    bare = FitResult(**dict.fromkeys(needed))
    assert copy.deepcopy(bare) == pickle.loads(pickle.dumps(bare)) == bare
    assert dict(bare.cost) == {} == dict(bare.path)
