"""A fit as one HTML page that needs nothing else, for people who do not read code: all that its template prints."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fedgrem import __version__, plots
from fedgrem.errors import InputError
from fedgrem.estimators.base import BaseFederatedMixture
from fedgrem.estimators.budget import cannot
from fedgrem.plots.axes import ink_on, new_figure
from fedgrem.report.attributes import column_names, estimates_noise, estimates_pull, pull_words, spread_within, traits
from fedgrem.report.gain import Gains, measure_gain
from fedgrem.report.maps import center_map, deviations, site_map
from fedgrem.report.page import environment, picture, render
from fedgrem.report.summary import NO_CENTER, Summary, flatness, selection_cell, summarize
from fedgrem.report.text import capital
from fedgrem.report.words import agreement, gain_line, headline, settling, suspicion, those_of_some, vanishing

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDTH = 4.8
"""Of a figure, in inches: narrow, so that its letters can still be read on a phone."""
MOST_VANISHED = 30
"""Sites without rows of some component that are named."""


class Origin(NamedTuple):
    """Where a model comes from, as far as its folder tells."""

    folder: str
    version: str
    saved: datetime


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
    """Write the page of a fitted model of any kind, with options as of its method ``report``; returns its path.

    ``origin`` says where the model comes from, if it was loaded.
    """
    summary = summarize(model)
    if summary.from_sums:
        raise InputError(
            "the page is about sites, and what they found stayed with them (secure sums); `fedgrem show`, or "
            "summary(), has the center."
        )
    if show_rows < 0:
        raise InputError(f"show_rows must be >= 0, got {show_rows}.")
    if show_rows and X is None:
        raise InputError("show_rows draws rows, but none were given; give X and sites too.")
    environment()  # if it is missing, before the long part
    gains = measure_gain(model, X, y, sites=sites, seed=seed) if X is not None and can_gain(model) else None
    drawn = ""
    if show_rows:
        plot = partial(plots.plot_rows, model, X, y, sites=sites, n_rows=show_rows, seed=seed)
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
    return render("model.html", **_page_values(model, summary, gains, drawn_rows, origin))


def _page_values(
    model: BaseFederatedMixture, summary: Summary, gains: Gains | None, drawn_rows: str, origin: Origin | None
) -> dict[str, Any]:
    """What ``model.html`` prints; a section that has nothing to say is None."""
    several = len(summary.sites) > 1
    lines = [*agreement(summary), suspicion(summary), settling(summary, told_to=model.tol == 0)]
    return {
        "title": headline(summary),
        "summary": summary,
        "no_center": "" if summary.has_center else NO_CENTER,
        "in_short": lines + ([] if gains is None else [gain_line(summary, gains)]),
        "facts": _facts(model, summary),
        "origin": origin,
        "made": datetime.now().astimezone(),
        "version": __version__,
        "selection": _selection(model, summary),
        "components": {
            "parameters": model._theta_name,
            "response": getattr(model, "response", ""),
            "spread": spread_within(model) is not None,
            "table": center_map(model),
            "picture": drawing(partial(plots.plot_sites, model), 4.4, "Sites around the centers") if several else "",
        },
        "sites": _sites(model, summary),
        "deviations": deviations(model, summary) if several else None,
        "penalty": _penalty(model),
        "budget": _budget(model),
        "gain": _gain(model, summary, gains) if several else None,
        "drawn_rows": drawn_rows,
        "rounds": _rounds(model, summary),
        "palette": [(color, ink_on(color)) for color in plots.PALETTE],
    }


def drawing(draw: Callable[[Axes], Any], height: float, words: str) -> str:
    """What ``draw`` puts on new axes, as finished markup; ``words`` are for those who cannot see it."""
    new = new_figure((WIDTH, height))
    draw(new.subplots())
    return picture(new, words)


def can_gain(model: BaseFederatedMixture) -> bool:
    """Whether there is anything to compare: several sites, not fitted alone anyway, nor with a budget that is spent."""
    return len(model.site_names_) > 1 and not traits(model).starts_alone and model.privacy is None


def _facts(model: BaseFederatedMixture, summary: Summary) -> dict[str, Any]:
    """What was fitted, and how."""
    said = traits(model)
    sent = int(model.cost_["numbers_per_round"]) // len(summary.sites)
    return {
        "pooled": said.pools_rows,
        "alone": summary.sharing == "alone" and (said.starts_alone or said.pulls),
        "pulls": said.pulls,
        "median_rows": float(np.median([site.n_rows for site in summary.sites])),
        "columns": column_names(model) or (summary.parameters if model._theta_name != "params" else []),
        "algorithm": said.title,
        "penalty_chosen": bool(model.penalty_path_) and model.penalty == "auto",
        "pull_estimated": estimates_pull(model),
        "pull": pull_words(model),
        "sent": 0 if summary.sharing == "alone" or said.pools_rows else sent,
    }


def _selection(model: BaseFederatedMixture, summary: Summary) -> dict[str, Any] | None:
    found = summary.selection
    if found is None:
        return None
    columns = [
        found[name] for name in ("n_components", "log_likelihood", "n_parameters", "bic", "icl", "error", "rounds")
    ]
    return {
        "criterion": found["criterion"].upper(),
        "chosen": found["n_components"].index(found["chosen"]),
        "rows": [[selection_cell(value) for value in line] for line in zip(*columns, strict=True)],
        "settled": found["settled"],
        "flatness": capital(flatness(found)),
        "picture": drawing(partial(plots.plot_selection, model), 3.6, "Criterion by number of components"),
    }


def _sites(model: BaseFederatedMixture, summary: Summary) -> dict[str, Any]:
    n_sites, drawn = len(summary.sites), ""
    if n_sites > 1:
        height = 1.7 + 0.25 * min(n_sites, plots.MOST_ROWS)
        drawn = drawing(partial(plots.plot_thresholds, model), height, "Distances and their limits")
    # Distances are then in units of an estimated noise, and do not depend on those of the columns.
    in_noise = spread_within(model) is not None or estimates_noise(model)
    told = {"vanishing": vanishing(summary, MOST_VANISHED), "of_some": those_of_some(summary, MOST_VANISHED)}
    return site_map(model, summary) | {"in_noise": in_noise, "picture": drawn} | told


def _penalty(model: BaseFederatedMixture) -> dict[str, Any] | None:
    if not model.penalty_path_:
        return None
    alone = [str(name) for name in model.site_names_[model.local_only_]]
    return {"picture": drawing(partial(plots.plot_penalty, model), 3.6, "Gain by penalty"), "alone": alone}


def _budget(model: BaseFederatedMixture) -> dict[str, Any] | None:
    """Where the error comes from, by the theory; nothing where that has no say."""
    if cannot(model):
        return None
    found = model.error_budget()
    return {
        "found": found,
        "picture": drawing(partial(plots.plot_error_budget, found), 3.0, "Parts of the largest error"),
    }


def _gain(model: BaseFederatedMixture, summary: Summary, gains: Gains | None) -> dict[str, Any]:
    """What each site gained over fitting alone; nothing where no rows were given."""
    if gains is None or not can_gain(model):
        return {"possible": can_gain(model), "measured": None}
    suspect = frozenset(site.name for site in summary.sites if site.suspect)
    height = 1.5 + 0.24 * min(len(gains.sites), plots.MOST_ROWS)
    return {
        "possible": True,
        "measured": gains,
        "suspect": suspect,
        "picture": drawing(partial(plots.plot_gain, gains, suspect=suspect), height, "Gain over fitting alone"),
    }


def _rounds(model: BaseFederatedMixture, summary: Summary) -> dict[str, str] | None:
    if not summary.n_rounds:
        return None
    told = np.isfinite(model.history_["log_likelihood"]).any()  # sites of a private fit do not say
    return {
        "movement": drawing(partial(plots.plot_convergence, model), 3.6, "Movement per round"),
        "likelihood": drawing(partial(plots.plot_likelihood, model), 3.6, "Log-likelihood per round") if told else "",
    }
