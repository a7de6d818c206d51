"""One more site against a center that is already there: FedGrEM's local step until it settles, with nobody else."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedgrem.algorithms.base import vanished
from fedgrem.algorithms.fedgrem import FedGrEM, Pull
from fedgrem.algorithms.local import gradient_upload
from fedgrem.algorithms.search import LARGEST_PENALTY
from fedgrem.algorithms.start import Prior, objective
from fedgrem.families.base import expect
from fedgrem.kernels.center import group_soft_threshold
from fedgrem.types import Array, Params, SiteData

MOST_STEPS = 5000


class Joined(NamedTuple):
    """A new site's answer."""

    params: Params
    log_likelihood: Array
    """() of the answer."""
    movement: Array
    """() in the last step."""
    choice: Array
    """() 0 if the way from the site's own start won, 1 if that from the center did."""


@jax.jit
def join(
    algorithm: FedGrEM, data: SiteData, own: Params, center: Params, penalty: Array, spread_penalty: Array, tol: Array
) -> Joined:
    r"""Gradient steps on one site's rows, each pulled to the center by :math:`\lambda / \sqrt n`, until they settle.

    From the site's own start, which must have the center's labels, and from the center; the better objective, the
    log-likelihood less :math:`\sqrt n \lambda \sum_r w_r \|\theta_r - c_r\|` (capped as for starts), wins.
    """
    family, n_rows = algorithm.family, data.row_weight.sum()
    pull = Pull(center.theta, penalty, center.spread, jnp.asarray(1))

    def step(params: Params) -> Params:
        moved = gradient_upload(family, data, params, algorithm.step_size, None)
        after = moved.params._replace(theta=algorithm._pulled(moved, pull))
        if after.spread is None or center.spread is None:
            return after
        width = after.theta.shape[-1]
        away = family.relative_spread(after.spread, center.spread, width)
        held = n_rows * (algorithm.share(moved.params.weights) if len(away) > 1 else jnp.ones(1, dtype=away.dtype))
        threshold = spread_penalty / jnp.sqrt(held)
        pulled = group_soft_threshold(away[None], jnp.zeros_like(away), threshold[None])[0]
        spread = family.absolute_spread(pulled, center.spread, width)
        gone = vanished(after.weights[None], n_rows[None])[0][:, None]
        spread = spread if len(spread) == 1 else jnp.where(gone, center.spread, spread)
        return after._replace(theta=jnp.where(gone, center.theta, after.theta), spread=spread)

    def moved_by(before: Params, after: Params) -> Array:
        parts = jax.tree.map(lambda a, b: jnp.max(jnp.abs(b - a) / (1.0 + jnp.abs(a))), before, after)
        return jnp.max(jnp.stack(jax.tree.leaves(parts)))

    def unsettled(carry: tuple[Params, Array, Array]) -> Array:
        return ~(carry[1] < tol) & (carry[2] < MOST_STEPS)

    def once(carry: tuple[Params, Array, Array]) -> tuple[Params, Array, Array]:
        after = step(carry[0])
        return after, moved_by(carry[0], after), carry[2] + 1

    def follow(start: Params) -> tuple[Params, Array, Array, Array]:
        far = jnp.asarray(jnp.inf, dtype=start.theta.dtype)
        params, movement, _ = jax.lax.while_loop(unsettled, once, (start, far, jnp.asarray(0)))
        prior = Prior(center.theta, jnp.minimum(penalty, LARGEST_PENALTY), center.spread)
        _, reached = expect(family, data, params)
        value, log_likelihood = (objective(family, params, reached, n_rows, pull) for pull in (prior, None))
        return params, value, log_likelihood, movement

    starts = jax.tree.map(lambda a, b: jnp.stack([a, b]), own, center)
    params, value, log_likelihood, movement = jax.lax.map(follow, starts)
    # The center's way wins ties: where both lead to one answer, it has the center's labels for certain.
    best = jnp.where(value[0] > value[1] + 1e-7 * (1.0 + jnp.abs(value[1])), 0, 1)
    taken: Params = jax.tree.map(lambda leaf: leaf[best], params)
    return Joined(taken, log_likelihood[best], movement[best], best)
