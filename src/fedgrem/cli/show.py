"""``fedgrem show``: what a saved model found."""

import json
from pathlib import Path
from typing import Annotated

import typer

from fedgrem.cli.files import check_picture


def show(
    model: Annotated[
        Path, typer.Argument(metavar="MODEL", help="A folder written by `fedgrem fit`.", show_default=False)
    ],
    all_sites: Annotated[bool, typer.Option("--all", help="List every site, not only the oddest 20.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON, for machines.")] = False,
    plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Also draw sites, distances, weights and movement: .png, .pdf or .svg."),
    ] = None,
) -> None:
    """Show what was found: the centers, each site's weights, who agrees with the center and who is suspect.

    A site is *at the center* when it ended exactly there in every component: its rows gave no reason to differ. It is
    *similar* when it is close; it has its *own answer* when its rows clearly speak for one; it is *suspect* when
    chance, its size and the spread of the other sites do not explain it, which happens to about 1% of honest sites.
    Where a site has next to no rows of some component, a line names it: what stands there is then the center's.

    For example:

    * `fedgrem show model/`

    * `fedgrem show model/ --json`

    * `fedgrem show model/ --plot overview.png`
    """
    from fedgrem.cli.files import load
    from fedgrem.cli.selection import print_selection
    from fedgrem.cli.tables import print_summary
    from fedgrem.report.summary import MOST_SITES, summarize

    if plot is not None:
        check_picture(plot)
    fitted = load(model).model
    summary = summarize(fitted)
    if as_json:
        typer.echo(json.dumps(summary.as_plain(), indent=1, allow_nan=False))
    else:
        if summary.selection is not None:
            print_selection(summary.selection)
        print_summary(summary, most_sites=len(summary.sites) if all_sites else MOST_SITES)
        if len(summary.sites) > MOST_SITES and not all_sites:
            typer.echo("See every site with --all, and every number with --json.")
    if plot is not None:
        from fedgrem.plots import overview_figure

        overview_figure(fitted).savefig(plot)
        typer.echo(f"Plot: {plot}", err=True)
