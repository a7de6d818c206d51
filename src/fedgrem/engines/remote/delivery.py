"""How orders reach sites and answers come back: all at once, again where trouble is on the way, and on the side.

It knows nothing of any network: a :class:`Transport` carries the messages.
"""

import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple, Protocol

from fedgrem.engines.remote.declaration import CENSUS, STEP, Order
from fedgrem.engines.remote.roster import Roster
from fedgrem.engines.remote.wire import Fields, encode, size

PROBE = 2.0
"""Seconds, or three times what the last exchange took, that a site which missed a deadline has until it is back."""
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


class Delivery:
    """Carries the orders of one exchange after the other to the sites of a roster."""

    def __init__(self, transport: Transport, roster: Roster) -> None:
        self._transport, self._roster = transport, roster
        self._pace = 0.0
        """Seconds that the slowest good answer of the last exchange took."""
        self._probes: dict[str, Future[tuple[float, Answer]]] = {}
        """Of sites that are away, what they are asked on the side."""
        self._threads = ThreadPoolExecutor(max(1, len(roster.names)), thread_name_prefix="site")

    def close(self) -> None:
        """Let the threads go."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def ask_all(self, task: str, exchange: int, orders: dict[str, Order]) -> tuple[dict[str, Answer], Traffic]:
        """Ask all sites at once; each has until the deadline, and is asked again if trouble is on the way."""
        messages = {name: encode(order) for name, order in orders.items()}
        messages = {name: raw for name, raw in messages.items() if not self._probing(name, task, exchange, raw)}
        waiting = {
            name: self._threads.submit(self._persist, name, task, exchange, message)
            for name, message in messages.items()
        }
        timed = {name: future.result() for name, future in waiting.items()}
        self._pace = max((took for took, answer in timed.values() if not answer.trouble), default=self._pace)
        answers = {name: answer for name, (_, answer) in timed.items()}
        sent, received = sum(map(size, messages.values())), sum(_bytes(answer) for answer in answers.values())
        return answers, Traffic(0.0, sent, received, len(orders))

    def _probing(self, site: str, task: str, exchange: int, message: Fields) -> bool:
        """Whether a site that missed a deadline is not to be waited for: it is asked on the side until it answers."""
        if site not in self._roster.away or task == CENSUS:
            return False
        probe = self._probes.pop(site, None)
        if probe is not None and probe.done():
            if not probe.result()[1].trouble:
                return False
            probe = None
        if probe is None:
            probe = self._threads.submit(self._persist, site, task, exchange, message)
        self._probes[site] = probe
        return True

    def _persist(self, site: str, task: str, exchange: int, message: Fields) -> tuple[float, Answer]:
        begin, patience = time.monotonic(), self._roster.rules.deadline
        if site in self._roster.away:
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


def _bytes(answer: Answer) -> int:
    try:
        return size(answer.fields or {})
    except (TypeError, KeyError, AttributeError):
        return 0  # not a message: the check will say so
