"""How the number of components was chosen."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fedgrem.errors import InputError
from fedgrem.estimators.base import BaseFederatedMixture
from fedgrem.plots.axes import PALETTE, own_axes, tidy
from fedgrem.report.attributes import check_fitted

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def plot_selection(model: BaseFederatedMixture, ax: Axes | None = None) -> Axes:
    """BIC and ICL by the number of components, less their least; the one that chose is the bold line."""
    check_fitted(model)
    if not model.selection_:
        raise InputError(
            f"n_components={model.n_components!r} was given, so that there is no curve; fit with n_components='auto' "
            "or a range."
        )
    ax = own_axes(ax, (6.4, 4.2))
    curve = model.selection_
    numbers = curve["n_components"]
    for name, color, marker in (("bic", PALETTE[0], "o"), ("icl", PALETTE[1], "s")):
        value = np.where(np.isfinite(curve[name]), curve[name], np.nan)
        bold = name == model.criterion
        ax.plot(numbers, value - np.nanmin(value), color=color, marker=marker, markersize=5 if bold else 4,
                linewidth=2.2 if bold else 1.2, linestyle="-" if bold else "--", label=name.upper())  # fmt: skip
    ax.plot([model.n_components_], [0.0], "o", markersize=13, markerfacecolor="none", markeredgecolor="black",
            label=f"chosen: {model.n_components_}")  # fmt: skip
    ax.set_yscale("symlog", linthresh=10.0)
    ax.set_xticks(numbers[:: -(-len(numbers) // 20)])
    ax.set_xlabel("components")
    ax.set_ylabel("criterion, less its least")
    ax.set_title("How many components", loc="left", fontsize=11)
    ax.legend(frameon=False, fontsize=8)
    return tidy(ax)
