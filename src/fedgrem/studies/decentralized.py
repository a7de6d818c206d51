"""Fits without a server beside the server's: exactness, messages, a site or an edge that is lost, sites that lie."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from fedgrem.algorithms.center_rules import Huber
from fedgrem.algorithms.fedgrem import FedGrEM
from fedgrem.data.federation import Federation
from fedgrem.data.simulate import Simulation, simulate
from fedgrem.engines.decentralized import AmongNeighbours, Decentralized, carry
from fedgrem.engines.inprocess import InProcess
from fedgrem.errors import SitesError
from fedgrem.families.covariance import Identity
from fedgrem.families.gaussian import Gaussian
from fedgrem.fit.conversation import Ask
from fedgrem.fit.fit import run
from fedgrem.fit.neighbours import limits
from fedgrem.fit.spec import FitSpec, StartPlan
from fedgrem.fit.sums_answer import packed, unpack
from fedgrem.kernels.gossip import Lines, Sent, agree, lines_of, plan_of
from fedgrem.kernels.matching import best_assignment
from fedgrem.plots.axes import new_figure, tidy
from fedgrem.types import Array, FitResult, Params, map_arrays

if TYPE_CHECKING:
    from matplotlib.figure import Figure

GRAPHS = {"a ring of 10": ("ring", 10), "a random graph of 50": ("erdos-renyi", 50)}
PENALTY = 2.0
BAD = -1
"""The place of the site that misbehaves: the last one, an outlier of the simulation if it has one."""
Engine = Callable[[Federation, FitSpec, Array], AmongNeighbours]


def spec_of(seed: int = 0, **options: Any) -> FitSpec:
    """The paper's Gaussians, by Huber's center."""
    algorithm = FedGrEM(center=Huber(), memory=0, pool_weights=False)
    values: dict[str, Any] = {"fallback": False, "look": False, "standard_errors": False, "seed": seed}
    return FitSpec(Gaussian(Identity()), algorithm, 5, PENALTY, **(values | options))


def federation_of(drawn: Simulation, n_sites: int | None = None) -> Federation:
    """The rows of the first sites, or of all."""
    names = list(drawn.rows)[:n_sites]
    return Federation.from_sites(names, [drawn.rows[name] for name in names])


def largest_error(result: FitResult, drawn: Simulation, seen: Array) -> float:
    """Of the component parameters of some sites, components matched by the center."""
    middle = np.median(drawn.theta[drawn.honest], axis=0)
    order = best_assignment(result.center, middle[None])
    places = np.flatnonzero(seen)
    return float(np.linalg.norm(result.theta[places][:, order] - drawn.theta[places], axis=-1).max())


def beside_the_server(kind: str, n_sites: int, seed: int = 1) -> dict[str, float]:
    """How far the center is from the server's after 60 rounds from the same start, and what a fit costs."""
    data = federation_of(simulate("gmm", h=0.5, n_sites=n_sites, seed=seed))
    spec = spec_of(seed)
    begin = time.perf_counter()
    found = Decentralized(kind).fit(spec, data)
    seconds = time.perf_counter() - begin
    given = Params(np.full((n_sites, 5), 0.2), np.repeat(found.center[None] + 0.1, n_sites, axis=0))
    again = replace(spec, given=given, start=StartPlan(alignment="none"), tol=0.0, max_rounds=60)
    expected, there = run(again, InProcess(data, again)), Decentralized(kind).fit(again, data)
    cost = {name: float(value) for name, value in found.cost.items()}
    return cost | {
        "apart": float(np.abs(there.center - expected.center).max()),
        "sites_apart": float(np.abs(there.theta - expected.theta).max()),
        "seconds": seconds,
    }


# -- links that are lost


def losing(ends: tuple[int, ...], first: int) -> Callable[[Sent, Lines, int], tuple[Sent, Array]]:
    """A link between two sites, or all links of one, that brings nothing from this step of the fit on."""

    def carried(sent: Sent, lines: Lines, step: int) -> tuple[Sent, Array]:
        heard, there = carry(sent, lines, step)
        if step >= first:
            one, other = np.isin(lines.places[lines.hears], ends), np.isin(lines.speaks, ends)
            there = there & ~((one & other) if len(ends) == 2 else (one | other))
        return heard, there

    return carried


def with_a_loss(what: str, kind: str, n_sites: int, seed: int) -> dict[str, float]:
    """The largest error with and without a "site" or an "edge" lost in the midst of the fit; of the sites that stay."""
    drawn = simulate("gmm", h=0.5, n_sites=n_sites, seed=seed)
    data, spec = federation_of(drawn), spec_of(seed)
    links = Decentralized(kind).links(data.names, seed)
    ends = (2,) if what == "site" else tuple(np.argwhere(np.triu(links))[0].tolist())
    stay = drawn.honest & ~((what == "site") & np.isin(np.arange(n_sites), ends))
    whole = AmongNeighbours(data, spec, links)
    expected = whole.run()
    engine = AmongNeighbours(data, spec, links, carry=losing(ends, whole.steps // 2))
    found = engine.run()
    return {
        "error": largest_error(found, drawn, stay),
        "error_without_loss": largest_error(expected, drawn, stay),
        "apart": float(np.abs(found.center - expected.center).max()),
        "sites": float(found.cost["sites"]),
        "steps_more": float(engine.steps - whole.steps),
    }


# -- sites that lie


class _Liar(AmongNeighbours):
    """The last site rewrites what it adds to the search for the center."""

    def told(self, ask: Ask) -> tuple[Array, Any]:
        """What every site adds."""
        told, like = super().told(ask)
        if ask.task in ("sum_round", "sum_pass"):
            told[BAD] = self.lie(ask, told[BAD], like)
        return told, like

    def lie(self, ask: Ask, own: Array, like: Any) -> Array:
        """What the last one says instead of its own numbers."""
        raise NotImplementedError


class Unclipped(_Liar):
    """It does not clip: its displacement counts a hundred times."""

    def lie(self, ask: Ask, own: Array, like: Any) -> Array:
        """Its own numbers, a hundred times."""
        return 100.0 * own


class AtTheLimit(_Liar):
    """It claims the most that its neighbours let pass, always in the same direction."""

    def lie(self, ask: Ask, own: Array, like: Any) -> Array:
        """As many rows as count, and a displacement as long as may be."""
        most = limits(ask.task, ask.mail, like)
        found = unpack(own[None], like)
        part = found.first.theta if ask.task == "sum_round" else found.theta
        strength = (most.first.theta if ask.task == "sum_round" else most.theta).strength[None]
        strength = strength / np.sqrt(self._spec.n_components)
        slope = np.broadcast_to((strength / np.sqrt(part.slope.shape[-1]))[..., None], part.slope.shape)
        lie = part._replace(slope=slope, strength=strength)
        whole = found._replace(first=found.first._replace(theta=lie)) if ask.task == "sum_round" else None
        return np.asarray(packed(map_arrays(np.asarray, whole or found._replace(theta=lie)))[0])


class OnTheWay(AmongNeighbours):
    """The last site adds to all that it passes on, in a pass, a part of the most that neighbours let pass in a step."""

    part = 0.005

    def __init__(self, federation: Federation, spec: FitSpec, graph: Array) -> None:
        super().__init__(federation, spec, graph, carry=self._tampering)
        self._began, self._most = 0, None

    def told(self, ask: Ask) -> tuple[Array, Any]:
        """Its own numbers are honest; note which of all are displacements, and how long these may be."""
        told, like = super().told(ask)
        self._began, self._most = self.steps, None
        if ask.task == "sum_pass":
            none = map_arrays(lambda leaf: np.zeros((1, *leaf.shape)), like)
            slope = limits(ask.task, ask.mail, like).theta.slope[None]
            self._most = packed(none._replace(theta=none.theta._replace(slope=slope)))[0]
        return told, like

    def _tampering(self, sent: Sent, lines: Lines, step: int) -> tuple[Sent, Array]:
        heard, there = carry(sent, lines, step)
        since = step - self._began
        if self._most is not None and 0 < since < self._plan.steps:
            radius = 2.0 * np.sqrt(len(self.graph)) * self._plan.shrinkage[since] * self._most
            heard.values[lines.speaks == len(self.graph) - 1] += self.part * radius
        return heard, there


class MoreOnTheWay(OnTheWay):
    """Four times as much."""

    part = 0.02


HOSTILE: dict[str, Engine] = {
    "odd rows": AmongNeighbours,
    "does not clip": Unclipped,
    "at the limit": AtTheLimit,
    "tampers on the way": OnTheWay,
    "tampers more": MoreOnTheWay,
}
"""What the last site does, besides having odd rows."""


def with_a_liar(what: str, kind: str, n_sites: int, seed: int) -> dict[str, float]:
    """The largest error of the honest sites, here and at a server whose last site has odd rows: as many, or ten times.

    Of a fit that the last site has stopped there is none, and 0 sites are left.
    """
    spec, rows = spec_of(seed), 150
    drawn = simulate("gmm", h=0.3, n_sites=n_sites, n_rows=rows, seed=seed)
    large = simulate("gmm", h=0.3, n_sites=n_sites, n_rows=[rows] * (n_sites - 1) + [10 * rows], seed=seed)
    data = federation_of(drawn)
    told = {"error": np.nan, "sites": 0.0}
    try:
        found = HOSTILE[what](data, spec, Decentralized(kind).links(data.names, seed)).run()
        told = {"error": largest_error(found, drawn, drawn.honest), "sites": float(found.cost["sites"])}
    except SitesError:
        pass  # the fit has been stopped
    for name, one in (("server", drawn), ("server_large", large)):
        expected = run(spec, InProcess(federation_of(one), spec))
        told[name] = largest_error(expected, one, one.honest)
    return told


# -- how fast neighbours agree


def error_per_step(graph: Array, *, plain: bool = False, seed: int = 0) -> Array:
    """(steps + 1,) the largest error of a site's mean, relative to the largest value, step by step."""
    values = np.random.default_rng(seed).normal(size=(len(graph), 50))
    plan = plan_of(graph, 1e-12)
    lines = lines_of(plan, np.arange(len(graph)))
    kept: list[Array] = []

    def exchange(sent: Sent, step: int) -> tuple[Sent, Array]:
        if step <= plan.steps and sent.values.shape == values.shape:
            kept.append(sent.values)
        return carry(sent, lines, step)

    if plain:
        kept.append(values)
        for _ in range(3 * plan.steps):
            kept.append(plan.weights @ kept[-1])
    else:
        agree(values, plan, lines, exchange, np.full(50, np.inf))
    mean = values.mean(axis=0)
    return np.asarray(np.array([np.abs(one - mean).max() for one in kept]) / np.abs(values).max())


def figure(seed: int = 0) -> Figure:
    """Two graphs, and how fast their sites agree."""
    drawing = new_figure((10.0, 3.6), dpi=160)
    axes = drawing.subplots(1, 3, width_ratios=(1.0, 1.0, 1.6))
    for ax, (name, (kind, count)) in zip(axes, GRAPHS.items(), strict=False):
        names = tuple(str(k) for k in range(count))
        graph = Decentralized(kind).links(names, seed)
        angle = 2.0 * np.pi * np.arange(count) / count
        x, y = np.cos(angle), np.sin(angle)
        for one, other in np.argwhere(np.triu(graph)):
            ax.plot(x[[one, other]], y[[one, other]], color="#B5B5B5", linewidth=0.8, zorder=1)
        ax.scatter(x, y, s=400 / count + 8, color="#0072B2", zorder=2)
        ax.set(title=name[0].upper() + name[1:], aspect="equal", xticks=[], yticks=[])
        ax.axis("off")
        color = "#D55E00" if kind == "ring" else "#0072B2"
        for plain, dashes, how in ((False, "-", "Chebyshev"), (True, (0, (4, 2)), "plain")):
            errors = error_per_step(graph, plain=plain, seed=seed)
            axes[2].semilogy(np.maximum(errors, 1e-16), color=color, linestyle=dashes, label=f"{name}, {how}")
    axes[2].set(xlabel="step of gossip", ylabel="largest relative error of a mean", ylim=(1e-16, 2), xlim=(0, 100))
    tidy(axes[2], "y")
    axes[2].legend(frameon=False, fontsize=8)
    return drawing
