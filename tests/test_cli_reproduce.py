"""``fedgrem reproduce`` in the shell: what it writes, what it refuses, and how it stops."""

import os
import signal
import subprocess
import sys
import time

import pytest

from fedgrem.cli import main
from fedgrem.experiments.specs import STUDIES, Method, Setting, Study

pytest.importorskip("matplotlib")


def tiny(quick):
    settings = tuple(Setting(f"h={h:g}", "gmm", h, {"h": h, "n_sites": 3, "n_rows": 40}) for h in (0.0, 1.0))
    return Study("gmm", "A tiny study", settings, (Method("local-em", "local-em"), Method("fedem", "fedem")), (0, 1))


def run(*arguments):
    with pytest.raises(SystemExit) as stopped:
        main(["reproduce", *arguments])
    return stopped.value.code


def test_a_study_ends_with_a_table_and_the_paths_written(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(STUDIES, "gmm", tiny)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR")
    folder = tmp_path / "results"
    assert run("gmm", "--out", str(folder), "--workers", "1", "--seeds", "1") == 0
    said = capsys.readouterr()
    assert "Local-EM" in said.out
    assert str(folder / "index.html") in said.out.replace("\n", "")
    assert "2 of 2 cells" in said.err
    assert {path.name for path in folder.iterdir()} >= {"index.html", "rows.csv", "gmm-errors.png", "gmm-errors.svg"}
    assert any((tmp_path / "fedgrem" / "compiled").iterdir())


def test_unknown_methods_and_foreign_folders_are_refused_in_one_line(tmp_path, capsys):
    assert run("gmm", "--methods", "fedavg", "--out", str(tmp_path)) == 1
    assert "fedavg is no method of this study" in capsys.readouterr().err
    (tmp_path / "study.json").write_text("{}", encoding="utf-8")
    assert run("gmm", "--out", str(tmp_path)) == 1
    assert "another study" in capsys.readouterr().err


def test_a_covariance_is_for_real_data(capsys):
    assert run("gmm", "--covariance", "full") == 1
    assert "--covariance is for studies on real data" in capsys.readouterr().err


def test_an_embedding_is_for_images(capsys):
    assert run("pen", "--embedding", "umap") == 1
    assert "--embedding is for studies on images: mnist, fashion" in capsys.readouterr().err


def test_an_unknown_study_is_wrong_usage(capsys):
    assert run("nist") == 2
    assert "nist" in capsys.readouterr().err


def test_ctrl_c_leaves_a_folder_to_resume_and_says_so(tmp_path):
    folder = tmp_path / "results"
    # Where the tests run in the background of a shell, the processes they start would ignore Ctrl-C.
    listen = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    command = [sys.executable, "-c", listen + "from fedgrem.cli import main; main()", "reproduce", "gmm", "--quick"]
    command += ["--methods", "local-em", "--seeds", "500", "--workers", "1", "--out", str(folder)]
    process = subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, env=os.environ | {"XDG_CACHE_HOME": str(tmp_path)}
    )
    until = time.monotonic() + 120
    while not (folder / "rows.jsonl").exists() and process.poll() is None and time.monotonic() < until:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "of 2500 cells done, kept in" in said
    assert "to go on: fedgrem reproduce gmm --quick" in said
    assert "Traceback" not in said
