"""The shell face of the package: parses, calls, exits.

Nothing heavy is imported before a command needs it, so that ``fedgrem --help`` answers at once.
"""

import sys
from typing import Annotated

import typer

from fedgrem import __version__
from fedgrem.cli.demo import demo
from fedgrem.cli.fit import fit, select
from fedgrem.cli.model import add_site, predict, report, show
from fedgrem.cli.plan import plan
from fedgrem.cli.reproduce import reproduce
from fedgrem.cli.screen import complain
from fedgrem.cli.site import app as site_app
from fedgrem.cli.sites import app as sites_app
from fedgrem.cli.sites_fit import replay
from fedgrem.errors import FedGrEMError

app = typer.Typer(
    name="fedgrem",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (demo, plan, fit, select, show, report, predict, add_site, reproduce, replay):
    app.command()(command)
app.add_typer(sites_app, name="sites")
app.add_typer(site_app, name="site")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"fedgrem {__version__}")
        raise typer.Exit


@app.callback(epilog="Each command has its own help: `fedgrem fit --help`.")
def options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Mixture models over data that cannot be merged.

    Every site keeps its rows. What it shares is a fitted mixture; in return it gets a better one, in which an odd or
    hostile site has little say.

    Begin with `fedgrem demo`, then: `fedgrem fit data.csv --site hospital --components 5 --out model/`
    """


def main(arguments: list[str] | None = None) -> None:
    """Run the command line; exits with 0, with 1 for bad data or an unusable model, with 2 for wrong usage."""
    try:
        app(arguments, prog_name="fedgrem")
    except (FedGrEMError, OSError) as error:
        complain(str(error))
        sys.exit(1)
