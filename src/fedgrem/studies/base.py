"""A study is data, settings x methods x seeds; and what a page tells of its rows. Nothing here runs anything."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from fedgrem.errors import InputError
from fedgrem.report.text import name_of
from fedgrem.types import Array

if TYPE_CHECKING:
    from matplotlib.figure import Figure

METHODS = ("fedgrem", "local-em", "local-grem", "fedem", "fedgmm", "tgmm", "fedem-sa", "pooled-em", "pooled-grem")
"""Every system of the package, ours first."""
PENALTY = 2.0
"""C of every study, the paper's."""
OURS: dict[str, Any] = {"center": "huber", "penalty_rows": "site", "local_steps": 1, "memory": 0}
"""FedGrEM as the studies run it, see docs/studies.md: the paper's central problem, solved to tolerance, rows counted by
site, and one step a round."""
ERRORS = ("theta_error", "weight_error", "error")
"""What a row may say of a fit: two errors of a simulation, or mis-clustering on real data."""
SIMULATED = (
    "the paper's simulation: 10 sites, 150 rows each, 5 components in 10 dimensions and one outlier site, unless the "
    "setting says otherwise"
)
Row = dict[str, Any]


class Fits(NamedTuple):
    """How carefully the methods of a study on real data are run."""

    tolerance: float
    """Movement of the parameters in a round below which a fit has settled."""
    most_rounds: int
    n_init: int
    """Restarts at every site; the others tell it of what it misses."""
    short: int
    """EM iterations from each restart."""
    long: int
    """EM iterations from the best of them, and from every start that is compared."""
    restart_rows: int | None = None
    """About how many of a site's rows restarts look at; None is all."""


FITS = {
    "pen": Fits(1e-4, 200, 10, 20, 40),
    "mnist": Fits(1e-3, 100, 4, 10, 10),
    "fashion": Fits(5e-3, 100, 4, 10, 20, 280),
}
"""Data set -> fits. Images have six times the rows: there a replication must do with fewer passes over them."""


@dataclass(frozen=True)
class Method:
    """An algorithm with its options, under the name it has in tables."""

    name: str
    algorithm: str
    options: dict[str, Any] = field(default_factory=dict)
    penalty: float | None = PENALTY
    """C; None chooses it on held-out rows."""


def methods(*names: str) -> tuple[Method, ...]:
    """The systems of these names, ours with the settings of the studies."""
    return tuple(Method(name, name, OURS if name == "fedgrem" else {}) for name in names)


@dataclass(frozen=True)
class Setting:
    """One simulation, or one way to use a data set; where it stands in a figure, and where its methods begin."""

    name: str
    model: Literal["gmm", "mor", "pen", "mnist", "fashion"]
    x: float
    """The place on the horizontal axis."""
    simulation: dict[str, Any] = field(default_factory=dict)
    """Arguments of :func:`~fedgrem.data.simulate.simulate`, :func:`~fedgrem.studies.splits.split_and_contaminate` or,
    with an attack, :class:`~fedgrem.studies.under_attack.Scenario`."""
    panel: str = "h"
    """What varies along the axis."""
    start: Literal["shared", "paper", "poor", "own"] = "shared"
    """See :mod:`fedgrem.studies.starts`."""
    rounds: int | None = None
    """Exactly this number of rounds, settled or not; None plays until the sites settle."""
    covariance: str = "tied"
    """Of the components fitted to real data, see :mod:`fedgrem.families.covariance`."""
    embedding: str | None = None
    """How images are brought to few dimensions, see :mod:`fedgrem.studies.embeddings`; None fits rows as they are."""


def h_grid(model: Literal["gmm", "mor"], last: float, step: float) -> tuple[Setting, ...]:
    """The paper's simulation with h from 0 to ``last``."""
    values = np.arange(0.0, last + 0.01, step).tolist()
    return tuple(Setting(f"h={value:g}", model, value, {"h": value}) for value in values)


@dataclass(frozen=True)
class Study:
    """A named set of cells, every method on every setting with every seed, and the page that is made of its rows."""

    name: str
    title: str
    settings: tuple[Setting, ...]
    methods: tuple[Method, ...]
    n_seeds: int
    page: Callable[[Results], Page]

    @property
    def real(self) -> bool:
        """Whether rows are real ones, and not simulated."""
        return self.settings[0].model in FITS

    @property
    def seeds(self) -> range:
        """One for each replication."""
        return range(self.n_seeds)

    def cells(self) -> list[tuple[Setting, int]]:
        """One unit of work per setting and seed, seed by seed: an unfinished study covers every setting."""
        return [(setting, seed) for seed in self.seeds for setting in self.settings]

    def with_methods(self, names: list[str]) -> Study:
        """The same study with some of its methods, in its own order."""
        known = [method.name for method in self.methods]
        unknown = [name for name in names if name not in known]
        if unknown or not names:
            raise InputError(f"{', '.join(unknown) or 'nothing'} is no method of this study; choose from: {known}.")
        return replace(self, methods=tuple(method for method in self.methods if method.name in names))

    def with_settings(self, **changes: Any) -> Study:
        """The same study with this changed in every setting, such as the covariance or the embedding."""
        return replace(self, settings=tuple(replace(setting, **changes) for setting in self.settings))

    def from_paper_starts(self) -> Study:
        """The same study from the paper's kind of start, except where a setting asks for a poor one."""
        settings = (s if s.start == "poor" else replace(s, start="paper") for s in self.settings)
        return replace(self, title=f"{self.title} (the paper's starts)", settings=tuple(settings))


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


def stat(values: Iterable[float]) -> Stat:
    """Mean and standard deviation over the seeds that gave a finite number, and how many did not."""
    everything = np.asarray(list(values), dtype=float)
    array = everything[np.isfinite(everything)]
    failed = len(everything) - len(array)
    if not len(array):
        return Stat(float("nan"), float("nan"), 0, failed)
    sd = float(array.std(ddof=1)) if len(array) > 1 else float("nan")
    return Stat(float(array.mean()), sd, len(array), failed)


class Results:
    """The rows of a study, by setting and method."""

    def __init__(self, study: Study, rows: list[Row]) -> None:
        self.study, self.rows = study, rows
        self.names = [method.name for method in study.methods]
        self.settings = list(study.settings)
        self._found: dict[tuple[str, str], list[Row]] = defaultdict(list)
        for row in rows:
            self._found[row["setting"], row["method"]].append(row)

    def values(self, measure: str, settings: Setting | Sequence[Setting], method: str) -> list[float]:
        """What the seeds of one or more settings gave."""
        chosen = [settings] if isinstance(settings, Setting) else settings
        return [float(row[measure]) for s in chosen for row in self._found[s.name, method]]

    def stat(self, measure: str, settings: Setting | Sequence[Setting], method: str) -> Stat:
        """Mean and standard deviation of these."""
        return stat(self.values(measure, settings, method))

    def means(self, measure: str, method: str, settings: Sequence[Setting] | None = None) -> Array:
        """The mean of every setting; NaN where no seed gave a number."""
        chosen = self.settings if settings is None else settings
        return np.array([self.stat(measure, setting, method).mean for setting in chosen])

    def gap(self, measure: str, setting: Setting, method: str, rival: str) -> Stat:
        """The difference method - rival, seed by seed: both saw the same rows, so it varies less than either."""
        theirs = {row["seed"]: row[measure] for row in self._found[setting.name, rival]}
        ours = self._found[setting.name, method]
        return stat(row[measure] - theirs[row["seed"]] for row in ours if row["seed"] in theirs)

    def panel(self, panel: str) -> list[Setting]:
        """The settings of one panel."""
        return [setting for setting in self.settings if setting.panel == panel]


class Table(NamedTuple):
    """A table to be shown: text only. What stands below the first line of a cell is paler."""

    title: str
    headers: list[str]
    rows: list[list[str]]
    note: str = ""
    strong: frozenset[tuple[int, int]] = frozenset()
    """(row, column) of the cells to stress."""


class Verdict(NamedTuple):
    """A claim, and what the rows say to it."""

    claim: str
    holds: bool | None
    """None where the rows neither confirm nor contradict it."""
    finding: str


class Page(NamedTuple):
    """What a study tells of its rows."""

    draw: Callable[[], Figure]
    caption: str
    tables: list[Table]
    """The most telling first: that one is printed in the shell."""
    verdicts: list[Verdict]
    note: str = ""
    """Below the figure."""
    remark: str = ""
    """Above the tables."""
    facts: Mapping[str, str] = {"data": SIMULATED}
    """How it came about, beside what can be said of any study."""
    ways: Mapping[str, str] = {}
    """Way in which sites were contaminated -> what was done to them."""


def page_of(study: Study, rows: list[Row]) -> Page:
    """The page of a study, with a word on fits that gave no finite answer, which means leave out."""
    page = study.page(Results(study, rows))
    lost = [row for row in rows if not all(isfinite(row[name]) for name in ERRORS if name in row)]
    if not lost:
        return page
    listed = ", ".join(f"{name_of(name)} {n}" for name, n in Counter(row["method"] for row in lost).items())
    finding = f"{len(lost)} of {len(rows)} did not ({listed}); means and figures are over the others."
    return page._replace(verdicts=[*page.verdicts, Verdict("Every fit ends in finite numbers.", False, finding)])


def near_least(means: Array, factor: float = 1.0, slack: float = 0.0) -> Array:
    """Which methods (rows) are, at each setting (columns), as good as the best of them; NaN never is."""
    best = np.where(np.isnan(means), np.inf, means).min(axis=0)
    return np.asarray(means <= factor * best + slack)


def error_table(results: Results, measure: str, title: str, digits: int, *, down: bool = False) -> Table:
    """Mean (sd) of every method at every setting; the least of a setting, and all within 3%, are stressed.

    ``down``: settings go down and methods across, for many settings.
    """
    settings = [s for s in results.settings if s.panel != "T"]
    strong = near_least(np.array([results.means(measure, name, settings) for name in results.names]), factor=1.03)
    cells = [[results.stat(measure, s, name).text(digits) for s in settings] for name in results.names]
    across, below = [s.name for s in settings], [name_of(name) for name in results.names]
    if down:
        cells, strong = [list(line) for line in zip(*cells, strict=True)], strong.T
        across, below = below, across
    note = "Largest error over honest sites and components. Bold: the least of a setting, and all within 3% of it."
    body = [[name, *line] for name, line in zip(below, cells, strict=True)]
    return Table(title, ["setting" if down else "method", *across], body, note, stressed(strong))


def error_tables(results: Results, *, down: bool = False) -> list[Table]:
    """Both errors of a simulation."""
    return [
        error_table(results, "theta_error", "Error of θ: mean (sd) over seeds", 2, down=down),
        error_table(results, "weight_error", "Error of w: mean (sd) over seeds", 3, down=down),
    ]


def stressed(mask: Array) -> frozenset[tuple[int, int]]:
    """The cells to stress, right of a column of names."""
    return frozenset((int(i), int(j) + 1) for i, j in np.argwhere(mask))


def effort_table(results: Results, digits: int) -> Table:
    """What a fit of each method typically takes, over all settings: medians."""
    body = []
    for name in results.names:
        of = {what: results.values(what, results.settings, name) for what in ("seconds", "start_seconds", "rounds")}
        fit, start, rounds = (float(np.median(values)) for values in of.values())
        settled = results.stat("settled", results.settings, name).mean
        body.append([name_of(name), f"{fit:.{digits}f}", f"{start:.{digits}f}", f"{rounds:.0f}", f"{settled:.0%}"])
    note = "Medians over all settings and seeds, on one thread. Methods share one search for starts"
    note += "; pooled ones another." if any("pooled" in name for name in results.names) else "."
    return Table("Time and rounds per method", ["method", "fit, s", "shared start, s", "rounds", "settled"], body, note)
