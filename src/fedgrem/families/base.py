r"""What a component is.

Every shipped family is an exponential family given the component: with features F of a row,

.. math:: \log w_r\, p(x; \theta_r) = e_r \cdot F(x) + \text{a part of the row alone}, \quad F(x)_0 = 1,

so that posteriors are a softmax of one matrix product, and all that a step needs are posterior sums of features. What
the sums do not say, a family says: its features, its natural parameters e, and what follows from sums.

Parameters are ``(c, ..., R, q)`` for the c sites of a stack, axes in between being fits side by side.
"""

from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple, Protocol, TypeAlias

import numpy as np

from fedgrem.data.stack import Block, Stack, scratch
from fedgrem.families import bounded
from fedgrem.types import Array, Params, Sums

LEAST_SHARE = 0.2
"""A component counts for at least this part of an even share 1/R where a step is divided by its weight.

A rarer component than that takes shorter steps, so that a site which has hardly seen it leans on the center instead of
on a handful of rows.
"""
LEAST_WEIGHT = 1e-300
SMALLEST, LARGEST = 1e-200, 1e200
"""Sums of likelihoods between which nothing that counts is lost to the range of numbers."""
FEWEST_ROWS = 2.0
"""For every component, with which a site has a noise of its own."""


Pulled: TypeAlias = Callable[[Array, Array], Array]
"""A function of theta and the scale of the step that led there: theta shrunk towards the center."""


class Ascent(NamedTuple):
    """A gradient step on Q."""

    theta: Array
    """(..., R, q)"""
    step_scale: Array
    """(..., R) the step relative to ``step_size / weight``."""


class Family(Protocol):
    """What a component is: hyper-parameters only. Frozen and hashable, as features are kept by family."""

    name: ClassVar[str]
    """In the registry; also how a :class:`~fedgrem.fit.spec.FitSpec` names it."""
    has_target: ClassVar[bool]
    """Whether the family explains a response."""
    exponential: ClassVar[bool]
    """Whether components are an exponential family: sums of features are all a step needs, and tell standard errors."""
    unit_errors: ClassVar[bool]
    """Whether every coordinate of an M-step, in units of the noise, has a variance of about one over the rows held:
    then estimates of the sites tell how much these truly differ."""
    joint_starts: ClassVar[int]
    """Joint starts that sites improve together before round 1; 0 where a site's own rows suffice."""
    path_steps: ClassVar[int]
    """Gradient steps of a site per round while penalties are compared: more where a step gets less far."""

    @property
    def robust_rows(self) -> bool:
        """Whether what a row says is bounded in units of its component's noise: :mod:`fedgrem.families.bounded`."""
        ...

    def n_parameters(self, n_features: int) -> int:
        """Length q of a component's parameter vector."""
        ...

    def check_target(self, name: str, target: Array) -> None:
        """Refuse responses of a site that no component could have."""
        ...

    def noise_shape(self, n_components: int, n_features: int) -> tuple[int, int] | None:
        """(C, s) of a noise; None where it is known."""
        ...

    def open(self, stack: Stack | None, noise: Array | None, n_features: int) -> Any:
        """Whatever of a noise every step needs; None where it is known."""
        ...

    def expect(self, stack: Stack, params: Params, scale: Any = None, *, scored: bool = True) -> Sums:
        """The E-step: posterior sums over the rows of every site and, if ``scored``, the log-likelihood."""
        ...

    def doubt(self, stack: Stack) -> Array | None:
        """(c,) by how much better rows must be explained by a component of their site's own, far from all others'."""
        ...

    def ascend(
        self,
        stack: Stack,
        params: Params,
        sums: Sums,
        step_size: float,
        first_weights: Array | None = None,
        pull: Pulled | None = None,
    ) -> Ascent:
        """One gradient step on Q; with ``first_weights`` the paper's, with ``pull`` several, pulled in between."""
        ...

    def maximize(self, stack: Stack, params: Params, sums: Sums) -> Array:
        """The exact M-step in theta, or the best step towards it that the family knows, ``(..., R, q)``."""
        ...

    def noise_step(self, sums: Sums, theta: Array, noise: Array | None) -> Array | None:
        """The maximizer of Q in the noise at ``theta``; None where it is known."""
        ...

    def row_scores(self, stack: Stack, params: Params) -> tuple[Array, Array]:
        """Posteriors ``(c, ..., R, n)`` and log-likelihoods ``(c, ..., n)`` of every row."""
        ...

    def information(self, stack: Stack, params: Params) -> Array:
        """(c, d, d) what the rows tell of R log weights and R q parameters, the noise profiled out."""
        ...

    def draw(self, stack: Stack, seed: int, purpose: str, n_init: int, n_components: int, noise: Array | None) -> Array:
        """Random component parameters from each site's rows, ``(c, n_init, R, q)``, in the units of a known noise."""
        ...

    def first_noise(self, stack: Stack, theta: Array) -> Array | None:
        """A noise to go with drawn parameters; None where it is known."""
        ...

    def whiten(self, theta: Array, scale: Any) -> Array:
        """Parameters ``(..., R, q)`` in units in which components of this opened noise have unit noise."""
        ...

    def unwhiten(self, theta: Array, scale: Any) -> Array:
        """The way back."""
        ...

    def to_noise(self, theta: Array, noise: Array | None) -> Array:
        """The same as :meth:`whiten`, for a noise ``(..., C, s)``."""
        ...

    def from_noise(self, theta: Array, noise: Array | None) -> Array:
        """The way back."""
        ...

    def relative_noise(self, noise: Array, reference: Array, n_features: int) -> Array:
        """Noises ``(..., C, s)`` about a reference, in coordinates that n rows know to about ``1/sqrt(n)`` each."""
        ...

    def absolute_noise(self, coordinates: Array, reference: Array, n_features: int) -> Array:
        """The way back."""
        ...

    def average_noise(self, noise: Array, share: Array) -> Array:
        """The noise ``(C, s)`` of the mean covariance of sites ``(K, C, s)``, weighted by ``share`` (K,)."""
        ...


class KnownNoise:
    """What families without a noise answer: theta is in noise units as it is."""

    robust_rows: bool = False

    def doubt(self, stack: Stack) -> Array | None:
        """None."""
        return None

    def noise_shape(self, n_components: int, n_features: int) -> tuple[int, int] | None:
        """No noise."""
        return None

    def open(self, stack: Stack | None, noise: Array | None, n_features: int) -> Any:
        """Nothing."""
        return None

    def first_noise(self, stack: Stack, theta: Array) -> Array | None:
        """No noise."""
        return None

    def noise_step(self, sums: Sums, theta: Array, noise: Array | None) -> Array | None:
        """No noise."""
        return None

    def whiten(self, theta: Array, scale: Any) -> Array:
        """As they are."""
        return theta

    unwhiten = to_noise = from_noise = whiten

    def relative_noise(self, noise: Array, reference: Array, n_features: int) -> Array:
        """Never asked of a family without a noise."""
        raise NotImplementedError

    absolute_noise = relative_noise

    def average_noise(self, noise: Array, share: Array) -> Array:
        """Never asked of a family without a noise."""
        raise NotImplementedError


class Term(Protocol):
    """Of log densities, what is no product with features; prepared for a stack and the fits ``(c, B)`` on it."""

    def density(self, place: slice) -> Array:
        """(c, B R, n) of some rows."""
        ...

    def sums(self, mass: Array, place: slice) -> Array:
        """(c, B R, t) what steps need of the same rows, for posteriors times weights ``(c, B R, n)``."""
        ...


class ExponentialFamily:
    """The steps of every family with features. Subclasses say what these are and what follows from their sums."""

    name: ClassVar[str]
    exponential: ClassVar[bool] = True
    unit_errors: ClassVar[bool] = False
    steps_of_q: ClassVar[int] = 1
    """Gradient steps that one E-step is worth: more where Q is curved by direction, since they cost next to nothing."""
    robust_rows: bool = False

    # -- what subclasses say

    def check_target(self, name: str, target: Array) -> None:
        """Any number will do unless a subclass says not."""

    def features(self, stack: Stack) -> Array:
        """(c, n, t) F of every row, the first entry 1."""
        raise NotImplementedError

    def rest(self, stack: Stack) -> Array:
        """(c, u) sums over rows of what no component owns; nothing unless a subclass says so."""
        return np.zeros((len(stack), 0))

    def natural(self, weights: Array, theta: Array, scale: Any) -> Array:
        """(..., R, t) e, but for a part of the row alone."""
        raise NotImplementedError

    def rows_part(self, rest: Array, n_rows: Array, scale: Any) -> Array:
        """The sum over a site's rows of that part."""
        raise NotImplementedError

    def row_part(self, stack: Stack, scale: Any, lead: tuple[int, ...]) -> Array:
        """That part of every row, ``(c, ..., n)``, or something to be broadcast to it."""
        raise NotImplementedError

    def crest(self, stack: Stack, scale: Any, lead: tuple[int, ...]) -> Array:
        """(c, ..., R or 1, n or 1) log density of the row of a component that is most likely."""
        raise NotImplementedError

    def row_size(self, stack: Stack) -> Array:
        """(c, n or 1) numbers of a row that are random given its component."""
        raise NotImplementedError

    def points(self, stack: Stack) -> Array | None:
        """(c, n, u) rows as points, of which those far more alike than others are copies; None where rows may be."""
        raise NotImplementedError

    def rest_rows(self, stack: Stack) -> Array:
        """(c, n, u) of what :meth:`rest` sums over rows, that which steps need; nothing unless a subclass says so."""
        return np.zeros((*stack.weight.shape, 0))

    def gradient(self, sums: Sums) -> Callable[[Array], Array]:
        """Of Q as a function of theta, in the metric of the noise."""
        raise NotImplementedError

    def curvature(self, sums: Sums, theta: Array) -> Array | None:
        """A bound on the curvature of Q; None where that is the rows held."""
        return None

    def terms(self, stack: Stack, params: Params, scale: Any) -> "tuple[Term, ...]":
        """What a log density has beside the features; nothing unless a subclass says so."""
        return ()

    def solve(self, sums: Sums, theta: Array) -> Array:
        """The maximizer of Q in theta."""
        raise NotImplementedError

    def solve_noisy(self, sums: Sums, theta: Array) -> Array:
        """The same from sums that carry noise and may belong to no rows."""
        return self.solve(sums, theta)

    def open(self, stack: Stack | None, noise: Array | None, n_features: int) -> Any:
        """Whatever of a noise every step needs."""
        raise NotImplementedError

    def whiten(self, theta: Array, scale: Any) -> Array:
        """Parameters in units in which components of this opened noise have unit noise."""
        raise NotImplementedError

    def unwhiten(self, theta: Array, scale: Any) -> Array:
        """The way back."""
        raise NotImplementedError

    def to_noise(self, theta: Array, noise: Array | None) -> Array:
        """The same as :meth:`whiten`, for a noise ``(..., C, s)``."""
        return theta if noise is None else self.whiten(theta, self.open(None, noise, theta.shape[-1]))

    def from_noise(self, theta: Array, noise: Array | None) -> Array:
        """The way back."""
        return theta if noise is None else self.unwhiten(theta, self.open(None, noise, theta.shape[-1]))

    # -- the E-step, once for all of them

    def features_of(self, stack: Stack) -> Array:
        """Features, computed once per stack."""
        found: Array = stack.derive((self, "features"), self.features)
        return found

    def rest_of(self, stack: Stack) -> Array:
        """Their rest, likewise."""
        found: Array = stack.derive((self, "rest"), self.rest)
        return found

    def doubt(self, stack: Stack) -> Array | None:
        """Most of what a clean row has beyond one of no component; None where all rows are of one."""
        return bounded.doubt(self.row_size(stack)) if self.robust_rows else None

    def expect(self, stack: Stack, params: Params, scale: Any = None, *, scored: bool = True) -> Sums:
        """The E-step: posterior sums over the rows of every site and, if ``scored``, the log-likelihood."""
        if scale is None:
            scale = self.open(stack, params.noise, stack.rows.shape[-1])
        if self.robust_rows:
            return bounded.expect(self, stack, params, scale, scored=scored)
        eta = self.natural(params.weights, params.theta, scale)
        features, rest = self.features_of(stack), self.rest_of(stack)
        (c, *fits, n_components), t = params.weights.shape, eta.shape[-1]
        eta = eta.reshape(c, -1, t)
        numbers = eta.shape[1]
        terms = self.terms(stack, params, scale)

        def one(block: Block) -> tuple[Array, ...]:
            more = tuple(term.density(block.place) for term in terms)
            share, total, peak = posterior(eta, block.features, n_components, more)
            weight = block.weight[:, None]
            told: tuple[Array, ...] = ()
            if scored:
                value = np.log(total)
                value += peak
                told = (np.vecdot(value, weight),)
            np.divide(weight, total, out=total)
            share *= total[:, :, None]
            mass = share.reshape(c, numbers, -1)
            found = mass @ block.features
            if terms:
                found = np.concatenate([found, *(term.sums(mass, block.place) for term in terms)], axis=-1)
            return found, *told

        found, *value = stack.total(features, one, numbers)
        rest = rest.reshape(c, *(1,) * len(fits), -1)
        reached = np.full((c, *fits), np.nan)
        if scored:
            n_rows = stack.n_rows.reshape(c, *(1,) * len(fits))
            reached = value[0].reshape(c, *fits) + self.rows_part(rest, n_rows, scale)
        return Sums(found.reshape(c, *fits, n_components, -1), rest, reached)

    def row_scores(self, stack: Stack, params: Params) -> tuple[Array, Array]:
        """Posteriors ``(c, ..., R, n)`` and log-likelihoods ``(c, ..., n)`` of every row."""
        scale = self.open(stack, params.noise, stack.rows.shape[-1])
        eta = self.natural(params.weights, params.theta, scale)
        (c, *fits, n_components), t = params.weights.shape, eta.shape[-1]
        more = tuple(term.density(slice(0, stack.size)) for term in self.terms(stack, params, scale))
        share, total, peak = posterior(eta.reshape(c, -1, t), self.features_of(stack), n_components, more)
        share /= total[:, :, None]
        value = (peak + np.log(total)).reshape(c, *fits, -1) + self.row_part(stack, scale, (c, *fits))
        share = share.reshape(c, *fits, n_components, -1).copy()
        if not self.robust_rows:
            return share, value
        return bounded.lowered(share, value, bounded.ground_of(self, stack, params, scale))

    # -- the M-step

    def ascend(
        self,
        stack: Stack,
        params: Params,
        sums: Sums,
        step_size: float,
        first_weights: Array | None = None,
        pull: Pulled | None = None,
    ) -> Ascent:
        r"""One gradient ascent step on Q: the gradient M-step of every family.

        By default component r moves by :math:`C_\eta s_r / w_r` times the gradient of the mean Q, where :math:`w_r` is
        the mean posterior of this E-step, at least a fifth of an even share, and
        :math:`s_r = \min(1, w_r / \text{curvature})` keeps the step stable when rows are on another scale than the
        paper's. For unit Gaussians s = 1. With ``first_weights`` the step is the paper's, :math:`C_\eta / w_r^{[0]}`.
        With ``pull`` there are ``steps_of_q`` steps on the same Q, each but the last pulled.
        """
        held, theta = sums.held, params.theta
        gradient = self.gradient(sums)
        if first_weights is not None:
            # A component of weight 0 at the start has no gradient either, but for rounding: it stays.
            first = first_weights * held.sum(axis=-1, keepdims=True)
            step = np.divide(step_size, first, out=np.zeros_like(first), where=first_weights > 0)
            return Ascent(theta + step[..., None] * gradient(theta), np.ones_like(held))
        curvature = self.curvature(sums, theta)
        held = np.maximum(held, LEAST_SHARE / held.shape[-1] * held.sum(axis=-1, keepdims=True))
        length = held if curvature is None else np.maximum(curvature, held)
        step, scale = (step_size / length)[..., None], np.ones(held.shape) if curvature is None else held / length
        if pull is not None:
            for _ in range(self.steps_of_q - 1):
                theta = pull(theta + step * gradient(theta), scale)
        return Ascent(theta + step * gradient(theta), scale)

    def maximize(self, stack: Stack, params: Params, sums: Sums) -> Array:
        """The maximizer of Q in theta."""
        return self.solve(sums, params.theta)


def posterior(
    eta: Array, features: Array, n_components: int, more: tuple[Array, ...] = ()
) -> tuple[Array, Array, Array | float]:
    """Likelihoods ``(c, B, R, n)`` over a scale of each row, in scratch; their sums, and the logs of these scales.

    Rows need a scale where their likelihoods are beyond what numbers can be, so only sites with such rows take the time
    to find one: the largest over components. A row that no component can explain belongs to all alike; its
    log-likelihood says that something is wrong.
    """
    share, total = _exponentials(eta, features, n_components, more, None)
    fits = (total.min(axis=(1, 2)) > SMALLEST) & (total.max(axis=(1, 2)) < LARGEST)
    if fits.all():
        return share, total, 0.0
    beyond, peak = np.flatnonzero(~fits), np.zeros(total.shape)
    some = tuple(term if len(term) == 1 else term[beyond] for term in more)
    scaled, total[beyond] = _exponentials(eta[beyond], features[beyond], n_components, some, here := peak[beyond])
    share[beyond], peak[beyond] = scaled, here
    return share, total, peak


def _exponentials(
    eta: Array, features: Array, n_components: int, more: tuple[Array, ...], peak: Array | None
) -> tuple[Array, Array]:
    """Likelihoods and their sums; over each row's largest, whose logs are written to ``peak``, if that is given."""
    shape = (*eta.shape[:2], features.shape[1])
    share = scratch("posterior", shape) if peak is None else np.empty(shape)
    np.matmul(eta, features.swapaxes(-1, -2), out=share)
    for term in more:
        share += term
    share = share.reshape(len(share), -1, n_components, features.shape[1])
    if peak is not None:
        share.max(axis=2, out=peak)
        share -= peak[:, :, None]
        if not np.isfinite(peak).all():
            share[~np.broadcast_to(np.isfinite(peak)[:, :, None], share.shape)] = 0.0
    with np.errstate(over="ignore", invalid="ignore"):  # what is beyond numbers is found again, with its scale
        np.exp(share, out=share)
        return share, share.sum(axis=2)


def kept_by_few(found: Array, noise: Array | None, held: Array) -> Array:
    """A noise ``(..., C, s)`` of a noise step; sites with fewer than two rows for every component keep the last one.

    Theirs would follow single rows, collapse, begin again at the center, and never settle.
    """
    few = held.sum(axis=-1) < FEWEST_ROWS * held.shape[-1]
    return found if noise is None or not few.any() else np.where(few[..., None, None], noise, found)


def with_ones(features: Array) -> Array:
    """``(1, F)``, ``(..., n, 1 + t)``; no copy where a column of ones stands before the features already."""
    whole = features.base
    if whole is not None and whole.shape == (*features.shape[:-1], 1 + features.shape[-1]):
        before = whole[..., 1:]
        if (
            before.ctypes.data == features.ctypes.data
            and before.strides == features.strides
            and (whole[..., 0] == 1).all()
        ):
            return np.asarray(whole)
    return np.concatenate([np.ones((*features.shape[:-1], 1)), features], axis=-1)


def log_weights(weights: Array) -> Array:
    """Logs of mixture weights; those of 0 are very small instead of infinite."""
    return np.asarray(np.log(np.maximum(weights, LEAST_WEIGHT)))


def weights_of(sums: Sums) -> Array:
    """Mixture weights: the share of the rows that every component holds."""
    return np.asarray(sums.held / sums.held.sum(axis=-1, keepdims=True))


def largest_eigenvalue_bound(matrix: Array) -> Array:
    r"""Cheap upper bound on the spectral norm of symmetric matrices ``(..., q, q)``.

    It is at most :math:`q^{1/16}` too large:
    :math:`\|A\|_2 \le \|A^8\|_F^{1/8} \le q^{1/16}\|A\|_2`, by three squarings instead of an eigenvalue solver.

    Examples
    --------
    >>> round(float(largest_eigenvalue_bound(np.diag([1.0, 4.0]))), 6)
    4.0
    """
    scale = np.sqrt(np.einsum("...ij,...ij->...", matrix, matrix))
    a = matrix / np.where(scale > 0, scale, 1.0)[..., None, None]
    for _ in range(3):
        a = a @ a
    return np.asarray(scale * np.einsum("...ij,...ij->...", a, a) ** (1.0 / 16.0))
