"""A fit without a server: sites that are linked with some others and hear nobody else. All in one process, or one.

What is carried from site to site is what travels: one message from every site to each of its neighbours in every step
of the gossip. A link that brings nothing, or what no honest site could send, has failed; the sum is then made
again without it, by all who are still linked.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedgrem.data.federation import Federation
from fedgrem.engines.inprocess import InProcess
from fedgrem.errors import InputError, ShapeError, SitesError
from fedgrem.fit.conversation import Ask, Progress, Replies, converse, everyone
from fedgrem.fit.neighbours import FEWEST, Heard, Neighbours, honest, limits
from fedgrem.fit.spec import FitSpec
from fedgrem.fit.sums import secure_fit, with_own_answers
from fedgrem.fit.sums_site import KEYS, WORK, Held, KeyReply, packed, plainly
from fedgrem.kernels.gossip import Agreement, Lines, Plan, Sent, agree, lines_of, plan_of
from fedgrem.kernels.graphs import erdos_renyi, grid, parts, ring, star
from fedgrem.kernels.randomness import generator_for
from fedgrem.types import Array, FitResult, map_arrays

PRECISION = 1e-12
"""To which sites agree on a mean, relative to the largest of their numbers."""
KINDS: dict[str, Callable[[int, int], Array]] = {
    "ring": lambda count, seed: ring(count),
    "grid": lambda count, seed: grid(count),
    "star": lambda count, seed: star(count),
    "erdos-renyi": lambda count, seed: erdos_renyi(count, generator_for(seed, "", "graph")),
}
"""Graphs that have a name, from the number of sites and a seed."""


@dataclass(frozen=True, eq=False)
class Decentralized:
    """An engine for ``fit``: no server, every site knows its neighbours in a graph and nobody else hears from it.

    Parameters
    ----------
    graph : "ring", "grid", "star" or "erdos-renyi" over the sites in their order; or the links, as pairs of site names;
        or a symmetric (K, K) array that is not 0 where two sites are linked.
    precision : to which neighbours agree on a mean, relative to the largest number of a site.
    over : "in-process", or "flare-simulator": every site in a process of its own, on NVFlare's messages between sites.

    Examples
    --------
    >>> from fedgrem import FederatedGaussianMixture
    >>> rng = np.random.default_rng(0)
    >>> rows = {name: rng.normal(size=(30, 2)) for name in ("north", "east", "south")}
    >>> links = [("north", "east"), ("east", "south")]
    >>> model = FederatedGaussianMixture(1, penalty=2.0, random_state=0).fit(rows, engine=Decentralized(links))
    >>> model.center_.shape
    (1, 2)
    """

    graph: Any = "ring"
    precision: float = PRECISION
    over: str = "in-process"

    def links(self, names: tuple[str, ...], seed: int) -> Array:
        """(K, K) who is linked with whom."""
        if not 0.0 < self.precision < 1.0:
            raise InputError(f"precision must be between 0 and 1, got {self.precision!r}.")
        if len(names) < FEWEST:
            raise InputError(f"a graph of sites needs at least {FEWEST}, and there are {len(names)}.")
        found = self._links(names, seed)
        pieces = parts(found)
        if len(pieces) > 1:
            told = "; ".join(_listed(names, piece) for piece in pieces[:5])
            raise InputError(f"the graph is in {len(pieces)} parts, and nothing gets from one to the other: {told}.")
        return found

    def _links(self, names: tuple[str, ...], seed: int) -> Array:
        count, graph = len(names), self.graph
        if isinstance(graph, str):
            if graph not in KINDS:
                raise InputError(f"graph={graph!r}, expected one of {', '.join(KINDS)}, pairs of sites or an array.")
            return KINDS[graph](count, seed)
        if isinstance(graph, np.ndarray) and graph.dtype.kind in "biuf" and graph.shape[1:] != (2,):
            if graph.shape != (count, count):
                raise ShapeError(f"the graph has shape {graph.shape}, expected ({count}, {count}): one row per site.")
            array = graph != 0
            if (array != array.T).any():
                one, other = np.argwhere(array != array.T)[0]
                raise InputError(
                    f"the graph links {names[one]!r} with {names[other]!r} one way only; links go both ways, so that "
                    "the array is symmetric."
                )
            return np.asarray(array & ~np.eye(count, dtype=bool))
        found = np.zeros((count, count), dtype=bool)
        place = {name: k for k, name in enumerate(names)}
        for pair in graph:
            ends = [str(end) for end in pair]
            unknown = [end for end in ends if end not in place]
            if unknown:
                raise InputError(f"the graph links {unknown[0]!r}, which is no site; the sites are {_listed(names)}.")
            if len(ends) != 2 or ends[0] == ends[1]:
                raise InputError(f"the graph has {tuple(ends)} as a link; a link is a pair of two different sites.")
            found[place[ends[0]], place[ends[1]]] = found[place[ends[1]], place[ends[0]]] = True
        return found

    def fit(
        self, spec: FitSpec, federation: Federation, on_progress: Callable[[Progress], None] | None = None
    ) -> FitResult:
        """Fit a federation, every site of which is played in this process."""
        here = AmongNeighbours(federation, spec, self.links(federation.names, spec.seed), self.precision)
        return here.run(on_progress)


def _listed(names: tuple[str, ...], places: Array | None = None) -> str:
    told = list(names) if places is None else [names[k] for k in places]
    return ", ".join(told[:8]) + (f" and {len(told) - 8} more" if len(told) > 8 else "")


Carry = Callable[[Sent, Lines, int], tuple[Sent, Array]]
"""Brings what sites send along their links, in the step of this number since the fit began."""


def carry(sent: Sent, lines: Lines, step: int) -> tuple[Sent, Array]:
    """Everything arrives, as it was sent."""
    heard: Sent = map_arrays(lambda leaf: leaf[np.searchsorted(lines.places, lines.speaks)], sent)
    return heard, np.ones(len(lines.speaks), dtype=bool)


class AmongNeighbours(InProcess):
    """The sites of a federation that are here, all or one, and the links by which they hear their neighbours.

    All run the same conversation, on sums that are the same to the bit: for all sites of a process it is run once.
    ``names`` are those of all sites of the study, in the order of ``graph``; None if all are here.
    """

    circle = Neighbours

    def __init__(
        self, federation: Federation, spec: FitSpec, graph: Array, precision: float = PRECISION, carry: Carry = carry,
        names: tuple[str, ...] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(federation, spec)
        self.graph, self.precision, self.carry = graph, precision, carry
        self._names = federation.names if names is None else names
        self._places = np.array([self._names.index(name) for name in federation.names])
        self.steps = self.messages = self.numbers = 0
        """Steps of gossip so far, messages in them, and numbers in these."""
        self._here = everyone(len(graph))
        self._plan, self._lines = self._mapped()

    @property
    def site_names(self) -> tuple[str, ...]:
        """Of all sites of the study."""
        return self._names

    def run(self, on_progress: Callable[[Progress], None] | None = None) -> FitResult:
        """The fit, with what every site that is here found for itself; of the others it says nothing."""
        result, _ = converse(secure_fit(self._spec, Neighbours(self.site_names)), self, on_progress)
        some = next(iter(self.own.values()))
        unknown = map_arrays(lambda leaf: np.full(leaf.shape, np.nan), some)
        self.own = dict.fromkeys(self.site_names, unknown) | self.own  # a site may be lost before it has an answer
        return self.revealed(result)._replace(cost=self._cost(result))

    def revealed(self, result: FitResult) -> FitResult:
        """With what the sites that are here found."""
        if len(self._places) == len(self._names):
            return super().revealed(result)
        assert self._ready is not None
        stacks = [(stack, self._places[places]) for stack, places in self._ready[1]]
        own = [self.own[name] for name in self._names]
        return with_own_answers(self._spec, result, stacks, own, self.circle.most_rows)

    def ask(self, ask: Ask) -> Replies:
        """Let every site answer for itself, and all of them find the sum."""
        if ask.task == KEYS:
            count = len(self.site_names)
            widths = np.full(count, self._width(0))
            return Replies(self._here, KeyReply(np.zeros((count, 0), dtype=np.uint8), widths))
        told, like = self.told(ask)
        limit = packed(map_arrays(lambda leaf: leaf[None], limits(ask.task, ask.mail, like)))[0]
        mean, spread = self._mean(told, limit, honest(ask.task, ask.mail, like))
        count = int(self._here.sum())
        sums = np.broadcast_to(count * mean, (len(self._names), len(mean)))
        return Replies(self._here, Heard(sums, np.full(len(sums), count * float(spread.max()))))

    def told(self, ask: Ask) -> tuple[Array, Any]:
        """(c, m) what the sites that are here would add, and the shapes of one answer; what they hold is kept."""
        work, told, like = WORK[ask.task], np.zeros((0, 0)), None
        own_names = self._federation.names
        for rows, places in self._rows_for(ask, self._here[self._places]):
            names, held = [own_names[k] for k in places], None
            if work.remembers:
                held = map_arrays(lambda *leaves: np.stack(leaves), *(self.own[name] for name in names))
            numbers, now = work.do(self._spec, rows, held, ask.mail, plainly)
            flat = packed(numbers)
            if like is None:
                told, like = np.zeros((len(self._places), flat.shape[1])), map_arrays(lambda leaf: leaf[0], numbers)
            told[places] = flat
            if now is not None:
                self.own |= {name: _of_one(now, k) for k, name in enumerate(names)}
        broken = np.flatnonzero(~np.isfinite(told).all(axis=1))
        if len(broken):
            raise InputError(
                f"site {own_names[broken[0]]!r} would add what is not a number; use columns on a common scale."
            )
        return told, like

    def _mean(self, told: Array, limit: Array, honest: Callable[[Array], Array] | None) -> tuple[Array, Array]:
        """The mean over all who are here; made again without the links that fail meanwhile."""
        while True:
            found = agree(told[self._here[self._places]], self._plan, self._lines, self._exchange, limit, honest)
            if not found.void.any():
                return found.mean[0], found.spread[0]
            self._leave_out(found)

    def _exchange(self, sent: Sent, step: int) -> tuple[Sent, Array]:
        heard = self.carry(sent, self._lines, self.steps)
        self.steps += 1
        self.messages += len(self._lines.speaks)
        self.numbers += len(self._lines.speaks) * sent.values.shape[1]
        return heard

    def _leave_out(self, found: Agreement) -> None:
        """Go on in the part that has most of the sites, if all of these know of the same failures."""
        failed = np.where(found.void[:, None], found.failed, False)
        one, other = np.nonzero(np.triu(self.graph))
        places, names = self._lines.places, self.site_names
        for known in np.unique(failed[failed.any(axis=1)], axis=0):
            graph = self.graph.copy()
            graph[one[known], other[known]] = graph[other[known], one[known]] = False
            part = parts(graph)[0]
            agreeing = set(places[(failed == known).all(axis=1)].tolist())
            among = set(part.tolist()) & set(places.tolist())
            if 2 * len(part) > len(names) and among and among <= agreeing:
                break
        else:
            raise SitesError(
                "too many links have failed: no part that is left has more than half of the "
                f"{len(names)} sites. See to the links, and begin again."
            )
        self._here = np.isin(np.arange(len(names)), part)
        self.graph = graph & self._here[:, None] & self._here
        self._plan, self._lines = self._mapped()

    def _mapped(self) -> tuple[Plan, Lines]:
        plan = plan_of(self.graph, self.precision)
        return plan, lines_of(plan, self._places[self._here[self._places]])

    def _cost(self, result: FitResult) -> dict[str, int]:
        of_a_sum = self._plan.all_steps * len(self._lines.speaks)
        return {
            "rounds": result.n_rounds,
            "sites": int(self._here.sum()),
            "links": self._lines.n_links,
            "steps_per_sum": self._plan.all_steps,
            "messages_per_sum": of_a_sum,
            "messages_per_round": round(float(result.history["passes"].mean()) * of_a_sum),
            "messages": self.messages,
            "numbers": self.numbers,
        }


def _of_one(held: Held, place: int) -> Held:
    found: Held = map_arrays(lambda leaf: leaf[place], held)
    return found
