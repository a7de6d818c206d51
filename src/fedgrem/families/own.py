"""A user's own mixture: one log density in ``jax.numpy``, and nothing else to derive.

The only place that needs JAX, an extra. Sums are here (rows held, gradient of Q, a bound on its curvature, Q), which
depend on the parameters but add up over rows like all others. Programs are compiled once per size class of a site.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import Any, ClassVar, NamedTuple

import numpy as np

from fedgrem.data.stack import Stack
from fedgrem.errors import MissingExtraError
from fedgrem.families.base import LEAST_SHARE, Ascent, KnownNoise, Pulled
from fedgrem.families.seeding import draw_rows
from fedgrem.types import Array, Params, Sums

MAX_HALVINGS = 30
NUMBERS_AT_ONCE = 400_000
"""Of the second derivatives that autodiff holds in memory together."""


def check_jax() -> None:
    """Say what to install where JAX is not."""
    if find_spec("jax") is None:
        raise MissingExtraError(
            "a density of one's own needs JAX, which is not installed; run: pip install 'fedgrem[own-density]'."
        )


class Programs(NamedTuple):
    """Compiled functions of one site's rows."""

    parts: Callable[..., Any]
    """Rows held, gradient, curvature and Q of every component, and the log-likelihood."""
    q_values: Callable[..., Any]
    """Q of every component at other parameters, with the posteriors of these."""
    densities: Callable[..., Any]
    """(R, n) log densities."""
    hessian: Callable[..., Any]
    """Of the log-likelihood in log weights and parameters."""
    start: Callable[..., Any]
    """Random parameters of one component from some rows."""


@cache
def _programs(log_density: Callable[..., Any], row_start: Callable[..., Any]) -> Programs:
    import jax
    import jax.numpy as jnp

    from fedgrem.families.base import LEAST_WEIGHT

    def densities(rows: Any, theta: Any) -> Any:
        return jax.vmap(jax.vmap(log_density, (0, None)), (None, 0))(rows, theta)

    def posterior(rows: Any, weight: Any, weights: Any, theta: Any) -> tuple[Any, Any]:
        joint = densities(rows, theta) + jnp.log(jnp.maximum(weights, LEAST_WEIGHT))[:, None]
        told = jax.nn.logsumexp(joint, axis=0)
        share = jnp.where(jnp.isfinite(told), jnp.exp(joint - told), 1.0 / len(weights))
        return share * weight, weight @ jnp.where(weight > 0, told, 0.0)

    def q_of(theta: Any, rows: Any, mass: Any) -> Any:
        value = jax.vmap(log_density, (0, None))(rows, theta)
        return jnp.sum(jnp.where(mass > 0, mass * value, 0.0))

    def parts(rows: Any, weight: Any, weights: Any, posterior_theta: Any, theta: Any) -> Any:
        mass, value = posterior(rows, weight, weights, posterior_theta)
        q, gradient = jax.vmap(jax.value_and_grad(q_of), (0, None, 0))(theta, rows, mass)
        hessian = jax.vmap(jax.hessian(q_of), (0, None, 0))(theta, rows, mass)
        bound = jnp.sqrt(jnp.sum(hessian * hessian, axis=(1, 2)))
        features = jnp.concatenate([mass.sum(axis=1)[:, None], gradient, bound[:, None], q[:, None]], axis=1)
        return features, value

    def q_values(rows: Any, weight: Any, weights: Any, posterior_theta: Any, theta: Any) -> Any:
        mass, _ = posterior(rows, weight, weights, posterior_theta)
        return jax.vmap(q_of, (0, None, 0))(theta, rows, mass)

    def log_likelihood(flat: Any, rows: Any, weight: Any, n_components: int) -> Any:
        logs, theta = flat[:n_components], flat[n_components:].reshape(n_components, -1)
        joint = densities(rows, theta) + jax.nn.log_softmax(logs)[:, None]
        return weight @ jnp.where(weight > 0, jax.nn.logsumexp(joint, axis=0), 0.0)

    hessian = jax.jit(jax.hessian(log_likelihood), static_argnums=3)
    return Programs(jax.jit(parts), jax.jit(q_values), jax.jit(densities), hessian, jax.jit(jax.vmap(row_start)))


@dataclass(frozen=True)
class OwnDensity(KnownNoise):
    """Components given by ``log_density(row, theta_r)``; gradients and curvature come from autodiff.

    Parameters
    ----------
    log_density : ``(p,), (q,) -> ()`` in ``jax.numpy``.
    row_start : ``key, (m, p) -> (q,)``, a random start for one component from m random rows of a site.
    start_rows : m.
    """

    name: ClassVar[str] = "own"
    has_target: ClassVar[bool] = False
    exponential: ClassVar[bool] = False
    unit_errors: ClassVar[bool] = False
    joint_starts: ClassVar[int] = 0
    path_steps: ClassVar[int] = 10
    log_density: Callable[..., Any]
    row_start: Callable[..., Any]
    start_rows: int = 5

    @property
    def _run(self) -> Programs:
        check_jax()
        return _programs(self.log_density, self.row_start)

    def n_parameters(self, n_features: int) -> int:
        """As long as what ``row_start`` returns."""
        check_jax()
        import jax

        key = jax.ShapeDtypeStruct((2,), np.uint32)  # type: ignore[no-untyped-call]
        rows = jax.ShapeDtypeStruct((self.start_rows, n_features), np.float64)  # type: ignore[no-untyped-call]
        with jax.enable_x64(True):
            shape: tuple[int, ...] = jax.eval_shape(self.row_start, key, rows).shape
        return shape[0]

    def check_target(self, name: str, target: Array) -> None:
        """There is no response."""

    # -- every site and fit by itself: one program serves them all

    def _each(self, stack: Stack, params: Params, theta: Array, function: Callable[..., Any]) -> list[Any]:
        """``function(rows, weight, weights, theta, other theta)`` of every site and fit, one after the other."""
        import jax

        rows, weight = stack.derive("size class", _padded)
        c = len(stack)
        weights, held, moved = (
            leaf.reshape(c, -1, *leaf.shape[-k:]) for leaf, k in ((params.weights, 1), (params.theta, 2), (theta, 2))
        )
        with jax.enable_x64(True):
            return [
                function(rows[k], weight[k], weights[k, b], held[k, b], moved[k, b])
                for k in range(c)
                for b in range(weights.shape[1])
            ]

    def expect(self, stack: Stack, params: Params, scale: Any = None, *, scored: bool = True) -> Sums:
        """The E-step, with gradients and curvatures of Q at these parameters."""
        return self._parts(stack, params, params.theta)

    def _parts(self, stack: Stack, params: Params, theta: Array) -> Sums:
        lead = params.weights.shape[:-1]
        found = self._each(stack, params, theta, self._run.parts)
        features = np.stack([np.asarray(f) for f, _ in found]).reshape(*lead, *found[0][0].shape)
        value = np.array([float(v) for _, v in found]).reshape(lead)
        return Sums(features, np.zeros((*lead, 0)), value)

    def ascend(
        self,
        stack: Stack,
        params: Params,
        sums: Sums,
        step_size: float,
        first_weights: Array | None = None,
        pull: Pulled | None = None,
    ) -> Ascent:
        """One gradient step on Q, halved until it raises Q by a quarter of what the gradient promises."""
        return self._ascend(stack, params, params.theta, sums, step_size, first_weights)

    def _ascend(
        self, stack: Stack, params: Params, theta: Array, sums: Sums, step_size: float, first_weights: Array | None
    ) -> Ascent:
        held, gradient = sums.held, sums.features[..., 1:-2]
        n_rows = held.sum(axis=-1, keepdims=True)
        if first_weights is not None:
            first = first_weights * n_rows
            step = np.divide(step_size, first, out=np.zeros_like(first), where=first_weights > 0)
            return Ascent(theta + step[..., None] * gradient, np.ones_like(held))
        held = np.maximum(held, LEAST_SHARE / held.shape[-1] * n_rows)
        scale = held / np.maximum(sums.features[..., -2], held)
        before, step = sums.features[..., -1], step_size / held
        promise = 0.25 * np.vecdot(gradient, gradient) * step
        slack = 1e-12 * np.abs(before)  # the last digits of Q are noise: a step that leaves it level is no failure
        failed = np.ones(held.shape, dtype=bool)
        for _ in range(MAX_HALVINGS):
            tried = theta + (step * scale)[..., None] * gradient
            values = self._each(stack, params, tried, self._run.q_values)
            after = np.stack([np.asarray(v) for v in values]).reshape(held.shape)
            failed = ~(after >= before + promise * scale - slack)
            if not failed.any():
                break
            scale = np.where(failed, 0.5 * scale, scale)
        scale = np.where(failed, 0.0, scale)
        return Ascent(theta + (step * scale)[..., None] * gradient, scale)

    def maximize(self, stack: Stack, params: Params, sums: Sums) -> Array:
        """A few safe gradient steps on the same Q: no closed form is asked of the user."""
        theta = self._ascend(stack, params, params.theta, sums, 1.0, None).theta
        for _ in range(2):
            theta = self._ascend(stack, params, theta, self._parts(stack, params, theta), 1.0, None).theta
        return theta

    def row_scores(self, stack: Stack, params: Params) -> tuple[Array, Array]:
        """Posteriors and log-likelihoods of every row."""
        lead, n_components = params.weights.shape[:-1], params.weights.shape[-1]
        run = self._run.densities
        found = self._each(stack, params, params.theta, lambda rows, _, __, theta, ___: run(rows, theta))
        density = np.stack([np.asarray(d)[:, : stack.size] for d in found]).reshape(*lead, n_components, -1)
        joint = density + np.log(np.maximum(params.weights, np.finfo(float).tiny))[..., None]
        peak = joint.max(axis=-2, keepdims=True)
        finite = np.where(np.isfinite(peak), peak, 0.0)
        share = np.where(np.isfinite(peak), np.exp(joint - finite), 1.0)
        total = share.sum(axis=-2, keepdims=True)
        return share / total, (peak + np.log(total))[..., 0, :]

    def information(self, stack: Stack, params: Params) -> Array:
        """Minus the Hessian of the log-likelihood in log weights and parameters, by autodiff, in blocks of rows."""
        import jax

        n_components = params.weights.shape[-1]
        size = n_components * (1 + params.theta.shape[-1])
        rows, weight = stack.derive("size class", _padded)
        at_once = max(8, NUMBERS_AT_ONCE // (size * n_components))
        found = np.zeros((len(stack), size, size))
        with jax.enable_x64(True):
            for k in range(len(stack)):
                flat = np.concatenate([np.log(np.maximum(params.weights[k], 1e-300)), params.theta[k].ravel()])
                for a in range(0, rows.shape[1], at_once):
                    block = rows[k, a : a + at_once], weight[k, a : a + at_once]
                    found[k] -= np.asarray(self._run.hessian(flat, *block, n_components))
        return found

    def draw(self, stack: Stack, seed: int, purpose: str, n_init: int, n_components: int, noise: Array | None) -> Array:
        """``row_start`` on a few random rows per component, ``(c, n_init, R, q)``."""
        import jax

        uniforms = stack.uniforms(seed, purpose, (n_init, n_components, self.start_rows + 2))
        places = draw_rows(stack, uniforms[..., 2:])
        keys = (uniforms[..., :2] * 2.0**32).astype(np.uint32)
        found = []
        with jax.enable_x64(True):
            for k in range(len(stack)):
                rows = stack.rows[k][places[k]].reshape(-1, self.start_rows, stack.rows.shape[-1])
                found.append(np.asarray(self._run.start(keys[k].reshape(-1, 2), rows)))
        return np.stack(found).reshape(len(stack), n_init, n_components, -1)


def _padded(stack: Stack) -> tuple[Array, Array]:
    """Rows and weights filled up to a size class with rows of weight 0, so that similar sites share a program."""
    n = stack.size
    grain = max(16, 2 ** max(0, n.bit_length() - 3))
    more = -n % grain
    rows = np.concatenate([stack.rows, np.repeat(stack.rows[:, :1], more, axis=1)], axis=1)
    return rows, np.concatenate([stack.weight, np.zeros((len(stack), more))], axis=1)
