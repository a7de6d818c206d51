"""A finished study on disk: tidy rows, its figure, and one HTML page that needs nothing else."""

import csv
import platform
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from fedgrem import __version__
from fedgrem.report.page import inline, render, svg
from fedgrem.report.text import name_of
from fedgrem.studies.base import Page, Row, Study, page_of


class Run(NamedTuple):
    """How the rows came about."""

    command: str
    seconds: float
    """Wall-clock seconds of this run; an interrupted study has spent more."""
    workers: int
    resumed: int = 0
    """Cells that were there already."""
    note: str = ""
    """What else a reader must know, such as the embedding."""


def write_report(study: Study, rows: list[Row], folder: Path, run: Run) -> tuple[Page, list[Path]]:
    """Write page, figure and rows; returns what the page tells, and the paths, the page first."""
    page, figure = page_of(study, rows), folder / f"{study.name}-errors"
    drawn = page.draw()
    drawn.savefig(figure.with_suffix(".png"))
    drawing = svg(drawn)
    figure.with_suffix(".svg").write_text(drawing, encoding="utf-8")
    path = folder / "index.html"
    path.write_text(html_page(study, rows, page, run, inline(drawing)), encoding="utf-8")
    return page, [path, figure.with_suffix(".png"), figure.with_suffix(".svg"), *_write_rows(rows, folder)]


def _write_rows(rows: list[Row], folder: Path) -> list[Path]:
    """One line per (setting, method, seed), as CSV and, where polars is installed, as Parquet."""
    path = folder / "rows.csv"
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]) if rows else [])
        writer.writeheader()
        writer.writerows(rows)
    if find_spec("polars") is None:
        return [path]
    import polars

    polars.DataFrame(rows).write_parquet(folder / "rows.parquet")
    return [path, folder / "rows.parquet"]


def html_page(study: Study, rows: list[Row], page: Page, run: Run, drawing: str = "") -> str:
    """The page: figure first, then what it shows, then tables, then how they came about."""
    versions = {"fedgrem": __version__, "numpy": version("numpy"), "scipy": version("scipy")}
    return render(
        "study.html",
        study=study,
        page=page,
        run=run,
        drawing=drawing,
        time=duration(run.seconds),
        names=[name_of(method.name) for method in study.methods],
        n_seeds=len({row["seed"] for row in rows}),
        n_rows=len(rows),
        starts={setting.start for setting in study.settings},
        versions=versions | {"Python": platform.python_version()},
    )


def duration(seconds: float) -> str:
    """Seconds as people say them.

    Examples
    --------
    >>> duration(7.21), duration(754.0)
    ('7.2 s', '12 min 34 s')
    """
    if seconds < 60:
        return f"{seconds:.1f} s"
    return f"{int(seconds) // 60} min {int(seconds) % 60} s"
