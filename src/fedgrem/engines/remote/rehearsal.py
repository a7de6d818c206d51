"""A rehearsal: what a site would send, played through on its own rows, with nobody listening."""

import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedgrem.algorithms.fedgrem import FedGrEM
from fedgrem.data.units import Census, UnitsPlan
from fedgrem.engines.remote.declaration import CENSUS, Order, read_names
from fedgrem.engines.remote.fields import TITLES
from fedgrem.engines.remote.guard import Guard
from fedgrem.engines.remote.site import DeclinedError, Settings, SiteAtWork
from fedgrem.engines.remote.wire import encode, size
from fedgrem.errors import InputError
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
    refused: str
    """Why the guard would not let it out; empty if it would."""


def rehearse(name: str, settings: Settings, n_components: int) -> list[Message]:
    """The first message of every kind, of a default fit of one round with another site that is just like this one."""
    regression = settings.target is not None
    family = LinearRegression("shared") if regression else Gaussian(Tied())
    units = UnitsPlan(standardize=True, intercept=regression)
    spec = FitSpec(family, FedGrEM(), n_components, max_rounds=1, units=units, missing=not regression)
    here = _Here(name, settings, spec)
    try:
        run(spec, here)
    except DeclinedError as error:
        raise InputError(str(error)) from error
    return list(here.messages.values())


class _Here:
    """An engine that asks one site, and takes its answers for those of another one, too."""

    def __init__(self, name: str, settings: Settings, spec: FitSpec) -> None:
        self.site_names = (name, f"{name}, once more")
        self.messages: dict[str, Message] = {}
        self._site, self._guard = SiteAtWork(name, settings, spec), Guard(settings, spec, Path(os.devnull))

    def ask(self, ask: Ask) -> Replies:
        """Ask the site."""
        mail = map_arrays(lambda leaf: np.asarray(leaf[0]), ask.mail)
        order = Order(mail, ask.agreed.units, np.asarray(ask.agreed.gaps))
        reply = self._site.answer(ask.task, encode(order))
        if ask.task not in self.messages:
            self.messages[ask.task] = self._message(ask.task, reply)
        reply = Census(*reply[:-1]) if ask.task == CENSUS else reply
        return Replies(everyone(2), map_arrays(lambda leaf: np.stack([leaf, leaf]), reply))

    def _message(self, task: str, reply: Any) -> Message:
        refused = ""
        try:
            self._guard.judge(task, encode(reply))
        except DeclinedError as error:
            refused = str(error)
        fields: list[tuple[str, tuple[int, ...], Any]] = [(n, leaf.shape, leaf) for n, leaf in named_arrays(reply)]
        if task == CENSUS:
            fields = [(n, shape, read_names(value) if n == "names" else value) for n, shape, value in fields]
        return Message(TITLES[task], fields, size(encode(reply)), refused)
