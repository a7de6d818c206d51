"""Tables of mixed columns: continuous, robust, yes/no, categories and counts side by side, cells missing or not.

Given the component, columns of different types are independent, and so are all others but continuous ones for which a
covariance is estimated. A table's features, natural parameters and sums are those of its parts.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import numpy as np

from fedgrem.data.columns import BINARY, CATEGORICAL, CONTINUOUS, COUNT, ROBUST, Column
from fedgrem.data.stack import Stack
from fedgrem.families.base import ExponentialFamily, Term, log_weights
from fedgrem.families.continuous import Apart, Together
from fedgrem.families.covariance import Diagonal, Scale, lifted
from fedgrem.families.gaps import LOG_2PI, Gaps, GapsTerm, open_gaps
from fedgrem.families.information import louis
from fedgrem.families.parts import Categories, Counts, Part, about_middle
from fedgrem.families.seeding import far_places
from fedgrem.families.student import FIRST_DEGREES, Robust, RobustTerm, Scales
from fedgrem.types import Array, Params, Sums

FARTHEST = 4.0
"""Units of the noise beyond which a row of a continuous column is no more likely a start."""


class Opened(NamedTuple):
    """An opened noise: what every step needs of it."""

    scale: Scale | None
    """Of continuous columns."""
    robust: Scales | None
    """Of robust ones."""
    gaps: Gaps | None
    """Where cells of correlated columns are missing."""


class Layout(NamedTuple):
    """Where the parts of a table stand."""

    plain: tuple[tuple[Part, slice, slice], ...]
    """Parts without a noise, their coordinates and features."""
    continuous: Apart | Together | None
    robust: Robust | None
    theta: tuple[slice, slice]
    """Coordinates of continuous and of robust columns."""
    sums: tuple[slice, slice]
    """Their features, or sums."""
    noise: tuple[slice, slice]
    """Their numbers in a noise."""
    size: int
    """Coordinates in all."""


@dataclass(frozen=True)
class Table(ExponentialFamily):
    """Components of mixed columns.

    Parameters
    ----------
    types : every column by its name, type and levels; rows are coded by them.
    covariance : of continuous columns, ``Diagonal``, ``Tied`` or ``Full``.
    degrees : of freedom of robust columns; None estimates them.
    prior_rows : rows as all of the site that a component has beside its own in the M-step, so that it never shrinks to
        a point and no level is impossible; 0 is maximum likelihood.
    reg_covar : added to every variance, in the units of the fit.
    """

    name: ClassVar[str] = "table"
    has_target: ClassVar[bool] = False
    joint_starts: ClassVar[int] = 0
    path_steps: ClassVar[int] = 10
    types: tuple[Column, ...]
    covariance: Any = field(default_factory=Diagonal)
    degrees: float | None = 4.0
    prior_rows: float = 2.0
    reg_covar: float = 1e-6

    @cached_property
    def _hash(self) -> int:
        return hash((self.types, self.covariance, self.degrees, self.prior_rows, self.reg_covar))

    def __hash__(self) -> int:
        """Found once: what is derived from rows is kept by family."""
        return self._hash

    @cached_property
    def layout(self) -> Layout:
        """The parts: categories by their number of levels, counts, continuous columns, robust ones."""
        places: dict[Any, list[int]] = {}
        for j, column in enumerate(self.types):
            kind = len(column.levels) if column.kind in (BINARY, CATEGORICAL) else column.kind
            places.setdefault(kind, []).append(j)
        parts: list[Part] = [
            Categories(tuple(places[levels]), levels) for levels in sorted(k for k in places if isinstance(k, int))
        ]
        parts += [Counts(tuple(places[COUNT]))] if COUNT in places else []
        plain, q, t = [], 0, 1
        for part in parts:
            width = part.features(np.zeros((1, len(self.types))), np.ones((1, len(self.types)), dtype=bool)).shape[-1]
            plain.append((part, slice(q, q + part.n_parameters), slice(t, t + width)))
            q, t = q + part.n_parameters, t + width
        own, far = tuple(places.get(CONTINUOUS, ())), tuple(places.get(ROBUST, ()))
        apart = isinstance(self.covariance, Diagonal)
        continuous: Apart | Together | None = None
        if own:
            continuous = Apart(own, self.covariance) if apart else Together(own, self.covariance)
        robust = Robust(far, self.degrees) if far else None
        p, r = len(own), len(far)
        of_continuous = self.covariance.size(p) if own else 0
        width = 0 if not own else 3 * p if apart else p + p * (p + 1) // 2
        of_robust = robust.noise_size if robust else 0
        return Layout(
            tuple(plain),
            continuous,
            robust,
            (slice(q, q + p), slice(q + p, q + p + r)),
            (slice(t, t + width), slice(t + width, t + width + 5 * r)),
            (slice(0, of_continuous), slice(of_continuous, of_continuous + of_robust)),
            q + p + r,
        )

    def n_parameters(self, n_features: int) -> int:
        """Those of the columns, one after the other."""
        return self.layout.size

    def noise_shape(self, n_components: int, n_features: int) -> tuple[int, int] | None:
        """(C, s), C = 1 where all components share one covariance; None without continuous columns."""
        size = self.layout.noise[1].stop
        return (1 if self.covariance.shared else n_components, size) if size else None

    # -- features and natural parameters

    def _seen(self, stack: Stack) -> Array:
        return np.ones(stack.rows.shape, dtype=bool) if stack.observed is None else stack.observed

    def features(self, stack: Stack) -> Array:
        """1 and those of the parts; robust columns have none, and correlated ones none where cells are missing."""
        seen, continuous = self._seen(stack), self.layout.continuous
        found = [np.ones((*stack.rows.shape[:-1], 1))]
        found += [part.features(stack.rows, seen) for part, _, _ in self.layout.plain]
        if isinstance(continuous, Apart):
            found.append(continuous.features(stack.rows, seen))
        elif continuous is not None and stack.observed is None:
            found.append(continuous.features(stack.rows))
        return np.concatenate(found, axis=-1)

    def _constant(self, stack: Stack) -> Array:
        """(c, n) what no component changes of the log density of every row."""
        seen, continuous = self._seen(stack), self.layout.continuous
        found = np.zeros(stack.rows.shape[:-1])
        for part, _, _ in self.layout.plain:
            found = found + part.constant(stack.rows, seen)
        if continuous is not None:
            found = found - 0.5 * LOG_2PI * seen[..., continuous.columns].sum(axis=-1)
        return found

    def rest(self, stack: Stack) -> Array:
        """The sum of that."""
        return np.asarray((stack.weight * self._constant(stack)).sum(axis=1, keepdims=True))

    def rows_part(self, rest: Array, n_rows: Array, scale: Any) -> Array:
        """The same."""
        return rest[..., 0]

    def row_part(self, stack: Stack, scale: Any, lead: tuple[int, ...]) -> Array:
        """The same of every row."""
        return self._constant(stack).reshape(len(stack), *(1,) * (len(lead) - 1), -1)

    def open(self, stack: Stack | None, noise: Array | None, n_features: int) -> Opened:
        """Factors of covariances, scales and degrees of freedom."""
        lay = self.layout
        if noise is None:
            return Opened(None, None, None)
        scale = self.covariance.open(noise[..., lay.noise[0]], self._n_continuous) if lay.continuous else None
        robust = lay.robust.open(noise[..., lay.noise[1]]) if lay.robust else None
        gaps = None
        if stack is not None and stack.observed is not None and isinstance(lay.continuous, Together):
            covariance = self.covariance.matrices(noise[..., lay.noise[0]], self._n_continuous)
            gaps = open_gaps(stack, covariance, lay.continuous.columns)
        return Opened(scale, robust, gaps)

    @property
    def _n_continuous(self) -> int:
        return 0 if self.layout.continuous is None else len(self.layout.continuous.columns)

    def natural(self, weights: Array, theta: Array, scale: Opened) -> Array:
        """Log weights and what the parts' features are multiplied by."""
        lay, offset = self.layout, log_weights(weights)
        found = [part.natural(theta[..., q], None) for part, q, _ in lay.plain]
        own = theta[..., lay.theta[0]]
        if isinstance(lay.continuous, Apart) and scale.scale is not None:
            found.append(lay.continuous.natural(own, scale.scale))
        elif isinstance(lay.continuous, Together) and scale.scale is not None and scale.gaps is None:
            constant, slopes = lay.continuous.natural(own, scale.scale.precision)
            offset = offset + constant - scale.scale.log_scale
            found.append(slopes)
        return np.concatenate([offset[..., None], *found], axis=-1)

    def terms(self, stack: Stack, params: Params, scale: Opened) -> tuple[Term, ...]:
        """Correlated columns where cells are missing, and robust ones."""
        lay, found = self.layout, list[Term]()
        if scale.gaps is not None:
            found.append(GapsTerm(scale.gaps, params.theta[..., lay.theta[0]]))
        if lay.robust is not None and scale.robust is not None:
            rows, seen = stack.derive((self, "robust cells"), self._robust_cells)
            found.append(RobustTerm(rows, seen, params.theta[..., lay.theta[1]], scale.robust))
        return tuple(found)

    def _robust_cells(self, stack: Stack) -> tuple[Array, Array]:
        assert self.layout.robust is not None
        columns = self.layout.robust.columns
        return stack.rows[..., columns], self._seen(stack)[..., columns].astype(float)

    # -- the M-step

    def _solved(self, sums: Sums, theta: Array) -> tuple[Array, Array]:
        """The maximizer of Q in theta, and the rows that every coordinate rests on."""
        lay, told = self.layout, sums.features
        found = [part.solve(told[..., t], theta[..., q], self.prior_rows) for part, q, t in lay.plain]
        if isinstance(lay.continuous, Apart):
            found.append(lay.continuous.solve(told[..., lay.sums[0]], theta[..., lay.theta[0]], self.prior_rows))
        elif lay.continuous is not None:
            found.append(lay.continuous.solve(sums.held, told[..., lay.sums[0]], theta[..., lay.theta[0]]))
        if lay.robust is not None:
            found.append(lay.robust.solve(told[..., lay.sums[1]], theta[..., lay.theta[1]]))
        reached, rests_on = (np.concatenate(leaves, axis=-1) for leaves in zip(*found, strict=True))
        return reached, rests_on

    def gradient(self, sums: Sums) -> Callable[[Array], Array]:
        """The way to the M-step times the rows that it rests on.

        Of continuous columns that is the gradient in the metric of the noise. The others' coordinates are such that it
        nearly is; their gradient itself would be steep near a probability or a rate of 0.
        """

        def ahead(theta: Array) -> Array:
            reached, rests_on = self._solved(sums, theta)
            return np.asarray(rests_on * (reached - theta))

        return ahead

    def solve(self, sums: Sums, theta: Array) -> Array:
        """Means, shares and rates; of a column of which a component has no cell, what it was."""
        return self._solved(sums, theta)[0]

    def noise_step(self, sums: Sums, theta: Array, noise: Array | None) -> Array | None:
        """Covariances and scales about ``theta``; of a column without a cell, what they were."""
        lay = self.layout
        if noise is None:
            return None
        found = []
        own, told = theta[..., lay.theta[0]], sums.features[..., lay.sums[0]]
        if isinstance(lay.continuous, Apart):
            before = noise[..., lay.noise[0]]
            found.append(lay.continuous.noise_step(told, own, before, self.prior_rows, self.reg_covar))
        elif lay.continuous is not None:
            found.append(lay.continuous.noise_step(sums.held, told, own, self.prior_rows, self.reg_covar))
        if lay.robust is not None:
            far, before = sums.features[..., lay.sums[1]], noise[..., lay.noise[1]]
            found.append(lay.robust.noise_step(far, theta[..., lay.theta[1]], before, self.prior_rows, self.reg_covar))
        return np.concatenate(found, axis=-1)

    # -- parameters as means: of a number, of a count, of saying yes, of having each level

    @cached_property
    def mean_columns(self) -> tuple[tuple[int, int | None], ...]:
        """The column of every mean and, of categories, the level: columns in order, yes/no and numbers with one."""
        found: list[tuple[int, int | None]] = []
        for j, column in enumerate(self.types):
            if column.kind == CATEGORICAL:
                found += [(j, level) for level in range(len(column.levels))]
            else:
                found.append((j, 1 if column.kind == BINARY else None))
        return tuple(found)

    @property
    def mean_names(self) -> tuple[str, ...]:
        """What every mean is of, such as ``age`` and ``cp = 4``."""
        return tuple(
            self.types[j].name + ("" if level is None else f" = {self.types[j].levels[level]}")
            for j, level in self.mean_columns
        )

    def _places(self, columns: tuple[int, ...]) -> Array:
        """(columns, means of each) where the means of columns of one type stand."""
        of_column = np.array([j for j, _ in self.mean_columns])
        return np.stack([np.flatnonzero(of_column == j) for j in columns])

    def means(self, theta: Array) -> Array:
        """(..., m) means of components, in the units of the fit."""
        lay, found = self.layout, np.empty((*theta.shape[:-1], len(self.mean_columns)))
        for part, q, _ in lay.plain:
            places = self._places(part.columns)
            if isinstance(part, Categories):
                chances = part.probabilities(theta[..., q])
                found[..., places] = chances[..., 1:] if places.shape[1] == 1 else chances
            elif isinstance(part, Counts):
                found[..., places[:, 0]] = part.rates(theta[..., q])
        for one, own in ((lay.continuous, lay.theta[0]), (lay.robust, lay.theta[1])):
            if one is not None:
                found[..., self._places(one.columns)[:, 0]] = theta[..., own]
        return found

    def from_means(self, means: Array) -> Array:
        """The way back, ``(..., m)`` to ``(..., q)``."""
        lay, found = self.layout, []
        for part, _, _ in lay.plain:
            own = means[..., self._places(part.columns)]
            if isinstance(part, Categories):
                both = np.concatenate([1.0 - own, own], axis=-1) if own.shape[-1] == 1 else own
                found.append(part.coordinates(both))
            elif isinstance(part, Counts):
                found.append(part.coordinates(own[..., 0]))
        for one in (lay.continuous, lay.robust):
            if one is not None:
                found.append(means[..., self._places(one.columns)[:, 0]])
        return np.concatenate(found, axis=-1)

    def coordinates_of(self, column: int) -> Array:
        """Which coordinates of a component belong to a column."""
        lay = self.layout
        for part, q, _ in lay.plain:
            if column in part.columns:
                each = part.n_parameters // len(part.columns)
                return np.asarray(q.start + each * part.columns.index(column) + np.arange(each))
        for one, own in ((lay.continuous, lay.theta[0]), (lay.robust, lay.theta[1])):
            if one is not None and column in one.columns:
                return np.array([own.start + one.columns.index(column)])
        raise IndexError(column)

    # -- what rows tell

    def information(self, stack: Stack, params: Params) -> Array:
        """By the scores of every row; with a covariance and missing cells, it is taken as known."""
        lay, seen = self.layout, self._seen(stack)
        opened = self.open(stack, params.noise, stack.rows.shape[-1])
        sums = self.expect(stack, params, opened)
        posterior, _ = self.row_scores(stack, params)
        size, n_components = lay.size, params.theta.shape[1]
        complete = np.zeros((len(stack), n_components, size, size))
        for part, q, t in lay.plain:
            complete[..., q, q] = part.curved(sums.features[..., t], params.theta[..., q], None)
        own, far = lay.theta
        told, of_noise = sums.features, []
        shared = bool(self.covariance.shared)
        if opened.scale is not None and isinstance(lay.continuous, Apart):
            complete[..., own, own] = lay.continuous.curved(
                told[..., lay.sums[0]], params.theta[..., own], opened.scale
            )
            of_noise.append(lay.continuous.of_noise(told[..., lay.sums[0]]))
        elif opened.scale is not None and lay.continuous is not None:
            held = sums.held.sum(axis=1, keepdims=True) if shared else sums.held
            counted = np.maximum(held, 1.0)[..., None]
            of_noise.append(counted * self.covariance.information(self._n_continuous))
            complete[..., own, own] = sums.held[..., None, None] * opened.scale.precision
            if opened.gaps is not None:
                complete[..., own, own] = opened.gaps.seen_by(posterior * stack.weight[:, None])
        if opened.robust is not None and lay.robust is not None:
            complete[..., far, far] = lay.robust.curved(told[..., lay.sums[1]], opened.robust)
            of_noise.append(lay.robust.of_noise(told[..., lay.sums[1]], opened.robust, shared))

        def scores(k: int, rows: Array, r: int) -> tuple[Array, Array | None]:
            cells, there = stack.rows[k, rows], seen[k, rows]
            theta = params.theta[k, r]
            found, noises = np.zeros((len(rows), size)), []
            for part, q, _ in lay.plain:
                found[:, q] = part.scores(cells, there, theta[q], None)
            c = 0 if shared else r
            if opened.scale is not None and isinstance(lay.continuous, Apart):
                one = Scale(*(leaf[k, c] for leaf in opened.scale))
                found[:, own], noise = lay.continuous.scores(cells, there, theta[own], one)
                noises.append(noise)
            elif opened.scale is not None and lay.continuous is not None:
                away = cells[:, lay.continuous.columns] - theta[own]
                if opened.gaps is not None:
                    found[:, own] = opened.gaps.pulled(k, r, rows, away)
                    noises.append(np.zeros((len(rows), lay.noise[0].stop)))
                else:
                    white = away @ opened.scale.white[k, c].T
                    found[:, own] = white @ opened.scale.white[k, c]
                    noises.append(self.covariance.scores(white))
            if opened.robust is not None and lay.robust is not None:
                scales = opened.robust
                degrees = np.broadcast_to(scales.degrees, scales.scale.shape)[k, c]
                found[:, far], noise = lay.robust.scores(cells, there, theta[far], scales.scale[k, c], degrees)
                noises.append(noise)
            return found, np.concatenate(noises, axis=-1) if noises else None

        known = np.concatenate(of_noise, axis=-1) if of_noise else None
        return louis(stack, params, posterior, scores, complete, known)

    # -- starts

    def draw(self, stack: Stack, seed: int, purpose: str, n_init: int, n_components: int, noise: Array | None) -> Array:
        """Rows far from each other, in units in which they vary alike; of categories and counts half way to all."""
        lay, rows, seen = self.layout, stack.rows, self._seen(stack)
        points = [part.points(rows, seen, stack.weight) for part, _, _ in lay.plain]
        opened = self.open(None, None if noise is None else noise[:, :1], rows.shape[-1])
        cells = []
        for part, scale in ((lay.continuous, opened.scale), (lay.robust, opened.robust)):
            if part is None:
                continue
            # Where cells are missing, rows hold the middles of their columns.
            cells.append(rows[..., part.columns])
            white = about_middle(cells[-1], seen[..., part.columns], stack.weight)
            if isinstance(scale, Scale):
                white = self.covariance.whiten(white, scale)
            elif scale is not None:
                white = white / scale.scale
            points.append(np.clip(white, -FARTHEST, FARTHEST))
        places = far_places(stack, np.concatenate(points, axis=-1), seed, purpose, n_init, n_components)
        sites = np.arange(len(stack))[:, None, None]
        found = [part.blend(rows, seen, stack.weight, places) for part, _, _ in lay.plain]
        return np.concatenate([*found, *(own[sites, places] for own in cells)], axis=-1)

    def first_noise(self, stack: Stack, theta: Array) -> Array | None:
        """That of all rows of a site; a column without a cell has that of the units."""
        lay, (c, n_init, n_components, _) = self.layout, theta.shape
        shape = self.noise_shape(n_components, len(self.types))
        if shape is None:
            return None
        seen, found = self._seen(stack), []
        if lay.continuous is not None:
            found.append(self.covariance.from_matrices(_covariances(stack, seen, lay.continuous.columns)))
        if lay.robust is not None:
            matrices = _covariances(stack, seen, lay.robust.columns)
            found.append(0.5 * np.log(np.diagonal(matrices, axis1=-2, axis2=-1)))
            if self.degrees is None:
                found.append(np.full_like(found[-1], np.log(FIRST_DEGREES)))
        first = np.concatenate(found, axis=-1)[:, None, None]
        return np.broadcast_to(first, (c, n_init, *shape)).copy()

    # -- the noise as units and as coordinates

    def _in_units(self, theta: Array, scale: Opened, *, back: bool) -> Array:
        lay, found = self.layout, theta.copy()
        if scale.scale is not None:
            turn = self.covariance.unwhiten if back else self.covariance.whiten
            found[..., lay.theta[0]] = turn(theta[..., lay.theta[0]], scale.scale)
        if scale.robust is not None:
            own = theta[..., lay.theta[1]]
            found[..., lay.theta[1]] = own * scale.robust.scale if back else own / scale.robust.scale
        return found

    def whiten(self, theta: Array, scale: Opened | None) -> Array:
        """Continuous and robust columns divided by their noise; the others' coordinates are in such units."""
        return theta if scale is None else self._in_units(theta, scale, back=False)

    def unwhiten(self, theta: Array, scale: Opened | None) -> Array:
        """The way back."""
        return theta if scale is None else self._in_units(theta, scale, back=True)

    def relative_noise(self, noise: Array, reference: Array, n_features: int) -> Array:
        """Coordinates about a reference."""
        return self._of_parts(
            lambda one, other: self.covariance.relative(one, other, self._n_continuous),
            lambda robust, one, other: robust.relative(one, other),
            noise,
            reference,
        )

    def absolute_noise(self, coordinates: Array, reference: Array, n_features: int) -> Array:
        """The way back."""
        return self._of_parts(
            lambda one, other: self.covariance.absolute(one, other, self._n_continuous),
            lambda robust, one, other: robust.absolute(one, other),
            coordinates,
            reference,
        )

    def average_noise(self, noise: Array, share: Array) -> Array:
        """The noise of the mean covariance, and of the mean squared scales."""
        return self._of_parts(
            lambda one, _: self.covariance.average(one, share),
            lambda robust, one, _: robust.average(one, share),
            noise,
            noise,
        )

    def _of_parts(
        self,
        continuous: Callable[[Array, Array], Array],
        robust: Callable[[Robust, Array, Array], Array],
        noise: Array,
        other: Array,
    ) -> Array:
        lay, found = self.layout, []
        if lay.continuous is not None:
            found.append(continuous(noise[..., lay.noise[0]], other[..., lay.noise[0]]))
        if lay.robust is not None:
            found.append(robust(lay.robust, noise[..., lay.noise[1]], other[..., lay.noise[1]]))
        return np.concatenate(found, axis=-1)


def _covariances(stack: Stack, seen: Array, columns: tuple[int, ...]) -> Array:
    """(c, p, p) of the cells that are there, about their means; 1 for a column that has none or one value."""
    there = seen[..., columns] * stack.weight[..., None]
    mean = (there * stack.rows[..., columns]).sum(axis=1) / np.maximum(there.sum(axis=1), 1e-9)
    away = np.where(seen[..., columns], stack.rows[..., columns] - mean[:, None], 0.0)
    matrix = (away * stack.weight[..., None]).swapaxes(-1, -2) @ away / stack.n_rows[:, None, None]
    size = np.arange(matrix.shape[-1])
    own = matrix[:, size, size]
    flat = own <= 1e-12
    matrix = np.where(flat[:, :, None] | flat[:, None], 0.0, matrix)
    matrix[:, size, size] = np.where(flat, 1.0, own)
    return lifted(matrix, 1e-6)
