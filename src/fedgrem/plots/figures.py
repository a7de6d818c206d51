"""Several plots on one page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from fedgrem.estimators.base import BaseFederatedMixture
from fedgrem.plots.axes import MOST_ROWS, new_figure
from fedgrem.plots.components import plot_weights
from fedgrem.plots.distances import plot_distances
from fedgrem.plots.gain import plot_errors
from fedgrem.plots.rounds import plot_convergence
from fedgrem.plots.sites import plot_sites
from fedgrem.types import Array

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def demo_figure(model: BaseFederatedMixture, errors: Mapping[str, Array], title: str) -> Figure:
    """Two panels: the sites around the centers, and what each site gained."""
    figure = new_figure((12.0, 5.4))
    left, right = figure.subplots(1, 2, width_ratios=[1.35, 1.0])
    plot_sites(model, left)
    plot_errors(errors, [str(name) for name in model.site_names_], right)
    figure.suptitle(title, x=0.01, ha="left", fontsize=13, fontweight="bold")
    return figure


def overview_figure(model: BaseFederatedMixture) -> Figure:
    """All four plots of a model on one page."""
    height = 2.4 + 0.2 * min(len(model.site_names_), MOST_ROWS)
    figure = new_figure((13.0, 4.8 + height))
    axes = figure.subplots(2, 2, height_ratios=[4.8, height])
    for plot, ax in zip((plot_sites, plot_convergence, plot_distances, plot_weights), axes.ravel(), strict=True):
        plot(model, ax)
    return figure
