"""Block models of several networks: what the center asks, and what a network answers by sums over its edges.

A site begins at its own spectral embedding. What it sends are edges and pairs of nodes between communities, R x R
numbers each. Twice the root of a density has a standard error of one over the root of its exposure, like a mean of so
many rows; so the center rule of Gaussian fits serves here as it is.
"""

from collections.abc import Callable
from itertools import combinations
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
from scipy.sparse import csr_array
from scipy.special import chdtri

from fedgrem.algorithms.center_rules import EmpiricalBayes
from fedgrem.algorithms.local import LocalEM
from fedgrem.data.networks import embed_network
from fedgrem.data.stack import Stack
from fedgrem.families.covariance import Full
from fedgrem.families.gaussian import Gaussian
from fedgrem.fit.conversation import Ask, Phase, Progress, Replies, everyone
from fedgrem.fit.spec import FitSpec, StartPlan
from fedgrem.fit.tasks import StartRequest, start
from fedgrem.kernels.blocks import (
    BlockSums,
    block_sums,
    communities,
    densities,
    level_of,
    likely_orders,
    relabelled,
)
from fedgrem.kernels.randomness import generator_for
from fedgrem.types import Array, map_arrays

SOFTER = 0.1
"""Of labels that steps begin with, spread evenly: where a label is certain, no step moves it."""
OWN_TURNS, OWN_STEPS = 15, 2
"""Densities and labels in turn, at a site alone."""
MOST_REGROUPED, MOST_VARIANTS, FEWEST_CUT = 5, 60, 4
"""Times that communities are joined and cut; ways that are compared at a time; nodes of one that is cut."""
MOST_ORDERS, MATCH_STEPS = 24, 8
"""Relabellings that a site compares by their likelihood, and the steps from each."""
MATCHES = 4
"""Times that sites look for their place at the center, which moves as they find it."""
LOST = 1e-4
"""Chance with which a network that is like the others is given its own fit back."""
STEPS = 25
"""From a site's own labels to those under the densities that it is sent."""
MOST_LEAD = 4.0
"""Of a center over another at one network, relative to the lead at the median network."""
REFERENCES = 8
"""Networks whose densities are tried as the center, half of which are left after every exchange."""


class NetworkSpec(NamedTuple):
    """A fit of networks."""

    n_components: int
    degree_corrected: bool
    """Whether nodes of one community may differ in how many edges they have."""
    n_init: int
    max_rounds: int
    tol: float
    seed: int


class NetworkSite:
    """A network, and what follows from it alone, found once."""

    def __init__(self, name: str, network: csr_array) -> None:
        self.name, self.network = name, network
        self._labels: dict[NetworkSpec, Array] = {}

    def degree(self, spec: NetworkSpec) -> Array:
        """(n,) relative to the mean where it is corrected for, otherwise 1."""
        degree = np.asarray(self.network.sum(axis=1))
        return degree / degree.mean() if spec.degree_corrected else np.ones_like(degree)

    def sums(self, spec: NetworkSpec, labels: Array, density: Array) -> BlockSums:
        """Of this network's edges."""
        return block_sums(self.network, labels, density, self.degree(spec))

    def moved(self, spec: NetworkSpec, labels: Array, density: Array, steps: int) -> Array:
        """Labels after some steps."""
        return communities(self.network, labels, density, self.degree(spec), steps)

    def own_bound(self, spec: NetworkSpec, labels: Array) -> float:
        """The bound of labels under their own densities."""
        density = densities(self.sums(spec, labels, np.ones((spec.n_components,) * 2)))
        return float(self.sums(spec, labels, density).bound)

    def own_labels(self, spec: NetworkSpec) -> Array:
        """Soft labels ``(n, R)`` that this network would find alone."""
        if spec not in self._labels:
            self._labels[spec] = _alone(self, spec)
        return self._labels[spec]


def _alone(site: NetworkSite, spec: NetworkSpec) -> Array:
    """From a mixture of Gaussians on the spectral embedding, by densities and labels in turn."""
    rows = embed_network(site.network, min(spec.n_components, site.network.shape[0] - 1))
    if spec.degree_corrected:  # the length of a row is about the root of the node's degree
        rows = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
    rows = (rows - rows.mean(axis=0)) / rows.std(axis=0).max()
    family = Gaussian(Full())
    plan = FitSpec(family, LocalEM(), spec.n_components, seed=spec.seed, start=StartPlan(n_init=spec.n_init))
    stack = Stack([site.name], rows[None], None, np.ones((1, len(rows))))
    begun = start(plan, stack, StartRequest(np.zeros(1, dtype=int), None))
    posterior, _ = family.row_scores(stack, begun.params)
    labels: Array = posterior[0].T
    labels, bound = _settled(site, spec, labels[:, None], OWN_TURNS)
    for _ in range(MOST_REGROUPED):
        found, new = _settled(site, spec, regrouped(labels, rows), OWN_TURNS)
        if not new > bound:
            break
        labels, bound = found, new
    return labels


def _settled(site: NetworkSite, spec: NetworkSpec, labels: Array, turns: int) -> tuple[Array, float]:
    """The best of M soft labels ``(n, M, R)`` after densities and labels in turn, and its bound."""
    if not labels.shape[1]:
        return labels, -np.inf
    one = np.ones((spec.n_components,) * 2)
    places = range(labels.shape[1])
    for _ in range(turns):
        density = np.stack([densities(site.sums(spec, labels[:, m], one)) for m in places])
        started = softened(labels).reshape(len(labels), -1)
        labels = site.moved(spec, started, density, OWN_STEPS).reshape(labels.shape)
    bounds = [site.own_bound(spec, labels[:, m]) for m in places]
    best = int(np.argmax(bounds))
    return labels[:, best], bounds[best]


def regrouped(labels: Array, rows: Array) -> Array:
    """Labels ``(n, M, R)`` with two communities joined and a third cut in two along its rows: what no step does."""
    hard = labels.argmax(axis=1)
    found = []
    for first, second in combinations(range(labels.shape[1]), 2):
        for third in set(range(labels.shape[1])) - {first, second}:
            members = np.flatnonzero(hard == third)
            if len(members) < FEWEST_CUT:
                continue
            away = rows[members] - rows[members].mean(axis=0)
            axis = np.linalg.svd(away, full_matrices=False)[2][0]
            new = labels.copy()
            new[:, first] += new[:, second]
            new[:, second] = 0.0
            half = members[away @ axis > 0]
            new[half, second], new[half, third] = new[half, third], 0.0
            found.append(new)
    return np.stack(found[:MOST_VARIANTS], axis=1) if found else np.empty((len(labels), 0, labels.shape[1]))


def softened(labels: Array) -> Array:
    """Labels that can still move."""
    return np.asarray((1.0 - SOFTER) * labels + SOFTER / labels.shape[-1])


# -- what a network answers


class NetworkReply(NamedTuple):
    """Sums over a network's edges, with its own communities in the order that was taken."""

    sums: BlockSums
    order: Array
    """(R,)"""


class NetworkStep(NamedTuple):
    """What a site is sent in a round."""

    density: Array
    """(R, R) between communities, at the level of this network."""
    order: Array
    """(R,) in which its own communities are taken."""


def network_start(spec: NetworkSpec, site: NetworkSite, mail: Any) -> NetworkReply:
    """Sums by the site's own labels."""
    labels = site.own_labels(spec)
    density = densities(site.sums(spec, labels, np.ones((spec.n_components,) * 2)))
    return NetworkReply(site.sums(spec, labels, density), np.arange(spec.n_components))


def network_match(spec: NetworkSpec, site: NetworkSite, centers: Array) -> NetworkReply:
    """For each of C centers ``(C, R, R)``, the order of the site's own communities that explains its edges best."""
    own = network_start(spec, site, None).sums
    labels = softened(site.own_labels(spec))
    replies = []
    for density in centers:
        orders = likely_orders(own, density, MOST_ORDERS, generator_for(spec.seed, site.name, "orders"))
        level = level_of(relabelled(own, orders), density)[:, None, None]
        tried = np.concatenate([labels[:, order] for order in orders], axis=1)
        found = site.moved(spec, tried, level * density, MATCH_STEPS).reshape(len(labels), len(orders), -1)
        sums = [site.sums(spec, found[:, m], level[m] * density) for m in range(len(orders))]
        best = int(np.argmax([one.bound for one in sums]))
        replies.append(NetworkReply(sums[best], orders[best]))
    return stacked(replies)


def stacked(replies: list[NetworkReply]) -> NetworkReply:
    """Replies side by side."""
    return NetworkReply(
        BlockSums(*(np.stack(leaves) for leaves in zip(*(reply.sums for reply in replies), strict=True))),
        np.stack([reply.order for reply in replies]),
    )


def step_from(reply: NetworkReply, center: Array) -> NetworkStep:
    """What a site is to be sent that has found its place at one center."""
    level = level_of(BlockSums(*(leaf[0] for leaf in reply.sums)), center)
    return NetworkStep(level * center, reply.order[0])


def labels_of(spec: NetworkSpec, site: NetworkSite, sent: NetworkStep) -> Array:
    """Soft labels ``(n, R)`` of a site under given densities, from its own."""
    return site.moved(spec, softened(site.own_labels(spec))[:, sent.order], sent.density, STEPS)


def network_step(spec: NetworkSpec, site: NetworkSite, sent: NetworkStep) -> NetworkReply:
    """Sums by the labels under given densities."""
    return NetworkReply(site.sums(spec, labels_of(spec, site, sent), sent.density), sent.order)


TASKS: dict[str, Callable[[NetworkSpec, NetworkSite, Any], NetworkReply]] = {
    "network_start": network_start,
    "network_match": network_match,
    "network_step": network_step,
}
"""name -> function of the spec, one network and its mail."""


class Networks:
    """Carries messages to networks in this process."""

    def __init__(self, sites: list[NetworkSite], spec: NetworkSpec) -> None:
        self._sites, self._spec = sites, spec

    @property
    def site_names(self) -> tuple[str, ...]:
        """In the order given."""
        return tuple(site.name for site in self._sites)

    def ask(self, ask: Ask) -> Replies:
        """Every network answers."""
        task = TASKS[ask.task]
        replies = []
        for k, site in enumerate(self._sites):
            mail: Any = map_arrays(itemgetter(k), ask.mail)
            replies.append(task(self._spec, site, mail))
        return Replies(everyone(len(self._sites)), stacked(replies))


# -- the center


class NetworksResult(NamedTuple):
    """A finished fit."""

    sums: BlockSums
    order: Array
    """(K, R)"""
    density: Array
    """(K, R, R) of every site, shrunk."""
    center: Array
    """(R, R) relative to the level of a site."""
    level: Array
    """(K,)"""
    trust: Array
    """(K, R, R)"""
    between: Array
    """(R, R)"""
    n_rounds: int
    converged: bool
    alone: Array
    """(K,) which keep their own densities, because they clearly lose by being pulled."""


class Pulled(NamedTuple):
    """What the center makes of the sites' sums."""

    density: Array
    center: Array
    level: Array
    trust: Array
    between: Array


def fit_networks(spec: NetworkSpec, names: tuple[str, ...]) -> Phase[NetworksResult]:
    """Communities of several networks, found together."""
    replies = yield Ask("network_start", (), Progress("starts", 0, spec.max_rounds, float("nan")))
    own = replies.mail.sums
    reply, center = replies.mail, first_centers(own)[0]
    if len(names) > 1:
        reply, center = yield from _exchange(spec, len(names), reply)
    found = pull(reply.sums, center)
    converged, number, movement = False, 0, float("nan")
    while not converged and number < spec.max_rounds:
        number += 1
        told = Progress("rounds", number, spec.max_rounds, movement)
        replies = yield Ask("network_step", NetworkStep(found.density, reply.order), told)
        last, found = found, pull(replies.mail.sums, found.center)
        movement = float(np.abs(found.density / last.density - 1.0).max())
        converged = movement <= spec.tol
    alone = lost(own, replies.mail.sums)
    sums = [_one(own if alone[k] else replies.mail.sums, k) for k in range(len(names))]
    sums = [relabelled(one, reply.order[k]) if alone[k] else one for k, one in enumerate(sums)]
    kept = BlockSums(*(np.stack(leaves) for leaves in zip(*sums, strict=True)))
    density = np.where(alone[:, None, None], densities(kept), found.density)
    return NetworksResult(kept, reply.order, *found._replace(density=density), number, converged, alone)


def _exchange(spec: NetworkSpec, n_sites: int, reply: NetworkReply) -> Phase[tuple[NetworkReply, Array]]:
    """The densities that serve all networks best, from those of single ones, and every network's place there."""
    centers, number = first_centers(reply.sums), 0
    while True:
        sent = np.broadcast_to(centers, (n_sites, *centers.shape))
        replies = yield Ask("network_match", sent, Progress("exchange", number, spec.max_rounds, float("nan")))
        tried = [_of_center(replies.mail, c) for c in range(len(centers))]
        best = np.argsort(-served(replies.mail.sums), kind="stable")[: max(1, len(centers) // 2)]
        centers = np.stack([pull(tried[c].sums, centers[c]).center for c in best])
        number += 1
        if len(best) == 1 and number >= MATCHES:
            return tried[best[0]], centers[0]


def _of_center(reply: NetworkReply, c: int) -> NetworkReply:
    """What all sites say of one center."""
    found: NetworkReply = map_arrays(lambda leaf: leaf[:, c], reply)
    return found


def _one(sums: BlockSums, k: int) -> BlockSums:
    """Those of one network."""
    return BlockSums(*(leaf[k] for leaf in sums))


def lost(own: BlockSums, pulled: BlockSums) -> Array:
    """Which networks clearly lose by being pulled, ``(K,)``: by twice the difference in log-likelihood of their edges.

    Were a network like the center, that would be about chi-squared with a degree for every density but its level.
    """
    n_communities = own.held.shape[-1]
    degrees = max(1, n_communities * (n_communities + 1) // 2 - 1)
    return np.asarray(2.0 * (own.bound - pulled.bound) > chdtri(degrees, LOST))


def first_centers(sums: BlockSums) -> Array:
    """The densities of single networks ``(C, R, R)``, those of most edges, as candidates for the center."""
    sizes = np.argsort(-sums.edges.sum(axis=(1, 2)), kind="stable")[:REFERENCES]
    return densities(BlockSums(*(leaf[sizes] for leaf in sums)))


def served(sums: BlockSums) -> Array:
    """How well each of C centers serves the networks, ``(C,)``: its mean lead over the others, in log-likelihood.

    Large networks know more; but a lead counts for at most a few times that of the median network, whoever claims it.
    """
    lead = sums.bound[:, :, None] - sums.bound[:, None, :]
    most = MOST_LEAD * np.median(np.abs(lead), axis=0)
    return np.asarray(np.clip(lead, -most, most).sum(axis=(0, 2)))


def pull(sums: BlockSums, center: Array) -> Pulled:
    """Densities shrunk to a common center, every pair of communities as a component with one parameter."""
    n_sites, n_communities = sums.held.shape
    i, j = np.triu_indices(n_communities)
    level = level_of(sums, center)
    exposure = level[:, None] * sums.pairs[:, i, j] * np.where(i == j, 0.5, 1.0)
    exposure = np.maximum(exposure, 1e-9)
    roots = 2.0 * np.sqrt(densities(sums)[:, i, j] / level[:, None])[..., None]
    if n_sites == 1:
        return Pulled(densities(sums), densities(sums)[0], np.ones(1), np.ones(sums.edges.shape), 0.0 * center)
    start = 2.0 * np.sqrt(center[i, j])[:, None]
    infinite = np.full(exposure.shape, np.inf)
    found = EmpiricalBayes()(roots, exposure, infinite, exposure, start, everyone(n_sites))
    assert found.between is not None

    def square(values: Array) -> Array:
        whole = np.empty((*values.shape[:-1], n_communities, n_communities))
        whole[..., i, j] = whole[..., j, i] = values
        return whole

    shrunk = square(np.square(0.5 * np.maximum(found.shrunk[..., 0], 1e-3)))
    middle = square(np.square(0.5 * np.maximum(found.center[..., 0], 1e-3)))
    return Pulled(level[:, None, None] * shrunk, middle, level, square(found.trust), square(found.between))
