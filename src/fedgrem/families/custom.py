"""A user's own mixture: one log density in ``jax.numpy``, and nothing else to derive."""

from collections.abc import Callable
from dataclasses import dataclass

import jax

from fedgrem.families.base import KnownNoise, ascend, curvature_by_autodiff, q_gradient_by_autodiff
from fedgrem.families.sampling import draw_rows
from fedgrem.kernels.randomness import split_key
from fedgrem.types import Array, SiteData


@dataclass(frozen=True)
class Custom(KnownNoise):
    """Components given by ``log_density(row, theta_r)``; gradients and curvature come from autodiff.

    Parameters
    ----------
    row_log_density : ``(p,), (q,) -> ()`` in ``jax.numpy``.
    row_start : ``key, (m, p) -> (q,)``, a random start for one component from m random rows of a site.
    start_rows : m.
    """

    row_log_density: Callable[[Array, Array], Array]
    row_start: Callable[[Array, Array], Array]
    start_rows: int = 5
    safe_step = False
    has_target = False
    start_tracks = 0
    path_steps = 10

    def n_parameters(self, n_features: int) -> int:
        """As long as what ``row_start`` returns."""
        key = jax.eval_shape(lambda: jax.random.PRNGKey(0))
        rows = jax.eval_shape(lambda: jax.numpy.zeros((self.start_rows, n_features)))
        shape: tuple[int, ...] = jax.eval_shape(self.row_start, key, rows).shape
        return shape[0]

    def log_density(self, data: SiteData, theta: Array, spread: Array | None = None) -> Array:
        """Log density of every row under every component, ``(R, n)``."""
        by_row = jax.vmap(self.row_log_density, in_axes=(1, None))
        return jax.vmap(by_row, in_axes=(None, 0))(data.columns, theta)

    def q_gradient(self, data: SiteData, theta: Array, mass: Array, spread: Array | None = None) -> Array:
        """By autodiff."""
        return q_gradient_by_autodiff(self, data, theta, mass)

    def curvature(self, data: SiteData, theta: Array, mass: Array) -> Array:
        """By autodiff, at theta; the line search covers densities whose curvature grows along the step."""
        return curvature_by_autodiff(self, data, theta, mass)

    def exact_step(self, data: SiteData, theta: Array, mass: Array, spread: Array | None = None) -> Array:
        """A few safe gradient steps on the same Q: no closed form is asked of the user."""
        moved: Array = jax.lax.fori_loop(0, 3, lambda _, t: ascend(self, data, t, mass, step_size=1.0).theta, theta)
        return moved

    def draw_start(self, key: Array, data: SiteData, n_components: int, spread: Array | None = None) -> Array:
        """``row_start`` on a few random rows per component."""
        row_key, start_key = split_key(key, 2)
        index = draw_rows(row_key, data.row_weight, (n_components, self.start_rows))
        return jax.vmap(self.row_start)(split_key(start_key, n_components), data.rows[index])
