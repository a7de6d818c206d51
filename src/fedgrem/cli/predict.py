"""``fedgrem predict``: the component of every row of a file."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedgrem.errors import InputError

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
    site: Annotated[
        str | None,
        typer.Option(
            "--site", "-s", metavar="COLUMN", help="Column that names the site of each row.", show_default="as fitted"
        ),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(metavar="COLUMN", help="Response column of a regression mixture.", show_default="as fitted"),
    ] = None,
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
    from fedgrem.cli.cache import keep_compiled_programs
    from fedgrem.cli.files import check_writable, load
    from fedgrem.cli.screen import warnings_as_notices
    from fedgrem.data.files import check_column, check_no_gaps, check_numeric, read_sites

    if out is not None:
        check_writable(out)
    fitted, source = load(model)
    table = read_sites(data, site=site or source.site)
    columns = _fitted_columns(fitted, table)
    check_numeric(table.frame, columns)
    if getattr(fitted, "missing", None) != "em":
        check_no_gaps(table.frame, columns)
    for name in (target, keep):
        if name is not None:
            check_column(table.frame, name)
    keep_compiled_programs()
    with warnings_as_notices():
        answer = _answer(fitted, table, columns, target or source.target)
    frame = _frame(table, keep, answer)
    if out is None:
        frame.write_csv(sys.stdout.buffer if hasattr(sys.stdout, "buffer") else sys.stdout)
    else:
        frame.write_csv(out)
        typer.echo(f"{len(frame):,} rows in {out}", err=True)


def _fitted_columns(model: Any, table: FileTable) -> list[str]:
    names = [str(name) for name in getattr(model, "feature_names_in_", [])]
    if not names:
        raise InputError("the model was fitted on an array without column names; predict with it in Python.")
    lacking = [name for name in names if name not in table.frame.columns]
    if lacking:
        listed = ", ".join(table.frame.columns[:20])
        raise InputError(
            f"the data lacks the fitted column(s) {', '.join(lacking[:5])}{', ...' if len(lacking) > 5 else ''}; "
            f"its columns are {listed}."
        )
    return names


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
