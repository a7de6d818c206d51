r"""Gaussians of rows with missing cells: what is seen of a row, and what is expected of the rest given that.

With M the diagonal 0/1 matrix of what is observed of a row and :math:`G = M (M \Sigma M + I - M)^{-1} M`, the observed
part has Mahalanobis distance :math:`(x - \theta)' G (x - \theta)`, the whole row the conditional mean
:math:`\theta + \Sigma G (x - \theta)` and the conditional covariance :math:`\Sigma - \Sigma G \Sigma`. G depends on
which cells are missing only, and is found once for every pattern of them. Posterior sums are then those of expected
features, and all that follows from sums stays as it is.
"""

from itertools import pairwise
from math import log, pi
from typing import Any, NamedTuple

import numpy as np

from fedgrem.data.stack import Stack
from fedgrem.families import bounded
from fedgrem.families.base import ExponentialFamily, log_weights
from fedgrem.families.covariance import Identity
from fedgrem.families.information import louis
from fedgrem.kernels.triangle import lower
from fedgrem.types import Array, Params, Sums, pick

AT_ONCE = 1_000_000
"""Numbers of the matrices of rows that are held in memory together."""


class Patterns(NamedTuple):
    """Which cells one site's rows lack."""

    seen: Array
    """(U, p) every pattern once."""
    of_row: Array
    """(n,) which of them a row has."""


class Gaps(NamedTuple):
    """An opened noise where cells are missing."""

    scale: Any
    """As without missing cells; None where the covariance is known."""
    covariance: Array
    """(c, ..., C, p, p)"""
    precision: list[Array]
    """Per site: (..., C, U, p, p) G."""
    log_scale: list[Array]
    """Per site: (..., C, U) half the log determinant of the covariance of what is seen."""


def _patterns(stack: Stack) -> list[Patterns]:
    found: list[Patterns] = []
    assert stack.observed is not None
    for seen in stack.observed:
        every, of_row = np.unique(seen, axis=0, return_inverse=True)
        found.append(Patterns(every.astype(float), of_row.reshape(-1)))
    return found


class _Listed(list[Any]):
    """Per-site values that are cut like arrays."""

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice | int):
            found = super().__getitem__(index)
            return _Listed(found) if isinstance(index, slice) else found
        return _Listed(super(_Listed, self).__getitem__(int(k)) for k in index)


def patterns_of(stack: Stack) -> list[Patterns]:
    """Of every site, found once."""
    found: list[Patterns] = stack.derive("patterns", lambda s: _Listed(_patterns(s)))
    return found


def open_gaps(stack: Stack, scale: Any, covariance: Array) -> Gaps:
    """G of every pattern, for covariances ``(c, ..., C, p, p)``."""
    precisions, log_scales = [], []
    identity = np.eye(covariance.shape[-1])
    for k, pattern in enumerate(patterns_of(stack)):
        seen = pattern.seen
        both = seen[:, :, None] * seen[:, None]
        matrix = covariance[k][..., None, :, :] * both + (1.0 - seen)[:, :, None] * identity
        precisions.append(np.linalg.inv(matrix) * both)
        log_scales.append(0.5 * np.linalg.slogdet(matrix)[1])
    return Gaps(scale, covariance, precisions, log_scales)


def _blocks(n: int, numbers: int) -> list[slice]:
    count = max(1, -(-n * numbers // AT_ONCE))
    edges = np.linspace(0, n, min(count, n) + 1).astype(int).tolist()
    return [slice(a, b) for a, b in pairwise(edges)]


def _row_terms(rows: Array, pattern: Array, theta: Array, precision: Array, log_scale: Array, seen: Array) -> Any:
    """Log densities ``(..., R, n)`` and ``G (x - theta)``, ``(..., R, n, p)``, of some rows of one site."""
    away = rows - theta[..., None, :]
    matrices = precision[..., pattern, :, :]  # (..., C, n, p, p)
    pulled = (matrices @ away[..., None])[..., 0]
    constant = 0.5 * seen.sum(axis=-1) * log(2.0 * pi)
    density = -0.5 * np.vecdot(away, pulled) - log_scale[..., pattern] - constant[pattern]
    return density, pulled


def _posterior(density: Array, weights: Array) -> tuple[Array, Array]:
    """Posteriors ``(..., R, n)`` and log-likelihoods ``(..., n)``."""
    joint = density + log_weights(weights)[..., None]
    peak = joint.max(axis=-2, keepdims=True)
    peak = np.where(np.isfinite(peak), peak, 0.0)
    share = np.exp(joint - peak)
    total = share.sum(axis=-2, keepdims=True)
    return share / total, (peak + np.log(total))[..., 0, :]


def crest(stack: Stack, gaps: Gaps) -> Array:
    """(c, ..., C, n) log density at the mean of what is seen of every row."""
    found = []
    for log_scale, pattern in zip(gaps.log_scale, patterns_of(stack), strict=True):
        height = -log_scale - 0.5 * log(2.0 * pi) * pattern.seen.sum(axis=-1)
        found.append(height[..., pattern.of_row])
    return np.stack(found)


def expect(family: ExponentialFamily, covariance: Any, stack: Stack, params: Params, gaps: Gaps) -> Sums:
    """Posterior sums of expected features, and the log-likelihood of what is seen."""
    found, rests, values = [], [], []
    ground = bounded.ground_of(family, stack, params, gaps) if family.robust_rows else None
    for k, pattern in enumerate(patterns_of(stack)):
        site = pick(params, k)
        below = None if ground is None else ground.of_site(k)
        told = _expect_site(covariance, stack.rows[k], stack.weight[k], pattern, site, gaps, k, below)
        found.append(told[0])
        rests.append(told[1])
        values.append(told[2])
    return Sums(np.stack(found), np.stack(rests), np.stack(values))


def _expect_site(
    covariance: Any,
    rows: Array,
    weight: Array,
    pattern: Patterns,
    params: Params,
    gaps: Gaps,
    k: int,
    ground: bounded.Ground | None,
) -> tuple[Array, Array, Array]:
    theta, precision, matrices = params.theta, gaps.precision[k], gaps.covariance[k]
    size, n_patterns = theta.shape[-1], len(pattern.seen)
    held = np.zeros(theta.shape[:-1])
    shift, by_pattern = np.zeros(theta.shape), np.zeros((*held.shape, n_patterns))
    second = np.zeros((*theta.shape, size))
    value = np.zeros(held.shape[:-1])
    for here in _blocks(len(rows), int(np.prod(precision.shape[:-3], dtype=int)) * size * size):
        of_row = pattern.of_row[here]
        density, pulled = _row_terms(rows[here], of_row, theta, precision, gaps.log_scale[k], pattern.seen)
        share, likelihood = _posterior(density, params.weights)
        if ground is not None:
            lowered = bounded.lowered(share[None], likelihood[None], ground.of_rows(here))
            share, likelihood = lowered[0][0], lowered[1][0]
        mass = share * weight[here]
        value = value + (weight[here] * np.where(weight[here] > 0, likelihood, 0.0)).sum(axis=-1)
        expected = pulled @ matrices  # (..., R, n, p): expected rows less theta
        held = held + mass.sum(axis=-1)
        shift = shift + (mass[..., None, :] @ expected)[..., 0, :]
        second = second + (expected * mass[..., None]).swapaxes(-1, -2) @ expected
        member = np.zeros((len(of_row), n_patterns))
        member[np.arange(len(of_row)), of_row] = 1.0
        by_pattern = by_pattern + mass @ member
    # E x = theta + shift; E xx' about theta adds the conditional covariance, a sum over patterns.
    known = (by_pattern[..., None, :] @ precision.reshape(*precision.shape[:-2], -1))[..., 0, :]
    known = matrices @ known.reshape(*known.shape[:-1], size, size) @ matrices
    scatter = second + held[..., None, None] * matrices - known
    first = shift + held[..., None] * theta
    cross = theta[..., :, None] * shift[..., None, :]
    raw = scatter + cross + cross.swapaxes(-1, -2) + held[..., None, None] * theta[..., :, None] * theta[..., None, :]
    i, j, _ = lower(size)
    if covariance.shared:
        rest = np.zeros((*held.shape[:-1], 2)) if isinstance(covariance, Identity) else raw.sum(axis=-3)[..., i, j]
        return np.concatenate([held[..., None], first], axis=-1), rest, value
    squares = np.diagonal(raw, axis1=-2, axis2=-1)
    extra = {"diag": squares, "spherical": squares.sum(axis=-1, keepdims=True), "full": raw[..., i, j]}
    return np.concatenate([held[..., None], first, extra[covariance.name]], axis=-1), np.zeros((*value.shape, 0)), value


def row_scores(stack: Stack, params: Params, gaps: Gaps) -> tuple[Array, Array]:
    """Posteriors ``(c, ..., R, n)`` and log-likelihoods ``(c, ..., n)`` of what is seen of every row."""
    found = []
    for k, pattern in enumerate(patterns_of(stack)):
        numbers = int(np.prod(gaps.precision[k].shape[:-3], dtype=int)) * stack.rows.shape[-1] ** 2
        parts = [
            _posterior(
                _row_terms(
                    stack.rows[k, here], pattern.of_row[here], params.theta[k], gaps.precision[k], gaps.log_scale[k],
                    pattern.seen,
                )[0],
                params.weights[k],
            )
            for here in _blocks(stack.size, numbers)
        ]  # fmt: skip
        found.append(tuple(np.concatenate(leaves, axis=-1) for leaves in zip(*parts, strict=True)))
    shares, values = zip(*found, strict=True)
    return np.stack(shares), np.stack(values)


def information(stack: Stack, params: Params, gaps: Gaps) -> Array:
    """(c, d, d) in log weights and means, the covariance taken as known."""
    posterior, _ = row_scores(stack, params, gaps)
    every = patterns_of(stack)
    n_components = params.theta.shape[1]

    def scores(k: int, rows: Array, r: int) -> tuple[Array, None]:
        precision = gaps.precision[k]
        matrices = precision[0 if precision.shape[0] == 1 else r][every[k].of_row[rows]]
        return (matrices @ (stack.rows[k, rows] - params.theta[k, r])[..., None])[..., 0], None

    complete = []
    for k, pattern in enumerate(every):
        mass = posterior[k] * stack.weight[k]
        member = np.zeros((stack.size, len(pattern.seen)))
        member[np.arange(stack.size), pattern.of_row] = 1.0
        matrices = np.broadcast_to(gaps.precision[k], (n_components, *gaps.precision[k].shape[1:]))
        complete.append(np.einsum("ru,rupq->rpq", mass @ member, matrices))
    return louis(stack, params, posterior, scores, np.stack(complete), None)
