"""FedGMM, of Wu, Zhang, Yu, Liu, Gu, Zhou, Chen and Cheng (ICML 2023).

"Personalized Federated Learning under Mixture of Distributions".
"""

from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp

from fedgrem.algorithms.base import Algorithm
from fedgrem.algorithms.local import unpenalized_start, without_solver
from fedgrem.errors import InputError
from fedgrem.families.base import ExponentialFamily, Family, expect, maximize
from fedgrem.families.gaussian import Gaussian
from fedgrem.kernels.covariance import FullGaussians, Moments, from_moments, full_log_density, moments
from fedgrem.kernels.responsibilities import posterior
from fedgrem.types import Array, Broadcast, Central, Params, SiteData, Upload

Averaging: TypeAlias = Literal["mass", "rows"]


def fedgmm(
    family: Family, covariate_components: int = 3, reg_covar: float = 1e-6, averaging: Averaging = "rows"
) -> Algorithm:
    """FedGMM for this family: a joint mixture of covariates and responses, or a mixture with estimated covariances."""
    if isinstance(family, Gaussian):
        return FedGMMDensity(family, reg_covar, averaging)
    if family.has_target and isinstance(family, ExponentialFamily):
        return FedGMMJoint(family, reg_covar, covariate_components, averaging)
    raise InputError(
        f"algorithm 'fedgmm' does not run on {type(family).__name__} components: it needs Gaussians, or regressions "
        "with sufficient statistics; use 'fedem' or 'fedgrem'."
    )


def for_all(leaf: Array, n_sites: int) -> Array:
    """A common array as each of K sites gets it, ``(K, ...)``."""
    return jnp.broadcast_to(leaf, (n_sites, *leaf.shape))


@partial(jax.tree_util.register_dataclass, data_fields=["reg_covar"], meta_fields=["family", "averaging"])
@dataclass(frozen=True)
class FedGMMDensity:
    r"""Shared Gaussian components with a full covariance each; every site has its own weights.

    Site k has density :math:`\sum_r \pi_{kr} N(x; \mu_r, \Sigma_r)`: the original's model of the covariates, without a
    response. Sites send weighted moments. With ``averaging="mass"`` the center adds them up, which is exact EM for the
    shared components. The original averages the sites' own M-steps by responsibility mass: the same means, but
    covariances that miss the spread of the sites' means. With ``averaging="rows"`` the sites' M-steps are averaged by
    their rows, as in FedEM; a site all of whose rows fall to one component then has no more say in it than others.

    ``theta`` holds the means. Where the family's covariance is the identity, what uses a fit afterwards (posteriors,
    scores) takes unit covariances, like every system here: the covariances serve the fit, start at the identity and
    stay in the center's state. Any other covariance of the family ("tied", say) is what the components have.
    """

    family: Gaussian
    reg_covar: float | Array = 1e-6
    averaging: Averaging = "mass"

    def central_start(self, params: Params, n_rows: Array) -> Central:
        """Begin at the given starts with unit covariances."""
        _, n_components, n_features = params.theta.shape
        central = unpenalized_start(params, n_rows)
        identity = jnp.eye(n_features, dtype=params.theta.dtype)
        return central._replace(extra=FullGaussians(central.center, for_all(identity, n_components)))

    def broadcast(self, central: Central) -> Broadcast:
        """Own weights, common components; before round 1 a site's own means are in its parameters."""
        extra = FullGaussians(*(for_all(leaf, central.n_rows.shape[0]) for leaf in central.extra))
        return Broadcast(central.params, central.first_weights, extra)

    def local_step(self, data: SiteData, sent: Broadcast) -> Upload:
        """E-step and the moments of every component."""
        if sent.params.spread is None:
            density = full_log_density(data.columns, sent.params.theta, sent.extra.covariance)
            mass, log_likelihood = posterior(density, sent.params.weights, data.row_weight)
        else:
            mass, log_likelihood = expect(self.family, data, sent.params)
        n_rows = data.row_weight.sum()
        weights = mass.sum(axis=1) / n_rows
        params = sent.params._replace(weights=weights)
        extra = moments(data, mass, sent.extra.mean)
        return Upload(params, jnp.ones_like(weights), n_rows, log_likelihood, extra)

    def central_step(self, central: Central, uploads: Upload) -> tuple[Central, Array, Array]:
        """Common means and covariances."""
        before: FullGaussians = central.extra
        if self.averaging == "mass":
            after = from_moments(Moments(*(leaf.sum(axis=0) for leaf in uploads.extra)), before, self.reg_covar)
        else:
            own = jax.vmap(lambda sent: from_moments(sent, before, self.reg_covar))(uploads.extra)
            after = FullGaussians(*(average(leaf, uploads.n_rows) for leaf in own))
        n_sites, weights = central.n_rows.shape[0], uploads.params.weights
        spread = None
        if uploads.params.spread is not None:
            spread = self.family.structured(after.covariance, average(weights, uploads.n_rows))
        params = Params(weights, for_all(after.mean, n_sites), None if spread is None else for_all(spread, n_sites))
        return without_solver(central._replace(params=params, center=after.mean, extra=after, spread=spread))


def average(leaf: Array, n_rows: Array) -> Array:
    """Mean over sites ``(K, ...)``, each by its rows."""
    return jnp.einsum("k,k...->...", n_rows / n_rows.sum(), leaf)


class JointState(NamedTuple):
    """What the center of the joint mixture holds besides the regressions; a site gets the same, of its own."""

    covariates: FullGaussians
    """(M1, p) and (M1, p, p), common."""
    joint: Array
    """(K, M1, R) weights of every pair of components at every site."""
    started: Array
    """() 0 before the covariate components are known, then 1."""


class JointStatistics(NamedTuple):
    """What a site sends besides its parameters."""

    joint: Array
    """(M1, R)"""
    covariates: Moments
    regressions: Array
    """(R, s) the family's sufficient statistics; (R, q) the site's own M-step where M-steps are averaged."""
    noise: Array | None
    """(C, 1) the site's own M-step of the noise, where it is estimated and M-steps are averaged."""


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["reg_covar"],
    meta_fields=["family", "covariate_components", "averaging"],
)
@dataclass(frozen=True)
class FedGMMJoint:
    r"""The joint mixture of covariates and responses, with shared components and each site's own joint weights.

    .. math:: p_k(x, y) = \sum_{m=1}^{M_1} \sum_{r=1}^{R} \pi_k(m, r)\, N(x; \mu_m, \Sigma_m)\, N(y; x'\theta_r, 1)

    The original's response models are networks, trained by gradient steps at the sites and averaged by responsibility
    mass, as are means and covariances. Regressions have sufficient statistics, which here the center adds up
    (``averaging="mass"``), as it does the moments of the covariates: every round is then one step of exact EM for the
    shared components, and the log-likelihood of this joint model never falls (from round 2 on). With
    ``averaging="rows"`` the coefficients are the sites' own M-steps averaged by rows, as in FedEM and in the public
    scripts of Tian, Weng and Feng (2024), who also tie the covariances.

    The reported weights are the margins over the regressions. Those scripts start the covariate components from each
    site's own EM; here round 1 ignores the covariates, takes their common mean and covariance, and spreads the M1
    components one standard deviation either way along the first principal axis.
    """

    family: Family
    reg_covar: float | Array = 1e-6
    covariate_components: int = 3
    averaging: Averaging = "mass"

    def central_start(self, params: Params, n_rows: Array) -> Central:
        """Begin at the given starts, knowing nothing of the covariates."""
        n_features, parts = params.theta.shape[2], self.covariate_components
        identity = jnp.eye(n_features, dtype=params.theta.dtype)
        covariates = FullGaussians(jnp.zeros((parts, n_features), identity.dtype), for_all(identity, parts))
        joint = jnp.repeat(params.weights[:, None, :] / parts, parts, axis=1)
        return unpenalized_start(params, n_rows, JointState(covariates, joint, jnp.zeros((), identity.dtype)))

    def broadcast(self, central: Central) -> Broadcast:
        """Common components, and the site's own joint weights."""
        state, n_sites = central.extra, central.n_rows.shape[0]
        covariates = FullGaussians(*(for_all(leaf, n_sites) for leaf in state.covariates))
        extra = JointState(covariates, state.joint, for_all(state.started, n_sites))
        return Broadcast(central.params, central.first_weights, extra)

    def local_step(self, data: SiteData, sent: Broadcast) -> Upload:
        """E-step over all pairs of components, and the statistics of both margins."""
        state: JointState = sent.extra
        parts, n_components = state.joint.shape
        of_covariates = jnp.where(state.started > 0, full_log_density(data.columns, *state.covariates), 0.0)
        of_responses = self.family.log_density(data, sent.params.theta, sent.params.spread)
        pairs = (of_covariates[:, None, :] + of_responses[None]).reshape(parts * n_components, -1)
        mass, log_likelihood = posterior(pairs, state.joint.reshape(-1), data.row_weight)
        mass = mass.reshape(parts, n_components, -1)
        n_rows = data.row_weight.sum()
        joint = mass.sum(axis=2) / n_rows
        covariates = moments(data, mass.sum(axis=1), state.covariates.mean)
        regressions, noise = self._of_responses(data, sent.params, mass.sum(axis=0))
        statistics = JointStatistics(joint, covariates, regressions, noise)
        weights = joint.sum(axis=0)
        params = sent.params._replace(weights=weights)
        return Upload(params, jnp.ones_like(weights), n_rows, log_likelihood, statistics)

    def central_step(self, central: Central, uploads: Upload) -> tuple[Central, Array, Array]:
        """Common regressions and common covariate components."""
        state: JointState = central.extra
        sent: JointStatistics = uploads.extra
        total = Moments(*(leaf.sum(axis=0) for leaf in sent.covariates))
        found = from_moments(total, state.covariates, self.reg_covar)
        apart = _spread(found)
        covariates = FullGaussians(*(jnp.where(state.started > 0, f, a) for f, a in zip(found, apart, strict=True)))
        center, noise = self._regressions(sent, uploads.n_rows, central)
        n_sites = central.n_rows.shape[0]
        params = Params(
            uploads.params.weights, for_all(center, n_sites), None if noise is None else for_all(noise, n_sites)
        )
        extra = JointState(covariates, sent.joint, jnp.ones_like(state.started))
        return without_solver(central._replace(params=params, center=center, extra=extra, spread=noise))

    def _of_responses(self, data: SiteData, params: Params, mass: Array) -> tuple[Array, Array | None]:
        if self.averaging == "mass":
            return self._exponential().sufficient_statistics(data, mass), None
        own = maximize(self.family, data, params, mass)
        return own.theta, own.spread

    def _regressions(self, sent: JointStatistics, n_rows: Array, before: Central) -> tuple[Array, Array | None]:
        if self.averaging == "mass":
            total, family = sent.regressions.sum(axis=0), self._exponential()
            center = family.from_statistics(total, before.center)
            return center, family.spread_from_statistics(total, center, before.spread)
        noise = None if sent.noise is None else self.family.average_spread(sent.noise, n_rows / n_rows.sum())
        return average(sent.regressions, n_rows), noise

    def _exponential(self) -> ExponentialFamily:
        assert isinstance(self.family, ExponentialFamily)
        return self.family


def _spread(same: FullGaussians) -> FullGaussians:
    """Equal Gaussians, moved apart along the first principal axis, from -1 to 1 standard deviation."""
    parts = same.mean.shape[0]
    variances, axes = jnp.linalg.eigh(same.covariance[0])
    # An axis has no sign of its own; this one does not depend on the solver.
    axis = axes[:, -1] * jnp.sign(axes[jnp.argmax(jnp.abs(axes[:, -1])), -1])
    places = jnp.linspace(-1.0, 1.0, parts) if parts > 1 else jnp.zeros(1)
    offset = places.astype(axis.dtype)[:, None] * axis * jnp.sqrt(variances[-1])
    return same._replace(mean=same.mean + offset)
