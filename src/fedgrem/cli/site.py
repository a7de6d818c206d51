"""``fedgrem site``: a site that takes part in a study, on its own machine."""

import json
import os
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer
from rich.console import Console

from fedgrem.cli.files import prepare_network
from fedgrem.cli.options import Foreground, argument, examples, group, listed, option, with_options
from fedgrem.cli.screen import boxed, notice
from fedgrem.data.files import choose_columns, read_table
from fedgrem.errors import InputError

if TYPE_CHECKING:
    from fedgrem.engines.remote.site import Settings

app = group("Take part in a study with your own rows, which stay here: a site's commands.")

Kit: TypeAlias = Annotated[Path, argument("KIT", "The folder that the coordinator gave you.")]


@dataclass(frozen=True)
class RowOptions:
    """Which rows a site takes part with, and how little it says of them."""

    data: Annotated[Path | None, option("FILE", "Your rows: CSV, TSV or Parquet.", default="as before")] = None
    columns: Annotated[str | None, option("A,B,...", "Columns to use, in the agreed order.", default="as before")] = (
        None
    )
    target: Annotated[str | None, option("COLUMN", "Column to explain, for a regression.")] = None
    weight: Annotated[str | None, option("COLUMN", "Column of row weights.")] = None
    floor: Annotated[
        float | None,
        option("N", "Say nothing about fewer of your rows than this.", least=1.0, default="10, or as before"),
    ] = None
    epsilon: Annotated[
        float | None,
        option("E", "Answer private fits only, each within this budget; 1 is strict.", default="none"),
    ] = None
    delta: Annotated[float | None, option("D", "That goes with --epsilon.", default="1e-6, or as before")] = None


@app.command()
@with_options
@examples("fedgrem site check kit/ --data patients.csv --columns age,bmi,sbp")
def check(
    kit: Kit,
    rows: RowOptions,
    components: Annotated[int, option("N", "To try it with.", "--components", "-r", least=1)] = 2,
) -> None:
    """Show what would leave this site, number by number, before it joins. Nothing is sent.

    A default fit with --components is played through, one round of it, as if another site had the same rows. Every such
    fit sends these fields and no others; their size depends on columns and components, not on rows.
    """
    from fedgrem.engines.flare.kit import server_address, validity
    from fedgrem.engines.remote.rehearsal import rehearse

    name, settings = _site(kit), _settings(kit, rows)
    settings = _with_budget(settings, kit, rows, None)._replace(ledger=None)  # nothing is spent
    console = Console(highlight=False)
    console.print(f"Site {name}; server {server_address(kit)}; certificate until {validity(kit)[1]:%Y-%m-%d}.")
    messages, refused = rehearse(name, settings, components)
    for message in messages:
        table = boxed(message.title, ("field", "shape", "numbers", "value"))
        for field, shape, value in message.fields:
            table.add_row(field, "x".join(map(str, shape)) or "1", str(prod(shape)), _shown(value))
        console.print(table)
    if messages:
        console.print(f"{len(messages)} kinds of message; the largest has {max(m.size for m in messages):,} bytes.")
    for message in messages:
        if message.held_back:
            those = ", ".join(str(number + 1) for number in message.held_back)
            console.print(f"Nothing is said of component {those} (fewer rows than the floor), {message.title}")
    if refused:
        console.print(f"Would NOT be answered: {refused}")


@app.command()
@with_options
@examples(
    "fedgrem site start kit/ --data patients.csv --columns age,bmi,sbp",
    "fedgrem site start kit/ --data trial.parquet --columns dose,age --target response --floor 20",
    "fedgrem site start kit/ --data patients.csv --columns age,bmi,sbp --epsilon 4 --delta 1e-6 --total-epsilon 8",
)
def start(
    kit: Kit,
    rows: RowOptions,
    cap: Annotated[int, option("BYTES", "Size of the largest message that may leave.", least=1)] = 2**20,
    fits_per_day: Annotated[
        int | None, option("N", "Fits to answer in a day.", least=1, default="30, or as before")
    ] = None,
    total_epsilon: Annotated[
        float | None, option("E", "Budget of all fits ever.", default="--epsilon, or as before")
    ] = None,
    least_sites: Annotated[
        int | None,
        option("N", "With secure sums, answer sums over at least N sites.", least=3, default="3, or as before"),
    ] = None,
    neighbours: Annotated[
        bool,
        option(None, "Take part in fits without a server: linked sites see what yours adds to sums.", "--neighbours"),
    ] = False,
    accept_changes: Annotated[
        bool, option(None, "Answer although few rows have changed since the last fit.", "--accept-changes")
    ] = False,
    table: Annotated[
        bool, option(None, "Columns may hold words: mixed columns, or a regression's.", "--table")
    ] = False,
    foreground: Foreground = False,
) -> None:
    """Join the study and answer its fits, in the background, until stopped. The order of starting does not matter.

    Nothing is said of a component of fewer than 10 rows, or of fewer than --floor; docs/privacy-officer.md says what
    else the site does not answer. With --epsilon, whatever leaves is differentially private (docs/privacy.md), and a
    fit is answered as long as the budgets of all fits together stay within --total-epsilon.
    """
    from fedgrem.engines.flare.kit import check_certificate, server_address
    from fedgrem.engines.flare.processes import check_stopped, site_command, start_site
    from fedgrem.engines.remote.log import LOG, Log
    from fedgrem.engines.remote.site import DEFAULT_FLOOR, read_rows, write_settings

    name = _site(kit)
    check_certificate(kit, name)
    if not (kit / "startup" / "client.key").exists():
        raise InputError(f"{kit} has no private key: it was handed over, and the site's own copy is the one to start.")
    check_stopped(kit, f"site {name!r}")  # before the settings of what runs are written over
    settings = _with_budget(_settings(kit, rows, words=table), kit, rows, total_epsilon)
    settings = settings._replace(
        cap=cap,
        fits_per_day=fits_per_day or settings.fits_per_day,
        least_sites=least_sites or settings.least_sites,
        neighbours=neighbours,
    )
    held = read_table(settings.data) if settings.words else read_rows(name, settings).sites[0].rows
    write_settings(settings, kit / "local")
    if settings.floor < DEFAULT_FLOOR:
        notice(f"the floor is {settings.floor:g}: parameters may tell of as few as that many of your rows.")
    if accept_changes:
        Log(kit / LOG).append("accepted", why="the site's own word that its rows may differ from those of earlier fits")
    if foreground:
        command = site_command(kit, name)
        os.execv(command[0], command)
    pid = start_site(kit, name)
    typer.echo(
        f"Site {name} runs with {len(held):,} rows of {len(settings.columns)} columns (process {pid}), and reaches for "
        f"{server_address(kit)}. What leaves: fedgrem site log {kit}"
    )


@app.command()
@examples("fedgrem site log kit/", "fedgrem site log kit/ --full --last 1")
def log(
    kit: Kit,
    last: Annotated[int, option("N", "Only the last N fits; 0 for all.", least=0)] = 3,
    full: Annotated[bool, option(None, "Every number that came or left, one JSON line each.", "--full")] = False,
) -> None:
    """Print what was asked of this site, what left it and what it refused, and whether this log is whole.

    The guard writes every record before anything happens, and binds it to the one before by a hash: a record that was
    changed or taken out shows. Keep the hash that is printed last, and a cut at the end shows as well.
    """
    from fedgrem.engines.remote.account import pages
    from fedgrem.engines.remote.log import LOG, check_log, read_log

    _site(kit)
    records = list(read_log(kit / LOG))
    found = pages(records)
    shown = found[-last:] if last else found
    console = Console(highlight=False, soft_wrap=True)
    if full:
        runs = {page.run for page in shown}
        for record in records:
            if record.get("run") in runs:
                typer.echo(json.dumps(record))
    for page in [] if full else shown:
        console.print(f"Fit {page.run}, begun {page.begun}: {page.about}.", markup=False)
        last_column = "masked numbers" if page.keys else "with components left out"
        table = boxed("", ("asked for", "times", "answered", "numbers that left", last_column))
        for line in page.lines:
            last_count = line.masked if page.keys else line.held_back
            counts = (str(line.asked), str(line.answered), f"{line.numbers:,}", f"{last_count:,}")
            table.add_row(line.title, *counts)
        console.print(table)
        if page.keys:
            console.print(
                f"  {page.masked:,} masked numbers have left, which open in sums over sites only. The keys are "
                f"{page.keys}: the same at all sites, or the center has put in its own."
            )
        if page.far:
            console.print(
                f"  {page.far} order(s) were about parameters far from these rows: what was sent was sent back. Where "
                "all sites must have one answer, a site unlike the others is asked that; else ask the coordinator why."
            )
        for refusal in page.refusals:
            console.print(f"  refused {refusal}", markup=False)
        console.print(f"  {page.numbers:,} numbers have left in this fit.\n")
    _tell_budget(kit)
    checked = check_log(kit / LOG)
    numbers = sum(page.numbers for page in found)
    typer.echo(f"{len(found)} fit(s), {numbers:,} numbers that left, {checked.records} records.")
    if checked.torn:
        typer.echo(
            f"Line {', '.join(map(str, checked.torn))} was torn as the machine went down; nothing else is missing."
        )
    if checked.broken:
        raise InputError(f"{kit / LOG} is NOT whole: {checked.broken}.")
    typer.echo(f"The log is whole; it ends with {checked.last[:16] or 'nothing'}.")


@app.command()
@examples("fedgrem site stop kit/")
def stop(kit: Kit) -> None:
    """Leave the study: stop the site's processes."""
    from fedgrem.engines.flare.processes import stop as stop_process

    name = _site(kit)
    typer.echo(f"Site {name} is stopped." if stop_process(kit) else f"Site {name} was not running.")


def _site(kit: Path) -> str:
    from fedgrem.engines.flare.kit import site_of

    prepare_network()
    return site_of(kit)


def _settings(kit: Path, rows: RowOptions, *, words: bool = False) -> "Settings":
    """From the options; without --data, those of the last start."""
    from fedgrem.engines.remote.site import DEFAULT_FLOOR, Settings, read_settings

    target, weight, floor = rows.target, rows.weight, rows.floor
    if rows.data is None:
        if rows.columns or target or weight:
            raise InputError("--columns, --target and --weight say how to read --data; give it too.")
        kept = read_settings(kit / "local")
        return kept if floor is None else kept._replace(floor=floor)
    aside = [name for name in (target, weight) if name is not None]
    chosen = choose_columns(read_table(rows.data), columns=listed(rows.columns), aside=aside, words=words)
    floor = DEFAULT_FLOOR if floor is None else floor
    return Settings(str(rows.data.resolve()), tuple(chosen), target, weight, floor, words=words)


def _with_budget(settings: "Settings", kit: Path, rows: RowOptions, total: float | None) -> "Settings":
    """With the budget that was given, or that of the last start."""
    from fedgrem.engines.remote.ledger import LEDGER
    from fedgrem.engines.remote.site import SETTINGS, read_settings
    from fedgrem.estimators.privacy import check_budget

    before = read_settings(kit / "local") if (kit / "local" / SETTINGS).exists() else settings
    settings = settings._replace(
        epsilon=before.epsilon if rows.epsilon is None else rows.epsilon,
        delta=before.delta if rows.delta is None else rows.delta,
        total_epsilon=before.total_epsilon if total is None else total,
        ledger=before.ledger,
    )
    if settings.epsilon is None:
        if rows.delta is not None or total is not None:
            raise InputError("--delta and --total-epsilon go with --epsilon; give it too.")
        return settings
    check_budget(settings.epsilon, settings.delta)
    if settings.total_epsilon is not None and settings.total_epsilon < settings.epsilon:
        raise InputError(f"--total-epsilon {settings.total_epsilon:g} is less than one fit, {settings.epsilon:g}.")
    return settings._replace(ledger=settings.ledger or str((kit / "local" / LEDGER).resolve()))


def _tell_budget(kit: Path) -> None:
    """What was spent of the privacy budget, where there is one."""
    from fedgrem.engines.remote.ledger import spent
    from fedgrem.engines.remote.site import SETTINGS, read_settings

    if not (kit / "local" / SETTINGS).exists():
        return
    settings = read_settings(kit / "local")
    if settings.epsilon is not None and settings.ledger is not None:
        so_far, total = spent(Path(settings.ledger), settings.delta), settings.total_epsilon or settings.epsilon
        typer.echo(
            f"Privacy budget: {so_far.fits} fit(s) have spent epsilon {so_far.epsilon:.4g} of {total:g} (delta "
            f"{settings.delta:g}); a fit costs {settings.epsilon:g}."
        )


def _shown(value: Any) -> str:
    """The first few numbers."""
    import numpy as np

    if isinstance(value, list):
        return ", ".join(value)
    flat = np.ravel(value)
    text = ", ".join(f"{number:.4g}" for number in flat[:6])
    return text + (", ..." if flat.size > 6 else "")
