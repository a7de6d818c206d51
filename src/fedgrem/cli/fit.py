"""``fedgrem fit`` and ``select``: from files to a saved model, with a given number of components or with the best."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from fedgrem.cli import options as opt
from fedgrem.cli.files import Source, check_folder, save
from fedgrem.cli.options import estimator, listed, read_components
from fedgrem.cli.screen import print_model, print_text, progress_bar, warnings_as_notices
from fedgrem.data.files import FileTable, check_no_gaps, choose_columns, read_sites, read_table
from fedgrem.errors import InputError


@opt.with_options
@opt.examples(
    "fedgrem fit data.csv --site hospital --components 5 --out model/",
    "fedgrem fit north.csv south.csv east.csv --components 3 --out model/",
    "fedgrem fit data.csv --site hospital --components auto --out model/",
    "fedgrem fit trial.parquet -s center -r 2 --target y --drop patient -o model/",
    "fedgrem fit trial.parquet -s center -r 2 --target died --response binary -o model/",
    'fedgrem fit patients.csv -s hospital -r 4 --table --types "cp=categorical,age=continuous" -o model/',
)
def fit(
    data: opt.DataFiles,
    components: opt.Components,
    out: opt.ModelFolder,
    rows: opt.RowOptions,
    family: opt.FamilyOptions,
    how: opt.FitOptions,
    force: opt.Force = False,
) -> None:
    """Fit one mixture per site, pulled to a common center, and save it.

    Columns may have any units: covariances (or, with --target, the noise and an intercept) are estimated, and what is
    shown is in the columns' own units. With `--covariance identity` or `--noise unit` nothing is: scale the columns
    first such that the spread *within* a group is about 1.
    """
    check_folder(out, force=force)
    regression = rows.target is not None
    options = how.told(read_components(components)) | family.told(regression)
    table, chosen = gather(data, rows, family.missing, words=family.table or regression)
    model = fitted(table, chosen, rows.target, rows.weight, options)
    save(model, out, Source(rows.site, rows.target))
    print_model(model)
    typer.echo(f"\nSaved in {out}; see it again with: fedgrem show {out}")


@opt.with_options
@opt.examples(
    "fedgrem select data.csv --site hospital --components 2:12",
    "fedgrem select data.csv --site hospital --criterion icl --out model/",
)
def select(
    data: opt.DataFiles,
    *,
    components: Annotated[
        str,
        opt.option("A:B|auto", "Numbers to compare: 2:12, or 2,4,8; auto goes up from 1.", "--components", "-r"),
    ] = "auto",
    rows: opt.RowOptions,
    family: opt.FamilyOptions,
    criterion: opt.CriterionOption = opt.Criterion.bic,
    seed: opt.Seed = 0,
    out: Annotated[Path | None, opt.option("FOLDER", "Folder to save the chosen model in.", "--out", "-o")] = None,
    force: opt.Force = False,
    as_json: Annotated[bool, opt.option(None, "Print the curve as JSON, for machines.", "--json")] = False,
) -> None:
    """Fit several numbers of components, compare them, and say which one the rows speak for.

    More components nearly always explain the rows better; BIC weighs that against their number, and ICL also asks that
    components do not overlap. A minority of odd or hostile sites has no say in the choice.
    """
    if out is not None:
        check_folder(out, force=force)
    numbers, regression = read_components(components), rows.target is not None
    options = family.told(regression) | {"random_state": seed, "criterion": criterion.value}
    options |= {"n_components": [numbers] if isinstance(numbers, int) else numbers, "tol": 1e-6}
    table, chosen = gather(data, rows, family.missing, words=family.table or regression)
    model = fitted(table, chosen, rows.target, rows.weight, options)
    if out is not None:
        save(model, out, Source(rows.site, rows.target))

    from fedgrem.report.attributes import selection_of
    from fedgrem.report.summary import selection_text

    found = selection_of(model)
    assert found is not None
    if as_json:
        typer.echo(json.dumps(found, indent=1, allow_nan=False))
        return
    print_text(selection_text(found) + "\n")
    if out is not None:
        typer.echo(f"Saved in {out}; see it with: fedgrem show {out}")


def gather(data: list[Path], rows: opt.RowOptions, missing: opt.Missing, *, words: bool) -> tuple[FileTable, list[str]]:
    """The rows, and the columns to fit, which may hold words on demand; whatever cannot be used is refused."""
    site, target, weight = rows.site, rows.target, rows.weight
    if target is not None and missing is opt.Missing.em:
        raise InputError(
            "--missing em is for Gaussian components; with --target, drop or impute rows with empty cells."
        )
    if site is None and len(data) == 1:
        there = ", ".join(read_table(data[0]).columns[:20])
        raise InputError(
            f"{data[0]} is one file, and no site column was named; name it with --site (the columns are {there}), or "
            "give one file per site."
        )
    table = read_sites(data, site=site)
    aside = [name for name in (target, weight) if name is not None]
    named = [name for name in (*aside, site) if name is not None]
    if len(set(named)) < len(named):
        raise InputError("--site, --target and --weight must name different columns.")
    chosen = choose_columns(table.frame, columns=listed(rows.columns), drop=listed(rows.drop), aside=aside, words=words)
    for name in aside:
        choose_columns(table.frame, columns=[name])
    check_no_gaps(table.frame, aside)
    return table, chosen


def fitted(table: FileTable, chosen: list[str], target: str | None, weight: str | None, options: dict[str, Any]) -> Any:
    """A model of these options, fitted while a bar shows how far it is."""
    model = estimator(options, target is not None)
    response, row_weight = (None if name is None else table.frame[name].to_numpy() for name in (target, weight))
    with warnings_as_notices(), progress_bar("Fitting", model.tol) as tell:
        model.fit(table.frame.select(chosen), response, sites=table.sites, sample_weight=row_weight, on_progress=tell)
    return model
