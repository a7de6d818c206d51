r"""Rows that are of no component: what each says is bounded in units of the noise of the component next to it.

Beside its components, a mixture has a background: where a row lies between components with posteriors P, a density of

.. math:: b = \sum_r P_r \max(w_r, \tfrac{1}{5R})\, f_r, \quad \log f_r = \log p_r^{\max} - c / 2,

with :math:`p_r^{\max}` the density of the row of component r that is most likely, and c what a chi-squared of as many
degrees of freedom as a row has numbers exceeds once in a thousand times. A row of density L counts for
:math:`u = L / (L + b)`: as it did until its squared distance :math:`d^2` comes near c,
:math:`u = 1 / (1 + e^{(d^2 - c) / 2})`, for a half at c, and for nothing beyond. That is the improper background of
Coretto and Hennig (2016), in the units of every component; log-likelihoods are those with it, and so no row can lower
one by more than about c / 2. Covariances are divided by what this takes from those of clean rows.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from scipy.special import chdtri, expit, gammaincinv

from fedgrem.data.stack import Block, Stack
from fedgrem.families.copies import single_rows
from fedgrem.types import Array, Params, Sums

if TYPE_CHECKING:
    from fedgrem.families.base import ExponentialFamily

TAIL = 1e-3
"""Share of clean rows beyond the distance at which a row counts for a half."""
SLACK = 0.01
"""A larger share of rows than so much beyond what is usual says that there are rows of no component."""
LEAST_SHARE = 0.2
"""Of an even share 1/R: rows of a rarer component count for less no sooner than if it were this frequent."""
DOUBT = 0.9
"""The part of what a clean row gains by its component that rows must gain by one of their site's own."""
POINTS = 4000
"""Of a chi-squared distribution, where something is averaged over it."""


@lru_cache(maxsize=256)
def reach(degrees: int) -> float:
    """The squared distance c at which a row of so many numbers counts for a half.

    Examples
    --------
    >>> round(reach(10), 2)
    29.59
    """
    return float(chdtri(max(1, degrees), TAIL))


def _of_rows(function: Callable[[int], float], degrees: Array) -> Array:
    """A function of the numbers of a row, for rows of which some lack cells."""
    every, place = np.unique(degrees, return_inverse=True)
    return np.array([function(int(one)) for one in every])[place.reshape(degrees.shape)]


def doubt(degrees: Array) -> Array:
    """(c,) most of the log-likelihood that a clean row has beyond one of no component.

    So much better a row must be explained by a component that no other site has: else rows of no component, where they
    happen to be neighbours, would have one as soon as they are more than those of a rare one.
    """
    most = degrees.max(axis=1)
    return np.asarray(DOUBT * 0.5 * (_of_rows(reach, most) - most))


@lru_cache(maxsize=256)
def _clean(degrees: int) -> tuple[Array, Array]:
    """Squared distances of clean rows, at equal steps of probability, and what these rows count for."""
    square = 2.0 * gammaincinv(0.5 * max(1, degrees), (np.arange(POINTS) + 0.5) / POINTS)
    return square, expit(0.5 * (reach(degrees) - square))


def clean_share(degrees: int) -> float:
    """The share of clean rows that is held down all the same.

    Examples
    --------
    >>> 0.001 < clean_share(10) < 0.005
    True
    """
    return float(1.0 - _clean(degrees)[1].mean())


def stand_out(share: Array, n_rows: Array, degrees: int) -> Array:
    """(K,) whether sites hold down a larger share of their rows than clean ones would have it; NaN is no site.

    Examples
    --------
    >>> stand_out(np.array([0.003, 0.1]), np.array([150.0, 150.0]), 10).tolist()
    [False, True]
    """
    usual = clean_share(degrees) + SLACK
    limit = usual + 3.0 * np.sqrt(usual * (1.0 - usual) / np.maximum(n_rows, 1.0))
    return np.asarray(share > limit)


def consistency(degrees: int) -> float:
    """By what a variance of clean rows, weighted by what they count for, is too small.

    Examples
    --------
    >>> 0.98 < consistency(10) < 1.0
    True
    """
    square, counted = _clean(degrees)
    return float((counted * square).sum() / counted.sum() / max(1, degrees))


class Ground(NamedTuple):
    """What rows are compared with, of a stack and the fits on it."""

    height: Array
    """(c, ..., R, 1 or n) log of what each component adds to the background where its posterior is 1."""
    single: Array
    """(c, n) 0 for rows far more alike than others, 1 for these."""

    def of_rows(self, place: slice) -> "Ground":
        """Of some rows."""
        return Ground(*(leaf if leaf.shape[-1] == 1 else leaf[..., place] for leaf in self))

    def of_site(self, k: int) -> "Ground":
        """Of one site."""
        return Ground(*(leaf[[k]] for leaf in self))

    def weigh(self, share: Array, total: Array, value: Array) -> tuple[Array, Array]:
        """What rows count for and their log-likelihoods, ``(c, B, n)``; from posteriors ``share / total``."""
        c, n_components = len(share), share.shape[2]
        ground = self.height.reshape(c, -1, n_components, self.height.shape[-1])
        top = ground.max(axis=2)
        relative = np.exp(ground - top[:, :, None])
        if ground.shape[-1] == 1:
            mixed = (relative[..., 0][:, :, None] @ share)[:, :, 0]
        else:
            mixed = (relative * share).sum(axis=2)
        below = top + np.log(mixed / total)
        single = self.single[:, None]
        return single * expit(value - below), single * np.logaddexp(value, below)


def ground_of(family: "ExponentialFamily", stack: Stack, params: Params, scale: Any) -> Ground:
    """What the rows of a stack are compared with under some fits."""
    weights, degrees = params.weights, family.row_size(stack)
    single = stack.derive((family, "single rows"), lambda s: single_rows(s, family.points(s)))
    least = np.log(np.maximum(weights, LEAST_SHARE / weights.shape[-1]))[..., None]
    half = 0.5 * _of_rows(reach, degrees).reshape(len(weights), *(1,) * (weights.ndim - 1), -1)
    return Ground(least + family.crest(stack, scale, weights.shape[:-1]) - half, single)


def expect(family: "ExponentialFamily", stack: Stack, params: Params, scale: Any, *, scored: bool) -> Sums:
    """The E-step of a family whose rows are bounded."""
    from fedgrem.families.base import posterior  # which imports this module

    (c, *fits, n_components), features = params.weights.shape, family.features_of(stack)
    eta = family.natural(params.weights, params.theta, scale)
    eta = eta.reshape(c, -1, eta.shape[-1])
    terms, rest = family.terms(stack, params, scale), stack.derive((family, "rest rows"), family.rest_rows)
    part = np.broadcast_to(family.row_part(stack, scale, (c, *fits)), (c, *fits, stack.size)).reshape(c, -1, stack.size)
    ground = ground_of(family, stack, params, scale)

    def one(block: Block) -> tuple[Array, ...]:
        more = tuple(term.density(block.place) for term in terms)
        share, total, peak = posterior(eta, block.features, n_components, more)
        here = ground.of_rows(block.place)
        counted, value = here.weigh(share, total, peak + np.log(total) + part[..., block.place])
        weight = block.weight[:, None]
        counted *= weight
        share *= (counted / total)[:, :, None]
        mass = share.reshape(c, eta.shape[1], -1)
        found = mass @ block.features
        if terms:
            found = np.concatenate([found, *(term.sums(mass, block.place) for term in terms)], axis=-1)
        told = ((weight * value).sum(axis=-1),) if scored else ()
        return found, counted @ rest[:, block.place], *told

    found, left, *value = stack.total(features, one, eta.shape[1])
    reached = value[0].reshape(c, *fits) if scored else np.full((c, *fits), np.nan)
    return Sums(found.reshape(c, *fits, n_components, -1), left.reshape(c, *fits, -1), reached)


def lowered(share: Array, value: Array, ground: Ground) -> tuple[Array, Array]:
    """Posteriors ``(c, ..., R, n)`` and log-likelihoods ``(c, ..., n)``, given those of rows that are not bounded."""
    flat = share.reshape(len(share), -1, *share.shape[-2:])
    counted, value_here = ground.weigh(flat, np.ones(()), value.reshape(len(share), -1, value.shape[-1]))
    return share * counted.reshape(value.shape)[..., None, :], value_here.reshape(value.shape)
