"""``fedgrem replay``: a fit over a network, from its journal alone."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.table import Table

    from fedgrem.engines.remote.replay import Exchange
    from fedgrem.types import FitResult


def replay(
    journal: Annotated[
        Path, typer.Argument(metavar="JOURNAL", help="The file `journal` in STUDY/server/runs/RUN.", show_default=False)
    ],
    last: Annotated[int, typer.Option(metavar="N", min=0, help="Only the last N exchanges; 0 for all.")] = 0,
) -> None:
    """Show what was asked and answered in a fit over a network, and compute its model again from that. Nothing is sent.

    The journal holds every answer that was used, in order. Whoever has it can check that the model follows from these
    answers, and that no other question was asked.

    For example:

    * `fedgrem replay study/server/runs/run-20260101-120000-000/journal`
    """
    from rich.console import Console

    from fedgrem.engines.remote.replay import replay as play

    played = play(journal)
    Console(highlight=False).print(_table(played.exchanges[-last:]))
    if played.differs:
        typer.echo(f"Asked with other numbers than this fedgrem finds here: exchange {played.differs[0]} and others.")
    else:
        typer.echo(f"All {len(played.exchanges)} exchanges are asked again with the same numbers, to the bit.")
    if played.finished is None:
        typer.echo("The fit was not finished; go on with: fedgrem sites resume STUDY")
        return
    result = played.finished.result
    typer.echo(
        f"The model: {result.weights.shape[1]} components over {len(result.site_names)} sites, {result.n_rounds} "
        f"rounds, {'settled' if result.converged else 'not settled'}. {_compared(journal, result)}"
    )


def _compared(journal: Path, result: FitResult) -> str:
    import numpy as np

    from fedgrem.engines.remote.result import RESULT, read_result

    if not (journal.parent / RESULT).exists():
        return "There is no result beside the journal to compare it with."
    stored = read_result(journal.parent).result
    same = np.array_equal(stored.theta, result.theta) and np.array_equal(stored.weights, result.weights)
    return "It is the result beside the journal" + (", to the bit." if same else ": NO, they differ.")


def _table(exchanges: list[Exchange]) -> Table:
    from rich.table import Table

    table = Table()
    for column in ("exchange", "task", "answered", "numbers", "bytes out", "bytes in", "seconds"):
        table.add_column(column, justify="left" if column in ("task", "answered") else "right", overflow="fold")
    most = max(len(one.sites) for one in exchanges)
    for one in exchanges:
        sites = f"all {most}" if len(one.sites) == most else ", ".join(one.sites)
        numbers = (str(one.numbers), f"{one.sent:,}", f"{one.received:,}", f"{one.seconds:.3f}")
        table.add_row(str(one.number), one.task, sites, *numbers)
    return table
