"""The sites around the common centers, in two dimensions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from fedgrem.estimators.base import BaseFederatedMixture
from fedgrem.plots.axes import ODD_COLOR, QUIET, color_of, dots, marker_of, own_axes, tidy
from fedgrem.report.attributes import check_fitted, parameter_names, spread_within, suspect_sites, thetas
from fedgrem.types import Array

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_NAMED = 8
"""Components that are named in full."""
MOST_BESIDE = 70
"""Letters of a legend up to which its entries stand side by side."""
MOST_OBLONG = 8.0
"""Ratio of width to height up to which both axes have the same scale."""


def plot_sites(model: BaseFederatedMixture, ax: Axes | None = None) -> Axes:
    """Every site's components around the common centers, in two dimensions.

    Large marks are the centers, with the number of sites exactly at each. Small open marks are sites that keep their
    own answer, tied to the center they were pulled to; black crosses belong to suspect sites. More than two parameters
    are projected on the first two principal directions of the centers.
    """
    check_fitted(model)
    ax = own_axes(ax, (6.4, 5.2))
    theta, suspect = thetas(model), suspect_sites(model)
    project, labels = _projection(model, theta)
    centers, points = project(model.center_), project(theta)
    for r, center in enumerate(centers):
        color, marker = color_of(r), marker_of(r)
        own = ~model.at_center_[:, r] & ~suspect
        dots(ax, center, s=420, marker=marker, color=color, alpha=0.35, linewidths=0, zorder=1)
        dots(ax, center, s=60, marker=marker, color=color, linewidths=0, zorder=2)
        for point in points[own, r]:
            ax.plot(*zip(center, point, strict=True), color=color, linewidth=1.0, alpha=0.8, zorder=2)
        dots(ax, points[own, r], s=26, marker=marker, facecolors="white", edgecolors=color, linewidths=1.3, zorder=3)
        _name_center(ax, model, r, center, above=bool(center[1] >= centers[:, 1].mean()))
    _mark_suspects(ax, points[suspect], centers, model.at_center_[suspect])
    _equal_scales(ax, np.concatenate([centers, points.reshape(-1, 2)]))
    ax.set_xlabel(labels[0])
    ax.set_ylabel(labels[1])
    if not labels[1]:
        ax.set_yticks([])
    ax.set_title("Sites around the common centers", loc="left", fontsize=11)
    _sites_legend(ax, bool((~model.at_center_ & ~suspect[:, None]).any()), [str(n) for n in model.site_names_[suspect]])
    return tidy(ax)


def _projection(model: BaseFederatedMixture, theta: Array) -> tuple[Any, tuple[str, str]]:
    """A function to two dimensions, and what to write on the axes.

    Where the spread within components is known, directions are those of the centers in units of it.
    """
    center, names = model.center_, parameter_names(model)
    if len(names) == 1:
        return (lambda x: np.stack([x[..., 0], np.zeros(x.shape[:-1])], axis=-1)), (names[0], "")
    if len(names) == 2:
        return (lambda x: x), (names[0], names[1])
    spread = spread_within(model)
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
    return (lambda x: (x / unit - middle) @ kept.T), (labels[0], labels[1])


def _name_center(ax: Axes, model: BaseFederatedMixture, component: int, center: Array, *, above: bool) -> None:
    """Above a center in the upper half, below one in the lower half, where the suspect sites are not."""
    from matplotlib.patheffects import withStroke

    n_there = int(model.at_center_[:, component].sum())
    few = len(model.center_) <= MOST_NAMED
    text = f"component {component}\n{n_there} of {len(model.site_names_)} at it" if few else str(component)
    halo = [withStroke(linewidth=2.5, foreground="white")]
    ax.annotate(text, (center[0], center[1]), path_effects=halo, xytext=(0, 14 if above else -14),
                textcoords="offset points", ha="center",
                va="bottom" if above else "top", fontsize=8, color="#333333", zorder=6)  # fmt: skip


def _equal_scales(ax: Axes, points: Array) -> None:
    """Room for all points and the names of the centers; what looks twice as far is twice as far.

    Unless one side is much longer than the other: then they are in different units.
    """
    low, high = points.min(axis=0), points.max(axis=0)
    width, height = 1.3 * (high[0] - low[0]), 1.5 * (high[1] - low[1])  # names stand above and below
    if min(width, height) > 0 and max(width, height) > MOST_OBLONG * min(width, height):
        ax.set_xlim(low[0] - 0.15 * width, high[0] + 0.15 * width)
        ax.set_ylim(low[1] - 0.2 * height, high[1] + 0.2 * height)
        return
    height = max(height, 0.75 * width, 1e-9)
    width = max(width, height / 0.75)
    middle = (low + high) / 2.0
    ax.set_xlim(middle[0] - width / 2.0, middle[0] + width / 2.0)
    ax.set_ylim(middle[1] - height / 2.0, middle[1] + height / 2.0)
    ax.set_aspect("equal")


def _mark_suspects(ax: Axes, points: Array, centers: Array, at_center: Array) -> None:
    """Crosses, tied to the centers they are meant to estimate; ``points`` is (sites, R, 2)."""
    for site, there in zip(points, at_center, strict=True):
        for point, center in zip(site[~there], centers[~there], strict=True):
            ax.plot(*zip(center, point, strict=True), color=QUIET, linewidth=0.9, linestyle=(0, (2, 3)), zorder=0)
        dots(ax, site[~there], s=95, marker="X", color=ODD_COLOR, edgecolors="white", linewidths=1.0, zorder=5)


def _sites_legend(ax: Axes, some_own: bool, suspect_names: list[str]) -> None:
    from matplotlib.lines import Line2D

    def mark(label: str, **style: Any) -> Line2D:
        return Line2D([], [], linestyle="none", label=label, **style)

    entries = [mark("center of a component", marker="o", markersize=13, color=QUIET, alpha=0.5)]
    if some_own:
        entries.append(mark("a site that keeps its own answer", marker="o", markersize=6, color=QUIET, mfc="white"))
    if suspect_names:
        listed = ", ".join(suspect_names[:3]) + (
            f" and {len(suspect_names) - 3} more" if len(suspect_names) > 3 else ""
        )
        label = f"suspect site{'s' if len(suspect_names) > 1 else ''}: {listed}"
        entries.append(mark(label, marker="X", markersize=8, color=ODD_COLOR))
    # A legend wider than the axes would squeeze them.
    beside = sum(len(str(entry.get_label())) for entry in entries) <= MOST_BESIDE
    ax.legend(handles=entries, frameon=False, fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.14),
              ncols=2 if beside else 1, alignment="left", handletextpad=0.3, columnspacing=1.2)  # fmt: skip
