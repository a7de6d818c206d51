"""How a fit went: round by round, and what was compared before it, penalties and numbers of components."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fedgrem.errors import InputError
from fedgrem.estimators.base import BaseFederatedMixture
from fedgrem.plots.axes import LOSS_COLOR, PALETTE, QUIET, finish, legend, own_axes
from fedgrem.report.attributes import check_fitted, suspect_sites
from fedgrem.types import Array

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def plot_convergence(model: BaseFederatedMixture, ax: Axes | None = None) -> Axes:
    """How far each site and the center moved in every round, on a log scale, down to the tolerance."""
    check_fitted(model)
    ax = own_axes(ax, (6.4, 4.2))
    # A log scale has no place for 0: a site that did not move at all leaves a gap.
    movement, center = (model.history_[name] for name in ("movement", "center_movement"))
    movement, center = np.where(movement > 0, movement, np.nan), np.where(center > 0, center, np.nan)
    _site_lines(ax, movement, suspect_sites(model))
    ax.plot(np.arange(1, len(center) + 1), center, color=PALETTE[0], linewidth=2.2, label="the center")
    if model.tol > 0:
        ax.axhline(model.tol, color="black", linestyle=":", linewidth=1.0)
        ax.annotate("tolerance", (0.0, model.tol), xycoords=("axes fraction", "data"), xytext=(4, 3),
                    textcoords="offset points", fontsize=8)  # fmt: skip
    ax.set_yscale("log")
    legend(ax, loc="lower left")
    return finish(ax, "Movement per round", "round", "relative movement")


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
    ax.plot(np.arange(1, len(middle) + 1), middle, color=PALETTE[0], linewidth=2.2, label="the middle site")
    finite = ordinary[np.isfinite(ordinary)]
    room = 0.08 * max(float(np.ptp(finite)) if len(finite) else 0.0, 1e-6)
    ax.set_ylim(finite.min(initial=0.0) - room, finite.max(initial=0.0) + room)
    legend(ax)
    return finish(ax, "How well sites explain their own rows", "round", "log-likelihood per row, less its last")


def _site_lines(ax: Axes, values: Array, suspect: Array) -> None:
    """One thin line per site, ``values`` being (rounds, K); up to 200 sites, and up to 20 suspects on top."""
    from matplotlib.collections import LineCollection  # one artist for all sites is quicker than one each

    rounds = np.arange(1, len(values) + 1)
    for which, most, color, width, alpha, label in (
        (~suspect, 200, QUIET, 0.8, 0.7, "a site"),
        (suspect, 20, LOSS_COLOR, 1.4, 1.0, "a suspect site"),
    ):
        shown = [np.column_stack([rounds, values[:, k]]) for k in np.flatnonzero(which)[:most]]
        if shown:
            lines = LineCollection(shown, colors=color, linewidths=width, alpha=alpha, label=label, zorder=2)
            ax.add_collection(lines)
    ax.autoscale_view()


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
    for gains, alone in zip(path["site_gain"], model.local_only_, strict=True):
        color, alpha, order = (LOSS_COLOR, 1.0, 2) if alone else (QUIET, 0.6, 1)
        ax.plot(place, gains, color=color, linewidth=0.8, alpha=alpha, zorder=order)
    ax.errorbar(place, path["gain"], yerr=path["error"], color=PALETTE[0], linewidth=2.2, capsize=3,
                label="all sites, trimmed", zorder=3)  # fmt: skip
    estimated = bool(np.isfinite(model.between_site_variance_).any())
    chosen = int(np.flatnonzero(path["penalties"] == model.penalty_)[0])
    ax.plot(chosen, path["gain"][chosen], marker="D", markersize=9, color=PALETTE[0], markeredgecolor="white",
            linestyle="none", label="chosen: " + ("together" if estimated and chosen else f"{model.penalty_:g}"),
            zorder=4)  # fmt: skip
    # A penalty that ruins a site altogether would leave no room for all others.
    top = float(max(path["gain"].max(), np.quantile(path["site_gain"], 0.95), 0.0))
    bottom = float(min(path["gain"][:-1].min(), np.quantile(path["site_gain"], 0.1), 0.0))
    room = 0.15 * max(top - bottom, 1e-9)
    ax.set_ylim(bottom - room, top + room)
    names = {0.0: "alone", np.inf: "as alike\nas sites are" if estimated else "one for\nall"}
    ax.set_xticks(place, [names.get(c, f"{c:g}") for c in path["penalties"].tolist()])
    legend(ax, loc="best")
    return finish(ax, "Together against alone, by penalty", "penalty", "gain per held-out row")


def plot_selection(model: BaseFederatedMixture, ax: Axes | None = None) -> Axes:
    """BIC and ICL by the number of components, less their least; the one that chose is bold, with standard errors."""
    check_fitted(model)
    curve = model.selection_
    if not curve:
        raise InputError(
            f"n_components={model.n_components!r} was given, so that there is no curve; fit with n_components='auto' "
            "or a range."
        )
    ax = own_axes(ax, (6.4, 4.2))
    numbers = curve["n_components"]
    for name, color, marker in (("bic", PALETTE[0], "o"), ("icl", PALETTE[1], "s")):
        value = np.where(np.isfinite(curve[name]), curve[name], np.nan)
        bold = name == model.criterion
        ax.plot(numbers, value - np.nanmin(value), color=color, marker=marker, markersize=5 if bold else 4,
                linewidth=2.2 if bold else 1.2, linestyle="-" if bold else "--", label=name.upper())  # fmt: skip
    value = np.where(np.isfinite(curve[model.criterion]), curve[model.criterion], np.nan)
    behind, color = value - np.nanmin(value), PALETTE[("bic", "icl").index(model.criterion)]
    ax.errorbar(numbers, behind, yerr=np.nan_to_num(curve["error"]), fmt="none", ecolor=color, capsize=3, alpha=0.6)
    ax.plot([model.n_components_], behind[numbers == model.n_components_], "o", markersize=13, markerfacecolor="none",
            markeredgecolor="black", label=f"chosen: {model.n_components_}")  # fmt: skip
    ax.set_yscale("symlog", linthresh=10.0)
    ax.set_xticks(numbers[:: -(-len(numbers) // 20)])
    legend(ax)
    return finish(ax, "How many components", "components", "criterion, less its least")
