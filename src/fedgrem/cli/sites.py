"""``fedgrem sites``: a study over a network, from the coordinator's side."""

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fedgrem.cli.files import prepare_network
from fedgrem.cli.options import Foreground, StudyFolder, argument, examples, group, option
from fedgrem.cli.screen import boxed
from fedgrem.cli.sites_demo import demo
from fedgrem.cli.sites_fit import fit, open_study, resume

app = group("Fit with sites on their own machines: the coordinator's commands. Begin with `fedgrem sites demo`.")

SOON = 30
"""Days before its end at which a certificate is pointed out."""


@app.command()
@examples("fedgrem sites init study/ --site north --site south --site east --host coord.example.org")
def init(
    folder: Annotated[Path, argument("STUDY", "A new folder for the study.")],
    site: Annotated[list[str], option("NAME", "A site; say it once for each.", "--site", "-s", default=False)],
    host: Annotated[str, option("HOST", "Name by which the sites reach this machine.", default=False)],
    port: Annotated[int, option("N", "The one port they reach it on.", least=1, most=65535)] = 8002,
) -> None:
    """Make a study: certificates, one kit per site to hand out, and the coordinator's own.

    Kits are hardened: jobs may name one class of the installed fedgrem and bring no code, every answer of a site passes
    a guard, and no log leaves it. Hand each site its folder in STUDY/kits over a safe channel: it holds a private key.
    """
    from fedgrem.engines.flare.kit import init_study

    prepare_network()
    study = init_study(folder, site, host, port)
    typer.echo(f"Study with {len(study.sites)} sites in {folder}; the server will be {host}:{port}.")
    for name in study.sites:
        typer.echo(
            f"  hand {folder / 'kits' / name} to {name}; there: fedgrem site start {name}/ --data FILE --columns ..."
        )
    typer.echo("Once a site has its folder, delete its private key here: fedgrem sites handed STUDY SITE")
    typer.echo(f"Keep {folder / 'authority'} to yourself: it can sign certificates. Then: fedgrem sites start {folder}")


@app.command()
@examples("fedgrem sites add study/ west")
def add(folder: StudyFolder, name: Annotated[str, argument("SITE", "The new site.")]) -> None:
    """Make a kit for one more site; the others keep theirs."""
    from fedgrem.engines.flare.kit import add_site

    study = add_site(open_study(folder), name)
    typer.echo(f"Kit in {folder / 'kits' / name}; the study now has {len(study.sites)} sites.")


@app.command()
@examples("fedgrem sites handed study/ north")
def handed(folder: StudyFolder, name: Annotated[str, argument("SITE", "That has its kit.")]) -> None:
    """Delete a site's private key here, once the site has its kit: then nobody else can be that site."""
    from fedgrem.engines.flare.kit import hand_over

    hand_over(open_study(folder), name)
    typer.echo(f"The private key of {name} is at {name} only.")


@app.command()
@examples("`fedgrem sites renew study/ north`, hand STUDY/kits/north/startup to the site, and restart it there")
def renew(folder: StudyFolder, name: Annotated[str, argument("WHO", "A site, `server` or `coordinator`.")]) -> None:
    """Make a new certificate before the old one ends; `fedgrem sites status` says when that is."""
    from fedgrem.engines.flare.kit import renew_kit, validity

    kit = renew_kit(open_study(folder), name)
    typer.echo(f"New certificate in {kit / 'startup'}, good until {validity(kit)[1]:%Y-%m-%d}. Restart {name} with it.")


@app.command()
@examples("fedgrem sites remove study/ north")
def remove(folder: StudyFolder, name: Annotated[str, argument("SITE", "To take out.")]) -> None:
    """Take a site out of the study: no job is sent to it, and its certificate is refused from now on, for good."""
    from fedgrem.engines.flare.kit import remove_site
    from fedgrem.engines.flare.operate import session
    from fedgrem.engines.flare.processes import process_of

    study = open_study(folder)
    left = remove_site(study, name)
    if process_of(study.server) is not None:
        with session(study) as talk:
            talk.forbid(name)
        typer.echo(f"The server lets {name} in no more.")
    typer.echo(f"{name} is out of the study; the sites are {', '.join(left.sites)}.")


@app.command()
@examples("fedgrem sites start study/")
def start(folder: StudyFolder, foreground: Foreground = False) -> None:
    """Start the server of a study, in the background."""
    from fedgrem.engines.flare.kit import check_certificate, harden_server
    from fedgrem.engines.flare.operate import session
    from fedgrem.engines.flare.processes import (
        await_server,
        bound_replies,
        check_port,
        process_of,
        server_command,
        start_server,
    )

    study = open_study(folder)
    running = process_of(study.server)
    if running is not None:
        typer.echo(f"The server runs already at {study.host}:{study.port} (process {running}).")
        return
    check_certificate(study.server, "server")
    check_port(study.port)
    harden_server(study.server)  # its storage has absolute paths, and the study may have moved
    if foreground:
        bound_replies()
        command = server_command(study.server)
        os.execv(command[0], command)
    pid = start_server(study.server)
    await_server(study)
    with session(study):  # what answers there is this study's server, and lets the coordinator in
        pass
    typer.echo(f"The server runs at {study.host}:{study.port} (process {pid}). See: fedgrem sites status {folder}")


@app.command()
@examples("fedgrem sites status study/")
def status(folder: StudyFolder) -> None:
    """Show who is connected, when each site was last seen, its rows, and when its certificate ends.

    Rows are what a site said in the last fit it took part in: before that, it has told nobody.
    """
    from fedgrem.engines.flare.kit import validity
    from fedgrem.engines.flare.operate import known_rows, session
    from fedgrem.engines.flare.processes import process_of

    study, now = open_study(folder), datetime.now(UTC)
    pid, seen, rows = process_of(study.server), {}, known_rows(study)
    if pid is not None:
        with session(study) as talk:
            seen = talk.last_seen()
    state = f"running (process {pid})" if pid is not None else "stopped"
    headers = ("site", "connected", "last seen", "rows", "certificate until")
    table = boxed(f"Server {study.host}:{study.port}: {state}", headers)
    for name in study.sites:
        when = f"{max(0.0, now.timestamp() - seen[name]):.0f} s ago" if name in seen else "-"
        until = "-"
        if study.kit(name).exists():
            ends = validity(study.kit(name))[1]
            until = f"{ends:%Y-%m-%d}" + " (renew soon)" * ((ends - now).days < SOON)
        table.add_row(name, "yes" if name in seen else "no", when, f"{rows[name]:g}" if name in rows else "-", until)
    Console(highlight=False).print(table)


@app.command()
@examples("fedgrem sites stop study/")
def stop(folder: StudyFolder) -> None:
    """Stop the server of a study. A fit that runs can go on later: `fedgrem sites resume`."""
    from fedgrem.engines.flare.processes import stop as stop_process

    ran = stop_process(open_study(folder).server)
    typer.echo("The server is stopped." if ran else "The server was not running.")


app.command()(fit)
app.command()(resume)
app.command()(demo)
