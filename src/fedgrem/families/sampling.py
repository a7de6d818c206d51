"""Drawing rows of one site, by weight, so that padding is never drawn and a row of weight 2 counts as two rows."""

from math import log

import jax
import jax.numpy as jnp

from fedgrem.kernels.randomness import fold_in, uniforms
from fedgrem.types import Array, SiteData


def draw_rows(key: Array, density: Array, shape: tuple[int, ...]) -> Array:
    """Indices of rows drawn with replacement, with probability proportional to ``density`` (n,)."""
    cumulative = jnp.cumsum(density)
    uniform = uniforms(key, shape, density.dtype)
    index = jnp.searchsorted(cumulative, uniform * cumulative[-1], side="right", method="compare_all")
    # Rounding can land on the very end; the last row of positive density is the one meant.
    last = jnp.searchsorted(cumulative, cumulative[-1], side="left", method="compare_all")
    return jnp.minimum(index, last)


def spread_rows(key: Array, data: SiteData, n_components: int) -> Array:
    """Greedy k-means++: rows far from each other, ``(R, p)``.

    Each next row is the best of a few drawn with probability proportional to their squared distance from the rows
    chosen so far.
    """
    x, weight = data.columns, data.row_weight
    n_trials = 2 + int(log(n_components))
    middle = x @ weight / weight.sum()
    about = x - middle[:, None]
    length = jnp.sum(about * about, axis=0)

    def squared_distance(rows: Array) -> Array:
        """From one matrix product, about the mean of all rows to keep the digits."""
        others = rows - middle
        return jnp.maximum(jnp.sum(others * others, axis=1)[:, None] - 2.0 * (others @ about) + length, 0.0)

    def choose(step: int, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        chosen, nearest = carry
        potential = weight * nearest
        density = jnp.where(potential.sum() > 0, potential, weight)
        trials = x[:, draw_rows(fold_in(key, step), density, (n_trials,))].T
        after = jnp.minimum(nearest, squared_distance(trials))
        left = after @ weight
        best = jnp.argmax(left <= left.min() * (1.0 + 1e-6))  # the first of those that tie but for rounding
        return chosen.at[step].set(trials[best]), after[best]

    first = x[:, draw_rows(fold_in(key, n_components), weight, (1,))].T
    chosen = jnp.zeros((n_components, x.shape[0]), dtype=x.dtype).at[0].set(first[0])
    spread: Array
    spread, _ = jax.lax.fori_loop(1, n_components, choose, (chosen, squared_distance(first)[0]))
    return spread
