"""What a private fit begins with: noisy sums of sites together, where the rows lie, and a start among weighted points.

Nothing of it is asked of a single site: a mean over sites, without the extremes, is what the center goes by.
"""

from dataclasses import replace
from math import sqrt
from typing import Any, NamedTuple

import numpy as np

from fedgrem.data.stack import Stack
from fedgrem.errors import PausedError
from fedgrem.families.covariance import Identity, Tied
from fedgrem.families.gaussian import Gaussian
from fedgrem.fit.conversation import Ask, Phase, Progress
from fedgrem.fit.private_site import BINS, CELLS, FAR, TASKS, Cells, Frame, PrivateReply
from fedgrem.fit.spec import FitSpec, StartPlan
from fedgrem.fit.tasks import StartRequest, start
from fedgrem.kernels.center import median
from fedgrem.kernels.randomness import generator_for
from fedgrem.kernels.triangle import symmetric
from fedgrem.types import Array, Params, map_arrays

TRIMMED = 0.2
"""Of the sites, by their weight, at either end of what they say: sums over sites are for all, and a few may be bad."""
SURE = 2.0
"""Standard deviations of the noise from which a count is taken for one."""
CLEAR, MOST = 3.0, 0.7
"""The same where many counts are looked at, and the part of the rows that these are to be of."""
LOST = 1.2
"""Of the variance of a column, noise in second moments from which on a start is more often wrong than right."""
ENOUGH = 3.0
"""Times the noise in the number of rows that a cell is to hold."""
NOWHERE = 1e6
"""Deviations from the rows, where a point is that no row is nearest to."""
RESTARTS = 50
"""Of the search for a start among the cells, which costs no budget."""
LEAST_WITHIN = 0.02
"""Of the variance in any direction, that is within components at the least."""


class Circle:
    """The sites of a private fit: who is still here, and what they said."""

    def __init__(self, spec: FitSpec, names: tuple[str, ...]) -> None:
        self.spec, self.here, self.asked = spec, np.ones(len(names), dtype=bool), 0

    def ask(self, task: str, mail: Any) -> Phase[tuple[Array, Array]]:
        """Sums ``(K, m)`` and their noise ``(K,)``; zeros of sites that are lost, which do not come back."""
        stage = "steps" if task == "private_step" else "joint starts"
        self.asked += 1
        total = sum(work.times for work in TASKS.values())
        told = Progress(stage, self.asked, total, float("nan"))
        replies = yield Ask(task, mail, told, to=None if self.here.all() else self.here, optional=True)
        reply: PrivateReply = replies.mail
        self.here = self.here & replies.present
        if not self.here.any():
            raise PausedError("no site is left; resume the fit when they are back, or begin again.")
        kept = self.here[:, None]
        return np.where(kept, reply.noisy, 0.0), np.where(self.here, reply.added, 0.0)

    def ask_all(self, task: str, mail: Any) -> Phase["Pooled"]:
        """The same question to all sites, and the typical answer."""
        count = len(self.here)
        sent = map_arrays(lambda leaf: np.broadcast_to(leaf, (count, *np.shape(leaf))), mail)
        sums, noise = yield from self.ask(task, sent)
        return self.pooled(sums, noise)

    def pooled(self, sums: Array, noise: Array) -> "Pooled":
        """The mean over sites without the extremes; a site that adds more noise than the others counts for less."""
        usual = float(median(noise[self.here]))
        weight = np.where(self.here, 1.0 / (1.0 + np.square(noise / usual)) if usual else noise == 0, 0.0)
        weight = weight / weight.sum()
        order = np.argsort(sums, axis=0)
        ordered = weight[order]
        after = np.cumsum(ordered, axis=0)
        kept = np.clip(np.minimum(after, 1.0 - TRIMMED) - np.maximum(after - ordered, TRIMMED), 0.0, None)
        mean = (kept * np.take_along_axis(sums, order, axis=0)).sum(axis=0) / kept.sum(axis=0)
        return Pooled(mean, float(np.sqrt(np.square(weight * noise).sum())))


class Pooled(NamedTuple):
    """What the sites say together: the mean of their sums."""

    sums: Array
    """(m,)"""
    noise: float
    """The standard deviation of the noise in each."""


# -- where the rows lie


class About(NamedTuple):
    """What is known of the rows together."""

    location: Array
    """(p,) medians."""
    scale: Array
    """(p,)"""
    mean: Array
    """(p,)"""
    covariance: Array
    """(p, p)"""
    n_rows: float
    """Of the typical site."""
    noise: float
    """In that."""
    clear: bool
    """Whether second moments stand out from their noise."""


def describe(spec: FitSpec, circle: Circle) -> Phase[About]:
    """Where every column lies, by counts in parts of its range, and second moments of rows in units of that."""
    assert spec.ranges is not None
    low, high = np.array(spec.ranges).T
    size = len(low)
    pooled = yield from circle.ask_all("private_columns", ())
    lower, location, upper = quartiles(sqrt(size) * pooled.sums.reshape(size, BINS), sqrt(size) * pooled.noise)
    scale = np.maximum((upper - lower) / 1.349, 0.5 / BINS) * (high - low)
    location = low + location * (high - low)
    pooled = yield from circle.ask_all("private_moments", Frame(location, scale))
    count, first, second = np.split(pooled.sums * sqrt(3.0), [1, 1 + size])
    count = np.maximum(count[0], SURE * sqrt(3.0) * pooled.noise + 1.0)
    unit = FAR * sqrt(size)
    mean = unit * first / count
    square = unit * unit * matrix_of(second) / count
    covariance = sound(square - np.outer(mean, mean), 1e-3, 4.0 * size)
    center = np.clip(location + scale * mean, low, high)
    # Noise in a symmetric matrix is as long, in its worst direction, as twice the root of its size.
    lost = sqrt(3.0) * pooled.noise * unit * unit * 2.0 * sqrt(size) / float(count)
    clear, noise = lost < LOST, sqrt(3.0) * pooled.noise
    return About(location, scale, center, covariance * np.outer(scale, scale), float(count), noise, clear)


def quartiles(counts: Array, noise: float) -> Array:
    """(3, p) of columns from noisy counts ``(p, b)`` in equal parts of their range, as parts of that.

    Counts count that are clearly more than noise. Where these are not most of the rows, parts are joined two by two.

    Examples
    --------
    >>> quartiles(np.array([[0.0, 8.0, 8.0, 0.0]]), 1.0).ravel().tolist()
    [0.375, 0.5, 0.625]
    """
    found, n_rows = np.zeros((3, len(counts))), max(float(counts.sum(axis=1).mean()), 1e-9)
    for column, own in enumerate(counts):
        told, joined = own, 1
        while np.where(told > CLEAR * noise * sqrt(joined), told, 0.0).sum() < MOST * n_rows and len(told) > 4:
            told, joined = told.reshape(-1, 2).sum(axis=1), 2 * joined
        told = np.where(told > CLEAR * noise * sqrt(joined), told, 0.0)
        told = told if told.any() else np.ones(len(told))  # where nothing is clear, anything may be
        share = np.concatenate([[0.0], np.cumsum(told)]) / told.sum()
        found[:, column] = np.interp([0.25, 0.5, 0.75], share, np.linspace(0.0, 1.0, len(share)))
    return found


def matrix_of(packed: Array) -> Array:
    """From a lower triangle whose entries off the diagonal were made longer."""
    size = int((sqrt(8 * len(packed) + 1) - 1) / 2)
    i, j = np.tril_indices(size)
    return np.asarray(symmetric(packed / np.where(i == j, 1.0, sqrt(2.0))))


def sound(matrix: Array, least: float, most: float) -> Array:
    """The matrix with its eigenvalues kept between two numbers: noise may have made it no covariance."""
    values, vectors = np.linalg.eigh(0.5 * (matrix + matrix.T))
    return np.asarray((vectors * np.clip(values, least, most)) @ vectors.T)


# -- a start


class First(NamedTuple):
    """A start that all sites have."""

    params: Params
    """(R,), (R, p) in the units of the rows."""
    within: Array
    """(p, p) the covariance of the noise."""


def find_start(spec: FitSpec, circle: Circle, about: About) -> Phase[First]:
    """Rows by cells about points in the directions in which they vary most, and the best mixture of these."""
    known = isinstance(spec.family.covariance, Identity)  # type: ignore[attr-defined]
    size, n_components = len(about.mean), spec.n_components
    unit = np.ones(size) if known else about.scale
    values, vectors = np.linalg.eigh(about.covariance / np.outer(unit, unit))
    some = slice(None, -1 - min(max(n_components - 1, 1), size), -1)
    axes = vectors[:, some] / unit[:, None]
    spread = np.sqrt(np.maximum(values[some], 1.0 if known else 0.05))
    generator = generator_for(spec.seed, "", "private starts")
    m = max(CELLS, 6 * n_components)
    points = spread * generator.normal(size=(m, len(spread)))
    # A cell of fewer rows than noise tells nothing: where rows are few, only some points are near any.
    used = np.arange(m) < max(2 * n_components, int(about.n_rows / (ENOUGH * max(about.noise, 1e-9))))
    points[~used] = NOWHERE * spread
    mass = np.where(used, 1.0, 0.0)
    for left in reversed(range(TASKS["private_cells"].times)):
        drawn = spread * generator.normal(size=(2000, len(spread)))
        nearest = np.sqrt(np.square(drawn[:, None] - points).sum(axis=-1).min(axis=1))
        radius = float(np.quantile(nearest, 0.75))
        pooled = yield from circle.ask_all("private_cells", Cells(about.mean, axes, points, np.asarray(radius)))
        told, noise = pooled.sums.reshape(m, -1) * sqrt(2.0), sqrt(2.0) * pooled.noise
        sure = used & (told[:, 0] > SURE * noise)
        if not sure.any():
            continue  # nothing can be told from noise: points stay where they were drawn
        mass = np.where(sure, told[:, 0], 0.0)
        points[sure] += radius * told[sure, 1:] / mass[sure, None]
        if left:
            empty = np.flatnonzero(used & ~sure)
            beside = generator.choice(m, size=len(empty), p=mass / mass.sum())
            points[empty] = points[beside] + 0.3 * spread * generator.normal(size=(len(empty), len(spread)))
    weights, centers = _mixture_of(spec, points[mass > 0], mass[mass > 0], 0.2 if known else LEAST_WITHIN)
    # What a row's place in these directions says of all columns.
    back = about.covariance @ axes @ np.linalg.inv(axes.T @ about.covariance @ axes)
    theta = within_ranges(spec, about.mean + centers @ back.T)
    if known:
        return First(Params(weights, theta), np.eye(size))
    away = theta - weights @ theta
    root = np.linalg.cholesky(about.covariance)
    inside = np.linalg.solve(root, away.T)
    part = sound(np.eye(size) - (inside * weights) @ inside.T, LEAST_WITHIN, 1.0)
    return First(Params(weights, theta), root @ part @ root.T)


def _mixture_of(spec: FitSpec, points: Array, mass: Array, least: float) -> tuple[Array, Array]:
    """Weights and means of the best mixture for weighted points, by the search that a site makes on its own rows."""
    n_components = spec.n_components
    if len(points) < n_components:
        again = np.resize(np.arange(len(points)), n_components)
        return np.full(n_components, 1.0 / n_components), points[again]
    here = Stack(("",), points[None], None, (mass * len(points) / mass.sum())[None])
    search = replace(spec, family=Gaussian(Tied(), reg_covar=least), start=StartPlan(n_init=RESTARTS))
    found = start(search, here, StartRequest(np.zeros(1, dtype=int), None)).params
    return found.weights[0], found.theta[0]


def within_ranges(spec: FitSpec, theta: Array) -> Array:
    """Means moved to where rows can be."""
    low, high = np.array(spec.ranges).T
    return np.asarray(np.clip(theta, low, high))
