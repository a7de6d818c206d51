"""A study is data: settings x methods x seeds. Nothing here runs anything."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

import numpy as np

from fedgrem.errors import InputError

METHODS = ("fedgrem", "local-em", "local-grem", "fedem", "fedgmm", "tgmm", "fedem-sa", "pooled-em", "pooled-grem")
"""Every system of the package, ours first."""
PENALTY = 2.0
"""C of every study, the paper's."""
OURS: dict[str, Any] = {"center": "huber", "penalty_rows": "site", "local_steps": 1, "memory": 0}
"""FedGrEM as the studies run it, see docs/studies.md: the paper's central problem, solved to tolerance, rows counted by
site, and one step a round."""


@dataclass(frozen=True)
class Method:
    """An algorithm with its options, under the name it has in tables."""

    name: str
    algorithm: str
    options: dict[str, Any] = field(default_factory=dict)
    penalty: float = PENALTY


@dataclass(frozen=True)
class Setting:
    """One simulation, or one way to use a data set; where it stands in a figure, and where its methods begin."""

    name: str
    model: Literal["gmm", "mor", "pen", "mnist", "fashion"]
    x: float
    """The place on the horizontal axis."""
    simulation: dict[str, Any] = field(default_factory=dict)
    """Arguments of :func:`~fedgrem.data.simulate.simulate` or :func:`~fedgrem.studies.splits.split_and_contaminate`."""
    panel: str = "h"
    """What varies along the axis."""
    start: Literal["shared", "paper", "poor"] = "shared"
    """See :mod:`fedgrem.studies.starts`."""
    rounds: int | None = None
    """Exactly so many rounds, settled or not; None plays until the sites settle."""
    covariance: str = "tied"
    """Of the components fitted to real data, see :mod:`fedgrem.families.covariance`."""
    embedding: str | None = None
    """How images are brought to few dimensions, see :mod:`fedgrem.studies.embeddings`; None fits rows as they are."""


@dataclass(frozen=True)
class Study:
    """A named set of cells: every method on every setting with every seed."""

    name: str
    title: str
    settings: tuple[Setting, ...]
    methods: tuple[Method, ...]
    seeds: tuple[int, ...]

    def cells(self) -> list[tuple[Setting, int]]:
        """One unit of work per setting and seed, seed by seed: an unfinished study covers every setting."""
        return [(setting, seed) for seed in self.seeds for setting in self.settings]

    def with_seeds(self, n: int) -> "Study":
        """The same study with the first n seeds."""
        return replace(self, seeds=_seeds(n))

    def with_methods(self, names: list[str]) -> "Study":
        """The same study with some of its methods, in its own order."""
        known = [method.name for method in self.methods]
        unknown = [name for name in names if name not in known]
        if unknown or not names:
            raise InputError(f"{', '.join(unknown) or 'nothing'} is no method of this study; choose from: {known}.")
        return replace(self, methods=tuple(method for method in self.methods if method.name in names))

    def with_covariance(self, covariance: str) -> "Study":
        """The same study on real data with another model of its components."""
        return replace(self, settings=tuple(replace(setting, covariance=covariance) for setting in self.settings))

    def with_embedding(self, embedding: str) -> "Study":
        """The same study on images that are embedded in another way."""
        return replace(self, settings=tuple(replace(setting, embedding=embedding) for setting in self.settings))

    def from_paper_starts(self) -> "Study":
        """The same study from the paper's kind of start, except where a setting asks for a poor one."""
        settings = (s if s.start == "poor" else replace(s, start="paper") for s in self.settings)
        return replace(self, title=f"{self.title} (the paper's starts)", settings=tuple(settings))


def methods_named(*names: str) -> tuple[Method, ...]:
    """The systems of these names, ours with the settings of the studies."""
    return tuple(Method(name, name, OURS if name == "fedgrem" else {}) for name in names)


def _grid(model: Literal["gmm", "mor"], last: float, step: float) -> tuple[Setting, ...]:
    values = np.arange(0.0, last + 0.01, step)
    return tuple(Setting(f"h={value:g}", model, float(value), {"h": float(value)}) for value in values)


def _seeds(n: int) -> tuple[int, ...]:
    return tuple(range(n))


def gmm(quick: bool = False) -> Study:
    """The GMM panel of the paper's simulation figure."""
    settings = _grid("gmm", 2.0, 0.5 if quick else 0.25)
    return Study("gmm", "Gaussian mixtures", settings, methods_named(*METHODS), _seeds(8 if quick else 100))


def mor(quick: bool = False) -> Study:
    """The regression panel of the paper's simulation figure."""
    settings = _grid("mor", 2.0, 1.0 if quick else 0.25)
    return Study("mor", "Mixtures of regressions", settings, methods_named(*METHODS), _seeds(4 if quick else 100))


def eta(quick: bool = False) -> Study:
    """The two tables over the step size, with the threshold fixed (the paper) and scaled with the step.

    A threshold in proportion to the step is a penalty in proportion to it.
    """
    sizes = (0.55, 0.95, 1.35) if quick else tuple(np.round(np.arange(0.55, 1.36, 0.1), 2))
    methods = tuple(
        Method(f"{scaling} {size:.2f}", "fedgrem", OURS | {"step_size": float(size)}, penalty)
        for scaling, penalties in (("fixed", [PENALTY] * len(sizes)), ("step", [PENALTY * float(c) for c in sizes]))
        for size, penalty in zip(sizes, penalties, strict=True)
    )
    settings = _grid("gmm", 1.75, 0.75 if quick else 0.25)
    return Study("eta", "FedGrEM and its step size", settings, methods, _seeds(8 if quick else 100))


def theory(quick: bool = False) -> Study:
    """The theorem's rates, one at a time: n, K, h, epsilon and d; and the decay of the error over the rounds T."""
    base: dict[str, Any] = {"h": 0.0, "n_sites": 10, "n_rows": 150, "n_outliers": 1}

    def vary(panel: str, values: tuple[float, ...], arguments: Callable[[float], dict[str, Any]]) -> list[Setting]:
        return [
            Setting(f"{panel}={value:g}", "gmm", float(value), base | arguments(value), panel)
            for value in (values[::2] if quick else values)
        ]

    settings = [
        *vary("n", (75, 150, 300, 600, 1200, 2400, 4800), lambda n: {"n_rows": int(n)}),
        *vary("K", (5, 10, 20, 40, 80), lambda k: {"n_sites": int(k), "n_outliers": 0}),
        *vary("h", (0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0), lambda h: {"h": h}),
        *vary("epsilon", (0.0, 0.1, 0.2, 0.3, 0.4), lambda e: {"n_outliers": round(10 * e)}),
        *vary("d", (10, 20, 40, 80), lambda d: {"n_features": int(d), "n_rows": 300}),
        *(
            Setting(f"T={t}", "gmm", float(t), base, "T", start="poor", rounds=t)
            for t in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64, 128)
        ),
    ]
    methods = methods_named("fedgrem", "local-em")
    return Study("theory", "The rates of the theorem", tuple(settings), methods, _seeds(4 if quick else 40))


def sizes(quick: bool = False) -> Study:
    """Past the paper: unequal sites (30 to 3000 rows), and 100 and 1000 sites."""
    unequal = np.geomspace(30, 3000, 10).round().astype(int).tolist()
    # The last site is the outlier: it is neither the smallest nor the largest.
    unequal = [*unequal[:5], *unequal[6:], unequal[5]]
    settings = (
        Setting("n_k = 30..3000", "gmm", 0.0, {"h": 0.5, "n_rows": unequal, "n_outliers": 1}, "unequal"),
        Setting("K = 100", "gmm", 100.0, {"h": 0.5, "n_sites": 100, "n_outliers": 10}, "K"),
        Setting("K = 1000", "gmm", 1000.0, {"h": 0.5, "n_sites": 1000, "n_outliers": 100}, "K"),
    )
    methods = methods_named("fedgrem", "local-em", "fedem", "pooled-em")
    title = "Unequal sites and many sites"
    return Study("sizes", title, settings[:2] if quick else settings, methods, _seeds(3 if quick else 20))


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
EMBEDDINGS = {"mnist": "umap", "fashion": "pca"}
"""Data set -> the embedding on which fits to different samples agree most, see ``benchmarks/embeddings.py``."""
WAYS = ("far", "permuted", "clump")
"""How a site is contaminated, see :func:`fedgrem.studies.splits.split_and_contaminate`; the paper does not say how."""


def _contaminated(
    model: Literal["pen", "mnist", "fashion"], counts: dict[float, int], quick: bool
) -> tuple[Setting, ...]:
    """Nobody, then so many sites in every way; the percentages are the paper's."""
    chosen = list(counts.items())[-1:] if quick else list(counts.items())
    embedding = EMBEDDINGS.get(model)
    settings = (
        Setting(f"{percent:g}% {way}", model, percent, {"contaminated": count, "way": way}, way, embedding=embedding)
        for way in WAYS
        for percent, count in chosen
    )
    return (Setting("0%", model, 0.0, {}, "none", embedding=embedding), *settings)


def pen(quick: bool = False) -> Study:
    """The paper's table on Pen digits: 44 writers, some of them contaminated."""
    settings = _contaminated("pen", {6.8: 3, 13.6: 6, 20.5: 9}, quick)
    return Study("pen", "Pen digits", settings, methods_named(*METHODS), _seeds(2 if quick else 200))


def pen_small(quick: bool = False) -> Study:
    """Past the paper: few rows per writer, where working together should help most."""
    settings = tuple(
        Setting(f"{n} rows", "pen", float(n), {"n_train": n}, "n_train")
        for n in ((60,) if quick else (40, 60, 100, 200))
    )
    methods = methods_named("fedgrem", "local-em")
    return Study("pen-small", "Pen digits, few rows per writer", settings, methods, _seeds(4 if quick else 200))


def mnist(quick: bool = False) -> Study:
    """The paper's table on MNIST: 70,000 embedded images over 100 random sites."""
    settings = _contaminated("mnist", {8.0: 8, 16.0: 16, 24.0: 24}, quick)
    return Study("mnist", "MNIST, embedded", settings, methods_named(*METHODS), _seeds(2 if quick else 200))


def fashion(quick: bool = False) -> Study:
    """The paper's table on Fashion-MNIST, likewise."""
    settings = _contaminated("fashion", {8.0: 8, 16.0: 16, 24.0: 24}, quick)
    return Study("fashion", "Fashion-MNIST, embedded", settings, methods_named(*METHODS), _seeds(2 if quick else 200))


STUDIES: dict[str, Callable[[bool], Study]] = {
    "gmm": gmm,
    "mor": mor,
    "eta": eta,
    "theory": theory,
    "sizes": sizes,
    "pen": pen,
    "pen-small": pen_small,
    "mnist": mnist,
    "fashion": fashion,
}
"""name -> study, full or quick."""
REAL = ("pen", "pen-small", "mnist", "fashion")
"""Studies on real data."""
