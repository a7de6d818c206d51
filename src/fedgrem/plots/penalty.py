"""How the penalty was chosen."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fedgrem.errors import InputError
from fedgrem.estimators.base import BaseFederatedMixture
from fedgrem.plots.axes import LOSS_COLOR, PALETTE, QUIET, own_axes, tidy
from fedgrem.report.attributes import check_fitted

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def plot_penalty(model: BaseFederatedMixture, ax: Axes | None = None) -> Axes:
    """What every penalty gained over fitting alone, per held-out row: thin lines are sites, the thick one all of them.

    Parameters
    ----------
    model : fitted with ``penalty="auto"``.
    ax : where to draw; a new figure by default.
    """
    check_fitted(model)
    path = model.penalty_path_
    if not path:
        raise InputError("no penalties were compared in this fit; fit with penalty='auto'.")
    ax = own_axes(ax, (5.6, 3.6))
    place = np.arange(len(path["penalties"]))
    ax.axhline(0.0, color="black", linewidth=1.0)
    for k, gains in enumerate(path["site_gain"]):
        alone = bool(model.local_only_[k])
        ax.plot(place, gains, color=LOSS_COLOR if alone else QUIET, linewidth=0.8, alpha=1.0 if alone else 0.6,
                zorder=2 if alone else 1)  # fmt: skip
    ax.errorbar(place, path["gain"], yerr=path["error"], color=PALETTE[0], linewidth=2.2, capsize=3,
                label="all sites, trimmed", zorder=3)  # fmt: skip
    chosen = int(np.flatnonzero(path["penalties"] == model.penalty_)[0])
    ax.plot(chosen, path["gain"][chosen], marker="D", markersize=9, color=PALETTE[0], markeredgecolor="white",
            linestyle="none", label=f"chosen: {model.penalty_:g}", zorder=4)  # fmt: skip
    # A penalty that ruins a site altogether would leave no room for all others.
    top = float(max(path["gain"].max(), np.quantile(path["site_gain"], 0.95), 0.0))
    bottom = float(min(path["gain"][:-1].min(), np.quantile(path["site_gain"], 0.1), 0.0))
    room = 0.15 * max(top - bottom, 1e-9)
    ax.set_ylim(bottom - room, top + room)
    ax.set_xticks(
        place, ["alone" if c == 0 else "one for\nall" if np.isinf(c) else f"{c:g}" for c in path["penalties"]]
    )
    ax.set_xlabel("penalty")
    ax.set_ylabel("gain per held-out row")
    ax.set_title("Together against alone, by penalty", loc="left", fontsize=11)
    ax.legend(frameon=False, fontsize=8, loc="best")
    return tidy(ax)
