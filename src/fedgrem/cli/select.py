"""``fedgrem select``: how many components the rows speak for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from fedgrem.cli.fit import (
    Columns,
    CovarianceOption,
    Criterion,
    CriterionOption,
    DataFiles,
    DroppedColumns,
    Missing,
    NoiseOption,
    SiteColumn,
    TargetColumn,
    WeightColumn,
    family_options,
    fitted,
    gather,
)
from fedgrem.cli.options import Force, Seed, read_components


def select(
    data: DataFiles,
    components: Annotated[
        str,
        typer.Option(
            "--components", "-r", metavar="A:B|auto", help="Numbers to compare: 2:12, or 2,4,8; auto goes up from 1."
        ),
    ] = "auto",
    site: SiteColumn = None,
    target: TargetColumn = None,
    weight: WeightColumn = None,
    columns: Columns = None,
    drop: DroppedColumns = None,
    covariance: CovarianceOption = None,
    noise: NoiseOption = None,
    missing: Annotated[Missing, typer.Option(help="As in `fedgrem fit`.")] = Missing.refuse,
    criterion: CriterionOption = Criterion.bic,
    seed: Seed = 0,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FOLDER", help="Folder to save the chosen model in.")
    ] = None,
    force: Force = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the curve as JSON, for machines.")] = False,
) -> None:
    """Fit several numbers of components, compare them, and say which one the rows speak for.

    More components nearly always explain the rows better; BIC weighs that against their number, and ICL also asks that
    components do not overlap. A minority of odd or hostile sites has no say in the choice.

    For example:

    * `fedgrem select data.csv --site hospital --components 2:12`

    * `fedgrem select data.csv --site hospital --criterion icl --out model/`
    """
    from fedgrem.cli.files import Source, check_folder, save
    from fedgrem.cli.selection import print_selection
    from fedgrem.report.attributes import selection_of

    if out is not None:
        check_folder(out, force=force)
    numbers = read_components(components)
    options = family_options(target is not None, covariance, noise, missing)
    options |= {"random_state": seed, "criterion": criterion.value}
    table, chosen = gather(data, site, target, weight, columns, drop, missing)
    wanted = [numbers] if isinstance(numbers, int) else numbers
    model = fitted(table, chosen, target, weight, options | {"n_components": wanted, "tol": 1e-6})
    if out is not None:
        save(model, out, Source(site, target))
    found = selection_of(model)
    assert found is not None
    if as_json:
        typer.echo(json.dumps(found, indent=1, allow_nan=False))
        return
    print_selection(found)
    if out is not None:
        typer.echo(f"Saved in {out}; see it with: fedgrem show {out}")
