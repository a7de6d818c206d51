"""A real study: certificates, a server, three sites.

First, what the sites refuse, even of a server that has been taken over and allows everything; then an honest fit on the
same study, with a worker and the server killed while they work.
"""

import json
import os
import shutil
import signal
import threading
import time

import numpy as np
import pytest

from fedgrem import FederatedGaussianMixture
from fedgrem.cli.sites_demo import coordinating
from fedgrem.engines.flare.operate import Fit, begin, run_folder, session
from fedgrem.engines.remote.journal import JOURNAL
from fedgrem.engines.remote.log import LOG, read_log
from fedgrem.engines.remote.result import read_result
from fedgrem.engines.remote.roster import Rules
from fedgrem.errors import FedGrEMError, SitesError
from fedgrem.estimators.network import adopt, spec_for
from tests.engines.remote.studies import NAMES, rows_of

OFF_THE_LIST = "nvflare.app_common.np.np_trainer.NPTrainer"
"""NVFlare allows it by default; our kits do not."""
EVIL = """
from nvflare.apis.executor import Executor
class Evil(Executor):
    def execute(self, *_):
        open({flag!r}, "w").close()
"""
OPTIONS = {"n_components": 2, "covariance_type": "identity", "penalty": 2.0, "n_init": 2, "max_rounds": 100, "tol": 0.0}
OPTIONS |= {"random_state": 3}


@pytest.fixture(scope="module")
def taken_over(monkeypatch_module, request):
    """The study's server lets its coordinator do anything: only the sites are left to refuse."""
    from fedgrem.engines.flare import kit

    harden = kit.harden_server

    def open_up(folder):
        harden(folder)
        policy = json.loads((folder / "local" / "authorization.json").read_text())
        policy["permissions"]["lead"] = dict.fromkeys(policy["permissions"]["lead"], "any")
        (folder / "local" / "authorization.json").write_text(json.dumps(policy))
        resources = json.loads((folder / "local" / "resources.json").read_text())
        (folder / "local" / "resources.json").write_text(json.dumps(resources | {"class_allow_list": ["*"]}))

    monkeypatch_module.setattr(kit, "harden_server", open_up)
    return request.getfixturevalue("study")


@pytest.fixture(scope="module")
def monkeypatch_module():
    with pytest.MonkeyPatch.context() as patch:
        yield patch


def submit(place, name, change, until):
    """Submit a job that ``change`` has changed; returns its number, status and story once ``until`` holds of these."""
    from fedgrem.engines.flare.job import write_job
    from fedgrem.engines.flare.processes import wait_until

    spec = spec_for(FederatedGaussianMixture(2, covariance_type="identity", n_init=1, max_rounds=2))
    job = write_job(place.folder / name, spec, list(NAMES), f"run-{name}", Rules(min_sites=3, deadline=6.0))
    config = job / "site" / "config" / "config_fed_client.json"
    content = json.loads(config.read_text())
    change(job, content["executors"][0])
    config.write_text(json.dumps(content))
    with session(place.study) as talk:
        number = talk.submit(job)
        wait_until(lambda: until(number, talk.job_status(number)), 60.0, "what was expected of the job", every=0.5)
        status, story = talk.job_status(number), talk.job_story(number)
        talk.stop_jobs()
        return number, status, story


def ended(number, status):
    return status.startswith("FINISHED")


def test_a_job_with_custom_code_is_refused_by_every_site_and_none_of_it_runs(taken_over):
    flag = taken_over.folder / "evil-was-here"

    def bring_code(job, executor):
        (job / "site" / "custom").mkdir()
        (job / "site" / "custom" / "evil.py").write_text(EVIL.format(flag=str(flag)))
        executor["executor"] = {"path": "evil.Evil", "args": {}}

    _, status, story = submit(taken_over, "custom", bring_code, ended)
    assert status != "FINISHED:COMPLETED"
    for name in NAMES:
        assert f"{name}: " in story
        assert "BYOC" in story or "not authorized" in story
        assert not any((taken_over.study.kit(name)).rglob("evil.py")), "the code did not even reach the site"
    assert not flag.exists()


def test_a_job_with_a_class_off_the_list_is_refused_by_the_site(taken_over):
    def other_class(job, executor):
        executor["executor"] = {"path": OFF_THE_LIST, "args": {}}

    refused = f"Component '{OFF_THE_LIST}' at config path 'executors.#1.executor' is not in allow_list"

    def everywhere(number, status):
        return all(refused in told(taken_over.study.kit(name) / number) for name in NAMES)

    submit(taken_over, "class", other_class, everywhere)
    for name in NAMES:
        assert not (taken_over.study.kit(name) / LOG).exists()


def told(kit):
    """What a site's own console and log say."""
    return "".join(path.read_text() for path in (kit / "console.log", kit / "log.txt") if path.exists())


def test_a_site_without_a_right_certificate_does_not_get_in(taken_over):
    from fedgrem.engines.flare.kit import init_study
    from fedgrem.engines.flare.processes import start_site, stop, wait_until

    place = taken_over.study
    stranger = init_study(taken_over.folder / "other", ["stranger", "other"], place.host, place.port).kit("stranger")
    ghost = taken_over.folder / "ghost"
    for part in ("startup", "local"):
        shutil.copytree(place.kit("north") / part, ghost / part)
    try:
        start_site(stranger, "stranger")  # signed by another authority
        start_site(ghost, "ghost")  # with the certificate of north, under another name
        wait_until(lambda: "CERTIFICATE_VERIFY_FAILED" in told(stranger), 30.0, "the stranger to be refused")
        claimed = "authenticated as 'north' but claimed endpoint 'ghost'"
        wait_until(lambda: claimed in told(place.server), 30.0, "the ghost to be refused")
        with session(place) as talk:
            assert sorted(talk.last_seen()) == list(NAMES)
    finally:
        stop(stranger, ghost)


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
            with session(study) as talk:
                self.finished = talk.carry_out(run, self._tell)
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


def test_a_killed_worker_rejoins_and_a_killed_server_resumes_to_the_in_process_answer(taken_over, in_process):
    from fedgrem.engines.flare.processes import process_of, start_server, workers_of

    place = taken_over.study
    rules = Rules(min_sites=3, deadline=60.0)
    run = begin(place, Fit(spec_for(FederatedGaussianMixture(**OPTIONS)), list(NAMES), rules))

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
    assert (run_folder(place, run) / JOURNAL).exists()

    start_server(place.server)
    with coordinating(place):
        pass
    second = Watched(place, run).join()
    assert second.error is None
    assert second.rounds[0] == 1, "the journal is played again, and then it goes on"
    assert second.rounds[-1] == OPTIONS["max_rounds"]

    finished = second.finished
    assert finished.about["events"] == [], "the worker was back before its deadline: no site was missing"
    model = adopt(FederatedGaussianMixture(**OPTIONS), finished, finished.about["columns"])
    assert model.site_names_.tolist() == list(NAMES)
    np.testing.assert_allclose(model.means_, in_process.means_, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(model.weights_, in_process.weights_, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(model.center_, in_process.center_, rtol=1e-10, atol=1e-10)
    assert read_result(run_folder(place, run)).result.n_rounds == OPTIONS["max_rounds"]
    for name in NAMES:
        log = list(read_log(place.kit(name) / LOG))
        assert {line["task"] for line in log if line["kind"] == "reply"} >= {"census", "start", "step", "look"}, (
            "the guard was at the door"
        )
