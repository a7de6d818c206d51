"""``fedgrem reproduce``: the paper's studies, run, drawn and told."""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedgrem.cli.files import check_writable
from fedgrem.cli.options import listed
from fedgrem.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable

    from fedgrem.experiments.runner import StudyProgress
    from fedgrem.report.study_tables import Table


class Which(StrEnum):
    """The studies."""

    gmm = "gmm"
    mor = "mor"
    eta = "eta"
    theory = "theory"
    sizes = "sizes"
    pen = "pen"
    pen_small = "pen-small"
    mnist = "mnist"
    fashion = "fashion"


class Embedding(StrEnum):
    """How images are brought to ten dimensions."""

    umap = "umap"
    tsne = "tsne"
    pca = "pca"


FIRST_TIME = {Embedding.umap: "about three minutes", Embedding.tsne: "up to an hour", Embedding.pca: "some seconds"}
"""What it takes to embed 70,000 images; after that they are read from the cache."""


class Shape(StrEnum):
    """Covariances of the components that are fitted to real data."""

    identity = "identity"
    spherical = "spherical"
    diag = "diag"
    tied = "tied"
    full = "full"


class Start(StrEnum):
    """Where the methods begin."""

    shared = "shared"
    paper = "paper"


def reproduce(
    study: Annotated[Which, typer.Argument(help="Which study to run.", show_default=False)],
    quick: Annotated[
        bool,
        typer.Option(
            "--quick",
            help="A small version, in under two minutes; images are embedded before that, which takes minutes, once.",
        ),
    ] = False,
    seeds: Annotated[int | None, typer.Option(metavar="N", min=1, help="Replications per setting.")] = None,
    workers: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Processes; by default one per core.", show_default=False)
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            metavar="FOLDER",
            help="Default: results/STUDY, results/STUDY-quick, or on images results/STUDY-EMBEDDING.",
        ),
    ] = None,
    methods: Annotated[
        str | None, typer.Option(metavar="A,B", help="Only these methods.", show_default="all of the study")
    ] = None,
    start: Annotated[
        Start, typer.Option(help="`shared`: one search for all methods; `paper`: EM at each site alone.")
    ] = Start.shared,
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER", help="Where the files of a real data set are.", show_default="downloaded and cached"
        ),
    ] = None,
    embedding: Annotated[
        Embedding | None,
        typer.Option(
            help="How images are brought to ten dimensions, once; then it is cached.",
            show_default="mnist: umap, fashion: pca",
        ),
    ] = None,
    covariance: Annotated[
        Shape | None, typer.Option(help="Of the components, on real data.", show_default="tied")
    ] = None,
) -> None:
    """Run one of the paper's studies and write its figures, tables and a page.

    `gmm` and `mor` are the two halves of the simulation figure, `eta` the tables over the step size, `theory` the rates
    of the theorem, `sizes` unequal and many sites. `pen`, `mnist` and `fashion` are the tables on real data,
    `pen-small` has few rows per writer. Interrupt it whenever you like: the same command goes on where it stopped, and
    does nothing twice.

    For example:

    * `fedgrem reproduce gmm --quick`

    * `fedgrem reproduce mor --seeds 20 --methods fedgrem,local-em,tgmm`

    * `fedgrem reproduce pen --seeds 20 --data files/`
    """
    from rich.console import Console

    from fedgrem.cli.screen import notice
    from fedgrem.experiments.runner import missing_cells, read_rows, run_study
    from fedgrem.experiments.specs import EMBEDDINGS, REAL, STUDIES
    from fedgrem.report.study import Run, duration, write_report
    from fedgrem.report.study_tables import tables
    from fedgrem.report.study_words import verdicts

    plan = STUDIES[study.value](quick)
    if start is Start.paper:
        plan = plan.from_paper_starts()
    if seeds is not None:
        plan = plan.with_seeds(seeds)
    if methods is not None:
        plan = plan.with_methods(listed(methods))
    real = study.value in REAL
    if real and start is Start.paper:
        raise InputError("--start paper is for the simulations; studies on real data have one search for all methods.")
    if not real and covariance is not None:
        raise InputError("--covariance is for studies on real data; the simulations have the paper's unit covariances.")
    if covariance is not None:
        plan = plan.with_covariance(covariance.value)
    name = study.value + ("-quick" if quick else "") + ("-paper-starts" if start is Start.paper else "")
    if study.value in EMBEDDINGS:
        embedding = embedding or Embedding(EMBEDDINGS[study.value])
        plan = plan.with_embedding(embedding.value)
        name += f"-{embedding.value}"
    elif embedding is not None:
        raise InputError(f"--embedding is for studies on images: {', '.join(EMBEDDINGS)}; leave it out.")
    name += f"-{covariance.value}" if covariance is not None else ""
    folder = out or Path("results") / name
    check_writable(folder)
    command = _command()
    resumed = len(plan.cells()) - len(missing_cells(plan, read_rows(folder)))
    workers = workers or os.cpu_count() or 1
    begin = time.monotonic()
    try:
        with _compiled_programs_kept(), _data_at(data), _bar(plan.title) as (tell, say):
            note = _prepared(study, embedding, say) if real else ""
            rows = run_study(plan, folder, workers=workers, on_progress=tell)
    except KeyboardInterrupt:
        done = len(plan.cells()) - len(missing_cells(plan, read_rows(folder)))
        notice(f"interrupted with {done} of {len(plan.cells())} cells done, kept in {folder}; to go on: {command}")
        raise typer.Exit(130) from None
    seconds = time.monotonic() - begin
    written = write_report(plan, rows, folder, Run(command, seconds, workers, resumed, note))
    console = Console(highlight=False)
    console.print(_rich_table(tables(plan, rows)[0], console.width))
    console.print()
    for verdict in verdicts(plan, rows):
        mark = {True: "[green]holds  [/]", False: "[yellow]differs[/]", None: "open   "}[verdict.holds]
        console.print(f"{mark} {_escaped(verdict.claim)} [dim]{_escaped(verdict.finding)}[/]")
    console.print(f"\n{len(rows)} rows in {duration(seconds)}.")
    for path in written:
        console.print(str(path), soft_wrap=True)


def _command() -> str:
    return shlex.join(["fedgrem", *sys.argv[1:]])


def _escaped(text: str) -> str:
    from rich.markup import escape

    return escape(text)


def _rich_table(table: Table, width: int) -> Any:
    """The table for a screen; a narrow one shows means only, and names the methods whatever the width."""
    from fedgrem.cli.tables import plain_table

    narrow = max(sum(len(cell) + 2 for cell in row) for row in [table.headers, *table.rows]) > width
    title = table.title.replace("mean (sd)", "mean") if narrow else table.title
    shown = plain_table(title, table.headers)
    shown.columns[0].no_wrap = True
    for i, row in enumerate(table.rows):
        cells = [row[0], *(cell.split(" (")[0] for cell in row[1:])] if narrow else row
        shown.add_row(*(f"[bold]{cell}[/]" if (i, j) in table.strong else cell for j, cell in enumerate(cells)))
    return shown


@contextmanager
def _data_at(folder: Path | None) -> Iterator[None]:
    """Workers read from their environment where the files are."""
    from fedgrem.experiments.real import DATA
    from fedgrem.experiments.runner import environment

    with environment({} if folder is None else {DATA: str(folder.resolve())}):
        yield


def _prepared(study: Which, embedding: Embedding | None, say: Callable[[str], None]) -> str:
    """Have the data set, and its embedding, ready before workers start; returns what the page is to say of it."""
    from fedgrem.experiments.real import embedding_of, load
    from fedgrem.kernels.precision import precision
    from fedgrem.report.study import duration

    data = load(
        "pen" if study is Which.pen_small else study.value,
        lambda name, done, total: say(f"downloading {name}: {_amount(done, total)}"),
    )
    if embedding is None:
        return ""
    say(f"embedding the images by {embedding.value}: {FIRST_TIME[embedding]}, the first time only")
    with precision("float64"):
        found = embedding_of(
            data,
            embedding.value,
            lambda done, total: say(f"embedding the images, the first time only: step {done} of {total}"),
        )
    versions = ", ".join(f"{name} {version}" for name, version in found.made.get("versions", {}).items())
    return f"Images were embedded by {embedding.value} ({versions}) in {duration(found.seconds)}, with seed 0."


def _amount(done: int, total: int | None) -> str:
    """How much of a file is there; the files of labels are too small for megabytes."""
    size, unit = (1e6, "MB") if max(done, total or 0) >= 1e6 else (1e3, "kB")
    return f"{done / size:.0f} {unit}" if total is None else f"{done / size:.0f} of {total / size:.0f} {unit}"


@contextmanager
def _compiled_programs_kept() -> Iterator[None]:
    """Workers read this from their environment: only the first ever run of a study compiles."""
    from fedgrem.compiled import cache_folder
    from fedgrem.experiments.runner import environment

    folder = cache_folder()
    wanted = {
        "JAX_COMPILATION_CACHE_DIR": str(folder),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.3",
    }
    if folder is None or "JAX_COMPILATION_CACHE_DIR" in os.environ:
        yield
        return
    with environment(wanted):
        yield


@contextmanager
def _bar(title: str) -> Iterator[tuple[Callable[[StudyProgress], None], Callable[[str], None]]]:
    """What a study tells of its cells, and what is to be said before there are any."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    from fedgrem.report.study import duration

    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(bar_width=24, complete_style="cyan", finished_style="green"),
        TextColumn("{task.fields[detail]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as bar:
        line = bar.add_task(title, total=None, detail="preparing")

        def tell(progress: StudyProgress) -> None:
            if progress.seconds_left is not None:
                left = f"{duration(progress.seconds_left)} left"
            else:
                left = "compiling" if progress.done < progress.total else "done"
            detail = f"{progress.done} of {progress.total} cells, {left}"
            bar.update(line, total=progress.total, completed=progress.done, detail=detail)

        yield tell, lambda text: bar.update(line, detail=text)
