"""FedGrEM, Algorithm 1 of Tian, Weng and Feng, "Towards the Theory of Unsupervised Federated Learning" (ICML 2024)."""

from dataclasses import dataclass
from functools import partial
from typing import Literal

import jax
import jax.numpy as jnp

from fedgrem.algorithms.base import capped_rows
from fedgrem.algorithms.local import gradient_upload
from fedgrem.families.base import Family
from fedgrem.kernels.center import CenterSolution, alternate_to_center, shrink_to_center
from fedgrem.types import Array, Broadcast, Central, Params, SiteData, Upload

LEAST_STEP_SCALE = 0.02
"""A reported step scale below this is taken as this, so that no site can make itself arbitrarily heavy."""


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["penalty", "penalty_decay", "step_size", "penalty_start"],
    meta_fields=["family", "step_weights", "penalty_scaling", "center_solver", "center_sweeps"],
)
@dataclass(frozen=True)
class FedGrEM:
    r"""Federated gradient EM: one ascent step per site, then shrinkage to a common center.

    Round t takes, at every site, an E-step and one gradient step of length ``step_size / weight``; then, per component,
    the center solves

    .. math:: \min_{\nu, c} \sum_k n_k \bigl(\tfrac12\|\nu_k - \tilde\theta_k\|^2 + \tau_k \|\nu_k - c\|\bigr),
              \quad \tau_k = \lambda_t / \sqrt{n_k},

    with :math:`\lambda_t = \text{decay}\cdot\lambda_{t-1} + C\sqrt{q + \log K}`, :math:`\lambda_0 = 1`.

    Where a family's curvature forces a shorter step (factor s, 1 for unit Gaussians), the site's quadratic is weighted
    by 1/s and its threshold by s: the proximal gradient step of that length. The fixed point then does not depend on s.
    """

    family: Family
    penalty: float | Array = 2.0
    penalty_decay: float | Array = 0.1
    step_size: float | Array = 0.95
    penalty_start: float | Array = 1.0
    step_weights: Literal["current", "initial"] = "current"
    penalty_scaling: Literal["fixed", "step"] = "fixed"
    center_solver: Literal["exact", "alternating"] = "exact"
    center_sweeps: int = 2

    def central_start(self, params: Params, n_rows: Array) -> Central:
        """Begin at the coordinate-wise median of the starts, with lambda_0."""
        penalty = jnp.asarray(self.penalty_start, dtype=params.theta.dtype)
        return Central(params, jnp.median(params.theta, axis=0), n_rows, params.weights, penalty)

    def broadcast(self, central: Central) -> Broadcast:
        """Each site gets its own parameters back."""
        return Broadcast(central.params, central.first_weights)

    def local_step(self, data: SiteData, sent: Broadcast) -> Upload:
        """E-step and one gradient step on this site's rows."""
        first = sent.first_weights if self.step_weights == "initial" else None
        return gradient_upload(self.family, data, sent.params, self.step_size, first)

    def central_step(self, central: Central, uploads: Upload) -> tuple[Central, Array, Array]:
        """Find the penalized center of every component and pull the sites towards it."""
        theta = uploads.params.theta
        n_sites, _, n_parameters = theta.shape
        dimension = jnp.sqrt(n_parameters + jnp.log(n_sites))
        penalty = self.penalty_decay * central.penalty + self.penalty * dimension
        # No penalty is no pull at all, from the first round: lambda_0 is not to linger where there is nothing to share.
        penalty = jnp.where(self.penalty == 0, 0.0, penalty)
        solution = self._solve(theta, uploads, penalty, central.center)
        params = Params(uploads.params.weights, solution.shrunk)
        after = central._replace(params=params, center=solution.center, penalty=penalty)
        return after, solution.iterations, solution.gap

    def _solve(self, theta: Array, uploads: Upload, penalty: Array, start: Array) -> CenterSolution:
        scale = jnp.clip(uploads.step_scale, LEAST_STEP_SCALE, 1.0)
        weight = capped_rows(uploads.n_rows)[:, None] / scale
        threshold = (penalty / jnp.sqrt(uploads.n_rows))[:, None] * scale
        if self.penalty_scaling == "step":
            threshold = threshold * self.step_size
        if self.center_solver == "alternating":
            return alternate_to_center(theta, weight, threshold, sweeps=self.center_sweeps)
        return shrink_to_center(theta, weight, threshold, start)
