"""A conversation between a center and its sites: what is asked, what comes back, and who carries it.

A phase is the center's side, from top to bottom, as a generator: it yields an :class:`Ask` and is sent the
:class:`Replies`. Whoever drives it, in one process or over a network, decides how they travel.
"""

from collections.abc import Callable, Generator
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar

import numpy as np

from fedgrem.data.federation import Units
from fedgrem.kernels.threads import one_thread_each
from fedgrem.types import Array, count_numbers

T = TypeVar("T")


class Progress(NamedTuple):
    """What a callback is told while a fit runs."""

    stage: str
    round: int
    max_rounds: int
    movement: float
    """Median movement of the sites in the last round."""


class Agreed(NamedTuple):
    """What the sites have agreed on before rows are touched; every order says it again, as a site remembers nothing."""

    units: Units | None
    """The units of the fit; None leaves the rows as they are."""
    gaps: bool
    """Whether any site has missing cells."""


class Ask(NamedTuple):
    """One message to every site."""

    task: str
    mail: Any
    """Stacked ``(K, ...)``."""
    progress: Progress | None = None
    """What to tell those who watch."""
    agreed: Agreed = Agreed(None, False)
    to: Array | None = None
    """(K,) who is asked; None asks everyone."""
    optional: bool = False
    """Whether the fit can do without those who do not answer: in rounds and after them, not before."""


class Replies(NamedTuple):
    """What came back, in site order whatever arrived first."""

    present: Array
    """(K,) who answered."""
    mail: Any
    """Stacked ``(K, ...)``; rows of the absent are NaN."""


Phase: TypeAlias = Generator[Ask, Replies, T]


class Engine(Protocol):
    """Who carries messages to the sites."""

    @property
    def site_names(self) -> tuple[str, ...]:
        """In the order of every stacked array."""
        ...

    def ask(self, ask: Ask) -> Replies:
        """Carry one message to every site, and bring back the replies."""
        ...


class Cost:
    """Exchanges, and numbers sent and received, by what they were for."""

    ROUNDS = ("step", "private_step", "network_step", "sum_round")
    SUMS = ("sum_begin", "sum_round", "sum_pass")
    """Asked for the choice of the penalty, which ends with ``sum_gain``, and again for the fit."""
    PURPOSES = (
        ("census", ("census", "sum_keys", "sum_middle")),
        ("columns", ("variation", "contrast")),
        ("start", ("size", "start", "compare", "joint_start", "network_start", "network_match", "sum_guess")),
        ("penalty", ("path_step", "path_score", "weights_score", "sum_gain")),
        ("pass", ("sum_begin", "sum_pass", "sum_end")),
        ("some", ("birth", "hold")),
        ("held_down", ("held_down",)),
        ("look", ("look",)),
        ("information", ("information",)),
        ("score", ("score",)),
        ("private", ("private_columns", "private_moments", "private_cells", "private_step")),
    )

    def __init__(self) -> None:
        self.exchanges: dict[str, int] = {}
        self.numbers: dict[str, int] = {}
        self.last_round = 0

    def count(self, ask: Ask, replies: Replies) -> None:
        """Add one exchange."""
        numbers = count_numbers(ask.mail) + count_numbers(replies.mail)
        self.exchanges[ask.task] = self.exchanges.get(ask.task, 0) + 1
        self.numbers[ask.task] = self.numbers.get(ask.task, 0) + numbers
        if ask.task in self.ROUNDS:
            self.last_round = numbers
        if ask.task == "sum_gain":
            for found in (self.exchanges, self.numbers):
                found["sum_gain"] += sum(found.pop(task, 0) for task in self.SUMS)

    def as_dict(self) -> dict[str, int]:
        """By purpose."""
        rounds = sum(self.exchanges.get(task, 0) for task in self.ROUNDS)
        found = {"rounds": rounds, "numbers_per_round": self.last_round}
        for purpose, tasks in self.PURPOSES:
            if any(task in self.exchanges for task in tasks):
                found[f"{purpose}_exchanges"] = sum(self.exchanges.get(task, 0) for task in tasks)
                found[f"{purpose}_numbers"] = sum(self.numbers.get(task, 0) for task in tasks)
        return found


def converse(phase: Phase[T], engine: Engine, on_progress: Callable[[Progress], None] | None = None) -> tuple[T, Cost]:
    """Drive a phase to its end; returns what it found and what it cost."""
    cost = Cost()

    def carry(ask: Ask) -> Replies:
        if on_progress is not None and ask.progress is not None:
            on_progress(ask.progress)
        replies = engine.ask(ask)
        cost.count(ask, replies)
        return replies

    with np.errstate(all="ignore"), one_thread_each():  # what overflows is found by name afterwards
        return _drive(phase, carry), cost


def _drive(phase: Phase[T], carry: Callable[[Ask], Replies]) -> T:
    try:
        ask = next(phase)
        while True:
            ask = phase.send(carry(ask))
    except StopIteration as end:
        value: T = end.value
        return value


def with_agreement(phase: Phase[T], agreed: Agreed) -> Phase[T]:
    """The same phase, every message of which says what was agreed."""
    try:
        ask = next(phase)
        while True:
            replies = yield ask._replace(agreed=agreed)
            ask = phase.send(replies)
    except StopIteration as end:
        value: T = end.value
        return value


def everyone(n_sites: int) -> Array:
    """(K,) all present."""
    return np.ones(n_sites, dtype=bool)
