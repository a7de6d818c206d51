"""FedGMM, of Wu, Zhang, Yu, Liu, Gu, Zhou, Chen and Cheng (ICML 2023).

"Personalized Federated Learning under Mixture of Distributions".
"""

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal, NamedTuple, TypeAlias

import numpy as np

from fedgrem.algorithms.base import Options, Pull, Traits, for_all, keep_absent, no_pull
from fedgrem.algorithms.fedem import average, present_share
from fedgrem.algorithms.local import plain_start
from fedgrem.data.stack import Block, Stack
from fedgrem.errors import InputError
from fedgrem.families.base import ExponentialFamily, Family, posterior, with_ones
from fedgrem.families.covariance import Full, lifted
from fedgrem.families.gaussian import Gaussian
from fedgrem.families.regression import LinearRegression
from fedgrem.kernels.triangle import products, symmetric
from fedgrem.types import Array, Broadcast, Central, Influence, Params, Sums, Upload

Averaging: TypeAlias = Literal["mass", "rows"]
_FULL = Gaussian(Full(), 0.0)


class Gaussians(NamedTuple):
    """M Gaussians with a covariance each."""

    mean: Array
    """(M, p)"""
    covariance: Array
    """(M, p, p)"""


class JointState(NamedTuple):
    """What the center of the joint mixture holds besides the regressions; a site gets the same, of its own."""

    covariates: Gaussians
    """(M1, p) and (M1, p, p), common."""
    joint: Array
    """(K, M1, R) weights of every pair of components at every site."""
    started: Array
    """() 0 before the covariate components are known, then 1."""


class Moments(NamedTuple):
    """What a site sends besides its parameters where components are Gaussians."""

    sums: Array
    """(R, t) posterior sums of ``(1, x, x x')``."""


class JointMoments(NamedTuple):
    """What a site sends besides its parameters where components are regressions."""

    joint: Array
    """(M1, R)"""
    covariates: Array
    """(M1, t) posterior sums of ``(1, x, x x')``."""
    regressions: Array
    """(R, t) posterior sums of the family's features."""
    rest: Array
    """(u,) what no component owns of them."""


@dataclass(frozen=True)
class FedGMM(Options):
    r"""Shared components and each site's own weights; covariates modelled too where there is a response.

    Gaussian components: site k has density :math:`\sum_r \pi_{kr} N(x; \mu_r, \Sigma_r)`, the original's model of the
    covariates. Where the family's covariance is the identity, what uses a fit afterwards takes unit covariances, like
    every system here: the full covariances serve the fit, start at the identity and stay in the center's state.

    Regressions: the joint mixture

    .. math:: p_k(x, y) = \sum_{m=1}^{M_1} \sum_{r=1}^{R} \pi_k(m, r)\, N(x; \mu_m, \Sigma_m)\, N(y; x'\theta_r, 1).

    Sites send posterior sums. With ``averaging="mass"`` the center adds them up, which is exact EM for the shared
    components; the original averages the sites' own M-steps by responsibility mass: the same means, but covariances
    that miss the dispersion of the sites' means. With ``averaging="rows"`` the sites' M-steps are averaged by their
    rows, as in FedEM and in the public scripts of Tian, Weng and Feng (2024).

    The reported weights of a joint mixture are the margins over the regressions. Those scripts start the covariate
    components from each site's own EM; here round 1 ignores the covariates, takes their common mean and covariance, and
    puts the M1 components from one standard deviation below to one above along the first principal axis.
    """

    name: ClassVar[str] = "fedgmm"
    traits: ClassVar[Traits] = Traits("FedGMM", "all", whole_rows=True)
    covariate_components: int = 3
    reg_covar: float = 1e-6
    averaging: Averaging = "rows"

    def _model(self, family: Family) -> "_Densities | _JointMixture":
        """What sites and center do for components of this family."""
        if family.name not in MODELS:
            raise InputError(
                f"algorithm 'fedgmm' does not run on {family.name} components: it needs Gaussians or regressions; use "
                "'fedem' or 'fedgrem'."
            )
        return MODELS[family.name](family, self)

    def begin(self, family: Family, start: Params, n_rows: Array, pull: Pull) -> Central:
        """Begin at the given starts, with unit covariances, knowing nothing of the covariates."""
        return self._model(family).begin(plain_start(start, n_rows))

    def broadcast(self, family: Family, central: Central) -> Broadcast:
        """Own weights and, before round 1, own components; the common Gaussians."""
        return Broadcast(central.params, self._model(family).told(central.extra, len(central.n_rows)))

    def local_step(self, family: Family, stack: Stack, sent: Broadcast, seed: int) -> Upload:
        """E-step and the posterior sums of every component."""
        return self._model(family).local_step(stack, sent)

    def central_step(
        self, family: Family, central: Central, uploads: Upload, present: Array
    ) -> tuple[Central, Influence]:
        """Common components from the sites' sums."""
        share, n_sites = present_share(central.n_rows, present), len(present)
        weights = keep_absent(uploads.params, central.params, present).weights
        center, noise, extra = self._model(family).merge(central, uploads, share, weights)
        params = Params(weights, for_all(center, n_sites), None if noise is None else for_all(noise, n_sites))
        influence = no_pull(weights, share, np.inf)
        if self.averaging == "mass":
            influence = influence._replace(weight=weights * central.n_rows[:, None] * present[:, None])
        return central._replace(params=params, center=center, noise=noise, extra=extra), influence


@dataclass(frozen=True)
class _Densities:
    """Gaussian components of the rows."""

    family: Any
    options: FedGMM

    def begin(self, central: Central) -> Central:
        n_components, width = central.center.shape
        return central._replace(extra=Gaussians(central.center, np.tile(np.eye(width), (n_components, 1, 1))))

    def told(self, state: Gaussians, n_sites: int) -> Gaussians:
        return Gaussians(*(for_all(leaf, n_sites) for leaf in state))

    def local_step(self, stack: Stack, sent: Broadcast) -> Upload:
        params, state = sent.params, sent.extra
        if params.noise is None:
            full = params._replace(noise=_FULL.covariance.from_matrices(state.covariance))
            sums = _FULL.expect(stack, full)
            moments, value = sums.features, sums.log_likelihood
        else:
            posterior, by_row = self.family.row_scores(stack, params)
            moments = (posterior * stack.weight[:, None]) @ _FULL.features_of(stack)
            value = (stack.weight * by_row).sum(axis=1)
        weights = moments[..., 0] / moments[..., 0].sum(axis=-1, keepdims=True)
        return Upload(params._replace(weights=weights), np.ones_like(weights), stack.n_rows, value, Moments(moments))

    def merge(
        self, central: Central, uploads: Upload, share: Array, weights: Array
    ) -> tuple[Array, Array | None, Gaussians]:
        before: Gaussians = central.extra
        here = share > 0
        sums, lift = uploads.extra.sums[here], self.options.reg_covar
        if self.options.averaging == "mass":
            after = _from_sums(sums.sum(axis=0), before, lift)
        else:
            own = [_from_sums(one, before, lift) for one in sums]
            after = Gaussians(*(average(np.stack(leaves), share[here]) for leaves in zip(*own, strict=True)))
        noise = None
        if central.noise is not None:
            noise = _structured(self.family, after.covariance, average(weights, share))
        return after.mean, noise, after


@dataclass(frozen=True)
class _JointMixture:
    """Regressions, and Gaussians of their covariates."""

    family: Any
    options: FedGMM

    def begin(self, central: Central) -> Central:
        parts, width = self.options.covariate_components, central.center.shape[1]
        covariates = Gaussians(np.zeros((parts, width)), np.tile(np.eye(width), (parts, 1, 1)))
        joint = np.repeat(central.params.weights[:, None] / parts, parts, axis=1)
        return central._replace(extra=JointState(covariates, joint, np.zeros(())))

    def told(self, state: JointState, n_sites: int) -> JointState:
        covariates = Gaussians(*(for_all(leaf, n_sites) for leaf in state.covariates))
        return JointState(covariates, state.joint, np.full(n_sites, float(state.started)))

    def local_step(self, stack: Stack, sent: Broadcast) -> Upload:
        family, state = self.family, sent.extra
        c, parts, n_components = state.joint.shape
        width = stack.rows.shape[-1]
        scale = family.open(None, sent.params.noise, width)
        of_responses = family.natural(np.ones((c, n_components)), sent.params.theta, scale)
        noise = _FULL.covariance.from_matrices(state.covariates.covariance)
        of_covariates = (
            _FULL.natural(np.ones((c, parts)), state.covariates.mean, _FULL.covariance.open(noise, width))
            * state.started[:, None, None]
        )
        features = stack.derive("joint features", partial(_joint_features, family))
        t1 = of_covariates.shape[-1]
        eta = np.zeros((c, parts, n_components, t1 + of_responses.shape[-1] - 1))
        eta[..., :t1] = of_covariates[:, :, None]
        eta[..., 0] += of_responses[:, None, :, 0] + np.log(np.maximum(state.joint, 1e-300))
        eta[..., t1:] = of_responses[:, None, :, 1:]
        eta = eta.reshape(c, parts * n_components, -1)

        def one(block: Block) -> tuple[Array, Array]:
            share, total, peak = posterior(eta, block.features, parts * n_components)
            value = (block.weight[:, None] * (peak + np.log(total))).sum(axis=-1)[:, 0]
            share *= (block.weight[:, None] / total)[:, :, None]
            return share[:, 0] @ block.features, value

        sums, value = stack.total(features, one, parts * n_components)
        sums = sums.reshape(c, parts, n_components, -1)
        joint = sums[..., 0] / stack.n_rows[:, None, None]
        regressions = np.concatenate([sums[..., :1], sums[..., t1:]], axis=-1).sum(axis=1)
        rest = family.rest_of(stack)
        statistics = JointMoments(joint, sums[..., :t1].sum(axis=2), regressions, rest)
        weights = joint.sum(axis=1)
        params = sent.params._replace(weights=weights)
        value = value + family.rows_part(rest, stack.n_rows, scale)
        return Upload(params, np.ones_like(weights), stack.n_rows, value, statistics)

    def merge(
        self, central: Central, uploads: Upload, share: Array, weights: Array
    ) -> tuple[Array, Array | None, JointState]:
        state: JointState = central.extra
        present = share > 0
        found = _from_sums(uploads.extra.covariates[present].sum(axis=0), state.covariates, self.options.reg_covar)
        joint = np.where(present[:, None, None], uploads.extra.joint, state.joint)
        after = JointState(found if state.started > 0 else _apart(found), joint, np.ones(()))
        return *self._regressions(central, uploads, share), after

    def _regressions(self, central: Central, uploads: Upload, share: Array) -> tuple[Array, Array | None]:
        family, present = self.family, share > 0
        sums, rest = uploads.extra.regressions, uploads.extra.rest
        if self.options.averaging == "mass":
            total = Sums(sums[present].sum(axis=0), rest[present].sum(axis=0), np.zeros(()))
            center = family.solve(total, central.center)
            return center, family.noise_step(total, center, central.noise)
        here = present[:, None]
        own = Sums(np.where(here[..., None], sums, 0.0), np.where(here, rest, 0.0), np.zeros(()))
        theta = family.solve(own, central.params.theta)
        noise = family.noise_step(own, theta, central.params.noise)
        return average(theta, share), None if noise is None else family.average_noise(noise, share)


MODELS: dict[str, type[_Densities] | type[_JointMixture]] = {
    Gaussian.name: _Densities,
    LinearRegression.name: _JointMixture,
}
"""By the name of the family."""


def _joint_features(family: ExponentialFamily, stack: Stack) -> Array:
    """``(1, x, x x')`` and the family's own features behind them."""
    own = with_ones(np.concatenate([stack.rows, products(stack.rows)], axis=-1))
    return np.concatenate([own, family.features(stack)[..., 1:]], axis=-1)


def _structured(family: Gaussian, covariance: Array, share: Array) -> Array:
    """The noise ``(C, s)`` of the family's structure for a covariance per component, weighted by ``share`` (R,)."""
    if family.covariance.shared:
        covariance = np.einsum("r,rpq->pq", share / share.sum(), covariance)[None]
    return np.asarray(family.covariance.from_matrices(covariance))


def _from_sums(sums: Array, before: Gaussians, reg_covar: float) -> Gaussians:
    """Means and covariances from sums ``(M, t)``; a Gaussian that holds nothing stays as it was."""
    width = before.mean.shape[1]
    mass = sums[:, 0]
    held = mass > 1e-10 * mass.sum()  # what is left of a vanished component is rounding
    count = np.where(held, mass, 1.0)
    mean = sums[:, 1 : 1 + width] / count[:, None]
    second = symmetric(sums[:, 1 + width :]) / count[:, None, None]
    covariance = second - mean[:, :, None] * mean[:, None]
    size = np.trace(second, axis1=1, axis2=2)
    lift = 100.0 * np.finfo(float).eps * size
    covariance = lifted(covariance, reg_covar) + lift[:, None, None] * np.eye(width)
    mean = np.where(held[:, None], mean, before.mean)
    return Gaussians(mean, np.where(held[:, None, None], covariance, before.covariance))


def _apart(same: Gaussians) -> Gaussians:
    """Equal Gaussians, moved apart along the first principal axis, from -1 to 1 standard deviation."""
    parts = len(same.mean)
    variances, axes = np.linalg.eigh(same.covariance[0])
    # An axis has no sign of its own; this one does not depend on the solver.
    axis = axes[:, -1] * np.sign(axes[np.argmax(np.abs(axes[:, -1])), -1])
    places = np.linspace(-1.0, 1.0, parts) if parts > 1 else np.zeros(1)
    return same._replace(mean=same.mean + places[:, None] * axis * np.sqrt(max(variances[-1], 0.0)))
