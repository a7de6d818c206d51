"""How a fit went, round by round."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fedgrem.estimators.base import BaseFederatedMixture
from fedgrem.plots.axes import QUIET, own_axes, positive, tidy
from fedgrem.report.attributes import check_fitted, suspect_sites
from fedgrem.types import Array

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def plot_convergence(model: BaseFederatedMixture, ax: Axes | None = None) -> Axes:
    """How far each site and the center moved in every round, on a log scale, down to the tolerance."""
    check_fitted(model)
    ax = own_axes(ax, (6.4, 4.2))
    movement, center = (positive(model.history_[name]) for name in ("movement", "center_movement"))
    _site_lines(ax, movement, suspect_sites(model))
    ax.plot(np.arange(1, len(center) + 1), center, color="#0072B2", linewidth=2.2, label="the center")
    if model.tol > 0:
        ax.axhline(model.tol, color="black", linestyle=":", linewidth=1.0)
        ax.annotate("tolerance", (0.0, model.tol), xycoords=("axes fraction", "data"), xytext=(4, 3),
                    textcoords="offset points", fontsize=8)  # fmt: skip
    ax.set_yscale("log")
    ax.set_xlabel("round")
    ax.set_ylabel("relative movement")
    ax.set_title("Movement per round", loc="left", fontsize=11)
    ax.legend(frameon=False, fontsize=8)
    return tidy(ax)


def plot_likelihood(model: BaseFederatedMixture, ax: Axes | None = None) -> Axes:
    """How well each site's mixture explains its own rows in every round: log-likelihood per row, less its last.

    It need not rise to the end: a site may give up a little on its own rows for what it has in common with the others.
    The height is that of the sites that are not suspect.
    """
    check_fitted(model)
    ax = own_axes(ax, (6.4, 4.2))
    suspect, per_row = suspect_sites(model), model.history_["log_likelihood"] / model.n_rows_
    left = per_row - per_row[-1:].sum(axis=0)
    ordinary = left if suspect.all() else left[:, ~suspect]
    _site_lines(ax, left, suspect)
    middle = np.nanmedian(ordinary, axis=1)  # a site that joined later took no part in the rounds
    ax.plot(np.arange(1, len(middle) + 1), middle, color="#0072B2", linewidth=2.2, label="the middle site")
    finite = ordinary[np.isfinite(ordinary)]
    room = 0.08 * max(float(np.ptp(finite)) if len(finite) else 0.0, 1e-6)
    ax.set_ylim(finite.min(initial=0.0) - room, finite.max(initial=0.0) + room)
    ax.set_xlabel("round")
    ax.set_ylabel("log-likelihood per row, less its last")
    ax.set_title("How well sites explain their own rows", loc="left", fontsize=11)
    ax.legend(frameon=False, fontsize=8)
    return tidy(ax)


def _site_lines(ax: Axes, values: Array, suspect: Array) -> None:
    """One thin line per site, ``values`` being (rounds, K); up to 200 sites, and up to 20 suspects on top."""
    from matplotlib.collections import LineCollection  # one artist for all sites is quicker than one each

    rounds = np.arange(1, len(values) + 1)
    for which, most, color, width, alpha, label in (
        (~suspect, 200, QUIET, 0.8, 0.7, "a site"),
        (suspect, 20, "#D55E00", 1.4, 1.0, "a suspect site"),
    ):
        shown = [np.column_stack([rounds, values[:, k]]) for k in np.flatnonzero(which)[:most]]
        if shown:
            lines = LineCollection(shown, colors=color, linewidths=width, alpha=alpha, label=label, zorder=2)
            ax.add_collection(lines)
    ax.autoscale_view()
