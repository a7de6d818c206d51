"""``fedgrem sites``: a study over a network, from the coordinator's side."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedgrem.cli.options import Foreground, StudyFolder
from fedgrem.cli.sites_demo import demo
from fedgrem.cli.sites_fit import fit, resume

if TYPE_CHECKING:
    from rich.table import Table

    from fedgrem.engines.flare.kit import Study

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Fit with sites on their own machines: the coordinator's commands. Begin with `fedgrem sites demo`.",
)

SOON = 30
"""Days before its end at which a certificate is pointed out."""


@app.command()
def init(
    folder: Annotated[Path, typer.Argument(metavar="STUDY", help="A new folder for the study.", show_default=False)],
    site: Annotated[
        list[str],
        typer.Option("--site", "-s", metavar="NAME", help="A site; say it once for each.", show_default=False),
    ],
    host: Annotated[
        str, typer.Option(metavar="HOST", help="Name by which the sites reach this machine.", show_default=False)
    ],
    port: Annotated[int, typer.Option(metavar="N", min=1, max=65535, help="The one port they reach it on.")] = 8002,
) -> None:
    """Make a study: certificates, one kit per site to hand out, and the coordinator's own.

    Kits are hardened: jobs may name one class of the installed fedgrem and bring no code, every answer of a site passes
    a guard, and no log leaves it. Hand each site its folder in STUDY/kits over a safe channel: it holds a private key.

    For example:

    * `fedgrem sites init study/ --site north --site south --site east --host coord.example.org`
    """
    from fedgrem.engines.flare.kit import init_study
    from fedgrem.engines.flare.simulator import check_flare

    check_flare()
    study = init_study(folder, site, host, port)
    typer.echo(f"Study with {len(study.sites)} sites in {folder}; the server will be {host}:{port}.")
    for name in study.sites:
        typer.echo(
            f"  hand {folder / 'kits' / name} to {name}; there: fedgrem site start {name}/ --data FILE --columns ..."
        )
    typer.echo(f"Keep {folder / 'authority'} to yourself: it can sign certificates. Then: fedgrem sites start {folder}")


@app.command()
def add(
    folder: StudyFolder, name: Annotated[str, typer.Argument(metavar="SITE", help="The new site.", show_default=False)]
) -> None:
    """Make a kit for one more site; the others keep theirs.

    For example:

    * `fedgrem sites add study/ west`
    """
    from fedgrem.engines.flare.kit import add_site

    study = add_site(_study(folder), name)
    typer.echo(f"Kit in {folder / 'kits' / name}; the study now has {len(study.sites)} sites.")


@app.command()
def renew(
    folder: StudyFolder,
    name: Annotated[str, typer.Argument(metavar="WHO", help="A site, `server` or `coordinator`.", show_default=False)],
) -> None:
    """Make a new certificate before the old one ends; `fedgrem sites status` says when that is.

    For example:

    * `fedgrem sites renew study/ north`, hand STUDY/kits/north/startup to the site, and restart it there
    """
    from fedgrem.engines.flare.kit import expiry, renew_kit

    kit = renew_kit(_study(folder), name)
    typer.echo(f"New certificate in {kit / 'startup'}, good until {expiry(kit):%Y-%m-%d}. Restart {name} with it.")


@app.command()
def remove(
    folder: StudyFolder, name: Annotated[str, typer.Argument(metavar="SITE", help="To take out.", show_default=False)]
) -> None:
    """Take a site out of the study: no job is sent to it, and a running server lets it in no more.

    For example:

    * `fedgrem sites remove study/ north`
    """
    from fedgrem.engines.flare.kit import remove_site
    from fedgrem.engines.flare.processes import process_of
    from fedgrem.engines.flare.session import session

    study = _study(folder)
    left = remove_site(study, name)
    if process_of(study.server) is not None:
        with session(study) as talk:
            talk.forbid(name)
        typer.echo(f"The server lets {name} in no more.")
    typer.echo(f"{name} is out of the study; the sites are {', '.join(left.sites)}.")


@app.command()
def start(
    folder: StudyFolder,
    foreground: Foreground = False,
) -> None:
    """Start the server of a study, in the background.

    For example:

    * `fedgrem sites start study/`
    """
    from fedgrem.cli.network import become, wait_for_server
    from fedgrem.engines.flare.kit import harden_server
    from fedgrem.engines.flare.processes import process_of, server_command, start_server

    study = _study(folder)
    running = process_of(study.server)
    if running is not None:
        typer.echo(f"The server runs already at {study.host}:{study.port} (process {running}).")
        return
    harden_server(study.server)  # its storage has absolute paths, and the study may have moved
    if foreground:
        become(server_command(study.server))
    pid = start_server(study.server)
    wait_for_server(study)
    typer.echo(f"The server runs at {study.host}:{study.port} (process {pid}). See: fedgrem sites status {folder}")


@app.command()
def status(folder: StudyFolder) -> None:
    """Show who is connected, when each site was last seen, its rows, and when its certificate ends.

    Rows are what a site said in the last fit it took part in: before that, it has told nobody.

    For example:

    * `fedgrem sites status study/`
    """
    from rich.console import Console

    Console(highlight=False).print(_status_table(_study(folder)))


@app.command()
def stop(folder: StudyFolder) -> None:
    """Stop the server of a study. A fit that runs can go on later: `fedgrem sites resume`.

    For example:

    * `fedgrem sites stop study/`
    """
    from fedgrem.engines.flare.processes import stop as stop_process

    ran = stop_process(_study(folder).server)
    typer.echo("The server is stopped." if ran else "The server was not running.")


app.command()(fit)
app.command()(resume)
app.command()(demo)


def _study(folder: Path) -> Study:
    from fedgrem.engines.flare.kit import read_study
    from fedgrem.engines.flare.simulator import check_flare

    check_flare()
    return read_study(folder)


def _status_table(study: Study) -> Table:
    from rich.table import Table

    from fedgrem.engines.flare.kit import expiry
    from fedgrem.engines.flare.operate import known_rows
    from fedgrem.engines.flare.processes import process_of
    from fedgrem.engines.flare.session import session

    pid, seen = process_of(study.server), {}
    if pid is not None:
        with session(study) as talk:
            seen = {site.name: site.last_seen for site in talk.connected()}
    state = f"running (process {pid})" if pid is not None else "stopped"
    table = Table(title=f"Server {study.host}:{study.port}: {state}", title_justify="left")
    for column in ("site", "connected", "last seen", "rows", "certificate until"):
        table.add_column(column)
    rows = known_rows(study)
    for name in study.sites:
        last = seen.get(name)
        when = "-" if last is None else f"{max(0.0, datetime.now(UTC).timestamp() - last):.0f} s ago"
        ends = expiry(study.kit(name)) if study.kit(name).exists() else None
        soon = ends is not None and (ends - datetime.now(UTC)).days < SOON
        until = "-" if ends is None else f"{ends:%Y-%m-%d}" + (" (renew soon)" if soon else "")
        table.add_row(name, "yes" if name in seen else "no", when, f"{rows[name]:g}" if name in rows else "-", until)
    return table
