"""Commands about a saved model: ``fedgrem show``, ``report``, ``predict`` and ``add-site``."""

import json
import sys
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from fedgrem.cli import files
from fedgrem.cli import options as opt
from fedgrem.cli.files import check_folder, check_picture, check_writable, rows_for
from fedgrem.cli.screen import print_model, warnings_as_notices
from fedgrem.data.files import check_column
from fedgrem.errors import InputError

PAGE = "report.html"


@opt.examples(
    "fedgrem show model/",
    "fedgrem show model/ --json",
    "fedgrem show model/ --plot overview.png",
)
def show(
    model: opt.ModelArgument,
    all_sites: Annotated[bool, opt.option(None, "List every site, not only the oddest 20.", "--all")] = False,
    as_json: Annotated[bool, opt.option(None, "Print everything as JSON, for machines.", "--json")] = False,
    plot: Annotated[
        Path | None,
        opt.option("FILE", "Also draw sites, distances, weights and movement: .png, .pdf or .svg."),
    ] = None,
) -> None:
    """Show what was found: the centers, each site's weights, who agrees with the center and who is suspect.

    A site is *at the center* when it ended exactly there in every component: its rows gave no reason to differ. It is
    *similar* when it is close; it has its *own answer* when its rows clearly speak for one; it is *suspect* when
    chance, its size and the spread of the other sites do not explain it, which happens to about 1% of honest sites.
    Where a site has next to no rows of some component, a line names it: what stands there is then the center's.
    """
    if plot is not None:
        check_picture(plot)
    fitted = files.load(model).model
    if as_json:
        from fedgrem.report.summary import summarize

        typer.echo(json.dumps(summarize(fitted).as_plain(), indent=1, allow_nan=False))
    else:
        left_out = print_model(fitted, all_sites=all_sites)
        if left_out:
            typer.echo("See every site with --all, and every number with --json.")
    if plot is not None:
        from fedgrem.plots import overview_figure

        overview_figure(fitted).savefig(plot)
        typer.echo(f"Plot: {plot}", err=True)


@opt.examples(
    "fedgrem report model/",
    "fedgrem report model/ --data data.csv --out page.html",
    "fedgrem report model/ --data sites/*.csv --show-rows 500",
)
def report(
    model: opt.ModelArgument,
    more: Annotated[list[Path] | None, opt.argument("DATA", "More tables of --data.")] = None,
    out: Annotated[Path | None, opt.option("FILE", "Page to write.", "--out", "-o", default=f"MODEL/{PAGE}")] = None,
    data: Annotated[
        list[Path] | None,
        opt.option("DATA", "Tables with the columns that were fitted, to tell what each site gained.", "--data", "-d"),
    ] = None,
    site: opt.FittedSite = None,
    target: opt.FittedTarget = None,
    show_rows: Annotated[int, opt.option("N", "Also draw N random rows of --data. Rows are private.", least=0)] = 0,
    seed: Annotated[int, opt.option("N", "Of the rows held back and of those drawn.", least=0)] = 0,
) -> None:
    """Write one HTML page about a model: components, sites, who is suspect, how the fit went. It needs no network.

    With --data it also tells what each site gained over fitting alone: a fifth of every site's rows is held back, the
    rest is fitted together and alone, and both are judged on what was held back.
    """
    page = model / PAGE if out is None else out
    if page.suffix.lower() not in (".html", ".htm"):
        raise InputError(f"{page} has the extension {page.suffix!r}; a page is saved as .html.")
    tables = [*(data or []), *(more or [])]
    if show_rows and not tables:
        raise InputError("--show-rows draws rows, but none were given; give them with --data.")
    saved = files.load(model)
    check_writable(page)
    given: dict[str, Any] = {}
    if tables:
        rows = rows_for(saved, tables, site=site or saved.source.site, target=target)
        given = {"X": rows.features, "y": rows.response, "sites": rows.table.sites}

    from fedgrem.report.model import Origin, write_model_report

    path = model / "model.json"
    version = json.loads(path.read_text(encoding="utf-8")).get("fedgrem", "unknown")
    origin = Origin(str(model), str(version), datetime.fromtimestamp(path.stat().st_mtime).astimezone())
    with warnings_as_notices(), Console(stderr=True).status("Writing the page"):
        write_model_report(saved.model, page, **given, show_rows=show_rows, seed=seed, origin=origin)
    typer.echo(f"Page: {page}")


@opt.examples(
    "fedgrem predict model/ data.csv --out groups.csv",
    "fedgrem predict model/ new.parquet --site hospital --id patient | head",
)
def predict(
    model: opt.ModelArgument,
    data: Annotated[list[Path], opt.argument("DATA", "Tables with the columns that were fitted.")],
    site: opt.FittedSite = None,
    target: opt.FittedTarget = None,
    keep: Annotated[str | None, opt.option("COLUMN", "A column to copy, such as a patient number.", "--id")] = None,
    out: Annotated[Path | None, opt.option("FILE", "CSV file to write.", "--out", "-o", default="stdout")] = None,
) -> None:
    """Write, for every row, its most probable component and how probable it is, as CSV.

    The columns are row (from 0), site, component (from 0) and probability. Regression mixtures also give the expected
    response; their component needs the response column. Rows of a site that was not fitted are judged by the center.
    """
    if out is not None:
        check_writable(out)
    saved = files.load(model)
    rows = rows_for(saved, data, site=site or saved.source.site, target=target, blind=True)
    if keep is not None:
        check_column(rows.table.frame, keep)
    with warnings_as_notices():
        answer = _predicted(saved.model, rows)
    import polars as pl

    kept = {} if keep is None else {keep: rows.table.frame[keep]}
    frame = pl.DataFrame({"row": rows.table.row} | kept | {"site": rows.table.sites} | answer)
    if out is None:
        frame.write_csv(sys.stdout.buffer if hasattr(sys.stdout, "buffer") else sys.stdout)
    else:
        frame.write_csv(out)
        typer.echo(f"{len(frame):,} rows in {out}", err=True)


def _predicted(model: Any, rows: files.Rows) -> dict[str, Any]:
    """Columns to write: component and probability where they can be known; the expected response of a regression."""
    from fedgrem import FederatedRegressionMixture

    sites, expected, posterior = rows.table.sites, {}, None
    if isinstance(model, FederatedRegressionMixture):
        expected = {"expected": model.predict(rows.features, sites=sites)}
        if rows.response is not None:
            posterior = model.predict_component_proba(rows.features, rows.response, sites=sites)
    else:
        posterior = model.predict_proba(rows.features, sites=sites)
    if posterior is None:
        return expected
    return {"component": posterior.argmax(axis=1), "probability": posterior.max(axis=1).round(6)} | expected


@opt.examples(
    "fedgrem add-site model/ west.csv --name west",
    "fedgrem add-site model/ west.csv --name west --out with-west/",
)
def add_site(
    model: opt.ModelArgument,
    data: Annotated[Path, opt.argument("DATA", "The new site's table, with the fitted columns.")],
    name: Annotated[str, opt.option("NAME", "Of the new site.", default=False)],
    target: opt.FittedTarget = None,
    weight: opt.WeightColumn = None,
    out: Annotated[
        Path | None,
        opt.option("FOLDER", "Folder to save the model in.", "--out", "-o", default="MODEL itself"),
    ] = None,
    force: opt.Force = False,
) -> None:
    """Fit one more site against the center of a saved model, with no other site present, and add it to the model.

    A model holds no rows: send its folder to the new site, run this there, and only the folder goes back, or stays. The
    center and the other sites stay as they are; the new site gets a verdict like theirs.
    """
    if out is None:
        check_writable(model)
    else:
        check_folder(out, force=force)
    place = model if out is None else out
    saved = files.load(model)
    rows = rows_for(saved, [data], target=target, weight=weight)
    with warnings_as_notices():
        saved.model.fit_site(rows.features, rows.response, name=name, sample_weight=rows.weight)
    files.save(saved.model, place, saved.source)
    print_model(saved.model, selection=False)

    from fedgrem.report.summary import summarize

    typer.echo(f"\nSite {name}: {summarize(saved.model).sites[-1].verdict}. Saved in {place}.")
