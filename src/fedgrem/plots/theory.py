"""The terms of the theory's bound, stacked."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fedgrem.plots.axes import PALETTE, QUIET, finish, own_axes
from fedgrem.theory.budget import TERMS, ErrorBudget

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WORDS = {
    "iteration": "rounds not played",
    "aggregation": "all rows together",
    "proportions": "own weights",
    "heterogeneity": "sites that differ",
    "outliers": "bad sites",
}
"""What each term stands for."""


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
