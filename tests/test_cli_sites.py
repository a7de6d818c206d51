"""``fedgrem sites`` and ``site``: words, errors and what a site shows. The real study is in tests/engines/flare."""

import json
import re
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import polars as pl
import pytest

pytest.importorskip("nvflare", reason="needs fedgrem[flare]")

from fedgrem import FederatedGaussianMixture, load_model
from fedgrem.cli import main
from fedgrem.cli.options import estimator
from fedgrem.cli.sites_demo import free_port
from fedgrem.cli.sites_fit import cost_of, save_fitted
from fedgrem.engines.flare.kit import Study, read_study
from fedgrem.engines.flare.operate import Fit, begin, last_unfinished, only_fit, read_fit, run_folder, unfinished
from fedgrem.engines.remote.journal import JOURNAL
from fedgrem.engines.remote.ledger import charge
from fedgrem.engines.remote.log import LOG, Log
from fedgrem.engines.remote.progress import Diary, count_lines, follow
from fedgrem.engines.remote.roster import Rules
from fedgrem.engines.remote.run import fit_over_network
from fedgrem.engines.remote.site import Settings, read_settings, write_settings
from fedgrem.errors import InputError, SitesError
from fedgrem.estimators.network import spec_for
from tests.engines.remote.studies import NAMES, AtHand, rows_of, spec_of
from tests.told import assert_one_error

OPTIONS = {
    "n_components": 2,
    "n_init": 2,
    "penalty": 2.0,
    "max_rounds": 30,
    "standard_errors": False,
    "random_state": 0,
}

PRIVATE = ["study/kits/north", "--data", "north.csv", "--columns", "age,bmi"]
FIT = ["study", "-r", 2, "-o", "m2"]


def run(*arguments):
    """The exit code of a command."""
    with pytest.raises(SystemExit) as stop:
        main([str(argument) for argument in arguments])
    return stop.value.code or 0


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A study of three sites, and the rows of one of them."""
    folder = tmp_path_factory.mktemp("operator")
    port = free_port()
    sites = [part for name in NAMES for part in ("--site", name)]
    assert run("sites", "init", folder / "study", *sites, "--host", "localhost", "--port", port) == 0
    rows, response = rows_of("north")
    table = pl.DataFrame(rows, schema=["age", "bmi"]).with_columns(y=pl.Series(response), who=pl.lit("secret-patient"))
    table.write_csv(folder / "north.csv")
    return folder


@pytest.mark.parametrize(
    "command",
    [
        *(("sites", name) for name in "init add handed renew remove start status fit resume stop demo".split()),
        *(("site", name) for name in "check start log stop".split()),
    ],
    ids=" ".join,
)
def test_every_command_has_help_with_an_example(command, capsys):
    assert run(*command, "--help") == 0
    assert f"fedgrem {' '.join(command)}" in capsys.readouterr().out


def test_init_says_what_to_hand_to_whom(tmp_path, capsys):
    assert run("sites", "init", tmp_path / "s", "--site", "b", "--site", "a", "--host", "coord.example.org") == 0
    out = capsys.readouterr().out
    assert "Study with 2 sites" in out
    assert "coord.example.org:8002" in out
    assert re.search(r"hand \S+kits/a to a; there: fedgrem site start a/ --data FILE", out)
    assert "authority to yourself" in out


def test_check_shows_every_number_that_would_leave_and_sends_nothing(folder, capsys):
    kit = folder / "study" / "kits" / "north"
    assert run("site", "check", kit, "--data", folder / "north.csv", "--columns", "age,bmi") == 0
    out = capsys.readouterr().out
    assert "Site north; server localhost:" in out
    for field in ("n_rows", "mean", "deviation", "names", "params.weights", "params.theta", "log_likelihood"):
        assert field in out
    assert "age, bmi" in out
    assert "secret-patient" not in out
    assert not (kit / LOG).exists()


def test_a_start_that_is_refused_leaves_the_settings_of_the_running_site_alone(folder, monkeypatch, capsys):
    kit = folder / "study" / "kits" / "north"
    kept = Settings(str(folder / "north.csv"), ("age", "bmi"), floor=20.0)
    write_settings(kept, kit / "local")
    try:
        with monkeypatch.context() as patch:
            patch.setattr("fedgrem.engines.flare.processes.process_of", lambda kit: 4711)
            assert run("site", "start", kit, "--data", folder / "north.csv", "--columns", "age") == 1
        assert_one_error(capsys.readouterr().err, r"site 'north' is running already \(process 4711\); stop it first")
        assert read_settings(kit / "local") == kept
    finally:
        (kit / "local" / "fedgrem.json").unlink()


def test_check_shows_what_would_leave_in_a_private_fit_and_spends_nothing(folder, capsys):
    kit = folder / "study" / "kits" / "north"
    assert run("site", "check", kit, "--data", folder / "north.csv", "--columns", "age,bmi", "--epsilon", 2) == 0
    out = capsys.readouterr().out
    assert out.count("noisy") == 4
    assert "n_rows" not in out
    assert not (kit / "local" / "budget.jsonl").exists()


def test_a_budget_stays_from_start_to_start_and_the_log_says_what_is_spent(folder, monkeypatch, capsys):
    kit = folder / "study" / "kits" / "north"
    rows = ["--data", folder / "north.csv", "--columns", "age,bmi"]
    monkeypatch.setattr("fedgrem.engines.flare.processes.start_site", lambda kit, name: 4711)
    try:
        assert run("site", "start", kit, *rows, "--epsilon", 2, "--total-epsilon", 8) == 0
        assert run("site", "start", kit, *rows, "--delta", 1e-7) == 0
        kept = read_settings(kit / "local")
        assert (kept.epsilon, kept.delta, kept.total_epsilon) == (2.0, 1e-7, 8.0)
        charge(Path(kept.ledger), "run-1", 2.0, 1e-7, 8.0)
        capsys.readouterr()
        assert run("site", "log", kit) == 0
        assert "1 fit(s) have spent epsilon 2 of 8 (delta 1e-07); a fit costs 2." in capsys.readouterr().out
    finally:
        (kit / "local" / "fedgrem.json").unlink()


def test_a_private_fit_that_came_back_is_shown(tmp_path, capsys):
    options = {"n_components": 2, "privacy": {"ranges": [-8.0, 8.0]}, "random_state": 0}
    spec = spec_for(estimator(options, False), ["x0", "x1"])
    wire = AtHand(tmp_path, spec, epsilon=50.0)
    finished = fit_over_network(spec, list(NAMES), wire, tmp_path / "run", Rules(min_sites=2))
    save_fitted(finished, {"regression": False, "options": options, "out": str(tmp_path / "model")})
    assert run("show", tmp_path / "model") == 0
    assert "2 components over 3 sites" in capsys.readouterr().out
    assert load_model(tmp_path / "model").privacy.ranges == [-8.0, 8.0]
    assert run("report", tmp_path / "model", "--out", tmp_path / "page.html") == 0
    assert re.search(r"8 exchanges \(4 before round 1\), [\d.]+ s a round", cost_of(finished))


def test_check_says_what_a_floor_would_hold_back(folder, capsys):
    kit = folder / "study" / "kits" / "north"
    arguments = ["--data", folder / "north.csv", "--columns", "age,bmi", "--floor", 1000]
    assert run("site", "check", kit, *arguments) == 0
    assert "Would NOT be answered: the site has" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["sites", "status", "nowhere"], "nowhere is no study; make one with `fedgrem sites init nowhere"),
        (["sites", "fit", "study", "-r", 2, "-o", "m"], "no server answers at localhost:"),
        (["sites", "resume", "study"], "there is no fit to resume in"),
        (
            ["sites", "fit", "study", "-r", 2, "-o", "m2", "--algorithm", "pooled-em"],
            "pools the rows of all sites",
        ),
        (["sites", "fit", "study", "-r", 2, "-o", "m2", "--algorithm", "magic"], "algorithm must be one of 'fedgrem'"),
        (["sites", "fit", "study", "-r", 2, "-o", "north.csv"], "north.csv is a file; give a folder"),
        (["sites", "fit", "study", "-r", "2:4", "-o", "m2", "--secure-sums"], "one number of components, got 2:4"),
        (["sites", "fit", "study", "-r", 2, "-o", "m2", "--secure-sums", "--table"], "for Gaussians and regressions"),
        (
            ["sites", "fit", "study", "-r", 2, "-o", "m2", "--secure-sums", "--algorithm", "tgmm"],
            "secure sums find Huber's center",
        ),
        (["sites", "init", "study", "--site", "a", "--site", "b", "--host", "h"], "study is a study already"),
        (["sites", "add", "study", "north"], "'north' is a site of this study already"),
        (["sites", "remove", "study", "west"], "'west' is not a site of this study"),
        (["sites", "renew", "study", "west"], "'west' is not of this study"),
        (["site", "log", "study"], "study is no kit of a site; give the folder that the coordinator made"),
        (["site", "start", "study/kits/north"], "fedgrem.json is missing; start the site with"),
        (["site", "start", "study/kits/north", "--data", "gone.csv"], "gone.csv does not exist"),
        (["site", "start", "study/kits/north", "--data", "north.csv"], "not numeric: 'who'"),
        (["site", "start", "study/kits/north", "--data", "north.csv", "--columns", "age,z"], "there is no column 'z'"),
        (["site", "check", "study/kits/north", "--columns", "age"], "say how to read --data; give it too"),
        (["site", "start", *PRIVATE, "--epsilon", 0], "epsilon must be above 0 and at most 1000"),
        (["site", "start", *PRIVATE, "--epsilon", 4, "--delta", 1], "delta must be above 0 and small"),
        (["site", "start", *PRIVATE, "--delta", 1e-6], "--delta and --total-epsilon go with --epsilon"),
        (
            ["site", "start", *PRIVATE, "--epsilon", 4, "--total-epsilon", 1],
            "--total-epsilon 1 is less than one fit",
        ),
        (["sites", "fit", *FIT, "--ranges", "0:1"], "not even what they are called: name these"),
        (["sites", "fit", *FIT, "--columns", "age", "--ranges", "age=old:120"], "expected LOW:HIGH, as in age=0:120"),
        (["sites", "fit", *FIT, "--columns", "age", "--ranges", "bmi=1:2"], "the ranges lack age and name bmi"),
        (["sites", "fit", *FIT, "--ranges", "0:1", "--regression"], "--ranges is for private fits of Gaussian"),
        (["sites", "fit", *FIT, "--types", "cp=1|2"], "give --table too"),
        (["sites", "fit", *FIT, "--regression", "--types", "cp=1|2"], "--types needs --columns: over a network"),
        (["sites", "fit", *FIT, "--regression", "--columns", "cp", "--types", "cp=count"], "names the levels of words"),
        (["sites", "fit", *FIT, "--regression", "--columns", "cp", "--types", "pc=1|2"], "not among --columns"),
    ],
)
def test_bad_use_exits_with_1_and_one_line_on_stderr(folder, monkeypatch, capsys, arguments, message):
    monkeypatch.chdir(folder)
    monkeypatch.setattr("fedgrem.engines.flare.operate.LOGIN_SECONDS", 1.0)
    assert run(*arguments) == 1
    assert_one_error(capsys.readouterr().err, message)


def test_status_without_a_server_and_stopping_what_does_not_run(folder, capsys):
    assert run("sites", "status", folder / "study") == 0
    out = capsys.readouterr().out
    assert "stopped" in out
    assert all(name in out for name in NAMES)
    assert run("sites", "stop", folder / "study") == 0
    assert run("site", "stop", folder / "study" / "kits" / "north") == 0
    assert "was not running" in capsys.readouterr().out


def test_a_certificate_is_renewed_and_its_end_is_said(folder, capsys):
    assert run("sites", "renew", folder / "study", "north") == 0
    assert re.search(r"good until 20\d\d-\d\d-\d\d. Restart north with it", capsys.readouterr().out)


def test_the_log_is_printed_short_or_in_full(folder, tmp_path, capsys):
    kit = folder / "study" / "kits" / "north"
    spec = spec_for(FederatedGaussianMixture(**OPTIONS | {"covariance_type": "identity", "max_rounds": 2}))
    transport = AtHand(tmp_path, spec)
    transport.guards["north"]._log = Log(kit / LOG)
    fit_over_network(spec, list(NAMES), transport, tmp_path / "run", Rules(min_sites=2))
    try:
        assert run("site", "log", kit) == 0
        out = capsys.readouterr().out
        assert "2 component(s) of the family gaussian, by fedgrem, in at most 2 rounds, on its own columns" in out
        assert "Every round" in out
        assert re.search(r"1 fit\(s\), \d+ numbers that left, 13 records.", out)
        assert re.search(r"The log is whole; it ends with [0-9a-f]{16}.", out)
        assert run("site", "log", kit, "--full", "--last", 1) == 0
        *lines, _, _ = capsys.readouterr().out.splitlines()
        steps = [line for line in map(json.loads, lines) if (line["kind"], line.get("task")) == ("reply", "step")]
        assert [np.shape(step["sent"]["params.theta"]) for step in steps] == [(2, 2)] * 2
        (kit / LOG).write_text((kit / LOG).read_text().replace('"n_rows":47', '"n_rows":48', 1))
        assert run("site", "log", kit) == 1
        assert_one_error(capsys.readouterr().err, "is NOT whole: line 1 does not follow from the one before it")
    finally:
        (kit / LOG).unlink()


def test_a_fit_that_came_back_is_shown_and_predicts_as_one_in_memory(tmp_path, capsys):
    spec = spec_for(FederatedGaussianMixture(**OPTIONS))
    finished = fit_over_network(spec, list(NAMES), AtHand(tmp_path, spec), tmp_path / "run", Rules(min_sites=2))
    save_fitted(finished, {"regression": False, "options": OPTIONS, "out": str(tmp_path / "model")})
    rows = {name: rows_of(name)[0] for name in NAMES}
    for name, x in rows.items():
        pl.DataFrame(x, schema=["x0", "x1"]).write_csv(tmp_path / f"{name}.csv")
    here = FederatedGaussianMixture(**OPTIONS).fit(rows)
    np.testing.assert_allclose(load_model(tmp_path / "model").means_, here.means_, rtol=1e-10, atol=1e-10)
    assert run("show", tmp_path / "model") == 0
    assert "2 components over 3 sites" in capsys.readouterr().out
    assert run("predict", tmp_path / "model", *(tmp_path / f"{name}.csv" for name in NAMES)) == 0
    lines = capsys.readouterr().out.splitlines()[1:]
    expected = np.concatenate([here.predict(rows[name], sites=name) for name in NAMES])
    assert [int(line.split(",")[2]) for line in lines] == expected.tolist()
    assert run("report", tmp_path / "model", "--out", tmp_path / "page.html") == 0
    assert (tmp_path / "page.html").stat().st_size > 10_000
    assert re.search(r"\d+ exchanges \(4 before round 1\), [\d.]+ s a round; per round and site", cost_of(finished))


def test_a_fit_from_secure_sums_is_shown_and_the_log_of_a_site_says_that_it_was_masked(folder, tmp_path, capsys):
    kit, options = folder / "study" / "kits" / "north", OPTIONS | {"secure_sums": True, "max_rounds": 2}
    spec = spec_for(FederatedGaussianMixture(**options))
    transport = AtHand(tmp_path, spec)
    transport.guards["north"]._log = Log(kit / LOG)
    finished = fit_over_network(spec, list(NAMES), transport, tmp_path / "run", Rules(min_sites=2))
    try:
        assert run("site", "log", kit) == 0
        out = " ".join(capsys.readouterr().out.split())
        assert re.search(r"[\d,]+ masked numbers have left, which open in sums over sites only", out)
        assert re.search(r"The keys are ([0-9a-f]{4}-){3}[0-9a-f]{4}: the same at all sites", out)
    finally:
        (kit / LOG).unlink()
    save_fitted(finished, {"regression": False, "options": options, "out": str(tmp_path / "model")})
    assert run("show", tmp_path / "model") == 0
    assert "over 3 sites, from sums" in capsys.readouterr().out
    assert run("show", tmp_path / "model", "--json") == 0
    assert json.loads(capsys.readouterr().out)["sites"][0] == {"name": "east"}
    assert run("report", tmp_path / "model", "--out", tmp_path / "page.html") == 1
    assert_one_error(capsys.readouterr().err, "the page is about sites, and what they found stayed with them")
    assert re.search(r"\d+ exchanges, [\d.]+ s a round; per round and site [\d,]+ bytes to the site", cost_of(finished))


def test_a_journal_is_replayed_on_the_screen(tmp_path, capsys):
    spec = spec_for(FederatedGaussianMixture(**OPTIONS))
    fit_over_network(spec, list(NAMES), AtHand(tmp_path, spec), tmp_path / "run", Rules(min_sites=2))
    assert run("replay", tmp_path / "run" / JOURNAL) == 0
    out = capsys.readouterr().out
    assert "census" in out
    assert "all 3" in out
    assert "asked again with the same numbers, to the bit" in out
    assert "2 components over 3 sites" in out
    assert "It is the result beside the journal, to the bit." in " ".join(out.split())
    assert run("replay", tmp_path / "run" / "nothing") == 1
    assert_one_error(capsys.readouterr().err, "nothing cannot be read")


def test_who_was_not_heard_is_said(tmp_path):
    spec = spec_for(FederatedGaussianMixture(**OPTIONS))
    finished = fit_over_network(spec, list(NAMES), AtHand(tmp_path, spec), tmp_path / "run", Rules(min_sites=2))
    about = finished.about | {"out": {"west": "it does not answer"}, "away": ["south"]}
    told = cost_of(finished._replace(about=about))
    assert "Not heard: west: it does not answer; south: away at the end, with the parameters it had" in told


def test_a_run_is_kept_and_found_again_until_it_is_finished(tmp_path):
    study = Study(tmp_path, "localhost", 1, ("north",))
    with pytest.raises(InputError, match="there is no fit to resume in"):
        last_unfinished(study)
    fit = Fit(spec_of(penalty=float("inf")), ["north"], Rules(), more={"out": "m"})
    name = begin(study, fit)
    assert last_unfinished(study) == name
    assert read_fit(study, name) == fit
    (run_folder(study, name) / "result.npz").write_bytes(b"")
    with pytest.raises(InputError, match=f"the last fit, {name}, is finished; begin a new one"):
        last_unfinished(study)


def test_watching_a_run_skips_what_was_there_and_ends_with_it(tmp_path):
    lines = [
        {"kind": "started", "job": "1"},
        {"kind": "progress", "stage": "rounds", "round": 1, "max_rounds": 9, "movement": 0.5},
        {"kind": "started", "job": "2"},
        {"kind": "progress", "stage": "census", "round": 0, "max_rounds": 9, "movement": None},
        {"kind": "paused", "message": "too few"},
    ]
    (tmp_path / "progress.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert count_lines(tmp_path) == 5
    seen = []
    outcome = follow(tmp_path, seen.append, lambda: True, skip=2)
    assert outcome == ("paused", "too few")
    assert [progress.stage for progress in seen] == ["census"]
    assert follow(tmp_path / "nowhere", None, lambda: False).kind == "gone"


def test_a_second_fit_is_refused_with_the_name_of_the_first_and_a_dead_one_holds_nothing(tmp_path):
    study = Study(tmp_path, "localhost", 1, ("north",))
    study.server.mkdir()
    with only_fit(study, "run-1"), pytest.raises(SitesError, match=r"run-1 \(process \d+\) is running in this study"):
        with only_fit(study, "run-2"):
            pass
    code = (
        "import os, sys; from pathlib import Path\n"
        "from fedgrem.engines.flare.kit import Study\nfrom fedgrem.engines.flare.operate import only_fit\n"
        f"with only_fit(Study(Path({str(tmp_path)!r}), 'localhost', 1, ('north',)), 'run-3'):\n    os._exit(9)\n"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 9
    with only_fit(study, "run-4"):
        assert "run-4" in (study.server / "fit.lock").read_text()


def test_a_run_is_taken_up_by_its_name(tmp_path):
    study = Study(tmp_path, "localhost", 1, ("north",))
    fit = Fit(spec_of(), ["north"], Rules(), more={"out": "m"})
    first = begin(study, fit)
    time.sleep(0.002)  # runs are named by the millisecond
    second = begin(study, fit)
    assert (unfinished(study, first), last_unfinished(study)) == (first, second)
    (run_folder(study, first) / "result.npz").write_bytes(b"")
    with pytest.raises(InputError, match=f"the fit {first} is finished"):
        unfinished(study, first)
    with pytest.raises(InputError, match=f"there is no fit 'run-x' in .*; the last are .*{second}"):
        unfinished(study, "run-x")


def test_a_port_that_is_taken_is_refused_at_once(folder, capsys):
    study = read_study(folder / "study")
    with socket.socket() as other:
        other.bind(("", study.port))
        other.listen()
        assert run("sites", "start", folder / "study") == 1
    assert_one_error(capsys.readouterr().err, f"port {study.port} cannot be used .*: stop what listens there")
    assert not (study.server / "process.json").exists()


def test_on_a_full_disk_the_last_words_of_a_run_are_still_written(tmp_path, monkeypatch):
    diary = Diary(tmp_path)
    diary.write(kind="progress")
    append, failed = Diary._append, []

    def full(self, line):
        if (tmp_path / "reserve").exists():
            failed.append(line)
            raise OSError(28, "No space left on device")
        append(self, line)

    monkeypatch.setattr(Diary, "_append", full)
    diary.write(kind="paused", message="paused: the server cannot write")
    assert len(failed) == 1
    assert follow(tmp_path, None, lambda: True) == ("paused", "paused: the server cannot write")
