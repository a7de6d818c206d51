"""What was fitted: the sites around the common centers, centers, weights, distances, and how far a site may be."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from fedgrem.estimators.base import BaseFederatedMixture
from fedgrem.plots.axes import (
    ODD_COLOR,
    PALETTE,
    QUIET,
    component_ticks,
    dots,
    finish,
    legend,
    look_of,
    oddest,
    own_axes,
    site_ticks,
    title_of_some,
)
from fedgrem.report import attributes as of
from fedgrem.report.text import contrast, decimals_for, fixed, listed, most_telling, short
from fedgrem.types import Array

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_NAMED = 8
"""Components that are named in full."""
MOST_BESIDE = 70
"""Letters of a legend up to which its entries stand side by side."""
MOST_OBLONG = 8.0
"""Ratio of width to height up to which both axes have the same scale."""
MOST_PARAMETERS = 40
"""Parameters in a heat map; those in which the centers differ most are kept."""
MOST_WRITTEN = 12
"""Components up to which the numbers are written into the heat map."""
ALLOWED = "#E7EDF2"
"""The zone in which a site is not suspect."""


def plot_sites(model: BaseFederatedMixture, ax: Axes | None = None) -> Axes:
    """Every site's components around the common centers, in two dimensions.

    Large marks are the centers, with the number of sites exactly at each, if any is. Small open marks are sites that
    keep their own answer, tied to the center they were pulled to; black crosses belong to suspect sites. More than two
    parameters are projected on the first two principal directions of the centers.
    """
    of.check_fitted(model)
    ax = own_axes(ax, (6.4, 5.2))
    suspect = of.suspect_sites(model)
    centers, points, labels = _projected(model)
    own = ~model.at_center_ & model.has_component_ & ~suspect[:, None]
    for r, center in enumerate(centers):
        look = look_of(r)
        dots(ax, center, s=420, alpha=0.35, linewidths=0, zorder=1, **look)
        dots(ax, center, s=60, linewidths=0, zorder=2, **look)
        for point in points[own[:, r], r]:
            ax.plot(*zip(center, point, strict=True), color=look["color"], linewidth=1.0, alpha=0.8, zorder=2)
        dots(ax, points[own[:, r], r], s=26, marker=look["marker"], facecolors="white", edgecolors=look["color"],
             linewidths=1.3, zorder=3)  # fmt: skip
        _name_center(ax, model, r, center, above=bool(center[1] >= centers[:, 1].mean()))
    for site, away in zip(points[suspect], ~model.at_center_[suspect], strict=True):
        for point, center in zip(site[away], centers[away], strict=True):
            ax.plot(*zip(center, point, strict=True), color=QUIET, linewidth=0.9, linestyle=(0, (2, 3)), zorder=0)
        dots(ax, site[away], s=95, marker="X", color=ODD_COLOR, edgecolors="white", linewidths=1.0, zorder=5)
    _equal_scales(ax, np.concatenate([centers, points.reshape(-1, 2)]))
    if not labels[1]:
        ax.set_yticks([])
    _sites_legend(ax, bool(own.any()), [str(name) for name in model.site_names_[suspect]])
    return finish(ax, "Sites around the common centers", *labels)


def _projected(model: BaseFederatedMixture) -> tuple[Array, Array, tuple[str, str]]:
    """Centers and sites in two dimensions, and what to write on the axes.

    Where the spread within components is known, directions are those of the centers in units of it.
    """
    center, theta, names = model.center_, of.thetas(model), of.parameter_names(model)
    if len(names) == 1:
        center, theta = (np.concatenate([x, np.zeros_like(x)], axis=-1) for x in (center, theta))
        return center, theta, (names[0], "")
    if len(names) == 2:
        return center, theta, (names[0], names[1])
    spread = of.spread_within(model)
    unit = 1.0 if spread is None else np.median(spread, axis=0)
    center, theta = center / unit, theta / unit
    middle = center.mean(axis=0)
    _, values, directions = np.linalg.svd(center - middle, full_matrices=False)
    kept = directions[:2][values[:2] > 1e-9 * max(1.0, values[0])]
    share = values**2 / max(float((values**2).sum()), 1e-300)
    labels = [f"principal direction {i + 1} of the centers ({share[i]:.0%})" for i in range(len(kept))]
    if len(kept) < 2:
        rest = (theta - center).reshape(-1, len(names))
        _, _, others = np.linalg.svd(rest - rest @ kept.T @ kept, full_matrices=True)
        kept = np.vstack([kept, others])[:2]
        labels += [f"principal direction {i + 1} of the sites' deviations" for i in range(2 - len(labels))]
    return (center - middle) @ kept.T, (theta - middle) @ kept.T, (labels[0], labels[1])


def _name_center(ax: Axes, model: BaseFederatedMixture, component: int, center: Array, *, above: bool) -> None:
    """Above a center in the upper half, below one in the lower half, where the suspect sites are not."""
    from matplotlib.patheffects import withStroke

    n_there = int(model.at_center_[:, component].sum())
    there = f"\n{n_there} of {len(model.site_names_)} at it" if model.at_center_.any() else ""
    text = f"component {component}{there}" if len(model.center_) <= MOST_NAMED else str(component)
    halo = [withStroke(linewidth=2.5, foreground="white")]
    ax.annotate(text, (center[0], center[1]), path_effects=halo, xytext=(0, 14 if above else -14),
                textcoords="offset points", ha="center",
                va="bottom" if above else "top", fontsize=8, color="#333333", zorder=6)  # fmt: skip


def _equal_scales(ax: Axes, points: Array) -> None:
    """Room for all points and the names of the centers; what looks twice as far is twice as far.

    Unless one side is much longer than the other: then they are in different units.
    """
    low, high = points.min(axis=0), points.max(axis=0)
    middle, size = (low + high) / 2.0, np.array([1.3, 1.5]) * (high - low)  # names stand above and below
    if size.min() > 0 and size.max() > MOST_OBLONG * size.min():
        size *= [1.0 / 1.3 + 0.3, 1.0 / 1.5 + 0.4]
    else:
        height = max(size[1], 0.75 * size[0], 1e-9)
        size = np.array([max(size[0], height / 0.75), height])
        ax.set_aspect("equal")
    ax.set_xlim(middle[0] - size[0] / 2.0, middle[0] + size[0] / 2.0)
    ax.set_ylim(middle[1] - size[1] / 2.0, middle[1] + size[1] / 2.0)


def _sites_legend(ax: Axes, some_own: bool, suspect_names: list[str]) -> None:
    from matplotlib.lines import Line2D

    def mark(label: str, **style: Any) -> Line2D:
        return Line2D([], [], linestyle="none", label=label, **style)

    entries = [mark("center of a component", marker="o", markersize=13, color=QUIET, alpha=0.5)]
    if some_own:
        entries.append(mark("a site off the center", marker="o", markersize=6, color=QUIET, mfc="white"))
    if suspect_names:
        label = f"suspect site{'s' if len(suspect_names) > 1 else ''}: {listed(suspect_names, 3)}"
        entries.append(mark(label, marker="X", markersize=8, color=ODD_COLOR))
    # A legend wider than the axes would squeeze them.
    beside = sum(len(str(entry.get_label())) for entry in entries) <= MOST_BESIDE
    legend(ax, 0.14, handles=entries, ncols=2 if beside else 1, alignment="left", handletextpad=0.3, columnspacing=1.2)


def plot_weights(model: BaseFederatedMixture, ax: Axes | None = None) -> Axes:
    """Mixture weights of every site as stacked bars, below the typical weights of the center."""
    of.check_fitted(model)
    order = oddest(model)
    ax = own_axes(ax, (6.4, 1.7 + 0.24 * (len(order) + 1)))
    weights = np.vstack([model.center_weights_, model.weights_[order]])
    place = np.concatenate([[-1.6], np.arange(len(order))])
    left = np.cumsum(weights, axis=1) - weights
    for r, weight in enumerate(weights.T):
        ax.barh(place, weight, left=left[:, r], height=0.82, color=look_of(r)["color"], edgecolor="white",
                hatch=None if r < len(PALETTE) else "///", label=str(r))  # fmt: skip
    site_ticks(ax, model, order)
    ax.annotate("center", (0.0, -1.6), xytext=(-8, 0), textcoords="offset points", ha="right", va="center", fontsize=8)
    ax.set_ylim(len(order) - 0.4, -2.2)
    ax.set_xlim(0.0, 1.0)
    below = 0.6 / (0.24 * len(order) + 0.74)  # 0.6 inches, whatever the height
    legend(ax, below, title="component", ncols=min(weights.shape[1], 8), title_fontsize=8, handlelength=1.0,
           columnspacing=1.2)  # fmt: skip
    return finish(ax, title_of_some("Weights", len(order), model), "weight")


def plot_centers(model: BaseFederatedMixture, ax: Axes | None = None) -> Axes:
    """The common centers as a heat map, parameters down and components across, each number in its own unit.

    The colour says where a component lies among all in that parameter, so that columns of any unit can be compared.
    Beyond forty parameters, those in which the centers differ most are shown, by the spread within components where it
    is known.
    """
    of.check_fitted(model)
    center, names = model.center_, of.parameter_names(model)
    kept = most_telling(center, of.parameter_units(model), MOST_PARAMETERS)
    ax = own_axes(ax, (1.8 + 0.62 * min(len(center), 20), 1.3 + 0.26 * len(kept)))
    ax.imshow(contrast(center)[:, kept].T, aspect="auto", cmap="PuOr_r", vmin=-1.6, vmax=1.6)
    for line, j in enumerate(kept if len(center) <= MOST_WRITTEN else []):
        digits = decimals_for(center[:, j])
        for r, value in enumerate(center[:, j]):
            ax.annotate(fixed(value, digits), (r, line), ha="center", va="center", fontsize=7)
    ax.set_yticks(range(len(kept)), [short(names[j]) for j in kept], fontsize=8)
    component_ticks(ax, len(center))
    some = f": {len(kept)} of {len(names)} parameters" if len(kept) < len(names) else ""
    return finish(ax, f"Centers{some}", "component")


def plot_distances(model: BaseFederatedMixture, ax: Axes | None = None) -> Axes:
    """Distance of every component of every site from its center, as a heat map; a dot marks 0, exactly at the center.

    The sites farthest out come first; beyond forty sites only those are shown.
    """
    from matplotlib.colors import PowerNorm

    of.check_fitted(model)
    order = oddest(model)
    distance = model.site_distance_[order]
    ax = own_axes(ax, (1.8 + 0.55 * min(distance.shape[1], 20), 1.6 + 0.26 * len(order)))
    # The square root keeps honest sites apart beside a hostile one that is ten times as far out.
    norm = PowerNorm(0.5, 0.0, float(distance.max()) or 1.0)
    image = ax.imshow(distance, aspect="auto", cmap="cividis", norm=norm)
    dots(ax, np.argwhere(model.at_center_[order])[:, ::-1], s=9, color="white")
    figure: Any = ax.figure
    figure.colorbar(image, ax=ax, label="distance from the center (dot: at it)").outline.set_visible(False)
    site_ticks(ax, model, order)
    component_ticks(ax, distance.shape[1])
    return finish(ax, title_of_some("Distance from the center", len(order), model), "component")


def plot_thresholds(model: BaseFederatedMixture, ax: Axes | None = None) -> Axes:
    """Distance of every component of a site from its center, against how far that site may be before it is suspect.

    One line per site, the farthest first. The cross is where the site's rows alone would lead, as a root mean square
    over components; the shaded bar ends where that makes it suspect. Ticks are the pull of the center on each
    component: what was within it was moved onto the center. Components at the center are counted in the circle at 0.
    """
    of.check_fitted(model)
    order = oddest(model)
    ax = own_axes(ax, (6.4, 1.9 + 0.27 * len(order)))
    distance, tick, limit = model.site_distance_[order], model.site_threshold_[order], of.suspect_beyond(model)[order]
    own, suspect = of.own_distance(model)[order], of.suspect_sites(model)[order]
    places = np.arange(len(order))
    within = np.concatenate([distance.ravel(), limit, own, tick.ravel()])
    end = 1.06 * max(float(within[np.isfinite(within)].max(initial=0.0)), 1e-9)
    ax.barh(places, np.minimum(limit, end), height=0.82, color=ALLOWED, label="not suspect")
    if np.any(shown := np.isfinite(tick) & (tick > 0)):
        rows = np.broadcast_to(places[:, None], tick.shape)
        ax.plot(tick[shown], rows[shown], linestyle="none", marker="|", markersize=9, markeredgewidth=1.0, color=QUIET,
                label="pull of the center")  # fmt: skip
    ax.plot(own, places, linestyle="none", marker="x", markersize=5, color="black", label="its own rows", zorder=3)
    for r, values in enumerate(distance.T):
        ax.scatter(values[values > 0], places[values > 0], s=26, linewidths=0, zorder=3, **look_of(r))
    _count_at_center(ax, model.at_center_[order].sum(axis=1))
    ax.set_xscale("function", functions=(lambda x: np.sqrt(np.maximum(x, 0.0)), np.square))
    ticks = _root_ticks(end)
    ax.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    ax.set_xlim(0.0, end)
    ax.set_ylim(len(order) - 0.4, -0.6)
    site_ticks(ax, model, order)
    ax.tick_params(axis="y", length=0, pad=12)
    for place in places[suspect]:
        ax.axhspan(place - 0.41, place + 0.41, color="#FBE9DF", zorder=0, linewidth=0)
    legend(ax, 0.55 / (0.27 * len(order) + 0.7), ncols=3)  # 0.55 inches, whatever the height
    title = title_of_some("Distance against its limit", len(order), model)
    return finish(ax, title, "distance from the center (square-root scale)")


def _root_ticks(end: float) -> list[float]:
    """0 and numbers of the kind 1, 2, 5, far enough from each other on a square-root scale."""
    ticks, last = [0.0], math.floor(math.log10(end))
    for tick in (digit * 10.0**power for power in range(last - 3, last + 1) for digit in (1.0, 2.0, 5.0)):
        if tick <= end and math.sqrt(tick) - math.sqrt(ticks[-1]) > 0.14 * math.sqrt(end):
            ticks.append(tick)
    return ticks


def _count_at_center(ax: Axes, counts: Array) -> None:
    """A circle at 0 with the number of a site's components there."""
    for place in np.flatnonzero(counts):
        ax.plot(0.0, place, marker="o", markersize=11, mfc="white", mec="#009E73", clip_on=False, zorder=4)
        ax.annotate(str(counts[place]), (0.0, place), ha="center", va="center_baseline", fontsize=7, color="#00513A",
                    zorder=5, annotation_clip=False)  # fmt: skip
