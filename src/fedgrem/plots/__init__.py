"""Plots of a fitted model: each takes a model, draws on matplotlib Axes, and returns them.

No pyplot, hence no global state and no display: save with ``ax.figure.savefig("sites.png")``.
"""

from fedgrem.plots.axes import MOST_ROWS, PALETTE
from fedgrem.plots.gain import demo_figure, overview_figure, plot_error_budget, plot_errors, plot_gain
from fedgrem.plots.rounds import plot_convergence, plot_likelihood, plot_penalty, plot_selection
from fedgrem.plots.rows import plot_rows
from fedgrem.plots.sites import plot_centers, plot_distances, plot_sites, plot_thresholds, plot_weights

__all__ = [
    "MOST_ROWS",
    "PALETTE",
    "demo_figure",
    "overview_figure",
    "plot_centers",
    "plot_convergence",
    "plot_distances",
    "plot_error_budget",
    "plot_errors",
    "plot_gain",
    "plot_likelihood",
    "plot_penalty",
    "plot_rows",
    "plot_selection",
    "plot_sites",
    "plot_thresholds",
    "plot_weights",
]
