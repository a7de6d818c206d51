"""Figures of a study in the paper's layout. No pyplot, hence no global state and no display."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from fedgrem.report.names import name_of
from fedgrem.studies.pages.drawing import STYLES, legend, method_line, new_figure, plain_ticks, tidy
from fedgrem.studies.pages.rates import EXPECTED, MEASURED, panel_means, slope
from fedgrem.studies.pages.real_plots import real_figure
from fedgrem.studies.pages.stats import Row, mean_of, pick, stat
from fedgrem.studies.pages.tables import MEASURES
from fedgrem.studies.specs import REAL, Setting, Study

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

AXES = {
    "n": "rows per site, n",
    "K": "sites, K",
    "h": "heterogeneity, h",
    "epsilon": "share of outlier sites, ε",
    "d": "dimension, d",
    "T": "rounds, T",
}
SNR_LABEL = r"$h$ / SNR,  SNR = $\min_{k\in S}\,\max_{r\neq r'}\,\|\theta_r^{(k)}-\theta_{r'}^{(k)}\|$"


def figures(study: Study, rows: list[Row]) -> dict[str, Figure]:
    """File name without ending -> figure."""
    if study.name in REAL:
        return {f"{study.name}-errors": real_figure(study, rows)}
    draw = {"gmm": _comparison, "mor": _comparison, "eta": _step_size, "theory": _rates, "sizes": _sizes}
    return {f"{study.name}-errors": draw[study.name](study, rows)}


def _comparison(study: Study, rows: list[Row]) -> Figure:
    figure = new_figure((11.0, 5.0))
    axes = figure.subplots(1, 2)
    x = np.array([s.x / mean_of(rows, "snr", setting=s.name) for s in study.settings])
    for ax, (measure, word) in zip(axes, MEASURES.items(), strict=True):
        for method in reversed(study.methods):  # ours on top
            _log_line(ax, x, study.settings, rows, measure, method.name)
        ax.set_xlabel(SNR_LABEL)
        ax.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
        ax.set_ylabel(f"log$_e$ error of {_tex(word)}")
        ax.set_title(f"{study.title.split(' (')[0]}: {_tex(word)}", loc="left", fontsize=12, pad=8)
        tidy(ax)
        top = ax.secondary_xaxis("top")
        top.set_xticks(x, [f"{s.x:g}" if i % max(1, len(x) // 5) == 0 else "" for i, s in enumerate(study.settings)])
        top.tick_params(length=3, labelsize=8, colors="#666666")
        top.spines["top"].set_visible(False)
        top.set_xlabel("$h$", fontsize=9, color="#666666", loc="right")
    legend(figure, axes[0], [m.name for m in study.methods])
    return figure


def _log_line(ax: Axes, x: Any, settings: tuple[Setting, ...], rows: list[Row], measure: str, method: str) -> None:
    """Mean over seeds of the log error."""
    logs = [stat(np.log(pick(rows, measure, setting=s.name, method=method))) for s in settings]
    method_line(ax, x, logs, method)


def _step_size(study: Study, rows: list[Row]) -> Figure:
    figure = new_figure((11.0, 4.6))
    axes = figure.subplots(1, 2, sharey=True)
    titles = {"fixed": "threshold fixed, as in the paper", "step": "threshold scaled with the step"}
    from matplotlib import colormaps

    for ax, (scaling, title) in zip(axes, titles.items(), strict=True):
        methods = [m for m in study.methods if m.name.startswith(scaling)]
        for place, setting in enumerate(study.settings):
            shade = colormaps["cividis"](0.9 * place / max(1, len(study.settings) - 1))
            means = [mean_of(rows, "theta_error", setting=setting.name, method=m.name) for m in methods]
            sizes = [m.options["step_size"] for m in methods]
            ax.plot(sizes, means, color=shade, marker="o", markersize=4.5, linewidth=1.8, label=f"$h$ = {setting.x:g}")
        ax.set_xlabel(r"step size constant, $C_\eta$")
        ax.set_title(title, loc="left", fontsize=12)
        tidy(ax)
    axes[0].set_ylabel(r"mean error of $\theta$")
    axes[0].set_ylim(bottom=0.0)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right center", frameon=False, fontsize=9, reverse=True)
    return figure


def _rates(study: Study, rows: list[Row]) -> Figure:
    figure = new_figure((12.0, 7.2))
    axes = figure.subplots(2, 3)
    for ax, panel in zip(axes.ravel(), AXES, strict=True):
        for method in reversed(study.methods):
            _rate_line(ax, study, rows, panel, method.name)
        x, ours = panel_means(study, rows, panel, study.methods[0].name, MEASURED.get(panel, "theta_error"))
        if panel in MEASURED:
            color, marker, _ = STYLES[study.methods[0].name]
            ax.plot(x, ours, color=color, marker=marker, mfc="white", linestyle=(0, (4, 2)), linewidth=1.9)
            ax.annotate("the common center", (x[0], ours[0]), xytext=(0, 9), textcoords="offset points", fontsize=8,
                        color=color)  # fmt: skip
        if panel in EXPECTED:
            guide = ours[0] * (x / x[0]) ** EXPECTED[panel]
            ax.plot(x, guide, color="#999999", linewidth=1.2, linestyle=(0, (2, 2)), zorder=1)
            middle = np.exp(0.5 * (np.log(x[0] * x[-1]))), np.sqrt(guide[0] * guide[-1])
            beside, align = ((8, -14), "left") if EXPECTED[panel] > 0 else ((-6, -14), "right")
            ax.annotate(f"slope {EXPECTED[panel]:+.1f}", middle, textcoords="offset points", ha=align, xytext=beside,
                        fontsize=8, color="#666666")  # fmt: skip
            ax.set_xscale("log")
            whose = name_of(study.methods[0].name) + ("'s center" if panel in MEASURED else "")
            ax.set_title(f"fitted slope of {whose}: {slope(x, ours):+.2f}", loc="left", fontsize=10)
        if panel in EXPECTED:
            ax.set_yscale("log")
            plain_ticks(ax, x)
        if panel == "T":
            ax.set_title("from one poor start for all sites", loc="left", fontsize=10)
        if panel == "epsilon":
            ax.set_title("a straight line is expected", loc="left", fontsize=10)
        if panel == "h":
            ax.set_title("grows up to the error of each site alone", loc="left", fontsize=10)
        if panel in ("h", "epsilon"):
            ax.set_ylim(bottom=0.0)
        ax.set_xlabel(AXES[panel])
        ax.set_ylabel(r"mean error of $\theta$, less its last" if panel == "T" else r"mean error of $\theta$")
        tidy(ax)
    legend(figure, axes[0, 0], [m.name for m in study.methods])
    return figure


def _rate_line(ax: Axes, study: Study, rows: list[Row], panel: str, method: str) -> None:
    x, means = panel_means(study, rows, panel, method)
    if panel == "T":
        means = np.abs(means - means[-1])
        shown = means > 1e-6  # below, the fit itself has settled
        x, means = x[shown], means[shown]
        ax.set_yscale("log")
    color, marker, dashes = STYLES[method]
    ax.plot(
        x, means, color=color, marker=marker, linestyle=dashes, label=name_of(method), markersize=5.5, linewidth=1.9
    )


def _sizes(study: Study, rows: list[Row]) -> Figure:
    figure = new_figure((9.0, 1.6 + 0.9 * len(study.settings)))
    ax = figure.subplots()
    n_methods = len(study.methods)
    for place, setting in enumerate(study.settings):
        for j, method in enumerate(study.methods):
            values = pick(rows, "theta_error", setting=setting.name, method=method.name)
            color, marker, _ = STYLES[method.name]
            height = place + (j - (n_methods - 1) / 2) * 0.8 / n_methods
            ax.plot(values, np.full(len(values), height), linestyle="none", marker=".", color=color, alpha=0.35)
            ax.plot(np.mean(values), height, linestyle="none", marker=marker, color=color, markersize=8,
                    label=name_of(method.name) if place == 0 else None)  # fmt: skip
    ax.set_yticks(range(len(study.settings)), [s.name for s in study.settings])
    ax.invert_yaxis()
    ax.set_xlim(left=0.0)
    ax.set_xlabel(r"error of $\theta$: mean (large mark) and every seed (dots)")
    tidy(ax, axis="x")
    legend(figure, ax, [m.name for m in study.methods])
    return figure


def _tex(word: str) -> str:
    return r"$\theta$" if word == "θ" else f"${word}$"
