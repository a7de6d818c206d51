"""``fedgrem reproduce`` in the shell: what it writes, what it refuses, and how it stops."""

import csv
import os
import signal
import socket
import subprocess
import sys
import time
from functools import partial

import numpy as np
import pytest

from fedgrem.cli import main
from fedgrem.studies import command, runner, splits
from fedgrem.studies.base import Setting, Study, methods
from fedgrem.studies.command import prepare
from fedgrem.studies.comparison import page as comparison_page
from fedgrem.studies.embeddings import Embedding
from fedgrem.studies.images import RealData
from fedgrem.studies.pen import PenSource, load_pen, table_digest
from fedgrem.studies.real import page as real_page
from tests.told import assert_one_error

pytest.importorskip("matplotlib")


def tiny(name, quick):
    settings = tuple(Setting(f"h={h:g}", "gmm", h, {"h": h, "n_sites": 3, "n_rows": 40}) for h in (0.0, 1.0))
    return Study("gmm", "A tiny study", settings, methods("local-em", "fedem"), 2, comparison_page)


def tiny_pen(name, quick):
    hit = {"contaminated": 1, "way": "far"}
    settings = (Setting("0%", "pen", 0.0, {}, "none"), Setting("20.5% far", "pen", 20.5, hit, "far"))
    return Study("pen", "Tiny Pen digits", settings, methods("local-em", "fedem"), 2, real_page)


def pen_table():
    """Three writers of two digits that are far apart."""
    digit, writer = np.tile([0, 1], 90), np.repeat([1, 2, 3], 60)
    noise = np.random.default_rng(0).normal(size=(180, 16))
    return np.column_stack([(30 + 40 * digit[:, None] + 5 * noise).round().astype(int), digit, writer])


def loader():
    """The loader of Pen digits; only the check sum is that of the table above."""
    return partial(load_pen, source=PenSource("", table_digest(pen_table())))


def play_tiny_pen(cell):
    """What a worker does. It is told the name of this function, so it gets the loader by importing this module."""
    splits.load_pen = loader()
    return runner._play(cell)


def run(*arguments):
    with pytest.raises(SystemExit) as stopped:
        main(["reproduce", *arguments])
    return stopped.value.code


def test_a_study_ends_with_a_table_and_the_paths_written(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(command, "find_study", tiny)
    folder = tmp_path / "results"
    assert run("gmm", "--out", str(folder), "--workers", "1", "--seeds", "1") == 0
    said = capsys.readouterr()
    assert "Local-EM" in said.out
    assert str(folder / "index.html") in said.out.replace("\n", "")
    assert "2 of 2 cells" in said.err
    assert {path.name for path in folder.iterdir()} >= {"index.html", "rows.csv", "gmm-errors.png", "gmm-errors.svg"}


def test_a_study_on_real_data_reads_its_folder_and_is_reported_beside_the_paper(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(command, "find_study", tiny_pen)
    monkeypatch.setattr(splits, "load_pen", loader())
    monkeypatch.setattr(runner, "_play", play_tiny_pen)
    monkeypatch.delenv(splits.DATA, raising=False)
    monkeypatch.setenv("FEDGREM_CACHE", str(tmp_path / "cache"))
    files, folder, table = tmp_path / "files", tmp_path / "results", pen_table()
    files.mkdir()
    lines = table.tolist()
    with (files / "pendigits_with_writer.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([[*(f"f{j}" for j in range(1, 17)), "digit", "writer"], *lines])
    options = ("--quick", "--data", str(files), "--out", str(folder), "--workers", "1", "--seeds", "1")
    assert run("pen", *options) == 0
    said = capsys.readouterr()
    assert "Mis-clustering in percent" in said.out
    assert "13.30 (1.17)" in said.out  # the paper's Local-EM
    assert str(folder / "index.html") in said.out.replace("\n", "")
    assert "2 of 2 cells" in said.err
    page = (folder / "index.html").read_text(encoding="utf-8")
    assert "Tiny Pen digits" in page
    assert "26.01 (1.22)" in page  # seconds of the paper's Local-EM
    with (folder / "rows.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["setting"], row["method"]) for row in rows] == [
        ("0%", "local-em"),
        ("0%", "fedem"),
        ("20.5% far", "local-em"),
        ("20.5% far", "fedem"),
    ]
    assert all(float(row["error"]) < 10.0 for row in rows[:2])
    assert not (tmp_path / "cache" / "data").exists()  # nothing was downloaded
    assert splits.DATA not in os.environ


def test_an_offline_machine_is_told_of_the_option_for_files_in_one_line(tmp_path, capsys, monkeypatch):
    with socket.socket() as place:
        place.bind(("127.0.0.1", 0))
        nobody = f"http://127.0.0.1:{place.getsockname()[1]}/pen.zip"
    monkeypatch.setattr(splits, "load_pen", partial(load_pen, source=PenSource(nobody, "")))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setenv("FEDGREM_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv(splits.DATA, raising=False)
    assert run("pen", "--quick", "--out", str(tmp_path / "results")) == 1
    assert_one_error(capsys.readouterr().err, r"pen.zip cannot be reached .*online\? .*--data FOLDER")
    assert run("pen", "--quick", "--out", str(tmp_path / "results"), "--data", str(tmp_path / "none")) == 1
    assert_one_error(capsys.readouterr().err, r"none is not a folder; .*--data FOLDER")


def test_downloads_are_told_while_they_last(monkeypatch):
    def download(folder, on_progress):
        for done, total in ((850_000, 1_700_000), (12_000_000, 30_000_000), (5_000, 29_000), (7_000_000, None)):
            on_progress("file.gz", done, total)

    said = []
    monkeypatch.setattr(splits, "load_pen", download)
    assert prepare("pen", None, said.append) == ""
    assert said == [f"downloading file.gz: {part}" for part in ("1 of 2 MB", "12 of 30 MB", "5 of 29 kB", "7 MB")]


@pytest.mark.parametrize("name", ["mnist", "fashion"])
def test_the_time_of_an_embedding_is_told_before_it_begins(monkeypatch, name):
    images = RealData(np.zeros((3, 2)), np.zeros(3, dtype=int), None)
    said = []

    def download(source, folder, on_progress):
        on_progress(f"{name} images", 11_000_000, 11_000_000)
        return images

    def embed(rows, method, *, on_progress, **options):
        said.append("embedded")
        on_progress(1, 752)
        return Embedding(rows, 185.0, {"versions": {"umap-learn": "1"}})

    monkeypatch.setattr(splits, "load_images", download)
    monkeypatch.setattr(splits, "embed", embed)
    assert "by umap (umap-learn 1) in 3 min 5 s" in prepare(name, "umap", said.append)
    assert said == [
        f"downloading {name} images: 11 of 11 MB",
        "embedding the images by umap: about three minutes, the first time only",
        "embedded",
        "embedding the images, the first time only: step 1 of 752",
    ]


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
