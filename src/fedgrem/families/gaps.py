r"""Gaussians of rows with missing cells: what is seen of a row, and what is expected of the rest given that.

With M the diagonal 0/1 matrix of what is observed of a row and :math:`G = M (M \Sigma M + I - M)^{-1} M`, the observed
part has Mahalanobis distance :math:`(x - \theta)' G (x - \theta)`, the whole row the conditional mean
:math:`\theta + \Sigma G (x - \theta)` and the conditional covariance :math:`\Sigma - \Sigma G \Sigma`. G depends on
which cells are missing only, and is found once for every pattern of them. Posterior sums are those of expected
features, and all that follows from sums stays as it is.
"""

from math import log, pi
from typing import Any, NamedTuple

import numpy as np

from fedgrem.data.stack import Stack
from fedgrem.kernels.triangle import lower
from fedgrem.types import Array

LOG_2PI = log(2.0 * pi)
AT_ONCE = 1_000_000
"""Numbers of the matrices of patterns that are met together."""


class Patterns(NamedTuple):
    """Which cells one site's rows lack."""

    seen: Array
    """(U, p) every pattern once, 1 where a cell is there."""
    of_row: Array
    """(n,) which of them a row has."""

    def total(self, mass: Array, place: slice) -> Array:
        """(F, U) sums over the rows of a block that have each pattern, of ``(F, n)``."""
        of_row = self.of_row[place]
        return np.stack([np.bincount(of_row, one, minlength=len(self.seen)) for one in mass])


class _Listed(list[Any]):
    """Per-site values that are cut like arrays."""

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return _Listed(super().__getitem__(index))
        if isinstance(index, int | np.integer):
            return super().__getitem__(int(index))
        return _Listed(super(_Listed, self).__getitem__(int(k)) for k in index)


class Gaps(NamedTuple):
    """An opened noise where cells are missing."""

    patterns: list[Patterns]
    """Per site."""
    cells: Array
    """(c, n, p)"""
    covariance: Array
    """(c, ..., C, p, p)"""
    precision: list[Array]
    """Per site: (..., C, U, p, p) G."""
    log_scale: list[Array]
    """Per site: (..., C, U) half the log determinant of the covariance of what is seen."""

    def crest(self, lead: tuple[int, ...]) -> Array:
        """(c, ..., C, n) log density at the mean of what is seen of every row."""
        found = []
        for log_scale, pattern in zip(self.log_scale, self.patterns, strict=True):
            height = -log_scale - 0.5 * LOG_2PI * pattern.seen.sum(axis=-1)
            wide = (1,) * (len(lead) + 1 - height.ndim) + height.shape[:-1]
            found.append(height.reshape(*wide, -1)[..., pattern.of_row])
        return np.stack(found)

    def seen_by(self, mass: Array) -> Array:
        """Sums over rows of G, ``(c, R, p, p)``, for posteriors times weights ``(c, R, n)``."""
        found = []
        for pattern, precision, own in zip(self.patterns, self.precision, mass, strict=True):
            wide = np.broadcast_to(precision, (len(own), *precision.shape[1:]))
            found.append(np.einsum("ru,rupq->rpq", pattern.total(own, slice(None)), wide))
        return np.stack(found)

    def pulled(self, k: int, r: int, rows: Array, away: Array) -> Array:
        """``G (x - theta)`` of some rows of a site, (m, p), for a component."""
        precision = self.precision[k][r if len(self.precision[k]) > 1 else 0]
        return np.asarray((precision[self.patterns[k].of_row[rows]] @ away[..., None])[..., 0])


def open_gaps(stack: Stack, covariance: Array, columns: tuple[int, ...]) -> Gaps:
    """G of every pattern of missing cells among some columns, for covariances ``(c, ..., C, p, p)``."""
    listed: list[Patterns] = stack.derive(("patterns", columns), lambda s: _patterns(s, columns))
    cells = stack.derive(("cells", columns), lambda s: s.rows[..., columns])
    precision, log_scale = [], []
    for own, pattern in zip(covariance, listed, strict=True):
        seen = pattern.seen
        both = seen[:, :, None] * seen[:, None]
        matrix = own[..., None, :, :] * both + (1.0 - seen)[:, :, None] * np.eye(len(columns))
        precision.append(np.linalg.inv(matrix) * both)
        log_scale.append(0.5 * np.linalg.slogdet(matrix)[1])
    return Gaps(listed, cells, covariance, precision, log_scale)


def _patterns(stack: Stack, columns: tuple[int, ...]) -> _Listed:
    assert stack.observed is not None
    found = _Listed()
    for seen in stack.observed[..., columns]:
        every, of_row = np.unique(seen, axis=0, return_inverse=True)
        found.append(Patterns(every.astype(float), of_row.reshape(-1)))
    return found


class GapsTerm:
    """Log densities of rows with missing cells under all fits of a stack, and sums of what is expected of them."""

    def __init__(self, gaps: Gaps, theta: Array) -> None:
        self._gaps = gaps
        self._theta = theta.reshape(len(theta), -1, *theta.shape[-2:])  # (c, B, R, p)
        self._covariance = gaps.covariance.reshape(len(theta), -1, *gaps.covariance.shape[-3:])
        self._precision = [own.reshape(-1, *own.shape[-4:]) for own in gaps.precision]  # (B or 1, R or 1, U, p, p)
        self._log_scale = [own.reshape(-1, *own.shape[-2:]) for own in gaps.log_scale]
        self._together = max(1, AT_ONCE // (self._theta[0].size * theta.shape[-1]))
        self._kept: dict[tuple[int, int], tuple[Array, Array, Array]] = {}

    def _pulled(self, k: int, place: slice) -> tuple[Array, Array, Array]:
        """An order of a site's rows in a block; in that order, ``x - theta`` and ``G (x - theta)``, (B, R, n, p)."""
        of_row = self._gaps.patterns[k].of_row[place]
        count = np.bincount(of_row)
        order = np.lexsort((of_row, count[of_row]))  # patterns of as many rows stand together, and are met together
        away = self._gaps.cells[k, place][order] - self._theta[k][:, :, None]
        pulled = np.empty(away.shape)
        alike, a = of_row[order], 0
        for size, patterns in zip(*np.unique(count[count > 0], return_counts=True), strict=True):
            for first in range(0, patterns, self._together):
                b = a + size * min(self._together, patterns - first)
                own = self._precision[k][:, :, alike[a:b:size]]
                shape = (*away.shape[:2], -1, size, away.shape[-1])
                pulled[:, :, a:b] = (away[:, :, a:b].reshape(shape) @ own).reshape(*shape[:2], b - a, shape[-1])
                a = b
        return order, away, pulled

    def density(self, place: slice) -> Array:
        """Log densities but for the constant, ``(c, B R, n)``."""
        found = np.empty((*self._theta.shape[:3], place.stop - place.start))
        few = found.size * self._theta.shape[-1] <= AT_ONCE
        for k, pattern in enumerate(self._gaps.patterns):
            order, away, pulled = told = self._pulled(k, place)
            if few:  # the sums over the same rows are asked for next
                self._kept[k, place.start] = told
            found[k][..., order] = -0.5 * np.vecdot(away, pulled)
            found[k] -= self._log_scale[k][..., pattern.of_row[place]]
        return found.reshape(len(found), -1, found.shape[-1])

    def sums(self, mass: Array, place: slice) -> Array:
        """(c, B R, t) cells and products as they are expected given what is seen."""
        c, n_fits, n_components, size = self._theta.shape
        i, j, _ = lower(size)
        found = np.empty((c, n_fits, n_components, size + len(i)))
        for k, pattern in enumerate(self._gaps.patterns):
            theta, covariance, precision = self._theta[k], self._covariance[k], self._precision[k]
            kept = (k, place.start) in self._kept
            order, _, pulled = self._kept.pop((k, place.start)) if kept else self._pulled(k, place)
            own = mass[k].reshape(n_fits, n_components, -1)
            by_pattern = pattern.total(mass[k], place).reshape(n_fits, n_components, 1, -1)
            known = by_pattern @ precision.reshape(*precision.shape[:3], -1)
            # With g = G (x - theta), a row is expected at theta + S g, with the covariance S - S G S about it.
            held, own = own.sum(axis=-1)[..., None, None], own[..., order]
            shift = (covariance @ (own[:, :, None] @ pulled).swapaxes(-1, -2))[..., 0]
            second = (pulled * own[..., None]).swapaxes(-1, -2) @ pulled
            raw = covariance @ (second - known.reshape(second.shape)) @ covariance + held * covariance
            cross = theta[..., :, None] * shift[..., None, :]
            raw += cross + cross.swapaxes(-1, -2) + held * theta[..., :, None] * theta[..., None, :]
            found[k] = np.concatenate([shift + held[..., 0] * theta, raw[..., i, j]], axis=-1)
        return found.reshape(c, n_fits * n_components, -1)
