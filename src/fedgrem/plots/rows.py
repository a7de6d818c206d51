"""Rows themselves, in two dimensions. Rows are private: nothing else in the package draws any."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import narwhals as nw
import numpy as np

from fedgrem.data.tables import is_frame
from fedgrem.estimators.base import BaseFederatedMixture
from fedgrem.plots.axes import ODD_COLOR, dots, finish, legend, look_of, own_axes
from fedgrem.report.attributes import suspect_sites
from fedgrem.report.gain import GivenRows, given_rows
from fedgrem.types import Array

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_LISTED = 12
"""Components that a legend lists."""


def plot_rows(
    model: BaseFederatedMixture,
    X: Any,
    y: Any = None,
    *,
    sites: Any = None,
    n_rows: int = 500,
    seed: int = 0,
    ax: Axes | None = None,
) -> Axes:
    """A random sample of rows on their first two principal directions, coloured by their most probable component.

    Columns are centered and scaled by the rows of sites that are not suspect, which also give the directions and the
    limits of the picture; rows of suspect sites are crosses.

    Parameters
    ----------
    model : a fitted model.
    X, y, sites : rows, as in ``fit``.
    n_rows : how many to draw; all if there are fewer.
    seed : of the sample.
    ax : where to draw; a new figure by default.
    """
    given = given_rows(model, X, y, sites)
    ax = own_axes(ax, (6.4, 5.2))
    n = len(given.site)
    chosen = np.sort(np.random.default_rng(seed).choice(n, size=min(n_rows, n), replace=False))
    sample = given.take(chosen)
    component, suspect = _components(model, sample), suspect_sites(model)[sample.site]
    points, center, share = _project(model, sample, suspect)
    for r in range(model.weights_.shape[1]):
        look = look_of(r)
        name = f"component {r}" if r < MOST_LISTED else None
        mine = (component == r) & ~suspect
        dots(ax, points[mine], s=14, linewidths=0, alpha=0.75, label=None if center is not None else name, **look)
        if center is not None:
            dots(ax, center[r], s=150, edgecolors="black", linewidths=1.2, zorder=4, label=name, **look)
    if suspect.any():
        dots(ax, points[suspect], s=22, marker="x", color=ODD_COLOR, linewidths=1.0, label="a row of a suspect site")
    _limit(ax, points if suspect.all() else points[~suspect], points)
    legend(ax, 0.14, ncols=3, handletextpad=0.3, columnspacing=1.2)
    labels = (f"principal direction 1 ({share[0]:.0%} of the spread)", f"principal direction 2 ({share[1]:.0%})")
    return finish(ax, f"{len(chosen):,} of {n:,} rows", *labels)


def _components(model: Any, sample: GivenRows) -> Array:
    labels = model.site_names_[sample.site]
    if sample.target is None:
        return np.asarray(model.predict(sample.rows, sites=labels))
    return np.asarray(model.predict_component(sample.rows, sample.target, sites=labels))


def _project(model: BaseFederatedMixture, sample: GivenRows, suspect: Array) -> tuple[Array, Array | None, Array]:
    """The rows, the centers where they are points among the rows, and the share of the spread in either direction."""
    rows = nw.from_native(sample.rows, eager_only=True).to_numpy() if is_frame(sample.rows) else sample.rows
    rows = np.asarray(rows, dtype=float)
    ordinary = rows if suspect.all() else rows[~suspect]
    middle, scale = np.nanmean(ordinary, axis=0), np.nanstd(ordinary, axis=0)
    scale = np.where(scale > 0, scale, 1.0)
    _, values, directions = np.linalg.svd(_standardized(ordinary, middle, scale), full_matrices=False)
    two = np.zeros((2, rows.shape[1]))
    two[: min(2, len(directions))] = directions[:2]
    share = np.zeros(2)
    share[: min(2, len(values))] = values[:2] ** 2 / max(float((values**2).sum()), 1e-300)
    among_rows = model._theta_name == "means"
    center = _standardized(model.center_, middle, scale) @ two.T if among_rows else None
    return _standardized(rows, middle, scale) @ two.T, center, share


def _standardized(rows: Array, middle: Array, scale: Array) -> Array:
    """In standard deviations from the middle; a missing value is put there."""
    return np.nan_to_num((rows - middle) / scale)


def _limit(ax: Axes, ordinary: Array, points: Array) -> None:
    """Room for the rows of sites that are not suspect; how many others are out of sight is written down."""
    low, high = ordinary.min(axis=0), ordinary.max(axis=0)
    room = 0.15 * np.maximum(high - low, 1e-9)
    low, high = low - room, high + room
    ax.set_xlim(low[0], high[0])
    ax.set_ylim(low[1], high[1])
    n_outside = int(((points < low) | (points > high)).any(axis=1).sum())
    if n_outside:
        ax.annotate(f"out of sight: {n_outside:,} rows of suspect sites", (0.99, 0.01), xycoords="axes fraction",
                    ha="right", va="bottom", fontsize=8, color="#555555", style="italic")  # fmt: skip
