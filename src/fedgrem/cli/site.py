"""``fedgrem site``: a site that takes part in a study, on its own machine."""

import json
import os
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer
from rich.console import Console

from fedgrem.cli.options import Foreground, group, listed
from fedgrem.cli.screen import boxed
from fedgrem.data.files import choose_columns, read_table
from fedgrem.errors import InputError

if TYPE_CHECKING:
    from fedgrem.engines.remote.site import Settings

app = group("Take part in a study with your own rows, which stay here: a site's commands.")

Kit: TypeAlias = Annotated[
    Path, typer.Argument(metavar="KIT", help="The folder that the coordinator gave you.", show_default=False)
]
Data: TypeAlias = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Your rows: CSV, TSV or Parquet.", show_default="as before")
]
Columns: TypeAlias = Annotated[
    str | None, typer.Option(metavar="A,B,...", help="Columns to use, in the agreed order.", show_default="as before")
]
Target: TypeAlias = Annotated[str | None, typer.Option(metavar="COLUMN", help="Column to explain, for a regression.")]
Weight: TypeAlias = Annotated[str | None, typer.Option(metavar="COLUMN", help="Column of row weights.")]
Floor: TypeAlias = Annotated[
    float,
    typer.Option(metavar="N", min=0.0, help="Do not answer while a component holds fewer of your rows than this."),
]


@app.command()
def check(
    kit: Kit,
    data: Data = None,
    columns: Columns = None,
    target: Target = None,
    weight: Weight = None,
    floor: Floor = 0.0,
    components: Annotated[int, typer.Option("--components", "-r", metavar="N", min=1, help="To try it with.")] = 2,
) -> None:
    """Show what would leave this site, number by number, before it joins. Nothing is sent.

    A default fit with --components is played through, one round of it, as if another site had the same rows. Every such
    fit sends these fields and no others; their size depends on columns and components, not on rows.

    For example:

    * `fedgrem site check kit/ --data patients.csv --columns age,bmi,sbp`
    """
    from fedgrem.engines.flare.kit import expiry, server_address
    from fedgrem.engines.remote.rehearsal import rehearse

    name, settings = _site(kit), _settings(kit, data, columns, target, weight, floor)
    console = Console(highlight=False)
    console.print(f"Site {name}; server {server_address(kit)}; certificate until {expiry(kit):%Y-%m-%d}.")
    messages = rehearse(name, settings, components)
    for message in messages:
        table = boxed(message.title, ("field", "shape", "numbers", "value"))
        for field, shape, value in message.fields:
            table.add_row(field, "x".join(map(str, shape)) or "1", str(prod(shape)), _shown(value))
        console.print(table)
    console.print(f"{len(messages)} kinds of message; the largest has {max(m.size for m in messages):,} bytes.")
    for message in messages:
        if message.refused:
            console.print(f"Would NOT leave, {message.title}: {message.refused}")


@app.command()
def start(
    kit: Kit,
    data: Data = None,
    columns: Columns = None,
    target: Target = None,
    weight: Weight = None,
    floor: Floor = 0.0,
    cap: Annotated[int, typer.Option(metavar="BYTES", min=1, help="Size of the largest message that may leave.")] = 2
    ** 20,
    table: Annotated[
        bool, typer.Option("--table", help="Columns may hold words, for fits of mixed columns (sites fit --table).")
    ] = False,
    foreground: Foreground = False,
) -> None:
    """Join the study and answer its fits, in the background, until stopped. The order of starting does not matter.

    For example:

    * `fedgrem site start kit/ --data patients.csv --columns age,bmi,sbp`

    * `fedgrem site start kit/ --data trial.parquet --columns dose,age --target response --floor 10`
    """
    from fedgrem.engines.flare.kit import server_address
    from fedgrem.engines.flare.processes import check_stopped, site_command, start_site
    from fedgrem.engines.remote.site import read_rows, write_settings

    name = _site(kit)
    check_stopped(kit, f"site {name!r}")  # before the settings of what runs are written over
    settings = _settings(kit, data, columns, target, weight, floor, words=table)._replace(cap=cap)
    rows = read_table(settings.data) if settings.words else read_rows(name, settings).sites[0].rows
    write_settings(settings, kit / "local")
    if foreground:
        command = site_command(kit, name)
        os.execv(command[0], command)
    pid = start_site(kit, name)
    typer.echo(
        f"Site {name} runs with {len(rows):,} rows of {len(settings.columns)} columns (process {pid}), and reaches for "
        f"{server_address(kit)}. What leaves: fedgrem site log {kit}"
    )


@app.command()
def log(
    kit: Kit,
    last: Annotated[int, typer.Option(metavar="N", min=0, help="Only the last N messages; 0 for all.")] = 20,
    full: Annotated[bool, typer.Option("--full", help="Every number of every message, one JSON line each.")] = False,
) -> None:
    """Print what has left this site. The guard writes the log before a message leaves, and only ever adds to it.

    For example:

    * `fedgrem site log kit/`

    * `fedgrem site log kit/ --full --last 0`
    """
    from fedgrem.engines.remote.guard import LOG, read_log

    _site(kit)
    lines = list(read_log(kit / LOG))
    shown = lines[-last:] if last else lines
    if full:
        for line in shown:
            typer.echo(json.dumps(line))
        return
    table = boxed("", ("time", "job", "exchange", "task", "bytes", "fields"))
    for line in shown:
        fields = ", ".join(line["sent"])
        table.add_row(line["time"], line["job"][:8], str(line["exchange"]), line["task"], str(line["bytes"]), fields)
    Console(highlight=False).print(table)
    typer.echo(f"{len(lines)} message(s) of {sum(line['bytes'] for line in lines):,} bytes have left this site.")


@app.command()
def stop(kit: Kit) -> None:
    """Leave the study: stop the site's processes.

    For example:

    * `fedgrem site stop kit/`
    """
    from fedgrem.engines.flare.processes import stop as stop_process

    name = _site(kit)
    typer.echo(f"Site {name} is stopped." if stop_process(kit) else f"Site {name} was not running.")


def _site(kit: Path) -> str:
    from fedgrem.engines.flare.kit import site_of
    from fedgrem.engines.flare.processes import check_flare, keep_bytecode

    check_flare()
    keep_bytecode()
    return site_of(kit)


def _settings(
    kit: Path,
    data: Path | None,
    columns: str | None,
    target: str | None,
    weight: str | None,
    floor: float,
    *,
    words: bool = False,
) -> "Settings":
    """From the options; without --data, those of the last start."""
    from fedgrem.engines.remote.site import Settings, read_settings

    if data is None:
        if columns or target or weight:
            raise InputError("--columns, --target and --weight say how to read --data; give it too.")
        kept = read_settings(kit / "local")
        return kept._replace(floor=floor) if floor else kept
    aside = [name for name in (target, weight) if name is not None]
    chosen = choose_columns(read_table(data), columns=listed(columns), aside=aside, words=words)
    return Settings(str(data.resolve()), tuple(chosen), target, weight, floor, words=words)


def _shown(value: Any) -> str:
    """The first few numbers."""
    import numpy as np

    if isinstance(value, list):
        return ", ".join(value)
    flat = np.ravel(value)
    text = ", ".join(f"{number:.4g}" for number in flat[:6])
    return text + (", ..." if flat.size > 6 else "")
