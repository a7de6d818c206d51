"""``fedgrem sites fit`` and ``resume``: a fit over the sites of a study, to a saved model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedgrem.cli.fit import (
    CovarianceOption,
    Criterion,
    CriterionOption,
    Missing,
    NoiseOption,
    family_options,
    fit_options,
)
from fedgrem.cli.options import (
    Components,
    Force,
    ModelFolder,
    MostRounds,
    Penalty,
    Restarts,
    Seed,
    StudyFolder,
    Tolerance,
    listed,
    read_components,
)
from fedgrem.cli.sites_search import DONE, RUNS, is_candidate, next_fit, search_of

if TYPE_CHECKING:
    from fedgrem.engines.flare.kit import Study
    from fedgrem.engines.remote.result import Finished


def fit(
    study: StudyFolder,
    components: Components,
    out: ModelFolder,
    algorithm: Annotated[
        str, typer.Option(metavar="NAME", help="How the sites work together: fedgrem, fedem, fedgmm, tgmm, ...")
    ] = "fedgrem",
    regression: Annotated[
        bool, typer.Option("--regression", help="Explain the column that each site named with --target.")
    ] = False,
    columns: Annotated[
        str | None,
        typer.Option(metavar="A,B,...", help="Columns that sites must have, in order.", show_default="not asked"),
    ] = None,
    covariance: CovarianceOption = None,
    noise: NoiseOption = None,
    missing: Annotated[
        Missing, typer.Option(help="Empty cells: refuse them, or let EM fill them in.")
    ] = Missing.refuse,
    penalty: Penalty = "auto",
    criterion: CriterionOption = Criterion.bic,
    max_rounds: MostRounds = 1000,
    tol: Tolerance = 1e-6,
    n_init: Restarts = 10,
    seed: Seed = 0,
    min_sites: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="With fewer answers, the fit pauses.", show_default="more than half"),
    ] = None,
    deadline: Annotated[
        float, typer.Option(metavar="S", min=1.0, help="Seconds that a site has to answer before it is skipped.")
    ] = 120.0,
    poll: Annotated[
        bool, typer.Option("--poll", help="Let sites fetch their orders: slower, for networks where pushing fails.")
    ] = False,
    force: Force = False,
) -> None:
    """Fit one mixture per site over the network, pulled to a common center, and save it.

    Every site keeps its rows. The model is the one that `fedgrem fit` would find on the same rows in one place; show,
    predict and report work on it alike. A site that fails is named, and left out of that round; after three bad answers
    it is out. Several numbers of components are fitted one after the other, and then the best one in full. After any
    crash, `fedgrem sites resume` goes on from the last exchange.

    For example:

    * `fedgrem sites fit study/ --components 5 --algorithm fedgrem --out model/`

    * `fedgrem sites fit study/ --components 2:8 --out model/`

    * `fedgrem sites fit study/ -r 3 --regression --min-sites 4 --out model/`
    """
    from fedgrem.cli.files import check_folder
    from fedgrem.engines.flare.operate import Fit, begin, check_ready
    from fedgrem.engines.remote.roster import Rules
    from fedgrem.estimators.network import spec_for
    from fedgrem.estimators.selection import candidate, fewest

    place = open_study(study)
    check_folder(out, force=force)
    numbers = read_components(components)
    options = fit_options(numbers, penalty, criterion, max_rounds, tol, n_init, seed)
    options |= {"algorithm": algorithm} | family_options(regression, covariance, noise, missing)
    names = None if columns is None else listed(columns)
    model = _estimator(regression, options)
    fixed = isinstance(numbers, int)
    spec = spec_for(model if fixed else candidate(model, fewest(numbers)), names, score=not fixed)
    quorum = len(place.sites) // 2 + 1 if min_sites is None else min_sites
    more: dict[str, Any] = {"regression": regression, "options": options, "out": str(out.resolve())}
    more |= {} if fixed else {RUNS: [], DONE: False}
    rules = Rules(min_sites=min(quorum, len(place.sites)), deadline=deadline)
    asked = Fit(spec, list(place.sites), rules, "poll" if poll else "push", more)
    check_ready(place, asked)
    _finish(place, begin(place, asked))


def resume(study: StudyFolder) -> None:
    """Take the last fit up again, where it was, and save its model where it was to go.

    After a crash of the server, of the machine, or of this command; or when a fit has paused for want of sites. The end
    is the same as if nothing had happened, bit for bit if no site was missing.

    For example:

    * `fedgrem sites start study/`, then `fedgrem sites resume study/`
    """
    from fedgrem.engines.flare.operate import last_unfinished

    place = open_study(study)
    _finish(place, last_unfinished(place))


def open_study(folder: Path) -> Study:
    """The study in a folder."""
    from fedgrem.engines.flare.kit import read_study
    from fedgrem.engines.flare.simulator import check_flare

    check_flare()
    return read_study(folder)


def _estimator(regression: bool, options: dict[str, Any]) -> Any:
    from fedgrem import FederatedGaussianMixture, FederatedRegressionMixture

    return FederatedRegressionMixture(**options) if regression else FederatedGaussianMixture(**options)


def _finish(study: Study, run: str) -> None:
    """Watch a run to its end, save its model, and show what was found."""
    from fedgrem.cli.network import short, watched
    from fedgrem.cli.selection import print_selection
    from fedgrem.cli.tables import print_summary
    from fedgrem.engines.flare.operate import begin, carry_out, read_fit
    from fedgrem.report import summarize

    asked = read_fit(study, run)
    while is_candidate(asked):
        with watched(f"Comparing {asked.spec.n_components}", asked.spec.tol, len(asked.sites)) as callbacks:
            carry_out(study, run, **callbacks)
            more = asked.more or {}
            asked = asked._replace(more=more | {RUNS: [*more[RUNS], run]})
            model = _estimator(more["regression"], more["options"])
            columns = asked.spec.columns
            asked = next_fit(study, model, asked, None if columns is None else list(columns))
        run = begin(study, asked)
    with watched("Fitting", asked.spec.tol, len(asked.sites)) as callbacks:
        finished = carry_out(study, run, **callbacks)
        model = save_fitted(finished, asked.more or {}, study)
    summary = summarize(model)
    if summary.selection is not None:
        print_selection(summary.selection)
    print_summary(summary)
    typer.echo("\n" + cost_of(finished))
    out = Path((asked.more or {})["out"])
    typer.echo(f"Saved in {short(out)}; see it again with: fedgrem show {short(out)}")


def save_fitted(finished: Finished, more: dict[str, Any], study: Study | None = None) -> Any:
    """Make the model of a finished run and save it."""
    from fedgrem.cli.files import Source, save
    from fedgrem.estimators.network import adopt

    names = finished.about["columns"]
    target = names[-1] if more["regression"] else None
    model = _estimator(more["regression"], more["options"])
    search = search_of(study, model, more) if study is not None and RUNS in more else None
    adopt(model, finished, names[:-1] if target else names, search)
    save(model, Path(more["out"]), Source(None, target))
    return model


def cost_of(finished: Finished) -> str:
    """What the fit cost, in a line, and who was missing."""
    cost, about = finished.result.cost, finished.about
    seconds = about["seconds_per_round"]
    pace = "" if seconds is None else f", {seconds:.3f} s a round"
    before = 1 + cost["start_exchanges"] + cost.get("penalty_exchanges", 0)
    text = (
        f"{cost['exchanges']} exchanges ({before} before round 1){pace}; per round and site "
        f"{cost['bytes_sent_per_round_and_site']:,} bytes to the site and "
        f"{cost['bytes_received_per_round_and_site']:,} from it."
    )
    missing = [f"{site}: {reason}" for site, reason in about["out"].items()]
    missing += [f"{site}: away at the end, with the parameters it had" for site in about["away"]]
    return text + ("\nNot heard: " + "; ".join(missing) if missing else "")
