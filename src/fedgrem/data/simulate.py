"""The paper's simulations: a setting and a seed give every site's rows, and the truth."""

from typing import Literal, NamedTuple, TypeAlias

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components

from fedgrem.kernels.scores import parameter_errors
from fedgrem.types import Array

Model: TypeAlias = Literal["gmm", "mor"]

CENTERS = np.array(
    [
        [1, 0, 3, -1, 1, -1, 0, 1, 1, -1],
        # The paper prints the last entry as a bare minus sign. -1 gives the h/SNR of its figure, 35.92% at h = 2.
        [0, 1, -1, -3, 2, -1, 2, -1, 1, -1],
        [-3, -1, 2, -1, 2, -1, 1, -3, -1, -2],
        [1, -2, 0, -1, -2, 2, 1, 3, 1, -1],
        [3, 1, 2, -1, -2, 1, 2, -1, -1, 2],
    ],
    dtype=float,
)
"""The common centers of the paper's appendix, five components in ten dimensions."""


class Simulation(NamedTuple):
    """Rows per site with the truth behind them."""

    rows: dict[str, Array]
    """name -> (n, p)"""
    targets: dict[str, Array] | None
    """name -> (n,) responses of a regression, or None."""
    labels: dict[str, Array]
    """name -> (n,) true component of each row; -1 at an outlier site."""
    weights: Array
    """(K, R), NaN at outlier sites."""
    theta: Array
    """(K, R, p), NaN at outlier sites."""
    honest: Array
    """(K,) False at outlier sites."""

    def errors(self, weights: Array, theta: Array) -> tuple[Array, Array]:
        """(K,) each: a site's largest error of a weight and of a component's parameters; NaN at outlier sites.

        ``weights`` (K, R) and ``theta`` (K, R, p) are estimates; each site is relabelled to the truth.
        """
        found, good = np.full((2, len(self.honest)), np.nan), self.honest
        found[:, good] = parameter_errors(weights[good], theta[good], self.weights[good], self.theta[good])
        return found[0], found[1]


def simulate(
    model: Model = "gmm",
    *,
    h: float = 0.0,
    n_sites: int = 10,
    n_rows: int | list[int] = 150,
    n_outliers: int = 1,
    n_features: int | None = None,
    centers: Array = CENTERS,
    seed: int = 0,
) -> Simulation:
    """Draw one replication of the paper's GMM or mixture-of-regressions simulation.

    Every honest site has weights from Dirichlet(5, ..., 5) and component parameters at distance ``h`` from the common
    centers, in a random direction. The last ``n_outliers`` sites are outliers: ``N(2 * 1, 3 I)`` rows in the GMM, one
    regression with all coefficients 3 in the regressions. With ``n_features``, the centers get zeros in the dimensions
    beyond their own.

    Examples
    --------
    >>> simulation = simulate("gmm", h=1.0, seed=3)
    >>> len(simulation.rows), simulation.rows["site-01"].shape, int(simulation.honest.sum())
    (10, (150, 10), 9)
    """
    generator = np.random.default_rng(seed)
    if n_features is not None:
        if n_features < centers.shape[1]:
            raise ValueError(f"n_features is {n_features}, expected at least the {centers.shape[1]} of the centers.")
        centers = np.pad(centers, ((0, 0), (0, n_features - centers.shape[1])))
    n_components, n_features = centers.shape
    sizes = [n_rows] * n_sites if isinstance(n_rows, int) else list(n_rows)
    if len(sizes) != n_sites:
        raise ValueError(f"n_rows names {len(sizes)} sites, expected n_sites={n_sites}.")
    names = [f"site-{k + 1:0{max(2, len(str(n_sites)))}d}" for k in range(n_sites)]
    honest = np.arange(n_sites) < n_sites - n_outliers
    weights = np.full((n_sites, n_components), np.nan)
    theta = np.full((n_sites, n_components, n_features), np.nan)
    rows, targets, labels = {}, {}, {}
    for k, (name, size) in enumerate(zip(names, sizes, strict=True)):
        if honest[k]:
            weights[k] = generator.dirichlet(np.full(n_components, 5.0))
            direction = generator.normal(size=centers.shape)
            theta[k] = centers + h * direction / np.linalg.norm(direction, axis=1, keepdims=True)
            label = generator.choice(n_components, size=size, p=weights[k])
            location = theta[k][label]
        else:
            label = np.full(size, -1)
            location = np.full((size, n_features), 2.0 if model == "gmm" else 3.0)
        noise = generator.normal(size=(size, n_features))
        if model == "gmm":
            rows[name] = location + noise * (1.0 if honest[k] else np.sqrt(3.0))
        else:
            rows[name] = noise
            targets[name] = (noise * location).sum(axis=1) + generator.normal(size=size)
        labels[name] = label
    return Simulation(rows, targets or None, labels, weights, theta, honest)


def simulate_network(
    densities: Array, n_nodes: int, *, weights: Array | None = None, seed: int = 0
) -> tuple[Array, Array]:
    """A network of a stochastic block model, ``(n, n)``, and its nodes' communities, ``(n,)``.

    A node without an edge is given one, to a node at random, and parts that fall apart are joined by an edge.

    Parameters
    ----------
    densities : (R, R) chance of an edge between two communities.
    weights : (R,) share of each; None draws them from Dirichlet(5, ..., 5).

    Examples
    --------
    >>> network, labels = simulate_network(np.array([[0.5, 0.1], [0.1, 0.3]]), 60, seed=1)
    >>> network.shape, bool((network == network.T).all()), len(labels)
    ((60, 60), True, 60)
    """
    generator = np.random.default_rng(seed)
    n_communities = len(densities)
    share = generator.dirichlet(np.full(n_communities, 5.0)) if weights is None else np.asarray(weights)
    labels = generator.choice(n_communities, size=n_nodes, p=share)
    chance = densities[labels][:, labels]
    upper = np.triu(generator.random((n_nodes, n_nodes)) < chance, 1)
    network = (upper | upper.T).astype(float)
    while True:
        n_parts, part = connected_components(csr_array(network), directed=False)
        if n_parts == 1:
            return network, labels
        i, j = (generator.choice(np.flatnonzero(side)) for side in (part == 1, part != 1))
        network[i, j] = network[j, i] = 1.0
