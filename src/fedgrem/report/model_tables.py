"""A fit in tables that are maps: weights as bars, centers and distances as shades. Markup only, no figures."""

from collections.abc import Sequence
from html import escape

import numpy as np

from fedgrem.estimators.base import BaseFederatedMixture
from fedgrem.plots.axes import PALETTE, ink_on
from fedgrem.report.gain import Gains, SiteGain
from fedgrem.report.model_deviations import Deviations, Spreads, deviations_of, spreads_of
from fedgrem.report.numbers import contrast, decimals_for, fixed, largest, most_telling, number, signed
from fedgrem.report.page import table_markup
from fedgrem.report.summary import (
    SiteSummary,
    Summary,
    center_errors,
    parameter_names,
    parameter_units,
    pull,
    spread_within,
    suspect_beyond,
)
from fedgrem.types import NumpyArray

MOST_SITES = 30
"""Sites that a table shows at once; more are folded away."""
MOST_FOLDED = 500
"""Sites that are folded away; the rest is only counted."""
MOST_PARAMETERS = 40
"""Parameters in a map; those that differ most are kept."""
MOST_OPENED = 12
"""Sites whose deviations from the center are shown column by column."""
SHADES = 5
KINDS = {"suspect": "no", "at the center": "yes", "loses": "no", "gains": "yes"}
"""Word -> kind of mark; all others are open."""
ABOVE, BELOW, FAR = "213,94,0", "0,114,178", "230,159,0"
TABLE_STYLE = (
    """
.mark.in{position:static;white-space:nowrap;display:inline-block;line-height:1.3}
.bar{display:flex;width:12rem;height:1.25rem;border-radius:.2rem;overflow:hidden;background:#eef0f2}
.bar i{font:600 .68rem/1.25rem system-ui,sans-serif;text-align:center;overflow:hidden;border-right:1px solid #fff}
.chip{display:inline-block;min-width:1.35rem;padding:0 .3rem;border-radius:.2rem;text-align:center;font-weight:600;
font-size:.78rem;line-height:1.35rem}td small{color:#55606b}td.z{color:#00795c;text-align:center}
td.far{background:#f6c9ab;color:#6b2e00;font-weight:700}.map td,.map th{padding:.25rem .45rem}
td.loss{color:#a34000;font-weight:700}tr.first td{border-bottom:2px solid #c3cad1}
details{margin:.4rem 0}summary{cursor:pointer;padding:.3rem 0}summary:hover{color:#0060a0}
.fold>summary{color:#55606b;font-size:.9rem}td.name{max-width:13rem;min-width:5rem;white-space:normal;overflow-wrap:break-word}
.left{text-align:left!important}.quiet{color:#55606b}
@media(max-width:40rem){.bar{width:9rem}td.name{max-width:7.5rem}.map td,.map th{padding:.25rem .35rem}}
"""
    + "".join(f".p{i}{{background:rgba({ABOVE},{0.09 * i:.2f})}}" for i in range(1, SHADES + 1))
    + "".join(f".n{i}{{background:rgba({BELOW},{0.09 * i:.2f})}}" for i in range(1, SHADES + 1))
    + "".join(f".s{i}{{background:rgba({FAR},{0.08 * i:.2f})}}" for i in range(1, SHADES + 1))
    + "".join(f".c{r}{{background:{color};color:{ink_on(color)}}}" for r, color in enumerate(PALETTE))
    + ".again{background-image:repeating-linear-gradient(45deg,rgba(255,255,255,.6) 0 3px,transparent 3px 7px);"
    "color:#000;text-shadow:0 0 2px #fff,0 0 2px #fff,0 0 3px #fff,0 0 3px #fff}"
)
"""Beyond eight components the colours come round again, striped."""


def chip(component: int, text: str = "") -> str:
    """The number of a component on its colour."""
    return f'<span class="chip {_component_class(component)}">{text or component}</span>'


def bar(weights: Sequence[float]) -> str:
    """Weights as one bar; those with room carry their percentage."""
    parts = [
        f'<i class="{_component_class(r)}" style="width:{100 * weight:.1f}%" title="component {r}: {weight:.1%}">'
        f"{f'{100 * weight:.0f}' if weight >= 0.12 else ''}</i>"
        for r, weight in enumerate(weights)
        if weight >= 0.001
    ]
    return f'<span class="bar">{"".join(parts)}</span>'


def center_map(model: BaseFederatedMixture) -> str:
    """Parameters down, components across: the common centers in the columns' own units, and the spread within."""
    center, names = model.center_, parameter_names(model)
    shades, spread, errors = contrast(center), _spread(model), center_errors(model)
    own = len(spread) == len(center) > 1
    kept = most_telling(center, parameter_units(model), MOST_PARAMETERS)
    head = [_th("component"), *(f"<th>{chip(r)}</th>" for r in range(len(center)))]
    rows = [[_td("typical weight", "name"), *(_td(f"{weight:.0%}") for weight in model.center_weights_)]]
    for j in kept:
        digits = decimals_for(center[:, j])
        below = ["\n" + _plus_minus(spread[r, j], digits) if own else "" for r in range(len(center))]
        cells = [
            _td(fixed(value, digits) + below[r], _shade(shades[r, j]), _known_to(errors, r, j))
            for r, value in enumerate(center[:, j])
        ]
        shared = [_td(_plus_minus(spread[0, j], digits))] if len(spread) and not own else []
        rows.append([_td(escape(names[j]), "name"), *cells, *shared])
    if len(spread) and not own:
        head.append(_th("spread within"))
        rows[0].append(_td(""))
    rows += [[_td(escape(name), "name"), *map(_td, values)] for name, values in _more_parameters(model).items()]
    table = _mapped(table_markup(head, rows))
    return table + _more(len(names) - len(kept), "parameter", "in which the centers differ less")


def site_map(model: BaseFederatedMixture, summary: Summary) -> str:
    """One line per site, the oddest first: verdict, rows, weights as a bar, distance of each component."""
    names = [site.name for site in summary.sites]
    limits, pulls = (dict(zip(names, values, strict=True)) for values in (suspect_beyond(model), pull(model)))
    judged, pulled = bool(np.isfinite(list(limits.values())).any()), any(own.any() for own in pulls.values())
    farthest = max([site.farthest for site in summary.sites] + [1e-12])
    digits = _distance_digits(model.site_distance_)
    head = [_th("site"), _th(""), _th("rows"), '<th class="left">weights, %</th>']
    head += [f"<th>{chip(r)}</th>" for r in range(summary.n_components)]
    head += [_th("pull")] if pulled else []
    head += [_th("own rows"), _th("suspect beyond")] if judged else []

    def line(site: SiteSummary) -> list[str]:
        limit = limits[site.name]
        scale = limit if judged and np.isfinite(limit) and limit > 0 else farthest
        cells = [_distance(value, scale, judged, digits, r in site.vanished) for r, value in enumerate(site.distance)]
        mark = f'<span class="mark in {KINDS.get(site.verdict, "open")}">{site.verdict}</span>'
        start = [_name(site.name), _td(mark, "left"), _td(f"{site.n_rows:,.12g}"), _td(bar(site.weights))]
        cells += [_td(_from_to(pulls[site.name], digits), "quiet")] if pulled else []
        if judged:
            own = site.evidence["distance"]
            cells += [_td(fixed(own, digits), "far" if own > limit else ""), _td(fixed(limit, digits), "quiet")]
        return [*start, *cells]

    typical = [_td("center", "name"), _td("typical weights", "left quiet"), _td(""), _td(bar(summary.center_weights))]
    typical += [_td("")] * (summary.n_components + pulled + 2 * judged)
    return _folded(head, [typical], [line(site) for site in summary.oddest_first], "site")


def _from_to(values: NumpyArray, digits: int) -> str:
    """Numbers as one, or as the least and the greatest."""
    least, greatest = (fixed(float(value), digits) for value in (values.min(), values.max()))
    return least if least == greatest else f"{least} to {greatest}"


def deviations(model: BaseFederatedMixture, summary: Summary) -> str:
    """Of the oddest sites with an answer or a spread of their own: how they differ, column by column, folded away."""
    away, spreads = deviations_of(model), spreads_of(model)
    place = {str(name): k for k, name in enumerate(model.site_names_)}
    own = [
        site
        for site in summary.oddest_first
        if site.n_at_center < summary.n_components or spreads.clear[place[site.name]].any()
    ]
    parts = []
    for site in own[:MOST_OPENED]:
        k = place[site.name]
        parts.append(_deviation(site, model.at_center_[k], away.of(k), spreads.of(k)))
    return "".join(parts) + _more(len(own) - MOST_OPENED, "site", "nearer to the center")


def gain_table(gains: Gains, suspect: frozenset[str]) -> str:
    """One line per site, suspect ones first and then those that lost most."""
    head = [_th(name) for name in ("site", "gain ± s.e.", "", "together", "alone", "held back")]

    def line(site: SiteGain) -> list[str]:
        mark = f'<span class="mark in {KINDS.get(site.word, "open")}">{site.word}</span>'
        flag = ' <span class="mark in no">suspect</span>' if site.name in suspect else ""
        figures = [fixed(site.together, 3), fixed(site.alone, 3), f"{site.n_held:,}"]
        gain = _td(f"{signed(site.gain, 3)} <small>± {site.error:.3f}</small>", "loss" if site.gain < 0 else "")
        return [_name(site.name, flag), gain, _td(mark, "left"), *map(_td, figures)]

    return _folded(head, [], [line(site) for site in gains.worst_first(suspect)], "site")


def _deviation(site: SiteSummary, at_center: NumpyArray, away: Deviations, spreads: Spreads) -> str:
    """``at_center`` is (R,); ``away`` and ``spreads`` are those of this site."""
    said, n_lost = "at the center in every component", 0
    rows: list[list[str]] = []
    if not at_center.all():
        said = _farthest_out(site, away)
        kept = largest(np.abs(away.away / away.units).max(axis=0), MOST_PARAMETERS)
        rows += [_deviation_row(away, j, at_center) for j in kept]
        n_lost += len(away.names) - len(kept)
    if spreads.clear.any():
        said += f"; {_farthest_spread(spreads)}"
        n_clear = int(spreads.clear.any(axis=0).sum())
        kept = largest(spreads.size.max(axis=0), min(n_clear, MOST_PARAMETERS))
        rows += [_spread_row(spreads, j, len(at_center)) for j in kept]
        n_lost += n_clear - len(kept)
    head = [_th("less the center"), *(f"<th>{chip(r)}</th>" for r in range(len(at_center)))]
    table = _mapped(table_markup(head, rows)) + _more(n_lost, "parameter", "with smaller deviations")
    mark = f'<span class="mark in {KINDS.get(site.verdict, "open")}">{site.verdict}</span>'
    return f"<details><summary><b>{escape(site.name)}</b> {mark} {escape(said)}</summary>{table}</details>"


def _farthest_out(site: SiteSummary, away: Deviations) -> str:
    r = int(np.argmax(site.distance))
    j = int(np.abs(away.away[r] / away.units).argmax())
    value = away.away[r, j]
    side = "above" if value > 0 else "below"
    return f"farthest out in component {r}, where {away.names[j]} is {number(abs(value))} {side} the center"


def _deviation_row(away: Deviations, j: int, at_center: NumpyArray) -> list[str]:
    column = away.away[:, j]
    digits, most = decimals_for([0.0, *column]), max(float(np.abs(column).max()), 1e-300)
    cells = [
        _td("•", "z") if at_center[r] else _td(signed(value, digits), _shade(value / most))
        for r, value in enumerate(column)
    ]
    return [_td(escape(away.names[j]), "name"), *cells]


def _farthest_spread(spreads: Spreads) -> str:
    c, j = np.unravel_index(int(spreads.size.argmax()), spreads.size.shape)
    which = f", component {c}" if len(spreads.ratio) > 1 else ""
    column = spreads.names[j].removeprefix(spreads.what)
    return f"{spreads.what} {_times(spreads.ratio[c, j])} times the common one{column}{which}"


def _spread_row(spreads: Spreads, j: int, n_components: int) -> list[str]:
    """A spread that the components share stands under each of them."""
    ratio, clear = (np.broadcast_to(own[:, j], n_components) for own in (spreads.ratio, spreads.clear))
    cells = [
        _td(f"{_times(ratio[r])} \N{MULTIPLICATION SIGN}", "" if clear[r] else "quiet") for r in range(n_components)
    ]
    return [_td(escape(spreads.names[j]), "name"), *cells]


def _times(ratio: float) -> str:
    """A ratio, to two significant digits."""
    return fixed(ratio, max(0, decimals_for([0.0, ratio]) - 1))


def _spread(model: BaseFederatedMixture) -> NumpyArray:
    """As :func:`spread_within`, with no rows where it is unknown or not of these parameters."""
    spread, n_parameters = spread_within(model), model.center_.shape[1]
    return np.empty((0, n_parameters)) if spread is None or spread.shape[1] != n_parameters else spread


def _more_parameters(model: BaseFederatedMixture) -> dict[str, list[str]]:
    """Intercept and noise of the center of a regression, where it has them."""
    found = {}
    for attribute, name in (("center_intercept_", "intercept"), ("center_noise_", "noise")):
        values = np.asarray(getattr(model, attribute, ()), dtype=float)
        if values.shape == (len(model.center_),) and values.any():
            digits = decimals_for(values)
            found[name] = [fixed(value, digits) for value in values]
    return found


def _folded(head: list[str], first: list[list[str]], rows: list[list[str]], what: str) -> str:
    """A table of the first few rows; those that follow are folded away, and beyond a limit counted."""
    table = _mapped(table_markup(head, [*first, *rows[:MOST_SITES]]))
    rest, n_lost = rows[MOST_SITES : MOST_SITES + MOST_FOLDED], len(rows) - MOST_SITES - MOST_FOLDED
    if rest:
        folded = _mapped(table_markup(head, rest)) + _more(n_lost, what, "not listed")
        table += f'<details class="fold"><summary>and {len(rows) - MOST_SITES:,} more</summary>{folded}</details>'
    return table


def _distance(value: float, scale: float, judged: bool, digits: int, vanished: bool) -> str:
    """A distance, shaded by how much of the limit it takes up; a dot at the center, an empty one for want of rows."""
    if value == 0.0:
        return _td("◦", "z", "next to no rows of this component") if vanished else _td("•", "z")
    if judged and value > scale:
        return _td(fixed(value, digits), "far")
    return _td(fixed(value, digits), f"s{min(SHADES, 1 + int(SHADES * value / scale))}")


def _distance_digits(distance: NumpyArray) -> int:
    away = distance[distance > 0]
    return max(0, decimals_for([0.0, float(np.median(away))]) - 1) if len(away) else 1


def _shade(share: float) -> str:
    """The class of a shade, for -1 to 1; none near 0."""
    step = round(SHADES * min(1.0, abs(float(share))))
    return f"{'p' if share > 0 else 'n'}{step}" if step else ""


def _component_class(component: int) -> str:
    again = " again" if component >= len(PALETTE) else ""
    return f"c{component % len(PALETTE)}{again}"


def _plus_minus(value: float, digits: int) -> str:
    return f"<small>± {fixed(value, digits)}</small>"


def _mapped(table: str) -> str:
    return table.replace("<table>", '<table class="map">', 1)


def _more(n: int, what: str, which: str) -> str:
    return f'<p class="note">and {n:,} more {what}{"" if n == 1 else "s"}, {which}</p>' if n > 0 else ""


def _name(name: str, flag: str = "") -> str:
    return f'<td class="name" title="{escape(name, quote=True)}">{escape(name)}{flag}</td>'


def _th(text: str) -> str:
    return f"<th>{escape(text)}</th>"


def _known_to(errors: NumpyArray | None, r: int, j: int) -> str:
    """What one reads when pointing at a center's parameter."""
    return "" if errors is None or not np.isfinite(errors[r, j]) else f"standard error {number(errors[r, j])}"


def _td(markup: str, kind: str = "", title: str = "") -> str:
    named = (f' class="{kind}"' if kind else "") + (f' title="{title}"' if title else "")
    return f"<td{named}>{markup}</td>"
