r"""A verdict on every site: at the center, similar, own answer, or suspect; with the evidence behind it.

A site's *deviance* is twice the log-likelihood that its rows gain when they leave the center for their own answer. By
chance alone it is about chi-squared with :math:`\nu` degrees of freedom, the number of component parameters; where
honest sites truly differ, it is larger at all of them, in proportion to their rows. So the others say what is
usual: with :math:`\tau^2` the median of :math:`(D_j - \nu)/n_j` over them, site k is expected at

.. math:: E_k = \nu (1 + n_k / N) + \max(n_k, \operatorname{median} n_j)\, \tau^2,

and :math:`\sqrt[3]{D_k / E_k}`, which is nearly Gaussian for a chi-squared number of any degrees (Wilson and Hilferty
1931), is compared with the median and the median absolute deviation of theirs, the latter at least what chance alone
makes it. A quarter or so of hostile sites moves neither far, and quantiles are those of Student's distribution that few
sites call for.
"""

from typing import NamedTuple

import numpy as np
from scipy.special import chdtri, stdtr, stdtrit

from fedgrem.kernels.center import WEIGHT_CAP
from fedgrem.types import Array

AT_CENTER, SIMILAR, OWN_ANSWER, SUSPECT, NOT_JUDGED = "at the center", "similar", "own answer", "suspect", "not judged"
VERDICTS = (AT_CENTER, SIMILAR, OWN_ANSWER, SUSPECT, NOT_JUDGED)
FALSE_ALARM = 0.01
"""Share of honest sites that are called suspect, as stated; docs/verdicts.md says when it is more."""
JUDGED_FROM = 2.0
"""Cells (of a regression, responses) for every parameter from which a deviance is about chi-squared. With one for each,
honest sites are suspect in 5 of 100 cases, and with half of one in most."""
FEWEST_SITES = 4
"""Of fewer sites nobody can say which one is odd."""
PRIOR = 3.0
"""Degrees of freedom that a scale gains by not falling below what chance makes it.

False alarms stay at about the stated rate while honest sites vary up to twice as much as chance would have it, and rise
to 3% where they vary much more, of 10 sites.
"""
CONTRADICTION = 10.0
"""A fitted answer that is this many times as far out (squared) as the site's own look admits contradicts it."""


class Sightings(NamedTuple):
    """What is known of every site once the rounds and the last look are over."""

    n_rows: Array
    """(K,)"""
    cells: Array
    """(K,) that its components explain: of a regression the responses."""
    log_likelihood: Array
    """(K,) of each site's own answer."""
    deviance: Array
    """(K,) twice what that gains over the center."""
    fitted: Array
    """(K,) sum over components of rows times squared distance of the fitted answer from the center, in noise units."""
    degrees: float
    """Parameters of the components, of which a deviance by chance has the mean."""
    whole: Array | None = None
    """(K,) whether a site tells something of every column: else its log-likelihood is of other things than the others'
    and is not compared. None is all sites."""

    @property
    def enough(self) -> Array:
        """(K,) whether a site has cells enough to be judged, and to say what is usual."""
        return np.asarray(self.cells >= JUDGED_FROM * self.degrees)


class Scores(NamedTuple):
    """How unusual sites are, beside others."""

    expected: Array
    """(K,) deviance that chance and the spread of the others explain."""
    limit: Array
    """(K,) deviance beyond which a site is suspect."""
    p_distance: Array
    """(K,) chance that an honest site is as far out."""
    fit: Array
    """(K,) log-likelihood per row against the others', in robust standard deviations."""
    p_fit: Array
    """(K,) chance that an honest site's rows are described as oddly as this, badly or all too well."""
    impossible: Array
    """(K,) whether a report cannot be true: worse than the center, or at odds with the answer it was fitted."""


def score(seen: Sightings, others: Sightings | None = None) -> Scores:
    """Hold every site against all others; or, with ``others``, against these."""
    n_sites = len(seen.n_rows)
    rows = []
    for k in range(n_sites):
        beside = _pick(seen, np.arange(n_sites) != k) if others is None else others
        rows.append(_score_one(_pick(seen, np.arange(n_sites) == k), _usable(beside)))
    return Scores(*(np.array(column) for column in zip(*rows, strict=True)))


def _pick(seen: Sightings, which: Array) -> Sightings:
    return Sightings(
        seen.n_rows[which],
        seen.cells[which],
        seen.log_likelihood[which],
        seen.deviance[which],
        seen.fitted[which],
        seen.degrees,
        None if seen.whole is None else seen.whole[which],
    )


def _usable(seen: Sightings) -> Sightings:
    return _pick(seen, np.isfinite(seen.deviance) & np.isfinite(seen.log_likelihood) & seen.enough)


def _score_one(site: Sightings, others: Sightings) -> tuple[float, ...]:
    n, _, log_likelihood, deviance, fitted = (float(leaf[0]) for leaf in site[:5])
    degrees, count = site.degrees, len(others.n_rows)
    if count < FEWEST_SITES - 1 or not np.isfinite(deviance + log_likelihood):
        return degrees, np.inf, np.nan, np.nan, np.nan, False
    middle_rows = float(np.median(others.n_rows))
    total = float(np.minimum(others.n_rows, WEIGHT_CAP * middle_rows).sum())
    spread = max(0.0, float(np.median((others.deviance - degrees) / others.n_rows)))

    def expect(rows: Array | float) -> Array:
        # The center is an estimate too. A site smaller than the middle one may deviate as much as that.
        return np.asarray(degrees * (1.0 + rows / total) + np.maximum(rows, middle_rows) * spread)

    chance = 2.0 / (9.0 * degrees)

    def unusual(value: Array, rows: Array | float) -> Array:
        """About standard normal by chance."""
        return np.asarray((np.cbrt(np.maximum(value, 0.0) / expect(rows)) - 1.0 + chance) / np.sqrt(chance))

    middle, scale = _middle_and_scale(unusual(others.deviance, others.n_rows))
    scale = max(scale, 1.0)
    expected = float(expect(n))
    most = middle + scale * student_quantile(FALSE_ALARM / 2.0, count, PRIOR)
    limit = expected * (1.0 - chance + np.sqrt(chance) * most) ** 3
    p_distance = student_tail((float(unusual(np.array(deviance), n)) - middle) / scale, count, PRIOR)
    fit, p_fit = np.nan, np.nan
    alike = others if others.whole is None else _pick(others, others.whole)
    if (site.whole is None or site.whole[0]) and len(alike.n_rows) >= FEWEST_SITES - 1:
        fit = _fit(n, log_likelihood, alike, degrees)
        p_fit = min(1.0, 2.0 * student_tail(abs(fit), len(alike.n_rows)))
    slack = 1e-6 * (1.0 + abs(log_likelihood)) + degrees
    impossible = deviance < -slack or not fitted <= CONTRADICTION * (max(deviance, 0.0) + expected)
    return expected, limit, p_distance, fit, p_fit, impossible


def _fit(n: float, log_likelihood: float, others: Sightings, degrees: float) -> float:
    """How a site's log-likelihood per row compares, in robust standard deviations for its size."""

    def per_row(value: Array | float, rows: Array | float) -> Array:
        return np.asarray((value - 0.5 * degrees) / rows)  # less what is gained by fitting these very rows

    middle, scale = _middle_and_scale(per_row(others.log_likelihood, others.n_rows))
    # The log density of one Gaussian number has a variance of 1/2: no mean over n rows is known better than this.
    scale = max(scale * np.sqrt(max(1.0, float(np.median(others.n_rows)) / n)), np.sqrt(0.5 / n))
    return float((per_row(log_likelihood, n) - middle) / scale)


def _middle_and_scale(values: Array) -> tuple[float, float]:
    middle = float(np.median(values))
    return middle, 1.4826 * float(np.median(np.abs(values - middle)))


def _student(count: int, prior: float) -> tuple[float, float]:
    """Degrees of freedom and scale of Student's distribution that ``(x - median) / (1.4826 MAD)`` follows.

    Median and MAD are those of ``count`` other Gaussian numbers; fitted to quantiles at 0.5% and below, for 3 to 100.
    """
    return 0.1 + 0.77 * (count // 2) + prior, float(np.sqrt(1.0 + 0.5 * np.pi / count))


def student_quantile(tail: float, count: int, prior: float = 0.0) -> float:
    """What a number exceeds with probability ``tail``, in robust deviations of ``count`` others.

    Examples
    --------
    >>> [round(student_quantile(0.005, n), 1) for n in (4, 9, 30)]
    [17.1, 6.0, 3.2]
    """
    degrees, scale = _student(count, prior)
    return float(-scale * stdtrit(degrees, tail))


def student_tail(deviations: float, count: int, prior: float = 0.0) -> float:
    """The way back: the probability to exceed so many robust deviations."""
    degrees, scale = _student(count, prior)
    return float(stdtr(degrees, -deviations / scale))


def p_value(scores: Scores) -> Array:
    """The chance of evidence as odd as this at an honest site, ``(K,)``; 0 for a report that cannot be true."""
    both = np.minimum(1.0, 2.0 * np.fmin(scores.p_distance, scores.p_fit))
    return np.where(scores.impossible.astype(bool), 0.0, both)


def words(scores: Scores, seen: Sightings, distance: Array, pull: Array, *, pulled: bool) -> Array:
    """One word per site, ``(K,)``.

    Parameters
    ----------
    distance : (K, R) of the fitted components from the center; pull : (K, R) the threshold that each withstood.
    pulled : whether that pull decided who is at the center. A site is then at the center if every component is, similar
        if none is farther out than the pull, and has its own answer otherwise. If not, its deviance says so: within
        what chance explains in 95 of 100 sites, within four times that (twice the distance), or beyond.
    """
    if pulled:
        at_center, similar = np.all(distance == 0.0, axis=1), np.all(distance <= pull, axis=1)
    else:
        chance = by_chance(seen)
        at_center, similar = seen.deviance <= chance, seen.deviance <= 4.0 * chance
    plain = np.where(at_center, AT_CENTER, np.where(similar, SIMILAR, OWN_ANSWER))
    found = np.where(p_value(scores) <= FALSE_ALARM, SUSPECT, plain)
    # A site may be away when it is asked, or have too few rows to say anything.
    return np.where(np.isfinite(seen.deviance) & seen.enough, found, NOT_JUDGED)


def by_chance(seen: Sightings) -> Array:
    """The deviance that 95 of 100 sites at the center stay below, ``(K,)``."""
    total = np.minimum(seen.n_rows, WEIGHT_CAP * np.median(seen.n_rows)).sum()
    return np.asarray(chdtri(seen.degrees, 0.05) * (1.0 + seen.n_rows / total))


def left_out(away: Array, weight: Array, threshold: Array | None) -> Array:
    r"""How far the center of any component moves, at most, when a site is left out, ``(K,)``, in noise units.

    One reweighting step from the center, exact where it is a mean: :math:`u_k \|\theta_k - c\| / \sum_{j \ne k} u_j`
    with :math:`u_k = m_k \min(1, \tau_k / \|\theta_k - c\|)`.

    Parameters
    ----------
    away : (K, R, q) the sites' own answers less the center.
    weight : (K, R) m, what a site counts for; threshold : (K, R) tau, or None for a plain mean.

    Examples
    --------
    >>> away, ones = np.array([[[4.0]], [[0.0]], [[0.0]]]), np.ones((3, 1))
    >>> left_out(away, ones, None).tolist(), left_out(away, ones, ones).tolist()
    ([2.0, 0.0, 0.0], [0.5, 0.0, 0.0])
    """
    length = np.sqrt(np.sum(away * away, axis=2))
    if threshold is not None:
        weight = weight * np.minimum(1.0, threshold / np.maximum(length, 1e-300))
    rest = np.maximum(np.nansum(weight, axis=0) - weight, 1e-300)
    moved: Array = (weight * length / rest).max(axis=1)
    return moved


def left_out_of_median(away: Array) -> Array:
    """The same where the center is the coordinate-wise median of the sites, ``(K,)``.

    Examples
    --------
    >>> left_out_of_median(np.array([[[9.0]], [[0.0]], [[1.0]]])).tolist()
    [0.5, 4.0, 3.5]
    """
    center = np.nanmedian(away, axis=0)
    without = [np.nanmedian(np.delete(away, k, axis=0), axis=0) for k in range(len(away))]
    return np.array([np.sqrt(np.sum((middle - center) ** 2, axis=1)).max() for middle in without])
