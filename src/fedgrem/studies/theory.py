"""The theorem's rates, ``theory``: n, K, h, epsilon and d, one at a time; and the error over the rounds T."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fedgrem.plots.axes import finish, new_figure
from fedgrem.report.text import name_of
from fedgrem.studies.base import Page, Results, Setting, Study, Verdict, effort_table, error_tables, methods
from fedgrem.studies.drawing import STYLES, legend, log_x, log_y
from fedgrem.types import Array

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BASE: dict[str, Any] = {"h": 0.0, "n_sites": 10, "n_rows": 150, "n_outliers": 1}


class Panel(NamedTuple):
    """One thing that is varied."""

    label: str
    values: tuple[float, ...]
    title: str = ""
    slope: float | None = None
    """Of log error against log x in the leading term of the theorem."""
    claim: str = ""
    measure: str = "theta_error"
    """What is expected to have that slope."""


PANELS = {
    "n": Panel("rows per site, n", (75, 150, 300, 600, 1200, 2400, 4800), "", -0.5, "The error falls as n^(-1/2)."),
    "K": Panel(
        "sites, K",
        (5, 10, 20, 40, 80),
        "'s center",
        -0.5,
        "Where sites are alike (h = 0), the error of the common center falls as K^(-1/2).",
        "center_error",
    ),
    "h": Panel("heterogeneity, h", (0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0), "grows up to the error of each site alone"),
    "epsilon": Panel("share of outlier sites, ε", (0.0, 0.1, 0.2, 0.3, 0.4), "a straight line is expected"),
    "d": Panel("dimension, d", (10, 20, 40, 80), "", 0.5, "The error grows as d^(1/2)."),
    "T": Panel("rounds, T", (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64, 128), "from one poor start for all sites"),
}
"""In the order of the figure; the title of a panel with a slope says whose slope it is."""


def theory(quick: bool = False) -> Study:
    """Every panel's values, around one simulation of ten like sites."""
    settings = [
        Setting(f"{name}={x:g}", "gmm", float(x), BASE | _changed(name, x), name)
        for name, panel in PANELS.items()
        if name != "T"
        for x in panel.values[:: 2 if quick else 1]
    ]
    settings += [
        Setting(f"T={t:g}", "gmm", float(t), BASE, "T", start="poor", rounds=int(t)) for t in PANELS["T"].values
    ]
    title = "The rates of the theorem"
    return Study("theory", title, tuple(settings), methods("fedgrem", "local-em"), 4 if quick else 40, page)


def _changed(panel: str, x: float) -> dict[str, Any]:
    changed: dict[str, dict[str, Any]] = {
        "n": {"n_rows": int(x)},
        "K": {"n_sites": int(x), "n_outliers": 0},
        "h": {"h": x},
        "epsilon": {"n_outliers": round(10 * x)},
        "d": {"n_features": int(x), "n_rows": 300},
    }
    return changed[panel]


def page(results: Results) -> Page:
    """The slopes that are found, beside those that are expected."""
    caption = (
        "Mean error of θ as one thing varies; log scales where a power is expected. Dotted: the expected slope, "
        "through FedGrEM's first point."
    )
    tables = [*error_tables(results, down=True), effort_table(results, 3)]
    both = {"fedgrem", "local-em"} <= set(results.names)
    return Page(partial(_figure, results), caption, tables, _verdicts(results) if both else [])


def _curve(results: Results, panel: str, method: str, measure: str = "theta_error") -> tuple[Array, Array]:
    """Places on the axis and mean errors of the settings of one panel."""
    settings = results.panel(panel)
    return np.array([s.x for s in settings]), results.means(measure, method, settings)


def slope(x: Array, y: Array) -> float:
    """Least-squares slope of log y against log x."""
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


def contraction(rounds: Array, error: Array) -> tuple[float, float]:
    """Factor per round by which the error nears its last value, and how straight that is on a log scale.

    Fitted while more than a thousandth of the way is left; the second is the correlation of log distance and round.
    """
    excess = np.abs(error - error[-1])
    early = excess > 1e-3 * excess[0]
    if early.sum() < 2:
        return float("nan"), float("nan")
    left = np.log(excess[early])
    return float(np.exp(np.polyfit(rounds[early], left, 1)[0])), float(np.corrcoef(rounds[early], left)[0, 1])


def _verdicts(results: Results) -> list[Verdict]:
    found = []
    for name, panel in PANELS.items():
        if panel.slope is None:
            continue
        ours, alone = (slope(*_curve(results, name, method, panel.measure)) for method in ("fedgrem", "local-em"))
        finding = f"fitted slope {ours:+.2f} for FedGrEM, {alone:+.2f} for Local-EM; expected {panel.slope:+.1f}."
        if name == "K":
            worst = slope(*_curve(results, "K", "fedgrem"))
            finding += f" The largest error over sites, a maximum over ever more of them, has slope {worst:+.2f}."
        found.append(Verdict(panel.claim, abs(ours - panel.slope) < 0.15, finding))
    (h, near), (_, alone_at) = _curve(results, "h", "fedgrem"), _curve(results, "h", "local-em")
    share, error = _curve(results, "epsilon", "fedgrem")
    straight, rise = float(np.corrcoef(share, error)[0, 1]), float(np.polyfit(share, error, 1)[0])
    factor, fit = contraction(*_curve(results, "T", "fedgrem"))
    return [
        *found,
        Verdict(
            "The error grows with h, up to that of each site alone.",
            bool(near[0] < near[-1] <= 1.1 * alone_at[-1]),
            f"from {near[0]:.2f} at h = {h[0]:g} to {near[-1]:.2f} at h = {h[-1]:g}; Local-EM: {alone_at[-1]:.2f} "
            "there.",
        ),
        Verdict(
            "The error grows linearly with the share ε of outlier sites.",
            True if straight > 0.9 else None if rise > 0 else False,
            f"{rise:+.2f} per unit of ε (correlation with a straight line {straight:.2f}), from {error[0]:.2f} at "
            "ε = 0.",
        ),
        Verdict(
            "The error decays geometrically over rounds, down to the statistical error.",
            fit < -0.9,
            f"from a poor start, what is left to the last error shrinks to {factor:.2f} of itself per round "
            f"(correlation of its log with T: {fit:.2f}).",
        ),
    ]


def _figure(results: Results) -> Figure:
    figure = new_figure((12.0, 7.2), dpi=160)
    axes = figure.subplots(2, 3)
    first = results.names[0]
    for ax, (name, panel) in zip(axes.ravel(), PANELS.items(), strict=True):
        for method in reversed(results.names):
            _line(ax, results, name, method)
        x, ours = _curve(results, name, first, panel.measure)
        if panel.measure != "theta_error":
            color, marker, _ = STYLES[first]
            ax.plot(x, ours, color=color, marker=marker, mfc="white", linestyle=(0, (4, 2)), linewidth=1.9)
            ax.annotate("the common center", (x[0], ours[0]), xytext=(0, 9), textcoords="offset points", fontsize=8,
                        color=color)  # fmt: skip
        title = panel.title
        if panel.slope is not None:
            title = f"fitted slope of {name_of(first)}{panel.title}: {slope(x, ours):+.2f}"
            _guide(ax, x, ours, panel.slope)
            log_x(ax, x)
            log_y(ax)
        if name in ("h", "epsilon"):
            ax.set_ylim(bottom=0.0)
        finish(ax, title, panel.label, r"mean error of $\theta$" + ", less its last" * (name == "T"), grid="y")
    legend(figure, axes[0, 0], results.names)
    return figure


def _line(ax: Axes, results: Results, panel: str, method: str) -> None:
    x, means = _curve(results, panel, method)
    if panel == "T":
        means = np.abs(means - means[-1])
        shown = means > 1e-6  # below, the fit itself has settled
        x, means = x[shown], means[shown]
        ax.set_yscale("log")
    color, marker, dashes = STYLES[method]
    ax.plot(x, means, color=color, marker=marker, linestyle=dashes, label=name_of(method), markersize=5.5,
            linewidth=1.9)  # fmt: skip


def _guide(ax: Axes, x: Array, ours: Array, expected: float) -> None:
    """The expected slope, dotted, through the first point."""
    line = ours[0] * (x / x[0]) ** expected
    ax.plot(x, line, color="#999999", linewidth=1.2, linestyle=(0, (2, 2)), zorder=1)
    middle = float(np.sqrt(x[0] * x[-1])), float(np.sqrt(line[0] * line[-1]))
    ax.annotate(f"slope {expected:+.1f}", middle, textcoords="offset points", fontsize=8, color="#666666",
                xytext=(8 if expected > 0 else -6, -14), ha="left" if expected > 0 else "right")  # fmt: skip
