"""Means that neighbours in a graph find by themselves: gossip with Metropolis weights and Chebyshev polynomials.

In every step each site sends what it has to its neighbours and mixes what it hears. Then all of them pass on the lowest
and the highest value heard, so that the middle of these is the same everywhere, to the bit; and in a last lap they see
to it that all know whether a link has failed. Whether the sites are rows of arrays in one process or one site hears its
neighbours over a network is up to who carries the messages.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from scipy.sparse import csr_array

from fedgrem.kernels.graphs import diameter, diameter_after_a_loss, metropolis
from fedgrem.types import Array

NARROWEST = 0.02
"""Half of the interval of eigenvalues that is reckoned with at the least: in a complete graph it is a point."""
SLACK = 1e-9
"""By how much of its largest value a number may be off by rounding."""
COLUMNS = 256
"""Looked at at a time."""


class Plan(NamedTuple):
    """What every site derives from the map of the study."""

    graph: Array
    """(K, K) who is linked with whom; sites without a link take no part."""
    weights: Array
    """(K, K) Metropolis."""
    middle: float
    half: float
    """The interval of the eigenvalues of the weights but for the 1: middle +- half."""
    shrinkage: Array
    """(steps + 1,) to what part of its beginning the distance from the mean has shrunk after so many steps."""
    across: int
    """Steps in which a message reaches everyone."""
    patience: int
    """Steps in which it does so if a site or an edge is lost meanwhile."""

    @property
    def steps(self) -> int:
        """Of mixing."""
        return len(self.shrinkage) - 1

    @property
    def all_steps(self) -> int:
        """Of a mean."""
        return self.steps + self.across + self.patience


def plan_of(graph: Array, precision: float) -> Plan:
    """So many steps that all are within ``precision`` of the mean, relative to the largest value of a site."""
    weights = metropolis(graph)
    there = np.flatnonzero(graph.any(axis=1))
    found = np.linalg.eigvalsh(weights[np.ix_(there, there)])[:-1]
    middle, half = (found[0] + found[-1]) / 2.0, max((found[-1] - found[0]) / 2.0, NARROWEST)
    outside = (1.0 - middle) / half
    shrinkage, factor = [1.0], 0.0
    while shrinkage[-1] * np.sqrt(len(there)) > precision:
        factor = 1.0 / (2.0 * outside - factor) if factor else 1.0 / outside
        shrinkage.append(shrinkage[-1] * factor)
    part = graph[np.ix_(there, there)]
    last = diameter_after_a_loss(part) + 1
    return Plan(graph, weights, float(middle), float(half), np.array(shrinkage), diameter(part), last)


class Lines(NamedTuple):
    """The links by which some sites hear others, in the order of who hears."""

    places: Array
    """(c,) the sites that hear."""
    hears: Array
    """(E,) which of these."""
    speaks: Array
    """(E,) place of the neighbour."""
    begin: Array
    """(c,) where the links of a site begin."""
    mixing: Any
    """(c, E) sparse: the weights of what is heard."""
    link: Array
    """(E,) number of the link, the same both ways."""
    n_links: int
    """Of the whole graph."""


def lines_of(plan: Plan, places: Array) -> Lines:
    """The links of these sites."""
    one, other = np.nonzero(np.triu(plan.graph))
    number = np.zeros(plan.graph.shape, dtype=int)
    number[one, other] = number[other, one] = np.arange(len(one))
    hears, speaks = np.nonzero(plan.graph[places])
    here, order = places[hears], np.arange(len(hears))
    mixing = csr_array((plan.weights[here, speaks], (hears, order)), shape=(len(places), len(hears)))
    begin = np.searchsorted(hears, np.arange(len(places)))
    return Lines(places, hears, speaks, begin, mixing, number[here, speaks], len(one))


class Sent(NamedTuple):
    """What some sites send in one step, each the same to all its neighbours; or what comes along each link."""

    values: Array
    """(c, m) or (E, m); m is 0 in the last lap."""
    void: Array
    """(c,) whether this mean is not to be used."""
    failed: Array
    """(c, L) links that are known to have failed."""


Exchange = Callable[[Sent, int], tuple[Sent, Array]]
"""Carries one step: what is sent and the number of the step -> what each link brings, and whether it did."""


class Agreement(NamedTuple):
    """What each of some sites ends with."""

    mean: Array
    """(c, m)"""
    spread: Array
    """(c, m) by how much the sites differed before they agreed."""
    void: Array
    """(c,)"""
    failed: Array
    """(c, L)"""


def agree(
    values: Array, plan: Plan, lines: Lines, exchange: Exchange, limit: Array,
    honest: Callable[[Array], Array] | None = None,
) -> Agreement:  # fmt: skip
    """The mean over all sites of the plan, as each of the sites of ``lines`` finds it.

    Parameters
    ----------
    values : (c, m) what these sites have.
    limit : (m,) what no honest site's value exceeds; a link that brings what no honest site could send at this step
        counts as failed.
    honest : what else an honest site's values are, ``(E, m)`` -> ``(E,)``; neighbours see these in the first step.

    A link that fails before the last lap makes the mean void, for all. In the last lap all have it already: the link
    will fail again in the next one.
    """
    talk = _Talk(lines, exchange, honest)
    radius = 2.0 * np.sqrt(np.count_nonzero(plan.graph.any(axis=1))) * limit
    near = [shrunk * radius + SLACK * limit for shrunk in plan.shrinkage]
    mean = _mixed(values, plan, talk, [limit * (1.0 + SLACK), *near[1:]])
    low, high = _extremes(mean, plan, talk, near[-1])
    for _ in range(plan.patience):
        talk.pass_on(mean[:, :0], [], limit[:0], too_late=True)
    return Agreement((low + high) / 2.0, high - low, talk.void, talk.failed)


def _mixed(values: Array, plan: Plan, talk: "_Talk", near: list[Array]) -> Array:
    """The first lap: Chebyshev polynomials of the weights, of growing degree, applied to what the sites have."""
    mixing = talk.lines.mixing
    own = (1.0 - mixing.sum(axis=1) - plan.middle)[:, None]
    outside, factor = (1.0 - plan.middle) / plan.half, 0.0
    before, now = values, values
    for step in range(plan.steps):
        heard, good = talk.pass_on(now, [now if step else np.zeros_like(now)], near[step])
        if not good.all():
            heard = np.where(good[:, None], heard, now[talk.lines.hears])
        along = (mixing @ heard + own * now) / plan.half
        following = 1.0 / (2.0 * outside - factor) if step else 1.0 / outside
        now, before = (2.0 if step else 1.0) * following * along - factor * following * before, now
        factor = following
    return np.asarray(now)


def _extremes(mean: Array, plan: Plan, talk: "_Talk", near: Array) -> tuple[Array, Array]:
    """The second lap: the lowest and the highest mean that any site has found."""
    size, begin = mean.shape[1], talk.lines.begin
    found = np.concatenate([mean, -mean], axis=1)
    for _ in range(plan.across):
        heard, good = talk.pass_on(found, [mean, -mean], near)
        if not good.all():
            heard = np.where(good[:, None], heard, np.inf)
        found = np.minimum(found, np.minimum.reduceat(heard, begin, axis=0))
    return found[:, :size], -found[:, size:]


class _Talk:
    """What some sites say and hear step by step, and which links have failed."""

    def __init__(self, lines: Lines, exchange: Exchange, honest: Callable[[Array], Array] | None) -> None:
        self.lines, self._exchange, self._honest, self._step = lines, exchange, honest, 0
        count = len(lines.places)
        self.void, self.failed = np.zeros(count, dtype=bool), np.zeros((count, lines.n_links), dtype=bool)

    def pass_on(self, values: Array, about: list[Array], near: Array, *, too_late: bool = False) -> tuple[Array, Array]:
        """One step: what every link brings ``(E, m)``, and whether it can be used ``(E,)``.

        It can if an honest site may have sent it: each of the parts of what is heard must be near to ``about``. Of a
        mean that is void this is not asked: the news of a failure travels as fast as the numbers that it upsets.
        """
        lines = self.lines
        heard, there = self._exchange(Sent(values, self.void, self.failed), self._step)
        upset = heard.void | self.void[lines.hears]
        possible = _near(heard.values, about, lines, near)
        if not self._step and self._honest is not None:
            possible &= self._honest(heard.values)
        self._step += 1
        good = there & (upset | possible)
        bad = np.flatnonzero(~good)
        self.failed[lines.hears[bad], lines.link[bad]] = True
        if not too_late:
            self.void[lines.hears[bad]] = True
        self.void = self.void | _any(heard.void & good, lines)
        self.failed = self.failed | _any(heard.failed & good[:, None], lines)
        return heard.values, good


def _near(heard: Array, about: list[Array], lines: Lines, within: Array) -> Array:
    """(E,) whether what is heard is near enough to what an honest neighbour has, in all of several parts.

    A few columns are looked at at a time: they stay in the processor's cache.
    """
    possible = np.ones(len(heard), dtype=bool)
    bound = np.minimum(within, np.finfo(float).max)
    for k, center in enumerate(about):
        size = center.shape[1]
        for first in range(0, size, COLUMNS):
            cut = slice(first, min(size, first + COLUMNS))
            away = heard[:, k * size + cut.start : k * size + cut.stop] - center[lines.hears, cut]
            possible &= (np.abs(away, out=away) <= bound[cut]).all(axis=1)
    return possible


def _any(flags: Array, lines: Lines) -> Array:
    return np.asarray(np.logical_or.reduceat(flags, lines.begin, axis=0))
