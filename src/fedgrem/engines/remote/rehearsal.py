"""A rehearsal: what a site would send, played through on its own rows, with nobody listening."""

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedgrem.algorithms.fedgrem import FedGrEM
from fedgrem.data.units import Census, UnitsPlan
from fedgrem.engines.remote.declaration import CENSUS, Declaration, Order, read_names
from fedgrem.engines.remote.fields import TITLES
from fedgrem.engines.remote.guard import Guard
from fedgrem.engines.remote.log import LOG, Log, read_log
from fedgrem.engines.remote.site import DeclinedError, Settings, SiteAtWork, read_rows
from fedgrem.engines.remote.wire import encode, size
from fedgrem.families.covariance import Tied
from fedgrem.families.gaussian import Gaussian
from fedgrem.families.regression import LinearRegression
from fedgrem.fit.conversation import Ask, Replies, everyone
from fedgrem.fit.fit import run
from fedgrem.fit.spec import FitSpec
from fedgrem.types import map_arrays, named_arrays


class Message(NamedTuple):
    """One message that would leave."""

    title: str
    fields: list[tuple[str, tuple[int, ...], Any]]
    """Name, shape and value."""
    size: int
    held_back: list[int]
    """Components of fewer rows than the floor, of which it says nothing."""


def rehearse(name: str, settings: Settings, n_components: int) -> tuple[list[Message], str]:
    """The first message of every task of a default fit of one round, with another site that is just like this one.

    Also returns why the guard would refuse to go on, empty where it would not.
    """
    regression = settings.target is not None
    family = LinearRegression("shared") if regression else Gaussian(Tied())
    units = UnitsPlan(standardize=True, intercept=regression)
    spec = FitSpec(family, FedGrEM(), n_components, max_rounds=1, units=units, missing=not regression, score=True)
    if settings.epsilon is not None:  # a study agrees on bounds; here nobody is listening
        rows = read_rows(name, settings).sites[0].rows
        bounds = tuple((float(low), float(high) + 1e-9) for low, high in zip(rows.min(0), rows.max(0), strict=True))
        spec = replace(spec, missing=False, score=False, ranges=bounds, columns=settings.columns)
    with tempfile.TemporaryDirectory(prefix="fedgrem-") as folder:
        here = _Here(name, settings, spec, Path(folder) / LOG)
        try:
            run(spec, here)
        except DeclinedError as error:
            return list(here.messages.values()), str(error)
    return list(here.messages.values()), ""


class _Here:
    """An engine that asks one site, and takes its answers for those of another one, too."""

    def __init__(self, name: str, settings: Settings, spec: FitSpec, log: Path) -> None:
        self.site_names = (name, f"{name}, once more")
        self.messages: dict[str, Message] = {}
        self._declaration, self._log, self._exchange = Declaration(spec, len(settings.columns)), log, 0
        self._guard = Guard(SiteAtWork(name, settings, spec), Log(log), lambda: (), run="rehearsal")

    def ask(self, ask: Ask) -> Replies:
        """Ask the site, and read in its log what has left."""
        mail = map_arrays(lambda leaf: np.asarray(leaf[0]), ask.mail)
        order = Order(mail, ask.agreed.units, np.asarray(ask.agreed.gaps))
        self._exchange += 1
        released = self._guard.answer(ask.task, encode(order), exchange=self._exchange)
        reply = self._declaration.read_reply(ask.task, released)
        if ask.task not in self.messages:
            held_back = list(read_log(self._log))[-1].get("held_back", [])
            self.messages[ask.task] = self._message(ask.task, reply, held_back)
        reply = Census(*reply[:-1]) if ask.task == CENSUS else reply
        return Replies(everyone(2), map_arrays(lambda leaf: np.stack([leaf, leaf]), reply))

    def _message(self, task: str, reply: Any, held_back: list[int]) -> Message:
        fields: list[tuple[str, tuple[int, ...], Any]] = [(n, leaf.shape, leaf) for n, leaf in named_arrays(reply)]
        if task == CENSUS:
            fields = [(n, shape, read_names(value) if n == "names" else value) for n, shape, value in fields]
        return Message(TITLES[task], fields, size(encode(reply)), held_back)
