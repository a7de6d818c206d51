"""What the plots share: colours, marks, axes, ticks and legends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fedgrem.errors import MissingExtraError
from fedgrem.estimators.base import BaseFederatedMixture
from fedgrem.report.attributes import suspect_sites
from fedgrem.report.text import short
from fedgrem.types import Array

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PALETTE = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#7F7F7F")
"""Okabe and Ito's colours, which people with any common colour blindness can tell apart."""
ODD_COLOR = "#000000"
QUIET = "#9A9A9A"
LOSS_COLOR = "#D55E00"
MARKERS = ("o", "s", "^", "D", "v", "P", "h", "<")
"""Beyond eight components the colours come round again, with another shape."""
MOST_ROWS = 40
"""Sites in a plot with one line per site; the oddest are kept."""


def new_figure(size: tuple[float, float], dpi: int = 100) -> Figure:
    """An empty figure without pyplot; says how to get matplotlib where it is missing."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError(
            "plots need matplotlib, which is not installed; run: pip install 'fedgrem[plots]' (or: pip install "
            "matplotlib)."
        ) from error
    return Figure(figsize=size, layout="constrained", dpi=dpi)


def own_axes(ax: Axes | None, size: tuple[float, float]) -> Axes:
    """The axes given, or those of a new figure of this size in inches."""
    return new_figure(size).subplots() if ax is None else ax


def finish(ax: Axes, title: str, x: str = "", y: str = "", grid: Any = "") -> Axes:
    """Title and labels, no frame above and to the right."""
    ax.set_title(title, loc="left", fontsize=11)
    ax.set_xlabel(x)
    ax.set_ylabel(y)
    return tidy(ax, grid)


def tidy(ax: Axes, grid: Any = "") -> Axes:
    """Without the frame's upper and right side; with a pale grid across the axis ``grid``, "x" or "y"."""
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
    if grid:
        ax.grid(axis=grid, which="major", color="#E6E6E6", linewidth=0.8)
        ax.set_axisbelow(True)
    return ax


def legend(ax: Axes, below: float | None = None, **style: Any) -> None:
    """Without a frame; ``below`` the axes by this share of their height, or inside."""
    place = {} if below is None else {"loc": "upper center", "bbox_to_anchor": (0.5, -below)}
    ax.legend(frameon=False, fontsize=8, **place | style)


def dots(ax: Axes, points: Array, **style: Any) -> None:
    """Points ``(..., 2)``, scattered."""
    ax.scatter(points[..., 0], points[..., 1], **style)


def look_of(component: int) -> dict[str, Any]:
    """Colour and shape of a component, as everywhere."""
    return {"color": PALETTE[component % len(PALETTE)], "marker": MARKERS[component // len(PALETTE) % len(MARKERS)]}


def ink_on(color: str) -> str:
    """Black or white, whichever can be read on this colour."""
    red, green, blue = (int(color[i : i + 2], 16) for i in (1, 3, 5))
    return "black" if 0.299 * red + 0.587 * green + 0.114 * blue > 150 else "white"


def oddest(model: BaseFederatedMixture) -> Array:
    """The sites farthest out, at most forty, the farthest first."""
    order = np.argsort(-model.site_distance_.max(axis=1), kind="stable")
    return np.asarray(order[:MOST_ROWS])


def title_of_some(text: str, n_shown: int, model: BaseFederatedMixture) -> str:
    """A title that says how many sites are left out."""
    n_sites = len(model.site_names_)
    return text if n_shown == n_sites else f"{text}:\nthe {n_shown} sites farthest out, of {n_sites}"


def site_ticks(ax: Axes, model: BaseFederatedMixture, order: Array) -> None:
    """Names of these sites down the axis, those of suspect ones in bold."""
    name_ticks(ax, [str(name) for name in model.site_names_[order]], suspect_sites(model)[order].tolist())


def name_ticks(ax: Axes, names: Sequence[str], bold: Sequence[bool]) -> None:
    """Names down the axis, some of them stressed."""
    ax.set_yticks(range(len(names)), [short(name) for name in names], fontsize=8)
    for label, stressed in zip(ax.get_yticklabels(), bold, strict=True):
        label.set_color(LOSS_COLOR if stressed else "black")
        label.set_fontweight("bold" if stressed else "normal")


def component_ticks(ax: Axes, n_components: int) -> None:
    """Numbers of the components along the axis."""
    ax.set_xticks(range(0, n_components, -(-n_components // 20)))
