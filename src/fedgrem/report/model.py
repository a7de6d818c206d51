"""A fit as one HTML page that needs nothing else, for people who do not read code."""

from datetime import datetime
from functools import partial
from html import escape
from pathlib import Path
from typing import Any

from fedgrem.errors import InputError
from fedgrem.estimators.base import BaseFederatedMixture
from fedgrem.plots import plot_rows
from fedgrem.report.gain import Gains, measure_gain
from fedgrem.report.model_notes import NOTES, WORDS
from fedgrem.report.model_sections import (
    SECTION_STYLE,
    can_gain,
    component_section,
    drawing,
    gain_section,
    penalty_section,
    round_section,
    row_section,
    site_section,
    tiles,
)
from fedgrem.report.model_selection import selection_section
from fedgrem.report.model_words import Origin, facts, headline, in_short, lead
from fedgrem.report.page import document, fact_list, marked_list
from fedgrem.report.summary import Summary, summarize


def write_model_report(
    model: BaseFederatedMixture,
    path: str | Path,
    X: Any = None,
    y: Any = None,
    *,
    sites: Any = None,
    show_rows: int = 0,
    seed: int = 0,
    origin: Origin | None = None,
) -> Path:
    """Write the page of a fitted model; returns its path.

    Parameters
    ----------
    model : a fitted model of any kind.
    path : of the page, ``.html``.
    X, y, sites : rows, as in ``fit``; with them the page also tells what each site gained over fitting alone.
    show_rows : how many rows to draw; 0 for none, because rows are private.
    seed : of the rows held back and of those drawn.
    origin : where the model comes from, if it was loaded.
    """
    summary = summarize(model)
    if show_rows < 0:
        raise InputError(f"show_rows must be >= 0, got {show_rows}.")
    if show_rows and X is None:
        raise InputError("show_rows draws rows, but none were given; give X and sites too.")
    gains = measure_gain(model, X, y, sites=sites, seed=seed) if X is not None and can_gain(model) else None
    drawn = ""
    if show_rows:
        plot = partial(plot_rows, model, X, y, sites=sites, n_rows=show_rows, seed=seed)
        drawn = drawing(lambda ax: plot(ax=ax), 4.6, "A sample of rows in two dimensions")
    target = Path(path)
    target.write_text(model_page(model, summary, gains, drawn, origin), encoding="utf-8")
    return target


def model_page(
    model: BaseFederatedMixture,
    summary: Summary,
    gains: Gains | None = None,
    drawn_rows: str = "",
    origin: Origin | None = None,
) -> str:
    """The page: in short, what was fitted, how many components, components, sites, gain, rounds, words."""
    parts = [
        f"<h1>{escape(headline(summary))}</h1>",
        f'<p class="lead">{escape(lead(model, summary))}</p>',
        tiles(summary),
        marked_list(in_short(model, summary, gains)),
        "<h2>What was fitted</h2>",
        fact_list(facts(model, summary, origin, datetime.now().astimezone())),
        *selection_section(model),
        *component_section(model, summary),
        *site_section(model, summary),
        *penalty_section(model),
        *gain_section(model, summary, gains, origin),
        *row_section(drawn_rows),
        *round_section(model, summary),
        "<h2>Words</h2>",
        fact_list(WORDS),
        f'<p class="note">{NOTES["rows are private" if drawn_rows else "no rows"]}</p>',
    ]
    return document(headline(summary), parts, SECTION_STYLE)
