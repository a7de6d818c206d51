"""``fedgrem site``: a site that takes part in a study, on its own machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedgrem.cli.options import Foreground, listed
from fedgrem.errors import InputError

if TYPE_CHECKING:
    from rich.table import Table

    from fedgrem.engines.remote.site import Settings

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Take part in a study with your own rows, which stay here: a site's commands.",
)

Kit = Annotated[
    Path, typer.Argument(metavar="KIT", help="The folder that the coordinator gave you.", show_default=False)
]
Data = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Your rows: CSV, TSV or Parquet.", show_default="as before")
]
Columns = Annotated[
    str | None, typer.Option(metavar="A,B,...", help="Columns to use, in the agreed order.", show_default="as before")
]
Target = Annotated[str | None, typer.Option(metavar="COLUMN", help="Column to explain, for a regression.")]
Weight = Annotated[str | None, typer.Option(metavar="COLUMN", help="Column of row weights.")]
Floor = Annotated[
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
    from rich.console import Console

    from fedgrem.engines.remote.rehearsal import rehearse

    name, settings = _site(kit), _settings(kit, data, columns, target, weight, floor)
    console = Console(highlight=False)
    console.print(f"Site {name}; server {_address(kit)}; certificate until {_until(kit)}.")
    messages = rehearse(name, settings, components)
    for message in messages:
        console.print(_message_table(message.title, message.fields))
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
    foreground: Foreground = False,
) -> None:
    """Join the study and answer its fits, in the background, until stopped. The order of starting does not matter.

    For example:

    * `fedgrem site start kit/ --data patients.csv --columns age,bmi,sbp`

    * `fedgrem site start kit/ --data trial.parquet --columns dose,age --target response --floor 10`
    """
    from fedgrem.cli.network import become
    from fedgrem.engines.flare.processes import site_command, start_site
    from fedgrem.engines.remote.site import read_rows, write_settings

    name = _site(kit)
    settings = _settings(kit, data, columns, target, weight, floor)._replace(cap=cap)
    rows = read_rows(name, settings).sites[0].rows
    write_settings(settings, kit / "local")
    if foreground:
        become(site_command(kit, name))
    pid = start_site(kit, name)
    typer.echo(
        f"Site {name} runs with {len(rows):,} rows of {len(settings.columns)} columns (process {pid}), and reaches for "
        f"{_address(kit)}. What leaves: fedgrem site log {kit}"
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
    from rich.console import Console

    from fedgrem.engines.remote.guard import LOG, read_log

    _site(kit)
    lines = list(read_log(kit / LOG))
    shown = lines[-last:] if last else lines
    if full:
        for line in shown:
            typer.echo(json.dumps(line))
        return
    Console(highlight=False).print(_log_table(shown))
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
    from fedgrem.engines.flare.simulator import check_flare

    check_flare()
    return site_of(kit)


def _settings(
    kit: Path, data: Path | None, columns: str | None, target: str | None, weight: str | None, floor: float
) -> Settings:
    """From the options; without --data, those of the last start."""
    from fedgrem.data.files import choose_columns, read_table
    from fedgrem.engines.remote.site import Settings, read_settings

    if data is None:
        if columns or target or weight:
            raise InputError("--columns, --target and --weight say how to read --data; give it too.")
        kept = read_settings(kit / "local")
        return kept._replace(floor=floor) if floor else kept
    aside = [name for name in (target, weight) if name is not None]
    chosen = choose_columns(read_table(data), columns=listed(columns or ""), aside=aside)
    return Settings(str(data.resolve()), tuple(chosen), target, weight, floor)


def _address(kit: Path) -> str:
    from fedgrem.engines.flare.kit import server_address

    return server_address(kit)


def _until(kit: Path) -> str:
    from fedgrem.engines.flare.kit import expiry

    return f"{expiry(kit):%Y-%m-%d}"


def _message_table(title: str, fields: list[tuple[str, tuple[int, ...], Any]]) -> Table:
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    for column in ("field", "shape", "numbers", "value"):
        table.add_column(column, overflow="fold")
    for name, shape, value in fields:
        count = 1
        for n in shape:
            count *= n
        table.add_row(name, "x".join(map(str, shape)) or "1", str(count), _shown(value))
    return table


def _shown(value: Any) -> str:
    """The first few numbers."""
    import numpy as np

    if isinstance(value, list):
        return ", ".join(value)
    flat = np.ravel(value)
    text = ", ".join(f"{number:.4g}" for number in flat[:6])
    return text + (", ..." if flat.size > 6 else "")


def _log_table(lines: list[dict[str, Any]]) -> Table:
    from rich.table import Table

    table = Table()
    for column in ("time", "job", "exchange", "task", "bytes", "fields"):
        table.add_column(column, overflow="fold")
    for line in lines:
        fields = ", ".join(line["sent"])
        table.add_row(line["time"], line["job"][:8], str(line["exchange"]), line["task"], str(line["bytes"]), fields)
    return table
