"""Communities of several networks: found together, in each network alone, and on aligned embeddings."""

import time
from typing import Any

import numpy as np

from fedgrem.data.networks import embed_network
from fedgrem.data.simulate import simulate_network
from fedgrem.estimators.gaussian import FederatedGaussianMixture
from fedgrem.estimators.networks import FederatedNetworkMixture, align_embeddings
from fedgrem.kernels.scores import misclustering_rate
from fedgrem.studies.processes import quiet
from fedgrem.types import Array

DENSITIES = np.array(
    [[0.30, 0.12, 0.10, 0.08], [0.12, 0.25, 0.14, 0.10], [0.10, 0.14, 0.20, 0.06], [0.08, 0.10, 0.06, 0.16]]
)
"""Four communities that are weak in a network of a few hundred nodes."""
SIZES = (150, 214, 278, 342, 407, 471, 535, 600)
METHODS = {
    "together": "block models together",
    "alone": "block model of each network alone",
    "aligned": "aligned embeddings, Gaussians together",
    "embedded": "embedding and Gaussians of each network alone",
}
"""What is compared, in words."""
Networks = dict[str, tuple[Array, Array]]
"""name -> adjacency (n, n) and communities (n,)"""


def draw(*, scale: float = 1.0, h: float = 0.0, sizes: tuple[int, ...] = SIZES, seed: int = 0) -> Networks:
    """Networks with the densities above times ``scale``, and each its own share of nodes in every community.

    ``h`` is the standard deviation of the log of a network's densities about the common ones.
    """
    found, generator = {}, np.random.default_rng([seed, 22])
    for k, n in enumerate(sizes):
        away = np.triu(generator.normal(size=DENSITIES.shape))
        own = scale * DENSITIES * np.exp(h * (away + np.triu(away, 1).T))
        found[f"network-{k + 1:02d}"] = simulate_network(np.minimum(own, 1.0), n, seed=1000 * seed + k)
    return found


def play(
    method: str,
    networks: Networks,
    n_components: int = len(DENSITIES),
    *,
    degree_corrected: bool = False,
    seed: int = 0,
) -> dict[str, Any]:
    """The share of nodes in the wrong community, of every network and on average, and seconds."""
    begin = time.perf_counter()
    adjacency = {name: one for name, (one, _) in networks.items()}
    model: Any = FederatedNetworkMixture(n_components, degree_corrected=degree_corrected, random_state=seed)
    labels: dict[str, Array] = {}
    if method == "together":
        labels = model.fit(adjacency).labels_
    elif method == "alone":
        for name, one in adjacency.items():
            labels |= model.fit({name: one}).labels_
    else:
        rows = {name: embed_network(one, n_components) for name, one in adjacency.items()}
        algorithm = "local-em" if method == "embedded" else "fedgrem"
        model = FederatedGaussianMixture(
            n_components, covariance_type="full", algorithm=algorithm, standard_errors=False, random_state=seed
        )
        with quiet():
            if method == "aligned":
                rows = align_embeddings(rows, n_components, random_state=seed)
            model.fit(rows)
        labels = {name: model.predict(one, sites=name) for name, one in rows.items()}
    wrong = [misclustering_rate(true, labels[name]) for name, (_, true) in networks.items()]
    return {"wrong": wrong, "misclustering": float(np.mean(wrong)), "seconds": time.perf_counter() - begin}
