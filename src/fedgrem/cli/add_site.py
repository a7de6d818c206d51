"""``fedgrem add-site``: one more site for a saved model, where its rows are."""

from pathlib import Path
from typing import Annotated

import typer

from fedgrem.cli.options import FittedTarget, Force
from fedgrem.errors import InputError


def add_site(
    model: Annotated[
        Path, typer.Argument(metavar="MODEL", help="A folder written by `fedgrem fit`.", show_default=False)
    ],
    data: Annotated[
        Path, typer.Argument(metavar="DATA", help="The new site's table, with the fitted columns.", show_default=False)
    ],
    name: Annotated[str, typer.Option("--name", metavar="NAME", help="Of the new site.", show_default=False)],
    target: FittedTarget = None,
    weight: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="Column of row weights: 2 counts as two rows.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="FOLDER", help="Folder to save the model in.", show_default="MODEL itself"),
    ] = None,
    force: Force = False,
) -> None:
    """Fit one more site against the center of a saved model, with no other site present, and add it to the model.

    A model holds no rows: send its folder to the new site, run this there, and only the folder goes back, or stays. The
    center and the other sites stay as they are; the new site gets a verdict like theirs.

    For example:

    * `fedgrem add-site model/ west.csv --name west`

    * `fedgrem add-site model/ west.csv --name west --out with-west/`
    """
    from fedgrem import FederatedRegressionMixture
    from fedgrem.cli.files import check_folder, check_writable, fitted_columns, load, save
    from fedgrem.cli.screen import warnings_as_notices
    from fedgrem.cli.tables import print_summary
    from fedgrem.data.files import check_column, check_no_gaps, check_numeric, read_sites
    from fedgrem.report import summarize

    if out is None:
        check_writable(model)
    else:
        check_folder(out, force=force)
    fitted, source = load(model)
    table = read_sites([data])
    columns = fitted_columns(fitted, table)
    target = target or source.target
    regression = isinstance(fitted, FederatedRegressionMixture)
    if regression and target is None:
        raise InputError("the model is a regression, and its response column is not known; name it with --target.")
    aside = [column for column in (target if regression else None, weight) if column is not None]
    for column in aside:
        check_column(table.frame, column)
    check_numeric(table.frame, aside)
    check_no_gaps(table.frame, aside)
    with warnings_as_notices():
        fitted.fit_site(
            table.frame.select(columns),
            table.frame[target].to_numpy() if regression and target else None,
            name=name,
            sample_weight=None if weight is None else table.frame[weight].to_numpy(),
        )
    save(fitted, model if out is None else out, source)
    summary = summarize(fitted)
    print_summary(summary)
    typer.echo(f"\nSite {name}: {summary.sites[-1].verdict}. Saved in {model if out is None else out}.")
