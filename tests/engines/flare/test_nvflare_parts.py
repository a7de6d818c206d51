"""The thin parts that touch NVFlare, each on its own: envelopes, the executor, the filter, the launcher, transports."""

import json
import logging
import os
import re
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("nvflare", reason="needs fedgrem[flare]")

from nvflare.apis.dxo import DXO, DataKind
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.signal import Signal
from nvflare.private.fed.utils.identity_utils import InvalidAsserterCert

from fedgrem.engines.flare.center import CenterController, Push, answer_from, run_folder
from fedgrem.engines.flare.certificates import RefusesReplaced
from fedgrem.engines.flare.kit import REPLACED
from fedgrem.engines.flare.launcher import MOST_RESTARTS, RestartingHandle
from fedgrem.engines.flare.messages import Letter, envelope, opened
from fedgrem.engines.flare.site import OutgoingGuard, SiteExecutor
from fedgrem.engines.remote.declaration import CENSUS, STEP
from fedgrem.engines.remote.declaration import HELLO as FIRST
from fedgrem.engines.remote.log import LOG, read_log
from fedgrem.engines.remote.progress import follow
from fedgrem.engines.remote.roster import Rules
from fedgrem.engines.remote.site import write_settings
from fedgrem.engines.remote.wire import encode
from fedgrem.errors import InputError, MessageError, PausedError
from tests.engines.remote.studies import fields, spec_of, write_site

SPEC = spec_of().as_plain()
HELLO = Letter(5, encode(FIRST))


@pytest.fixture
def context(tmp_path, monkeypatch):
    """What NVFlare tells a site's parts about where they are."""
    (tmp_path / "local").mkdir()
    write_settings(write_site(tmp_path, "north"), tmp_path / "local")
    workspace = SimpleNamespace(
        get_site_config_dir=lambda: str(tmp_path / "local"),
        get_root_dir=lambda: str(tmp_path),
    )
    monkeypatch.setattr("fedgrem.engines.flare.site._GUARDS", {})
    return SimpleNamespace(
        get_workspace=lambda: workspace,
        get_identity_name=lambda: "north",
        get_job_id=lambda: "job-1",
        folder=tmp_path,
    )


def ask(executor, context, letter=HELLO, task=CENSUS):
    return opened(executor.execute(task, envelope(letter), context, Signal()))


def test_a_letter_comes_out_of_its_envelope_as_it_went_in():
    assert opened(envelope(HELLO)) == HELLO


@pytest.mark.parametrize(
    "shareable",
    [
        Shareable(),
        DXO(DataKind.COLLECTION, data={"rows": [1, 2]}).to_shareable(),
        DXO(DataKind.COLLECTION, data={"exchange": "5", "fields": {}, "declined": "", "place": ""}).to_shareable(),
    ],
)
def test_what_is_no_letter_is_refused(shareable):
    with pytest.raises(MessageError, match="the message"):
        opened(shareable)


def test_the_executor_answers_with_the_number_of_the_exchange(context):
    reply = ask(SiteExecutor(SPEC, "run-1"), context)
    assert reply.exchange == 5
    assert set(reply.fields) == {"n_rows", "mean", "deviation", "seen", "gaps", "names"}


def test_whatever_goes_wrong_at_a_site_leaves_it_as_one_word(context, caplog):
    (context.folder / "secret.csv").write_text("x0,x1\n1,secret-patient\n")
    settings = write_site(context.folder, "north")._replace(data=str(context.folder / "secret.csv"))
    write_settings(settings, context.folder / "local")
    with caplog.at_level(logging.ERROR):
        reply = ask(SiteExecutor(SPEC, "run-1"), context)
    assert reply == Letter(5, {}, "rows")
    assert "secret-patient" in caplog.text, "the site's own log has the details"


def test_a_crash_at_a_site_leaves_it_as_one_word(context, monkeypatch):
    def burst(*_):
        raise RuntimeError("row 7 is 42.0")

    monkeypatch.setattr("fedgrem.engines.flare.site.SiteAtWork.work", burst)
    assert ask(SiteExecutor(SPEC, "run-1"), context) == Letter(5, {}, "failed")


def test_a_spec_that_the_site_does_not_know_is_declined(context):
    assert ask(SiteExecutor({"family": "evil"}, "run-1"), context).declined == "order"


def test_the_filter_lets_a_declared_answer_out_and_logs_it(context):
    shareable = SiteExecutor(SPEC, "run-1").execute(CENSUS, envelope(HELLO), context, Signal())
    shareable["rows"] = [[1.0, 2.0]]  # not in the letter: it does not get through either
    out = OutgoingGuard().process(shareable, context)
    assert "rows" not in out
    assert opened(out).fields == opened(shareable).fields
    fit, _, reply = read_log(context.folder / LOG)
    assert (fit["job"], fit["run"], reply["exchange"], reply["task"]) == ("job-1", "run-1", 5, CENSUS)


def test_the_filter_lets_out_what_the_guard_has_released_and_only_that(context):
    shareable = SiteExecutor(SPEC, "run-1").execute(CENSUS, envelope(HELLO), context, Signal())
    letter = opened(shareable)
    for other in (letter._replace(exchange=6), letter._replace(fields=letter.fields | fields(n_rows=np.array(46.0)))):
        assert opened(OutgoingGuard().process(envelope(other), context)).declined == "guard"
    context.get_job_id = lambda: "job-2"
    assert opened(OutgoingGuard().process(shareable, context)).declined == "guard"


@pytest.mark.parametrize(
    "letter",
    [
        Letter(5, fields(rows=np.ones((47, 2)))),
        Letter(5, {}, "row 7 is 42.0"),
        Letter(5, fields(rows=np.ones(3)), "floor"),
    ],
)
def test_the_filter_replaces_everything_else_by_a_refusal(context, letter):
    out = opened(OutgoingGuard().process(envelope(letter), context))
    assert (out.exchange, out.fields, out.declined) == (5, {}, "guard")
    assert not (context.folder / LOG).exists()


def test_the_filter_refuses_what_is_no_letter(context):
    assert opened(OutgoingGuard().process(Shareable(), context)).declined == "guard"
    assert opened(OutgoingGuard().process(envelope(HELLO), context)).declined == "guard"


def test_the_filter_passes_on_a_known_reason(context):
    out = opened(OutgoingGuard().process(envelope(Letter(5, {}, "floor")), context))
    assert (out.exchange, out.fields, out.declined) == (5, {}, "floor")


def test_copies_of_a_kit_are_told_apart_and_nothing_else_is_told(context, tmp_path):
    def place():
        return opened(OutgoingGuard().process(envelope(Letter(5, {}, "floor")), context)).place

    first = place()
    assert re.fullmatch("[0-9a-f]{8}", first)
    assert place() == first
    workspace = context.get_workspace()
    workspace.get_root_dir = lambda: str(tmp_path / "copy")
    assert place() != first


class Worker:
    """A process that ends with a code."""

    def __init__(self, code):
        self.adapter = SimpleNamespace(poll=lambda: code)
        self.code, self.killed = code, False

    def wait(self):
        pass

    def poll(self):
        return 1 if self.code else 0

    def terminate(self):
        self.killed = True


@pytest.mark.parametrize(
    ("codes", "lives"),
    [([0], 1), ([1], 1), ([-9, 0], 2), ([-9, -11, 0], 3), ([-9] * 20, 1 + MOST_RESTARTS)],
)
def test_a_worker_is_restarted_if_and_only_if_a_signal_killed_it(monkeypatch, codes, lives):
    monkeypatch.setattr("fedgrem.engines.flare.launcher.SETTLE", 0.0)
    started = []

    def launch():
        started.append(Worker(codes[len(started)]))
        return started[-1]

    handle = RestartingHandle(launch)
    assert handle.poll() == 127, "unknown while it lives"
    handle.wait()
    assert len(started) == lives
    assert handle.poll() == started[-1].poll()


def test_a_worker_that_was_told_to_end_is_not_restarted(monkeypatch):
    monkeypatch.setattr("fedgrem.engines.flare.launcher.SETTLE", 0.0)
    started = []
    handle = RestartingHandle(lambda: started.append(Worker(-9)) or started[-1])
    handle.terminate()
    handle.wait()
    assert len(started) == 1
    assert started[0].killed


@pytest.mark.parametrize(
    ("reply", "trouble", "declined"),
    [
        (None, "not connected", ""),
        (make_reply(ReturnCode.TIMEOUT), "TIMEOUT", ""),
        (make_reply(ReturnCode.EXECUTION_EXCEPTION), "EXECUTION_EXCEPTION", ""),
        (make_reply(ReturnCode.TASK_RESULT_FILTER_ERROR), "", "guard"),
        (envelope(Letter(3, {}, "floor")), "", "floor"),
    ],
)
def test_a_reply_is_an_answer_a_refusal_or_trouble_on_the_way(reply, trouble, declined):
    answer = answer_from(reply)
    assert (answer.trouble, answer.declined) == (trouble, declined)
    assert not answer.fields


def test_a_reply_that_is_no_letter_reaches_the_centers_check():
    assert "malformed" in answer_from(DXO(DataKind.COLLECTION, data={"x": 1}).to_shareable()).fields


def test_a_stopped_job_pauses():
    stopped = Signal()
    stopped.trigger("stop")
    with pytest.raises(PausedError, match="the job was stopped; go on with `fedgrem sites resume"):
        Push(None, None, stopped).ask("north", STEP, 1, {}, 1.0)


@pytest.mark.parametrize("name", ["../elsewhere", "", "a/b", "Run", "x" * 64])
def test_a_run_stays_in_its_folder(tmp_path, name):
    assert run_folder(tmp_path, "run-1") == tmp_path / "runs" / "run-1"
    with pytest.raises(InputError, match="is no name of a run"):
        run_folder(tmp_path, name)


@pytest.mark.parametrize("elsewhere", [True, False])
def test_bytecode_is_kept_in_the_users_cache_where_it_is_kept_nowhere_else(tmp_path, elsewhere):
    code = (
        "import os, sys\nfrom fedgrem.engines.flare.processes import keep_bytecode\nbefore = dict(os.environ)\n"
        f"sys.dont_write_bytecode = {elsewhere}\nkeep_bytecode()\n"
        "if os.environ != before:\n    import wave\nprint(sys.dont_write_bytecode, os.environ == before)"
    )
    environment = os.environ | {"XDG_CACHE_HOME": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
    environment.pop("PYTHONPYCACHEPREFIX", None)
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", str(not elsewhere)]
    assert bool(list((tmp_path / "fedgrem" / "bytecode").rglob("wave.*.pyc"))) == elsewhere


def test_a_full_disk_at_the_server_pauses_the_fit_and_says_what_to_do(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device", "journal")

    monkeypatch.setattr("fedgrem.engines.flare.center.fit_over_network", full)
    workspace = SimpleNamespace(get_root_dir=lambda: str(tmp_path))
    context = SimpleNamespace(get_workspace=lambda: workspace, get_job_id=lambda: "job-1", get_engine=lambda: None)
    center = CenterController(SPEC, ["north"], "run-1", Rules()._asdict())
    center.control_flow(Signal(), context)
    outcome = follow(run_folder(tmp_path, "run-1"), None, lambda: True)
    assert outcome.kind == "paused"
    assert outcome.message == (
        "paused: the server cannot write (No space left on device: journal); see to its disk, then go on with `fedgrem "
        "sites resume STUDY`."
    )


def test_a_server_lets_no_site_in_with_a_certificate_that_was_replaced(tmp_path):
    class Keeper:
        id_verifier = SimpleNamespace(verify_common_name=lambda **told: told["asserted_cn"] == "north")

        def get_id_verifier(self, fl_ctx):
            return self.id_verifier

    keeper = Keeper()
    context = SimpleNamespace(
        get_engine=lambda: SimpleNamespace(client_manager=SimpleNamespace(cred_keeper=keeper)),
        get_workspace=lambda: SimpleNamespace(get_root_dir=lambda: str(tmp_path)),
    )
    for _ in range(2):
        RefusesReplaced().handle_event(EventType.CLIENT_REGISTER_RECEIVED, context)
    check = keeper.id_verifier.verify_common_name
    old, new = SimpleNamespace(serial_number=2**150), SimpleNamespace(serial_number=7)
    assert check(asserted_cn="north", asserter_cert=old)
    (tmp_path / REPLACED).write_text(json.dumps({"serial_numbers": [2**150]}))
    assert check(asserted_cn="north", asserter_cert=new)
    with pytest.raises(InvalidAsserterCert, match="replaced by a later one"):
        check(asserted_cn="north", asserter_cert=old)


def test_a_server_refuses_large_messages_while_they_arrive():
    code = (
        "from fedgrem.engines.flare.processes import bound_replies, LARGEST_MESSAGE\nbound_replies()\n"
        "from nvflare.fuel.f3.comm_config import CommConfigurator\n"
        "assert CommConfigurator().get_streaming_max_blob_size() == LARGEST_MESSAGE == 2**25\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
