"""What the terminal shows: results on stdout; progress, notices and complaints on stderr."""

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from math import isfinite, log
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from fedgrem.fit.conversation import Progress

SHOWN_WARNINGS = ("ConvergenceWarning", "SelectionWarning", "UnknownSiteWarning")
STYLES = {
    r"(?m)\A.*$|^(Centers|Sites)$": "bold",
    r"(?m)^(typical weight .*|\.\.\. .*|Standard errors: .*)$": "dim",
    r"(?m)(?<=, )settled\.$": "green",
    r"(?m)(?<=, )(NOT settled|settled;).*$": "yellow",
    r"(?m)(?<=  )at the center(?=  )|^\d+ \*.*$": "green",
    r"(?<=  )(similar|own answer|not judged)(?=  )": "cyan",
    r"(?<=  )suspect(?=  )|[\d,]+ of [\d,]+ sites\s(is|are)\ssuspect:[\s\S]*?(?=\.\sOf\shonest)": "bold red",
}
"""What is stressed in a text, and how."""


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
def live_bar(task: str) -> Iterator[Callable[..., None]]:
    """A live line on stderr; yields the function that updates its ``total``, ``completed`` and ``detail``."""
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(bar_width=24, complete_style="cyan", finished_style="green", pulse_style="cyan"),
        TextColumn("{task.fields[detail]}"),
        TimeElapsedColumn(),
    )
    with Bar(*columns, console=Console(stderr=True)) as bar:
        yield partial(bar.update, bar.add_task(task, total=None, detail="preparing"))


@contextmanager
def progress_bar(
    task: str, tol: float, remark: Callable[[], str] = lambda: ""
) -> Iterator["Callable[[Progress], None]"]:
    """A live bar of a fit; yields the callback that a fit reports to. A remark is shown behind each round.

    The bar shows how far, on a log scale, the sites' movement has come down to the tolerance: nobody knows how many
    rounds that takes.
    """
    from fedgrem.estimators.progress import describe, in_rounds

    with live_bar(task) as update:

        def tell(progress: "Progress") -> None:
            if in_rounds(progress):
                update(total=1.0, completed=_share_done(progress, tol), detail=describe(progress) + remark())
            else:
                update(detail=describe(progress))

        yield tell
        update(total=1.0, completed=1.0)


def _share_done(progress: "Progress", tol: float) -> float:
    rounds = progress.round / progress.max_rounds
    if tol <= 0 or not isfinite(progress.movement):
        return rounds
    if progress.movement <= tol:
        return 1.0
    return max(rounds, min(1.0, log(max(1e-300, progress.movement)) / log(min(tol, 0.5))))


def plain_table(title: str, headers: Sequence[str], *, left: int = 1) -> Table:
    """A table without boxes; the first ``left`` columns are text, the others numbers."""
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for place, header in enumerate(headers):
        table.add_column(
            header, justify="left" if place < left else "right", no_wrap=place >= left, overflow="ellipsis"
        )
    return table


def boxed(title: str, headers: Sequence[str], *, left: Sequence[str] = ()) -> Table:
    """A table with lines whose long cells are folded; columns not among ``left`` are numbers, if any is named."""
    table = Table(title=title or None, title_justify="left")
    for header in headers:
        table.add_column(header, justify="right" if left and header not in left else "left", overflow="fold")
    return table


def print_model(model: Any, *, all_sites: bool = False, selection: bool = True) -> bool:
    """Print what a fit found, as wide as the terminal is; returns whether sites were left out."""
    from fedgrem.report.summary import MOST_SITES, selection_text, summarize, text_of

    summary = summarize(model)
    if selection and summary.selection is not None:
        print_text(selection_text(summary.selection) + "\n")
    most = len(summary.sites) if all_sites else MOST_SITES
    print_text(text_of(summary, Console().width, most))
    return len(summary.sites) > most


def print_text(text: str) -> None:
    """Print finished lines on stdout, coloured where the terminal has colours."""
    coloured = Text(text)
    for pattern, style in STYLES.items():
        coloured.highlight_regex(pattern, style)
    Console(highlight=False).print(coloured, soft_wrap=True)
