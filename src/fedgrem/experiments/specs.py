"""A study is data: settings x methods x seeds. Nothing here runs anything."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

METHODS = ("fedgrem", "local-em", "local-grem", "fedem", "fedgmm", "tgmm", "fedem-sa", "pooled-em", "pooled-grem")
"""Every system of the package, ours first."""


@dataclass(frozen=True)
class Method:
    """An algorithm with its options, under the name it has in tables."""

    name: str
    algorithm: str
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Setting:
    """One simulation: arguments of :func:`fedgrem.data.simulate.simulate`, and where it stands in a figure."""

    name: str
    model: str
    x: float
    """The place on the horizontal axis."""
    simulation: dict[str, Any] = field(default_factory=dict)
    panel: str = "h"
    """What varies along the axis."""


@dataclass(frozen=True)
class Study:
    """A named set of cells: every method on every setting with every seed."""

    name: str
    title: str
    settings: tuple[Setting, ...]
    methods: tuple[Method, ...]
    seeds: tuple[int, ...]
    trace: bool = False
    """Whether rows also keep the error after every round (FedGrEM's geometric decay)."""

    def cells(self) -> list[tuple[Setting, int]]:
        """One unit of work per setting and seed: all methods on the same data, from the same starts."""
        return [(setting, seed) for setting in self.settings for seed in self.seeds]


def _all_methods() -> tuple[Method, ...]:
    return tuple(Method(name, name) for name in METHODS)


def _grid(model: str, h: np.ndarray) -> tuple[Setting, ...]:
    return tuple(Setting(f"h={value:g}", model, float(value), {"h": float(value)}) for value in h)


def _seeds(n: int) -> tuple[int, ...]:
    return tuple(range(n))


def gmm(quick: bool = False) -> Study:
    """The GMM panel of the paper's simulation figure."""
    h = np.arange(0.0, 2.01, 1.0 if quick else 0.25)
    return Study(
        "gmm", "Gaussian mixtures: error against h", _grid("gmm", h), _all_methods(), _seeds(10 if quick else 100)
    )


def mor(quick: bool = False) -> Study:
    """The regression panel of the paper's simulation figure."""
    h = np.arange(0.0, 2.01, 1.0 if quick else 0.25)
    title = "Mixtures of regressions: error against h"
    return Study("mor", title, _grid("mor", h), _all_methods(), _seeds(4 if quick else 100))


def eta(quick: bool = False) -> Study:
    """The two tables over the step size, with the threshold fixed (the paper) and scaled with the step."""
    sizes = (0.55, 0.95, 1.35) if quick else tuple(np.round(np.arange(0.55, 1.36, 0.1), 2))
    methods = tuple(
        Method(f"{scaling} {size:g}", "fedgrem", {"step_size": float(size), "penalty_scaling": scaling})
        for scaling in ("fixed", "step")
        for size in sizes
    )
    h = np.arange(0.0, 1.76, 0.75 if quick else 0.25)
    title = "FedGrEM: error against the step size"
    return Study("eta", title, _grid("gmm", h), methods, _seeds(10 if quick else 100))


def theory(quick: bool = False) -> Study:
    """The theorem's rates, one at a time: n, K, h, epsilon and d; and sizes past the paper."""
    base: dict[str, Any] = {"h": 0.0, "n_sites": 10, "n_rows": 150, "n_outliers": 1}

    def vary(panel: str, values: tuple[float, ...], arguments: Callable[[float], dict[str, Any]]) -> list[Setting]:
        return [
            Setting(f"{panel}={value:g}", "gmm", float(value), base | arguments(value), panel)
            for value in (values[::2] if quick else values)
        ]

    settings = [
        *vary("n", (75, 150, 300, 600, 1200, 2400), lambda n: {"n_rows": int(n)}),
        *vary("K", (5, 10, 20, 40, 80), lambda k: {"n_sites": int(k), "n_outliers": max(1, int(k) // 10)}),
        *vary("h", (0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0), lambda h: {"h": h}),
        *vary("epsilon", (0.0, 0.1, 0.2, 0.3, 0.4), lambda e: {"n_outliers": round(10 * e)}),
        *vary("d", (10, 20, 40, 80), lambda d: {"n_features": int(d), "n_rows": 300}),
    ]
    methods = (Method("fedgrem", "fedgrem"), Method("local-em", "local-em"))
    return Study("theory", "The rates of the theorem", tuple(settings), methods, _seeds(4 if quick else 40), trace=True)


def sizes(quick: bool = False) -> Study:
    """Past the paper: unequal sites (30 to 3000 rows), and 100 and 1000 sites."""
    unequal = np.geomspace(30, 3000, 10).round().astype(int).tolist()
    settings = (
        Setting("n_k = 30..3000", "gmm", 0.0, {"h": 0.5, "n_rows": unequal, "n_outliers": 1}, "unequal"),
        Setting("K = 100", "gmm", 100.0, {"h": 0.5, "n_sites": 100, "n_outliers": 10}, "K"),
        Setting("K = 1000", "gmm", 1000.0, {"h": 0.5, "n_sites": 1000, "n_outliers": 100}, "K"),
    )
    names = ("fedgrem", "local-em", "fedem", "pooled-em")
    methods = tuple(Method(name, name) for name in names)
    title = "Unequal sites and many sites"
    return Study("sizes", title, settings[:2] if quick else settings, methods, _seeds(3 if quick else 20))


STUDIES: dict[str, Callable[[bool], Study]] = {"gmm": gmm, "mor": mor, "eta": eta, "theory": theory, "sizes": sizes}
"""name -> study, full or quick."""
