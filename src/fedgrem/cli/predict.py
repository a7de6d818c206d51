"""``fedgrem predict``: the component of every row of a file."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedgrem.cli.options import FittedSite, FittedTarget

if TYPE_CHECKING:
    import polars

    from fedgrem.data.files import FileTable


def predict(
    model: Annotated[
        Path, typer.Argument(metavar="MODEL", help="A folder written by `fedgrem fit`.", show_default=False)
    ],
    data: Annotated[
        list[Path],
        typer.Argument(metavar="DATA", help="Tables with the columns that were fitted.", show_default=False),
    ],
    site: FittedSite = None,
    target: FittedTarget = None,
    keep: Annotated[
        str | None, typer.Option("--id", metavar="COLUMN", help="A column to copy, such as a patient number.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE", help="CSV file to write.", show_default="stdout")
    ] = None,
) -> None:
    """Write, for every row, its most probable component and how probable it is, as CSV.

    The columns are row (from 0), site, component (from 0) and probability. Regression mixtures also give the expected
    response; their component needs the response column. Rows of a site that was not fitted are judged by the center.

    For example:

    * `fedgrem predict model/ data.csv --out groups.csv`

    * `fedgrem predict model/ new.parquet --site hospital --id patient | head`
    """
    from fedgrem.cli.files import check_writable, fitted_columns, load
    from fedgrem.cli.screen import warnings_as_notices
    from fedgrem.data.files import check_column, read_sites

    if out is not None:
        check_writable(out)
    fitted, source = load(model)
    table = read_sites(data, site=site or source.site)
    columns = fitted_columns(fitted, table)
    for name in (target, keep):
        if name is not None:
            check_column(table.frame, name)
    with warnings_as_notices():
        answer = _answer(fitted, table, columns, target or source.target)
    frame = _frame(table, keep, answer)
    if out is None:
        frame.write_csv(sys.stdout.buffer if hasattr(sys.stdout, "buffer") else sys.stdout)
    else:
        frame.write_csv(out)
        typer.echo(f"{len(frame):,} rows in {out}", err=True)


def _answer(model: Any, table: FileTable, columns: list[str], target: str | None) -> dict[str, Any]:
    """Columns to write: the expected response of a regression; component and probability where they can be known."""
    from fedgrem import FederatedRegressionMixture
    from fedgrem.data.files import check_no_gaps, check_numeric

    rows = table.frame.select(columns)
    if not isinstance(model, FederatedRegressionMixture):
        return _most_probable(model.predict_proba(rows, sites=table.sites))
    answer = {"expected": model.predict(rows, sites=table.sites)}
    if target is None or target not in table.frame.columns:
        return answer
    check_numeric(table.frame, [target])
    check_no_gaps(table.frame, [target])
    posterior = model.predict_component_proba(rows, table.frame[target].to_numpy(), sites=table.sites)
    return _most_probable(posterior) | answer


def _most_probable(posterior: Any) -> dict[str, Any]:
    return {"component": posterior.argmax(axis=1), "probability": posterior.max(axis=1).round(6)}


def _frame(table: FileTable, keep: str | None, answer: dict[str, Any]) -> polars.DataFrame:
    import polars as pl

    kept = {} if keep is None else {keep: table.frame[keep]}
    return pl.DataFrame({"row": table.row} | kept | {"site": table.sites} | answer)
