"""The quantities of the theorem, and the five terms of its bound as numbers that add up to the error to expect."""

from typing import NamedTuple

import numpy as np
from scipy.special import ndtri

from fedgrem.data.simulate import Model
from fedgrem.kernels.randomness import generator_for
from fedgrem.theory.design import FEWEST_KINDS, Design, from_truth
from fedgrem.theory.predict import DRAWS, Sites, errors, sites_of, summarize
from fedgrem.types import Array

LEAST_WEIGHT = 1e-3
"""Of a component whose information is looked at."""
ENOUGH = 0.1
"""Part of the error that rounds may leave before they are enough."""


class Quantities(NamedTuple):
    """What the theorem speaks of, in units of the noise within a component."""

    separation: float
    """Delta: the smallest distance between two components of a site."""
    smallest_weight: float
    contraction: float
    """kappa: what an EM step leaves of a small error, at worst: the largest share of information that is missing."""
    weights_error: float
    """R_w(n): the largest error of a weight."""
    local_error: float
    """R_theta(n): the largest error of theta by fits of each site alone."""
    pooled_error: float
    """R_theta(nK): that of all rows together, were all sites alike."""
    h: float
    """How far sites are from the common center."""
    bad: float
    """epsilon: the share of bad sites."""


class ErrorBudget(NamedTuple):
    """Parts of the largest error of theta over sites and components; ``total`` is their sum."""

    iteration: float
    """What is left of the distance to the end of the fit."""
    aggregation: float
    """The error of the pooled rows of honest sites, if they were alike and their weights known."""
    proportions: float
    """What it adds that every site has weights of its own, which have to be estimated."""
    heterogeneity: float
    """What it adds that sites differ."""
    outliers: float
    """What bad sites add."""
    alone: float
    """Not a part: the largest error by fits of each site alone."""
    ratio: float
    """Not a part either: the error over that of each site alone, draw by draw."""

    @property
    def total(self) -> float:
        """The largest error to expect."""
        return sum(self[:5])


TERMS = ("iteration", "aggregation", "proportions", "heterogeneity", "outliers")


def contraction(information: Array, weights: Array) -> float:
    """The largest share of missing information: EM's rate of convergence (Dempster, Laird, Rubin, 1977).

    Parameters
    ----------
    information : (M, R q, R q) of a row; weights : (M, R).
    """
    whole = np.repeat(weights, information.shape[-1] // weights.shape[-1], axis=-1)
    root = np.sqrt(whole)
    relative = information / root[..., None] / root[..., None, :]
    return float(np.clip(1.0 - np.linalg.eigvalsh(relative)[..., 0].min(), 0.0, 1.0))


def smallest_distance(theta: Array) -> float:
    """Between two components of a site, ``(..., R, q)``; infinite where there is one."""
    n_components = theta.shape[-2]
    if n_components == 1:
        return float("inf")
    apart = np.linalg.norm(theta[..., :, None, :] - theta[..., None, :, :], axis=-1)
    return float(apart[..., ~np.eye(n_components, dtype=bool)].min())


def weights_error(sites: Sites) -> float:
    """The largest error of a weight over sites and components to expect, where theta is known."""
    found, n = sites.found, float(np.median(sites.n_rows))
    largest = 0.0
    for w, information in zip(found.weights, found.weights_information, strict=True):
        change = np.diag(w) - np.outer(w, w)
        variance = change @ np.linalg.pinv(information, rcond=1e-8, hermitian=True) @ change / n
        largest = max(largest, float(np.sqrt(np.diagonal(variance).max())))
    count = sites.weights.size
    return largest * float(ndtri(0.5 + 0.5 * 0.5 ** (1.0 / count)))


def quantities(draws: list[Sites], found: ErrorBudget) -> Quantities:
    """From draws of the sites of a design, or from the sites of a fit: medians over draws."""
    each = [
        (
            smallest_distance(d.found.theta),
            d.weights.min(),
            contraction(d.found.information.mean(axis=0)[None], d.found.weights.mean(axis=0)[None]),
            weights_error(d),
        )
        for d in draws
    ]
    first = draws[0]
    bad = first.n_bad / (first.n_bad + len(first.weights))
    pooled = found.aggregation + found.proportions
    apart, least, rate, of_weights = (float(value) for value in np.median(each, axis=0))
    return Quantities(apart, least, rate, of_weights, found.alone, pooled, float(first.h.max()), bad)


def budget(draws: list[Sites], seeds: list[int], left: float = 0.0) -> ErrorBudget:
    """The terms one after the other, on the same draws of chance; ``left`` is what the rounds leave."""
    model, steps = draws[0].model, []
    for weights_known, alike, no_bad in ((True, True, True), (False, True, True), (False, False, True), (False,) * 3):
        found = []
        for sites, seed in zip(draws, seeds, strict=True):
            changed = sites._replace(weights_known=weights_known)
            changed = changed._replace(h=0.0 * sites.h) if alike else changed
            found.append(errors(changed._replace(n_bad=0) if no_bad else changed, seed))
        steps.append(summarize(found, model))
    # A term is never below 0: what chance takes off one is taken off the next.
    level = np.minimum.accumulate([step.together for step in steps][::-1])[::-1]
    parts = np.diff(level, prepend=0.0)
    pooled, weights, differing, bad = (float(part) for part in parts)
    return ErrorBudget(left, pooled, weights, differing, bad, steps[-1].alone, steps[-1].ratio)


def draws_of(design: Design, draws: int = DRAWS, seed: int = 0) -> tuple[list[Sites], list[int]]:
    """Several draws of the sites of a design, and the seeds of their rows."""
    seeds = list(range(seed, seed + draws))
    return [sites_of(design, s) for s in seeds], seeds


def rounds_needed(rate: float, start: float, error: float) -> int:
    """Rounds of one EM step after which a tenth of the error, at most, is left of the distance of the start."""
    if start <= ENOUGH * error or rate <= 0.0:
        return 1
    return max(1, int(np.ceil(np.log(ENOUGH * error / start) / np.log(min(rate, 0.999)))))


def sites_of_fit(
    weights: Array, theta: Array, center: Array, n_rows: Array, h: Array, sent: Array, model: Model, seed: int
) -> Sites:
    """The sites of a fit as if it were the truth.

    Parameters
    ----------
    weights, theta, n_rows : (K, R), (K, R, q), (K,) of the sites that are not suspect; center : (R, q): in units of the
        noise.
    h : (R,) how far sites are from the center; sent : (B, R, q) the estimates of the suspect sites.
    """
    weights = np.maximum(weights, LEAST_WEIGHT)
    weights = weights / weights.sum(axis=1, keepdims=True)
    shown = np.unique(np.linspace(0, len(weights) - 1, min(FEWEST_KINDS, len(weights))).round().astype(int))
    found = from_truth(model, center, weights[shown], theta[shown], generator_for(seed, "", "truth"))
    rows = np.maximum(np.round(n_rows), 1).astype(int)
    return Sites(found, weights, rows, h, len(sent), model=model, sent=sent)
