"""EM at the sites of a stack, several fits side by side; each stops by itself, whatever its neighbours do."""

from functools import partial
from typing import NamedTuple

import numpy as np

from fedgrem.data.stack import Stack
from fedgrem.families.base import LEAST_SHARE, Family, weights_of
from fedgrem.kernels.center import row_norm, shrink
from fedgrem.types import Array, Params, Sums, map_arrays, pick

FAR = 3.0
"""A component farther from the common start than this many thresholds costs a candidate no more: it is its own."""
TOL = 1e-6
LARGEST_PENALTY = 1e6
"""Stands for an infinite penalty where starts are compared: 0 * inf has no answer."""


class Prior(NamedTuple):
    """A common start that a site's EM is pulled towards, as the rounds to come will do."""

    center: Array
    """(c, ..., R, q)"""
    penalty: Array
    """(c,) lambda"""
    noise: Array | None = None
    """(c, ..., C, s) in the units of which the pull is measured; it is not pulled itself."""
    per_row: Array | None = None
    """(c,) log-likelihood per row that a component of a site's own may cost, however far it is; None for no more than
    that of a distance which counts as far."""


class Climbed(NamedTuple):
    """Where EM ended."""

    params: Params
    """(c, B, ...)"""
    value: Array
    """(c, B) of the objective, minus infinity where that is not a number."""
    sums: Sums
    """Of an E-step there."""
    log_likelihood: Array
    """(c, B)"""


def em(
    family: Family,
    stack: Stack,
    params: Params,
    iterations: int,
    prior: Prior | None = None,
    *,
    hold_noise: bool = False,
) -> Climbed:
    r"""EM with the family's M-step, from parameters ``(c, B, ...)``, until every fit is settled.

    The objective is the log-likelihood or, with a prior, the log-likelihood less
    :math:`\sqrt{n}\lambda\sum_r w_r \min(\|\theta_r - c_r\|, 3\lambda/\sqrt n)`, and each M-step is pulled to the
    center accordingly. With ``hold_noise`` the noise stays as it is: few rows leave it free to fit whatever partition
    EM happens to be in.
    """
    width = stack.rows.shape[-1]
    reached: Params = map_arrays(np.array, params)
    places, here, pulled = np.arange(len(stack)), stack, prior
    moving = np.ones(params.weights.shape[:-1], dtype=bool)
    now = reached
    scale = family.open(here, now.noise, width)
    for _ in range(iterations):
        after = _step(family, here, now, scale, pulled, hold_noise)
        change = np.abs(after.weights - now.weights).max(axis=-1)
        change = np.maximum(change, np.abs(after.theta - now.theta).max(axis=(-2, -1)))
        now = after if moving.all() else map_arrays(partial(_where, moving), after, now)
        moving &= ~(change < TOL)
        left = moving.any(axis=tuple(range(1, moving.ndim)))
        if (2 * left.sum() <= len(here) and len(here) > 1) or not left.any():
            _write(reached, places, now)
            if not left.any():
                break
            index = np.flatnonzero(left)
            places, here, moving = places[index], here.select(index), moving[index]
            now, pulled = (map_arrays(partial(_taken, index), message) for message in (now, pulled))
            scale = family.open(here, now.noise, width)
        elif now.noise is not None and not hold_noise:
            scale = family.open(here, now.noise, width)
    else:
        _write(reached, places, now)
    end = reached
    sums = family.expect(stack, end)
    value = objective(family, end, sums.log_likelihood, stack.n_rows, prior)
    return Climbed(end, value, sums, sums.log_likelihood)


def _step(family: Family, stack: Stack, params: Params, scale: object, prior: Prior | None, hold_noise: bool) -> Params:
    sums = family.expect(stack, params, scale, scored=False)
    theta = family.maximize(stack, params, sums)
    weights = weights_of(sums)
    if prior is not None:
        lead = (-1, *(1,) * (weights.ndim - 1))
        # A component rarer than its least share is pulled in proportion: Q weighs w, the penalty the share.
        within = (prior.penalty / np.sqrt(stack.n_rows)).reshape(lead)
        within = within * _share(weights) / np.maximum(weights, 1e-12)
        theta = shrink(theta, prior.center, within, row_norm(family.to_noise(theta - prior.center, prior.noise)))
    noise = params.noise if hold_noise else family.noise_step(sums, theta, params.noise)
    return Params(weights, theta, noise)


def _write(whole: Params, places: Array, part: Params) -> None:
    """Put the sites of a part in their places."""
    for leaf, found in zip(whole, part, strict=True):
        if leaf is not None:
            leaf[places] = found


def _taken(index: Array, leaf: Array) -> Array:
    return np.asarray(leaf[index])


def _where(moving: Array, new: Array, old: Array) -> Array:
    return np.where(moving.reshape(*moving.shape, *(1,) * (new.ndim - moving.ndim)), new, old)


def _share(weights: Array) -> Array:
    return np.asarray(np.maximum(weights, LEAST_SHARE / weights.shape[-1]))


def objective(family: Family, params: Params, log_likelihood: Array, n_rows: Array, prior: Prior | None) -> Array:
    """What :func:`em` climbs, at parameters of this log-likelihood; minus infinity where that is not a number."""
    value = log_likelihood
    if prior is not None:
        lead = (-1, *(1,) * (params.weights.ndim - 1))
        penalty, root = prior.penalty.reshape(lead), np.sqrt(n_rows).reshape(lead)
        away = row_norm(family.to_noise(params.theta - prior.center, prior.noise))
        most = FAR * penalty / root
        if prior.per_row is not None:
            most = np.maximum(most, prior.per_row.reshape(lead) * root / penalty)
        distance = np.minimum(away, most)
        value = value - (penalty * root)[..., 0] * (_share(params.weights) * distance).sum(axis=-1)
    return np.where(np.isfinite(value), value, -np.inf)


def first_best(value: Array) -> Array:
    """The place of the first of the best but for rounding, ``(c, B)`` to ``(c,)``: ties must not hang on it."""
    top = value.max(axis=1, keepdims=True)
    with np.errstate(invalid="ignore"):
        close = value >= top - 1e-7 * (1.0 + np.abs(top))
    return np.asarray((close | (value == top)).argmax(axis=1))


def take(params: Params, index: Array) -> Params:
    """One fit of each site, ``(c, B, ...)`` to ``(c, ...)``."""
    sites = np.arange(len(index))
    return pick(params, (sites, index))
