"""What ``fedgrem reproduce`` does, without the screen: choose a study, prepare its data, run it, write its page."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from fedgrem.errors import InputError
from fedgrem.studies.pages.page import Run, duration, write_report
from fedgrem.studies.pages.stats import Row
from fedgrem.studies.processes import environment
from fedgrem.studies.runner import StudyProgress, missing_cells, read_rows, run_study
from fedgrem.studies.specs import EMBEDDINGS, REAL, STUDIES, Study
from fedgrem.studies.splits import DATA, embedding_of, load

FIRST_TIME = {"umap": "about three minutes", "tsne": "up to an hour", "pca": "some seconds"}
"""What it takes to embed 70,000 images; after that they are read from the cache."""


class Chosen(NamedTuple):
    """A study as it was asked for."""

    study: Study
    embedding: str | None
    """Of images; None for other data."""
    folder: str
    """The name of its folder, which tells it from the same study with other options."""


class Finished(NamedTuple):
    """A study that has been run."""

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
) -> Chosen:
    """The study of this name with these options; options that do not go with it are refused."""
    study, folder = STUDIES[name](quick), name + ("-quick" if quick else "")
    if paper_starts:
        study, folder = study.from_paper_starts(), f"{folder}-paper-starts"
    if seeds is not None:
        study = study.with_seeds(seeds)
    if methods is not None:
        study = study.with_methods(methods)
    if name in REAL and paper_starts:
        raise InputError("--start paper is for the simulations; studies on real data have one search for all methods.")
    if name not in REAL and covariance is not None:
        raise InputError("--covariance is for studies on real data; the simulations have the paper's unit covariances.")
    if name in EMBEDDINGS:
        embedding = embedding or EMBEDDINGS[name]
        study, folder = study.with_embedding(embedding), f"{folder}-{embedding}"
    elif embedding is not None:
        raise InputError(f"--embedding is for studies on images: {', '.join(EMBEDDINGS)}; leave it out.")
    if covariance is not None:
        study, folder = study.with_covariance(covariance), f"{folder}-{covariance}"
    return Chosen(study, embedding, folder)


def n_done(study: Study, folder: Path) -> int:
    """Cells that are finished in a folder."""
    return len(study.cells()) - len(missing_cells(study, read_rows(folder)))


def play(
    chosen: Chosen,
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
    study = chosen.study
    resumed = n_done(study, folder)
    workers = workers or os.cpu_count() or 1
    begin = time.monotonic()
    with environment({} if data is None else {DATA: str(data.resolve())}):
        note = prepare(study.settings[0].model, chosen.embedding, say) if study.name in REAL else ""
        rows = run_study(study, folder, workers=workers, on_progress=on_progress)
    seconds = time.monotonic() - begin
    return Finished(rows, seconds, write_report(study, rows, folder, Run(command, seconds, workers, resumed, note)))


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
