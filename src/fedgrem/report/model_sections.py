"""The sections of the page of a fit; each is a list of finished markup, empty where there is nothing to say."""

from __future__ import annotations

from collections.abc import Callable
from html import escape
from typing import TYPE_CHECKING, Any

from fedgrem.estimators.base import BaseFederatedMixture
from fedgrem.plots import (
    MOST_ROWS,
    plot_convergence,
    plot_gain,
    plot_likelihood,
    plot_penalty,
    plot_sites,
    plot_thresholds,
)
from fedgrem.plots.axes import new_figure
from fedgrem.report.gain import ALONE, Gains
from fedgrem.report.model_notes import NOTES
from fedgrem.report.model_tables import TABLE_STYLE, center_map, deviations, gain_table, site_map
from fedgrem.report.model_words import Origin, count, listed, vanishing
from fedgrem.report.page import picture
from fedgrem.report.summary import Summary, measured_in_noise, pull, spread_within

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SECTION_STYLE = (
    TABLE_STYLE
    + """
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(8.5rem,1fr));gap:.75rem;margin:0 0 1.25rem}
.tiles div{background:#f4f6f8;border-radius:.4rem;padding:.7rem .9rem}
.tiles b{display:block;font-size:1.5rem;line-height:1.25}.tiles span{color:#55606b;font-size:.85rem}
.side{display:flex;flex-wrap:wrap;gap:0 2.5rem;align-items:flex-start}.side>*{max-width:100%}
.side>.drawing{flex:1 1 22rem;min-width:min(100%,22rem)}.drawing{max-width:36rem;margin:.5rem 0}
.drawing svg,.drawing img{display:block;width:100%;height:auto}
p{max-width:50rem}p,li,summary{overflow-wrap:anywhere}
.warn{background:#fbe9df;color:#6b2e00;padding:.6rem .9rem;border-radius:.4rem}
@media(min-width:40.01rem){ul.verdicts li{padding-left:8rem}}
"""
)
WIDTH = 4.8
"""Of a figure, in inches: narrow, so that its letters can still be read on a phone."""
MOST_VANISHED = 30
"""Sites without rows of some component that are named."""


def tiles(summary: Summary) -> str:
    """The size of it all, in large figures."""
    suspect = sum(site.suspect for site in summary.sites)
    told = {
        "sites": len(summary.sites),
        "rows": f"{summary.n_rows:,.12g}",
        "components": summary.n_components,
        f"rounds, {'settled' if summary.converged else 'not settled'}": f"{summary.n_rounds:,}",
        f"suspect site{'' if suspect == 1 else 's'}": suspect,
    }
    return f'<div class="tiles">{"".join(f"<div><b>{n}</b><span>{key}</span></div>" for key, n in told.items())}</div>'


def component_section(model: BaseFederatedMixture, summary: Summary) -> list[str]:
    """The common centers as a map, and the sites around them."""
    spread = NOTES["spread"] if spread_within(model) is not None else ""
    note = f"{NOTES.get(model._theta_name, NOTES['params'])} {NOTES['shades']} {spread}"
    table = center_map(model)
    if len(summary.sites) > 1:
        table = beside(table, _figure(lambda ax: plot_sites(model, ax), 4.4, "Sites around the centers", "around"))
    return ["<h2>The components, at the common center</h2>", f"<p>{note}</p>", table]


def site_section(model: BaseFederatedMixture, summary: Summary) -> list[str]:
    """The sites as a map, their distances against the limits, and the deviations of those farthest out."""
    unit = NOTES["noise units"] if measured_in_noise(model) else ""
    parts = ["<h2>The sites</h2>", f"<p>{NOTES['sites']} {unit}</p>", site_map(model, summary)]
    gone = vanishing(summary, MOST_VANISHED)
    parts += [f'<p class="note">{escape(gone)} {NOTES["vanished"]}</p>'] if gone else []
    if len(summary.sites) < 2:
        return parts
    height = 1.7 + 0.25 * min(len(summary.sites), MOST_ROWS)
    notes = ("limits", "pull") if pull(model).any() else ("limits",)
    parts.append(_figure(lambda ax: plot_thresholds(model, ax), height, "Distances and their limits", *notes))
    own = deviations(model, summary)
    title = "<h2>Where sites differ from the center</h2>"
    return parts + ([title, f"<p>{NOTES['deviations']}</p>", own] if own else [])


def can_gain(model: BaseFederatedMixture) -> bool:
    """Whether there is anything to compare: several sites, and not fitted alone anyway."""
    return len(model.site_names_) > 1 and model.algorithm != ALONE


def gain_section(
    model: BaseFederatedMixture, summary: Summary, gains: Gains | None, origin: Origin | None
) -> list[str]:
    """What each site gained over fitting alone; or how to find out."""
    if len(summary.sites) < 2:
        return []
    parts = ["<h2>What each site gained over fitting alone</h2>"]
    if not can_gain(model):
        return [*parts, f"<p>{NOTES['alone']}</p>"]
    if gains is None:
        folder = escape("model/" if origin is None else origin.folder)
        return [*parts, f"<p>{NOTES['needs rows'].replace('MODEL', folder)}</p>"]
    suspect = frozenset(site.name for site in summary.sites if site.suspect)
    height = 1.5 + 0.24 * min(len(gains.sites), MOST_ROWS)
    figure = _figure(lambda ax: plot_gain(gains, ax, suspect=suspect), height, "Gain over fitting alone", "gain marks")
    parts += [f"<p>{NOTES['gain']}</p>", beside(gain_table(gains, suspect), figure)]
    for names, why in ((gains.too_small, "too few rows to hold any back"), (gains.unknown, "not in the model")):
        if names:
            parts.append(f'<p class="note">Left out, {why}: {count(len(names), "site")} ({escape(listed(names))}).</p>')
    return parts if gains.settled else [*parts, f'<p class="note">{NOTES["gain not settled"]}</p>']


def penalty_section(model: BaseFederatedMixture) -> list[str]:
    """How the penalty was chosen, if it was."""
    if not hasattr(model, "penalty_path_"):
        return []
    figure = _figure(lambda ax: plot_penalty(model, ax), 3.6, "Gain by penalty", "penalty marks")
    alone = [str(name) for name in model.site_names_[model.fitted_alone_]]
    told = f"<p>{NOTES['released']} {escape(listed(alone))}.</p>" if alone else f"<p>{NOTES['nobody released']}</p>"
    return ["<h2>How strongly the sites were pulled together</h2>", f"<p>{NOTES['penalty']}</p>", figure, told]


def row_section(drawn: str) -> list[str]:
    """The rows that were asked for, with a warning."""
    if not drawn:
        return []
    return [
        "<h2>A sample of rows</h2>",
        f'<p class="warn">{NOTES["rows are private"]}</p>',
        f'<figure class="drawing">{drawn}<figcaption>{NOTES["rows"]}</figcaption></figure>',
    ]


def round_section(model: BaseFederatedMixture, summary: Summary) -> list[str]:
    """Movement and log-likelihood, round by round."""
    if not summary.n_rounds:
        return []
    movement = _figure(lambda ax: plot_convergence(model, ax), 3.6, "Movement per round", "movement")
    likelihood = _figure(lambda ax: plot_likelihood(model, ax), 3.6, "Log-likelihood per round", "likelihood")
    return ["<h2>How the fit went</h2>", beside(movement, likelihood)]


def drawing(draw: Callable[[Axes], Any], height: float, words: str) -> str:
    """What ``draw`` puts on new axes, as markup; ``words`` are for those who cannot see it."""
    new = new_figure((WIDTH, height))
    draw(new.subplots())
    return picture(new, words)


def _figure(draw: Callable[[Axes], Any], height: float, words: str, *notes: str) -> str:
    return figure(draw, height, words, " ".join(NOTES[note] for note in notes))


def figure(draw: Callable[[Axes], Any], height: float, words: str, caption: str) -> str:
    """A drawing with what stands below it."""
    return f'<figure class="drawing">{drawing(draw, height, words)}<figcaption>{caption}</figcaption></figure>'


def beside(left: str, right: str) -> str:
    """Next to each other where there is room, below each other where there is none."""
    left = left if left.startswith("<figure") else f"<div>{left}</div>"
    return f'<div class="side">{left}{right}</div>'
