"""A site in a process of its own, whose neighbours are elsewhere: how a step of gossip travels.

Who carries the letters is up to the caller: pipes, sockets, or a network library. A letter is the number of the step
and what a site sends, in bytes; one that is late, torn or of another length is none, and its link has failed.
"""

import struct
import threading
import time
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from queue import Queue
from typing import Any, Protocol

import numpy as np

from fedgrem.data.federation import Federation, Units
from fedgrem.engines.decentralized import PRECISION, AmongNeighbours
from fedgrem.engines.remote.guard import Guard
from fedgrem.errors import InputError
from fedgrem.fit.conversation import Ask, Progress, converse
from fedgrem.fit.neighbours import Neighbours
from fedgrem.fit.spec import FitSpec
from fedgrem.fit.sums import secure_fit
from fedgrem.kernels.gossip import Lines, Sent
from fedgrem.types import Array, FitResult

PATIENCE = 60.0
"""Seconds without a word after which a neighbour counts as lost; it says that it waits itself, if it does."""
TICK = 0.2
"""Seconds between two looks, and between two words that say so."""
HEAD = struct.Struct("<qq?")
"""Of a letter: the step, how many numbers follow, and whether the sum is void."""
WAITING = -1
"""The step of a letter that says no more than that the site waits."""


class Post(Protocol):
    """Carries letters between this site and its neighbours, in order."""

    def send(self, neighbour: str, letter: bytes) -> None:
        """Send a letter; what cannot be sent is dropped."""
        ...

    def receive(self, neighbour: str, timeout: float) -> bytes | None:
        """The next letter from a neighbour; None if none came in time. :class:`EOFError` if none will ever come."""
        ...


class Connections:
    """A post by connections of the standard library, one to each neighbour: pipes between processes, or sockets.

    Letters are sent by a thread for each neighbour: two sites that send at once must not wait for each other.
    """

    def __init__(self, to: Mapping[str, Connection]) -> None:
        self._to = dict(to)
        self._outgoing: dict[str, Queue[bytes]] = {name: Queue() for name in self._to}
        for name in self._to:
            threading.Thread(target=self._deliver, args=(name,), daemon=True).start()

    def send(self, neighbour: str, letter: bytes) -> None:
        """Leave a letter to the thread."""
        self._outgoing[neighbour].put(letter)

    def receive(self, neighbour: str, timeout: float) -> bytes | None:
        """The next letter."""
        try:
            return self._to[neighbour].recv_bytes() if self._to[neighbour].poll(timeout) else None
        except OSError as error:
            raise EOFError from error

    def _deliver(self, neighbour: str) -> None:
        while True:
            try:
                self._to[neighbour].send_bytes(self._outgoing[neighbour].get())
            except OSError:
                return  # the other end is gone, as is found out where its letters are missed


class Carrier:
    """Takes what one site sends to its neighbours, step by step, and brings what they send."""

    def __init__(self, post: Post, names: tuple[str, ...], patience: float = PATIENCE) -> None:
        self._post, self._names, self._patience = post, names, patience

    def __call__(self, sent: Sent, lines: Lines, step: int) -> tuple[Sent, Array]:
        """One step of gossip."""
        neighbours = [self._names[k] for k in lines.speaks]
        letter = write_letter(sent, step)
        for name in neighbours:
            self._post.send(name, letter)
        told = [self._hear(name, neighbours, sent, step) for name in neighbours]
        there = np.array([one is not None for one in told])
        nothing = Sent(np.zeros_like(sent.values), np.zeros_like(sent.void), np.zeros_like(sent.failed))
        heard = [nothing if one is None else one for one in told]
        return Sent(*(np.concatenate(leaves) for leaves in zip(*heard, strict=True))), there

    def _hear(self, name: str, neighbours: list[str], like: Sent, step: int) -> Sent | None:
        """What a neighbour sends in this step; None if it is silent, or what comes is no such letter."""
        silent_since = begin = time.monotonic()
        most = self._patience * len(self._names)  # no chain of sites that wait for each other is longer
        while time.monotonic() - silent_since < self._patience and time.monotonic() - begin < most:
            try:
                letter = self._post.receive(name, TICK)
            except EOFError:
                return None
            if letter is None:
                for other in neighbours:
                    self._post.send(other, HEAD.pack(WAITING, 0, False))
                continue
            silent_since = time.monotonic()
            number, found = read_letter(letter, like)
            if number >= step:
                return found if number == step else None
        return None


def write_letter(sent: Sent, step: int) -> bytes:
    """What one site sends, as bytes."""
    values = np.ascontiguousarray(sent.values[0], dtype="<f8")
    return HEAD.pack(step, len(values), bool(sent.void[0])) + values.tobytes() + np.packbits(sent.failed[0]).tobytes()


def read_letter(letter: bytes, like: Sent) -> tuple[int, Sent | None]:
    """The step and the content of a letter; no content where it is not of the length of the site's own.

    Examples
    --------
    >>> sent = Sent(np.array([[0.5, -2.0]]), np.array([True]), np.array([[False, True, True]]))
    >>> step, read = read_letter(write_letter(sent, 7), sent)
    >>> step, read.values.tolist(), read.void.tolist(), read.failed.tolist()
    (7, [[0.5, -2.0]], [True], [[False, True, True]])
    """
    if len(letter) < HEAD.size:
        return WAITING, None
    step, count, void = HEAD.unpack_from(letter)
    n_links = like.failed.shape[1]
    if count != like.values.shape[1] or len(letter) != HEAD.size + 8 * count + -(-n_links // 8):
        return step, None
    values = np.frombuffer(letter, "<f8", count, HEAD.size).astype(float)
    failed = np.unpackbits(np.frombuffer(letter, np.uint8, offset=HEAD.size + 8 * count), count=n_links).astype(bool)
    return step, Sent(values[None], np.array([void]), failed[None])


def fit_at_one_site(
    federation: Federation, spec: FitSpec, graph: Array, names: tuple[str, ...], post: Post,
    *, precision: float = PRECISION, patience: float = PATIENCE,
) -> FitResult:  # fmt: skip
    """The fit as one site runs it, on its own rows: the common center, and its own answer; of the others nothing.

    ``federation`` is of this site alone; ``names`` and ``graph`` (K, K) are the map of the study, everywhere the same.
    """
    if len(federation.names) != 1 or federation.names[0] not in names:
        told = ", ".join(map(repr, federation.names))
        raise InputError(f"the rows are those of {told}, expected one site of the study: {', '.join(names)}.")
    return AmongNeighbours(federation, spec, graph, precision, Carrier(post, names, patience), names).run()


class Guarded(AmongNeighbours):
    """One site behind its guard, which holds it to its floor and writes down what it adds before it is sent."""

    def __init__(
        self, guard: Guard, graph: Array, names: tuple[str, ...], place: int, post: Post, precision: float
    ) -> None:
        self._site = guard.join([names[k] for k in np.flatnonzero(graph[place])])
        spec = self._site.spec
        super().__init__(self._site.rows(), spec, graph, precision, Carrier(post, names), names)
        self._guard, self.perform = guard, self._site.perform

    def told(self, ask: Ask) -> tuple[Array, Any]:
        """What the site adds; in the guard's log first."""
        told, like = super().told(ask)
        self._guard.adds(ask.task, self.steps, told[0])
        return told, like

    def run(self, on_progress: Callable[[Progress], None] | None = None) -> FitResult:
        """What all sites find together; its own answer stays with the site."""
        result, _ = converse(secure_fit(self._spec, Neighbours(self.site_names)), self, on_progress)
        own = self.own[self._site.name].after
        known = result.location is not None and result.scale is not None
        self._site.keep(own, Units(result.location, result.scale) if known else None)  # type: ignore[arg-type]
        return result._replace(cost=self._cost(result))
