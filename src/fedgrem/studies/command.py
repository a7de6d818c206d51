"""What ``fedgrem reproduce`` does, without the screen: choose a study, prepare its data, run it, write its page."""

import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from fedgrem.errors import InputError
from fedgrem.studies.base import Page, Row, Study
from fedgrem.studies.page import Run, duration, write_report
from fedgrem.studies.processes import environment
from fedgrem.studies.registry import find_study
from fedgrem.studies.runner import ROWS, StudyProgress, missing_cells, read_lines, run_study
from fedgrem.studies.splits import DATA, embedding_of, load

FIRST_TIME = {"umap": "about three minutes", "tsne": "up to an hour", "pca": "some seconds"}
"""What it takes to embed 70,000 images; after that they are read from the cache."""


class Finished(NamedTuple):
    """A study that has been run."""

    page: Page
    rows: list[Row]
    seconds: float
    written: list[Path]
    """The page first."""


def choose(
    name: str,
    *,
    quick: bool = False,
    seeds: int | None = None,
    methods: list[str] | None = None,
    paper_starts: bool = False,
    embedding: str | None = None,
    covariance: str | None = None,
) -> tuple[Study, str]:
    """The study of this name with these options, and the name of its folder; what does not go together is refused."""
    study, folder = find_study(name, quick), name + ("-quick" if quick else "")
    if seeds is not None:
        study = replace(study, n_seeds=seeds)
    if methods is not None:
        study = study.with_methods(methods)
    if paper_starts:
        if study.real:
            raise InputError(
                "--start paper is for the simulations; studies on real data have one search for all methods."
            )
        if study.settings[0].start == "own":
            raise InputError(
                f"--start paper is not for {name}, where every fit searches for its own starts; leave it out."
            )
        study, folder = study.from_paper_starts(), f"{folder}-paper-starts"
    if study.settings[0].embedding is not None:
        study = study.with_settings(embedding=embedding) if embedding else study
        folder = f"{folder}-{study.settings[0].embedding}"
    elif embedding is not None:
        raise InputError("--embedding is for studies on images: mnist, fashion; leave it out.")
    if covariance is not None:
        if not study.real:
            raise InputError(
                "--covariance is for studies on real data; the simulations have the paper's unit covariances."
            )
        study, folder = study.with_settings(covariance=covariance), f"{folder}-{covariance}"
    return study, folder


def n_done(study: Study, folder: Path) -> int:
    """Cells that are finished in a folder."""
    return len(study.cells()) - len(missing_cells(study, read_lines(folder / ROWS)))


def play(
    study: Study,
    folder: Path,
    command: str,
    *,
    workers: int | None = None,
    data: Path | None = None,
    on_progress: Callable[[StudyProgress], None],
    say: Callable[[str], None],
) -> Finished:
    """Run what is missing of a study, and write its rows, figures and page.

    Parameters
    ----------
    command : as it was typed, for the page.
    workers : processes; None is one per core.
    data : the folder of a real data set; None downloads it.
    on_progress : told of cells.
    say : told what is done before there are any.
    """
    resumed = n_done(study, folder)
    workers = workers or os.cpu_count() or 1
    begin = time.monotonic()
    with environment({} if data is None else {DATA: str(data.resolve())}):
        note = prepare(study.settings[0].model, study.settings[0].embedding, say) if study.real else ""
        rows = run_study(study, folder, workers=workers, on_progress=on_progress)
    seconds = time.monotonic() - begin
    page, written = write_report(study, rows, folder, Run(command, seconds, workers, resumed, note))
    return Finished(page, rows, seconds, written)


def prepare(data_set: str, embedding: str | None, say: Callable[[str], None]) -> str:
    """Have the data set, and its embedding, ready before workers start; returns what the page is to say of it."""
    data = load(data_set, lambda name, done, total: say(f"downloading {name}: {_amount(done, total)}"))
    if embedding is None:
        return ""
    say(f"embedding the images by {embedding}: {FIRST_TIME[embedding]}, the first time only")
    found = embedding_of(
        data,
        embedding,
        lambda done, total: say(f"embedding the images, the first time only: step {done} of {total}"),
    )
    versions = ", ".join(f"{name} {version}" for name, version in found.made.get("versions", {}).items())
    return f"Images were embedded by {embedding} ({versions}) in {duration(found.seconds)}, with seed 0."


def _amount(done: int, total: int | None) -> str:
    """How much of a file is there; the files of labels are too small for megabytes."""
    size, unit = (1e6, "MB") if max(done, total or 0) >= 1e6 else (1e3, "kB")
    return f"{done / size:.0f} {unit}" if total is None else f"{done / size:.0f} of {total / size:.0f} {unit}"
