"""A fit over a network, at its center: the one conversation, a journal of every exchange, and a result on disk."""

import json
import statistics
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedgrem.engines.remote.engine import OverNetwork, SitesChangedError, Transport
from fedgrem.engines.remote.journal import Journal
from fedgrem.engines.remote.result import Finished, write_result
from fedgrem.engines.remote.roster import Roster, Rules
from fedgrem.fit.conversation import Progress
from fedgrem.fit.fit import run
from fedgrem.fit.spec import FitSpec

PROGRESS = "progress.jsonl"


class Diary:
    """One line per thing that a watcher may want to see, in the run's folder."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / PROGRESS

    def write(self, **line: Any) -> None:
        """Add a line."""
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


def fit_over_network(
    spec: FitSpec, sites: list[str], transport: Transport, folder: Path, rules: Rules | None = None
) -> Finished:
    """Fit with sites that are elsewhere; what the journal in ``folder`` holds is played again first.

    :class:`~fedgrem.errors.PausedError` if too few sites answer; all that was reached is then in the journal.
    """
    engine = OverNetwork(spec, Roster(list(sites), rules or Rules()), transport, Journal(folder, spec, sites))
    diary, look = Diary(folder), _lookout(engine)
    try:
        finished = converse_over_network(
            spec, engine, lambda progress: diary.write(kind="progress", **progress._asdict(), **look())
        )
    finally:
        engine.close()
    write_result(folder, finished)
    result = finished.result
    diary.write(kind="finished", rounds=result.n_rounds, converged=result.converged, **look())
    return finished


def converse_over_network(spec: FitSpec, engine: OverNetwork, on_progress: Callable[[Progress], None]) -> Finished:
    """Meet the sites, and fit; again without those that are lost before round 1."""

    def tell(progress: Progress) -> None:
        if progress.stage != "census" or not engine.roster.census:
            on_progress(progress)

    tell(Progress("census", 0, spec.max_rounds, float("nan")))
    engine.meet()
    named = replace(spec, columns=tuple(engine.columns))
    while True:
        try:
            result = run(named, engine, tell)
            break
        except SitesChangedError:
            continue
    return Finished(result._replace(cost={**result.cost, **_cost(engine)}), _about(engine))


def _lookout(engine: OverNetwork) -> Callable[[], dict[str, Any]]:
    """Who is in and out, and what happened since the last look."""
    told = 0

    def look() -> dict[str, Any]:
        nonlocal told
        roster = engine.roster
        news, told = roster.events[told:], len(roster.events)
        here = len(roster.active) - len(roster.away & set(roster.active))
        return {"sites": here, "away": sorted(roster.away), "out": roster.out, "events": news}

    return look


def _cost(engine: OverNetwork) -> dict[str, int]:
    last = engine.rounds[-1]
    return {
        "exchanges": engine.exchange,
        "bytes_sent_per_round_and_site": last.sent // max(1, last.asked),
        "bytes_received_per_round_and_site": last.received // max(1, last.asked),
    }


def _about(engine: OverNetwork) -> dict[str, Any]:
    roster = engine.roster
    return {
        "events": roster.events,
        "out": roster.out,
        "away": sorted(roster.away),
        "columns": engine.columns,
        "n_rows": {name: float(census.n_rows) for name, census in roster.census.items()},
        "seconds_per_round": statistics.median(traffic.seconds for traffic in engine.rounds),
    }
