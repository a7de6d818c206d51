"""A fit over a network, at its center: the one conversation, a journal of every exchange, and a result on disk.

A run can be played again from its journal alone: what was asked, who answered, and the model that follows from it.
"""

import shutil
import statistics
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedgrem.engines.remote.declaration import NamedCensus
from fedgrem.engines.remote.engine import Answer, OverNetwork, SitesChangedError, Transport
from fedgrem.engines.remote.journal import AGAIN, JOURNAL, Journal, read_journal
from fedgrem.engines.remote.progress import Diary
from fedgrem.engines.remote.result import RESULT, Finished, read_result, write_result
from fedgrem.engines.remote.roster import Roster, Rules
from fedgrem.engines.remote.wire import Fields
from fedgrem.errors import PausedError
from fedgrem.fit.conversation import Progress
from fedgrem.fit.fit import run
from fedgrem.fit.spec import FitSpec, read_spec
from fedgrem.types import FitResult


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
    return Finished(result._replace(cost={**result.cost, **_cost(engine)}), _about(engine, result))


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


def _about(engine: OverNetwork, result: FitResult) -> dict[str, Any]:
    roster = engine.roster
    return {
        "events": roster.events,
        "out": roster.out,
        "away": sorted(roster.away),
        "columns": engine.columns,
        "words": [column.as_plain() for column in engine.spec.words],
        "n_rows": {n: float(said.n_rows) for n, said in roster.census.items() if isinstance(said, NamedCensus)}
        or {n: rows for n, rows in zip(result.site_names, result.n_rows.tolist(), strict=True) if np.isfinite(rows)},
        "seconds_per_round": statistics.median(traffic.seconds for traffic in engine.rounds),
    }


# -- from the journal alone


class Exchange(NamedTuple):
    """One line of a journal."""

    number: int
    task: str
    sites: list[str]
    """Who answered."""
    numbers: int
    """In their answers."""
    sent: int
    """Bytes to the sites."""
    received: int
    seconds: float


class Replay(NamedTuple):
    """What came of it."""

    exchanges: list[Exchange]
    finished: Finished | None
    """None if the journal ends before the fit does."""
    differs: list[int]
    """Exchanges whose orders are not, to the bit, what is computed now."""
    as_kept: bool | None
    """Whether the model is, to the bit, the result beside the journal; None if there is none."""


class _Nobody:
    """A transport without sites."""

    def ask(self, site: str, task: str, exchange: int, order: Fields, timeout: float) -> Answer:
        """Ends the play."""
        raise PausedError("the journal ends here.")


def replay(path: Path) -> Replay:
    """Play a journal again; it is copied first, and stays as it is."""
    header, *records = read_journal(path)
    spec, sites = read_spec(header.about["spec"]), header.about["sites"]
    exchanges = []
    for about, fields in records:
        if about["task"] != AGAIN:
            numbers = sum(int(np.prod(field["shape"])) for field in fields.values())
            cost = about["traffic"]
            told = numbers, cost["sent"], cost["received"], cost["seconds"]
            exchanges.append(Exchange(about["exchange"], about["task"], about["sites"], *told))
    with tempfile.TemporaryDirectory(prefix="fedgrem-") as folder:
        shutil.copyfile(path, Path(folder) / JOURNAL)
        journal = Journal(Path(folder), spec, sites)
        engine = OverNetwork(spec, Roster(list(sites), Rules()), _Nobody(), journal)
        try:
            finished = converse_over_network(spec, engine, lambda _: None)
        except PausedError:
            finished = None
        finally:
            engine.close()
    as_kept = None
    if finished is not None and (path.parent / RESULT).exists():
        kept = read_result(path.parent).result
        pairs = ((getattr(kept, name), getattr(finished.result, name)) for name in ("theta", "weights", "center"))
        as_kept = all(np.array_equal(*pair, equal_nan=True) for pair in pairs)
    return Replay(exchanges, finished, engine.differs, as_kept)
