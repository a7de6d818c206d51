"""Fits without a server: ``python benchmarks/decentralized.py``.

The paper's Gaussians (five components in ten columns, 150 rows a site, the last site odd) on a ring of 10 and a random
graph of 50, in one process: how far the center is from the server's after 60 rounds from the same start, messages a
sum and a round, a site and an edge that are lost half-way, and the largest error of the honest sites beside the
server's where one site is hostile. ``--figure FILE`` draws the graphs and the error of every step of gossip;
``--processes 5`` runs every site in a process of its own, linked with its two neighbours by pipes.
"""

import argparse
import os
import time
from multiprocessing import get_context

import numpy as np

from fedgrem.data.federation import Federation
from fedgrem.data.simulate import simulate
from fedgrem.engines.decentralized import AmongNeighbours, Decentralized
from fedgrem.fit.spec import read_spec
from fedgrem.studies.decentralized import GRAPHS, HOSTILE, beside_the_server, figure, spec_of, with_a_liar, with_a_loss


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


def in_processes(count, last=None):
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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--figure")
    parser.add_argument("--processes", type=int, help="only this: every site in a process of its own")
    options = parser.parse_args()
    if options.processes:
        in_processes(options.processes)
        in_processes(options.processes, last=1500)
        raise SystemExit
    for name, (kind, count) in GRAPHS.items():
        compare(name, kind, count)
        lose(name, kind, count, max(1, options.seeds // 3))
        lie(name, kind, count, options.seeds if count < 20 else max(1, options.seeds // 3))
    if options.figure:
        figure().savefig(options.figure)
