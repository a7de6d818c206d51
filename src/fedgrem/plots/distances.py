"""How far every site is from the common center, and how far it may be."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from fedgrem.estimators.base import BaseFederatedMixture
from fedgrem.plots.axes import (
    QUIET,
    color_of,
    component_ticks,
    figure_of,
    marker_of,
    oddest,
    own_axes,
    site_ticks,
    tidy,
    title_of_some,
)
from fedgrem.report.attributes import check_fitted, own_distance, suspect_beyond, suspect_sites
from fedgrem.types import Array

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ALLOWED = "#E7EDF2"
"""The zone in which a site is not suspect."""


def plot_distances(model: BaseFederatedMixture, ax: Axes | None = None) -> Axes:
    """Distance of every component of every site from its center, as a heat map; a dot marks 0, exactly at the center.

    The sites farthest out come first; beyond forty sites only those are shown.
    """
    from matplotlib.colors import PowerNorm

    check_fitted(model)
    order = oddest(model)
    distance = model.site_distance_[order]
    ax = own_axes(ax, (1.8 + 0.55 * min(distance.shape[1], 20), 1.6 + 0.26 * len(order)))
    top = float(distance.max())
    # The square root keeps honest sites apart beside a hostile one that is ten times as far out.
    image = ax.imshow(distance, aspect="auto", cmap="cividis", norm=PowerNorm(0.5, 0.0, top if top > 0 else 1.0))
    rows, columns = np.nonzero(distance == 0.0)
    ax.scatter(columns, rows, s=9, color="white")
    bar = figure_of(ax).colorbar(image, ax=ax, label="distance from the center (dot: at it)")
    bar.outline.set_visible(False)
    site_ticks(ax, model, order)
    component_ticks(ax, distance.shape[1])
    ax.set_title(title_of_some("Distance from the center", len(order), model), loc="left", fontsize=11)
    return tidy(ax)


def plot_thresholds(model: BaseFederatedMixture, ax: Axes | None = None) -> Axes:
    """Distance of every component of a site from its center, against how far that site may be before it is suspect.

    One line per site, the farthest first. The cross is where the site's rows alone would lead, as a root mean square
    over components; the shaded bar ends where that makes it suspect. Ticks are the pull of the center on each
    component: what was within it was moved onto the center. Components at the center are counted in the circle at 0.
    """
    check_fitted(model)
    order = oddest(model)
    ax = own_axes(ax, (6.4, 1.9 + 0.27 * len(order)))
    distance, tick, limit = model.site_distance_[order], model.site_threshold_[order], suspect_beyond(model)[order]
    own, suspect = own_distance(model)[order], suspect_sites(model)[order]
    places = np.arange(len(order))
    within = np.concatenate([distance.ravel(), limit, own, tick.ravel()])
    end = 1.06 * max(float(within[np.isfinite(within)].max(initial=0.0)), 1e-9)
    ax.barh(places, np.minimum(limit, end), height=0.82, color=ALLOWED, label="not suspect")
    if np.any(shown := np.isfinite(tick) & (tick > 0)):
        rows = np.broadcast_to(places[:, None], tick.shape)
        ax.plot(tick[shown], rows[shown], linestyle="none", marker="|", markersize=9, markeredgewidth=1.0, color=QUIET,
                label="pull of the center")  # fmt: skip
    ax.plot(own, places, linestyle="none", marker="x", markersize=5, color="black", label="its own rows", zorder=3)
    for r in range(distance.shape[1]):
        away = distance[:, r] > 0
        ax.scatter(
            distance[away, r], places[away], s=26, color=color_of(r), marker=marker_of(r), linewidths=0, zorder=3
        )
    _count_at_center(ax, (distance == 0.0).sum(axis=1))
    # The square root keeps honest sites apart beside a hostile one that is ten times as far out.
    ax.set_xscale("function", functions=(lambda x: np.sqrt(np.maximum(x, 0.0)), np.square))
    ticks = _root_ticks(end)
    ax.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    ax.set_xlim(0.0, end)
    ax.set_ylim(len(order) - 0.4, -0.6)
    site_ticks(ax, model, order)
    ax.tick_params(axis="y", length=0, pad=12)
    for place in places[suspect]:
        ax.axhspan(place - 0.41, place + 0.41, color="#FBE9DF", zorder=0, linewidth=0)
    ax.set_xlabel("distance from the center (square-root scale)")
    ax.set_title(title_of_some("Distance against its limit", len(order), model), loc="left", fontsize=11)
    below = -0.55 / (0.27 * len(order) + 0.7)  # 0.55 inches, whatever the height
    ax.legend(loc="upper center", bbox_to_anchor=(0.5, below), ncols=3, frameon=False, fontsize=8)
    return tidy(ax)


def _root_ticks(end: float) -> list[float]:
    """0 and numbers of the kind 1, 2, 5, far enough from each other on a square-root scale."""
    ticks = [0.0]
    for power in range(math.floor(math.log10(end)) - 3, math.floor(math.log10(end)) + 1):
        for digit in (1.0, 2.0, 5.0):
            tick = digit * 10.0**power
            if tick <= end and math.sqrt(tick) - math.sqrt(ticks[-1]) > 0.14 * math.sqrt(end):
                ticks.append(tick)
    return ticks


def _count_at_center(ax: Axes, counts: Array) -> None:
    """A circle at 0 with the number of a site's components there."""
    for place in np.flatnonzero(counts):
        ax.plot(0.0, place, marker="o", markersize=11, mfc="white", mec="#009E73", clip_on=False, zorder=4)
        ax.annotate(str(counts[place]), (0.0, place), ha="center", va="center_baseline", fontsize=7, color="#00513A",
                    zorder=5, annotation_clip=False)  # fmt: skip
