"""Past the paper, ``pen-small``: few rows per writer, where working together should help most."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from fedgrem.plots.axes import finish, new_figure
from fedgrem.report.text import name_of
from fedgrem.studies.base import (
    Page,
    Results,
    Setting,
    Study,
    Table,
    Verdict,
    effort_table,
    methods,
    near_least,
    stressed,
)
from fedgrem.studies.drawing import STYLES, legend, log_x, method_line
from fedgrem.studies.real import facts

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FEW = 60.0
"""Training rows per site at which sharing must pay."""


def pen_small(quick: bool = False) -> Study:
    """Pen digits with 40 to 200 training rows per writer."""
    rows = (60,) if quick else (40, 60, 100, 200)
    settings = tuple(Setting(f"{n} rows", "pen", float(n), {"n_train": n}, "n_train") for n in rows)
    chosen = methods("fedgrem", "local-em")
    return Study("pen-small", "Pen digits, few rows per writer", settings, chosen, 4 if quick else 200, page)


def page(results: Results) -> Page:
    """Mis-clustering, and the difference to EM at each site alone where both were run."""
    both = {"fedgrem", "local-em"} <= set(results.names)
    caption = (
        "Left: mean mis-clustering on held-out rows by the rows that each writer has for training; the band is "
        "FedGrEM's, two standard errors either side. Right: the difference, seed by seed."
    )
    return Page(
        partial(_figure, results, both),
        caption,
        [_table(results, both), effort_table(results, 2)],
        _verdicts(results) if both else [],
        facts=facts(results, "as many rows of each site as the setting says"),
    )


def _table(results: Results, both: bool) -> Table:
    """Settings down, methods across."""
    names = results.names
    body = [[s.name, *(results.stat("error", s, name).text(2) for name in names)] for s in results.settings]
    headers = ["training rows per writer", *map(name_of, names)]
    note = "Mis-clustering on held-out rows."
    if both:
        headers += ["FedGrEM less Local-EM", "its standard error"]
        for line, setting in zip(body, results.settings, strict=True):
            gap = results.gap("error", setting, "fedgrem", "local-em")
            line += [f"{gap.mean:+.2f}", f"{gap.se:.2f}" if gap.n > 1 else "—"]
        note += " The difference is taken seed by seed, on the same rows; below 0, FedGrEM is better."
    strong = stressed(near_least(np.array([results.means("error", name) for name in names])).T)
    return Table("Mis-clustering in percent with few rows: mean (sd) over seeds", headers, body, note, strong)


def _verdicts(results: Results) -> list[Verdict]:
    gaps = {s.x: results.gap("error", s, "fedgrem", "local-em") for s in results.settings}
    if FEW not in gaps:
        return []
    gap = gaps.pop(FEW)
    claim = f"With {FEW:g} training rows per writer, FedGrEM is better than EM at each site alone by more than the "
    claim += "standard error of their difference."
    finding = f"{gap.mean:+.2f} points" + (f", standard error {gap.se:.2f}" if gap.n > 1 else "")
    if gaps:
        finding += "; with " + ", ".join(f"{x:g} rows {other.mean:+.2f}" for x, other in sorted(gaps.items()))
    return [Verdict(claim, -gap.mean > gap.se if gap.n > 1 else None, f"{finding}.")]


def _figure(results: Results, both: bool) -> Figure:
    figure = new_figure((11.0, 4.6), dpi=160)
    axes = figure.subplots(1, 2 if both else 1, squeeze=False)[0]
    x, rows = [s.x for s in results.settings], "training rows per writer"
    for name in reversed(results.names):
        method_line(axes[0], x, [results.stat("error", s, name) for s in results.settings], name)
    finish(axes[0], "held-out rows in a wrong group", rows, "mis-clustering, %", grid="y")
    if both:
        gaps = [results.gap("error", s, "fedgrem", "local-em") for s in results.settings]
        bars = np.nan_to_num([2 * gap.se for gap in gaps])
        axes[1].axhline(0.0, color="#999999", linewidth=1.2)
        axes[1].errorbar(x, [gap.mean for gap in gaps], bars, color=STYLES["fedgrem"][0], marker="o", markersize=6.5,
                         linewidth=1.9, capsize=4)  # fmt: skip
        title = "FedGrEM less Local-EM, two standard errors"
        finish(axes[1], title, rows, "points; below 0, FedGrEM is better", grid="y")
    for ax in axes:
        log_x(ax, x)
    legend(figure, axes[0], results.names)
    return figure
