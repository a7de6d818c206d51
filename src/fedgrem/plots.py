"""Plots of a fitted model: each takes a model, draws on matplotlib Axes, and returns them.

No pyplot, hence no global state and no display: save with ``ax.figure.savefig("sites.png")``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from fedgrem.errors import InputError, MissingExtraError
from fedgrem.estimators.base import BaseFederatedMixture
from fedgrem.report.summary import check_fitted, odd_sites, parameter_names, thetas
from fedgrem.types import NumpyArray

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PALETTE = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#7F7F7F")
"""Okabe and Ito's colours, which people with any common colour blindness can tell apart."""
ODD_COLOR = "#000000"
QUIET = "#9A9A9A"
MARKERS = ("o", "s", "^", "D", "v", "P", "h", "<")
"""Beyond eight components the colours come round again, with another shape."""
MOST_NAMED = 8
"""Components that are named in full in a plot of sites."""
MOST_ROWS = 40
"""Sites in a plot with one line per site; the oddest are kept."""


def plot_sites(model: BaseFederatedMixture, ax: Axes | None = None) -> Axes:
    """Every site's components around the common centers, in two dimensions.

    Large marks are the centers, with the number of sites exactly at each. Small open marks are sites that keep their
    own answer, tied to the center they were pulled to; black crosses belong to odd sites. More than two parameters are
    projected on the first two principal directions of the centers.
    """
    check_fitted(model)
    ax = _axes(ax, (6.4, 5.2))
    theta, odd = thetas(model), odd_sites(model)
    project, labels = _projection(model.center_, theta, parameter_names(model))
    centers, points = project(model.center_), project(theta)
    for r, center in enumerate(centers):
        color, marker = _color(r), _marker(r)
        own = ~model.at_center_[:, r] & ~odd
        _dots(ax, center, s=420, marker=marker, color=color, alpha=0.35, linewidths=0, zorder=1)
        _dots(ax, center, s=60, marker=marker, color=color, linewidths=0, zorder=2)
        for point in points[own, r]:
            ax.plot(*zip(center, point, strict=True), color=color, linewidth=1.0, alpha=0.8, zorder=2)
        _dots(ax, points[own, r], s=26, marker=marker, facecolors="white", edgecolors=color, linewidths=1.3, zorder=3)
        _name_center(ax, model, r, center, above=bool(center[1] >= centers[:, 1].mean()))
    _mark_odd(ax, points[odd], centers)
    _equal_scales(ax, np.concatenate([centers, points.reshape(-1, 2)]))
    ax.set_xlabel(labels[0])
    ax.set_ylabel(labels[1])
    if not labels[1]:
        ax.set_yticks([])
    ax.set_title("Sites around the common centers", loc="left", fontsize=11)
    _sites_legend(ax, bool((~model.at_center_ & ~odd[:, None]).any()), [str(n) for n in model.site_names_[odd]])
    return _tidy(ax)


def plot_distances(model: BaseFederatedMixture, ax: Axes | None = None) -> Axes:
    """Distance of every component of every site from its center, as a heat map; a dot marks 0, exactly at the center.

    The sites farthest out come first; beyond forty sites only those are shown.
    """
    from matplotlib.colors import PowerNorm

    check_fitted(model)
    order = _oddest(model)
    distance = model.site_distance_[order]
    ax = _axes(ax, (1.8 + 0.55 * min(distance.shape[1], 20), 1.6 + 0.26 * len(order)))
    top = float(distance.max())
    # The square root keeps honest sites apart beside a hostile one that is ten times as far out.
    image = ax.imshow(distance, aspect="auto", cmap="cividis", norm=PowerNorm(0.5, 0.0, top if top > 0 else 1.0))
    rows, columns = np.nonzero(distance == 0.0)
    ax.scatter(columns, rows, s=9, color="white")
    bar = _figure_of(ax).colorbar(image, ax=ax, label="distance from the center (dot: at it)")
    bar.outline.set_visible(False)
    _site_ticks(ax, model, order)
    _component_ticks(ax, distance.shape[1])
    ax.set_title(_title("Distance from the center", len(order), model), loc="left", fontsize=11)
    return _tidy(ax)


def plot_convergence(model: BaseFederatedMixture, ax: Axes | None = None) -> Axes:
    """How far each site and the center moved in every round, on a log scale, down to the tolerance."""
    check_fitted(model)
    ax = _axes(ax, (6.4, 4.2))
    movement, center = (_positive(model.history_[name]) for name in ("movement", "center_movement"))
    rounds, odd = np.arange(1, len(movement) + 1), odd_sites(model)
    ordinary = np.flatnonzero(~odd)[:200]
    for place, k in enumerate(ordinary):
        ax.plot(rounds, movement[:, k], color=QUIET, linewidth=0.8, alpha=0.7, label=None if place else "a site")
    for place, k in enumerate(np.flatnonzero(odd)[:20]):
        ax.plot(rounds, movement[:, k], color="#D55E00", linewidth=1.4, label=None if place else "an odd site")
    ax.plot(rounds, center, color="#0072B2", linewidth=2.2, label="the center")
    if model.tol > 0:
        ax.axhline(model.tol, color="black", linestyle=":", linewidth=1.0)
        ax.annotate("tolerance", (0.0, model.tol), xycoords=("axes fraction", "data"), xytext=(4, 3),
                    textcoords="offset points", fontsize=8)  # fmt: skip
    ax.set_yscale("log")
    ax.set_xlabel("round")
    ax.set_ylabel("relative movement")
    ax.set_title("Movement per round", loc="left", fontsize=11)
    ax.legend(frameon=False, fontsize=8)
    return _tidy(ax)


def plot_weights(model: BaseFederatedMixture, ax: Axes | None = None) -> Axes:
    """Mixture weights of every site as stacked bars, below the typical weights of the center."""
    check_fitted(model)
    order = _oddest(model)
    ax = _axes(ax, (6.4, 1.7 + 0.24 * (len(order) + 1)))
    weights = np.vstack([model.center_weights_, model.weights_[order]])
    place = np.concatenate([[-1.6], np.arange(len(order))])
    left = np.zeros(len(weights))
    for r, weight in enumerate(weights.T):
        hatch = None if r < len(PALETTE) else "///"
        ax.barh(place, weight, left=left, height=0.82, color=_color(r), edgecolor="white", hatch=hatch, label=str(r))
        left = left + weight
    _site_ticks(ax, model, order)
    ax.annotate("center", (0.0, -1.6), xytext=(-8, 0), textcoords="offset points", ha="right", va="center", fontsize=8)
    ax.set_ylim(len(order) - 0.4, -2.2)
    ax.set_xlim(0.0, 1.0)
    ax.set_xlabel("weight")
    ax.set_title(_title("Weights", len(order), model), loc="left", fontsize=11)
    columns = min(weights.shape[1], 8)
    below = -0.6 / (0.24 * len(order) + 0.74)  # 0.6 inches, whatever the height
    ax.legend(title="component", ncols=columns, loc="upper center", bbox_to_anchor=(0.5, below),
              frameon=False, fontsize=8, title_fontsize=8, handlelength=1.0, columnspacing=1.2)  # fmt: skip
    return _tidy(ax)


def plot_errors(errors: Mapping[str, NumpyArray], site_names: list[str], ax: Axes | None = None) -> Axes:
    """Errors of two fits at every site, joined by a line; a site without truth (NaN) is named and left empty.

    Parameters
    ----------
    errors : the name of each of two fits -> (K,) errors; the first is the one to beat.
    site_names : (K,)
    ax : where to draw; a new figure by default.
    """
    if len(errors) != 2:
        raise InputError(f"errors holds {len(errors)} fits, expected 2: the one to beat and the one that should.")
    ax = _axes(ax, (5.6, 1.6 + 0.3 * len(site_names)))
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
    return _tidy(ax)


def demo_figure(model: BaseFederatedMixture, errors: Mapping[str, NumpyArray], title: str) -> Figure:
    """Two panels: the sites around the centers, and what each site gained."""
    figure = _new_figure((12.0, 5.4))
    left, right = figure.subplots(1, 2, width_ratios=[1.35, 1.0])
    plot_sites(model, left)
    plot_errors(errors, [str(name) for name in model.site_names_], right)
    figure.suptitle(title, x=0.01, ha="left", fontsize=13, fontweight="bold")
    return figure


def overview_figure(model: BaseFederatedMixture) -> Figure:
    """All four plots of a model on one page."""
    height = 2.4 + 0.2 * min(len(model.site_names_), MOST_ROWS)
    figure = _new_figure((13.0, 4.8 + height))
    axes = figure.subplots(2, 2, height_ratios=[4.8, height])
    for plot, ax in zip((plot_sites, plot_convergence, plot_distances, plot_weights), axes.ravel(), strict=True):
        plot(model, ax)
    return figure


def _new_figure(size: tuple[float, float]) -> Figure:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError(
            "plots need matplotlib, which is not installed; run: pip install 'fedgrem[plots]' (or: pip install "
            "matplotlib)."
        ) from error
    return Figure(figsize=size, layout="constrained", dpi=100)


def _axes(ax: Axes | None, size: tuple[float, float]) -> Axes:
    return _new_figure(size).subplots() if ax is None else ax


def _dots(ax: Axes, points: NumpyArray, **style: Any) -> None:
    ax.scatter(points[..., 0], points[..., 1], **style)


def _figure_of(ax: Axes) -> Any:
    return ax.figure


def _tidy(ax: Axes) -> Axes:
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
    return ax


def _color(component: int) -> str:
    return PALETTE[component % len(PALETTE)]


def _marker(component: int) -> str:
    return MARKERS[component // len(PALETTE) % len(MARKERS)]


def _ink(color: str) -> str:
    """Black or white, whichever can be read on this colour."""
    red, green, blue = (int(color[i : i + 2], 16) for i in (1, 3, 5))
    return "black" if 0.299 * red + 0.587 * green + 0.114 * blue > 150 else "white"


def _projection(center: NumpyArray, theta: NumpyArray, names: list[str]) -> tuple[Any, tuple[str, str]]:
    """A function to two dimensions, and what to write on the axes."""
    if len(names) == 1:
        return (lambda x: np.stack([x[..., 0], np.zeros(x.shape[:-1])], axis=-1)), (names[0], "")
    if len(names) == 2:
        return (lambda x: x), (names[0], names[1])
    middle = center.mean(axis=0)
    _, values, directions = np.linalg.svd(center - middle, full_matrices=False)
    kept = directions[:2][values[:2] > 1e-9 * max(1.0, values[0])]
    share = values**2 / max(float((values**2).sum()), 1e-300)
    labels = [f"principal direction {i + 1} of the centers ({share[i]:.0%} of their spread)" for i in range(len(kept))]
    if len(kept) < 2:
        rest = (theta - center).reshape(-1, len(names))
        _, _, others = np.linalg.svd(rest - rest @ kept.T @ kept, full_matrices=True)
        kept = np.vstack([kept, others])[:2]
        labels += [f"principal direction {i + 1} of the sites' deviations" for i in range(2 - len(labels))]
    return (lambda x: (x - middle) @ kept.T), (labels[0], labels[1])


def _name_center(ax: Axes, model: BaseFederatedMixture, component: int, center: NumpyArray, *, above: bool) -> None:
    """Above a center in the upper half, below one in the lower half, where the odd sites are not."""
    from matplotlib.patheffects import withStroke

    n_there = int(model.at_center_[:, component].sum())
    few = len(model.center_) <= MOST_NAMED
    text = f"component {component}\n{n_there} of {len(model.site_names_)} at it" if few else str(component)
    halo = [withStroke(linewidth=2.5, foreground="white")]
    ax.annotate(text, (center[0], center[1]), path_effects=halo, xytext=(0, 14 if above else -14),
                textcoords="offset points", ha="center",
                va="bottom" if above else "top", fontsize=8, color="#333333", zorder=6)  # fmt: skip


def _equal_scales(ax: Axes, points: NumpyArray) -> None:
    """Room for all points and the names of the centers; what looks twice as far is twice as far."""
    low, high = points.min(axis=0), points.max(axis=0)
    width, height = 1.3 * (high - low)
    height = max(height, 0.75 * width, 1e-9)
    width = max(width, height / 0.75)
    middle = (low + high) / 2.0
    ax.set_xlim(middle[0] - width / 2.0, middle[0] + width / 2.0)
    ax.set_ylim(middle[1] - height / 2.0, middle[1] + height / 2.0)
    ax.set_aspect("equal")


def _mark_odd(ax: Axes, points: NumpyArray, centers: NumpyArray) -> None:
    """Crosses, tied to the centers they are meant to estimate; ``points`` is (sites, R, 2)."""
    for site in points:
        for point, center in zip(site, centers, strict=True):
            ax.plot(*zip(center, point, strict=True), color=QUIET, linewidth=0.9, linestyle=(0, (2, 3)), zorder=0)
        _dots(ax, site, s=95, marker="X", color=ODD_COLOR, edgecolors="white", linewidths=1.0, zorder=5)


def _sites_legend(ax: Axes, some_own: bool, odd_names: list[str]) -> None:
    from matplotlib.lines import Line2D

    def mark(label: str, **style: Any) -> Line2D:
        return Line2D([], [], linestyle="none", label=label, **style)

    entries = [mark("center of a component", marker="o", markersize=13, color=QUIET, alpha=0.5)]
    if some_own:
        entries.append(mark("a site that keeps its own answer", marker="o", markersize=6, color=QUIET, mfc="white"))
    if odd_names:
        listed = ", ".join(odd_names[:3]) + (f" and {len(odd_names) - 3} more" if len(odd_names) > 3 else "")
        label = f"odd site{'s' if len(odd_names) > 1 else ''}: {listed}"
        entries.append(mark(label, marker="X", markersize=8, color=ODD_COLOR))
    ax.legend(handles=entries, frameon=False, fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=3,
              handletextpad=0.3, columnspacing=1.2)  # fmt: skip


def _oddest(model: BaseFederatedMixture) -> NumpyArray:
    order = np.argsort(-model.site_distance_.max(axis=1), kind="stable")
    return np.asarray(order[:MOST_ROWS])


def _title(text: str, n_shown: int, model: BaseFederatedMixture) -> str:
    n_sites = len(model.site_names_)
    return text if n_shown == n_sites else f"{text}: the {n_shown} sites farthest out, of {n_sites}"


def _site_ticks(ax: Axes, model: BaseFederatedMixture, order: NumpyArray) -> None:
    odd = odd_sites(model)
    ax.set_yticks(range(len(order)), [_short(str(model.site_names_[k])) for k in order], fontsize=8)
    for label, k in zip(ax.get_yticklabels(), order, strict=True):
        label.set_color("#D55E00" if odd[k] else "black")
        label.set_fontweight("bold" if odd[k] else "normal")


def _short(name: str) -> str:
    return name if len(name) <= 24 else name[:23] + "…"


def _component_ticks(ax: Axes, n_components: int) -> None:
    step = -(-n_components // 20)
    ax.set_xticks(range(0, n_components, step))
    ax.set_xlabel("component")


def _positive(values: NumpyArray) -> NumpyArray:
    """A log scale has no place for 0: a site that did not move at all leaves a gap."""
    return np.where(values > 0, values, np.nan)
