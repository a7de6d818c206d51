"""How the figures of studies look, whatever they show."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from fedgrem.report.text import name_of
from fedgrem.studies.base import Stat

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

STYLES: dict[str, tuple[str, str, Any]] = {
    "fedgrem": ("#D55E00", "o", "-"),
    "local-em": ("#000000", "s", "-"),
    "local-grem": ("#B5B5B5", "x", (0, (4, 2))),
    "fedem": ("#0072B2", "^", "-"),
    "fedgmm": ("#56B4E9", "v", (0, (4, 2))),
    "tgmm": ("#009E73", "D", "-"),
    "fedem-sa": ("#CC79A7", "P", (0, (4, 2))),
    "pooled-em": ("#8C5A10", "<", "-"),
    "pooled-grem": ("#E69F00", "|", (0, (4, 2))),
}
"""Method -> colour (after Okabe and Ito), marker, dashes. A dashed line lets a solid one show through."""


def legend(figure: Figure, ax: Axes, methods: list[str], *others: str) -> None:
    """Below the figure, in the order of the study; ``others`` are the labels of lines that are no method of it."""
    handles, labels = ax.get_legend_handles_labels()
    found = dict(zip(labels, handles, strict=True))
    names = [name for name in (*(name_of(method) for method in methods), *others) if name in found]
    columns = len(names) if len(names) <= 5 else -(-len(names) // 2)
    figure.legend([found[name] for name in names], names, loc="outside lower center", ncols=columns, frameon=False,
                  fontsize=10, handlelength=3.2, columnspacing=2.0)  # fmt: skip


def method_line(ax: Axes, x: Any, found: list[Stat], method: str) -> None:
    """Means of one method; ours with a band of two standard errors either side."""
    middle, error = np.array([one.mean for one in found]), np.nan_to_num([one.se for one in found])
    color, marker, dashes = STYLES[method]
    ours = method == "fedgrem"
    if ours:  # one band: nine on top of each other say nothing
        ax.fill_between(x, middle - 2 * error, middle + 2 * error, color=color, alpha=0.15, linewidth=0)
    ax.plot(
        x, middle, color=color, linestyle=dashes, marker=marker, label=name_of(method),
        zorder=5 if ours else 3 if dashes == "-" else 4,
        linewidth=2.6 if ours else 1.5, markersize=6.5 if ours else 5, markeredgewidth=1.4 if marker in "x|" else 0.8,
    )  # fmt: skip


def log_x(ax: Axes, x: Any) -> None:
    """A logarithmic horizontal axis with the measured places."""
    from matplotlib.ticker import NullLocator

    ax.set_xscale("log")
    ax.set_xticks(x, [f"{value:g}" for value in x])
    ax.xaxis.set_minor_locator(NullLocator())


def log_y(ax: Axes, *digits: float) -> None:
    """A logarithmic vertical axis with 1, 2, 5 and the like instead of powers."""
    from matplotlib.ticker import LogLocator, NullLocator

    ax.set_yscale("log")
    ax.yaxis.set_major_locator(LogLocator(subs=digits or (1.0, 2.0, 5.0)))
    ax.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    ax.yaxis.set_minor_locator(NullLocator())
