"""The engine whose sites are elsewhere: one message each per exchange, checked before it is used.

It knows nothing of NVFlare: a :class:`Transport` carries the messages.
"""

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from fedgrem.algorithms.base import Algorithm
from fedgrem.algorithms.rounds import LoopState, Tolerance, distances, play_round
from fedgrem.data.federation import Units
from fedgrem.data.units import Summary
from fedgrem.engines.flare.declaration import (
    AFTER_TASKS,
    CENSUS,
    STEP,
    Census,
    Declaration,
    Order,
    number_like,
    read_names,
)
from fedgrem.engines.flare.recipe import Recipe
from fedgrem.engines.flare.roster import Roster
from fedgrem.engines.flare.site import REASONS
from fedgrem.engines.flare.validate import check_reply
from fedgrem.engines.flare.wire import Fields, encode, printable, size
from fedgrem.errors import InputError, MessageError
from fedgrem.types import Array, Central, Array, RoundRecord, Upload

PROBE = 2.0
"""Seconds, or three times what the last exchange took, that a site which missed a deadline has until it is back."""
MOST_COLUMNS = 100_000
ATTEMPT = 5.0
"""Seconds, or five times what the last exchange took, after which a site that is silent is asked again."""


class Answer(NamedTuple):
    """What came of asking one site once."""

    fields: Fields | None
    """The reply; None if there is none."""
    exchange: int = -1
    """The number of the exchange that the site says it answers."""
    declined: str = ""
    """A key of ``REASONS``, if the site does not want to answer."""
    trouble: str = ""
    """What went wrong on the way; asking again may help."""


class Transport(Protocol):
    """Carries one order to one site and its answer back. Called from one thread per site."""

    def ask(self, site: str, task: str, exchange: int, order: Fields, timeout: float) -> Answer:
        """The answer, within ``timeout`` seconds; never raises."""
        ...


class SitesChangedError(Exception):
    """A site was lost before it had a start: the search for starts begins again without it."""


class Traffic(NamedTuple):
    """What the last exchange cost."""

    seconds: float
    sent: int
    """Bytes of arrays, over all sites."""
    received: int


class OverNetwork:
    """Asks the sites of a roster over a transport; an :class:`~fedgrem.algorithms.base.Engine`."""

    def __init__(self, recipe: Recipe, roster: Roster, transport: Transport, *, exchange: int = 0) -> None:
        self.recipe, self.roster = recipe, roster
        self.exchange = exchange
        """The number of the last exchange: a reply must carry it."""
        self.traffic = Traffic(0.0, 0, 0)
        self._transport = transport
        self._algorithm = recipe.build_algorithm()
        self._pace = 0.0
        """Seconds that the slowest good answer of the last exchange took."""
        self.log_likelihood: Array | None = None
        """(K,) what each site last said; kept for those that miss a round."""
        self._threads = ThreadPoolExecutor(max(1, len(roster.names)), thread_name_prefix="site")
        self._units: Units | None = None
        self._gaps = False
        self._declaration = Declaration(recipe, 1)
        if roster.census:
            self._settle_units()

    # -- before the fit

    def meet(self) -> None:
        """Ask every site for its size and its columns; those that do not answer well take no part."""
        self._declaration = Declaration(self.recipe, self._expected_columns())
        answers = self._deliver(CENSUS, {name: self._order(()) for name in self.roster.names})
        n_columns = self._common_columns(answers)
        self._declaration = Declaration(self.recipe, n_columns)
        self.roster.census = self._judge(CENSUS, answers, lose=True)
        self._same_names()
        self.roster.check_quorum(len(self.roster.census))
        self._settle_units()

    def _expected_columns(self) -> int:
        return 1 if self.recipe.columns is None else len(self.recipe.columns)

    def _common_columns(self, answers: dict[str, Answer]) -> int:
        """How many columns most sites have; others are refused by shape."""
        if self.recipe.columns is not None:
            return len(self.recipe.columns)
        counts = [n for n in map(_claimed_columns, answers.values()) if 0 < n <= MOST_COLUMNS]
        if not counts:
            return 1
        common = max(set(counts), key=lambda n: (counts.count(n), -counts.index(n)))
        return max(1, common - self.recipe.build_family().has_target)

    def _same_names(self) -> None:
        """Drop sites whose columns are not those of most: mixed-up columns look like an odd site, and are none."""
        named = {site: tuple(read_names(census.names)) for site, census in self.roster.census.items()}
        found = list(named.values())
        common = max(found, key=found.count, default=())
        for site, names in named.items():
            if names != common:
                del self.roster.census[site]
                mine, most = (printable(", ".join(listed), 200) for listed in (names, common))
                self.roster.drop(site, f"its columns are {mine}, and those of most sites {most}", self.exchange)

    @property
    def columns(self) -> list[str]:
        """What most sites call their columns, the response of a regression last."""
        return read_names(self.roster.census[self.roster.names[0]].names)

    def _settle_units(self) -> None:
        members = [self.roster.census[name] for name in self.roster.names]
        n_columns = len(members[0].mean) - self.recipe.build_family().has_target
        self._declaration = Declaration(self.recipe, n_columns)
        self._gaps = any(bool(census.gaps) for census in members)
        self._check_columns(members, n_columns)
        self._units = self.recipe.units_plan.units([Summary(c.mean, c.deviation) for c in members])

    def _check_columns(self, members: list[Census], n_columns: int) -> None:
        """Refuse a column that says nothing at any site, as in process; an empty one, too."""
        names = self.columns[:n_columns]
        allowed = self.recipe.build_family().has_target
        for j, name in enumerate(names):
            means = np.array([census.mean[j] for census in members])
            means = means[~np.isnan(means)]
            flat = all(not census.deviation[j] > 0 for census in members)
            if not len(means):
                raise InputError(f"column {name!r} is missing in every row of every site; drop it.")
            if flat and np.all(means == means[0]) and (means[0] == 0 or not allowed):
                raise InputError(f"column {name!r} is constant at every site and carries no information; drop it.")

    @property
    def units(self) -> Units | None:
        """The units of the fit."""
        return self._units

    @property
    def width(self) -> int:
        """Columns as the family sees them: with ones, if the recipe adds them."""
        return self._declaration.n_columns + self.recipe.intercept

    # -- the engine

    @property
    def site_names(self) -> tuple[str, ...]:
        """In the order of every stacked array."""
        return tuple(self.roster.names)

    def ask(self, task: str, sent: Any) -> Any:
        """Send each site its part and stack the replies; a site that is lost now has no start, and is dropped."""
        if task in AFTER_TASKS:
            return self._afterwards(task, sent)
        names = list(self.roster.names)
        orders = dict(zip(names, self._orders(sent, range(len(names))), strict=True))
        replies = self._judge(task, self._deliver(task, orders), lose=True)
        if len(replies) < len(names):
            self.roster.check_quorum(len(replies))
            self._settle_units()
            raise SitesChangedError
        return _stack([replies[name] for name in names])

    def _afterwards(self, task: str, sent: Any) -> Any:
        """What the sites say of the finished fit; NaN for those that are out or away."""
        names, traffic = self.roster.names, self.traffic
        places = [k for k, name in enumerate(names) if name not in self.roster.out]
        orders = dict(zip([names[k] for k in places], self._orders(sent, places), strict=True))
        replies: dict[str, Any] = {}
        for site, answer in self._deliver(task, orders).items():
            trouble = self._trouble(answer)
            try:
                replies |= {} if trouble else {site: self._checked(site, task, answer)}
            except MessageError as error:
                trouble = str(error)
            if trouble and site not in self.roster.away:
                self.roster.note(site, "silent after the rounds", trouble, self.exchange)
        self.traffic = traffic  # what is told of the cost is that of a round
        nothing = jax.tree.map(lambda leaf: np.full(leaf.shape, np.nan, leaf.dtype), self._declaration.reply(task))
        return _stack([replies.get(name, nothing) for name in names])

    def play(self, state: LoopState, tol: float | Tolerance, limit: int) -> tuple[LoopState, RoundRecord]:
        """Play one round with the sites that answer; the others keep their parameters."""
        names, broadcast = self.roster.names, _broadcast(self._algorithm, state.central)
        give_up = time.monotonic() + self.roster.rules.patience
        while True:
            places = [k for k, name in enumerate(names) if name not in self.roster.out]
            orders = dict(zip([names[k] for k in places], self._orders(broadcast, places), strict=True))
            replies = self._judge(STEP, self._deliver(STEP, orders))
            if len(replies) >= self.roster.rules.min_sites:
                break
            if time.monotonic() >= give_up or len(self.roster.active) < self.roster.rules.min_sites:
                self.roster.check_quorum(len(replies))
            time.sleep(0.5)
        places = [k for k, name in enumerate(names) if name in replies]
        uploads = _stack([replies[names[k]] for k in places])
        if len(places) == len(names):
            state, record = _central_part(self._algorithm, uploads, state, tol)
        else:
            state, record = self._with_some(state, uploads, places, tol)
        self.log_likelihood = np.asarray(record.log_likelihood)
        one: Any = jax.tree.map(lambda leaf: np.asarray(leaf)[None], record)
        return state, one

    def _with_some(
        self, state: LoopState, uploads: Upload, places: list[int], tol: float | Tolerance
    ) -> tuple[LoopState, RoundRecord]:
        """A round of some of the sites: the rest have no say in it, and stay where they are."""
        per_site = has_site_axis(self._algorithm, state.central)
        here = jnp.asarray(places)
        some = jax.tree.map(lambda leaf, own: leaf[here] if own else leaf, state.central, per_site)
        after, record = _central_part(self._algorithm, uploads, state._replace(central=some), tol)
        central = jax.tree.map(
            lambda old, new, own: old.at[here].set(new) if own else new, state.central, after.central, per_site
        )
        still = jnp.zeros(len(self.roster.names), dtype=record.movement.dtype)
        known = still if self.log_likelihood is None else jnp.asarray(self.log_likelihood)
        full = record._replace(
            log_likelihood=known.at[here].set(record.log_likelihood),
            movement=still.at[here].set(record.movement),
            movement_in_errors=still.at[here].set(record.movement_in_errors),
            distance=distances(self._algorithm, central).max(axis=1),
        )
        return after._replace(central=central), full

    # -- one exchange

    def _order(self, sent: Any) -> Order:
        return Order(sent, None if sent == () else self._units, np.asarray(self._gaps))

    def _orders(self, sent: Any, places: Any) -> list[Order]:
        arrays = jax.tree.map(np.asarray, sent)
        return [self._order(jax.tree.map(lambda leaf, k=k: leaf[k], arrays)) for k in places]

    def _deliver(self, task: str, orders: dict[str, Order]) -> dict[str, Answer]:
        """Ask all sites at once; each has until the deadline, and is asked again if trouble is on the way."""
        self.exchange += 1
        messages = {name: encode(order) for name, order in orders.items()}
        begin = time.monotonic()
        waiting = {
            name: self._threads.submit(self._persist, name, task, self.exchange, message)
            for name, message in messages.items()
        }
        timed = {name: future.result() for name, future in waiting.items()}
        self._pace = max((took for took, answer in timed.values() if not answer.trouble), default=self._pace)
        answers = {name: answer for name, (_, answer) in timed.items()}
        sent, received = sum(map(size, messages.values())), sum(_bytes(answer) for answer in answers.values())
        self.traffic = Traffic(time.monotonic() - begin, sent, received)
        return answers

    def _persist(self, site: str, task: str, exchange: int, message: Fields) -> tuple[float, Answer]:
        begin, patience = time.monotonic(), self.roster.rules.deadline
        if site in self.roster.away:
            patience = min(patience, max(PROBE, 3.0 * self._pace))
        end = begin + patience
        pause = 0.05
        while True:
            # A worker that dies while it works sends nothing back: ask again now and then. Answers are remembered.
            attempt = min(end - time.monotonic(), max(ATTEMPT, 5.0 * self._pace))
            answer = self._transport.ask(site, task, exchange, message, max(0.1, attempt))
            if not answer.trouble or time.monotonic() + pause >= end:
                return time.monotonic() - begin, answer
            time.sleep(pause)
            pause = min(1.0, 2 * pause)

    def _judge(self, task: str, answers: dict[str, Answer], *, lose: bool = False) -> dict[str, Any]:
        """The replies that may be used; what is wrong with the others is recorded.

        With ``lose``, a site without a good reply is dropped: it has no parameters to go on with.
        """
        good: dict[str, Any] = {}
        for site, answer in answers.items():
            trouble = self._trouble(answer)
            if not trouble:
                try:
                    good[site] = self._checked(site, task, answer)
                except MessageError as error:
                    trouble = str(error)
                    if not lose:
                        self.roster.strike(site, trouble, self.exchange)
                        continue
            if trouble and lose:
                self.roster.drop(site, trouble, self.exchange)
            elif trouble and site not in self.roster.away:
                self.roster.away.add(site)
                self.roster.note(site, "away", trouble, self.exchange)
            elif not trouble and site in self.roster.away:
                self.roster.away.discard(site)
                self.roster.note(site, "back", "it answers again", self.exchange)
        return good

    def _trouble(self, answer: Answer) -> str:
        if answer.trouble:
            return f"no answer within the deadline ({answer.trouble})"
        return f"it does not answer: {REASONS.get(answer.declined, 'for a reason of its own')}" * bool(answer.declined)

    def _checked(self, site: str, task: str, answer: Answer) -> Any:
        before = self.roster.census.get(site)
        return check_reply(
            site,
            task,
            answer.fields or {},
            self._declaration.reply(task),
            exchange=(answer.exchange, self.exchange),
            n_rows=None if before is None else float(before.n_rows),
            gaps=self.recipe.missing,
        )

    def close(self) -> None:
        """Let the threads go."""
        self._threads.shutdown(wait=False, cancel_futures=True)


def has_site_axis(algorithm: Algorithm, central: Central) -> Any:
    """Which arrays of the center have one entry per site: those whose shape grows with the number of sites."""

    def shapes(n_sites: int) -> Central:
        def grown(leaf: Array) -> Any:
            return number_like(leaf.dtype, (n_sites, *leaf.shape[1:]))

        params, rows = jax.tree.map(grown, central.params), grown(central.n_rows)
        found: Central = jax.eval_shape(algorithm.central_start, params, rows)
        return found

    return jax.tree.map(lambda few, many: few.shape != many.shape, shapes(3), shapes(4))


def _stack(replies: list[Any]) -> Any:
    return jax.tree.map(lambda *leaves: jnp.asarray(np.stack(leaves)), *replies)


def _claimed_columns(answer: Answer) -> int:
    """How many columns a site says that it has; 0 where it says nothing that can be understood."""
    try:
        (count,) = (answer.fields or {})["mean"]["shape"]
    except (TypeError, KeyError, ValueError):
        return 0
    return count if type(count) is int else 0


def _bytes(answer: Answer) -> int:
    try:
        return size(answer.fields or {})
    except (TypeError, KeyError, AttributeError):
        return 0  # not a message: the check will say so


@jax.jit
def _broadcast(algorithm: Algorithm, central: Central) -> Any:
    return algorithm.broadcast(central)


@jax.jit
def _central_part(algorithm: Algorithm, uploads: Upload, state: LoopState, tol: Array) -> tuple[LoopState, RoundRecord]:
    """The rest of a round once the replies are in: the one function of every engine, compiled."""
    return play_round(algorithm, lambda _: uploads, state, tol)
