r"""A verdict on every site: at the center, similar, own answer, or suspect; with the evidence behind it.

A site's *deviance* is twice the log-likelihood that its rows gain when they leave the center for their own answer. By
chance alone it is about chi-squared with :math:`\nu` degrees of freedom, the number of component parameters; where
honest sites truly differ, it is larger at all of them, in proportion to their rows. So the others say what is
usual: with :math:`\tau^2` the median of :math:`(D_j - \nu)/n_j` over them, site k is expected at

.. math:: E_k = \nu (1 + n_k / N) + \max(n_k, \operatorname{median} n_j)\, \tau^2,

and :math:`\sqrt[3]{D_k / E_k}`, which is nearly Gaussian for a chi-squared number of any degrees (Wilson and Hilferty
1931), is compared with the median and the median absolute deviation of theirs, the latter at least what chance alone
makes it. Quantiles are those of Student's distribution that few sites call for. Where a site's own answer is farther
out than its log-likelihoods admit, that counts.

All this is about the center. What several sites do together is found without it, from their own answers alone
(:mod:`fedgrem.kernels.together`): those that say nearly the same are one voice wherever others are the yardstick, and
groups that stand apart from the others together are suspect.
"""

from typing import NamedTuple

import numpy as np
from scipy.special import chdtri, stdtr, stdtrit

from fedgrem.algorithms.center_rules import MOST_BAD
from fedgrem.kernels.center import WEIGHT_CAP
from fedgrem.kernels.together import nearly_same, standing_apart
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
MOST_SUSPECT = 0.5
"""Part of the judged sites beyond which it is not them that are odd."""
MOST_COMPARED = 300
"""Sites of which every two are compared."""


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
    own: Array | None = None
    """(K, R, q) its own answer less the center, in units of the noise; None where it is not known."""
    held: Array | None = None
    """(K, R) rows that this rests on."""

    @property
    def says(self) -> Array:
        """(K,) how far out its own answer says it is, as a deviance: in proportion, as the middle site's has it."""
        if self.own is None or self.held is None:
            return self.deviance
        square = (self.held * np.vecdot(self.own, self.own)).sum(axis=1)
        known = np.isfinite(square) & np.isfinite(self.deviance) & (square > 0) & self.enough
        return square * float(np.median(self.deviance[known] / square[known])) if known.any() else self.deviance

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
    same: Array
    """(K,) a number that sites share which say nearly the same; -1 of a site that says what nobody else does."""
    group: Array
    """(K,) a number that sites share which stand apart from the others together; -1 of all others."""
    p_group: Array
    """(K,) chance that any group of honest sites stands apart as this site's does; NaN of all others."""


def score(seen: Sightings, others: Sightings | None = None) -> Scores:
    """Hold every site against all others; or, with ``others``, against these."""
    n_sites = len(seen.n_rows)
    voice, group, p_group = _together(seen)
    claimed = seen._replace(deviance=np.fmax(seen.deviance, seen.says))
    first = voice == np.arange(n_sites)
    rows = []
    for k in range(n_sites):
        # Who says nearly the same is heard once, and is no yardstick for itself.
        beside = _pick(claimed, first & (voice != voice[k])) if others is None else others
        rows.append(_score_one(_pick(claimed, np.arange(n_sites) == k), _usable(beside)))
    same = np.where(np.bincount(voice, minlength=n_sites)[voice] > 1, voice, -1)
    expected, limit, p_distance, fit, p_fit = (np.array(column) for column in zip(*rows, strict=True))
    slack = 1e-6 * (1.0 + np.abs(seen.log_likelihood)) + seen.degrees
    contradicted = ~(seen.fitted <= CONTRADICTION * (np.maximum(seen.deviance, 0.0) + expected))
    impossible = np.isfinite(p_distance) & ((seen.deviance < -slack) | contradicted)
    return Scores(expected, limit, p_distance, fit, p_fit, impossible, same, group, p_group)


def _together(seen: Sightings) -> tuple[Array, Array, Array]:
    """Of every site the first that says nearly the same, the group with which it stands apart or -1, and its chance."""
    n_sites = len(seen.n_rows)
    voice, group, p_group = np.arange(n_sites), np.full(n_sites, -1), np.full(n_sites, np.nan)
    if seen.own is None or seen.held is None:
        return voice, group, p_group
    usable = np.isfinite(seen.own).all(axis=(1, 2)) & np.isfinite(seen.deviance) & seen.enough
    here = np.flatnonzero(usable if seen.whole is None else usable & seen.whole)
    if not FEWEST_SITES <= len(here) <= MOST_COMPARED:
        return voice, group, p_group
    own, held = seen.own[here], seen.held[here]
    voice[here] = here[nearly_same(own, held, FALSE_ALARM)]
    heard, size = np.unique(voice[here], return_counts=True)
    place = np.searchsorted(here, heard)
    found = standing_apart(own[place], held[place], size, int(MOST_BAD * len(here)), FALSE_ALARM)
    for number, one in enumerate(found):
        mine = np.isin(voice, heard[one.members])
        group[mine], p_group[mine] = number, one.p_value
    return voice, group, p_group


def _pick(seen: Sightings, which: Array) -> Sightings:
    """Some of the sites, with all that is compared one by one."""
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
    n, _, log_likelihood, deviance = (float(leaf[0]) for leaf in site[:4])
    degrees, count = site.degrees, len(others.n_rows)
    if count < FEWEST_SITES - 1 or not np.isfinite(deviance + log_likelihood):
        return degrees, np.inf, np.nan, np.nan, np.nan
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
    return expected, limit, p_distance, fit, p_fit


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
    return np.where(scores.impossible, 0.0, np.fmin(both, scores.p_group))


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
    # Of sites that say the same, one may have it from its own rows, and nobody knows which.
    plain = np.where(scores.same >= 0, NOT_JUDGED, plain)
    # A site may be away when it is asked, or have too few rows to say anything.
    judged = np.isfinite(seen.deviance) & seen.enough
    odd = judged & (p_value(scores) <= FALSE_ALARM)
    # Odd is what is unlike most. Where most are odd, what they are held against is.
    if judged.sum() >= FEWEST_SITES and odd.sum() > MOST_SUSPECT * judged.sum():
        odd, judged = np.zeros_like(odd), judged & ~odd
    return np.where(judged, np.where(odd, SUSPECT, plain), NOT_JUDGED)


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
