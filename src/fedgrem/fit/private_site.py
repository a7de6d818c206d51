"""A site's part of a private fit: what every row adds to a sum, and the one place where noise is added to it.

Every task says what vector a row is, and :func:`~fedgrem.kernels.privacy.noisy_sum` shortens it to length 1, adds up
and adds noise. What is shortened, and where, is a matter of accuracy only: no order, whoever sends it, can have a row
count for more. The tasks of :data:`TASKS` are the whole conversation.
"""

from collections.abc import Callable, Iterator
from math import sqrt
from typing import Any, NamedTuple

import numpy as np
from scipy.special import softmax

from fedgrem.fit.spec import FitSpec
from fedgrem.kernels.privacy import Draw, noisy_sum, secure_normals
from fedgrem.types import Array, Params

BINS = 32
"""Of a column's range."""
FAR = 1.2
"""Times the root mean square length at which standardized rows are shortened for second moments."""
CELLS = 40
"""About which rows are summed to find a start; more where there are more components."""
MASS, LENGTH, PRODUCT = 1.0, 3.0, 1.0
"""How long the parts of a row's vector in a step are, relative to each other: that it is there, where it is, and the
products of that. Masses are large numbers, and products are summed over all sites: both bear more noise."""
BLOCK = 4096
"""Rows at a time."""


class Frame(NamedTuple):
    """What a site is sent for second moments."""

    location: Array
    """(p,)"""
    scale: Array
    """(p,)"""


class Cells(NamedTuple):
    """What a site is sent to say where its rows are."""

    location: Array
    """(p,)"""
    axes: Array
    """(p, d) onto which rows about the location are projected."""
    points: Array
    """(m, d) in these: a row belongs to the nearest."""
    radius: Array
    """() up to which a row's way from its point is told."""


class Step(NamedTuple):
    """What a site is sent for an EM step."""

    params: Params
    """(R,), (R, p) in the units of the rows."""
    white: Array
    """(p, p) that takes rows into the units of the noise, in which it is the identity."""


class PrivateReply(NamedTuple):
    """What a site answers."""

    noisy: Array
    """(m,) sums of the rows' vectors, with noise in every number."""
    added: Array
    """() the standard deviation of that noise: it depends on the budget, and on no row."""


def column_vectors(spec: FitSpec, rows: Array, sent: tuple[()]) -> Array:
    """In which of 32 parts of its range every cell is, ``(n, p * 32)``."""
    assert spec.ranges is not None
    low, high = np.array(spec.ranges).T
    place = np.clip(np.floor((rows - low) / (high - low) * BINS), 0, BINS - 1)
    hit = place[..., None] == np.arange(BINS)
    return np.asarray(hit.reshape(len(rows), -1) / sqrt(rows.shape[1]))


def moment_vectors(spec: FitSpec, rows: Array, sent: Frame) -> Array:
    """``(1, z, z z')`` of standardized rows, ``(n, 1 + p + p (p + 1) / 2)``."""
    away = (rows - sent.location) / sent.scale
    away = shortened(away / (FAR * sqrt(rows.shape[1])), 1.0)
    return np.concatenate([np.ones((len(rows), 1)), away, lengths_kept(away)], axis=1) / sqrt(3.0)


def cell_vectors(spec: FitSpec, rows: Array, sent: Cells) -> Array:
    """To which point a row belongs, and how it lies to it, ``(n, m (1 + d))``."""
    found = (rows - sent.location) @ sent.axes
    square = np.square(found[:, None] - sent.points).sum(axis=-1)
    nearest = np.argmin(square, axis=1)
    away = shortened((found - sent.points[nearest]) / sent.radius, 1.0)
    vectors = np.zeros((len(rows), len(sent.points), 1 + away.shape[1]))
    vectors[np.arange(len(rows)), nearest] = np.concatenate([np.ones((len(rows), 1)), away], axis=1)
    return vectors.reshape(len(rows), -1) / sqrt(2.0)


def step_vectors(spec: FitSpec, rows: Array, sent: Step) -> Array:
    """Posteriors, and by them how a row lies to its component in units of the noise, ``(n, R (1 + p))``.

    Where the noise is to be estimated, also the products of that, ``(n, p (p + 1) / 2)`` more.
    """
    params, limit = sent.params, clip_of(rows.shape[1])
    away = (rows[:, None] - params.theta) @ sent.white.T
    posterior = softmax(np.log(params.weights) - 0.5 * np.vecdot(away, away), axis=1)
    near = shortened(away, limit)
    mass, length, product = step_parts(spec)
    parts = [mass * posterior, ((length / limit) * posterior[..., None] * near).reshape(len(rows), -1)]
    if product:
        parts.append(product / limit**2 * (posterior[:, None] @ lengths_kept(near))[:, 0])
    return np.concatenate(parts, axis=1)


def step_parts(spec: FitSpec) -> tuple[float, float, float]:
    """By what the parts of a row's vector in a step are multiplied, so that it is no longer than 1."""
    product = PRODUCT * (spec.family.noise_shape(1, 1) is not None)
    whole = sqrt(MASS**2 + LENGTH**2 + product**2)
    return MASS / whole, LENGTH / whole, product / whole


def clip_of(n_columns: int) -> float:
    """Where rows are shortened about their component, in units of the noise: at about the length of the middle one.

    A shorter limit means less noise, and a mean of shortened rows is hardly less accurate than one of whole rows.
    """
    return sqrt(n_columns) + 0.1


def shortened(vectors: Array, limit: float) -> Array:
    """Vectors no longer than ``limit``."""
    length = np.sqrt(np.vecdot(vectors, vectors))[..., None]
    return np.asarray(vectors * (limit / np.maximum(length, limit)))


def lengths_kept(vectors: Array) -> Array:
    """Lower triangles of the products ``v v'``, so weighted that their length is the square of that of v."""
    i, j = np.tril_indices(vectors.shape[-1])
    return np.asarray(vectors[..., i] * vectors[..., j] * np.where(i == j, 1.0, sqrt(2.0)))


class Work(NamedTuple):
    """A task of a private fit."""

    vectors: Callable[[FitSpec, Array, Any], Array]
    times: int
    """How often it is asked."""
    share: float
    """Of the budget, for all of these times."""


TASKS: dict[str, Work] = {
    "private_columns": Work(column_vectors, 1, 0.03),
    "private_moments": Work(moment_vectors, 1, 0.09),
    "private_cells": Work(cell_vectors, 2, 0.14),
    "private_step": Work(step_vectors, 4, 0.74),
}
r"""name -> what is summed, how often, and which part of :math:`\rho` it may spend; the parts add up to 1."""


def answer(
    spec: FitSpec, task: str, rows: Array, sent: Any, mu: float, draw: Draw = secure_normals
) -> PrivateReply:  # fmt: skip
    """One site's answer: its rows ``(n, p)``, what it was sent, and the budget of the whole fit."""
    work = TASKS[task]
    assert spec.ranges is not None
    low, high = np.array(spec.ranges).T

    def blocks() -> Iterator[Array]:
        for first in range(0, max(1, len(rows)), BLOCK):
            yield work.vectors(spec, np.clip(rows[first : first + BLOCK], low, high), sent)

    sums, deviation = noisy_sum(blocks(), mu * sqrt(work.share / work.times), draw)
    return PrivateReply(sums, np.asarray(deviation))
