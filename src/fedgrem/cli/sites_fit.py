"""``fedgrem sites fit`` and ``resume``, a fit over the sites of a study, and ``fedgrem replay``, from its journal."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from fedgrem.cli import options as opt
from fedgrem.cli.files import Source, check_folder, prepare_network, save
from fedgrem.cli.options import covariates_of_words, estimator, listed, read_bounds, read_components
from fedgrem.cli.screen import boxed, notice, print_model, progress_bar, warnings_as_notices
from fedgrem.errors import InputError

if TYPE_CHECKING:
    from fedgrem.engines.flare.kit import Study
    from fedgrem.engines.flare.operate import Fit, Session
    from fedgrem.engines.remote.result import Finished

RUNS, DONE = "search_runs", "search_done"
"""Among a run's plain values: the runs whose fits are compared, and whether this one is the fit of the winner."""


@opt.with_options
@opt.examples(
    "fedgrem sites fit study/ --components 5 --algorithm fedgrem --out model/",
    "fedgrem sites fit study/ --components 2:8 --out model/",
    "fedgrem sites fit study/ -r 3 --regression --min-sites 4 --out model/",
    'fedgrem sites fit study/ -r 2 --regression --columns age,cp --types "cp=none|mild|severe" --out model/',
    "fedgrem sites fit study/ -r 3 --columns age,bmi --ranges age=0:120,bmi=10:60 --out model/",
    "fedgrem sites fit study/ -r 3 --secure-sums --out model/",
    "fedgrem sites fit study/ -r 3 --neighbours ring --columns age,bmi --out model/",
    'fedgrem sites fit study/ -r 3 --table --columns age,sex --types "age=continuous,sex=f|m" --out model/',
)
def fit(
    study: opt.StudyFolder,
    components: opt.Components,
    out: opt.ModelFolder,
    *,
    algorithm: Annotated[
        str, opt.option("NAME", "How the sites work together: fedgrem, fedem, fedgmm, tgmm, ...")
    ] = "fedgrem",
    regression: Annotated[
        bool, opt.option(None, "Explain the column that each site named with --target.", "--regression")
    ] = False,
    columns: Annotated[
        str | None, opt.option("A,B,...", "Columns that sites must have, in order.", default="not asked")
    ] = None,
    ranges: Annotated[
        str | None,
        opt.option(
            "A=LOW:HIGH,...",
            "Fit privately: sites add noise, each within its own budget. Bounds of the --columns, or one for all.",
            default="not private",
        ),
    ] = None,
    family: opt.FamilyOptions,
    how: opt.FitOptions,
    secure_sums: Annotated[
        bool, opt.option(None, "See nothing but sums over at least three sites.", "--secure-sums")
    ] = False,
    neighbours: Annotated[
        str | None,
        opt.option("GRAPH", "Without a server that adds up: ring, grid, star, erdos-renyi.", default="a server"),
    ] = None,
    min_sites: Annotated[
        int | None, opt.option("N", "With fewer answers, the fit pauses.", least=1, default="more than half")
    ] = None,
    deadline: Annotated[
        float, opt.option("S", "Seconds that a site has to answer before it is skipped.", least=1.0)
    ] = 120.0,
    poll: Annotated[
        bool,
        opt.option(None, "Let sites fetch their orders: slower, for networks where pushing fails.", "--poll"),
    ] = False,
    force: opt.Force = False,
) -> None:
    """Fit one mixture per site over the network, pulled to a common center, and save it.

    Every site keeps its rows. The model is the one that `fedgrem fit` would find on the same rows in one place; show,
    predict and report work on it alike. A site that fails is named, and left out of that round; after three bad answers
    it is out. Several numbers of components are fitted one after the other, and then the best one in full. After any
    crash, `fedgrem sites resume` goes on from the last exchange.
    """
    place = open_study(study)  # before the heavy imports: it sees to where they are kept compiled
    from fedgrem.engines.flare.operate import Fit, begin, only_fit, session
    from fedgrem.engines.remote.roster import Rules
    from fedgrem.estimators.network import spec_for
    from fedgrem.estimators.selection import candidate, numbers_of

    check_folder(out, force=force)
    numbers = read_components(components)
    options = how.told(numbers)
    if secure_sums and family.table:
        raise InputError("--secure-sums is for Gaussians and regressions; leave it or --table out.")
    if secure_sums and not isinstance(numbers, int):
        raise InputError(f"--secure-sums fits one number of components, got {components}; give a number.")
    options |= {"secure_sums": True} if secure_sums else {}
    options["algorithm"] = algorithm
    names = listed(columns) or None
    words = covariates_of_words(family.types, names) if regression and not family.table else ()
    options |= (replace(family, types=None) if words else family).told(regression)
    if family.table and names is None:
        raise InputError("--table needs --columns and --types: over a network no site shows what its columns hold.")
    if ranges is not None:
        if regression or family.table:
            raise InputError("--ranges is for private fits of Gaussian components; leave out --regression and --table.")
        options["privacy"] = {"ranges": read_bounds(ranges)}
    if secure_sums and len(place.sites) < 3:
        raise InputError(f"secure sums are over at least 3 sites, and {study} has {len(place.sites)}.")
    model = estimator(options, regression)
    fixed = isinstance(numbers, int)
    first = model if fixed else candidate(model, min(numbers_of(numbers), default=1))
    spec = spec_for(first, names, candidate=not fixed, words=words)
    quorum = len(place.sites) // 2 + 1 if min_sites is None else min_sites
    more: dict[str, Any] = {"regression": regression, "options": options, "out": str(out.resolve())}
    more |= {} if fixed else {RUNS: [], DONE: False}
    rules = Rules(min_sites=min(quorum, len(place.sites)), deadline=deadline)
    asked = Fit(spec, list(place.sites), rules, "poll" if poll else "push", more)
    if neighbours is not None:
        asked = asked._replace(links=_links(asked, neighbours), rules=rules._replace(min_sites=len(place.sites)))
    with session(place) as talk:
        talk.check_connected(asked)
        with only_fit(place, "a fit"):  # before a run is written down that could not begin
            pass
        _finish(talk, begin(place, asked))


def _links(asked: Fit, graph: str) -> list[list[int]]:
    """Which sites are neighbours, where the fit can be without a server."""
    import numpy as np

    from fedgrem.engines.decentralized import Decentralized
    from fedgrem.fit.neighbours import Neighbours
    from fedgrem.fit.sums_site import check_spec

    spec = asked.spec
    if spec.columns is None:
        raise InputError("--neighbours needs --columns: sites then compare them with their own, and tell nobody.")
    if spec.secure_sums or spec.ranges is not None or RUNS in (asked.more or {}):
        raise InputError("--neighbours does not go with --secure-sums, --ranges or several numbers of components.")
    check_spec(spec, Neighbours.what, "leave out --neighbours")
    found: list[list[int]] = np.argwhere(np.triu(Decentralized(graph).links(tuple(asked.sites), spec.seed))).tolist()
    return found


@opt.examples(
    "`fedgrem sites start study/`, then `fedgrem sites resume study/`",
    "fedgrem sites resume study/ --run run-20260101-120000-000",
)
def resume(
    study: opt.StudyFolder,
    run: Annotated[str | None, opt.option("NAME", "Which fit, by its name.", default="the last")] = None,
) -> None:
    """Take a fit up again, where it was, and save its model where it was to go.

    After a crash of the server, of the machine, or of this command; or when a fit has paused for want of sites. The end
    is the same as if nothing had happened, bit for bit if no site was missing.
    """
    place = open_study(study)
    from fedgrem.engines.flare.operate import last_unfinished, session, unfinished

    chosen = last_unfinished(place) if run is None else unfinished(place, run)
    with session(place) as talk:
        _finish(talk, chosen)


def open_study(folder: Path) -> Study:
    """The study in a folder."""
    from fedgrem.engines.flare.kit import read_study

    prepare_network()
    return read_study(folder)


def _finish(talk: Session, run: str) -> None:
    """Watch a run to its end, save its model, and show what was found."""
    from fedgrem.engines.flare.operate import begin, read_fit

    asked = read_fit(talk.study, run)
    more = asked.more or {}
    while RUNS in more and not more[DONE]:
        carry_out(talk, run, f"Comparing {asked.spec.n_components}")
        with warnings_as_notices():
            asked = next_fit(talk.study, asked, run)
        more, run = asked.more or {}, begin(talk.study, asked)
    finished = carry_out(talk, run, "Fitting")
    print_model(save_fitted(finished, more, talk.study))
    typer.echo("\n" + cost_of(finished))
    out = Path(more["out"])
    shown = out.relative_to(Path.cwd()) if out.is_relative_to(Path.cwd()) else out
    typer.echo(f"Saved in {shown}; see it again with: fedgrem show {shown}")


def carry_out(talk: Session, run: str, task: str) -> Finished:
    """Carry a run out under a live bar, with the sites in and out."""
    from fedgrem.engines.flare.operate import read_fit

    asked = read_fit(talk.study, run)
    here = len(asked.sites)

    def on_line(line: dict[str, Any]) -> None:
        nonlocal here
        here = line.get("sites", here)
        for event in line.get("events", []):
            notice(f"site {event['site']!r}: {event['what']} (exchange {event['exchange']}): {event['reason']}")

    with progress_bar(task, asked.spec.tol, lambda: f", {here} of {len(asked.sites)} sites") as tell:
        return talk.carry_out(run, tell, on_line)


def next_fit(study: Study, fit: Fit, run: str) -> Fit:
    """What follows a run that is compared: the fit of the next number of components or, in the end, of the best."""
    from fedgrem.estimators.network import spec_for
    from fedgrem.estimators.selection import candidate, copy_with

    more = fit.more or {}
    more = more | {RUNS: [*more[RUNS], run]}
    model = estimator(more["options"], more["regression"])
    columns = None if fit.spec.columns is None else list(fit.spec.columns)
    search = search_of(study, model, more)
    number = search.next()
    done = number is None
    if number is None:
        search.warn()
        number = search.best
        spec = spec_for(copy_with(model, n_components=number), columns, words=fit.spec.words)
    else:
        spec = spec_for(candidate(model, number), columns, candidate=True, words=fit.spec.words)
    spec = replace(spec, score=True, smaller=search.smaller(number), some=search.most if done else 0)
    return fit._replace(spec=spec, more=more | {DONE: done})


def search_of(study: Study, model: Any, more: dict[str, Any]) -> Any:
    """What has come of the runs that are compared."""
    from fedgrem.engines.flare.operate import run_folder
    from fedgrem.engines.remote.result import read_result
    from fedgrem.estimators.selection import Search

    finished = [read_result(run_folder(study, run)) for run in more[RUNS]]
    rows = {site: n for one in finished[:1] for site, n in one.about["n_rows"].items()}
    search = Search(model.n_components, model.criterion, rows)
    search.tallies = [model._tally(one.result) for one in finished]
    return search


def save_fitted(finished: Finished, more: dict[str, Any], study: Study | None = None) -> Any:
    """Make the model of a finished run and save it."""
    from fedgrem.estimators.network import adopt

    names = finished.about["columns"]
    target = names[-1] if more["regression"] else None
    model = estimator(more["options"], more["regression"])
    search = search_of(study, model, more) if study is not None and RUNS in more else None
    with warnings_as_notices():
        adopt(model, finished, names[:-1] if target else names, search)
    save(model, Path(more["out"]), Source(None, target))
    return model


def cost_of(finished: Finished) -> str:
    """What the fit cost, in a line, and who was missing."""
    cost, about = finished.result.cost, finished.about
    if "messages_per_sum" in cost:
        text = f"{cost['links']} links; {cost['messages']:,} messages between neighbours, {cost['rounds']} rounds."
        out = "; ".join(f"{site}: {reason}" for site, reason in about["out"].items())
        return text + (f"\nNot heard: {out}" if out else "")
    seconds = about["seconds_per_round"]
    pace = "" if seconds is None else f", {seconds:.3f} s a round"
    private = cost.get("private_exchanges", 0)
    starts = cost.get("start_exchanges", 0)
    first = cost.get("census_exchanges", 1)
    before = private - cost["rounds"] if private else first + starts + cost.get("penalty_exchanges", 0)
    told = f" ({before} before round 1)" if private or starts else ""
    text = (
        f"{cost['exchanges']} exchanges{told}{pace}; per round and site "
        f"{cost['bytes_sent_per_round_and_site']:,} bytes to the site and "
        f"{cost['bytes_received_per_round_and_site']:,} from it."
    )
    missing = [f"{site}: {reason}" for site, reason in about["out"].items()]
    missing += [f"{site}: away at the end, with the parameters it had" for site in about["away"]]
    return text + ("\nNot heard: " + "; ".join(missing) if missing else "")


@opt.examples("fedgrem replay study/server/runs/run-20260101-120000-000/journal")
def replay(
    journal: Annotated[Path, opt.argument("JOURNAL", "The file `journal` in STUDY/server/runs/RUN.")],
    last: Annotated[int, opt.option("N", "Only the last N exchanges; 0 for all.", least=0)] = 0,
) -> None:
    """Show what was asked and answered in a fit over a network, and compute its model again from that. Nothing is sent.

    The journal holds every answer that was used, in order. Whoever has it can check that the model follows from these
    answers, and that no other question was asked.
    """
    from fedgrem.engines.remote.run import replay as play

    played = play(journal)
    headers = ("exchange", "task", "answered", "numbers", "bytes out", "bytes in", "seconds")
    table = boxed("", headers, left=("task", "answered"))
    most = max(len(one.sites) for one in played.exchanges)
    for one in played.exchanges[-last:]:
        sites = f"all {most}" if len(one.sites) == most else ", ".join(one.sites)
        numbers = (str(one.numbers), f"{one.sent:,}", f"{one.received:,}", f"{one.seconds:.3f}")
        table.add_row(str(one.number), one.task, sites, *numbers)
    Console(highlight=False).print(table)
    if played.differs:
        typer.echo(f"Asked with other numbers than this fedgrem finds here: exchange {played.differs[0]} and others.")
    else:
        typer.echo(f"All {len(played.exchanges)} exchanges are asked again with the same numbers, to the bit.")
    if played.finished is None:
        typer.echo("The fit was not finished; go on with: fedgrem sites resume STUDY")
        return
    result = played.finished.result
    beside = {
        None: "There is no result beside the journal to compare it with.",
        True: "It is the result beside the journal, to the bit.",
        False: "It is the result beside the journal: NO, they differ.",
    }
    typer.echo(
        f"The model: {result.weights.shape[1]} components over {len(result.site_names)} sites, {result.n_rounds} "
        f"rounds, {'settled' if result.converged else 'not settled'}. {beside[played.as_kept]}"
    )
