"""What tables, sentences and figures of a study share: numbers over seeds, and the shapes in which they are told."""

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

NAMES = {
    "fedgrem": "FedGrEM",
    "local-em": "Local-EM",
    "local-grem": "Local-GrEM",
    "fedem": "FedEM",
    "fedgmm": "FedGMM",
    "tgmm": "TGMM",
    "fedem-sa": "FedEM-SA",
    "pooled-em": "Pooled-EM",
    "pooled-grem": "Pooled-GrEM",
}
"""As the papers write them."""
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
        spread = f" ({self.sd:.{digits}f})" if self.n > 1 else ""
        failed = f" [{self.failed} failed]" if self.failed else ""
        return (f"{self.mean:.{digits}f}{spread}" if self.n else "—") + failed


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


def name_of(method: str) -> str:
    """The name of a method as people write it."""
    return NAMES.get(method, method)


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
