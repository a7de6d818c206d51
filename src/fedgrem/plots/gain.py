"""What working together is worth to each site; and several plots on one page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from fedgrem.errors import InputError
from fedgrem.estimators.base import BaseFederatedMixture
from fedgrem.plots.axes import (
    LOSS_COLOR,
    MOST_ROWS,
    PALETTE,
    QUIET,
    finish,
    legend,
    name_ticks,
    new_figure,
    own_axes,
)
from fedgrem.plots.rounds import plot_convergence
from fedgrem.plots.sites import plot_distances, plot_sites, plot_weights
from fedgrem.report.gain import CLEAR, Gains
from fedgrem.theory.budget import TERMS, ErrorBudget
from fedgrem.types import Array

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MARKS = {"gains": (PALETTE[0], "o"), "loses": (LOSS_COLOR, "D"), "unclear": ("#6B7680", "o")}
WORDS = {
    "iteration": "rounds not played",
    "aggregation": "all rows together",
    "proportions": "own weights",
    "heterogeneity": "sites that differ",
    "outliers": "bad sites",
}
"""What each term stands for."""


def plot_gain(gains: Gains, ax: Axes | None = None, *, suspect: frozenset[str] = frozenset()) -> Axes:
    """What each site gained over fitting alone, per held-out row, two standard errors either side; losses stand out.

    Odd sites come first, then those that lost most; beyond forty sites only those are shown.

    Parameters
    ----------
    gains : of :func:`fedgrem.report.gain.measure_gain`.
    ax : where to draw; a new figure by default.
    suspect : names of suspect sites.
    """
    sites = gains.worst_first(suspect)[:MOST_ROWS]
    ax = own_axes(ax, (6.4, 1.5 + 0.24 * len(sites)))
    ax.axvline(0.0, color="black", linewidth=1.0)
    seen: set[str] = set()
    for place, site in enumerate(sites):
        color, marker = MARKS[site.word]
        ax.errorbar(site.gain, place, xerr=CLEAR * site.error, color=color, marker=marker, markersize=5, linewidth=1.6,
                    label=None if site.word in seen else site.word)  # fmt: skip
        seen.add(site.word)
    name_ticks(ax, [site.name for site in sites], [site.name in suspect for site in sites])
    ax.set_ylim(len(sites) - 0.4, -0.6)
    legend(ax, 0.55 / (0.24 * len(sites) + 0.5), ncols=3)  # 0.55 inches, whatever the height
    shown = f": {len(sites)} of {len(gains.sites)} sites" if len(sites) < len(gains.sites) else ""
    return finish(ax, f"Together against alone{shown}", "gain in log-likelihood per held-out row", grid="x")


def plot_errors(errors: Mapping[str, Array], site_names: list[str], ax: Axes | None = None) -> Axes:
    """Errors of two fits at every site, joined by a line; a site without truth (NaN) is named and left empty.

    Parameters
    ----------
    errors : the name of each of two fits -> (K,) errors; the first is the one to beat.
    site_names : (K,)
    ax : where to draw; a new figure by default.
    """
    if len(errors) != 2:
        raise InputError(f"errors holds {len(errors)} fits, expected 2: the one to beat and the one that should.")
    ax = own_axes(ax, (5.6, 1.6 + 0.3 * len(site_names)))
    (before_name, before), (after_name, after) = errors.items()
    place = np.arange(len(site_names))
    ax.hlines(place, before, after, color=QUIET, linewidth=2.0, zorder=1)
    ax.scatter(
        before, place, s=52, facecolors="white", edgecolors=PALETTE[5], linewidths=1.8, label=before_name, zorder=2
    )
    ax.scatter(after, place, s=52, marker="D", color=PALETTE[0], label=after_name, zorder=3)
    for k in np.flatnonzero(np.isnan(after)):
        ax.annotate("hostile: nothing to estimate", (0.04, k), xycoords=("axes fraction", "data"), va="center",
                    fontsize=8, color="#555555", style="italic")  # fmt: skip
    ax.set_yticks(place, site_names)
    ax.set_ylim(len(site_names) - 0.4, -0.6)
    finite = np.concatenate([error[np.isfinite(error)] for error in errors.values()])
    ax.set_xlim(0.0, 1.06 * max(float(finite.max(initial=0.0)), 1e-9))
    legend(ax, 0.14, ncols=2)
    return finish(ax, "Error at each site", "largest error over components (shorter is better)", grid="x")


def plot_error_budget(budget: ErrorBudget, ax: Axes | None = None) -> Axes:
    """The parts of the largest error to expect, stacked, beside that of each site alone.

    Parameters
    ----------
    budget : of ``model.error_budget()`` or of :func:`fedgrem.theory.plan`.
    ax : where to draw; a new figure by default.
    """
    ax = own_axes(ax, (6.4, 2.2))
    end = 0.0
    for name, color in zip(TERMS, PALETTE, strict=False):
        value = getattr(budget, name)
        ax.barh(0.0, value, left=end, height=0.55, color=color, label=f"{WORDS[name]}: {value:.2f}")
        end += value
    ax.barh(1.0, budget.alone, height=0.55, color=QUIET)
    ax.set_yticks([0.0, 1.0], [f"together: {end:.2f}", f"each site alone: {budget.alone:.2f}"])
    ax.set_ylim(1.5, -0.5)
    ax.set_xlim(0.0, 1.05 * max(end, budget.alone, np.finfo(float).tiny))
    ax.legend(loc="upper center", bbox_to_anchor=(0.4, -0.32), ncols=2, frameon=False, fontsize=9)
    return finish(ax, "Largest error to expect", "in units of the noise within a component", grid="x")


def demo_figure(model: BaseFederatedMixture, errors: Mapping[str, Array], title: str) -> Figure:
    """Two panels: the sites around the centers, and what each site gained."""
    figure = new_figure((12.0, 5.4))
    left, right = figure.subplots(1, 2, width_ratios=[1.35, 1.0])
    plot_sites(model, left)
    plot_errors(errors, [str(name) for name in model.site_names_], right)
    figure.suptitle(title, x=0.01, ha="left", fontsize=13, fontweight="bold")
    return figure


def overview_figure(model: BaseFederatedMixture) -> Figure:
    """Four plots of a model on one page."""
    height = 2.4 + 0.2 * min(len(model.site_names_), MOST_ROWS)
    figure = new_figure((13.0, 4.8 + height))
    axes = figure.subplots(2, 2, height_ratios=[4.8, height])
    for plot, ax in zip((plot_sites, plot_convergence, plot_distances, plot_weights), axes.ravel(), strict=True):
        plot(model, ax)
    return figure
