"""Communities of several networks that cannot be merged."""

from collections.abc import Callable, Mapping
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, ClusterMixin
from sklearn.exceptions import NotFittedError

from fedgrem.data.networks import check_network
from fedgrem.errors import InputError, InputTypeError
from fedgrem.estimators.gaussian import FederatedGaussianMixture
from fedgrem.estimators.parameters import check_bool, check_count, check_number, seed_of
from fedgrem.fit.conversation import Progress, converse
from fedgrem.fit.networks import (
    Networks,
    NetworkSite,
    NetworkSpec,
    NetworkStep,
    fit_networks,
    labels_of,
    network_match,
    step_from,
)
from fedgrem.kernels.randomness import generator_for
from fedgrem.kernels.rotation import align_rotations
from fedgrem.types import Array


class FederatedNetworkMixture(ClusterMixin, BaseEstimator):
    """A stochastic block model of every network, their densities shrunk to a common center.

    Two nodes share an edge with a probability that depends on their communities only; weights are counts. Networks may
    have communities of any sizes, and be denser or sparser as a whole. A network sends sums over its edges between
    communities, never a row of its adjacency; see docs/networks.md.

    Parameters
    ----------
    n_components : int, default=2
        R, the number of communities, the same in every network.
    degree_corrected : bool, default=False
        Whether nodes of one community may differ in how many edges they have, as hubs and others do.
    n_init : int, default=10
        Restarts on each network's spectral embedding.
    max_rounds : int, default=100
    tol : float, default=1e-3
        Relative movement of densities in a round below which the fit has settled.
    random_state : int, RandomState or None, default=None

    Attributes
    ----------
    site_names_ : (K,)
    labels_ : dict, name -> (n,) the community of every node; the same number means the same everywhere
    posterior_ : dict, name -> (n, R)
    weights_ : (K, R) share of each network's nodes in every community
    density_ : (K, R, R) edges per pair of nodes, between communities; of average degree where it is corrected for
    center_ : (R, R) the common densities, at the level of the median network
    level_ : (K,) how dense each network is, relative to the center
    trust_ : (K,) in [0, 1] whether a network is one of the others; at 0 it keeps its own densities
    local_only_ : (K,) which networks clearly lost by being pulled, and got their own fit back
    between_site_variance_ : (R, R) of twice the root of densities
    n_rounds_, converged_, cost_ : how the fit went

    Examples
    --------
    >>> from fedgrem import FederatedNetworkMixture
    >>> from fedgrem.data.simulate import simulate_network
    >>> densities = np.array([[0.5, 0.1], [0.1, 0.3]])
    >>> networks = {name: simulate_network(densities, 60, seed=seed)[0] for seed, name in enumerate(("north", "south"))}
    >>> model = FederatedNetworkMixture(2, random_state=0).fit(networks)
    >>> model.labels_["north"].shape, model.center_.shape
    ((60,), (2, 2))
    """

    def __init__(
        self,
        n_components: int = 2,
        *,
        degree_corrected: bool = False,
        n_init: int = 10,
        max_rounds: int = 100,
        tol: float = 1e-3,
        random_state: Any = None,
    ) -> None:
        self.n_components = n_components
        self.degree_corrected = degree_corrected
        self.n_init = n_init
        self.max_rounds = max_rounds
        self.tol = tol
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None, *, on_progress: Callable[[Progress], None] | None = None) -> Self:
        """Find the communities of all networks; returns ``self``.

        Parameters
        ----------
        X : dict or list of (n, n) arrays or sparse arrays, one per network: symmetric, weights >= 0, no self-loops.
        y : ignored.
        on_progress : called with a :class:`~fedgrem.fit.conversation.Progress` before every exchange.
        """
        for name in ("n_components", "n_init", "max_rounds"):
            check_count(name, getattr(self, name), least=1)
        check_number("tol", self.tol, least=0.0)
        check_bool("degree_corrected", self.degree_corrected)
        counts = int(self.n_init), int(self.max_rounds)
        corrected, seed = bool(self.degree_corrected), seed_of(self.random_state)
        spec = NetworkSpec(int(self.n_components), corrected, *counts, float(self.tol), seed)
        sites = [self._site(name, network) for name, network in named(X).items()]
        engine = Networks(sites, spec)
        found, cost = converse(fit_networks(spec, engine.site_names), engine, on_progress)
        self._spec = spec
        self.site_names_ = np.array(engine.site_names)
        middle = float(np.median(found.level))
        self.center_, self.level_ = found.center * middle, found.level / middle
        self.density_, self.between_site_variance_ = found.density, found.between
        self.weights_ = found.sums.held / found.sums.held.sum(axis=1, keepdims=True)
        self.trust_ = np.average(found.trust, axis=(1, 2), weights=found.sums.pairs)
        self.local_only_ = found.alone
        self.posterior_ = {
            site.name: labels_of(spec, site, NetworkStep(found.density[k], found.order[k]))
            for k, site in enumerate(sites)
        }
        self.labels_ = {name: posterior.argmax(axis=1) for name, posterior in self.posterior_.items()}
        self.n_rounds_, self.converged_, self.cost_ = found.n_rounds, found.converged, cost.as_dict()
        return self

    def fit_predict(self, X: Any, y: Any = None) -> dict[str, Array]:
        """Fit, then ``labels_``."""
        return self.fit(X).labels_

    def predict(self, adjacency: Any) -> Array:
        """Communities ``(n,)`` of the nodes of another network, by the common densities."""
        return np.asarray(self.predict_proba(adjacency).argmax(axis=1))

    def predict_proba(self, adjacency: Any) -> Array:
        """Their posterior probabilities, ``(n, R)``."""
        if not hasattr(self, "center_"):
            raise NotFittedError("this FederatedNetworkMixture is not fitted yet; call fit first.")
        site = self._site("the network", adjacency)
        return labels_of(self._spec, site, step_from(network_match(self._spec, site, self.center_[None]), self.center_))

    def _site(self, name: str, adjacency: Any) -> NetworkSite:
        network = check_network(adjacency, name if name == "the network" else f"network {name!r}")
        if network.shape[0] < 2 * self.n_components:
            raise InputError(
                f"network {name!r} has {network.shape[0]} nodes, expected at least {2 * self.n_components}, two for "
                f"each of {self.n_components} communities; look for fewer, or leave it out."
            )
        return NetworkSite(name, network)


def named(X: Any) -> dict[str, Any]:
    """Networks or embeddings by name; those of a list by number."""
    if isinstance(X, Mapping):
        found = {str(name): one for name, one in X.items()}
    elif isinstance(X, list | tuple):
        found = {str(k): one for k, one in enumerate(X)}
    else:
        raise InputTypeError(f"got a {type(X).__name__}, expected a dict or a list with one array per network.")
    if not found:
        raise InputError("got no network, expected at least one.")
    return found


def align_embeddings(embeddings: Any, n_components: int, *, random_state: int = 0) -> dict[str, Array]:
    """Embeddings of several networks rotated onto each other, for mixtures of Gaussians over all of them.

    A mixture is fitted to each alone, and its component means, R x d numbers, are matched and rotated to those of the
    others (Procrustes).

    Parameters
    ----------
    embeddings : dict or list of (n, d) arrays, as :func:`~fedgrem.data.networks.embed_network` makes them with one d.
    n_components : R, of every mixture.
    """
    rows = {name: np.asarray(one, dtype=float) for name, one in named(embeddings).items()}
    sizes = {one.shape[1:] for one in rows.values()}
    if len(sizes) > 1 or len(next(iter(sizes))) != 1:
        raise InputError(
            f"embeddings have the dimensions {sorted(sizes)}, expected one; give embed_network the same for all."
        )
    alone = FederatedGaussianMixture(
        n_components, covariance_type="full", algorithm="local-em", standard_errors=False, random_state=random_state
    ).fit(rows)
    held = alone.weights_ * alone.n_rows_[:, None]
    _, rotation = align_rotations(alone.means_, held, generator_for(random_state, "", "rotations"))
    return {name: one @ rotation[k] for k, (name, one) in enumerate(rows.items())}
