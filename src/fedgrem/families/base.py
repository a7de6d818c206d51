"""The Family protocol, and the gradient M-step that every family gets."""

from typing import NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp

from fedgrem.kernels.responsibilities import posterior
from fedgrem.types import Array, Params, SiteData

LEAST_SHARE = 0.2
"""A component counts for at least this part of an even share 1/R where a step is divided by its weight.

A rarer component than that takes shorter steps, so that a site which has hardly seen it leans on the center instead of
on a handful of rows.
"""
MAX_HALVINGS = 30


@runtime_checkable
class Family(Protocol):
    """What a component is. Hyper-parameters only; hashable, so that a program is compiled once per family."""

    @property
    def safe_step(self) -> bool:
        """Whether a step within :meth:`curvature` always raises Q, so that no line search is needed."""
        ...

    @property
    def has_target(self) -> bool:
        """Whether the family explains a response ``y``."""
        ...

    @property
    def start_tracks(self) -> int:
        """Joint starts that sites should improve together before round 1; 0 where a site's own rows suffice."""
        ...

    @property
    def path_steps(self) -> int:
        """Gradient steps of a site per round while penalties are compared: more where a step gets less far."""
        ...

    def n_parameters(self, n_features: int) -> int:
        """Length q of a component's parameter vector."""
        ...

    def log_density(self, data: SiteData, theta: Array, spread: Array | None = None) -> Array:
        """Log density of every row of one site under every component, ``(R, n)``."""
        ...

    def q_gradient(self, data: SiteData, theta: Array, mass: Array, spread: Array | None = None) -> Array:
        r"""Gradient of :math:`Q = \sum_{ri} m_{ri} \log p(x_i; \theta_r)` in theta, ``(R, q)``.

        Where the noise is estimated: the gradient in its metric, that of :math:`\Sigma Q` for a covariance
        :math:`\Sigma`. A step along it does not depend on the units of the features, nor on the noise.
        """
        ...

    def curvature(self, data: SiteData, theta: Array, mass: Array) -> Array:
        """Bound on the largest curvature of that Q in each component, in the same metric, ``(R,)``."""
        ...

    def exact_step(self, data: SiteData, theta: Array, mass: Array, spread: Array | None = None) -> Array:
        """The maximizer of that Q, ``(R, q)``, or the best step towards it that the family knows."""
        ...

    def draw_start(self, key: Array, data: SiteData, n_components: int, spread: Array | None = None) -> Array:
        """Draw random component parameters from one site's rows, ``(R, q)``, in the units of a known spread."""
        ...

    def first_spread(self, data: SiteData, theta: Array) -> Array | None:
        """A spread ``(C, s)`` to go with drawn parameters; None where the noise is known."""
        ...

    def spread_step(self, data: SiteData, theta: Array, mass: Array, spread: Array | None) -> Array | None:
        """The maximizer of Q in the spread ``(C, s)`` at ``theta``; None where the noise is known."""
        ...

    def in_noise_units(self, theta: Array, spread: Array | None) -> Array:
        """Parameters ``(..., R, q)`` in units in which components of this spread ``(..., C, s)`` have unit noise."""
        ...

    def from_noise_units(self, theta: Array, spread: Array | None) -> Array:
        """The way back."""
        ...

    def relative_spread(self, spread: Array, reference: Array, n_features: int) -> Array:
        """Spreads ``(..., C, s)`` about a reference, in coordinates that n rows know to about ``1/sqrt(n)`` each."""
        ...

    def absolute_spread(self, coordinates: Array, reference: Array, n_features: int) -> Array:
        """The way back."""
        ...

    def average_spread(self, spread: Array, share: Array) -> Array:
        """The spread ``(C, s)`` of the mean covariance of sites ``(K, C, s)``, weighted by ``share`` (K,)."""
        ...


class KnownNoise:
    """What families without a spread answer: theta is in noise units as it is."""

    def first_spread(self, data: SiteData, theta: Array) -> Array | None:
        """No spread."""
        return None

    def spread_step(self, data: SiteData, theta: Array, mass: Array, spread: Array | None) -> Array | None:
        """No spread."""
        return None

    def in_noise_units(self, theta: Array, spread: Array | None) -> Array:
        """As they are."""
        return theta

    def from_noise_units(self, theta: Array, spread: Array | None) -> Array:
        """As they are."""
        return theta

    def relative_spread(self, spread: Array, reference: Array, n_features: int) -> Array:
        """Never asked of a family without a spread."""
        raise NotImplementedError

    def absolute_spread(self, coordinates: Array, reference: Array, n_features: int) -> Array:
        """Never asked of a family without a spread."""
        raise NotImplementedError

    def average_spread(self, spread: Array, share: Array) -> Array:
        """Never asked of a family without a spread."""
        raise NotImplementedError


@runtime_checkable
class ExponentialFamily(Protocol):
    """What a family may offer besides: an M-step that sees the rows only through sums over them.

    The statistics of several sites add up, and the M-step from the sum is that on all their rows.
    """

    def n_statistics(self, n_parameters: int) -> int:
        """Numbers s per component."""
        ...

    def sufficient_statistics(self, data: SiteData, mass: Array) -> Array:
        """Sums over one site's rows, weighted by ``mass`` (R, n), ``(R, s)``."""
        ...

    def from_statistics(self, statistics: Array, theta: Array) -> Array:
        """The maximizer of Q, ``(R, q)``; a component that holds nothing may stay at ``theta``."""
        ...

    def spread_from_statistics(self, statistics: Array, theta: Array, spread: Array | None) -> Array | None:
        """The maximizer of Q in the spread, ``(C, s)``, at ``theta``; None where the noise is known."""
        ...


@runtime_checkable
class ScoredFamily(Protocol):
    """What a family may offer besides: scores of a row whose component is known, so that no Hessian is needed.

    Spreads are taken in coordinates about the present one; which ones is the family's business.
    """

    def complete_scores(self, data: SiteData, theta: Array, spread: Array | None) -> tuple[Array, Array | None]:
        """Of every component and row, in theta ``(R, q, n)`` and in the coordinates of the spread ``(R, s, n)``."""
        ...

    def complete_information(
        self, data: SiteData, theta: Array, mass: Array, spread: Array | None
    ) -> tuple[Array, Array | None]:
        """In theta ``(R, q, q)``, and the diagonal of that in the coordinates of the spread ``(C, s)``, as expected."""
        ...


class Ascent(NamedTuple):
    """One gradient step on Q."""

    theta: Array
    """(R, q)"""
    step_scale: Array
    """(R,) the step relative to ``step_size / weight``."""


@runtime_checkable
class SharedDensity(Protocol):
    """What a family may offer besides: densities without what the components of a row have in common."""

    def relative_log_density(self, data: SiteData, theta: Array, spread: Array | None) -> tuple[Array, Array]:
        """Log densities ``(R, n)`` less a part that depends on the row only; and that part's weighted sum, ``()``."""
        ...


def expect(family: Family, data: SiteData, params: Params) -> tuple[Array, Array]:
    """The E-step on one site's rows: posterior mass ``(R, n)`` and the log-likelihood."""
    if isinstance(family, SharedDensity):
        relative, common = family.relative_log_density(data, params.theta, params.spread)
        mass, log_likelihood = posterior(relative, params.weights, data.row_weight)
        return mass, log_likelihood + common
    return posterior(family.log_density(data, params.theta, params.spread), params.weights, data.row_weight)


def maximize(family: Family, data: SiteData, params: Params, mass: Array) -> Params:
    """The exact M-step on one site's rows: weights, parameters, then the spread about these."""
    theta = family.exact_step(data, params.theta, mass, params.spread)
    spread = family.spread_step(data, theta, mass, params.spread)
    return Params(mass.sum(axis=1) / data.row_weight.sum(), theta, spread)


def q_value(family: Family, data: SiteData, theta: Array, mass: Array) -> Array:
    """Q of each component, ``(R,)``; rows without mass count for nothing, whatever their density."""
    return jnp.sum(jnp.where(mass > 0, mass * family.log_density(data, theta), 0.0), axis=1)


def q_gradient_by_autodiff(family: Family, data: SiteData, theta: Array, mass: Array) -> Array:
    """The gradient of Q for a family that does not write one."""

    def total(t: Array) -> Array:
        return q_value(family, data, t, mass).sum()

    gradient: Array = jax.grad(total)(theta)
    return gradient


def largest_eigenvalue_bound(matrix: Array) -> Array:
    r"""Cheap upper bound on the spectral norm of symmetric matrices ``(..., q, q)``.

    It is at most :math:`q^{1/16}` too large:
    :math:`\|A\|_2 \le \|A^8\|_F^{1/8} \le q^{1/16}\|A\|_2`, by three squarings instead of an eigenvalue solver.

    Examples
    --------
    >>> float(largest_eigenvalue_bound(jnp.diag(jnp.array([1.0, 4.0]))))
    4.0
    """
    scale = jnp.sqrt(jnp.sum(matrix * matrix, axis=(-2, -1)))
    a = matrix / jnp.where(scale > 0, scale, 1.0)[..., None, None]
    for _ in range(3):
        a = a @ a
    return scale * jnp.sum(a * a, axis=(-2, -1)) ** (1.0 / 16.0)


def curvature_by_autodiff(family: Family, data: SiteData, theta: Array, mass: Array) -> Array:
    """Bound the curvature of Q at theta through its Hessian, ``(R,)``."""

    def one(theta_r: Array, mass_r: Array) -> Array:
        return -q_value(family, data, theta_r[None], mass_r[None])[0]

    return largest_eigenvalue_bound(jax.vmap(jax.hessian(one))(theta, mass))


def ascend(
    family: Family,
    data: SiteData,
    theta: Array,
    mass: Array,
    *,
    step_size: Array | float,
    first_weights: Array | None = None,
    spread: Array | None = None,
) -> Ascent:
    r"""One gradient ascent step on Q: the gradient M-step of every family.

    By default component r moves by :math:`C_\eta s_r / w_r` times the gradient of the mean Q, where :math:`w_r` is
    the mean responsibility of this E-step and :math:`s_r = \min(1, w_r / \text{curvature})` keeps the step stable
    when rows are on another scale than the paper's. For unit Gaussians s = 1. With ``first_weights`` the step is the
    paper's, :math:`C_\eta / w_r^{[0]}`, whatever the curvature.
    """
    n_rows = data.row_weight.sum()
    floor = LEAST_SHARE / theta.shape[0]
    held = jnp.maximum(mass.sum(axis=1), floor * n_rows)
    gradient = family.q_gradient(data, theta, mass, spread)
    if first_weights is not None:
        step = step_size / (jnp.maximum(first_weights, floor) * n_rows)
        return Ascent(theta + step[:, None] * gradient, jnp.ones_like(held))
    scale = held / jnp.maximum(family.curvature(data, theta, mass), held)
    if not family.safe_step:
        scale = _halve_until_ascent(family, data, theta, mass, gradient, step_size / held, scale)
    return Ascent(theta + (step_size * scale / held)[:, None] * gradient, scale)


def _halve_until_ascent(
    family: Family, data: SiteData, theta: Array, mass: Array, gradient: Array, step: Array, scale: Array
) -> Array:
    """Halve each component's step until it raises its Q by a quarter of what the gradient promises."""
    before = q_value(family, data, theta, mass)
    promise = 0.25 * jnp.sum(gradient * gradient, axis=1) * step

    def short(scale: Array) -> Array:
        after = q_value(family, data, theta + (step * scale)[:, None] * gradient, mass)
        # The last digits of Q are noise: a step that leaves it level is no failure.
        slack = 1e-12 * jnp.abs(before)
        return ~(after >= before + promise * scale - slack)

    def keep_going(carry: tuple[Array, Array, Array]) -> Array:
        _, failed, halvings = carry
        return jnp.any(failed) & (halvings < MAX_HALVINGS)

    def halve(carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        scale, failed, halvings = carry
        scale = jnp.where(failed, 0.5 * scale, scale)
        return scale, short(scale), halvings + 1

    scale, failed, _ = jax.lax.while_loop(keep_going, halve, (scale, short(scale), jnp.asarray(0)))
    return jnp.where(failed, 0.0, scale)
