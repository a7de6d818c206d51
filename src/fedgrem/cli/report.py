"""``fedgrem report``: a saved model as one HTML page, for people who do not read code."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedgrem.cli.options import FittedSite, FittedTarget
from fedgrem.errors import InputError

if TYPE_CHECKING:
    from fedgrem.cli.files import Saved
    from fedgrem.report.model import Origin

PAGE = "report.html"


def report(
    model: Annotated[
        Path, typer.Argument(metavar="MODEL", help="A folder written by `fedgrem fit`.", show_default=False)
    ],
    more: Annotated[
        list[Path] | None, typer.Argument(metavar="DATA", help="More tables of --data.", show_default=False)
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE", help="Page to write.", show_default=f"MODEL/{PAGE}")
    ] = None,
    data: Annotated[
        list[Path] | None,
        typer.Option(
            "--data",
            "-d",
            metavar="DATA",
            help="Tables with the columns that were fitted, to tell what each site gained.",
        ),
    ] = None,
    site: FittedSite = None,
    target: FittedTarget = None,
    show_rows: Annotated[
        int, typer.Option(metavar="N", min=0, help="Also draw N random rows of --data. Rows are private.")
    ] = 0,
    seed: Annotated[int, typer.Option(metavar="N", min=0, help="Of the rows held back and of those drawn.")] = 0,
) -> None:
    """Write one HTML page about a model: components, sites, who is suspect, how the fit went. It needs no network.

    With --data it also tells what each site gained over fitting alone: a fifth of every site's rows is held back, the
    rest is fitted together and alone, and both are judged on what was held back.

    For example:

    * `fedgrem report model/`

    * `fedgrem report model/ --data data.csv --out page.html`

    * `fedgrem report model/ --data sites/*.csv --show-rows 500`
    """
    from fedgrem.cli.files import check_writable, load

    page = model / PAGE if out is None else out
    if page.suffix.lower() not in (".html", ".htm"):
        raise InputError(f"{page} has the extension {page.suffix!r}; a page is saved as .html.")
    files = [*(data or []), *(more or [])]
    if show_rows and not files:
        raise InputError("--show-rows draws rows, but none were given; give them with --data.")
    saved = load(model)
    check_writable(page)
    rows = _rows(saved, files, site, target) if files else {}
    _write(saved.model, page, rows | {"show_rows": show_rows, "seed": seed, "origin": _origin(model)})
    typer.echo(f"Page: {page}")


def _rows(saved: Saved, files: list[Path], site: str | None, target: str | None) -> dict[str, Any]:
    """Rows, responses and sites as a report takes them."""
    from fedgrem.cli.files import fitted_columns
    from fedgrem.data.files import check_column, check_no_gaps, check_numeric, read_sites

    table = read_sites(files, site=site or saved.source.site)
    columns = fitted_columns(saved.model, table)
    response = target or saved.source.target
    if response is not None:
        check_column(table.frame, response)
        check_numeric(table.frame, [response])
        check_no_gaps(table.frame, [response])
    y = None if response is None else table.frame[response].to_numpy()
    return {"X": table.frame.select(columns), "y": y, "sites": table.sites}


def _write(model: Any, page: Path, options: dict[str, Any]) -> None:
    from rich.console import Console

    from fedgrem.cli.screen import warnings_as_notices
    from fedgrem.report.model import write_model_report

    with warnings_as_notices(), Console(stderr=True).status("Writing the page"):
        write_model_report(model, page, **options)


def _origin(folder: Path) -> Origin:
    """What the folder of a model tells about where it comes from."""
    from fedgrem.report.model import Origin

    path = folder / "model.json"
    version = json.loads(path.read_text(encoding="utf-8")).get("fedgrem", "unknown")
    return Origin(str(folder), str(version), datetime.fromtimestamp(path.stat().st_mtime).astimezone())
