"""The penalized center of K site estimates, and the shrinkage of each site towards it.

Estimates are ``(K, ..., R, q)``, weights and thresholds ``(K, ..., R)``, centers ``(..., R, q)``: axes between the
sites and the components are problems of their own, solved side by side.
"""

from typing import NamedTuple

import numpy as np
from scipy.special import chdtri

from fedgrem.types import Array

WEIGHT_CAP = 10.0
"""A site counts at the center for at most this many times the median site, whatever number of rows it reports."""
MOST_ROWS = 1.5
"""The same where up to 40% of the sites may be bad: then all of these do as much as the honest ones at the most."""
FAR = 3.0
"""Times the usual distance from the center, from which on a site is trusted less; at twice that, not at all."""
MOST_NEWTON = 32
"""Dimensions up to which the center is sought by Newton's steps; beyond, reweighted means are cheaper."""
CHANCE, BEYOND = 1e-3, 1.5
"""An honest site is with this chance farther from the center than up to where it is trusted in full; at so many times
that distance it is not trusted at all."""
DOUBT = 1.5
"""Standard errors by which sites must differ more than chance has it before they are taken to differ at all."""
BETWEEN_STEPS = 4
LONGEST = 20.0
"""Newton step, in steps to the reweighted mean: where nearly all sites are clipped, second derivatives say nothing."""
EPS, TINY = float(np.finfo(float).eps), float(np.finfo(float).tiny)


class CenterSolution(NamedTuple):
    """The solution of the central problem of every component, with its certificate."""

    shrunk: Array
    """(K, ..., R, q) site estimates pulled towards the center, exactly onto it where they are close."""
    center: Array
    """(..., R, q)"""
    iterations: Array
    """() steps taken."""
    gap: Array
    """() largest gradient norm over components, divided by the total site weight: a length in units of theta."""


def row_norm(x: Array) -> Array:
    """Euclidean norms along the last axis."""
    return np.asarray(np.sqrt(np.vecdot(x, x)))


def median(x: Array) -> Array:
    """Over the sites, axis 0: as NumPy's, in a tenth of its time where there are few numbers; NaN counts as largest.

    Examples
    --------
    >>> median(np.array([[3.0], [1.0], [2.0], [7.0]])).tolist()
    [2.5]
    """
    ordered, half = np.sort(x, axis=0), len(x) // 2
    return np.asarray(ordered[half] if len(x) % 2 else 0.5 * (ordered[half - 1] + ordered[half]))


def capped_rows(n_rows: Array, most: float = WEIGHT_CAP) -> Array:
    """Site weights at the center: rows, but at most ``most`` times the median site's."""
    return np.asarray(np.minimum(n_rows, most * median(n_rows)))


def bounded_pull(weight: Array, threshold: Array) -> Array:
    """Weights ``(K, ..., R)`` with which no site, however far, pulls ``MOST_ROWS`` times as hard as the middle one.

    Far from the center a site pulls by its weight times its threshold, if that is finite.
    """
    within = np.where(threshold < np.inf, threshold, 0.0)
    pull = weight * within
    with np.errstate(divide="ignore", invalid="ignore"):  # what does not pull is not bounded
        return np.asarray(np.fmin(weight, MOST_ROWS * _median_of(pull, pull > 0) / within))


def shrink(
    theta: Array, center: Array, threshold: Array, length: Array | None = None, most: Array | float | None = None
) -> Array:
    r"""Move each estimate towards the center by ``threshold``, and exactly onto it when it is closer than that.

    Parameters
    ----------
    theta : (..., R, q); center : broadcastable to it; threshold : (..., R), infinity allowed.
    length : (..., R) distances of theta from the center, where they are measured in other units than theta's.
    most : (..., R) the largest part of its distance by which an estimate is moved; None for all of it.

    Examples
    --------
    >>> shrink(np.array([[3.0, 4.0]]), np.zeros((1, 2)), np.array([1.0])).ravel().round(6).tolist()
    [2.4, 3.2]
    """
    away = theta - center
    if length is None:
        length = row_norm(away)
    with np.errstate(divide="ignore", invalid="ignore"):  # of length 0, or infinite: nothing is kept
        kept = np.fmax(1.0 - threshold / length, 0.0)
    if most is not None:
        kept = np.maximum(kept, 1.0 - most)
    away *= kept[..., None]
    away += center
    return np.asarray(away)


def shrink_to_center(
    theta: Array, weight: Array, threshold: Array, start: Array, *, tol: float = 1e-10, max_iterations: int = 500
) -> CenterSolution:
    r"""Solve the central update of FedGrEM exactly, for all components at once.

    Minimizes :math:`\sum_k m_k (\tfrac12\|\nu_k - \theta_k\|^2 + \tau_k \|\nu_k - c\|)` over (c, :math:`\nu`).
    For a given c the best :math:`\nu_k` is a group soft-threshold, and what is left is Huber's location problem
    :math:`\min_c \sum_k m_k H_{\tau_k}(\|\theta_k - c\|)`, whose reweighted means
    :math:`c = \sum u_k\theta_k / \sum u_k`, :math:`u_k = m_k\min(1, \tau_k/\|\theta_k - c\|)`, never increase the
    objective. In few dimensions Newton's steps are tried first: with few sites they save nine of ten.

    Parameters
    ----------
    theta : (K, ..., R, q) site estimates, aligned.
    weight : (K, ..., R) m.
    threshold : (K, ..., R) tau; 0 keeps a site as it is, infinity moves it to the center.
    start : (..., R, q) where to start from, usually the last center.
    tol : stop when the gradient norm is at most ``tol`` times the sum of the sites' pulls.

    Examples
    --------
    >>> theta, one = np.array([[[0.0]], [[4.0]]]), np.ones((2, 1))
    >>> shrink_to_center(theta, one, one, np.array([[2.0]])).shrunk.ravel().tolist()
    [1.0, 3.0]
    """
    n_sites, size = theta.shape[0], theta.shape[-1]
    # Problems first, each contiguous: what is found for one does not depend on its neighbours, to the bit.
    points = np.ascontiguousarray(theta.reshape(n_sites, -1, size).swapaxes(0, 1))
    share, limit = (np.ascontiguousarray(a.reshape(n_sites, -1).T) for a in (weight, threshold))
    total = share.sum(axis=1, keepdims=True)
    # With every threshold 0 any center solves the problem; take the weighted mean, which is finite and smooth.
    limit = np.where(limit.any(axis=1, keepdims=True), np.maximum(limit, TINY), np.inf)
    with np.errstate(divide="ignore", invalid="ignore"):
        share = share / np.where(total > 0, total, 1.0)
        found, gap, iterations = _solved(points, share, limit, start.reshape(-1, size), tol, max_iterations)
    center = found.reshape(start.shape)
    shrunk = shrink(theta, center, threshold)
    return CenterSolution(shrunk, center, np.asarray(iterations), np.asarray(gap.max(initial=0.0)))


def _solved(
    points: Array, share: Array, limit: Array, start: Array, tol: float, max_iterations: int
) -> tuple[Array, Array, int]:
    """Centers (B, q) of problems ``(B, K, q)``, their gradients' norms, and the steps taken.

    Where nobody has a say, the center stays.
    """
    n_problems, size = start.shape
    center, gap, todo = start.copy(), np.zeros(n_problems), np.arange(n_problems)
    now, before, mean, leaped = start, np.full(n_problems, np.inf), start, np.zeros(n_problems, dtype=bool)
    left, n_left, iterations = leaped, n_problems, 0
    while True:
        if 2 * n_left <= len(left):  # most are solved, and are put aside
            center[todo], gap[todo] = now, before
            if not n_left:
                return center, gap, iterations
            todo = todo[left]
            points, share, limit, now, before, mean, leaped = (
                a[left] for a in (points, share, limit, now, before, mean, leaped)
            )
        away = points - now[:, None]
        distance = row_norm(away)
        bound = limit / distance
        u = share * np.fmin(bound, 1.0)
        mass = u.sum(axis=1)
        slope = (u[:, None] @ away)[:, 0]
        length = row_norm(slope)
        # A Newton step that did not bring the gradient down is taken back, for the reweighted mean before it.
        astray = leaped & ~(length < before)
        # Judged by how hard the sites pull, each at most by its threshold: a far site cannot loosen the tolerance.
        strength = np.vecdot(u, distance)
        left = astray | ~(length <= (tol + 4.0 * EPS) * strength + 4.0 * EPS * row_norm(now))
        before = np.where(astray, np.inf, length)
        n_left = np.count_nonzero(left) if iterations < max_iterations else 0
        if not n_left:
            continue
        iterations += 1
        plain = new = now + slope / mass[:, None]
        if size <= MOST_NEWTON:
            pulled = np.where(bound < 1.0, u / np.square(distance), 0.0)
            curvature = (away * -pulled[..., None]).swapaxes(1, 2) @ away
            curvature.reshape(len(curvature), -1)[:, :: size + 1] += (mass + np.where(left, 1e-9 * mass, 1.0))[:, None]
            step = np.linalg.solve(curvature, slope[..., None])[..., 0]
            far = row_norm(step)
            new = now + step * np.minimum(1.0, LONGEST * length / mass / far)[:, None]
            leaped = left & ~astray & np.isfinite(far)
            if np.count_nonzero(leaped) < n_left:
                new = np.where(leaped[:, None], new, np.where(astray[:, None], mean, plain))
            mean = plain
        now = np.where(left[:, None], new, now)


def alternate_to_center(theta: Array, weight: Array, threshold: Array, *, sweeps: int) -> CenterSolution:
    r"""Solve the same problem by the paper's alternating optimization from zero deviations.

    Steps (ii) and (iii) of its appendix, ``sweeps`` times: the center is the weighted mean of
    :math:`\theta_k - \Delta_k`, then :math:`\Delta_k` is the group soft-threshold of :math:`\theta_k - c`. A few
    sweeps stop short of the optimum, which is why :func:`shrink_to_center` is the default; its ``gap`` says how short.
    """
    share = (weight / weight.sum(axis=0))[..., None]
    center = np.sum(share * theta, axis=0)
    shrunk = shrink(theta, center, threshold)
    for _ in range(sweeps - 1):
        center = np.sum(share * (theta - (shrunk - center)), axis=0)
        shrunk = shrink(theta, center, threshold)
    gap = np.max(row_norm(np.sum(share * (theta - shrunk), axis=0)))
    return CenterSolution(shrunk, center, np.asarray(sweeps), gap)


def trust(theta: Array, held: Array, center: Array, present: Array | None = None) -> Array:
    """How much each site's estimate is to count for the center, ``(K, ..., R)`` in [0, 1], by how far off it is.

    Huber's location bounds what a far site can do, but not to nothing: all of them together shift the center by their
    share times the threshold. Most sites say what distance is usual, as such or in proportion to ``1 / sqrt(n)``,
    whichever allows a site more; one that is several times as far away is not an estimate of the same center.

    Parameters
    ----------
    theta : (K, ..., R, q) site estimates, aligned; center : (..., R, q) the last center, robust itself.
    held : (K, ..., R) how many rows an estimate rests on.
    present : (K,) whose estimates are of this round; all by default.

    Examples
    --------
    >>> theta = np.array([0.9, 1.0, -1.1, 4.5, 50.0])[:, None, None]
    >>> trust(theta, np.ones((5, 1)), np.zeros((1, 1))).ravel().round(2).tolist()
    [1.0, 1.0, 1.0, 0.64, 0.0]
    """
    away, root = row_norm(theta - center), np.sqrt(held)
    heard = slice(None) if present is None else present
    plain, of_rows = median(away[heard]), median((away * root)[heard])
    usual = np.maximum(plain, of_rows / root)
    # Where most sites agree exactly, any distance would be far: then all of them count.
    far = np.where(usual > 0, FAR * usual, np.inf)
    return np.asarray(np.minimum(np.maximum(2.0 - away / far, 0.0), 1.0))


def usual_variance(theta: Array, held: Array, center: Array) -> Array:
    """(K, ..., R) the variance of a coordinate by which the middle site is as far from a center as it is.

    As in :func:`trust`, as such or in proportion to ``1 / held``, whichever allows a site more.
    """
    square = np.square(theta - center).sum(axis=-1)
    plain, of_rows = median(np.stack([square, square * held], axis=1))
    return np.asarray(np.maximum(plain, of_rows / held) / chdtri(theta.shape[-1], 0.5))


def between_sites(theta: Array, rows: Array, center: Array, present: Array | None = None) -> tuple[Array, Array]:
    r"""How much the sites of every component truly differ, and how much each is trusted.

    An honest estimate is :math:`N(c, (\tau^2 + 1/m_k) I_q)`: a random-effects model, whose between-site variance
    :math:`\tau^2` puts the median of the squared distances, over what is expected of them, at that of
    :math:`\chi^2_q`. Sites beyond its far quantile have no say in that. A component has the level of all components
    unless its own sites clearly speak against it, and a level within its error of what chance has is none.

    Fewer than half of the sites, whatever they send, cannot move the median beyond the honest ones.

    Parameters
    ----------
    theta : (K, ..., R, q) estimates in noise units, aligned; center : (..., R, q) the last center.
    rows : (K, ..., R) m, how many rows an estimate is worth; present : (K,) whose estimates count.

    Returns
    -------
    between : (..., R) :math:`\tau^2`; trust : (K, ..., R) in [0, 1].

    Examples
    --------
    >>> theta = np.array([-2.0, -1.0, 1.0, 2.0, 90.0])[:, None, None] * np.ones(4)
    >>> between, trust = between_sites(theta, np.full((5, 1), 100.0), np.zeros((1, 4)))
    >>> bool(1.0 < between[0] < 4.0), trust[:, 0].round(2).tolist()
    (True, [1.0, 1.0, 1.0, 1.0, 0.0])
    """
    size, heard = theta.shape[-1], slice(None) if present is None else present
    square = np.square(theta - center).sum(axis=-1)
    middle, far = chdtri(size, 0.5), chdtri(size, CHANCE)
    used, own = square[heard], rows[heard]
    # Of a median of so many squared lengths, relative to it.
    error = 1.25 * np.sqrt(2.0 / size / max(1, len(own)))
    counted = np.ones(own.shape, dtype=bool)
    between = np.zeros(own.shape[1:])
    for _ in range(BETWEEN_STEPS):
        typical = 1.0 / _median_of(own, counted)
        level = _median_of(used / (between + 1.0 / own), counted) / middle
        common = median(np.moveaxis(level, -1, 0))[..., None]
        level = np.clip(common, level / (1.0 + 2.0 * error), level * (1.0 + 2.0 * error))
        between = np.maximum((between + typical) * level - typical, 0.0)
        counted = used <= far * (between + 1.0 / own)
    least = DOUBT * error / np.sqrt(own.shape[-1])
    between = np.where(between <= least * typical, 0.0, between)
    return between, trust_within(square, between + 1.0 / rows, size)


def trust_within(square: Array, variance: Array, size: int) -> Array:
    """How much estimates at these squared distances from the center are trusted, by the variance of a coordinate."""
    ratio = np.sqrt(square / variance / chdtri(size, CHANCE))
    return np.asarray(np.clip((BEYOND - ratio) / (BEYOND - 1.0), 0.0, 1.0))


def _median_of(x: Array, counted: Array) -> Array:
    """Over the sites, axis 0, of those that are counted, or of all where none is."""
    if counted.all():
        return median(x)
    count = counted.sum(axis=0)
    counted, count = counted | (count == 0), np.where(count == 0, len(x), count).reshape(-1)
    ordered = np.sort(np.where(counted, x, np.inf), axis=0).reshape(len(x), -1)
    which = np.arange(len(count))
    middle = 0.5 * (ordered[(count - 1) // 2, which] + ordered[count // 2, which])
    return np.asarray(middle.reshape(x.shape[1:]))
