"""The penalized center of K site estimates, and the pull of each site towards it."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedgrem.kernels.median import median
from fedgrem.types import Array


class CenterSolution(NamedTuple):
    """The solution of the central problem of every component, with its certificate."""

    shrunk: Array
    """(K, R, q) site estimates pulled towards the center, exactly onto it where they are close."""
    center: Array
    """(R, q)"""
    iterations: Array
    """() reweighting steps taken."""
    gap: Array
    """() largest gradient norm over components, divided by the total site weight: a length in units of theta."""


def _row_norm(x: Array) -> Array:
    return jnp.sqrt(jnp.sum(x * x, axis=-1))


def _ratio(threshold: Array, distance: Array) -> Array:
    """``min(1, threshold / distance)``, with 0 / 0 = 1: a site at the center stays there."""
    safe = jnp.where(distance > 0, distance, 1.0)
    return jnp.where(distance > threshold, threshold / safe, 1.0)


def group_soft_threshold(theta: Array, center: Array, threshold: Array) -> Array:
    r"""Move each estimate towards the center by ``threshold``, and exactly onto it when it is closer than that.

    Parameters
    ----------
    theta : (K, R, q); center : (R, q); threshold : (K, R), infinity allowed.

    Examples
    --------
    >>> group_soft_threshold(jnp.array([[[3.0, 4.0]]]), jnp.zeros((1, 2)), jnp.array([[1.0]])).ravel().tolist()
    [2.4000000953674316, 3.200000047683716]
    """
    deviation = theta - center
    ratio = _ratio(threshold, _row_norm(deviation))
    kept = jnp.where(ratio < 1.0, 1.0 - ratio, 0.0)
    return center + kept[..., None] * deviation


def shrink_to_center(
    theta: Array, site_weight: Array, threshold: Array, start: Array, *, tol: float = 1e-10, max_iterations: int = 500
) -> CenterSolution:
    r"""Solve the central update of FedGrEM exactly, for all components at once.

    Minimizes :math:`\sum_k m_k (\tfrac12\|\nu_k - \theta_k\|^2 + \tau_k \|\nu_k - c\|)` over (c, :math:`\nu`).
    For a given c the best :math:`\nu_k` is a group soft-threshold, and what is left is Huber's location problem
    :math:`\min_c \sum_k m_k H_{\tau_k}(\|\theta_k - c\|)`, whose reweighted means
    :math:`c = \sum u_k\theta_k / \sum u_k`, :math:`u_k = m_k\min(1, \tau_k/\|\theta_k - c\|)`, never increase the
    objective. Started from the last center they need a handful of steps in the first rounds and one later.

    Parameters
    ----------
    theta : (K, R, q) site estimates, aligned.
    site_weight : (K, R) m.
    threshold : (K, R) tau; 0 keeps a site as it is, infinity moves it to the center.
    start : (R, q) where to start from, usually the last center.
    tol : stop when the gradient norm is at most ``tol`` times the sum of the sites' pulls.

    Examples
    --------
    >>> theta = jnp.array([[[0.0]], [[4.0]]])
    >>> one = jnp.ones((2, 1))
    >>> shrink_to_center(theta, one, one, jnp.array([[2.0]]), tol=1e-6).shrunk.ravel().tolist()
    [1.0, 3.0]
    """
    solution: CenterSolution = _solve(theta, site_weight, threshold, start, tol, max_iterations)
    return solution


@jax.jit
def _solve(
    theta: Array, site_weight: Array, threshold: Array, start: Array, tol: float, max_iterations: int
) -> CenterSolution:
    total = site_weight.sum(axis=0)
    # With every threshold 0 any center solves the problem; take the weighted mean, which is finite and smooth.
    free = jnp.max(threshold, axis=0) == 0

    def reweighted_mean(center: Array) -> tuple[Array, Array, Array]:
        distance = _row_norm(theta - center)
        u = site_weight * jnp.where(free, 1.0, _ratio(threshold, distance))
        mass = u.sum(axis=0)
        new = jnp.einsum("kr,krq->rq", u, theta) / mass[:, None]
        gap = _row_norm(new - center) * (mass / total)
        # Judged by how hard the sites pull, each at most by its threshold: a far site cannot loosen the tolerance.
        pull = jnp.sum(site_weight * jnp.where(free, distance, jnp.minimum(distance, threshold)), axis=0) / total
        rounding = 4.0 * float(np.finfo(theta.dtype).eps) * (_row_norm(center) + pull)
        return new, gap, jnp.any(gap > tol * pull + rounding)

    def unsolved(carry: tuple[Array, Array, Array, Array, Array]) -> Array:
        return carry[3] & (carry[4] < max_iterations)

    def step(carry: tuple[Array, Array, Array, Array, Array]) -> tuple[Array, Array, Array, Array, Array]:
        _, center, _, _, iteration = carry
        return center, *reweighted_mean(center), iteration + 1

    first = (start, *reweighted_mean(start), jnp.asarray(0))
    center, _, gap, _, iterations = jax.lax.while_loop(unsolved, step, first)
    return CenterSolution(group_soft_threshold(theta, center, threshold), center, iterations, jnp.max(gap))


FAR = 3.0
"""Times the usual distance from the center, from which on a site is trusted less; at twice that, not at all."""


@jax.jit
def trust(theta: Array, n_rows: Array, center: Array) -> Array:
    """How much each site's estimate is to count for the center, ``(K, R)`` in [0, 1], by how far off it is.

    Huber's location bounds what a far site can do, but not to nothing: all of them together shift the center by their
    share times the threshold. Most sites say what distance is usual, as such or in proportion to ``1 / sqrt(n)``,
    whichever allows a site more; one that is several times as far away is not an estimate of the same center.

    Parameters
    ----------
    theta : (K, R, q) site estimates, aligned; center : (R, q) the last center, robust itself.
    n_rows : (K, R) how many rows an estimate rests on.

    Examples
    --------
    >>> theta = jnp.array([0.9, 1.0, -1.1, 4.5, 50.0])[:, None, None]
    >>> trust(theta, jnp.ones((5, 1)), jnp.zeros((1, 1))).ravel().round(2).tolist()
    [1.0, 1.0, 1.0, 0.6399999856948853, 0.0]
    """
    away, root = _row_norm(theta - center), jnp.sqrt(n_rows)
    usual = jnp.maximum(median(away), median(away * root) / root)
    # Where most sites agree exactly, any distance would be far: then all of them count.
    return jnp.where(usual > 0, jnp.clip(2.0 - away / (FAR * jnp.where(usual > 0, usual, 1.0)), 0.0, 1.0), 1.0)


def alternate_to_center(theta: Array, site_weight: Array, threshold: Array, *, sweeps: int) -> CenterSolution:
    r"""Solve the same problem by the paper's alternating optimization from zero deviations.

    Steps (ii) and (iii) of its appendix, ``sweeps`` times: the center is the weighted mean of
    :math:`\theta_k - \Delta_k`, then :math:`\Delta_k` is the group soft-threshold of :math:`\theta_k - c`. A few
    sweeps stop short of the optimum, which is why :func:`shrink_to_center` is the default; its ``gap`` says how short.
    """
    share = (site_weight / site_weight.sum(axis=0))[..., None]
    center = jnp.sum(share * theta, axis=0)
    shrunk = group_soft_threshold(theta, center, threshold)
    for _ in range(sweeps - 1):
        center = jnp.sum(share * (theta - (shrunk - center)), axis=0)
        shrunk = group_soft_threshold(theta, center, threshold)
    gap = jnp.max(_row_norm(jnp.sum(share * (theta - shrunk), axis=0)))
    return CenterSolution(shrunk, center, jnp.asarray(sweeps), gap)
