"""Past the paper, ``sizes``: unequal sites (30 to 3000 rows), and 100 and 1000 sites."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from fedgrem.plots.axes import new_figure, tidy
from fedgrem.report.text import name_of
from fedgrem.studies.base import Page, Results, Setting, Study, Verdict, effort_table, error_tables, methods
from fedgrem.studies.drawing import STYLES, legend

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CLOSE = 0.03
"""Within this share of the best counts as best."""


def sizes(quick: bool = False) -> Study:
    """Sites of very different size, and very many of them."""
    unequal = np.geomspace(30, 3000, 10).round().astype(int).tolist()
    # The last site is the outlier: it is neither the smallest nor the largest.
    unequal = [*unequal[:5], *unequal[6:], unequal[5]]
    settings = (
        Setting("n_k = 30..3000", "gmm", 0.0, {"h": 0.5, "n_rows": unequal, "n_outliers": 1}, "unequal"),
        Setting("K = 100", "gmm", 100.0, {"h": 0.5, "n_sites": 100, "n_outliers": 10}, "K"),
        Setting("K = 1000", "gmm", 1000.0, {"h": 0.5, "n_sites": 1000, "n_outliers": 100}, "K"),
    )[: 2 if quick else 3]
    chosen = methods("fedgrem", "local-em", "fedem", "pooled-em")
    return Study("sizes", "Unequal sites and many sites", settings, chosen, 3 if quick else 20, page)


def page(results: Results) -> Page:
    """Errors, seed by seed."""
    tables = [*error_tables(results, down=True), effort_table(results, 3)]
    caption = "Error of θ where sites are unequal, and where they are many."
    return Page(partial(_figure, results), caption, tables, [*_verdicts(results)] if "fedgrem" in results.names else [])


def _verdicts(results: Results) -> list[Verdict]:
    found = []
    for setting in results.settings:
        means = {name: results.stat("theta_error", setting, name).mean for name in results.names}
        finding = ", ".join(f"{name_of(name)} {value:.2f}" for name, value in means.items())
        best = means["fedgrem"] <= (1 + CLOSE) * min(means.values())
        found.append(Verdict(f"FedGrEM has the least θ error at {setting.name}.", best, f"{finding}."))
    return found


def _figure(results: Results) -> Figure:
    figure = new_figure((9.0, 1.6 + 0.9 * len(results.settings)), dpi=160)
    ax = figure.subplots()
    n_methods = len(results.names)
    for place, setting in enumerate(results.settings):
        for j, name in enumerate(results.names):
            values = results.values("theta_error", setting, name)
            color, marker, _ = STYLES[name]
            height = place + (j - (n_methods - 1) / 2) * 0.8 / n_methods
            ax.plot(values, np.full(len(values), height), linestyle="none", marker=".", color=color, alpha=0.35)
            ax.plot(np.mean(values), height, linestyle="none", marker=marker, color=color, markersize=8,
                    label=name_of(name) if place == 0 else None)  # fmt: skip
    ax.set_yticks(range(len(results.settings)), [s.name for s in results.settings])
    ax.invert_yaxis()
    ax.set_xlim(left=0.0)
    ax.set_xlabel(r"error of $\theta$: mean (large mark) and every seed (dots)")
    tidy(ax, grid="x")
    legend(figure, ax, results.names)
    return figure
