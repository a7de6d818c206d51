"""The tables on the page of a fit: what stands in each cell, and its shade. Plain values, no markup."""

from typing import Any, NamedTuple

import numpy as np

from fedgrem.estimators.base import BaseFederatedMixture
from fedgrem.report import attributes as of
from fedgrem.report.summary import SiteSummary, Summary
from fedgrem.report.text import contrast, decimals_for, fixed, largest, most_telling, number, signed
from fedgrem.types import Array

CLEARLY = 1.25
"""Times the common spread, or its inverse, from which on another spread is worth a word."""
BEYOND_CHANCE = 3.0
"""Standard errors of a log spread within which it may be chance."""
MOST_PARAMETERS = 40
"""Parameters in a map; those that differ most are kept."""
MOST_OPENED = 12
"""Sites whose deviations from the center are shown column by column."""
SHADES = 5
NORMAL_95 = 1.959964
"""Standard errors either side of an estimate that make an interval of 95%."""


class Cell(NamedTuple):
    """One cell of a table."""

    text: str = ""
    kind: str = ""
    """Its class, mostly a shade."""
    title: str = ""
    """What one reads when pointing at it."""
    small: str = ""
    """Below it, in small print."""


class Table(NamedTuple):
    """Parameters down, components across."""

    rows: list[tuple[str, list[Cell]]]
    """Name and cells of each line."""
    n_more: int
    """Parameters that are left out."""
    last: str = ""
    """Head of one more column, if there is one."""


def center_map(model: BaseFederatedMixture) -> Table:
    """The common centers in the columns' own units, with standard deviations within components where they are known."""
    center, names, errors, spread = model.center_, of.parameter_names(model), model.center_se_, of.spread_within(model)
    own = spread is not None and len(spread) == len(center) > 1
    shared = spread is not None and not own
    shades, kept = contrast(center), most_telling(center, of.parameter_units(model), MOST_PARAMETERS)
    rows = [("typical weight", [Cell(f"{weight:.0%}") for weight in model.center_weights_] + [Cell()] * shared)]
    for j in kept:
        digits = decimals_for(center[:, j])
        within = [] if spread is None else [f"± {fixed(value, digits)}" for value in spread[:, j]]
        known = _known_to(center[:, j], None if errors is None else errors[:, j])
        cells = [
            Cell(fixed(value, digits), _shade(shades[r, j]), known[r], within[r] if own else "")
            for r, value in enumerate(center[:, j])
        ]
        rows.append((names[j], cells + ([Cell(small=within[0])] if shared else [])))
    for name in ("intercept", "noise"):
        values = of.center_line(model, name)
        if values is not None:
            digits = decimals_for(values)
            known = _known_to(values, getattr(model, f"center_{name}_se_", None))
            cells = [Cell(fixed(value, digits), title=known[r]) for r, value in enumerate(values)]
            rows.append((name, cells + [Cell()] * shared))
    return Table(rows, len(names) - len(kept), "spread within" if shared else "")


def _known_to(values: Array, errors: Array | None) -> list[str]:
    """How well each is known; "-" where nothing can be said, and nothing where nobody asked."""
    if errors is None:
        return [""] * len(values)
    told = []
    for value, error in zip(values, errors, strict=True):
        if not np.isfinite(error):
            told.append("standard error -")
            continue
        ends = value - NORMAL_95 * error, value + NORMAL_95 * error
        low, high = (fixed(end, decimals_for(ends)) for end in ends)
        told.append(f"standard error {number(error)}, 95% interval {low} to {high}")
    return told


def site_map(model: BaseFederatedMixture, summary: Summary) -> dict[str, Any]:
    """One line per site, the oddest first: verdict, rows, weights, distance of each component, and its limits."""
    names = [site.name for site in summary.sites]
    limits, pulls = (
        dict(zip(names, values, strict=True)) for values in (of.suspect_beyond(model), model.site_threshold_)
    )
    judged = bool(np.isfinite(list(limits.values())).any())
    farthest = max([site.farthest for site in summary.sites] + [1e-12])
    away = model.site_distance_[model.site_distance_ > 0]
    digits = max(0, decimals_for([0.0, float(np.median(away))]) - 1) if len(away) else 1

    def distance(site: SiteSummary, r: int, scale: float) -> Cell:
        """Shaded by how much of the limit it takes up; a dot at the center, an empty one for want of rows."""
        value, vanished = site.distance[r], r in site.vanished
        if r in site.lacking:
            return Cell("-", "quiet", "the site does not have this component")
        if r in site.own:
            return Cell("own", "", "too few sites have this component for a center")
        if value == 0.0:
            return Cell("◦", "z", "next to no rows of this component") if vanished else Cell("•", "z")
        far = judged and value > scale
        return Cell(fixed(value, digits), "far" if far else f"s{min(SHADES, 1 + int(SHADES * value / scale))}")

    def line(site: SiteSummary) -> dict[str, Any]:
        limit = limits[site.name]
        scale = limit if judged and np.isfinite(limit) and limit > 0 else farthest
        least, greatest = (fixed(float(value), digits) for value in (pulls[site.name].min(), pulls[site.name].max()))
        own = site.evidence.get("distance", np.nan)
        return {
            "site": site,
            "rows": f"{site.n_rows:,.12g}",
            "distances": [distance(site, r, scale) for r in range(len(site.distance))],
            "pull": least if least == greatest else f"{least} to {greatest}",
            "own": Cell(fixed(own, digits), "far" if own > limit else ""),
            "limit": fixed(limit, digits),
        }

    pulled = of.traits(model).pulls and bool(model.site_threshold_.any())
    return {"judged": judged, "pulled": pulled, "lines": [line(site) for site in summary.oddest_first]}


class Differences(NamedTuple):
    """How sites differ from what is common, number by number."""

    names: list[str]
    values: Array
    """(K, C, s); C is 1 where the components of a site share them, and s is 0 where nothing is known."""
    size: Array
    """(K, C, s), to compare them by; 0 where one is not worth a word."""


def _deviations(model: BaseFederatedMixture) -> Differences:
    """Component parameters less the center's, with the intercept where there is one.

    A standardized fit compares sites by the intercept of a row in the middle of all columns, and so does this: at zero,
    which may be far from any row, the intercept differs wherever a slope does.
    """
    names, units, away = of.parameter_names(model), of.parameter_units(model), of.thetas(model) - model.center_
    common = of.center_line(model, "intercept")
    if common is not None and not model._units_plan().within:  # of sites' own intercepts none is the usual one
        raised = model.intercept_ - common + away @ model.location_[:-1]
        names = [*names, "intercept at typical columns" if model.location_.any() else "intercept"]
        away = np.concatenate([away, raised[..., None]], axis=2)
        units = np.append(units, max(float(model.scale_[-1]), of.LEAST_UNIT))
    return Differences(names, away, np.abs(away / units))


def _spreads(model: BaseFederatedMixture) -> Differences:
    """Every site's own spread, or noise, over the common one; of no column where it is not estimated, or not kept.

    What is small, or within what so few rows leave open, has no size: the log of a deviation from n rows errs by
    1/sqrt(2n).
    """
    if of.spread_within(model) is not None:
        own, common = (
            np.maximum(np.diagonal(c, axis1=-2, axis2=-1), of.LEAST_UNIT)
            for c in (model.covariances_, model.center_covariances_)
        )
        names, ratio = [f"spread in {name}" for name in of.parameter_names(model)], np.sqrt(own / common)
    elif of.estimates_noise(model):
        names, ratio = ["noise"], (model.noise_ / np.maximum(model.center_noise_, of.LEAST_UNIT))[:, :, None]
        ratio = ratio[:, :1] if model.noise == "shared" else ratio
    else:
        return Differences([], *np.empty((2, len(model.site_names_), 1, 0)))
    n_rows = model.n_rows_[:, None] * (model.weights_ if ratio.shape[1] > 1 else np.ones((len(ratio), 1)))
    chance = BEYOND_CHANCE / np.sqrt(2.0 * np.maximum(n_rows, of.LEAST_UNIT))
    size = np.abs(np.log(ratio))
    return Differences(names, ratio, np.where(size > np.maximum(np.log(CLEARLY), chance)[..., None], size, 0.0))


def deviations(model: BaseFederatedMixture, summary: Summary) -> dict[str, Any]:
    """Of the oddest sites with an answer or a spread of their own: how they differ, in words and column by column."""
    away, spreads = _deviations(model), _spreads(model)
    place = {str(name): k for k, name in enumerate(model.site_names_)}
    own = [
        (site, place[site.name])
        for site in summary.oddest_first
        if site.farthest > 0.0 or spreads.size[place[site.name]].any()
    ]
    opened = [_deviation(site, k, model.site_distance_[k] == 0.0, away, spreads) for site, k in own[:MOST_OPENED]]
    return {"opened": opened, "n_more": len(own) - len(opened)}


def _deviation(site: SiteSummary, k: int, at_center: Array, away: Differences, spreads: Differences) -> dict[str, Any]:
    """One site, the k-th; ``at_center`` is (R,)."""
    said, n_more = "at the center in every component", 0
    rows: list[tuple[str, list[Cell]]] = []
    if not at_center.all():
        r = int(np.argmax(site.distance))
        values, size = away.values[k], away.size[k]
        j = int(size[r].argmax())
        side = "above" if values[r, j] > 0 else "below"
        said = f"farthest out in component {r}, where {away.names[j]} is {number(abs(values[r, j]))} {side} the center"
        kept = largest(size.max(axis=0), MOST_PARAMETERS)
        rows += [(away.names[j], _deviation_cells(values[:, j], at_center)) for j in kept]
        n_more += len(away.names) - len(kept)
    if spreads.size[k].any():
        ratio, size = spreads.values[k], spreads.size[k]
        c, j = divmod(int(size.argmax()), size.shape[1])
        what, _, column = spreads.names[j].partition(" ")
        said += f"; {what} {_times(ratio[c, j])} times the common one{column and f' {column}'}"
        said += f", component {c}" if len(ratio) > 1 else ""
        n_clear = int(size.any(axis=0).sum())
        kept = largest(size.max(axis=0), min(n_clear, MOST_PARAMETERS))
        rows += [(spreads.names[j], _spread_cells(ratio[:, j], size[:, j], len(at_center))) for j in kept]
        n_more += n_clear - len(kept)
    return {"site": site, "said": said, "table": Table(rows, n_more)}


def _deviation_cells(column: Array, at_center: Array) -> list[Cell]:
    digits, most = decimals_for([0.0, *column]), max(float(np.abs(column).max()), 1e-300)
    return [
        Cell("•", "z") if at_center[r] else Cell(signed(value, digits), _shade(value / most))
        for r, value in enumerate(column)
    ]


def _spread_cells(ratio: Array, size: Array, n_components: int) -> list[Cell]:
    """A spread that the components share stands under each of them."""
    return [
        Cell(f"{_times(times)} \N{MULTIPLICATION SIGN}", "" if clear else "quiet")
        for times, clear in zip(*(np.broadcast_to(one, n_components) for one in (ratio, size)), strict=True)
    ]


def _times(ratio: float) -> str:
    """A ratio, to two significant digits."""
    return fixed(ratio, max(0, decimals_for([0.0, ratio]) - 1))


def _shade(share: float) -> str:
    """The class of a shade, for -1 to 1; none near 0."""
    step = round(SHADES * min(1.0, abs(float(share))))
    return f"{'p' if share > 0 else 'n'}{step}" if step else ""
