"""``fedgrem reproduce``: the paper's studies, run, drawn and told."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedgrem.cli.files import check_writable
from fedgrem.cli.options import argument, examples, listed, option
from fedgrem.cli.screen import live_bar, notice, plain_table
from fedgrem.studies.registry import STUDIES

if TYPE_CHECKING:
    from fedgrem.studies.base import Table
    from fedgrem.studies.runner import StudyProgress


Start = StrEnum("Start", "shared paper")
Embedding = StrEnum("Embedding", "umap tsne pca")
Shape = StrEnum("Shape", "identity spherical diag tied full")


def known(study: str) -> str:
    """The name of a study, if it is one."""
    if study not in STUDIES:
        raise typer.BadParameter(f"{study!r} is not one of {', '.join(STUDIES)}.")
    return study


@examples(
    "fedgrem reproduce gmm --quick",
    "fedgrem reproduce mor --seeds 20 --methods fedgrem,local-em,tgmm",
    "fedgrem reproduce pen --seeds 20 --data files/",
)
def reproduce(
    study: Annotated[str, argument("STUDY", f"Which study to run: {', '.join(STUDIES)}.", callback=known)],
    quick: Annotated[
        bool,
        option(
            None,
            "A small version, in under two minutes; images are embedded before that, which takes minutes, once.",
            "--quick",
        ),
    ] = False,
    seeds: Annotated[int | None, option("N", "Replications per setting.", least=1)] = None,
    workers: Annotated[int | None, option("N", "Processes; by default one per core.", least=1, default=False)] = None,
    out: Annotated[
        Path | None,
        option(
            "FOLDER",
            "Default: results/STUDY, results/STUDY-quick, or on images results/STUDY-EMBEDDING.",
            "--out",
            "-o",
        ),
    ] = None,
    methods: Annotated[str | None, option("A,B", "Only these methods.", default="all of the study")] = None,
    start: Annotated[
        Start, option(None, "`shared`: one search for all methods; `paper`: EM at each site alone.")
    ] = Start.shared,
    data: Annotated[
        Path | None, option("FOLDER", "Where the files of a real data set are.", default="downloaded and cached")
    ] = None,
    embedding: Annotated[
        Embedding | None,
        option(
            None,
            "How images are brought to ten dimensions, once; then it is cached.",
            default="mnist: umap, fashion: pca",
        ),
    ] = None,
    covariance: Annotated[Shape | None, option(None, "Of the components, on real data.", default="tied")] = None,
) -> None:
    """Run one of the paper's studies and write its figures, tables and a page.

    `gmm` and `mor` are the two halves of the simulation figure, `eta` the tables over the step size, `theory` the rates
    of the theorem, `sizes` unequal and many sites, `attacks` bad sites that lie, `discussion` what the paper's last
    section proposes. `pen`, `mnist` and `fashion` are the tables on real data, `pen-small` has few rows per writer.
    Interrupt it whenever you like: the same command goes on where it stopped, and does nothing twice.
    """
    from rich.console import Console
    from rich.markup import escape

    from fedgrem.studies.command import choose, n_done, play
    from fedgrem.studies.page import duration

    plan, name = choose(
        study,
        quick=quick,
        seeds=seeds,
        methods=None if methods is None else listed(methods),
        paper_starts=start is Start.paper,
        embedding=None if embedding is None else embedding.value,
        covariance=None if covariance is None else covariance.value,
    )
    folder = out or Path("results") / name
    check_writable(folder)
    command = shlex.join(["fedgrem", *sys.argv[1:]])
    try:
        with _bar(plan.title) as (tell, say):
            done = play(plan, folder, command, workers=workers, data=data, on_progress=tell, say=say)
    except KeyboardInterrupt:
        n_cells = len(plan.cells())
        notice(
            f"interrupted with {n_done(plan, folder)} of {n_cells} cells done, kept in {folder}; to go on: {command}"
        )
        raise typer.Exit(130) from None
    console = Console(highlight=False)
    console.print(_rich_table(done.page.tables[0], console.width))
    console.print()
    for verdict in done.page.verdicts:
        mark = {True: "[green]holds  [/]", False: "[yellow]differs[/]", None: "open   "}[verdict.holds]
        console.print(f"{mark} {escape(verdict.claim)} [dim]{escape(verdict.finding)}[/]")
    console.print(f"\n{len(done.rows)} rows in {duration(done.seconds)}.")
    for path in done.written:
        console.print(str(path), soft_wrap=True)


def _rich_table(table: Table, width: int) -> Any:
    """The table for a screen; a narrow one shows means only, and names the methods whatever the width."""
    narrow = max(sum(len(cell) + 2 for cell in row) for row in [table.headers, *table.rows]) > width
    title = table.title.replace("mean (sd)", "mean") if narrow else table.title
    shown = plain_table(title, table.headers)
    shown.columns[0].no_wrap = True
    for i, row in enumerate(table.rows):
        cells = [row[0], *(cell.split(" (")[0] for cell in row[1:])] if narrow else row
        shown.add_row(*(f"[bold]{cell}[/]" if (i, j) in table.strong else cell for j, cell in enumerate(cells)))
    return shown


@contextmanager
def _bar(title: str) -> Iterator[tuple[Callable[[StudyProgress], None], Callable[[str], None]]]:
    """What a study tells of its cells, and what is to be said before there are any."""
    from fedgrem.studies.page import duration

    with live_bar(title) as update:

        def tell(progress: StudyProgress) -> None:
            if progress.seconds_left is not None:
                left = f"{duration(progress.seconds_left)} left"
            else:
                left = "starting" if progress.done < progress.total else "done"
            detail = f"{progress.done} of {progress.total} cells, {left}"
            update(total=progress.total, completed=progress.done, detail=detail)

        yield tell, lambda text: update(detail=text)
