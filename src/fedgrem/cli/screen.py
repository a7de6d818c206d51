"""What the terminal shows while a command works: progress, notices and complaints. All of it on stderr."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import isfinite, log
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar
from rich.text import Text

if TYPE_CHECKING:
    from fedgrem.fit.conversation import Progress

SHOWN_WARNINGS = ("ConvergenceWarning", "SelectionWarning", "UnknownSiteWarning")


def complain(message: str) -> None:
    """One red line on stderr; brackets in it are text, not markup."""
    Console(stderr=True).print(Text(f"error: {' '.join(message.split())}", style="bold red"), soft_wrap=True)


def notice(message: str) -> None:
    """One yellow line on stderr."""
    Console(stderr=True).print(Text(f"note: {' '.join(message.split())}", style="yellow"), soft_wrap=True)


@contextmanager
def warnings_as_notices() -> Iterator[None]:
    """Show the package's warnings as notices, each once; those of the libraries below are not the user's business."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    for message in dict.fromkeys(str(w.message) for w in caught if w.category.__name__ in SHOWN_WARNINGS):
        notice(message)


@contextmanager
def progress_bar(
    task: str, tol: float, remark: "Callable[[], str]" = lambda: ""
) -> Iterator["Callable[[Progress], None]"]:
    """A live bar; yields the callback that a fit reports to. A remark is shown behind each round.

    The bar shows how far, on a log scale, the sites' movement has come down to the tolerance: nobody knows how many
    rounds that takes.
    """
    from fedgrem.estimators.progress import describe, in_rounds

    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(bar_width=24, complete_style="cyan", finished_style="green", pulse_style="cyan"),
        TextColumn("{task.fields[detail]}"),
        TimeElapsedColumn(),
    )
    with Bar(*columns, console=Console(stderr=True)) as bar:
        line = bar.add_task(task, total=None, detail="preparing")

        def tell(progress: "Progress") -> None:
            if in_rounds(progress):
                bar.update(line, total=1.0, completed=_share_done(progress, tol), detail=describe(progress) + remark())
            else:
                bar.update(line, detail=describe(progress))

        yield tell
        bar.update(line, total=1.0, completed=1.0)


def _share_done(progress: "Progress", tol: float) -> float:
    rounds = progress.round / progress.max_rounds
    if tol <= 0 or not isfinite(progress.movement):
        return rounds
    if progress.movement <= tol:
        return 1.0
    return max(rounds, min(1.0, log(max(1e-300, progress.movement)) / log(min(tol, 0.5))))
