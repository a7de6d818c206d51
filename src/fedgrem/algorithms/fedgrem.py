"""FedGrEM, Algorithm 1 of Tian, Weng and Feng, "Towards the Theory of Unsupervised Federated Learning" (ICML 2024)."""

from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp

from fedgrem.algorithms.base import capped_rows, vanished
from fedgrem.algorithms.local import gradient_upload, middle_spread
from fedgrem.families.base import Family
from fedgrem.kernels.center import CenterSolution, alternate_to_center, shrink_to_center
from fedgrem.types import Array, Broadcast, Central, Params, SiteData, Upload

LEAST_STEP_SCALE = 0.02
"""A reported step scale below this is taken as this, so that no site can make itself arbitrarily heavy."""


class Chart(NamedTuple):
    """What the center holds besides: in which coordinates spreads are shrunk."""

    reference: Array
    """(C, s) the common spread of the starts."""


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["penalty", "penalty_decay", "step_size", "penalty_start", "covariance_penalty"],
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

    Where a family estimates its noise, distances are measured in units of the common one, so that the pull does not
    depend on the units of the features; and the sites' noise, their exact M-step, goes through the same problem in
    coordinates about the common one, with :math:`\lambda = C_\Sigma\sqrt{s + \log K}`.

    Parameters
    ----------
    covariance_penalty : :math:`C_\Sigma`; None is ``penalty``.
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
    covariance_penalty: float | Array | None = None

    def central_start(self, params: Params, n_rows: Array) -> Central:
        """Begin at the coordinate-wise median of the starts, with lambda_0."""
        penalty = jnp.asarray(self.penalty_start, dtype=params.theta.dtype)
        center = jnp.median(params.theta, axis=0)
        middle = middle_spread(params)
        extra = () if middle is None else Chart(middle)
        return Central(params, center, n_rows, params.weights, penalty, extra, middle)

    def broadcast(self, central: Central) -> Broadcast:
        """Each site gets its own parameters back."""
        return Broadcast(central.params, central.first_weights)

    def local_step(self, data: SiteData, sent: Broadcast) -> Upload:
        """E-step and one gradient step on this site's rows."""
        first = sent.first_weights if self.step_weights == "initial" else None
        return gradient_upload(self.family, data, sent.params, self.step_size, first)

    def central_step(self, central: Central, uploads: Upload) -> tuple[Central, Array, Array]:
        """Find the penalized center of every component and pull the sites towards it."""
        noise = central.spread
        theta, start = (self.family.in_noise_units(t, noise) for t in (uploads.params.theta, central.center))
        n_sites, _, n_parameters = theta.shape
        dimension = jnp.sqrt(n_parameters + jnp.log(n_sites))
        penalty = self.penalty_decay * central.penalty + self.penalty * dimension
        # No penalty is no pull at all, from the first round: lambda_0 is not to linger where there is nothing to share.
        penalty = jnp.where(self.penalty == 0, 0.0, penalty)
        solution = self._solve(theta, uploads, penalty, start)
        shrunk, center = (self.family.from_noise_units(t, noise) for t in (solution.shrunk, solution.center))
        spread, common = self._shrink_spread(central, uploads, n_parameters)
        params = Params(uploads.params.weights, shrunk, spread)
        if spread is not None and common is not None:
            params = _reseeded(params, center, common, uploads.n_rows)
        after = central._replace(params=params, center=center, penalty=penalty, spread=common)
        return after, solution.iterations, solution.gap

    def _shrink_spread(self, central: Central, uploads: Upload, n_features: int) -> tuple[Array | None, Array | None]:
        """The sites' spreads pulled towards a common one, and that."""
        spread, before = uploads.params.spread, central.spread
        if spread is None or before is None:
            return None, None
        # About the common spread of the starts, in every round: were the chart to move with the center, the center of
        # two very different sites would wander.
        chart = central.extra.reference
        away = self.family.relative_spread(spread, chart, n_features)
        n_sites, count, size = away.shape
        constant = self.penalty if self.covariance_penalty is None else self.covariance_penalty
        penalty = jnp.where(constant == 0, 0.0, constant * jnp.sqrt(size + jnp.log(n_sites)))
        weight = jnp.broadcast_to(capped_rows(uploads.n_rows)[:, None], (n_sites, count))
        threshold = jnp.broadcast_to((penalty / jnp.sqrt(uploads.n_rows))[:, None], (n_sites, count))
        found = shrink_to_center(away, weight, threshold, self.family.relative_spread(before, chart, n_features))
        pulled, center = (self.family.absolute_spread(a, chart, n_features) for a in (found.shrunk, found.center))
        return pulled, center

    def _solve(self, theta: Array, uploads: Upload, penalty: Array, start: Array) -> CenterSolution:
        scale = jnp.clip(uploads.step_scale, LEAST_STEP_SCALE, 1.0)
        weight = capped_rows(uploads.n_rows)[:, None] / scale
        threshold = (penalty / jnp.sqrt(uploads.n_rows))[:, None] * scale
        if self.penalty_scaling == "step":
            threshold = threshold * self.step_size
        if self.center_solver == "alternating":
            return alternate_to_center(theta, weight, threshold, sweeps=self.center_sweeps)
        return shrink_to_center(theta, weight, threshold, start)


def _reseeded(params: Params, center: Array, common: Array, n_rows: Array) -> Params:
    """Components of which a site holds less than one row begin again at the center, with the common noise."""
    assert params.spread is not None
    gone = vanished(params.weights, n_rows)[..., None]
    # A noise that all components share is no component's own.
    spread = params.spread if common.shape[0] == 1 else jnp.where(gone, common, params.spread)
    return params._replace(theta=jnp.where(gone, center, params.theta), spread=spread)
