"""central_start: component r means the same thing at every site, and starts are exchanged."""

import hashlib
from collections.abc import Callable

import jax.numpy as jnp
import numpy as np

from fedgrem.algorithms.start import StartPlan
from fedgrem.kernels.matching import align_by_assignment, align_exhaustive, align_stepwise, best_assignment, relabel
from fedgrem.types import Array, NumpyArray, Params


def derive_key(seed: int, site_name: str, purpose: str) -> NumpyArray:
    """A random key ``(2,)`` from (seed, site name, purpose): the same whatever the engine, the order or the machine.

    Examples
    --------
    >>> derive_key(0, "north", "start").tolist() == derive_key(0, "north", "start").tolist()
    True
    """
    digest = hashlib.sha256(f"{seed}\x1f{site_name}\x1f{purpose}".encode()).digest()
    return np.frombuffer(digest[:8], dtype="<u4").astype(np.uint32)


def generator_for(seed: int, purpose: str) -> np.random.Generator:
    """The center's own random numbers for one purpose."""
    return np.random.default_rng(derive_key(seed, "", purpose).astype(np.uint64))


def align(params: Params, plan: StartPlan, seed: int) -> Params:
    """Relabel the components of every site, ``(K, R), (K, R, q)``, by the plan's alignment."""
    weights, theta = np.asarray(params.weights), np.asarray(params.theta)
    aligners: dict[str, Callable[[NumpyArray], NumpyArray]] = {
        "assignment": lambda t: align_by_assignment(t, generator_for(seed, "align")),
        "stepwise": align_stepwise,
        "exhaustive": align_exhaustive,
    }
    order = aligners[plan.alignment](theta)
    return Params(jnp.asarray(relabel(weights, order)), jnp.asarray(relabel(theta, order)))


def align_to(params: Params, common: Params) -> Params:
    """Relabel every site's components, ``(K, R), (K, R, q)``, to a common start ``(R, q)``."""
    weights, theta = np.asarray(params.weights), np.asarray(params.theta)
    order = np.stack([best_assignment(own, np.asarray(common.theta)[None]) for own in theta])
    return Params(jnp.asarray(relabel(weights, order)), jnp.asarray(relabel(theta, order)))


def middle_of(params: Params) -> Params:
    """The coordinate-wise median of aligned starts, ``(R,), (R, q)``."""
    weights = jnp.median(params.weights, axis=0)
    return Params(weights / weights.sum(), jnp.median(params.theta, axis=0))


def candidates(params: Params, common: Params, log_likelihood: Array, n_rows: Array, plan: StartPlan) -> Params:
    """The starts every site should try: its own first, the common one, then the best-fitting donors.

    Returns
    -------
    Params of shape (K, M, R) and (K, M, R, q). A hostile donor costs a site one try: each judges by its own rows.
    """
    n_sites = params.weights.shape[0]
    donors = np.argsort(-np.asarray(log_likelihood / n_rows), kind="stable")[: min(plan.donors, n_sites)]

    def stack(own: Array, shared: Array) -> Array:
        everyone = jnp.concatenate([shared[None], own[donors]])
        return jnp.concatenate([own[:, None], jnp.broadcast_to(everyone, (n_sites, *everyone.shape))], axis=1)

    return Params(stack(params.weights, common.weights), stack(params.theta, common.theta))
