"""The center of a fit over a network: the one loop, a checkpoint after every round, and a result on disk."""

import json
import time
from pathlib import Path
from typing import Any

import numpy as np

from fedgrem.algorithms.plan import Progress
from fedgrem.algorithms.rounds import Saved, run
from fedgrem.engines.flare.engine import OverNetwork, SitesChangedError, Transport
from fedgrem.engines.flare.recipe import Recipe
from fedgrem.engines.flare.roster import Roster, Rules
from fedgrem.engines.flare.store import Checkpoint, Finished, read_checkpoint, write_checkpoint, write_result
from fedgrem.kernels.precision import precision

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
    recipe: Recipe, sites: list[str], transport: Transport, folder: Path, rules: Rules | None = None
) -> Finished:
    """Fit with sites that are elsewhere, from the last checkpoint in ``folder`` if there is one.

    :class:`~fedgrem.errors.PausedError` if too few sites answer; what was reached is then in the checkpoint.
    """
    rules = rules or Rules()
    with precision(recipe.dtype):
        checkpoint = read_checkpoint(folder, recipe)
        fresh = checkpoint is None or checkpoint.saved is None  # no round is finished: every site has another chance
        roster = Roster(list(sites), rules) if checkpoint is None or fresh else checkpoint.roster
        roster.rules = rules
        roster.away.clear()  # whoever was away before a pause is waited for again
        engine = OverNetwork(recipe, roster, transport, exchange=0 if checkpoint is None else checkpoint.exchange)
        try:
            return _fit(recipe, engine, None if checkpoint is None else checkpoint.saved, folder)
        finally:
            engine.close()


def _fit(recipe: Recipe, engine: OverNetwork, saved: Saved | None, folder: Path) -> Finished:
    diary, watch = Diary(folder), _Watch(engine)

    def tell(progress: Progress) -> None:
        diary.write(kind="progress", **progress._asdict(), **watch.look())

    def keep(saved: Saved) -> None:
        watch.round_over()
        write_checkpoint(folder, recipe, Checkpoint(engine.roster, engine.exchange, saved))

    if not engine.roster.census:
        diary.write(
            kind="progress", stage="census", round=0, max_rounds=recipe.max_rounds, movement=None, **watch.look()
        )
        engine.meet()
    if saved is not None:
        engine.log_likelihood = np.asarray(saved.records.log_likelihood[-1])
    while True:
        plan = recipe.plan(len(engine.site_names), engine.width)
        write_checkpoint(folder, recipe, Checkpoint(engine.roster, engine.exchange, saved))
        try:
            result = run(recipe.build_algorithm(), engine, plan, tell, resume=saved, keep=keep)
        except SitesChangedError:
            continue
        break
    finished = Finished(result._replace(cost=result.cost | watch.cost()), engine.units, watch.about())
    write_result(folder, finished)
    diary.write(kind="finished", rounds=result.n_rounds, converged=result.converged, **watch.look())
    return finished


class _Watch:
    """Keeps the time and the bytes of the rounds."""

    def __init__(self, engine: OverNetwork) -> None:
        self._engine = engine
        self._seconds: list[float] = []
        self._last = time.monotonic()
        self._told = len(engine.roster.events)

    def round_over(self) -> None:
        now = time.monotonic()
        self._seconds.append(now - self._last)
        self._last = now

    def look(self) -> dict[str, Any]:
        """Who is in and out, and what happened since the last look."""
        roster, traffic = self._engine.roster, self._engine.traffic
        news, self._told = roster.events[self._told :], len(roster.events)
        if not self._seconds:
            self._last = time.monotonic()
        return {
            "sites": len(roster.active) - len(roster.away & set(roster.active)),
            "away": sorted(roster.away),
            "out": roster.out,
            "seconds": traffic.seconds,
            "events": news,
        }

    def cost(self) -> dict[str, int]:
        n_sites, traffic = max(1, len(self._engine.roster.active)), self._engine.traffic
        return {
            "exchanges": self._engine.exchange,
            "bytes_sent_per_round_and_site": traffic.sent // n_sites,
            "bytes_received_per_round_and_site": traffic.received // n_sites,
        }

    def about(self) -> dict[str, Any]:
        roster = self._engine.roster
        return {
            "events": roster.events,
            "out": roster.out,
            "away": sorted(roster.away),
            "columns": self._engine.columns,
            "n_rows": {name: float(census.n_rows) for name, census in roster.census.items()},
            "seconds_per_round": float(np.median(self._seconds)) if self._seconds else None,
        }
