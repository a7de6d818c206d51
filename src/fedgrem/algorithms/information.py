r"""What the rows of one site say of its parameters: the observed information, with the noise profiled out.

By Louis (1982), the information in what is seen is that of the rows if their components were known, less what is lost
because they are not:

.. math:: J = C - \sum_i v_i \Bigl(\sum_r P_{ri}\, u_{ri} u_{ri}' - \bar u_i \bar u_i'\Bigr), \quad
          \bar u_i = \sum_r P_{ri}\, u_{ri},

with :math:`u_{ri}` the score of row i if it is of component r. Weights are logarithms that softmax turns into weights.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from fedgrem.families.base import Family, ScoredFamily, expect
from fedgrem.kernels.triangular import cholesky, solve_lower
from fedgrem.types import Array, NumpyArray, Params, SiteData

ROWS_AT_ONCE = 512
"""Rows whose scores are held in memory together."""
NUMBERS_AT_ONCE = 400_000
"""Of the second derivatives that autodiff holds in memory together."""
MOST_NOISE = 400
"""Numbers of a spread that are profiled out; a larger one is taken as known, because its matrix would be too large."""
MOST_PARAMETERS = 400
"""Weights and component parameters of a site up to which standard errors are worth their message."""


LEAST_CURVED = 1e-3
"""Relative to what is known of parameters one by one: a site whose likelihood is flatter than this in some direction,
or curved the wrong way, answers the empirical information instead."""


class Information(NamedTuple):
    """What a site answers when it is sent its final parameters. No shape depends on its rows."""

    params: Params
    """As they were sent, but for the weights: those that the site's rows have under them."""
    packed: Array
    """(d (d + 1) / 2,) the lower triangle of the information in R log weights and R q component parameters; zeros where
    the site cannot tell."""
    n_rows: Array
    """() the total row weight."""


def worth_asking(switch: bool | None, n_components: int, n_parameters: int) -> bool:
    """Whether a fit is to end with this exchange; None leaves it out where a site's answer would be large."""
    return n_components * (1 + n_parameters) <= MOST_PARAMETERS if switch is None else bool(switch)


def local_information(family: Family, data: SiteData, params: Params) -> Information:
    """The information in one site's rows about its weights and component parameters."""
    mass, _ = expect(family, data, params)
    n_rows = data.row_weight.sum()
    kept = params.theta.size + params.weights.size
    if isinstance(family, ScoredFamily) and data.observed is None:
        observed, empirical = (_profiled(full, kept) for full in _by_scores(family, data, params, mass))
        matrix = jnp.where(_regular(observed, params.weights.size, n_rows), observed, empirical)
    else:
        matrix = _profiled(_by_autodiff(family, data, params), kept)
    rows, columns = np.tril_indices(len(matrix))
    packed = 0.5 * (matrix + matrix.T)[rows, columns]
    packed = jnp.where(jnp.all(jnp.isfinite(packed)), packed, 0.0)
    held = Params(mass.sum(axis=1) / n_rows, params.theta)
    return Information(held, packed, n_rows)


def unpack(packed: NumpyArray, size: int) -> NumpyArray:
    """The symmetric matrices ``(..., d, d)`` of lower triangles ``(..., d (d + 1) / 2)``.

    Examples
    --------
    >>> unpack(np.array([1.0, 2.0, 3.0]), 2).tolist()
    [[1.0, 2.0], [2.0, 3.0]]
    """
    rows, columns = np.tril_indices(size)
    full = np.zeros((*packed.shape[:-1], size, size))
    full[..., rows, columns] = packed
    full[..., columns, rows] = packed
    return full


def _profiled(full: Array, kept: int) -> Array:
    """The information in the first ``kept`` parameters when the others are not known: a Schur complement."""
    first, cross, noise = full[:kept, :kept], full[:kept, kept:], full[kept:, kept:]
    if noise.size == 0:
        return first
    factor = cholesky(noise)
    half = solve_lower(factor, cross.T)
    profiled = first - half.T @ half
    # Away from its own maximum a site may know nothing of its noise; it is then taken as known.
    return jnp.where(jnp.all(jnp.isfinite(profiled)), profiled, first)


def _regular(matrix: Array, n_components: int, n_rows: Array) -> Array:
    """Whether every direction is known, but for the constant of the log weights."""
    free = jnp.arange(len(matrix)) < n_components
    lifted = matrix + jnp.outer(free, free) * jnp.mean(jnp.diagonal(matrix)[:n_components])
    lifted = lifted - LEAST_CURVED * jnp.diag(jnp.diagonal(lifted)) + 1e-9 * n_rows * jnp.eye(len(matrix))
    return jnp.all(jnp.isfinite(cholesky(lifted)))


# -- from scores, where a family writes them down


def _by_scores(family: ScoredFamily, data: SiteData, params: Params, mass: Array) -> tuple[Array, Array]:
    """The information in log weights, component parameters and spread, ``(d, d)``: observed, and empirical.

    The empirical one, the sum of squares of the rows' scores, is never negative. The observed one may be where a site
    has been pulled away from its own maximum; near it, it is the better of the two for few rows.
    """
    weights, theta, spread = params
    noisy = spread is not None and spread.size <= MOST_NOISE
    n_components = len(theta)
    total = jnp.zeros((_size(params, noisy),) * 2, theta.dtype)
    by_theta, by_spread = family.complete_information(data, theta, mass, spread)
    place = np.arange(n_components + theta.size)
    own = place[n_components:].reshape(theta.shape)
    total = total.at[own[:, :, None], own[:, None, :]].add(by_theta)
    n_rows = data.row_weight.sum()
    total = total.at[:n_components, :n_components].add(n_rows * (jnp.diag(weights) - jnp.outer(weights, weights)))
    if noisy and by_spread is not None:
        noise = np.arange(len(place), len(total))
        total = total.at[noise, noise].add(by_spread.ravel())
    nothing = (jnp.zeros_like(total), jnp.zeros_like(total), jnp.zeros(len(total), total.dtype))
    (spent, between, slope), _ = jax.lax.scan(
        lambda sums, part: (jax.tree.map(jnp.add, sums, _squares(family, *part, params, noisy)), None),
        nothing,
        _parts(data, mass),
    )
    middle = jnp.zeros(len(total), total.dtype).at[:n_components].set(weights)
    cross = jnp.outer(middle, slope)
    return total - spent + between, between - cross - cross.T + n_rows * jnp.outer(middle, middle)


def _size(params: Params, noisy: bool) -> int:
    return params.weights.size + params.theta.size + (params.spread.size if noisy and params.spread is not None else 0)


def _parts(data: SiteData, mass: Array, at_once: int = ROWS_AT_ONCE) -> tuple[SiteData, Array]:
    """The rows in equal parts, ``(parts, ...)``, the last one filled up with rows of weight 0."""
    n = data.row_weight.shape[0]
    size = min(n, at_once)
    place = np.arange(-(-n // size) * size).reshape(-1, size)
    there, place = place < n, np.minimum(place, n - 1)

    def cut(columns: Array) -> Array:
        return jnp.moveaxis(columns[:, place], 1, 0)

    observed = None if data.observed is None else cut(data.observed)
    weight = jnp.where(there, data.row_weight[place], 0.0)
    parts = SiteData(cut(data.columns), data.target[place], weight, None, observed)
    return parts, jnp.where(there[:, None], cut(mass), 0.0)


def _squares(
    family: ScoredFamily, data: SiteData, mass: Array, params: Params, noisy: bool
) -> tuple[Array, Array, Array]:
    """Over these rows: squares of scores by component, ``(d, d)``, those of their means, and the sum of the means."""
    by_theta, by_spread = family.complete_scores(data, params.theta, params.spread)
    n_components, n_parameters, n = by_theta.shape
    used = data.row_weight > 0
    share = mass / jnp.where(used, data.row_weight, 1.0)
    score = jnp.concatenate([jnp.ones((n_components, 1, n), by_theta.dtype), by_theta], axis=1)
    middle = [share, (share[:, None] * by_theta).reshape(-1, n)]
    first = np.arange(n_components)[:, None]
    place = np.concatenate([first, n_components + n_parameters * first + np.arange(n_parameters)], axis=1)
    if noisy and by_spread is not None and params.spread is not None:
        count, size = params.spread.shape
        score = jnp.concatenate([score, by_spread], axis=1)
        parts = share[:, None] * by_spread
        middle.append(parts.sum(axis=0) if count == 1 else parts.reshape(-1, n))
        behind = n_components * (1 + n_parameters) + size * (first if count > 1 else 0 * first)
        place = np.concatenate([place, behind + np.arange(size)], axis=1)
    between = jnp.concatenate(middle) * jnp.sqrt(data.row_weight)
    spent = jnp.einsum("ran,rbn->rab", score * mass[:, None], score)
    size = len(between)
    by_component = jnp.zeros((size, size), spent.dtype).at[place[:, :, None], place[:, None, :]].add(spent)
    return by_component, between @ between.T, between @ jnp.sqrt(data.row_weight)


# -- by autodiff, for any log density


def _by_autodiff(family: Family, data: SiteData, params: Params) -> Array:
    """Minus the Hessian of the log-likelihood in log weights, component parameters and spread."""
    noisy = params.spread is not None and params.spread.size <= MOST_NOISE
    start = params._replace(weights=jnp.log(params.weights), spread=params.spread if noisy else None)
    flat, unravel = ravel_pytree(start)

    def log_likelihood(flat: Array, part: SiteData) -> Array:
        logs, theta, spread = unravel(flat)
        joint = family.log_density(part, theta, spread if noisy else params.spread) + jax.nn.log_softmax(logs)[:, None]
        return part.row_weight @ jnp.where(part.row_weight > 0, jax.nn.logsumexp(joint, axis=0), 0.0)

    at_once = max(8, NUMBERS_AT_ONCE // (flat.size * params.weights.size))
    parts, _ = _parts(data, jnp.zeros((1, data.row_weight.shape[0])), at_once)
    found, _ = jax.lax.scan(
        lambda total, part: (total - jax.hessian(log_likelihood)(flat, part), None),
        jnp.zeros((flat.size, flat.size), flat.dtype),
        parts,
    )
    return found
