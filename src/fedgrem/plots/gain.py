"""What working together is worth to each site."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from fedgrem.errors import InputError
from fedgrem.plots.axes import LOSS_COLOR, MOST_ROWS, PALETTE, QUIET, own_axes, short, tidy
from fedgrem.report.gain import CLEAR, Gains
from fedgrem.types import Array

if TYPE_CHECKING:
    from matplotlib.axes import Axes


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
    colors = {"gains": "#0072B2", "loses": LOSS_COLOR, "unclear": "#6B7680"}
    seen: set[str] = set()
    for place, site in enumerate(sites):
        color = colors[site.word]
        ax.errorbar(site.gain, place, xerr=CLEAR * site.error, color=color, marker="D" if site.word == "loses" else "o",
                    markersize=5, linewidth=1.6, label=None if site.word in seen else site.word)  # fmt: skip
        seen.add(site.word)
    ax.set_yticks(range(len(sites)), [short(site.name) for site in sites], fontsize=8)
    for label, site in zip(ax.get_yticklabels(), sites, strict=True):
        label.set_fontweight("bold" if site.name in suspect else "normal")
        label.set_color(LOSS_COLOR if site.name in suspect else "black")
    ax.set_ylim(len(sites) - 0.4, -0.6)
    ax.grid(axis="x", color="#E4E4E4", linewidth=0.8)
    ax.set_axisbelow(True)
    ax.set_xlabel("gain in log-likelihood per held-out row")
    shown = f": {len(sites)} of {len(gains.sites)} sites" if len(sites) < len(gains.sites) else ""
    ax.set_title(f"Together against alone{shown}", loc="left", fontsize=11)
    below = -0.55 / (0.24 * len(sites) + 0.5)  # 0.55 inches, whatever the height
    ax.legend(frameon=False, fontsize=8, loc="upper center", bbox_to_anchor=(0.5, below), ncols=3)
    return tidy(ax)


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
    largest = [float(np.nanmax(error)) for error in errors.values() if np.isfinite(error).any()]
    ax.set_xlim(0.0, 1.06 * max([*largest, 1e-9]))
    ax.grid(axis="x", color="#E4E4E4", linewidth=0.8)
    ax.set_axisbelow(True)
    ax.set_xlabel("largest error over components (shorter is better)")
    ax.set_title("Error at each site", loc="left", fontsize=11)
    ax.legend(frameon=False, fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=2)
    return tidy(ax)
