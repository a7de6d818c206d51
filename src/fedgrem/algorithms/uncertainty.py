r"""Standard errors: what the sites' information says of every parameter once components that are common are one.

A component that sits exactly on the center has the center's parameters; all others, and all weights, are a site's own.
With :math:`E_k` a site's information about what it shares when what is its own is not known, the center solves
:math:`\sum_k a_k s_k(c) + \text{pulls} = 0` in the sites' scores, so that

.. math:: V = A^{-1} B A^{-\top}, \quad A = \sum_k a_k E_k + \dots, \quad B = \sum_k a_k E_k a_k' + \dots,

where :math:`a_k` is the say that the algorithm gives a site: FedGrEM and FedEM give the same one to a site that holds
many rows of a component and to one that holds few. Sites that keep their own component pull on the center with a
strength that the penalty bounds; their pulls count as noise, as large as they are.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedgrem.algorithms.base import Algorithm, Engine, capped_rows, vanished
from fedgrem.algorithms.fedem import FedEM
from fedgrem.algorithms.fedgrem import FedGrEM
from fedgrem.algorithms.information import Information, unpack
from fedgrem.algorithms.local import Alone
from fedgrem.algorithms.pooled import InOnePot
from fedgrem.families.base import LEAST_SHARE, Family
from fedgrem.kernels.center import trust
from fedgrem.types import Array, Central, NumpyArray

MOST_TOLD = 4.0
"""A row of one site tells of a common parameter at most this many times what one of the median site tells."""
LEAST_KNOWN = 1e-8
"""Relative to what is known of parameters one by one: directions known less well than this count as not known."""
MOST_INFLATION = 1e4
"""A variance beyond this many times that of a parameter with all others known is no number to report."""


class Uncertainty(NamedTuple):
    """Covariances of a fit; NaN where nothing can be said."""

    weights_variance: NumpyArray
    """(K, R)"""
    theta_covariance: NumpyArray
    """(K, R, q, q) of the parameters of each component."""
    center_covariance: NumpyArray
    """(R, q, q)"""


def ask_uncertainty(algorithm: Algorithm, engine: Engine, central: Central) -> tuple[Uncertainty, int]:
    """One exchange at the end of a fit: its standard errors, and how many numbers were sent."""
    sent = central.params
    told: Information = engine.ask("local_information", sent)
    numbers = sum(np.size(leaf) for leaf in (*sent, told.packed, *told.params) if leaf is not None)
    return uncertainty(algorithm, central, np.asarray(told.packed, dtype=float)), int(numbers)


def uncertainty(algorithm: Algorithm, central: Central, packed: NumpyArray) -> Uncertainty:
    """Standard errors from what the sites answered, lower triangles ``(K, d (d + 1) / 2)``."""
    if isinstance(algorithm, InOnePot):
        return _of_one_pot(algorithm, central, packed)
    n_sites, n_components, n_parameters = central.params.theta.shape
    weights, n_rows = np.asarray(central.params.weights, dtype=float), np.asarray(central.n_rows, dtype=float)
    gone = np.asarray(vanished(central.params.weights, central.n_rows))
    shared = (np.asarray(central.params.theta) == np.asarray(central.center)).all(axis=-1) & ~gone
    if isinstance(algorithm, Alone) and n_sites > 1:  # the median of the sites: whom it hits does not share it
        shared[:] = False
    information = unpack(packed, n_components * (1 + n_parameters))
    sites = [_Site(matrix, w, n, g) for matrix, w, n, g in zip(information, weights, n_rows, gone, strict=True)]
    center = _center_covariance(algorithm, central, sites, shared)
    found = [site.covariances(own, center) for site, own in zip(sites, ~shared, strict=True)]
    return Uncertainty(
        np.stack([variance for variance, _ in found]),
        np.stack([theta for _, theta in found]),
        np.stack([center[_block(r, n_parameters), _block(r, n_parameters)] for r in range(n_components)]),
    )


def _of_one_pot(algorithm: Algorithm, central: Central, packed: NumpyArray) -> Uncertainty:
    """All sites have the one answer of all rows, and its standard errors."""
    n_sites, n_components, n_parameters = central.params.theta.shape
    information = unpack(packed[0], n_components * (1 + n_parameters))
    total = float(np.sum(central.n_rows))
    weights = np.asarray(central.params.weights[0], dtype=float)
    pot = _Site(information, weights, total, weights * total < 1.0)
    variance, theta = pot.covariances(np.ones(n_components, dtype=bool), np.zeros((0, 0)))
    repeated = (n_sites, *theta.shape)
    return Uncertainty(np.tile(variance, (n_sites, 1)), np.broadcast_to(theta, repeated).copy(), theta)


def _block(component: int, size: int) -> slice:
    return slice(component * size, (component + 1) * size)


class _Site:
    """What one site says: the information in its log weights and its components, those that vanished left out."""

    def __init__(self, information: NumpyArray, weights: NumpyArray, n_rows: float, gone: NumpyArray) -> None:
        self.weights, self.n_rows, self.alive = weights, n_rows, ~gone
        self.n_parameters = len(information) // len(weights) - 1
        self.usable = bool(np.all(np.isfinite(information)) and np.any(np.diagonal(information) > 0) and n_rows > 0)
        information = information.copy()
        if self.usable:
            # Log weights are known up to a constant, which no weight depends on: any value of it will do.
            free = np.flatnonzero(self.alive)
            information[np.ix_(free, free)] += n_rows / len(weights)
            kept = self._place(self.alive, weights=True)
            information[np.ix_(kept, kept)] = _sound(information[np.ix_(kept, kept)])
        self.information = information

    def _place(self, components: NumpyArray, *, weights: bool) -> NumpyArray:
        """Where these components are, those that are gone left out, after the log weights if they are wanted."""
        size = self.n_parameters
        chosen = np.flatnonzero(components & self.alive)
        theta = len(self.weights) + (chosen[:, None] * size + np.arange(size)).ravel()
        return np.concatenate([np.flatnonzero(self.alive), theta]) if weights else theta

    def told(self, shared: NumpyArray, limit: NumpyArray) -> tuple[NumpyArray, NumpyArray]:
        """The information about shared components when what is the site's own is not known, and their places.

        ``limit`` (R, q) bounds what a row of a component may say of each parameter, whatever the site sent.
        """
        own, common = self._place(~shared, weights=True), self._place(shared, weights=False)
        largest = np.full(len(self.information), np.inf)
        largest[len(self.weights) :] = (limit * (self.n_rows * self.weights)[:, None]).ravel()
        said = np.diagonal(self.information)
        cut = np.sqrt(np.where(said > largest, largest / np.where(said > 0, said, 1.0), 1.0))
        matrix = self.information * cut[:, None] * cut
        explained = _solve(matrix[np.ix_(own, own)], matrix[np.ix_(own, common)])
        left = matrix[np.ix_(common, common)] - matrix[np.ix_(common, own)] @ explained
        return left, common - len(self.weights)

    def covariances(self, own: NumpyArray, center: NumpyArray) -> tuple[NumpyArray, NumpyArray]:
        """Variances of the weights ``(R,)`` and covariances of every component ``(R, q, q)``."""
        n_components, size = len(self.weights), self.n_parameters
        variance = np.full(n_components, np.nan)
        theta = np.full((n_components, size, size), np.nan)
        for r in np.flatnonzero(~own).tolist():
            theta[r] = center[_block(r, size), _block(r, size)]
        if not self.usable:
            return variance, theta
        mine, common = self._place(own, weights=True), self._place(~own, weights=False)
        matrix = self.information[np.ix_(mine, mine)]
        covariance = _solve(matrix, np.eye(len(matrix)))
        if len(common):
            carried = covariance @ self.information[np.ix_(mine, common)]
            known = center[np.ix_(common - n_components, common - n_components)]
            covariance = covariance + carried @ known @ carried.T
        unknown = ~(np.diagonal(covariance) * np.diagonal(matrix) <= MOST_INFLATION)
        covariance[unknown] = covariance[:, unknown] = np.nan
        alive = np.flatnonzero(self.alive)
        w = self.weights[alive]
        slope = np.diag(w) - np.outer(w, w)
        variance[alive] = np.einsum("ab,bc,ac->a", slope, covariance[: len(alive), : len(alive)], slope)
        for place, r in enumerate(np.flatnonzero(own & self.alive).tolist()):
            here = slice(len(alive) + place * size, len(alive) + (place + 1) * size)
            theta[r] = covariance[here, here]
        return variance, theta


def _sound(matrix: NumpyArray) -> NumpyArray:
    """The nearest symmetric matrix that knows a little of every direction, in the scale of its diagonal."""
    diagonal = np.diagonal(matrix)
    scale = np.sqrt(np.where(diagonal > 0, diagonal, max(1e-12 * float(diagonal.max()), 1e-300)))
    values, axes = np.linalg.eigh(0.5 * (matrix + matrix.T) / scale[:, None] / scale)
    if values[0] >= LEAST_KNOWN:
        return matrix
    whole = (axes * np.maximum(values, LEAST_KNOWN)) @ axes.T
    return np.asarray(whole * scale[:, None] * scale)


def _solve(matrix: NumpyArray, right: NumpyArray) -> NumpyArray:
    """As NumPy does, but in the scale of the diagonal: parameters may differ in theirs by many orders."""
    scale = np.sqrt(np.diagonal(matrix))[:, None]
    return np.asarray(np.linalg.solve(matrix / scale / scale.T, right / scale) / scale)


def _center_covariance(algorithm: Algorithm, central: Central, sites: list[_Site], shared: NumpyArray) -> NumpyArray:
    """Of all parameters of the center, ``(R q, R q)``; NaN where no site sits on it and none pulls."""
    n_sites, n_components, size = central.params.theta.shape
    slope, noise = (np.zeros((n_components * size,) * 2) for _ in range(2))
    say = _say(algorithm, central)
    counted = np.asarray(capped_rows(central.n_rows), dtype=float)
    told = np.full((n_sites, n_components, size), np.nan)
    for k, site in enumerate(sites):
        if site.usable:
            held = site.n_rows * np.where(site.alive, site.weights, np.nan)
            told[k] = np.diagonal(site.information)[n_components:].reshape(n_components, size) / held[:, None]
    limits = MOST_TOLD * _median(told)
    for k, site in enumerate(sites):
        if not site.usable or not shared[k].any():
            continue
        # A site that counts for less than its rows at the center tells for less, too.
        part = counted[k] / site.n_rows
        left, place = site.told(shared[k], limits)
        voice = np.zeros((len(place), len(place)))
        for i, r in enumerate(np.flatnonzero(shared[k])):
            voice[_block(i, size), _block(i, size)] = say[k, r]
        slope[np.ix_(place, place)] += part * voice @ left
        noise[np.ix_(place, place)] += part * voice @ left @ voice.T
    if isinstance(algorithm, FedGrEM):
        for pull in _pulls(algorithm, central, shared, counted):
            k, here = pull.site, _block(pull.component, size)
            noise[here, here] += np.outer(pull.push, pull.push)
            if sites[k].usable:
                left, _ = sites[k].told(np.arange(n_components) == pull.component, limits)
                own = counted[k] / sites[k].n_rows * say[k, pull.component] @ left
                # What follows the center when it moves: all of a site next to it, nothing of one far away.
                slope[here, here] += pull.turn @ np.linalg.solve(own + pull.turn, own)
    return _sandwich(slope, noise)


def _median(told: NumpyArray) -> NumpyArray:
    """Over the sites that say something, infinity where none does."""
    some = np.isfinite(told).any(axis=0)
    return np.where(some, np.nanmedian(np.where(some, told, 0.0), axis=0), np.inf)


def _sandwich(slope: NumpyArray, noise: NumpyArray) -> NumpyArray:
    covariance = np.full(slope.shape, np.nan)
    known = np.diagonal(slope) > 0
    if known.any():
        try:
            half = np.linalg.solve(slope[np.ix_(known, known)], noise[np.ix_(known, known)])
            covariance[np.ix_(known, known)] = np.linalg.solve(slope[np.ix_(known, known)], half.T)
        except np.linalg.LinAlgError:
            return covariance
    unknown = ~(np.diagonal(covariance) >= 0)
    covariance[unknown] = covariance[:, unknown] = np.nan
    return covariance


def _say(algorithm: Algorithm, central: Central) -> NumpyArray:
    """By what a site's scores are multiplied at the center, ``(K, R, q, q)``.

    A gradient step of ``1 / weight`` in the metric of the noise, or an exact M-step, which is the same near the answer;
    algorithms that add up sums over rows take the scores as they are.
    """
    n_sites, n_components, size = central.params.theta.shape
    identity = np.broadcast_to(np.eye(size), (n_sites, n_components, size, size))
    if not isinstance(algorithm, FedGrEM | FedEM):
        return identity
    root = _noise_root(algorithm.family, central.params.spread, (n_sites, n_components), size)
    share = np.asarray(central.params.weights, dtype=float)
    weight = np.ones_like(share)
    if isinstance(algorithm, FedGrEM):
        share = np.maximum(share, LEAST_SHARE / n_components)
        weight = np.asarray(algorithm.share(central.params.weights), dtype=float)
    return np.asarray(root @ np.swapaxes(root, -1, -2) * (weight / np.maximum(share, 1e-12))[..., None, None])


def _noise_root(family: Family, spread: Array | None, shape: tuple[int, ...], size: int) -> NumpyArray:
    """A square root of the noise of every component, ``(..., R, q, q)``."""
    if spread is None:
        return np.broadcast_to(np.eye(size), (*shape, size, size))
    return np.asarray(_root_of(family, spread, shape, size), dtype=float)


@partial(jax.jit, static_argnames=("family", "shape", "size"))
def _root_of(family: Family, spread: Array, shape: tuple[int, ...], size: int) -> Array:
    axes = jnp.broadcast_to(jnp.eye(size, dtype=spread.dtype)[:, None], (size, shape[-1], size))

    def of_one(spread: Array) -> Array:
        return jax.vmap(family.from_noise_units, in_axes=(0, None), out_axes=-1)(axes, spread)

    return of_one(spread) if len(shape) == 1 else jax.vmap(of_one)(spread)


class _Pull(NamedTuple):
    """What a site that keeps its own component does to the center."""

    site: int
    component: int
    push: NumpyArray
    """(q,) as hard as the penalty lets it."""
    turn: NumpyArray
    """(q, q) how that changes with the place of the component: it can turn, and not grow."""


def _pulls(algorithm: FedGrEM, central: Central, shared: NumpyArray, counted: NumpyArray) -> list[_Pull]:
    n_components, size = central.center.shape
    root = _noise_root(algorithm.family, central.spread, (n_components,), size)
    back = np.linalg.inv(root)
    away = np.asarray(central.params.theta, dtype=float) - np.asarray(central.center, dtype=float)
    step = 1.0 if algorithm.penalty_scaling == "step" else float(algorithm.step_size)
    held = np.asarray(algorithm.share(central.params.weights) * central.n_rows[:, None], dtype=float)
    threshold = np.asarray(central.penalty, dtype=float) / np.sqrt(held) / step
    weight = counted[:, None] * held / np.asarray(central.n_rows)[:, None]
    weight = weight * np.asarray(central.extra.pulled)[:, None] * _trust(algorithm, central, held, threshold)
    strength = np.multiply(weight, threshold, out=np.zeros_like(weight), where=weight > 0)
    gone = np.asarray(vanished(central.params.weights, central.n_rows))
    found = []
    for k, r in zip(*(index.tolist() for index in np.nonzero(~shared & ~gone)), strict=True):
        white = back[r] @ away[k, r]
        distance = float(np.linalg.norm(white))
        pull = float(strength[k, r])
        if distance > 0 and np.isfinite(distance) and 0 < pull < np.inf:
            along = white / distance
            across = np.eye(size) - np.outer(along, along)
            turn = pull / distance * (root[r] @ across @ back[r])
            found.append(_Pull(k, r, pull * root[r] @ along, turn))
    return found


def _trust(algorithm: FedGrEM, central: Central, held: NumpyArray, threshold: NumpyArray) -> NumpyArray:
    """What far sites count for, ``(K, R)``, by where they were before the center pulled them."""
    if algorithm.center_solver != "redescending":
        return np.ones(threshold.shape)
    away = np.asarray(algorithm.family.in_noise_units(central.params.theta - central.center, central.spread))
    distance = np.linalg.norm(away, axis=-1)
    back = np.divide(threshold, distance, out=np.zeros_like(threshold), where=distance > 0)
    before = (1.0 + back)[..., None] * away
    return np.asarray(trust(before, held, np.zeros_like(before[0])), dtype=float)
