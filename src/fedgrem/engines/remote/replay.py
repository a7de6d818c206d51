"""A run played again from its journal alone: what was asked, who answered, and the model that follows from it."""

import shutil
import tempfile
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedgrem.engines.remote.engine import Answer, OverNetwork
from fedgrem.engines.remote.journal import AGAIN, JOURNAL, Journal, read_journal
from fedgrem.engines.remote.result import RESULT, Finished, read_result
from fedgrem.engines.remote.roster import Roster, Rules
from fedgrem.engines.remote.run import converse_over_network
from fedgrem.engines.remote.wire import Fields
from fedgrem.errors import PausedError
from fedgrem.fit.spec import read_spec


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
        same = (np.array_equal(getattr(kept, name), getattr(finished.result, name)) for name in ("theta", "weights"))
        as_kept = all(same)
    return Replay(exchanges, finished, engine.differs, as_kept)
