"""What the plots share: colours, marks, axes and ticks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from fedgrem.errors import MissingExtraError
from fedgrem.estimators.base import BaseFederatedMixture
from fedgrem.report.attributes import suspect_sites
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


def figure_of(ax: Axes) -> Any:
    """The figure that axes are on."""
    return ax.figure


def tidy(ax: Axes, grid: Any = "") -> Axes:
    """Without the frame's upper and right side; with a pale grid across the axis ``grid``, "x" or "y"."""
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
    if grid:
        ax.grid(axis=grid, which="major", color="#E6E6E6", linewidth=0.8)
        ax.set_axisbelow(True)
    return ax


def dots(ax: Axes, points: Array, **style: Any) -> None:
    """Points ``(..., 2)``, scattered."""
    ax.scatter(points[..., 0], points[..., 1], **style)


def color_of(component: int) -> str:
    """Of a component, as everywhere."""
    return PALETTE[component % len(PALETTE)]


def marker_of(component: int) -> str:
    """Of a component, as everywhere."""
    return MARKERS[component // len(PALETTE) % len(MARKERS)]


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
    suspect = suspect_sites(model)
    ax.set_yticks(range(len(order)), [short(str(model.site_names_[k])) for k in order], fontsize=8)
    for label, k in zip(ax.get_yticklabels(), order, strict=True):
        label.set_color("#D55E00" if suspect[k] else "black")
        label.set_fontweight("bold" if suspect[k] else "normal")


def short(name: str) -> str:
    """A name cut to 24 letters."""
    return name if len(name) <= 24 else name[:23] + "…"


def component_ticks(ax: Axes, n_components: int) -> None:
    """Numbers of the components along the axis."""
    step = -(-n_components // 20)
    ax.set_xticks(range(0, n_components, step))
    ax.set_xlabel("component")


def positive(values: Array) -> Array:
    """A log scale has no place for 0: a site that did not move at all leaves a gap."""
    return np.where(values > 0, values, np.nan)
