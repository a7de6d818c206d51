r"""Standard errors: what the sites' information says of every parameter once components that are common are one.

A component that sits exactly on the center has the center's parameters; all others, and all weights, are a site's own.
With :math:`E_k` a site's information about what it shares when what is its own is not known, the center solves
:math:`\sum_k a_k s_k(c) + \text{pulls} = 0` in the sites' scores, so that

.. math:: V = A^{-1} B A^{-\top}, \quad A = \sum_k a_k E_k + \dots, \quad B = \sum_k a_k E_k a_k' + \dots,

where :math:`a_k` is the say that the algorithm's :class:`~fedgrem.types.Influence` gives a site. Sites that keep their
own component pull on the center with a strength that the threshold bounds; their pulls count as noise, as large as they
are.
"""

from typing import NamedTuple

import numpy as np

from fedgrem.algorithms.base import vanished
from fedgrem.algorithms.holders import FEWEST
from fedgrem.families.base import LEAST_SHARE, Family
from fedgrem.fit.conversation import Ask, Phase, Progress
from fedgrem.fit.spec import FitSpec
from fedgrem.fit.tasks import Information
from fedgrem.kernels.center import row_norm
from fedgrem.kernels.triangle import symmetric
from fedgrem.types import Array, Central, Influence

MOST_TOLD = 4.0
"""A row of one site tells of a common parameter at most this many times what one of the median site tells."""
LEAST_KNOWN = 1e-8
"""Relative to what is known of parameters one by one: directions known less well than this count as not known."""
MOST_INFLATION = 1e4
"""A variance beyond this many times that of a parameter with all others known is no number to report."""


class Uncertainty(NamedTuple):
    """Covariances of a fit; NaN where nothing can be said."""

    weights_variance: Array
    """(K, R)"""
    theta_covariance: Array
    """(K, R, q, q) of the parameters of each component."""
    center_covariance: Array
    """(R, q, q)"""


def standard_errors(
    spec: FitSpec, central: Central, influence: Influence, held: Array | None = None
) -> Phase[Uncertainty]:
    """One exchange at the end of a fit; ``held`` (K, R) where sites have different components."""
    told = Progress("standard errors", spec.max_rounds, spec.max_rounds, float("nan"))
    replies = yield Ask("information", central.params, told, optional=True)
    answer: Information = replies.mail
    traits = spec.algorithm.traits
    if traits.pools_rows:
        return _of_pooled_rows(central, answer.packed)
    shares = traits.sharing != "none" or len(central.n_rows) == 1
    common = None if held is None else held.sum(axis=0) >= FEWEST
    return uncertainty(spec.family, central, influence, answer.packed, shares=shares, common=common)


def uncertainty(
    family: Family,
    central: Central,
    influence: Influence,
    packed: Array,
    *,
    shares: bool = True,
    common: Array | None = None,
) -> Uncertainty:
    """Standard errors from what the sites answered, lower triangles ``(K, d (d + 1) / 2)``.

    Without ``shares`` no component is common: the center is then the median of the sites, and whom it hits does not
    share it.
    """
    _, n_components, size = central.params.theta.shape
    gone = vanished(central.params.weights, central.n_rows)
    shared = (central.params.theta == central.center).all(axis=-1) & ~gone
    if not shares:
        shared[:] = False
    if common is not None:  # (R,) which components have a center
        shared &= common
    information = symmetric(packed)
    parts = zip(information, central.params.weights, central.n_rows, gone, strict=True)
    sites = [_Site(matrix, w, float(n), g) for matrix, w, n, g in parts]
    center = _center_covariance(family, central, influence, sites, shared)
    priors = _priors(family, central, influence, shared)
    found = [site.covariances(own, center, p) for site, own, p in zip(sites, ~shared, priors, strict=True)]
    return Uncertainty(
        np.stack([variance for variance, _ in found]),
        np.stack([theta for _, theta in found]),
        np.stack([center[_block(r, size), _block(r, size)] for r in range(n_components)]),
    )


def _of_pooled_rows(central: Central, packed: Array) -> Uncertainty:
    """All sites have the one answer of all rows, and its standard errors."""
    n_sites, n_components, _ = central.params.theta.shape
    total, weights = float(np.sum(central.n_rows)), central.params.weights[0]
    whole = _Site(symmetric(packed[0]), weights, total, weights * total < 1.0)
    nothing = np.zeros((n_components, whole.n_parameters, whole.n_parameters))
    variance, theta = whole.covariances(np.ones(n_components, dtype=bool), np.zeros((0, 0)), nothing)
    return Uncertainty(np.tile(variance, (n_sites, 1)), np.broadcast_to(theta, (n_sites, *theta.shape)).copy(), theta)


def _block(component: int, size: int) -> slice:
    return slice(component * size, (component + 1) * size)


class _Site:
    """What one site says: the information in its log weights and its components, those that vanished left out."""

    def __init__(self, information: Array, weights: Array, n_rows: float, gone: Array) -> None:
        self.weights, self.n_rows, self.alive = weights, n_rows, ~gone
        self.n_parameters = len(information) // len(weights) - 1
        finite = np.all(np.isfinite(information)) and np.any(np.diagonal(information) > 0)
        self.usable = bool(
            finite and n_rows > 0 and self.alive.any()
        )  # of two rows, each component may hold half of one
        information = information.copy()
        if self.usable:
            # Log weights are known up to a constant, which no weight depends on: any value of it will do.
            free = np.flatnonzero(self.alive)
            information[np.ix_(free, free)] += n_rows / len(weights)
            kept = self._place(self.alive, weights=True)
            information[np.ix_(kept, kept)] = _sound(information[np.ix_(kept, kept)])
        self.information = information
        self._inverse: Array | None = None

    def _place(self, components: Array, *, weights: bool) -> Array:
        """Where these components are, those that are gone left out, after the log weights if they are wanted."""
        size = self.n_parameters
        chosen = np.flatnonzero(components & self.alive)
        theta = len(self.weights) + (chosen[:, None] * size + np.arange(size)).ravel()
        return np.concatenate([np.flatnonzero(self.alive), theta]) if weights else theta

    def told(self, shared: Array, limit: Array) -> tuple[Array, Array]:
        """The information about shared components when what is the site's own is not known, and their places.

        ``limit`` (R, q) bounds what a row of a component may say of each parameter, whatever the site sent.
        """
        kept, common = self._place(self.alive, weights=True), self._place(shared, weights=False)
        if self._inverse is None:
            largest = np.full(len(self.information), np.inf)
            largest[len(self.weights) :] = (limit * (self.n_rows * self.weights)[:, None]).ravel()
            said = np.diagonal(self.information)
            cut = np.sqrt(np.where(said > largest, largest / np.where(said > 0, said, 1.0), 1.0))
            matrix = (self.information * cut[:, None] * cut)[np.ix_(kept, kept)]
            self._inverse = _solve(matrix, np.eye(len(kept)))
        place = np.searchsorted(kept, common)
        known = self._inverse[np.ix_(place, place)]
        return _solve(known, np.eye(len(place))), common - len(self.weights)

    def covariances(self, own: Array, center: Array, prior: Array) -> tuple[Array, Array]:
        """Variances of the weights ``(R,)`` and covariances of every component ``(R, q, q)``.

        ``prior`` (R, q, q) is what the other sites say of a component by being as alike as they are.
        """
        n_components, size = len(self.weights), self.n_parameters
        variance = np.full(n_components, np.nan)
        theta = np.full((n_components, size, size), np.nan)
        for r in np.flatnonzero(~own).tolist():
            theta[r] = center[_block(r, size), _block(r, size)]
        if not self.usable:
            return variance, theta
        mine, common = self._place(own, weights=True), self._place(~own, weights=False)
        matrix = self.information[np.ix_(mine, mine)]
        weighed = np.zeros_like(matrix)
        chosen = np.flatnonzero(own & self.alive)
        for place, r in enumerate(chosen.tolist()):
            here = slice(len(matrix) + (place - len(chosen)) * size, len(matrix) + (place + 1 - len(chosen)) * size)
            weighed[here, here] = prior[r]
        covariance = _solve(matrix + weighed, np.eye(len(matrix)))
        if weighed.any():
            # The prior is about the center, which is an estimate too.
            first = len(matrix) - len(chosen) * size
            about = np.zeros_like(matrix)
            places = (chosen[:, None] * size + np.arange(size)).ravel()
            about[first:, first:] = np.nan_to_num(center[np.ix_(places, places)])
            led = covariance @ weighed
            covariance = covariance + led @ about @ led.T
        if len(common):
            carried = covariance @ self.information[np.ix_(mine, common)]
            known = center[np.ix_(common - n_components, common - n_components)]
            covariance = covariance + carried @ known @ carried.T
        unknown = ~(np.diagonal(covariance) * np.diagonal(matrix) <= MOST_INFLATION)
        covariance[unknown] = covariance[:, unknown] = np.nan
        alive = np.flatnonzero(self.alive)
        w = self.weights[alive]
        slope = np.diag(w) - np.outer(w, w)
        variance[alive] = np.vecdot(slope @ covariance[: len(alive), : len(alive)], slope)
        for place, r in enumerate(np.flatnonzero(own & self.alive).tolist()):
            here = slice(len(alive) + place * size, len(alive) + (place + 1) * size)
            theta[r] = covariance[here, here]
        return variance, theta


def _sound(matrix: Array) -> Array:
    """The nearest symmetric matrix that knows a little of every direction, in the scale of its diagonal."""
    diagonal = np.diagonal(matrix)
    scale = np.sqrt(np.where(diagonal > 0, diagonal, max(1e-12 * float(diagonal.max()), 1e-300)))
    scaled = 0.5 * (matrix + matrix.T) / scale[:, None] / scale
    try:
        np.linalg.cholesky(scaled - LEAST_KNOWN * np.eye(len(scaled)))
        return matrix
    except np.linalg.LinAlgError:
        values, axes = np.linalg.eigh(scaled)
        # Relative to the largest too: beside a huge one, as lies may have it, so small a number is lost in rounding.
        whole = (axes * np.maximum(values, LEAST_KNOWN * max(1.0, float(values[-1])))) @ axes.T
        return np.asarray(whole * scale[:, None] * scale)


def _solve(matrix: Array, right: Array) -> Array:
    """As NumPy does, but in the scale of the diagonal: parameters may differ in theirs by many orders."""
    scale = np.sqrt(np.diagonal(matrix))[:, None]
    return np.asarray(np.linalg.solve(matrix / scale / scale.T, right / scale) / scale)


def _center_covariance(
    family: Family, central: Central, influence: Influence, sites: list[_Site], shared: Array
) -> Array:
    """Of all parameters of the center, ``(R q, R q)``; NaN where no site sits on it and none pulls."""
    n_sites, n_components, size = central.params.theta.shape
    slope, noise = (np.zeros((n_components * size,) * 2) for _ in range(2))
    say = _say(family, central, influence)
    told = np.full((n_sites, n_components, size), np.nan)
    for k, site in enumerate(sites):
        if site.usable:
            held = site.n_rows * np.where(site.alive, site.weights, np.nan)
            told[k] = np.diagonal(site.information)[n_components:].reshape(n_components, size) / held[:, None]
    limits = MOST_TOLD * _median(told)
    for k, site in enumerate(sites):
        if not site.usable or not shared[k].any():
            continue
        left, place = site.told(shared[k], limits)
        voice = np.zeros((len(place), len(place)))
        for i, r in enumerate(np.flatnonzero(shared[k])):
            voice[_block(i, size), _block(i, size)] = say[k, r]
        heard = voice @ left
        slope[np.ix_(place, place)] += heard
        noise[np.ix_(place, place)] += heard @ voice.T
    pulls = _pulls(family, central, influence, shared)
    number = np.bincount([pull.component for pull in pulls], minlength=n_components)
    # Sites scatter less about the center they found than about the one they come from.
    scatter = number / np.maximum(number - 1.0, 1.0) if influence.between is not None else np.ones(n_components)
    for pull in pulls:
        k, here = pull.site, _block(pull.component, size)
        noise[here, here] += scatter[pull.component] * np.outer(pull.push, pull.push)
        if sites[k].usable:
            left, _ = sites[k].told(np.arange(n_components) == pull.component, limits)
            own = say[k, pull.component] @ left
            # What follows the center when it moves: all of a site next to it, nothing of one far away. A site of few
            # rows may know nothing of the direction in which it is pulled.
            slope[here, here] += pull.turn @ np.linalg.pinv(own + pull.turn, rcond=1e-12) @ own
    return _sandwich(slope, noise)


def _median(told: Array) -> Array:
    """Over the sites that say something, infinity where none does."""
    some = np.isfinite(told).any(axis=0)
    return np.where(some, np.nanmedian(np.where(some, told, 0.0), axis=0), np.inf)


def _priors(family: Family, central: Central, influence: Influence, shared: Array) -> Array:
    """(K, R, q, q) information in the between-site variance, by which a site is pulled; zeros where thresholds pull."""
    n_components, size = central.center.shape
    found = np.zeros((*shared.shape, size, size))
    if influence.between is None:
        return found
    back = np.linalg.inv(_noise_root(family, central.noise, (n_components, size), size))
    metric = np.swapaxes(back, -1, -2) @ back
    distance = row_norm((back @ (central.params.theta - central.center)[..., None])[..., 0])
    free = ~shared & (distance > 0)
    strength = np.divide(influence.weight * influence.threshold, distance, out=np.zeros_like(distance), where=free)
    return np.asarray(np.nan_to_num(strength, posinf=0.0)[..., None, None] * metric)


def _sandwich(slope: Array, noise: Array) -> Array:
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


def _say(family: Family, central: Central, influence: Influence) -> Array:
    """By what a site's scores are multiplied at the center, ``(K, R, q, q)``.

    A site's estimate moves by its score over the rows its component holds, in the metric of its noise, and counts for
    the weight that the center gives it.
    """
    _, n_components, size = central.params.theta.shape
    root = _noise_root(family, central.params.noise, central.params.theta.shape, size)
    rows = central.n_rows[:, None] * np.maximum(central.params.weights, LEAST_SHARE / n_components)
    weight = np.where(influence.weight > 0, influence.weight, 0.0) / np.maximum(rows, 1e-12)
    return np.asarray(root @ np.swapaxes(root, -1, -2) * weight[..., None, None])


def _noise_root(family: Family, noise: Array | None, shape: tuple[int, ...], size: int) -> Array:
    """A square root of the noise of every component, ``(..., R, q, q)``."""
    if noise is None:
        return np.broadcast_to(np.eye(size), (*shape[:-1], size, size))
    axes = [np.broadcast_to(axis, shape) for axis in np.eye(size)]
    return np.stack([family.from_noise(axis, noise) for axis in axes], axis=-1)


class _Pull(NamedTuple):
    """What a site that keeps its own component does to the center."""

    site: int
    component: int
    push: Array
    """(q,) as hard as the penalty lets it."""
    turn: Array
    """(q, q) how that changes with the place of the component."""


def _pulls(family: Family, central: Central, influence: Influence, shared: Array) -> list[_Pull]:
    n_components, size = central.center.shape
    root = _noise_root(family, central.noise, (n_components, size), size)
    back = np.linalg.inv(root)
    away = central.params.theta - central.center
    strength = np.zeros_like(influence.weight)
    np.multiply(influence.weight, influence.threshold, out=strength, where=influence.weight > 0)
    gone = vanished(central.params.weights, central.n_rows)
    found = []
    for k, r in zip(*(index.tolist() for index in np.nonzero(~shared & ~gone)), strict=True):
        white = back[r] @ away[k, r]
        distance = float(np.linalg.norm(white))
        pull = float(strength[k, r])
        if distance > 0 and np.isfinite(distance) and 0 < pull < np.inf:
            along = white / distance
            # A pull that a threshold bounds can turn, and not grow; a part of the distance does both.
            free = np.eye(size) if influence.between is not None else np.eye(size) - np.outer(along, along)
            turn = pull / distance * (root[r] @ free @ back[r])
            found.append(_Pull(k, r, pull * root[r] @ along, turn))
    return found
