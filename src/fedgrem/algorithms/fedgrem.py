"""FedGrEM, Algorithm 1 of Tian, Weng and Feng, "Towards the Theory of Unsupervised Federated Learning" (ICML 2024)."""

from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

from fedgrem.algorithms.base import capped_rows, vanished
from fedgrem.algorithms.local import gradient_upload, middle_spread
from fedgrem.families.base import Family
from fedgrem.kernels.anderson import Trail, correction, extend, new_trail, went_astray
from fedgrem.kernels.center import CenterSolution, alternate_to_center, group_soft_threshold, shrink_to_center, trust
from fedgrem.kernels.median import median
from fedgrem.types import Array, Broadcast, Central, Params, SiteData, Upload

LEAST_PART = 0.05
"""A component of less than this, relative to an equal share of the rows, is taken to hold this."""


LEAST_STEP_SCALE = 0.02
"""A reported step scale below this is taken as this, so that no site can make itself arbitrarily heavy."""


FAST_ROUNDS = 150
"""Rounds in which sites may take several steps and the center may extrapolate; what has not settled by then, because
it goes to and fro between two answers, say, goes on by the plain rounds of the paper."""


class Notebook(NamedTuple):
    """What the center holds besides."""

    played: Array
    """() rounds so far."""
    penalty: Array
    """() C, which may be chosen after the sites have started."""
    covariance_penalty: Array
    """() C for the noise, likewise."""
    pulled: Array
    """(K,) False for sites that are to keep their own answer and have no part in the center."""
    reference: Array | None
    """(C, s) the common spread of the starts, about which spreads are shrunk; None if the noise is known."""
    trail: Trail | None = None
    """The last centers, to extrapolate from; None if they are not."""
    held: tuple[Params, Array, Array | None] | None = None
    """Parameters, center and common spread before the last extrapolation, to go back to if it was a mistake."""


class Pull(NamedTuple):
    """What a site that takes several steps a round is told besides its parameters."""

    center: Array
    """(R, q)"""
    penalty: Array
    """() lambda of the round, for this site."""
    spread: Array | None
    """(C, s) the common noise, in whose units distances count."""
    steps: Array
    """() how many to take."""


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["penalty", "penalty_decay", "step_size", "penalty_start", "covariance_penalty"],
    meta_fields=[
        "family",
        "step_weights",
        "penalty_scaling",
        "penalty_rows",
        "center_solver",
        "center_sweeps",
        "local_steps",
        "memory",
    ],
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

    Two options make better use of what the sites send than the paper does. With ``penalty_rows="component"`` the
    :math:`n_k` above are :math:`n_k R w_{kr}`, the rows that the component holds at the site, so that a rare
    component, known badly, is pulled more and counts less; where all weights are equal nothing changes. And
    ``center_solver="redescending"`` lets a site that is far off not only pull with bounded force, but not at all: it is
    weighed by :func:`~fedgrem.kernels.center.trust`, so that hostile sites no longer shift the center of the others in
    proportion to the penalty.

    A round is a message to every site, so two options save rounds; neither moves the fixed point. A site may take
    several steps, each followed by the pull towards the center it was sent, the last one's being left to the center: a
    site far from all others gets to its own answer sooner, and stops disturbing them. And the center may extrapolate
    its own path (Anderson acceleration), taking along every component that sits on it; where its residual grows
    instead, it goes back to where it was and forgets the path.

    Parameters
    ----------
    covariance_penalty : :math:`C_\Sigma`; None is ``penalty``.
    local_steps : gradient steps of a site per round; 1 is the paper's.
    memory : how many steps of the center an extrapolation looks back on; 0 for none, the paper's.
    """

    family: Family
    penalty: float | Array = 2.0
    penalty_decay: float | Array = 0.1
    step_size: float | Array = 0.95
    penalty_start: float | Array = 1.0
    step_weights: Literal["current", "initial"] = "current"
    penalty_scaling: Literal["fixed", "step"] = "fixed"
    penalty_rows: Literal["site", "component"] = "site"
    center_solver: Literal["redescending", "exact", "alternating"] = "exact"
    center_sweeps: int = 2
    covariance_penalty: float | Array | None = None
    local_steps: int = 1
    memory: int = 0

    def central_start(self, params: Params, n_rows: Array) -> Central:
        """Begin at the coordinate-wise median of the starts, with lambda_0."""
        penalty = jnp.asarray(self.penalty_start, dtype=params.theta.dtype)
        center = median(params.theta)
        middle = middle_spread(params)
        noise = self.penalty if self.covariance_penalty is None else self.covariance_penalty
        mine, its = (jnp.asarray(c, dtype=params.theta.dtype) for c in (self.penalty, noise))
        notebook = Notebook(jnp.asarray(0), mine, its, jnp.ones(len(n_rows), dtype=bool), middle)
        if self.memory:
            notebook = notebook._replace(trail=new_trail(center, self.memory), held=(params, center, middle))
        return Central(params, center, n_rows, params.weights, penalty, notebook, middle)

    def with_penalties(self, central: Central, penalty: float, covariance_penalty: float, pulled: Array) -> Central:
        """The same start with other constants, and with sites ``(K,)`` that are not to be pulled at all."""
        mine, its = (jnp.asarray(c, dtype=central.penalty.dtype) for c in (penalty, covariance_penalty))
        notebook = central.extra._replace(penalty=mine, covariance_penalty=its, pulled=pulled)
        return central._replace(extra=notebook)

    def broadcast(self, central: Central) -> Broadcast:
        """Each site gets its own parameters back; and what pulls on them, if it is to take several steps."""
        if self.local_steps == 1:
            return Broadcast(central.params, central.first_weights)
        steps = jnp.where(central.extra.played < FAST_ROUNDS, self.local_steps, 1)
        pull = Pull(central.center, self._next_penalty(central), central.spread, steps)
        everyone = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (*central.n_rows.shape, *leaf.shape)), pull)
        everyone = everyone._replace(penalty=jnp.where(central.extra.pulled, everyone.penalty, 0.0))
        return Broadcast(central.params, central.first_weights, everyone)

    def local_step(self, data: SiteData, sent: Broadcast) -> Upload:
        """E-step and one gradient step on this site's rows; or several, pulled towards the center in between."""
        first = sent.first_weights if self.step_weights == "initial" else None
        step = partial(gradient_upload, self.family, data, step_size=self.step_size, first_weights=first)
        if self.local_steps == 1:
            return step(sent.params)

        def once(_: int, params: Params) -> Params:
            moved = step(params)
            return Params(moved.params.weights, self._pulled(moved, sent.extra), params.spread)

        params = jax.lax.fori_loop(0, sent.extra.steps - 1, once, sent.params)
        return step(params)

    def _pulled(self, moved: Upload, pull: Pull) -> Array:
        """One site's components, ``(R, q)``, drawn towards the center as the center itself will do."""
        theta, center = (self.family.in_noise_units(t, pull.spread) for t in (moved.params.theta, pull.center))
        within = self._threshold(moved.n_rows, moved.params.weights, pull.penalty, _step_scale(moved))
        return self.family.from_noise_units(group_soft_threshold(theta[None], center, within[None])[0], pull.spread)

    def _next_penalty(self, central: Central) -> Array:
        n_sites, _, n_parameters = central.params.theta.shape
        constant = central.extra.penalty
        penalty = self.penalty_decay * central.penalty + constant * jnp.sqrt(n_parameters + jnp.log(n_sites))
        # No penalty is no pull at all, from the first round: lambda_0 is not to linger where there is nothing to share.
        return jnp.where(constant == 0, 0.0, penalty)

    def _threshold(self, n_rows: Array, weights: Array, penalty: Array, scale: Array) -> Array:
        """(..., R) of a step of this scale, a full one being 1; with n_rows ``(..., 1)`` and weights ``(..., R)``."""
        full: Array = threshold(penalty, n_rows, weights, self.penalty_rows, self.penalty_scaling, self.step_size)
        return scale * full

    def share(self, weights: Array) -> Array:
        """(..., R) what a component counts for at the center: its part of its site's rows, relative to an even one."""
        return _share(weights, self.penalty_rows)

    def central_step(self, central: Central, uploads: Upload) -> tuple[Central, Array, Array]:
        """Find the penalized center of every component and pull the sites towards it."""
        noise = central.spread
        theta, start = (self.family.in_noise_units(t, noise) for t in (uploads.params.theta, central.center))
        penalty = self._next_penalty(central)
        solution = self._solve(theta, uploads, _for_sites(penalty, central), start)
        shrunk, center = (self.family.from_noise_units(t, noise) for t in (solution.shrunk, solution.center))
        spread, common = self._shrink_spread(central, uploads, theta.shape[-1])
        params = Params(uploads.params.weights, shrunk, spread)
        if spread is not None and common is not None:
            params = _reseeded(params, center, common, uploads.n_rows)
        notebook = central.extra._replace(played=central.extra.played + 1)
        after = central._replace(params=params, center=center, penalty=penalty, spread=common, extra=notebook)
        if self.memory:
            after = self._extrapolated(central, after)
        return after, solution.iterations, solution.gap

    def _extrapolated(self, before: Central, after: Central) -> Central:
        """The center moved on along its path, with all that sits on it; or taken back, if the last time was a mistake.

        Only the center leads: a site that keeps its own answer neither moves nor steers, whatever it sends.
        """
        notebook: Notebook = after.extra
        assert notebook.trail is not None
        assert notebook.held is not None
        residual = (after.center - before.center).ravel()
        fast = notebook.played < FAST_ROUNDS
        astray = fast & went_astray(notebook.trail, residual)
        trail = extend(notebook.trail, before.center, residual)
        moved = after.center + jnp.where(fast, correction(trail), 0.0).reshape(after.center.shape)
        on_center = jnp.all(after.params.theta == after.center, axis=-1, keepdims=True)
        led = after.params._replace(theta=jnp.where(on_center, moved, after.params.theta))
        plain = (after.params, after.center, after.spread)

        def unless_astray(new: Any, old: Any) -> Any:
            return jax.tree.map(lambda a, b: jnp.where(astray, b, a), new, old)

        params, center, spread = unless_astray((led, moved, after.spread), notebook.held)
        kept = notebook._replace(
            trail=unless_astray(trail, new_trail(before.center, self.memory)), held=unless_astray(plain, notebook.held)
        )
        return after._replace(params=params, center=center, spread=spread, extra=kept)

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
        constant = central.extra.covariance_penalty
        penalty = jnp.where(constant == 0, 0.0, constant * jnp.sqrt(size + jnp.log(n_sites)))
        # A noise that all components share rests on all rows of a site.
        share = self.share(uploads.params.weights) if count > 1 else jnp.ones((n_sites, 1), dtype=away.dtype)
        held = uploads.n_rows[:, None] * share
        weight = capped_rows(uploads.n_rows)[:, None] * share
        threshold = _for_sites(penalty, central) / jnp.sqrt(held)
        start = self.family.relative_spread(before, chart, n_features)
        if self.center_solver == "redescending":
            weight = weight * trust(away, held, start)
        found = shrink_to_center(away, weight, threshold, start)
        pulled, center = (self.family.absolute_spread(a, chart, n_features) for a in (found.shrunk, found.center))
        return pulled, center

    def _solve(self, theta: Array, uploads: Upload, penalty: Array, start: Array) -> CenterSolution:
        scale, share = _step_scale(uploads), self.share(uploads.params.weights)
        held = uploads.n_rows[:, None] * share
        weight = capped_rows(uploads.n_rows)[:, None] * share / scale
        within = self._threshold(uploads.n_rows[:, None], uploads.params.weights, penalty, scale)
        if self.center_solver == "alternating":
            return alternate_to_center(theta, weight, within, sweeps=self.center_sweeps)
        if self.center_solver == "redescending":
            weight = weight * trust(theta, held, start)
        return shrink_to_center(theta, weight, within, start)


def _share(weights: Array, penalty_rows: str) -> Array:
    if penalty_rows == "site":
        return jnp.ones_like(weights)
    return jnp.maximum(weights * weights.shape[-1], LEAST_PART)


@partial(jax.jit, static_argnames=("penalty_rows", "penalty_scaling"))
def threshold(
    penalty: Array | float,
    n_rows: Array,
    weights: Array,
    penalty_rows: str,
    penalty_scaling: str,
    step_size: float | Array,
) -> Array:
    """(..., R) how far each component is pulled by ``penalty``, lambda.

    Parameters
    ----------
    n_rows : (..., 1) of the sites; weights : (..., R) of their components; the others : options of :class:`FedGrEM`.

    Examples
    --------
    >>> n_rows, weights = jnp.array([[100.0]]), jnp.array([[0.125, 0.875]])
    >>> threshold(5.0, n_rows, weights, "component", "fixed", 0.95).round(2).tolist()
    [[1.0, 0.3799999952316284]]
    """
    pull: Array = penalty / jnp.sqrt(n_rows * _share(weights, penalty_rows))
    return pull * step_size if penalty_scaling == "step" else pull


def _for_sites(penalty: Array, central: Central) -> Array:
    """(K, 1) the penalty of each site: none where it is not to be pulled, were it infinite for the others."""
    return jnp.where(central.extra.pulled[:, None], penalty, 0.0)


def _step_scale(uploads: Upload) -> Array:
    return jnp.clip(uploads.step_scale, LEAST_STEP_SCALE, 1.0)


def _reseeded(params: Params, center: Array, common: Array, n_rows: Array) -> Params:
    """Components of which a site holds less than one row begin again at the center, with the common noise."""
    assert params.spread is not None
    gone = vanished(params.weights, n_rows)[..., None]
    # A noise that all components share is no component's own.
    spread = params.spread if common.shape[0] == 1 else jnp.where(gone, common, params.spread)
    return params._replace(theta=jnp.where(gone, center, params.theta), spread=spread)
