"""The center moved on along its own path (Anderson acceleration), with all that sits on it."""

from typing import NamedTuple

import numpy as np

from fedgrem.algorithms.base import on_center
from fedgrem.kernels.anderson import Trail, correction, extend, new_trail, went_astray
from fedgrem.types import Array, Params, map_arrays


class Place(NamedTuple):
    """Where a center and its sites are."""

    params: Params
    """(K, ..., R), (K, ..., R, q)"""
    center: Array
    """(..., R, q)"""
    noise: Array | None
    """(..., C, s)"""


class Path(NamedTuple):
    """What an extrapolation goes by."""

    trail: Trail
    """The last centers."""
    plain: Place
    """Where all were before the last extrapolation, to go back to if it was a mistake."""


def begin_path(start: Params, center: Array, noise: Array | None, memory: int) -> Path:
    """A path of no steps yet, which will remember ``memory`` of them."""
    flat = center.reshape(int(np.prod(center.shape[:-2], dtype=int)), -1)
    return Path(new_trail(flat, memory), Place(start, center, noise))


def extrapolate(before: Array, after: Place, path: Path) -> tuple[Place, Path]:
    """Where a round that began with the center ``before`` led, moved on, or taken back if the last time was a mistake.

    Only the center leads: a site that keeps its own answer neither moves nor steers, whatever it sends.
    """
    fits = len(path.trail.length)
    residual = (after.center - before).reshape(fits, -1)
    astray = went_astray(path.trail, residual)
    trail = extend(path.trail, after.center.reshape(fits, -1), residual)
    moved = after.center + correction(trail).reshape(after.center.shape)
    there = on_center(after.params.theta, after.center)
    led = Place(after.params._replace(theta=np.where(there, moved, after.params.theta)), moved, after.noise)
    plain = after
    if astray.any():
        led, plain = (_back(place, path.plain, astray) for place in (led, after))
        trail = Trail(*(np.where(_lined_up(astray, leaf.ndim), 0, leaf) for leaf in trail))
    return led, Path(trail, plain)


def _back(place: Place, earlier: Place, astray: Array) -> Place:
    """The earlier place for the fits (B,) that went astray."""
    fits = astray.reshape(place.center.shape[:-2])

    def of_center(now: Array, then: Array) -> Array:
        return np.where(_lined_up(fits, now.ndim), then, now)

    def of_sites(now: Array, then: Array) -> Array:
        return np.where(_lined_up(fits, now.ndim - 1), then, now)

    return Place(
        map_arrays(of_sites, place.params, earlier.params),
        map_arrays(of_center, place.center, earlier.center),
        map_arrays(of_center, place.noise, earlier.noise),
    )


def _lined_up(fits: Array, ndim: int) -> Array:
    """One entry per fit beside an array of ``ndim`` axes that begin with those of the fits."""
    return fits.reshape(*fits.shape, *(1,) * (ndim - fits.ndim))
