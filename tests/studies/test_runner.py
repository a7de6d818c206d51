"""The runner: nothing is lost, nothing is done twice, and folders are not mixed up."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from fedgrem.errors import InputError
from fedgrem.studies.base import FITS
from fedgrem.studies.cells import play_cell
from fedgrem.studies.real import pen
from fedgrem.studies.runner import ROWS, in_order, missing_cells, read_lines, run_study

from .tiny import tiny_study

KILLED = """
from pathlib import Path
from tests.studies.tiny import tiny_study
from fedgrem.studies.runner import run_study
if __name__ == "__main__":
    run_study(tiny_study({n}), Path({folder!r}), workers=1)
"""


def untimed(rows):
    return [{key: value for key, value in row.items() if key not in ("seconds", "start_seconds")} for row in rows]


def fake_row(seed, method="local-em"):
    return {"setting": "h=0.5", "seed": seed, "method": method, "theta_error": 1.0}


def test_a_study_killed_half_way_resumes_to_the_identical_table_and_does_nothing_twice(tmp_path):
    n_seeds, folder, path = 40, tmp_path / "killed", tmp_path / "killed" / ROWS
    script = tmp_path / "killed.py"
    script.write_text(KILLED.format(n=n_seeds, folder=str(folder)), encoding="utf-8")
    root = Path(__file__).parents[2]
    path_of_python = os.pathsep.join([str(root), str(root / "src")])
    process = subprocess.Popen([sys.executable, str(script)], env=os.environ | {"PYTHONPATH": path_of_python})
    until = time.monotonic() + 120
    while not (path.exists() and path.stat().st_size) and process.poll() is None and time.monotonic() < until:
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    kept = read_lines(folder / ROWS)
    study = tiny_study(n_seeds)
    assert 0 < len(kept) < 2 * n_seeds
    resumed = run_study(study, folder, workers=2)
    assert Counter((row["setting"], row["seed"], row["method"]) for row in read_lines(folder / ROWS)) == {
        ("h=0.5", seed, method): 1 for seed in range(n_seeds) for method in ("local-em", "fedem")
    }
    assert read_lines(folder / ROWS)[: len(kept)] == kept
    whole = [row for setting, seed in study.cells() for row in play_cell(setting, seed, study.methods)]
    assert untimed(resumed) == untimed(in_order(study, whole))


def test_the_time_left_is_told_from_all_cells_so_far(tmp_path, monkeypatch):
    clock, told = [0.0], []

    def two_at_a_time(play, todo, workers):
        for number, cell in enumerate(todo):
            clock[0] += 20.0 * (1 - number % 2)  # two workers that finish together
            yield cell, [fake_row(cell.seed, method.name) for method in cell.methods]

    monkeypatch.setattr("fedgrem.studies.runner.in_processes", two_at_a_time)
    monkeypatch.setattr("fedgrem.studies.runner.time.monotonic", lambda: clock[0])
    run_study(tiny_study(8), tmp_path, workers=2, on_progress=told.append)
    left = {progress.done: progress.seconds_left for progress in told}
    assert left[0] is None
    assert (left[2], left[4], left[6], left[8]) == (60.0, 40.0, 20.0, 0.0)


def test_a_truncated_last_line_is_cut_off_and_only_its_method_is_done_again(tmp_path):
    text = json.dumps(fake_row(0)) + "\n" + json.dumps(fake_row(0, "fedem")) + "\n" + json.dumps(fake_row(1)) + "\n"
    (tmp_path / ROWS).write_text(text + json.dumps(fake_row(1, "fedem"))[:-9], encoding="utf-8")
    rows = read_lines(tmp_path / ROWS)
    assert (tmp_path / ROWS).read_text(encoding="utf-8") == text
    (cell,) = missing_cells(tiny_study(2), rows)
    assert (cell.seed, [m.name for m in cell.methods]) == (1, ["fedem"])


def test_a_whole_last_line_without_its_end_counts_as_cut_off(tmp_path):
    (tmp_path / ROWS).write_text(json.dumps(fake_row(0)) + "\n" + json.dumps(fake_row(1)), encoding="utf-8")
    assert [row["seed"] for row in read_lines(tmp_path / ROWS)] == [0]


def test_rows_come_in_the_order_of_the_spec_whoever_was_first():
    rows = [fake_row(1), fake_row(0, "fedem"), fake_row(0), fake_row(7)]
    found = in_order(tiny_study(2), rows)
    assert [(row["method"], row["seed"]) for row in found] == [("local-em", 0), ("local-em", 1), ("fedem", 0)]


def test_the_folder_of_another_study_is_refused(tmp_path):
    nothing = tiny_study(0)
    run_study(nothing, tmp_path)
    run_study(tiny_study(0, methods=("tgmm",)), tmp_path)  # more methods are welcome
    for other in (tiny_study(0, rounds=5), nothing.with_settings(embedding="pca")):
        with pytest.raises(InputError, match="of another study, of other settings or of another version"):
            run_study(other, tmp_path)


def test_the_folder_of_a_study_that_was_fitted_with_other_care_is_refused(tmp_path, monkeypatch):
    study = replace(pen(quick=True), n_seeds=0)
    run_study(study, tmp_path)
    run_study(study, tmp_path)
    monkeypatch.setitem(FITS, "pen", FITS["pen"]._replace(tolerance=1e-2))
    with pytest.raises(InputError, match="of another study, of other settings or of another version"):
        run_study(study, tmp_path)


def test_rows_of_nobody_knows_which_study_are_refused(tmp_path):
    (tmp_path / ROWS).write_text(json.dumps(fake_row(0)) + "\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"holds rows without study\.json"):
        run_study(tiny_study(1), tmp_path)
