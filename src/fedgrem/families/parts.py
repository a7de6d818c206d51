r"""What the columns of one type contribute to a component of a table: side by side, they are the whole.

Given the component, columns of different types are independent, so that log densities, features and sums of a row are
those of its parts one after the other. A cell that is missing contributes zeros: every column has a feature of its own
that says whether the cell is there.

Parameters are held in coordinates in which an estimate from n rows has an error of about :math:`1/\sqrt n`: distances,
pulls and penalties then mean the same in every type of column.
"""

from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

import numpy as np
from scipy.special import gammaln

from fedgrem.types import Array

LEAST_CHANCE = 1e-9
"""Of a level in a component that has no row of it."""
LEAST_ROOT = 1e-3
"""Twice the root of a rate, at the least."""


class Part(Protocol):
    """Columns of one type. Rows ``(c, n, p)`` hold a number in every cell, also where ``seen`` says that none is."""

    @property
    def columns(self) -> tuple[int, ...]:
        """Places of its columns in a row."""
        ...

    @property
    def n_parameters(self) -> int:
        """Coordinates of a component."""
        ...

    def features(self, rows: Array, seen: Array) -> Array:
        """(c, n, t) of every row, zeros for a cell that is missing."""
        ...

    def constant(self, rows: Array, seen: Array) -> Array:
        """(c, n) the part of the log density that no component changes."""
        ...

    def natural(self, theta: Array, noise: Any) -> Array:
        """(..., R, t) by what features are multiplied."""
        ...

    def solve(self, sums: Array, theta: Array, prior_rows: float) -> tuple[Array, Array]:
        """The maximizer of Q in theta from sums ``(..., R, t)``, and the rows ``(..., R, q)`` that it rests on."""
        ...

    def slope(self, sums: Array, theta: Array, noise: Any) -> Array:
        """The derivative of Q in theta."""
        ...

    def curved(self, sums: Array, theta: Array, noise: Any) -> Array:
        """Minus the second derivative, ``(..., R, q, q)``."""
        ...

    def scores(self, rows: Array, seen: Array, theta: Array, noise: Any) -> Array:
        """(m, q) the derivative of the log density of some rows of one site in ``theta`` (q,)."""
        ...

    def points(self, rows: Array, seen: Array, weight: Array) -> Array:
        """(c, n, u) every row in units in which rows of a component vary by about one; zeros where cells are missing.

        What is continuous is not asked: its units are those of a noise.
        """
        ...

    def blend(self, rows: Array, seen: Array, weight: Array, places: Array) -> Array:
        """Parameters ``(c, ..., q)`` half way from what all rows are like to single ones, at ``places`` (c, ...)."""
        ...


# -- probabilities as points of a sphere


@cache
def _basis(n_levels: int) -> Array:
    """(L - 1, L) orthonormal directions in which the roots of probabilities can leave those of an even choice."""
    found = np.zeros((n_levels - 1, n_levels))
    for j in range(1, n_levels):
        found[j - 1, :j], found[j - 1, j] = 1.0, -float(j)
        found[j - 1] /= -np.sqrt(j * (j + 1.0))
    return found


def _roots(theta: Array, n_levels: int) -> Array:
    """(..., L) roots of the probabilities at coordinates ``(..., L - 1)``, of either sign."""
    half = 0.5 * np.sqrt(np.vecdot(theta, theta))[..., None]
    return np.asarray(np.cos(half) / np.sqrt(n_levels) + 0.5 * np.sinc(half / np.pi) * (theta @ _basis(n_levels)))


def chances(theta: Array, n_levels: int) -> Array:
    r"""Probabilities ``(..., L)`` at coordinates ``(..., L - 1)``.

    Roots of probabilities are points of a sphere, on which distances between distributions are what rows can tell; of
    radius 2, an estimate from n rows has errors of :math:`1/\sqrt n` on it. The coordinates are those of a map of that
    sphere about the even distribution, true to distances from there; of a yes/no column, to all:
    :math:`\theta = 2 \arcsin\sqrt p - \pi / 2`.

    Examples
    --------
    >>> chances(np.array([0.0]), 2).round(12).tolist(), chances(np.array([np.pi / 6]), 2).round(12).tolist()
    ([0.5, 0.5], [0.25, 0.75])
    """
    roots = _roots(theta, n_levels)
    return roots * roots


def on_the_map(probabilities: Array) -> Array:
    """The way back, ``(..., L)`` to ``(..., L - 1)``."""
    roots = np.sqrt(np.maximum(probabilities, 0.0))
    n_levels = roots.shape[-1]
    away = roots @ _basis(n_levels).T
    length = np.sqrt(np.vecdot(away, away))[..., None]
    angle = np.arctan2(length, roots.sum(axis=-1, keepdims=True) / np.sqrt(n_levels))
    return np.asarray(away * np.divide(2.0 * angle, length, out=np.full_like(length, 2.0), where=length > 0))


def root_slopes(theta: Array, n_levels: int) -> Array:
    """(..., L - 1, L) derivatives of the roots in the coordinates."""
    basis = _basis(n_levels)
    half = 0.5 * np.sqrt(np.vecdot(theta, theta))[..., None]
    factor = 0.5 * np.sinc(half / np.pi)
    # d/dr of sin(r/2)/r, over r: (cos(r/2)/2 - sin(r/2)/r) / r^2, which tends to -1/24.
    with np.errstate(all="ignore"):
        bend = np.where(half > 1e-3, (0.5 * np.cos(half) - factor) / (4.0 * half * half), -1.0 / 24.0)
    outer = (bend * theta)[..., :, None] * (theta @ basis)[..., None, :]
    return np.asarray(factor[..., None] * basis + outer - 0.5 * (factor * theta)[..., None] / np.sqrt(n_levels))


@dataclass(frozen=True)
class Categories:
    """Columns of ``n_levels`` categories each, coded 0, 1, ...; yes/no columns are those of two."""

    columns: tuple[int, ...]
    n_levels: int

    @property
    def n_parameters(self) -> int:
        """One coordinate less than levels for each column."""
        return len(self.columns) * (self.n_levels - 1)

    def _apart(self, theta: Array) -> Array:
        return theta.reshape(*theta.shape[:-1], len(self.columns), self.n_levels - 1)

    def _levels(self, values: Array) -> Array:
        return values.reshape(*values.shape[:-1], len(self.columns), self.n_levels)

    def features(self, rows: Array, seen: Array) -> Array:
        """Whether a row has each of the levels."""
        codes = rows[..., self.columns]
        found = (codes[..., None] == np.arange(self.n_levels)) & seen[..., self.columns, None]
        return np.asarray(found.reshape(*codes.shape[:-1], -1), dtype=float)

    def constant(self, rows: Array, seen: Array) -> Array:
        """Nothing."""
        return np.zeros(rows.shape[:-1])

    def natural(self, theta: Array, noise: Any) -> Array:
        """Logs of probabilities."""
        found = np.log(np.maximum(chances(self._apart(theta), self.n_levels), LEAST_CHANCE))
        return found.reshape(*theta.shape[:-1], -1)

    def probabilities(self, theta: Array) -> Array:
        """Of every column, ``(..., columns, L)``."""
        return chances(self._apart(theta), self.n_levels)

    def coordinates(self, probabilities: Array) -> Array:
        """The way back."""
        found = on_the_map(probabilities)
        return found.reshape(*found.shape[:-2], -1)

    def solve(self, sums: Array, theta: Array, prior_rows: float) -> tuple[Array, Array]:
        """Shares of the levels; ``prior_rows`` more rows are as all of the site, of which every level has half a row.

        So a level that a component has not met is rare in it, but not impossible.
        """
        counts = self._levels(sums)
        mass = counts.sum(axis=-1, keepdims=True)
        every = counts.sum(axis=-3, keepdims=True) + 0.5
        prior = prior_rows * every / every.sum(axis=-1, keepdims=True)
        found = (counts + prior) / np.maximum(mass + prior_rows, np.finfo(float).tiny)
        reached = np.where(mass > 0, on_the_map(found), self._apart(theta))
        rests_on = np.broadcast_to(mass, reached.shape)
        return reached.reshape(theta.shape), rests_on.reshape(theta.shape)

    def _over_roots(self, theta: Array) -> Array:
        """(..., columns, L - 1, L) derivatives of log probabilities."""
        own = self._apart(theta)
        roots = _roots(own, self.n_levels)
        least = np.sqrt(LEAST_CHANCE)
        inverse = np.where(np.abs(roots) > least, 1.0 / np.where(np.abs(roots) > least, roots, 1.0), 0.0)
        return 2.0 * root_slopes(own, self.n_levels) * inverse[..., None, :]

    def slope(self, sums: Array, theta: Array, noise: Any) -> Array:
        """Counts times derivatives of log probabilities."""
        found = (self._over_roots(theta) @ self._levels(sums)[..., None])[..., 0]
        return found.reshape(theta.shape)

    def curved(self, sums: Array, theta: Array, noise: Any) -> Array:
        """By central differences of the slope, a coordinate of all columns at a time."""
        own, width = self.n_levels - 1, 1e-5
        found = np.zeros((*theta.shape, theta.shape[-1]))
        first = np.arange(len(self.columns)) * own
        for j in range(own):
            shift = np.zeros(theta.shape[-1])
            shift[first + j] = width
            change = self.slope(sums, theta - shift, noise) - self.slope(sums, theta + shift, noise)
            for i in range(own):
                found[..., first + i, first + j] = change[..., first + i] / (2.0 * width)
        return 0.5 * (found + found.swapaxes(-1, -2))

    def scores(self, rows: Array, seen: Array, theta: Array, noise: Any) -> Array:
        """The derivative of the log probability of what each row has."""
        table = self._over_roots(theta).swapaxes(-1, -2)  # (columns, L, L - 1)
        places = np.clip(rows[:, self.columns].astype(int), 0, self.n_levels - 1)
        found = table[np.arange(len(self.columns)), places] * seen[:, self.columns, None]
        return np.asarray(found.reshape(len(rows), self.n_parameters))

    def points(self, rows: Array, seen: Array, weight: Array) -> Array:
        """Where an even choice has a variance of 1 in every direction."""
        met = self._levels(self.features(rows, seen))
        found = np.sqrt(self.n_levels) * (met @ _basis(self.n_levels).T)
        return np.asarray(found.reshape(*rows.shape[:-1], -1))

    def blend(self, rows: Array, seen: Array, weight: Array, places: Array) -> Array:
        """Half of a row's own level, half of all."""
        met = self._levels(self.features(rows, seen))
        every = np.einsum("cn,cnml->cml", weight, met) + 0.5
        every = _for_places(every / every.sum(axis=-1, keepdims=True), places)
        own = _taken(met, places)
        there = own.sum(axis=-1, keepdims=True) > 0
        return self.coordinates(np.where(there, 0.5 * own + 0.5 * every, every))


@dataclass(frozen=True)
class Counts:
    """Columns of counts: of rate ``theta^2 / 4``, so that theta is known to about one over the root of the rows."""

    columns: tuple[int, ...]

    @property
    def n_parameters(self) -> int:
        """Twice the root of a rate per column."""
        return len(self.columns)

    def features(self, rows: Array, seen: Array) -> Array:
        """Whether there is a count, and the count."""
        there = seen[..., self.columns].astype(float)
        return np.concatenate([there, there * rows[..., self.columns]], axis=-1)

    def constant(self, rows: Array, seen: Array) -> Array:
        """Minus ``log x!``."""
        return np.asarray(-(seen[..., self.columns] * gammaln(1.0 + rows[..., self.columns])).sum(axis=-1))

    def natural(self, theta: Array, noise: Any) -> Array:
        """Minus the rate, and its logarithm."""
        rate = self.rates(theta)
        return np.concatenate([-rate, np.log(rate)], axis=-1)

    def rates(self, theta: Array) -> Array:
        """Expected counts."""
        return np.asarray(np.maximum(theta * theta, LEAST_ROOT**2) / 4.0)

    def coordinates(self, rates: Array) -> Array:
        """The way back."""
        return np.asarray(2.0 * np.sqrt(rates))

    def _split(self, sums: Array) -> tuple[Array, Array]:
        there, total = np.split(sums, 2, axis=-1)
        return np.asarray(there), np.asarray(total)

    def solve(self, sums: Array, theta: Array, prior_rows: float) -> tuple[Array, Array]:
        """Mean counts; ``prior_rows`` more rows are as all of the site."""
        there, total = self._split(sums)
        every = total.sum(axis=-2, keepdims=True) / np.maximum(there.sum(axis=-2, keepdims=True), 1.0)
        rate = (total + prior_rows * every) / np.maximum(there + prior_rows, np.finfo(float).tiny)
        found = np.maximum(self.coordinates(rate), LEAST_ROOT)
        return np.where(there > 0, found, theta), there

    def slope(self, sums: Array, theta: Array, noise: Any) -> Array:
        """Counts over theta, less half of it."""
        there, total = self._split(sums)
        return np.asarray(2.0 * total / _safe(theta) - 0.5 * there * theta)

    def curved(self, sums: Array, theta: Array, noise: Any) -> Array:
        """Columns are apart."""
        there, total = self._split(sums)
        return np.asarray((2.0 * total / _safe(theta) ** 2 + 0.5 * there)[..., None] * np.eye(theta.shape[-1]))

    def scores(self, rows: Array, seen: Array, theta: Array, noise: Any) -> Array:
        """Likewise, of every row."""
        there = seen[:, self.columns]
        return np.asarray(there * (2.0 * rows[:, self.columns] / _safe(theta) - 0.5 * theta))

    def points(self, rows: Array, seen: Array, weight: Array) -> Array:
        """Twice the roots, about their middle."""
        roots = 2.0 * np.sqrt(np.maximum(rows[..., self.columns], 0.0))
        return about_middle(roots, seen[..., self.columns], weight)

    def blend(self, rows: Array, seen: Array, weight: Array, places: Array) -> Array:
        """Half of a row's own count, half of the mean."""
        there, counts = seen[..., self.columns], rows[..., self.columns]
        mass = there * weight[..., None]
        mean = _for_places((mass * counts).sum(axis=1) / np.maximum(mass.sum(axis=1), 1e-9), places)
        own = np.where(_taken(there, places), _taken(counts, places), mean)
        return np.maximum(self.coordinates(0.5 * own + 0.5 * mean), LEAST_ROOT)


def about_middle(cells: Array, seen: Array, weight: Array) -> Array:
    """Cells ``(c, n, p)`` less the means of their columns; 0 where they are missing."""
    mass = seen * weight[..., None]
    middle = (mass * cells).sum(axis=1, keepdims=True) / np.maximum(mass.sum(axis=1, keepdims=True), 1e-9)
    return np.where(seen, cells - middle, 0.0)


def _safe(theta: Array) -> Array:
    return np.where(np.abs(theta) > LEAST_ROOT, theta, LEAST_ROOT)


def _taken(values: Array, places: Array) -> Array:
    """Those of chosen rows, ``(c, n, ...)`` at ``(c, ...)``."""
    sites = np.arange(len(values)).reshape(-1, *(1,) * (places.ndim - 1))
    return np.asarray(values[sites, places])


def _for_places(values: Array, places: Array) -> Array:
    """One value of a site for each of its places."""
    return values.reshape(len(values), *(1,) * (places.ndim - 1), *values.shape[1:])
