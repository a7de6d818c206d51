"""What the components are, and how much of each a site has."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fedgrem.estimators.base import BaseFederatedMixture
from fedgrem.plots.axes import (
    PALETTE,
    color_of,
    component_ticks,
    oddest,
    own_axes,
    short,
    site_ticks,
    tidy,
    title_of_some,
)
from fedgrem.report.attributes import check_fitted, parameter_names, parameter_units
from fedgrem.report.numbers import contrast, decimals_for, fixed, most_telling

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_PARAMETERS = 40
"""Parameters in a heat map; those in which the centers differ most are kept."""
MOST_WRITTEN = 12
"""Components up to which the numbers are written into the heat map."""


def plot_weights(model: BaseFederatedMixture, ax: Axes | None = None) -> Axes:
    """Mixture weights of every site as stacked bars, below the typical weights of the center."""
    check_fitted(model)
    order = oddest(model)
    ax = own_axes(ax, (6.4, 1.7 + 0.24 * (len(order) + 1)))
    weights = np.vstack([model.center_weights_, model.weights_[order]])
    place = np.concatenate([[-1.6], np.arange(len(order))])
    left = np.zeros(len(weights))
    for r, weight in enumerate(weights.T):
        hatch = None if r < len(PALETTE) else "///"
        ax.barh(place, weight, left=left, height=0.82, color=color_of(r), edgecolor="white", hatch=hatch, label=str(r))
        left = left + weight
    site_ticks(ax, model, order)
    ax.annotate("center", (0.0, -1.6), xytext=(-8, 0), textcoords="offset points", ha="right", va="center", fontsize=8)
    ax.set_ylim(len(order) - 0.4, -2.2)
    ax.set_xlim(0.0, 1.0)
    ax.set_xlabel("weight")
    ax.set_title(title_of_some("Weights", len(order), model), loc="left", fontsize=11)
    columns = min(weights.shape[1], 8)
    below = -0.6 / (0.24 * len(order) + 0.74)  # 0.6 inches, whatever the height
    ax.legend(title="component", ncols=columns, loc="upper center", bbox_to_anchor=(0.5, below),
              frameon=False, fontsize=8, title_fontsize=8, handlelength=1.0, columnspacing=1.2)  # fmt: skip
    return tidy(ax)


def plot_centers(model: BaseFederatedMixture, ax: Axes | None = None) -> Axes:
    """The common centers as a heat map, parameters down and components across, each number in its own unit.

    The colour says where a component lies among all in that parameter, so that columns of any unit can be compared.
    Beyond forty parameters, those in which the centers differ most are shown, by the spread within components where it
    is known.
    """
    check_fitted(model)
    center, names = model.center_, parameter_names(model)
    place = contrast(center)
    kept = most_telling(center, parameter_units(model), MOST_PARAMETERS)
    ax = own_axes(ax, (1.8 + 0.62 * min(len(center), 20), 1.3 + 0.26 * len(kept)))
    ax.imshow(place[:, kept].T, aspect="auto", cmap="PuOr_r", vmin=-1.6, vmax=1.6)
    for line, j in enumerate(kept if len(center) <= MOST_WRITTEN else []):
        digits = decimals_for(center[:, j])
        for r, value in enumerate(center[:, j]):
            ax.annotate(fixed(value, digits), (r, line), ha="center", va="center", fontsize=7)
    ax.set_yticks(range(len(kept)), [short(names[j]) for j in kept], fontsize=8)
    component_ticks(ax, len(center))
    some = f": {len(kept)} of {len(names)} parameters" if len(kept) < len(names) else ""
    ax.set_title(f"Centers{some}", loc="left", fontsize=11)
    return tidy(ax)
