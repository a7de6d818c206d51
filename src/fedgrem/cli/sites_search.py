"""Several numbers of components over a network: one run each, one after the other, and then the best one in full."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedgrem.engines.flare.kit import Study
    from fedgrem.engines.flare.operate import Fit
    from fedgrem.estimators.base import BaseFederatedMixture
    from fedgrem.estimators.selection import Search

RUNS, DONE = "search_runs", "search_done"
"""Among a run's plain values: the runs whose fits are compared, and whether this one is the fit of the winner."""


def is_candidate(fit: Fit) -> bool:
    """Whether a run is only to be compared with others."""
    more = fit.more or {}
    return RUNS in more and not more[DONE]


def next_fit(study: Study, model: BaseFederatedMixture, fit: Fit, names: list[str] | None) -> Fit:
    """What to run next: the fit of the next number of components or, when all are known, that of the best."""
    from fedgrem.estimators.network import spec_for
    from fedgrem.estimators.selection import candidate, copy_with

    more: dict[str, Any] = fit.more or {}
    search = search_of(study, model, more)
    number = search.next()
    if number is None:
        search.warn()
        spec = spec_for(copy_with(model, n_components=search.best), names)
    else:
        spec = spec_for(candidate(model, number), names, score=True)
    return fit._replace(spec=spec, more=more | {DONE: number is None})


def search_of(study: Study, model: BaseFederatedMixture, more: dict[str, Any]) -> Search:
    """What has come of the runs that are compared."""
    from fedgrem.engines.flare.operate import run_folder
    from fedgrem.engines.remote.result import read_result
    from fedgrem.estimators.selection import Search

    finished = [read_result(run_folder(study, run)) for run in more[RUNS]]
    rows = {site: n for one in finished[:1] for site, n in one.about["n_rows"].items()}
    search = Search(model.n_components, model.criterion, rows)
    search.tallies = [model._tally(one.result) for one in finished]
    return search
