"""``fedgrem fit``: from files to a saved model."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from fedgrem.cli.options import (
    Components,
    Force,
    ModelFolder,
    MostRounds,
    Penalty,
    Restarts,
    Seed,
    Tolerance,
    listed,
    penalty_of,
    read_components,
)
from fedgrem.errors import InputError

if TYPE_CHECKING:
    from fedgrem.data.files import FileTable


class Covariance(StrEnum):
    """What is estimated of the spread within components."""

    tied = "tied"
    full = "full"
    diag = "diag"
    spherical = "spherical"
    identity = "identity"


class Noise(StrEnum):
    """What is estimated of the noise of regressions."""

    shared = "shared"
    component = "component"
    unit = "unit"


class Missing(StrEnum):
    """What to do about empty cells."""

    refuse = "refuse"
    em = "em"


class Criterion(StrEnum):
    """How a number of components is chosen."""

    bic = "bic"
    icl = "icl"


DataFiles: TypeAlias = Annotated[
    list[Path],
    typer.Argument(
        metavar="DATA",
        help="One CSV, TSV or Parquet table with a site column, or several: one per site.",
        show_default=False,
    ),
]
SiteColumn: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--site", "-s", metavar="COLUMN", help="Column that names the site of each row.", show_default="file names"
    ),
]
TargetColumn: TypeAlias = Annotated[
    str | None, typer.Option(metavar="COLUMN", help="Column to explain: fits a mixture of linear regressions.")
]
WeightColumn: TypeAlias = Annotated[
    str | None, typer.Option(metavar="COLUMN", help="Column of row weights: 2 counts as two rows.")
]
Columns: TypeAlias = Annotated[
    str | None,
    typer.Option(metavar="A,B,...", help="Columns to use, separated by commas.", show_default="all others"),
]
DroppedColumns: TypeAlias = Annotated[
    str | None, typer.Option(metavar="A,B,...", help="Columns to leave out, separated by commas.")
]
CovarianceOption: TypeAlias = Annotated[
    Covariance | None,
    typer.Option(
        "--covariance",
        help="`tied`: one matrix for all components; `full`: one each; `identity`: the paper's unit one.",
        show_default="tied",
    ),
]
NoiseOption: TypeAlias = Annotated[
    Noise | None,
    typer.Option(
        "--noise",
        help="Of regressions. `shared`: one variance for all components; `component`: one each; `unit`: the paper's, "
        "known and without an intercept.",
        show_default="shared",
    ),
]
CriterionOption: TypeAlias = Annotated[
    Criterion, typer.Option("--criterion", help="What chooses among numbers of components.")
]


def fit(
    data: DataFiles,
    components: Components,
    out: ModelFolder,
    site: SiteColumn = None,
    target: TargetColumn = None,
    weight: WeightColumn = None,
    columns: Columns = None,
    drop: DroppedColumns = None,
    covariance: CovarianceOption = None,
    noise: NoiseOption = None,
    missing: Annotated[
        Missing, typer.Option(help="Empty cells: refuse them, or let EM fill in what is expected of them.")
    ] = Missing.refuse,
    penalty: Penalty = "auto",
    criterion: CriterionOption = Criterion.bic,
    max_rounds: MostRounds = 1000,
    tol: Tolerance = 1e-6,
    n_init: Restarts = 10,
    seed: Seed = 0,
    force: Force = False,
) -> None:
    """Fit one mixture per site, pulled to a common center, and save it.

    Columns may have any units: covariances (or, with --target, the noise and an intercept) are estimated, and what is
    shown is in the columns' own units. With `--covariance identity` or `--noise unit` nothing is: scale the columns
    first such that the spread *within* a group is about 1.

    For example:

    * `fedgrem fit data.csv --site hospital --components 5 --out model/`

    * `fedgrem fit north.csv south.csv east.csv --components 3 --out model/`

    * `fedgrem fit data.csv --site hospital --components auto --out model/`

    * `fedgrem fit trial.parquet -s center -r 2 --target y --drop patient -o model/`
    """
    from fedgrem.cli.files import Source, check_folder, save

    check_folder(out, force=force)
    numbers = read_components(components)
    options = fit_options(numbers, penalty, criterion, max_rounds, tol, n_init, seed)
    options |= family_options(target is not None, covariance, noise, missing)
    table, chosen = gather(data, site, target, weight, columns, drop, missing)
    model = fitted(table, chosen, target, weight, options)
    save(model, out, Source(site, target))

    from fedgrem.cli.selection import print_selection
    from fedgrem.cli.tables import print_summary
    from fedgrem.report import summarize

    summary = summarize(model)
    if summary.selection is not None:
        print_selection(summary.selection)
    print_summary(summary)
    typer.echo(f"\nSaved in {out}; see it again with: fedgrem show {out}")


def fit_options(
    numbers: int | str | list[int],
    penalty: str,
    criterion: Criterion,
    max_rounds: int,
    tol: float,
    n_init: int,
    seed: int,
) -> dict[str, Any]:
    """What an estimator is told of the fit."""
    return {
        "n_components": numbers,
        "penalty": penalty_of(penalty),
        "criterion": criterion.value,
        "max_rounds": max_rounds,
        "tol": tol,
        "n_init": n_init,
        "random_state": seed,
    }


def family_options(
    regression: bool, covariance: Covariance | None, noise: Noise | None, missing: Missing
) -> dict[str, Any]:
    """What an estimator is told of its components; what belongs to the other kind of mixture is refused."""
    if regression:
        if covariance is not None:
            raise InputError(
                f"--covariance {covariance.value} is for Gaussian components; of regressions, say what to estimate of "
                "the noise: --noise shared, component or unit."
            )
        return {"noise": (noise or Noise.shared).value}
    if noise is not None:
        raise InputError(
            f"--noise {noise.value} is for regressions, and no column to explain was named; use --covariance instead."
        )
    return {"covariance_type": (covariance or Covariance.tied).value, "missing": missing.value}


def gather(
    data: list[Path],
    site: str | None,
    target: str | None,
    weight: str | None,
    columns: str | None,
    drop: str | None,
    missing: Missing,
) -> tuple[FileTable, list[str]]:
    """The rows, and the columns to fit; whatever cannot be used is refused."""
    from fedgrem.data.files import check_no_gaps, choose_columns

    if target is not None and missing is Missing.em:
        raise InputError(
            "--missing em is for Gaussian components; with --target, drop or impute rows with empty cells."
        )
    table = read(data, site)
    aside = [name for name in (target, weight) if name is not None]
    if len({*aside, site} - {None}) < len([name for name in (target, weight, site) if name is not None]):
        raise InputError("--site, --target and --weight must name different columns.")
    chosen = choose_columns(table.frame, columns=listed(columns or ""), drop=listed(drop or ""), aside=aside)
    for name in aside:
        choose_columns(table.frame, columns=[name])
        check_no_gaps(table.frame, [name])
    return table, chosen


def read(data: list[Path], site: str | None) -> FileTable:
    """The rows and the site of each; one file without a site column is no federation."""
    from fedgrem.data.files import read_sites, read_table

    if site is None and len(data) == 1:
        listed = ", ".join(read_table(data[0]).columns[:20])
        raise InputError(
            f"{data[0]} is one file, and no site column was named; name it with --site (the columns are {listed}), or "
            "give one file per site."
        )
    return read_sites(data, site=site)


def fitted(table: FileTable, chosen: list[str], target: str | None, weight: str | None, options: dict[str, Any]) -> Any:
    """A model of these options, fitted while a bar shows how far it is."""
    from fedgrem import FederatedGaussianMixture, FederatedRegressionMixture
    from fedgrem.cli.screen import progress_bar, warnings_as_notices

    rows = table.frame.select(chosen)
    sample_weight = None if weight is None else table.frame[weight].to_numpy()
    model: Any = FederatedGaussianMixture(**options) if target is None else FederatedRegressionMixture(**options)
    response = None if target is None else table.frame[target].to_numpy()
    with warnings_as_notices(), progress_bar("Fitting", options["tol"]) as tell:
        model.fit(rows, response, sites=table.sites, sample_weight=sample_weight, on_progress=tell)
    return model
