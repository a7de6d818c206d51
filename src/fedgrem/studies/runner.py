"""Runs any study on all cores, writes every row as it comes, and resumes without doing anything twice."""

import json
import os
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from fedgrem import __version__
from fedgrem.errors import InputError
from fedgrem.studies.base import FITS, Method, Row, Setting, Study
from fedgrem.studies.processes import in_processes

ROWS = "rows.jsonl"
"""One JSON object per line, appended and flushed as cells finish."""
SPEC = "study.json"


class Cell(NamedTuple):
    """What is still to be done of one setting and seed."""

    setting: Setting
    seed: int
    methods: tuple[Method, ...]


class StudyProgress(NamedTuple):
    """What a callback is told while a study runs."""

    done: int
    total: int
    seconds_left: float | None
    """None until a cell has been timed."""


def run_study(
    study: Study,
    folder: Path,
    *,
    workers: int | None = None,
    on_progress: Callable[[StudyProgress], None] | None = None,
) -> list[Row]:
    """Run what is missing of a study in ``folder`` and return all its rows, in the order of the spec.

    A study may come back to its folder with more seeds or methods; settings must be the same.
    """
    folder.mkdir(parents=True, exist_ok=True)
    _check_same_study(study, folder)
    todo = missing_cells(study, read_lines(folder / ROWS))
    total = len(study.cells())
    done = before = total - len(todo)
    tell = on_progress or (lambda _: None)
    tell(StudyProgress(done, total, None))
    workers = min(workers or os.cpu_count() or 1, max(1, len(todo)))
    begin = time.monotonic()
    with (folder / ROWS).open("a", encoding="utf-8") as file:
        for _, new in in_processes(_play, todo, workers):
            file.write("".join(json.dumps(row) + "\n" for row in new))
            file.flush()
            os.fsync(file.fileno())
            done += 1
            rate = (time.monotonic() - begin) / (done - before)
            tell(StudyProgress(done, total, rate * (total - done)))
    return in_order(study, read_lines(folder / ROWS))


def read_lines(path: Path) -> list[Any]:
    """What the lines of a file hold; a last one that was cut off is dropped, and cut from the file."""
    if not path.exists():
        return []
    rows, whole = [], 0
    with path.open("rb") as file:
        for line in file:
            try:
                row = json.loads(line)
            except ValueError:
                break
            if not line.endswith(b"\n"):
                break
            rows.append(row)
            whole += len(line)
    if whole < path.stat().st_size:
        os.truncate(path, whole)
    return rows


def missing_cells(study: Study, rows: list[Row]) -> list[Cell]:
    """What is still to be done, method by method: a cell cut off half way is not begun again as a whole."""
    done = {(row["setting"], row["seed"], row["method"]) for row in rows}
    cells = (
        Cell(setting, seed, tuple(m for m in study.methods if (setting.name, seed, m.name) not in done))
        for setting, seed in study.cells()
    )
    return [cell for cell in cells if cell.methods]


def in_order(study: Study, rows: list[Row]) -> list[Row]:
    """Rows in the order of the spec: the same after any interruption, whichever worker was first."""
    found = {(row["setting"], row["seed"], row["method"]): row for row in rows}
    keys = [(s.name, seed, m.name) for s in study.settings for m in study.methods for seed in study.seeds]
    return [found[key] for key in keys if key in found]


def _check_same_study(study: Study, folder: Path) -> None:
    """A folder holds one study: rows of another spec, or of another version, must not be taken for this one's."""
    spec = json.loads(json.dumps(_as_document(study)))
    path = folder / SPEC
    if path.exists():
        try:
            held = json.loads(path.read_text(encoding="utf-8"))
        except ValueError:
            held = {}
        methods = held.get("methods", {}) if isinstance(held, dict) else {}
        clash = any(methods.get(name, method) != method for name, method in spec["methods"].items())
        if clash or held | {"methods": {}} != spec | {"methods": {}}:
            raise InputError(
                f"{folder} holds the rows of another study, of other settings or of another version; choose another "
                "folder with --out, or delete it to start anew."
            )
        spec["methods"] = methods | spec["methods"]
    elif (folder / ROWS).exists():
        raise InputError(f"{folder} holds rows without {SPEC}, so nobody knows of which study; choose another folder.")
    partial = path.with_suffix(".tmp")
    partial.write_text(json.dumps(spec, indent=1) + "\n", encoding="utf-8")
    partial.replace(path)


def _as_document(study: Study) -> dict[str, Any]:
    return {
        "study": study.name,
        "fedgrem": __version__,
        "settings": [asdict(setting) for setting in study.settings],
        "fits": {model: FITS[model]._asdict() for model in sorted({s.model for s in study.settings} & FITS.keys())},
        "methods": {method.name: [method.algorithm, method.options, method.penalty] for method in study.methods},
    }


def _play(cell: Cell) -> list[Row]:
    from fedgrem.studies.cells import play_cell  # a worker's first import of NumPy, after its threads are limited

    return play_cell(*cell)
