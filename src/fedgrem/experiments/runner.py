"""Runs any study on all cores, writes every row as it comes, and resumes without doing anything twice."""

import json
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from fedgrem.errors import InputError
from fedgrem.experiments.specs import Method, Setting, Study

ROWS = "rows.jsonl"
"""One JSON object per line, appended and flushed as cells finish."""
SPEC = "study.json"
UNTIMED = ("seconds", "start_seconds")
"""Columns that differ from run to run, whatever the result."""


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
) -> list[dict[str, Any]]:
    """Run what is missing of a study in ``folder`` and return all its rows, in the order of the spec.

    A cell (setting and seed, all methods) is done when all its rows are in the file; a cell cut off half way, by a kill
    or a full disk, is done again as a whole.
    """
    folder.mkdir(parents=True, exist_ok=True)
    _check_same_study(study, folder)
    rows = read_rows(folder)
    names = {method.name for method in study.methods}
    todo = [cell for cell in study.cells() if not names <= _methods_done(rows, *cell)]
    total, done = len(study.cells()), len(study.cells()) - len(todo)
    tell = on_progress or (lambda _: None)
    tell(StudyProgress(done, total, None))
    begin, before = time.monotonic(), done
    with (folder / ROWS).open("a", encoding="utf-8") as file:
        for new in _played(todo, study.methods, workers or os.cpu_count() or 1):
            for row in new:
                file.write(json.dumps(row) + "\n")
            file.flush()
            os.fsync(file.fileno())
            done += 1
            rate = (time.monotonic() - begin) / (done - before)
            tell(StudyProgress(done, total, rate * (total - done)))
    return in_order(study, read_rows(folder))


def read_rows(folder: Path) -> list[dict[str, Any]]:
    """The rows written so far; a last line that was cut off is dropped, and cut from the file."""
    path = folder / ROWS
    if not path.exists():
        return []
    rows, whole = [], 0
    with path.open("rb") as file:
        for line in file:
            try:
                rows.append(json.loads(line))
            except json.JSONDecodeError:
                break
            if not line.endswith(b"\n"):
                rows.pop()
                break
            whole += len(line)
    if whole < path.stat().st_size:
        os.truncate(path, whole)
    return rows


def in_order(study: Study, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows in the order of the spec, the last one of each (setting, method, seed): the same after any interruption."""
    latest = {(row["setting"], row["seed"], row["method"]): row for row in rows}
    keys = [(setting.name, seed, m.name) for setting, seed in study.cells() for m in study.methods]
    return [latest[key] for key in keys if key in latest]


def _methods_done(rows: list[dict[str, Any]], setting: Setting, seed: int) -> set[str]:
    return {row["method"] for row in rows if row["setting"] == setting.name and row["seed"] == seed}


def _check_same_study(study: Study, folder: Path) -> None:
    """A folder holds one study: rows of another spec must not be taken for this one's."""
    spec = json.loads(json.dumps(_as_document(study)))
    path = folder / SPEC
    if path.exists():
        if json.loads(path.read_text(encoding="utf-8")) != spec:
            raise InputError(
                f"{folder} holds the rows of another study or of other settings; choose another folder with --out, or "
                "delete it to start anew."
            )
        return
    path.write_text(json.dumps(spec, indent=1) + "\n", encoding="utf-8")


def _as_document(study: Study) -> dict[str, Any]:
    return {
        "name": study.name,
        "settings": [[s.name, s.model, s.simulation] for s in study.settings],
        "methods": [[m.name, m.algorithm, m.options] for m in study.methods],
        "seeds": list(study.seeds),
    }


def _played(
    cells: list[tuple[Setting, int]], methods: tuple[Method, ...], workers: int
) -> Iterator[list[dict[str, Any]]]:
    """Rows of every cell, as they finish. Processes are spawned: JAX does not survive a fork."""
    if not cells:
        return
    with (
        _one_thread_each(),
        ProcessPoolExecutor(min(workers, len(cells)), mp_context=multiprocessing.get_context("spawn")) as pool,
    ):
        waiting: set[Future[list[dict[str, Any]]]] = set()
        queue = iter(cells)
        try:
            while True:
                for setting, seed in queue:
                    waiting.add(pool.submit(_play, setting, seed, methods))
                    if len(waiting) >= 2 * workers:
                        break
                if not waiting:
                    return
                finished, waiting = wait(waiting, return_when=FIRST_COMPLETED)
                for future in finished:
                    yield future.result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _play(setting: Setting, seed: int, methods: tuple[Method, ...]) -> list[dict[str, Any]]:
    from fedgrem.experiments.cells import play_cell  # a worker's first import of JAX, after its threads are limited

    return play_cell(setting, seed, methods)


@contextmanager
def _one_thread_each() -> Iterator[None]:
    """Workers share the cores: each computes in one thread, set before it loads JAX."""
    wanted = {
        "XLA_FLAGS": (os.environ.get("XLA_FLAGS", "") + " --xla_cpu_multi_thread_eigen=false").strip(),
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
    }
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
