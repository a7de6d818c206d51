"""Progress of a fit on standard error, for those who asked for it."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import isfinite

from fedgrem.fit.conversation import Progress

STAGES = {
    "census": "every site reports its size and its columns",
    "starts": "every site looks for a start",
    "sizes": "every site reports its size",
    "joint starts": "sites improve joint starts",
    "exchange": "sites compare starts",
    "penalties": "sites try penalties on a part of their rows",
    "rounds": "rounds",
    "score": "every site says how well it fits",
    "look": "every site takes a last look from the center",
    "standard errors": "every site reports how well it knows its parameters",
}
"""What the stages of a fit are called where people read them."""


def in_rounds(progress: Progress) -> bool:
    """Whether a fit, or one of several that are compared, is in its rounds."""
    return progress.stage.rpartition(": ")[2] == "rounds"


def describe(progress: Progress) -> str:
    """One line about where a fit is.

    Examples
    --------
    >>> describe(Progress("5 components: rounds", 3, 1000, 0.01))
    '5 components: round 3, movement 1.0e-02'
    """
    head, colon, name = progress.stage.rpartition(": ")
    if in_rounds(progress):
        moved = f", movement {progress.movement:.1e}" if isfinite(progress.movement) else ""
        return f"{head}{colon}round {progress.round}{moved}"
    return f"{head}{colon}{STAGES.get(name, name)}"


@contextmanager
def teller(on_progress: Callable[[Progress], None] | None, verbose: int) -> Iterator[Callable[[Progress], None] | None]:
    """The callback that a fit reports to: the user's own, one that writes to standard error, both, or none."""
    if not verbose:
        yield on_progress
        return
    last, width = "", 0

    def tell(progress: Progress) -> None:
        nonlocal last, width
        if on_progress is not None:
            on_progress(progress)
        text = describe(progress)
        if text != last:
            sys.stderr.write(f"\r{text.ljust(width)}" if sys.stderr.isatty() else f"{text}\n")
            sys.stderr.flush()
            last, width = text, len(text)

    try:
        yield tell
    finally:
        if sys.stderr.isatty() and last:
            sys.stderr.write("\n")
