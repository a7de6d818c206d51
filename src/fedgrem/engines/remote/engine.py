"""The engine whose sites are elsewhere: one message each per exchange, checked before it is used, and journaled.

It knows nothing of any network: a :class:`Transport` carries the messages.
"""

import time
import zlib
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np

from fedgrem.data.units import Census
from fedgrem.engines.remote.declaration import CENSUS, HELLO, STEP, Declaration, NamedCensus, Order, read_names
from fedgrem.engines.remote.journal import AGAIN, Journal, Record
from fedgrem.engines.remote.roster import Roster
from fedgrem.engines.remote.site import REASONS
from fedgrem.engines.remote.validate import check_reply
from fedgrem.engines.remote.wire import Fields, decode, encode, printable, size
from fedgrem.errors import InputError, MessageError, ModelFileError, PausedError
from fedgrem.fit.conversation import Ask, Replies
from fedgrem.fit.private_site import TASKS as PRIVATE_TASKS
from fedgrem.fit.spec import FitSpec
from fedgrem.fit.sums_site import KEYS, SUM_TASKS, KeyReply
from fedgrem.types import map_arrays, named_arrays

PROBE = 2.0
"""Seconds, or three times what the last exchange took, that a site which missed a deadline has until it is back."""
MOST_COLUMNS = 100_000
RESPONSE = "response"
"""What the response of a regression is called where columns were agreed on, and sites do not say what they call it."""
ATTEMPT = 5.0
"""Seconds, or five times what the last exchange took, after which a site that is silent is asked again."""

RESTART = 20.0
"""Seconds in which a worker that died is back: a site that nobody reaches for so long in a round is away."""


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
    place: str = ""
    """Where the answer comes from, as a hash; a site has one place."""


class Transport(Protocol):
    """Carries one order to one site and its answer back. Called from one thread per site."""

    def ask(self, site: str, task: str, exchange: int, order: Fields, timeout: float) -> Answer:
        """The answer, within ``timeout`` seconds; never raises."""
        ...


class SitesChangedError(Exception):
    """A site was lost before it had a start: the fit begins again without it."""


class Traffic(NamedTuple):
    """What an exchange cost."""

    seconds: float
    """With the center's work since the last one."""
    sent: int
    """Bytes of arrays, over all sites."""
    received: int
    asked: int
    """Sites."""

    def plus(self, other: "Traffic") -> "Traffic":
        """Of two exchanges with the same sites together."""
        seconds, sent, received = self.seconds + other.seconds, self.sent + other.sent, self.received + other.received
        return Traffic(seconds, sent, received, other.asked)


class OverNetwork:
    """Asks the sites of a roster over a transport; an :class:`~fedgrem.fit.conversation.Engine`.

    What the journal has of an earlier start of the run is answered from there.
    """

    def __init__(self, spec: FitSpec, roster: Roster, transport: Transport, journal: Journal) -> None:
        self.spec, self.roster = spec, roster
        self.exchange = journal.exchange
        """The number of the last exchange: a reply must carry it."""
        self.rounds: list[Traffic] = []
        self._transport, self._journal = transport, journal
        self._declare(1 if spec.ranges is None else len(spec.ranges))
        self._known = roster.as_plain()
        """What the journal says of the roster."""
        self._traffic = Traffic(0.0, 0, 0, 0)
        self._pace = 0.0
        """Seconds that the slowest good answer of the last exchange took."""
        self.differs: list[int] = []
        """Exchanges of the journal that were asked with other numbers than now."""
        self._places: dict[str, set[str]] = {}
        self._probes: dict[str, Future[tuple[float, Answer]]] = {}
        """Of sites that are away, what they are asked on the side."""
        self._clock: float | None = None
        """When the last live exchange was over."""
        self._threads = ThreadPoolExecutor(max(1, len(roster.names)), thread_name_prefix="site")

    @property
    def site_names(self) -> tuple[str, ...]:
        """In the order of every stacked array."""
        return tuple(self.roster.names)

    @property
    def columns(self) -> list[str]:
        """What the sites call their columns, the response of a regression last."""
        if self.spec.columns is not None:
            return [*self.spec.fitted_columns(self.spec.columns), *[RESPONSE] * self.spec.family.has_target]
        return read_names(self.roster.census[self.roster.names[0]].names)

    def meet(self) -> None:
        """Ask every site for its size and its columns; those that do not answer well take no part.

        Of a private fit nobody is asked for them.
        """
        if self.spec.ranges is not None:
            return
        if self.spec.secure_sums:
            self._check_sums()
        self.roster.census = self._exchange(Ask(self._first, ()))

    def ask(self, ask: Ask) -> Replies:
        """Send each site its part and stack the replies, in site order.

        A site that is lost before round 1 has no start, and is dropped; later, rows of the absent are NaN.
        """
        names = self.site_names
        if ask.task == self._first:
            kind = KeyReply if ask.task == KEYS else Census
            told = [kind(*self.roster.census[name][:-1]) for name in names]
            return Replies(np.ones(len(names), dtype=bool), _stack(told))
        good = self._exchange(ask)
        if not ask.optional and len(good) < len(names):
            raise SitesChangedError
        present = np.array([name in good for name in names])
        nothing = map_arrays(lambda leaf: np.full(leaf.shape, np.nan), self._declared)
        if ask.task in SUM_TASKS:  # whole numbers, and bytes
            nothing = map_arrays(lambda leaf: np.zeros(leaf.shape, leaf.dtype), self._declared)
        return Replies(present, _stack([good.get(name, nothing) for name in names]))

    def close(self) -> None:
        """Let the threads go, and the journal."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._journal.close()

    # -- from the journal, or live

    def _exchange(self, ask: Ask) -> dict[str, Any]:
        """The replies that may be used, by site."""
        if ask.task != self._first:
            self._declared = self._declaration.reply_to(ask.task, _order(ask, 0))
        record = self._journal.next()
        if record is not None:
            return self._replayed(ask, record)
        if self._clock is None:
            self._check_same()
            self.roster.away.clear()  # whoever was away before a crash or a pause is waited for again
        begin = time.monotonic() if self._clock is None else self._clock
        if ask.task == self._first:
            good = self._census()
        elif ask.task in SUM_TASKS:
            good = self._sum(ask)
        elif not ask.optional:
            good = self._judge("before", ask.task, self._deliver(ask.task, self._orders(ask, self.site_names)))
            self._check_enough(good)
        elif ask.task == STEP:
            good = self._round(ask)
        elif ask.task in PRIVATE_TASKS:
            asked = [name for name, to in zip(self.site_names, self._asked(ask), strict=True) if to]
            good = self._judge("private", ask.task, self._deliver(ask.task, self._orders(ask, asked)))
            self.roster.check_quorum(len(good))
        else:
            good = self._judge("after", ask.task, self._deliver(ask.task, self._orders(ask, self.roster.active)))
        self._clock = time.monotonic()
        self._note(ask, good, self._traffic._replace(seconds=self._clock - begin))
        return good

    def _note(self, ask: Ask, good: dict[str, Any], traffic: Traffic) -> None:
        about = {"exchange": self.exchange, "task": ask.task, "sites": list(good), "asked": digest(ask)}
        about["traffic"] = traffic._asdict()
        if (plain := self.roster.as_plain()) != self._known:
            about["roster"] = self._known = plain
        self._journal.append(Record(about, encode(_stack(list(good.values()))) if good else {}))
        self._count(ask.task, traffic)

    def _replayed(self, ask: Ask, record: Record) -> dict[str, Any]:
        about = record.about
        if about["task"] != ask.task:
            raise ModelFileError(
                f"the journal has {about['task']!r} as exchange {about['exchange']}, where this fedgrem asks for "
                f"{ask.task!r}: another version wrote it; go on with that one, or begin a new fit."
            )
        self.differs += [about["exchange"]] if about["asked"] != digest(ask) else []
        if ask.task == self._first:
            self._declare(self._columns_told([{name: _of_one(field) for name, field in record.fields.items()}]))
        if "roster" in about:
            self._known = about["roster"]
            self.roster.restore(self._known)
        self._count(ask.task, Traffic(**about["traffic"]))
        stacked = decode(record.fields, self._declared) if about["sites"] else ()
        return {name: map_arrays(lambda leaf, k=k: leaf[k], stacked) for k, name in enumerate(about["sites"])}

    def _check_same(self) -> None:
        """Refuse to go on where the sites answered other questions than are asked now."""
        if self.differs:
            raise ModelFileError(
                f"exchange {self.differs[0]} of the journal was asked with other numbers than this fedgrem finds here: "
                "another version or machine wrote it; go on with that one, or begin a new fit."
            )

    def _count(self, task: str, traffic: Traffic) -> None:
        if task == "sum_begin":
            self.rounds.clear()  # those before were of the choice of the penalty
        elif task == "sum_pass":
            self.rounds[-1] = self.rounds[-1].plus(traffic)
        elif task in (STEP, "private_step", "sum_round"):
            self.rounds.append(traffic)

    def _asked(self, ask: Ask) -> list[bool]:
        """(K,) who is asked and still in the run."""
        wanted = [True] * len(self.site_names) if ask.to is None else ask.to.tolist()
        return [to and name not in self.roster.out for name, to in zip(self.site_names, wanted, strict=True)]

    # -- live

    def _census(self) -> dict[str, Any]:
        answers = self._deliver(self._first, dict.fromkeys(self.roster.names, HELLO))
        self._declare(self._columns_told([answer.fields for answer in answers.values()]))
        census = self._judge("before", self._first, answers)
        self._same_names(census)
        self._check_enough(census)
        return census

    def _declare(self, n_columns: int) -> None:
        self._declaration = Declaration(self.spec, n_columns)
        self._first = self._declaration.first
        if self._first:
            self._declared = self._declaration.reply_to(self._first, HELLO)

    def _columns_told(self, answers: list[Fields | None]) -> int:
        """How many columns most sites have; others are refused by shape."""
        if self.spec.columns is not None:
            return len(self.spec.fitted_columns(self.spec.columns))
        counts = [n for n in map(_claimed_columns, answers) if 0 < n <= MOST_COLUMNS]
        if not counts:
            return 1
        common = max(set(counts), key=lambda n: (counts.count(n), -counts.index(n)))
        return max(1, common - self.spec.family.has_target)

    def _same_names(self, census: dict[str, Any]) -> None:
        """Drop sites whose columns are not those of most: mixed-up columns look like an odd site, and are none."""
        if self.spec.columns is not None:
            return  # each site has compared its own, and told nobody
        named = {site: tuple(read_names(one.names)) for site, one in census.items()}
        found = list(named.values())
        common = max(found, key=found.count, default=())
        for site, names in named.items():
            if names != common:
                del census[site]
                mine, most = (printable(", ".join(listed), 200) for listed in (names, common))
                self.roster.drop(site, f"its columns are {mine}, and those of most sites {most}", self.exchange)

    def _check_enough(self, good: dict[str, Any]) -> None:
        """Pause where too few sites are left before round 1; a run that is resumed then begins with every site."""
        try:
            self.roster.check_quorum(len(good))
        except PausedError:
            self._journal.append(Record({"exchange": self.exchange, "task": AGAIN}, {}))
            raise

    def _round(self, ask: Ask) -> dict[str, Any]:
        """A round with the sites that answer; it is tried again for a while if they are too few."""
        rules = self.roster.rules
        give_up = time.monotonic() + rules.patience
        invited = [name for k, name in enumerate(self.site_names) if ask.to is None or ask.to[k]]
        needed = min(rules.min_sites, len(invited))
        while True:
            asked = [name for name in invited if name not in self.roster.out]
            if len(asked) < needed:  # of a random part of the sites too many are out of the run
                asked = self.roster.active
            good = self._judge("during", STEP, self._deliver(STEP, self._orders(ask, asked)))
            if len(good) >= needed:
                return good
            if time.monotonic() >= give_up or len(self.roster.active) < rules.min_sites:
                self.roster.check_quorum(len(good))
            time.sleep(0.5)

    def _sum(self, ask: Ask) -> dict[str, Any]:
        """A sum of those who answer; the others are out of the fit, unless too few are left for one."""
        asked = [name for k, name in enumerate(self.site_names) if ask.to is None or ask.to[k]]
        answers = self._deliver(ask.task, self._orders(ask, asked))
        good, wrong = {}, {}
        for site, answer in answers.items():
            self._same_place(site, answer.place)
            message, trouble, bad = self._heard(site, ask.task, answer)
            if message is None:
                wrong[site] = trouble or bad
            else:
                good[site] = message
        if len(good) < self.roster.rules.min_sites:
            for site, why in wrong.items():
                self.roster.away.add(site)
                self.roster.note(site, "missing from a sum", why, self.exchange)
            self.roster.check_quorum(len(good))
        for site, why in wrong.items():
            self.roster.expel(site, why, self.exchange)
        return good

    def _check_sums(self) -> None:
        """Refuse a sum that would show single sites."""
        from fedgrem.kernels.masks import FEWEST

        if len(self.roster.names) < FEWEST:
            raise InputError(f"secure sums are over at least {FEWEST} sites, and there are {len(self.roster.names)}.")
        rules = self.roster.rules
        self.roster.rules = rules._replace(min_sites=max(FEWEST, rules.min_sites))

    def _orders(self, ask: Ask, sites: Iterable[str]) -> dict[str, Order]:
        return {name: _order(ask, self.site_names.index(name)) for name in sites}

    def _deliver(self, task: str, orders: dict[str, Order]) -> dict[str, Answer]:
        """Ask all sites at once; each has until the deadline, and is asked again if trouble is on the way."""
        self.exchange += 1
        messages = {name: encode(order) for name, order in orders.items()}
        messages = {name: message for name, message in messages.items() if not self._probing(name, task, message)}
        waiting = {
            name: self._threads.submit(self._persist, name, task, self.exchange, message)
            for name, message in messages.items()
        }
        timed = {name: future.result() for name, future in waiting.items()}
        self._pace = max((took for took, answer in timed.values() if not answer.trouble), default=self._pace)
        answers = {name: answer for name, (_, answer) in timed.items()}
        sent, received = sum(map(size, messages.values())), sum(_bytes(answer) for answer in answers.values())
        self._traffic = Traffic(0.0, sent, received, len(orders))
        return answers

    def _probing(self, site: str, task: str, message: Fields) -> bool:
        """Whether a site that missed a deadline is not to be waited for: it is asked on the side until it answers."""
        if site not in self.roster.away or task == CENSUS:
            return False
        probe = self._probes.pop(site, None)
        if probe is not None and probe.done():
            if not probe.result()[1].trouble:
                return False
            probe = None
        if probe is None:
            probe = self._threads.submit(self._persist, site, task, self.exchange, message)
        self._probes[site] = probe
        return True

    def _persist(self, site: str, task: str, exchange: int, message: Fields) -> tuple[float, Answer]:
        begin, patience = time.monotonic(), self.roster.rules.deadline
        if site in self.roster.away:
            patience = min(patience, max(PROBE, 3.0 * self._pace))
        end, reached = begin + patience, begin
        pause = 0.05
        while True:
            # A worker that dies while it works sends nothing back: ask again now and then. Answers are remembered.
            asked = time.monotonic()
            attempt = max(0.1, min(end - asked, max(ATTEMPT, 5.0 * self._pace)))
            answer = self._transport.ask(site, task, exchange, message, attempt)
            now = time.monotonic()
            reached = now if now - asked > 0.9 * attempt else reached  # it may be at work
            until = min(end, reached + RESTART) if task == STEP else end
            if not answer.trouble or now + pause >= until:
                return now - begin, answer
            time.sleep(pause)
            pause = min(1.0, 2 * pause)

    def _judge(
        self, stage: Literal["before", "during", "after", "private"], task: str, answers: dict[str, Answer]
    ) -> dict[str, Any]:
        """The replies that may be used; what is wrong with the others is recorded.

        Before the rounds a site without a good reply is dropped: it has no parameters to go on with. Afterwards the fit
        stands without it. Out of a private fit, which asks nothing twice, it is for good.
        """
        good: dict[str, Any] = {}
        roster = self.roster
        for site, answer in answers.items():
            self._same_place(site, answer.place)
            away = site in roster.away
            message, trouble, bad = self._heard(site, task, answer)
            if message is not None:
                good[site] = message
            if stage == "before" and site not in good:
                roster.drop(site, trouble or bad, self.exchange)
            elif stage == "private" and site not in good:
                roster.expel(site, trouble or bad, self.exchange)
            elif stage == "after" and site not in good and not away:
                roster.note(site, "silent after the rounds", trouble or bad, self.exchange)
            elif stage == "during" and bad:
                roster.strike(site, bad, self.exchange)
            elif stage == "during" and trouble and not away:
                roster.away.add(site)
                roster.note(site, "away", trouble, self.exchange)
            elif stage == "during" and not trouble and away:
                roster.away.discard(site)
                roster.note(site, "back", "it answers again", self.exchange)
        return good

    def _heard(self, site: str, task: str, answer: Answer) -> tuple[Any, str, str]:
        """The message, or why there is none: trouble on the way or at the site, or what is wrong with it."""
        if trouble := self._trouble(answer):
            return None, trouble, ""
        try:
            return self._checked(site, task, answer), "", ""
        except MessageError as error:
            return None, "", str(error)

    def _same_place(self, site: str, place: str) -> None:
        """Point out, once, a site of which two copies answer: each knows half of what it was asked."""
        places = self._places.setdefault(site, set())
        if place and place not in places:
            places.add(place)
            if len(places) == 2:
                what = "its kit runs twice, on two machines or in two folders; stop one of them"
                self.roster.note(site, "answers from two places", what, self.exchange)

    def _trouble(self, answer: Answer) -> str:
        if answer.trouble:
            return f"no answer in time ({answer.trouble})"
        return f"it does not answer: {REASONS.get(answer.declined, 'for a reason of its own')}" * bool(answer.declined)

    def _checked(self, site: str, task: str, answer: Answer) -> Any:
        before = self.roster.census.get(site)
        return check_reply(
            site,
            task,
            answer.fields or {},
            self._declared,
            exchange=(answer.exchange, self.exchange),
            n_rows=float(before.n_rows) if isinstance(before, NamedCensus) else None,
            gaps=self.spec.missing,
        )


def _order(ask: Ask, place: int) -> Order:
    """What one site is sent."""
    mail = map_arrays(lambda leaf: np.asarray(leaf[place]), ask.mail)
    return Order(mail, ask.agreed.units, np.asarray(ask.agreed.gaps))


def digest(ask: Ask) -> int:
    """By which a replay knows that it asks the same."""
    checksum = 0
    for name, leaf in named_arrays(Order(ask.mail, ask.agreed.units, ask.agreed.gaps)):
        checksum = zlib.crc32(np.ascontiguousarray(leaf).tobytes(), zlib.crc32(name.encode(), checksum))
    return checksum


def _stack(replies: list[Any]) -> Any:
    return map_arrays(lambda *leaves: np.stack(leaves), *replies)


def _claimed_columns(fields: Any) -> int:
    """How many columns a site says that it has; 0 where it says nothing that can be understood."""
    try:
        count, _ = fields["names"]["shape"]
    except (TypeError, KeyError, ValueError):
        return 0
    return count if type(count) is int else 0


def _of_one(field: dict[str, Any]) -> dict[str, Any]:
    """What one of several sites said, by its shape."""
    return field | {"shape": field["shape"][1:]}


def _bytes(answer: Answer) -> int:
    try:
        return size(answer.fields or {})
    except (TypeError, KeyError, AttributeError):
        return 0  # not a message: the check will say so
