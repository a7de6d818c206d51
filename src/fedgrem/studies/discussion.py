"""The paper's discussion as one page, ``discussion``: a picture for each of its items as built in this package."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from fedgrem.plots.axes import PALETTE, QUIET, finish, legend, new_figure
from fedgrem.studies.base import Method, Page, Results, Row, Setting, Study, Table, Verdict
from fedgrem.studies.discussion_parts import PARTS, Means, Part
from fedgrem.studies.drawing import log_x, log_y

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ONLY = Method("fedgrem", "fedgrem")
"""What is compared differs from part to part, so that lines are settings here."""
COLORS = (PALETTE[5], PALETTE[0], PALETTE[2], QUIET)
FACTS = {"data": "simulations: the paper's, stochastic block models, and starts drawn for their labels"}


def discussion(quick: bool = False) -> Study:
    """Every part, line by line."""
    settings = [
        Setting(f"{name}: {line}, {x:g}", "gmm", x, {"part": name, "line": line}, name, start="own")
        for name, part in PARTS.items()
        for x in (part.quick if quick else part.values)
        for line in part.lines
    ]
    return Study(
        "discussion", "The paper's discussion, made to work", tuple(settings), (ONLY,), 2 if quick else 20, page
    )


def play(setting: Setting, seed: int, methods: tuple[Method, ...]) -> list[Row]:
    """One number."""
    begin = time.perf_counter()
    part = PARTS[setting.simulation["part"]]
    error = part.play(setting.simulation["line"], setting.x, seed)
    return [{"method": method.name, "error": error, "seconds": time.perf_counter() - begin} for method in methods]


def means_of(results: Results, name: str) -> tuple[list[float], Means]:
    """What a part was measured at, and the means of its lines."""
    settings = results.panel(name)
    x = list(dict.fromkeys(setting.x for setting in settings))
    found = {
        line: np.array([results.stat("error", s, ONLY.name).mean for s in settings if s.simulation["line"] == line])
        for line in PARTS[name].lines
    }
    return x, found


def page(results: Results) -> Page:
    """A picture, a table and a verdict for every part."""
    found = {name: means_of(results, name) for name in PARTS}
    verdicts = []
    for name, part in PARTS.items():
        holds, finding = part.check(found[name][1])
        verdicts.append(Verdict(f"{part.title}. {part.claim}", holds, finding))
    tables = [_table(results, name, part) for name, part in PARTS.items()]
    caption = "What the paper's discussion proposes, as built in this package: means over seeds."
    return Page(partial(_figure, found), caption, tables, verdicts, facts=FACTS)


def _table(results: Results, name: str, part: Part) -> Table:
    settings = results.panel(name)
    x = list(dict.fromkeys(setting.x for setting in settings))
    body = [
        [words, *(results.stat("error", s, ONLY.name).text(3) for s in settings if s.simulation["line"] == line)]
        for line, words in part.lines.items()
    ]
    return Table(
        part.title, [part.axis, *(f"{value:g}" for value in x)], body, f"{part.measure}: mean (sd) over seeds."
    )


def _figure(found: dict[str, tuple[list[float], Means]]) -> Figure:
    n_rows = -(-len(found) // 2)
    figure = new_figure((11.0, 3.7 * n_rows), dpi=140)
    axes = np.ravel(figure.subplots(n_rows, 2))
    for ax, (name, (x, means)) in zip(axes, found.items(), strict=False):
        _panel(ax, PARTS[name], x, means)
    for ax in axes[len(found) :]:
        ax.remove()
    return figure


def _panel(ax: Axes, part: Part, x: list[float], means: Means) -> None:
    for (line, words), color, marker in zip(part.lines.items(), COLORS, "os^D", strict=False):
        ax.plot(x, means[line], color=color, marker=marker, markersize=5, linewidth=1.8, label=words)
    if part.log:
        log_x(ax, x)
    if part.log_measure:
        log_y(ax)
    else:
        ax.set_ylim(0.0, 1.08 * max(float(np.nanmax(values)) for values in means.values()))
    legend(ax)
    finish(ax, part.title, part.axis, part.measure, grid="y")
