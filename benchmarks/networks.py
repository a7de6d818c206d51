"""Communities of networks that cannot be merged: `python benchmarks/networks.py --seeds 5`.

Eight networks of 150 to 600 nodes, stochastic block models with four weak communities of unequal sizes: the share of
nodes in the wrong community, mean over networks and seeds, and what it is relative to each network alone. With
`--public`, real networks cut into three parts each by nodes: the parts' labels against those of people who know
(networkx is needed: karate club, Davis' Southern women and the events they went to).
"""

import numpy as np

from common import Given, asked, some_of
from fedgrem.data.networks import check_network
from fedgrem.errors import InputError
from fedgrem.studies.networks import METHODS, Networks, draw, play


def public_networks() -> dict[str, tuple[Networks, int]]:
    """Networks with known groups, each as several observers would see it, and the number of groups."""
    import networkx as nx

    karate = nx.karate_club_graph()
    davis = nx.davis_southern_women_graph()
    known = {
        "karate club": (
            nx.to_numpy_array(karate, weight=None),
            np.array([karate.nodes[v]["club"] == "Officer" for v in karate], dtype=int),
        ),
        "Southern women": (
            nx.to_numpy_array(davis, weight=None),
            np.array([davis.nodes[v]["bipartite"] for v in davis], dtype=int),
        ),
    }
    return {name: (parts_of(network, groups), 2) for name, (network, groups) in known.items()}


def parts_of(network: np.ndarray, groups: np.ndarray, n_parts: int = 6, share: float = 0.7) -> Networks:
    """What several observers see of a network: 70% of its nodes each, as far as they hang together."""
    generator, found = np.random.default_rng(0), {}
    while len(found) < n_parts:
        seen = np.sort(generator.permutation(len(groups))[: round(share * len(groups))])
        part = network[np.ix_(seen, seen)]
        try:
            check_network(part)
        except InputError:
            continue
        found[f"part {len(found) + 1}"] = (part, groups[seen])
    return found


def table(networks: list[Networks], n_components: int, methods: list[str], *, corrected: bool = False) -> None:
    """A line for every method."""
    found = {}
    for name in methods:
        found[name] = [
            play(name, one, n_components, degree_corrected=corrected, seed=seed) for seed, one in enumerate(networks)
        ]
        wrong = np.mean([one["misclustering"] for one in found[name]])
        line = f"  {METHODS[name]:48}{wrong:8.3f}{np.mean([one['seconds'] for one in found[name]]):8.1f} s"
        if name != "together" and "together" in found and wrong > 0:
            line += f"{np.mean([one['misclustering'] for one in found['together']]) / wrong:8.2f}"
        print(line, flush=True)


def main() -> None:
    """Print a table for every setting."""
    chosen = asked(
        __doc__, seeds=5, scale=Given([1.0], "of all densities"), similarity=[0.0], methods=some_of(METHODS),
        public=False,
    )  # fmt: skip
    print(f"{'':50}{'wrong':>8}{'time':>10}{'together over it':>20}")
    if chosen.public:
        for name, (networks, n_components) in public_networks().items():
            print(f"{name}, {len(networks)} parts")
            table([networks], n_components, chosen.methods, corrected=True)
        return
    for scale in chosen.scale:
        for h in chosen.similarity:
            print(f"densities times {scale:g}, h = {h:g}")
            table([draw(scale=scale, h=h, seed=seed) for seed in range(chosen.seeds)], 4, chosen.methods)


if __name__ == "__main__":
    main()
