"""``fedgrem reproduce``: the paper's studies, run, drawn and told."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedgrem.cli.files import check_writable
from fedgrem.cli.options import listed
from fedgrem.cli.screen import notice, plain_table
from fedgrem.studies.registry import STUDIES

if TYPE_CHECKING:
    from fedgrem.studies.base import Table
    from fedgrem.studies.runner import StudyProgress


def one_of(*choices: str) -> Callable[[str | None], str | None]:
    """A callback that refuses anything else as wrong usage."""

    def check(value: str | None) -> str | None:
        if value is not None and value not in choices:
            raise typer.BadParameter(f"{value!r} is not one of {', '.join(choices)}.")
        return value

    return check


EMBEDDINGS, STARTS = ("umap", "tsne", "pca"), ("shared", "paper")
SHAPES = ("identity", "spherical", "diag", "tied", "full")


def reproduce(
    study: Annotated[
        str,
        typer.Argument(
            metavar="STUDY",
            callback=one_of(*STUDIES),
            help=f"Which study to run: {', '.join(STUDIES)}.",
            show_default=False,
        ),
    ],
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
        str,
        typer.Option(
            metavar=f"[{'|'.join(STARTS)}]",
            callback=one_of(*STARTS),
            help="`shared`: one search for all methods; `paper`: EM at each site alone.",
        ),
    ] = "shared",
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER", help="Where the files of a real data set are.", show_default="downloaded and cached"
        ),
    ] = None,
    embedding: Annotated[
        str | None,
        typer.Option(
            metavar=f"[{'|'.join(EMBEDDINGS)}]",
            callback=one_of(*EMBEDDINGS),
            help="How images are brought to ten dimensions, once; then it is cached.",
            show_default="mnist: umap, fashion: pca",
        ),
    ] = None,
    covariance: Annotated[
        str | None,
        typer.Option(
            metavar=f"[{'|'.join(SHAPES)}]",
            callback=one_of(*SHAPES),
            help="Of the components, on real data.",
            show_default="tied",
        ),
    ] = None,
) -> None:
    """Run one of the paper's studies and write its figures, tables and a page.

    `gmm` and `mor` are the two halves of the simulation figure, `eta` the tables over the step size, `theory` the rates
    of the theorem, `sizes` unequal and many sites, `attacks` bad sites that lie, `discussion` what the paper's last
    section proposes. `pen`, `mnist` and `fashion` are the tables on real data, `pen-small` has few rows per writer.
    Interrupt it whenever you like: the same command goes on where it stopped, and does nothing twice.

    For example:

    * `fedgrem reproduce gmm --quick`

    * `fedgrem reproduce mor --seeds 20 --methods fedgrem,local-em,tgmm`

    * `fedgrem reproduce pen --seeds 20 --data files/`
    """
    from rich.console import Console

    from fedgrem.studies.command import choose, n_done, play
    from fedgrem.studies.page import duration

    plan, name = choose(
        study,
        quick=quick,
        seeds=seeds,
        methods=None if methods is None else listed(methods),
        paper_starts=start == "paper",
        embedding=embedding,
        covariance=covariance,
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
        console.print(f"{mark} {_escaped(verdict.claim)} [dim]{_escaped(verdict.finding)}[/]")
    console.print(f"\n{len(done.rows)} rows in {duration(done.seconds)}.")
    for path in done.written:
        console.print(str(path), soft_wrap=True)


def _escaped(text: str) -> str:
    from rich.markup import escape

    return escape(text)


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
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    from fedgrem.studies.page import duration

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
                left = "starting" if progress.done < progress.total else "done"
            detail = f"{progress.done} of {progress.total} cells, {left}"
            bar.update(line, total=progress.total, completed=progress.done, detail=detail)

        yield tell, lambda text: bar.update(line, detail=text)
