r"""What the rows of a site say of its parameters: the observed information matrix, with the noise profiled out.

By Louis (1982), the information in what is seen is that of the rows if their components were known, less what is lost
because they are not:

.. math:: J = C - \sum_i v_i \Bigl(\sum_r P_{ri}\, u_{ri} u_{ri}' - \bar u_i \bar u_i'\Bigr), \quad
          \bar u_i = \sum_r P_{ri}\, u_{ri},

with :math:`u_{ri}` the score of row i if it is of component r: a sum over rows, made in blocks. Weights are logarithms
that softmax turns into weights.
"""

from collections.abc import Callable

import numpy as np

from fedgrem.data.stack import Block, Stack
from fedgrem.types import Array, Params

LEAST_CURVED = 1e-3
"""Relative to what is known of parameters one by one: a site whose likelihood is flatter than this in some direction,
or curved the wrong way, answers the empirical information instead."""
LEAST_POSTERIOR = 1e-12
"""Of a row, below which it is left out of what is said of a component."""
MOST_NOISE = 400
"""Numbers of a noise that are profiled out; a larger one is taken as known, because its matrix would be too large."""


def louis(
    stack: Stack,
    params: Params,
    posterior: Array,
    scores: Callable[[int, Array, int], tuple[Array, Array | None]],
    complete: Array,
    complete_noise: Array | None,
) -> Array:
    """(c, d, d) the information in R log weights and R q parameters.

    Parameters
    ----------
    posterior : (c, R, n); scores : of a site, m of its rows and a component, ``(m, q)`` and ``(m, s)`` or None.
    complete : (c, R, q, q), complete_noise : (c, C, s) the information if components were known, its diagonal for the
        noise.
    """
    c, n_components, size = params.theta.shape
    count, entries = (0, 0) if complete_noise is None else complete_noise.shape[1:]
    if count * entries > MOST_NOISE:
        count = entries = 0
    kept = n_components * (1 + size)
    d = kept + count * entries
    place = []
    for r in range(n_components):
        own = n_components + size * r + np.arange(size)
        behind = kept + (entries * r if count > 1 else 0) + np.arange(entries)
        place.append(np.concatenate([[r], own, behind]))

    def one(block: Block) -> tuple[Array, Array, Array]:
        shape = block.weight.shape
        between, lost, slope = np.zeros((c, d, d)), np.zeros((c, d, d)), np.zeros((c, d))
        for k in range(c):
            mean = np.zeros((shape[1], d))
            for r in range(n_components):
                p = posterior[k, r, block.place]
                # A row that is surely of other components says next to nothing of this one.
                here = np.flatnonzero((p > LEAST_POSTERIOR) & (block.weight[k] > 0))
                p = p[here, None]
                of_theta, of_noise = scores(k, here + block.place.start, r)
                parts = [np.ones_like(p), of_theta]
                u = np.concatenate(parts + ([of_noise] if entries and of_noise is not None else []), axis=-1)
                mean[here[:, None], place[r]] += p * u
                u *= np.sqrt(p * block.weight[k, here, None])
                lost[k, place[r][:, None], place[r]] += u.T @ u
            slope[k] = block.weight[k] @ mean
            mean *= np.sqrt(block.weight[k])[:, None]
            between[k] = mean.T @ mean
        return between, lost, slope

    between, lost, slope = stack.total(posterior.swapaxes(1, 2), one, max(10, d // 2))
    known = np.zeros((c, d, d))
    # Rows that are bounded may count for less than they weigh.
    n_rows, weights = (posterior.sum(axis=1) * stack.weight).sum(axis=1), params.weights
    first = np.arange(n_components)
    known[:, first, first] += n_rows[:, None] * weights
    known[:, :n_components, :n_components] -= n_rows[:, None, None] * weights[:, :, None] * weights[:, None]
    for r in range(n_components):
        own = slice(n_components + size * r, n_components + size * (r + 1))
        known[:, own, own] += complete[:, r]
    if entries and complete_noise is not None:
        behind = np.arange(kept, d)
        known[:, behind, behind] += complete_noise.reshape(c, -1)
    middle = np.zeros((c, d))
    middle[:, :n_components] = weights
    cross = middle[:, :, None] * slope[:, None]
    empirical = between - cross - cross.swapaxes(1, 2) + n_rows[:, None, None] * middle[:, :, None] * middle[:, None]
    known -= lost
    known += between
    found = np.zeros((c, kept, kept))
    for k in range(c):
        observed = _profiled(known[k], kept)
        usable = _regular(observed, n_components, float(n_rows[k]))
        found[k] = observed if usable else _profiled(empirical[k], kept)
    return 0.5 * (found + found.swapaxes(1, 2))


def _profiled(full: Array, kept: int) -> Array:
    """The information in the first ``kept`` parameters when the others are not known: a Schur complement."""
    first, cross, noise = full[:kept, :kept], full[:kept, kept:], full[kept:, kept:]
    if noise.size == 0:
        return first
    try:
        half = np.linalg.solve(np.linalg.cholesky(noise), cross.T)
    except np.linalg.LinAlgError:
        return first  # away from its own maximum a site may know nothing of its noise; it is then taken as known
    return np.asarray(first - half.T @ half)


def _regular(matrix: Array, n_components: int, n_rows: float) -> bool:
    """Whether every direction is known, but for the constant of the log weights."""
    lifted = matrix.copy()
    lifted[:n_components, :n_components] += np.mean(np.diagonal(matrix)[:n_components])
    lifted -= LEAST_CURVED * np.diag(np.diagonal(lifted)) - 1e-9 * n_rows * np.eye(len(matrix))
    try:
        np.linalg.cholesky(lifted)
    except np.linalg.LinAlgError:
        return False
    return bool(np.isfinite(lifted).all())
