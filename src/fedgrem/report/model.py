"""A fit as one HTML page that needs nothing else, for people who do not read code."""

from functools import partial
from pathlib import Path
from typing import Any

from fedgrem.errors import InputError
from fedgrem.estimators.base import BaseFederatedMixture
from fedgrem.plots import plot_rows
from fedgrem.report import view
from fedgrem.report.gain import Gains, measure_gain
from fedgrem.report.page import environment, render
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
    origin: view.Origin | None = None,
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
    environment()  # if it is missing, before the long part
    gains = measure_gain(model, X, y, sites=sites, seed=seed) if X is not None and view.can_gain(model) else None
    drawn = ""
    if show_rows:
        plot = partial(plot_rows, model, X, y, sites=sites, n_rows=show_rows, seed=seed)
        drawn = view.drawing(lambda ax: plot(ax=ax), 4.6, "A sample of rows in two dimensions")
    target = Path(path)
    target.write_text(model_page(model, summary, gains, drawn, origin), encoding="utf-8")
    return target


def model_page(
    model: BaseFederatedMixture,
    summary: Summary,
    gains: Gains | None = None,
    drawn_rows: str = "",
    origin: view.Origin | None = None,
) -> str:
    """The page: in short, what was fitted, how many components, components, sites, gain, rounds, words."""
    return render("model.html", **view.page_values(model, summary, gains, drawn_rows, origin))
