"""Figures of the studies on real data: mis-clustering by contaminated sites, and by rows per site."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from fedgrem.studies.pages.drawing import STYLES, legend, method_line, new_figure, tidy
from fedgrem.studies.pages.real_tables import WAYS, mean_errors, settings_of, told, ways_of
from fedgrem.studies.pages.stats import Row, paired, pick, stat
from fedgrem.studies.specs import Setting, Study

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDE = 3.0
"""Largest over least mean error beyond which the axis is logarithmic."""
IN_PAPER = "FedGrEM in the paper"


def real_figure(study: Study, rows: list[Row]) -> Figure:
    """The one figure of such a study."""
    return _few_rows(study, rows) if study.name == "pen-small" else _contamination(study, rows)


def _contamination(study: Study, rows: list[Row]) -> Figure:
    ways = ways_of(study)
    figure = new_figure((max(7.0, 4.0 * len(ways)), 5.2))
    axes = figure.subplots(1, len(ways), sharey=True, squeeze=False)[0]
    for ax, way in zip(axes, ways, strict=True):
        settings = settings_of(study, way)
        percent = np.array([s.x for s in settings])
        for method in reversed(study.methods):  # ours on top
            _line(ax, percent, settings, rows, method.name)
        _paper_marks(ax, study, percent)
        ax.set_xticks(percent, [f"{value:g}" for value in percent])
        ax.set_xlabel("contaminated sites, %")
        ax.set_title(WAYS.get(way, way), loc="left", fontsize=12, pad=8)
        _error_axis(ax, study, rows)
    axes[0].set_ylabel("mis-clustering, %")
    legend(figure, axes[0], [m.name for m in study.methods], IN_PAPER)
    return figure


def _few_rows(study: Study, rows: list[Row]) -> Figure:
    names = [m.name for m in study.methods]
    both = {"fedgrem", "local-em"} <= set(names)
    figure = new_figure((11.0, 4.6))
    axes = figure.subplots(1, 2 if both else 1, squeeze=False)[0]
    x = np.array([s.x for s in study.settings])
    for name in reversed(names):
        _line(axes[0], x, list(study.settings), rows, name)
    axes[0].set_ylabel("mis-clustering, %")
    axes[0].set_title("held-out rows in a wrong group", loc="left", fontsize=12)
    if both:
        gaps = [paired(rows, "error", s.name, "fedgrem", "local-em") for s in study.settings]
        bars = np.nan_to_num([2 * gap.se for gap in gaps])
        axes[1].axhline(0.0, color="#999999", linewidth=1.2)
        axes[1].errorbar(x, [gap.mean for gap in gaps], bars, color=STYLES["fedgrem"][0], marker="o", markersize=6.5,
                         linewidth=1.9, capsize=4)  # fmt: skip
        axes[1].set_ylabel("points; below 0, FedGrEM is better")
        axes[1].set_title("FedGrEM less Local-EM, two standard errors", loc="left", fontsize=12)
    from matplotlib.ticker import NullLocator

    for ax in axes:
        ax.set_xscale("log")
        ax.set_xticks(x, [f"{value:g}" for value in x])
        ax.xaxis.set_minor_locator(NullLocator())
        ax.set_xlabel("training rows per writer")
        tidy(ax)
    legend(figure, axes[0], names)
    return figure


def _line(ax: Axes, x: Any, settings: list[Setting], rows: list[Row], method: str) -> None:
    """Mean over seeds."""
    method_line(ax, x, [stat(pick(rows, "error", setting=s.name, method=method)) for s in settings], method)


def _paper_marks(ax: Axes, study: Study, percent: Any) -> None:
    """The same in every panel: the paper has one figure, and does not say for which way."""
    reported = {float(value): told(study, float(value), "fedgrem") for value in percent}
    shown = {value: one.mean for value, one in reported.items() if one is not None}
    if shown and any(m.name == "fedgrem" for m in study.methods):
        color, marker, _ = STYLES["fedgrem"]
        ax.plot(list(shown), list(shown.values()), color=color, marker=marker, mfc="white", markersize=6.5,
                linestyle="none", markeredgewidth=1.4, zorder=6, label=IN_PAPER)  # fmt: skip


def _error_axis(ax: Axes, study: Study, rows: list[Row]) -> None:
    means = mean_errors(study, rows, list(study.settings))
    means = means[np.isfinite(means) & (means > 0)]
    tidy(ax)
    if not len(means) or means.max() <= WIDE * means.min():
        return
    from matplotlib.ticker import LogLocator, NullLocator

    ax.set_yscale("log")
    ax.yaxis.set_major_locator(LogLocator(subs=(1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0)))
    ax.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    ax.yaxis.set_minor_locator(NullLocator())
