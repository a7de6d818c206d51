"""What tables, sentences and figures of a study share: numbers over seeds, and the shapes in which they are told."""

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from fedgrem.report.names import name_of
from fedgrem.studies.specs import Study

Row = dict[str, Any]


class Stat(NamedTuple):
    """One number over the seeds."""

    mean: float
    sd: float
    n: int
    failed: int = 0
    """Seeds without a finite number, left out of the mean."""

    @property
    def se(self) -> float:
        """The standard error of the mean; NaN for a single seed."""
        return self.sd / float(np.sqrt(self.n)) if self.n > 1 else float("nan")

    def text(self, digits: int) -> str:
        """As the paper prints it: mean (sd); a single seed has no sd, and failures are counted."""
        deviation = f" ({self.sd:.{digits}f})" if self.n > 1 else ""
        failed = f" [{self.failed} failed]" if self.failed else ""
        return (f"{self.mean:.{digits}f}{deviation}" if self.n else "—") + failed


class Table(NamedTuple):
    """A table to be shown: text only."""

    title: str
    headers: list[str]
    rows: list[list[str]]
    note: str = ""
    strong: frozenset[tuple[int, int]] = frozenset()
    """(row, column) of the cells to stress."""


class Verdict(NamedTuple):
    """One claim of the paper, and what the rows say to it."""

    claim: str
    holds: bool | None
    """None where the rows neither confirm nor contradict it."""
    finding: str


def stat(values: Iterable[float]) -> Stat:
    """Mean and standard deviation over the seeds that gave a finite number, and how many did not."""
    everything = np.asarray(list(values), dtype=float)
    array = everything[np.isfinite(everything)]
    failed = len(everything) - len(array)
    if not len(array):
        return Stat(float("nan"), float("nan"), 0, failed)
    sd = float(array.std(ddof=1)) if len(array) > 1 else float("nan")
    return Stat(float(array.mean()), sd, len(array), failed)


def pick(rows: list[Row], column: str, **where: Any) -> list[float]:
    """The values of a column in the rows where other columns have these values."""
    return [float(row[column]) for row in rows if all(row[key] == value for key, value in where.items())]


def mean_of(rows: list[Row], column: str, **where: Any) -> float:
    """The mean of those that are finite; NaN if there are none."""
    return stat(pick(rows, column, **where)).mean


def paired(rows: list[Row], column: str, setting: str, method: str, rival: str) -> Stat:
    """The difference method - rival, seed by seed: both saw the same rows, so it varies less than either."""
    values = {
        name: {row["seed"]: row[column] for row in rows if (row["setting"], row["method"]) == (setting, name)}
        for name in (method, rival)
    }
    return stat(value - values[rival][seed] for seed, value in values[method].items() if seed in values[rival])


def effort_table(study: Study, rows: list[Row], digits: int) -> Table:
    """What a fit of each method typically takes, over all settings: medians."""

    def line(method: str) -> list[str]:
        fit, start, rounds = (
            np.median(pick(rows, name, method=method)) for name in ("seconds", "start_seconds", "rounds")
        )
        settled = mean_of(rows, "settled", method=method)
        return [name_of(method), f"{fit:.{digits}f}", f"{start:.{digits}f}", f"{rounds:.0f}", f"{settled:.0%}"]

    note = "Medians over all settings and seeds, on one thread. Methods share one search for starts"
    note += "; pooled ones another." if any("pooled" in m.name for m in study.methods) else "."
    headers = ["method", "fit, s", "shared start, s", "rounds", "settled"]
    return Table("Time and rounds per method", headers, [line(m.name) for m in study.methods], note)
