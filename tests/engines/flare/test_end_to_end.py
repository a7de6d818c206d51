"""A real study: certificates, a server, three sites; workers and the server are killed while they work."""

import os
import signal
import threading
import time

import numpy as np
import pytest

from fedgrem import FederatedGaussianMixture
from fedgrem.engines.flare.operate import Fit, begin, carry_out, run_folder
from fedgrem.engines.flare.roster import Rules
from fedgrem.engines.flare.store import CHECKPOINT, read_result
from fedgrem.errors import FedGrEMError, SitesError
from fedgrem.estimators.network import adopt, recipe_for
from tests.engines.flare.studies import NAMES, rows_of

OPTIONS = {"n_components": 2, "covariance": "identity", "penalty": 2.0, "n_init": 2, "max_rounds": 100, "tol": 0.0}
OPTIONS |= {"random_state": 3}


@pytest.fixture(scope="module")
def in_process():
    return FederatedGaussianMixture(**OPTIONS).fit({name: rows_of(name)[0] for name in NAMES})


class Watched:
    """A run in another thread, and the last round that it told of."""

    def __init__(self, study, run):
        self.round, self.error, self.finished, self.rounds = 0, None, None, []
        self._thread = threading.Thread(target=self._watch, args=(study, run))
        self._thread.start()

    def _watch(self, study, run):
        try:
            self.finished = carry_out(study, run, self._tell)
        except FedGrEMError as error:
            self.error = error

    def _tell(self, progress):
        if progress.stage == "rounds":
            self.round = progress.round
            self.rounds.append(progress.round)

    def reach(self, number, seconds=60.0):
        end = time.monotonic() + seconds
        while self.round < number and self._thread.is_alive():
            assert time.monotonic() < end, f"round {number} was not reached"
            time.sleep(0.02)
        assert self.round >= number, self.error

    def join(self):
        self._thread.join()
        return self


def test_a_killed_worker_rejoins_and_a_killed_server_resumes_to_the_in_process_answer(study, in_process):
    from fedgrem.cli.network import wait_for_server, wait_for_sites
    from fedgrem.engines.flare.processes import process_of, start_server, workers_of

    place = study.study
    rules = Rules(min_sites=3, deadline=60.0)
    run = begin(place, Fit(recipe_for(FederatedGaussianMixture(**OPTIONS)), list(NAMES), rules))

    first = Watched(place, run)
    first.reach(10)
    (worker,) = workers_of(place.kit("north"))
    os.kill(worker, signal.SIGKILL)
    first.reach(first.round + 15)
    assert worker not in workers_of(place.kit("north"))
    assert workers_of(place.kit("north"))

    victims = [process_of(place.server), *workers_of(place.server)]
    for pid in victims:
        os.kill(pid, signal.SIGKILL)
    first.join()
    assert isinstance(first.error, SitesError)
    assert "fedgrem sites resume" in str(first.error)
    assert (run_folder(place, run) / CHECKPOINT).exists()

    start_server(place.server)
    wait_for_server(place)
    wait_for_sites(place, list(NAMES), 60.0)
    second = Watched(place, run).join()
    assert second.error is None
    assert second.rounds[0] > 25, "it went on from the checkpoint, not from the beginning"
    assert second.rounds[-1] == OPTIONS["max_rounds"]

    finished = second.finished
    assert finished.about["events"] == [], "the worker was back before its deadline: no site was missing"
    model = adopt(FederatedGaussianMixture(**OPTIONS), finished, finished.about["columns"])
    assert model.site_names_.tolist() == list(NAMES)
    np.testing.assert_allclose(model.means_, in_process.means_, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(model.weights_, in_process.weights_, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(model.center_, in_process.center_, rtol=1e-10, atol=1e-10)
    assert read_result(run_folder(place, run)).result.n_rounds == OPTIONS["max_rounds"]
