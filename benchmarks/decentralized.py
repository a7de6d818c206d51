"""Fits without a server: ``python benchmarks/decentralized.py``.

The paper's Gaussians (five components in ten columns, 150 rows a site, the last site odd) on a ring of 10 and a random
graph of 50, in one process: how far the center is from the server's after 60 rounds from the same start, messages a
sum and a round, a site and an edge that are lost half-way, and the largest error of the honest sites beside the
server's where one site is hostile. ``--figure FILE`` draws the graphs and the error of every step of gossip;
``--processes 5`` runs every site in a process of its own, linked with its two neighbours by pipes.
"""

import os
import time
from collections.abc import Callable
from dataclasses import replace
from multiprocessing import get_context
from typing import Any

import numpy as np

from common import Given, asked
from fedgrem.data.federation import Federation
from fedgrem.data.simulate import simulate
from fedgrem.engines.decentralized import AmongNeighbours, Decentralized, carry
from fedgrem.engines.inprocess import InProcess
from fedgrem.errors import SitesError
from fedgrem.fit.conversation import Ask
from fedgrem.fit.fit import run
from fedgrem.fit.neighbours import limits
from fedgrem.fit.spec import FitSpec, StartPlan, read_spec
from fedgrem.fit.sums_answer import packed, unpack
from fedgrem.kernels.gossip import Lines, Sent, agree, lines_of, plan_of
from fedgrem.plots.axes import new_figure, tidy
from fedgrem.studies.discussion_parts import largest_error, spec_of
from fedgrem.studies.starts import federation_of
from fedgrem.types import Array, Params, map_arrays

GRAPHS = {"a ring of 10": ("ring", 10), "a random graph of 50": ("erdos-renyi", 50)}
BAD = -1
"""The place of the site that misbehaves: the last one, an outlier of the simulation if it has one."""
Engine = Callable[[Federation, FitSpec, Array], AmongNeighbours]


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


def figure(seed=0):
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


# -- what is printed


def compare(name, kind, count):
    found = beside_the_server(kind, count)
    each = found["messages_per_round"] / count
    print(
        f"{name}: after 60 rounds the center is {found['apart']:.1e} from the server's, sites "
        f"{found['sites_apart']:.1e}; "
        f"{found['steps_per_sum']:.0f} steps, {found['messages_per_sum']:,.0f} messages a sum over "
        f"{found['links']:.0f} links; {found['messages_per_round']:,.0f} messages a round, {each:,.0f} from a site; "
        f"{found['rounds']:.0f} rounds; {found['messages']:,.0f} messages in all, with "
        f"{found['numbers'] / found['messages']:,.0f} numbers each; {found['seconds']:.1f} s"
    )


def lose(name, kind, count, seeds):
    for what in ("site", "edge"):
        told = [with_a_loss(what, kind, count, seed) for seed in range(seeds)]
        ratio = [one["error"] / one["error_without_loss"] for one in told]
        print(
            f"{name}, one {what} lost half-way: {told[0]['sites']:.0f} sites go on, their largest error "
            f"{np.mean(ratio):.3f} times that without a loss (at most {max(ratio):.3f}, {seeds} seeds); the "
            f"center moves by at most {max(one['apart'] for one in told):.1e}"
        )


def lie(name, kind, count, seeds):
    for what in HOSTILE:
        told = [with_a_liar(what, kind, count, seed) for seed in range(seeds)]
        error, server, large = (np.mean([one[key] for one in told]) for key in ("error", "server", "server_large"))
        left, stopped = sum(0 < one["sites"] < count for one in told), sum(one["sites"] == 0 for one in told)
        print(
            f"{name}, one hostile site ({what}): mean of the largest error {error:.3f}; the server's {server:.3f}, "
            f"ratio {error / server:.3f}, and {large:.3f} with ten times the odd rows, ratio {error / large:.3f}; "
            f"{seeds} seeds; left out in {left}, the fit stopped in {stopped}"
        )


def site_process(name, rows, names, links, spec, connections, told, last):
    """One site: its rows, its connections, and nothing else; one that is lost ends in the midst of a letter's step."""
    from fedgrem.engines.remote import neighbours

    post, count = neighbours.Connections(connections), 0
    send = post.send

    def counted(neighbour, letter):
        nonlocal count
        count += 1
        if count > last:
            os._exit(1)
        send(neighbour, letter)

    post.send = counted
    result = neighbours.fit_at_one_site(Federation.from_sites([name], [rows]), read_spec(spec), links, names, post)
    told.put((name, result.center, result.cost))


def linked_by_pipes(count, last=None):
    """Every site in a process of its own, on a ring, by pipes; with ``last``, one ends after so many letters."""
    drawn, spec, context = simulate("gmm", h=0.5, n_sites=count, seed=1), spec_of(1), get_context("spawn")
    names = tuple(drawn.rows)
    data = Federation.from_sites(names, list(drawn.rows.values()))
    links = Decentralized("ring").links(names, 1)
    ends = {name: {} for name in names}
    for one, other in np.argwhere(np.triu(links)):
        ends[names[one]][names[other]], ends[names[other]][names[one]] = context.Pipe()
    told, begin = context.Queue(), time.perf_counter()
    processes = [
        context.Process(
            target=site_process,
            args=(
                name, drawn.rows[name], names, links, spec.to_json(), ends[name], told,
                last if last and k == 2 else 10**9,
            ),
        )
        for k, name in enumerate(names)
    ]  # fmt: skip
    for process in processes:
        process.start()
    for one in ends.values():
        for connection in one.values():
            connection.close()
    found = [told.get() for _ in range(count - bool(last))]
    for process in processes:
        process.join()
    seconds = time.perf_counter() - begin
    same = all(np.array_equal(center, found[0][1]) for _, center, _ in found)
    whole = AmongNeighbours(data, spec, links).run()
    print(
        f"{count} processes on a ring{' of which one ends' * bool(last)}: {len(found)} sites end, with the same center "
        f"to the bit: {same}; it is {np.abs(found[0][1] - whole.center).max():.1e} from that of one process without a "
        f"loss; {found[0][2]['sites']} sites in the end; {found[0][2]['messages']:,} messages from a site; "
        f"{seconds:.1f} s"
    )


if __name__ == "__main__":
    arguments = asked(
        __doc__, seeds=10, figure=None,
        processes=Given(None, "only this: every site in a process of its own", kind=int),
    )  # fmt: skip
    if arguments.processes:
        linked_by_pipes(arguments.processes)
        linked_by_pipes(arguments.processes, last=1500)
        raise SystemExit
    for name, (kind, count) in GRAPHS.items():
        compare(name, kind, count)
        lose(name, kind, count, max(1, arguments.seeds // 3))
        lie(name, kind, count, arguments.seeds if count < 20 else max(1, arguments.seeds // 3))
    if arguments.figure:
        figure().savefig(arguments.figure)
