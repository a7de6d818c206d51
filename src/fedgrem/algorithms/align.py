"""central_start: component r means the same thing at every site, and starts are exchanged."""

import hashlib
from collections.abc import Callable

import jax
import numpy as np

from fedgrem.algorithms.start import StartPlan
from fedgrem.families.base import Family
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


def align(family: Family, params: Params, plan: StartPlan, seed: int) -> Params:
    """Relabel the components of every site, ``(K, R), (K, R, q)``, by the plan's alignment, in noise units."""
    theta = np.asarray(family.in_noise_units(params.theta, _common_noise(params)))
    aligners: dict[str, Callable[[NumpyArray], NumpyArray]] = {
        "assignment": lambda t: align_by_assignment(t, generator_for(seed, "align")),
        "stepwise": align_stepwise,
        "exhaustive": align_exhaustive,
    }
    return _relabelled(params, aligners[plan.alignment](theta))


def align_to(family: Family, params: Params, common: Params) -> Params:
    """Relabel every site's components, ``(K, R), (K, R, q)``, to a common start ``(R, q)``."""
    noise = _common_noise(params)
    theta, target = (np.asarray(family.in_noise_units(t, noise)) for t in (params.theta, common.theta))
    return _relabelled(params, np.stack([best_assignment(own, target[None]) for own in theta]))


def _common_noise(params: Params) -> Array | None:
    """One spread ``(1, s)`` for all sites and components, ``(K, C, s)``: labels are not known yet."""
    return None if params.spread is None else jax.device_put(np.median(params.spread, axis=(0, 1))[None])


def _relabelled(params: Params, order: NumpyArray) -> Params:
    def own(leaf: Array) -> Array:
        return jax.device_put(relabel(np.asarray(leaf), order)) if leaf.shape[1] == order.shape[1] else leaf

    # A spread that all components share has no labels.
    relabelled: Params = jax.tree.map(own, params)
    return relabelled


def middle_of(params: Params) -> Params:
    """The coordinate-wise median of aligned starts, ``(R,), (R, q)``."""
    # In NumPy, where nothing is to be compiled.
    middle = jax.tree.map(lambda leaf: np.median(leaf, axis=0), params)
    common: Params = jax.device_put(middle._replace(weights=middle.weights / middle.weights.sum()))
    return common


def candidates(params: Params, common: Params, log_likelihood: Array, n_rows: Array, plan: StartPlan) -> Params:
    """The starts every site should try: its own first, the common one, then the best-fitting donors.

    Returns
    -------
    Params of shape (K, M, R) and (K, M, R, q). A hostile donor costs a site one try: each judges by its own rows.
    """
    n_sites = params.weights.shape[0]
    fit = np.asarray(log_likelihood) / np.asarray(n_rows)
    donors = np.argsort(-fit, kind="stable")[: min(plan.donors, n_sites)]

    def stack(own: Array, shared: Array) -> Array:
        mine, common = np.asarray(own), np.asarray(shared)
        everyone = np.concatenate([common[None], mine[donors]])
        everyone = np.broadcast_to(everyone, (n_sites, *everyone.shape))
        tried: Array = jax.device_put(np.concatenate([mine[:, None], everyone], axis=1))
        return tried

    stacked: Params = jax.tree.map(stack, params, common)
    return stacked
