"""How K site estimates of a component become a center: one class a rule, a value that an algorithm holds."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from scipy.special import chdtri

from fedgrem.algorithms.centered import Centered, CenterRule
from fedgrem.algorithms.robust_rules import ROBUST_RULES
from fedgrem.kernels.center import (
    MOST_ROWS,
    alternate_to_center,
    between_sites,
    bounded_pull,
    capped_rows,
    median,
    shrink,
    shrink_to_center,
    trust,
    usual_variance,
)
from fedgrem.kernels.columns import threshold_differences
from fedgrem.kernels.log_ratio import from_log_ratio, to_log_ratio
from fedgrem.kernels.robust import nearest_neighbor_mixing
from fedgrem.types import Array

FAR_CHANCE = 0.2
"""An honest site is with this chance farther out than up to where its pull on the center grows with its distance."""
MOST_BAD = 0.4
"""Part of the sites that may be bad."""
FEWEST_MIXED, MOST_MIXED = 5, 300
"""Sites between which colluders are looked for: of fewer nobody can say who colludes, and pairs of more are many."""
LOST = 0.21
"""What a center of mixed estimates loses to that of all: its variance, less the other's, relative to that."""
NARROW = 0.5
"""Of the distance up to which a site's pull grows: mixed estimates of honest sites are close to each other."""
DIFFERENT = (0.5, 0.05)
"""Chances of a difference between the two centers below which neither, and only the mixed one, is believed."""
CLEARLY_DIFFERENT = (1e-6, 1e-9)
"""The same where what estimates know is only told by how they differ."""


@dataclass(frozen=True)
class Huber:
    """The paper's central problem, solved to tolerance: Huber's location with each site's threshold."""

    name: ClassVar[str] = "huber"
    estimates: ClassVar[bool] = False
    picks_columns: ClassVar[bool] = False

    def __call__(
        self, theta: Array, weight: Array, threshold: Array, held: Array, start: Array, present: Array
    ) -> Centered:
        """Weigh every site by how far it is trusted, then solve."""
        trusted = self.trust(theta, held, start, present)
        found = shrink_to_center(theta, weight * trusted, threshold, start)
        return Centered(found.shrunk, found.center, trusted, found.iterations, found.gap)

    def trust(self, theta: Array, held: Array, start: Array, present: Array) -> Array:
        """(K, ..., R) by what sites' weights are multiplied."""
        return np.ones_like(held)


@dataclass(frozen=True)
class Redescending(Huber):
    """The same problem without the sites that are far off, which would still shift the center a little."""

    name: ClassVar[str] = "redescending"

    def __call__(
        self, theta: Array, weight: Array, threshold: Array, held: Array, start: Array, present: Array
    ) -> Centered:
        """The same, with no site pulling much harder than the middle one."""
        return super().__call__(theta, bounded_pull(weight, threshold), threshold, held, start, present)

    def trust(self, theta: Array, held: Array, start: Array, present: Array) -> Array:
        """Less, the farther a site is from the last center; nothing beyond some distance."""
        return trust(theta, held, start, None if present.all() else present)


@dataclass(frozen=True)
class Alternating:
    """The paper's way to that problem: a few alternating sweeps, which stop short of its solution."""

    name: ClassVar[str] = "alternating"
    estimates: ClassVar[bool] = False
    picks_columns: ClassVar[bool] = False
    sweeps: int = 2

    def __call__(
        self, theta: Array, weight: Array, threshold: Array, held: Array, start: Array, present: Array
    ) -> Centered:
        """Sweep."""
        # A site that is not pulled, beside others that are, is fitted alone.
        say = np.where((threshold > 0) | (threshold == 0).all(axis=0), weight, 0.0)
        found = alternate_to_center(theta, say, threshold, sweeps=self.sweeps)
        return Centered(found.shrunk, found.center, np.ones_like(weight), found.iterations, found.gap)


@dataclass(frozen=True)
class EmpiricalBayes:
    r"""Every site shrunk as far as the sites, being as alike as they are, call for.

    With :math:`\tau^2` the between-site variance of a component and m the rows of a site, the center is Huber's
    location with weights :math:`1 / (\tau^2 + 1/m)`, and the site moves to it by the part
    :math:`1 / (1 + m\tau^2)`: exactly onto it where :math:`\tau^2 = 0`, hardly at all where its rows say more than the
    others do, and not where it is too far out to be one of them. A site counts for at most one and a half times the
    rows of the median site, and where a robust center contradicts that one, it is believed.
    """

    name: ClassVar[str] = "empirical-bayes"
    estimates: ClassVar[bool] = True
    picks_columns: ClassVar[bool] = False

    def __call__(
        self, theta: Array, weight: Array, threshold: Array, held: Array, start: Array, present: Array
    ) -> Centered:
        """Estimate how much sites differ, then the center, then shrink; a threshold of 0 leaves a site alone."""
        between, trusted = between_sites(theta, held, start, None if present.all() else present)
        return self.given(between, trusted, theta, weight, threshold, held, start, present)

    def given(
        self,
        between: Array,
        trusted: Array,
        theta: Array,
        weight: Array,
        threshold: Array,
        held: Array,
        start: Array,
        present: Array,
    ) -> Centered:
        """The same where it is known how much sites differ, and how much each is trusted."""
        heard = None if present.all() else present
        counted = np.minimum(held, MOST_ROWS * median(held if heard is None else held[heard]))
        say = np.where(weight > 0, trusted * counted / (1.0 + counted * between), 0.0)
        limit = np.where(threshold > 0, np.sqrt(chdtri(theta.shape[-1], FAR_CHANCE) * (between + 1.0 / held)), 0.0)
        found = shrink_to_center(theta, say, limit, start)
        center = found.center
        asked = np.flatnonzero(say.reshape(len(say), -1).any(axis=1))
        if FEWEST_MIXED <= len(asked) <= MOST_MIXED:
            center = _unless_colluding(center, theta[asked], say[asked], limit[asked], start)
        shrunk = shrink(theta, center, threshold, most=trusted / (1.0 + held * between))
        return Centered(shrunk, center, trusted, found.iterations, found.gap, between)


@dataclass(frozen=True)
class SparseCenter(EmpiricalBayes):
    r"""The same about a center whose components differ in few columns, for many columns and few rows.

    What separates components is not where a column lies but how it differs from component to component: these
    differences are soft-thresholded, column by column, where they are not clearly beyond what chance makes of the rows
    at hand (:func:`~fedgrem.kernels.columns.threshold_differences`), and sites follow the center there. The paper's
    discussion asks for this; Cai, Ma and Zhang (Annals of Statistics, 2019) did it at one site.

    Before the rounds the columns that may be informative are sought by all sites together, and the fit is about these
    alone (:mod:`fedgrem.fit.columns`).
    """

    name: ClassVar[str] = "sparse"
    picks_columns: ClassVar[bool] = True

    def given(
        self,
        between: Array,
        trusted: Array,
        theta: Array,
        weight: Array,
        threshold: Array,
        held: Array,
        start: Array,
        present: Array,
    ) -> Centered:
        """Empirical Bayes, thresholded."""
        found = super().given(between, trusted, theta, weight, threshold, held, start, present)
        if theta.shape[-2] == 1:
            return found
        rows = np.where(weight > 0, trusted * held / (1.0 + held * between), 0.0).sum(axis=0)
        center, informative = threshold_differences(found.center, rows)
        part = np.where(informative[..., None, :], (trusted / (1.0 + held * between))[..., None], trusted[..., None])
        part = np.where(threshold[..., None] > 0, part, 0.0)
        shrunk = np.where(part == 1.0, center, theta + part * (center - theta))
        return found._replace(shrunk=shrunk, center=center)


def away_from_colluders(
    found: Centered, theta: Array, weight: Array, threshold: Array, held: Array, start: Array, part: Array | None
) -> tuple[Centered, Array | None]:
    """What a rule found by given thresholds, unless the center of mixed estimates clearly contradicts it.

    How far the middle site is from where most are says how well sites know anything, whatever a row is worth.

    Parameters
    ----------
    part : (..., R) how far the other center is believed at the least; returned is how far it is.
    """
    asked = np.flatnonzero(((weight > 0) & (threshold > 0)).reshape(len(weight), -1).any(axis=1))
    if not FEWEST_MIXED <= len(asked) <= MOST_MIXED:
        return found, None
    theirs, size = theta[asked], theta.shape[-1]
    mixed = _mixed(theirs)
    variance = usual_variance(theirs, held[asked], median(mixed))
    say = np.minimum(weight[asked], MOST_ROWS * median(weight[asked]))
    limit = np.where(threshold[asked] > 0, np.sqrt(chdtri(size, FAR_CHANCE) * variance), 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        known = np.square(say.sum(axis=0)) / (np.square(say) * variance).sum(axis=0)
    robust = shrink_to_center(mixed, say, NARROW * limit, start).center
    now = _contradicted(found.center, robust, known, CLEARLY_DIFFERENT)
    part = now if part is None else np.maximum(part, now)
    if not part.any():
        return found, part
    center = np.asarray(found.center + part[..., None] * (robust - found.center))
    return found._replace(shrunk=shrink(theta, center, threshold), center=center), part


def _mixed(theta: Array) -> Array:
    """Every estimate averaged with its nearest 60% (Allouah et al. 2023)."""
    return nearest_neighbor_mixing(theta, int(MOST_BAD * len(theta)))


def _unless_colluding(center: Array, theta: Array, say: Array, limit: Array, start: Array) -> Array:
    """The center, or that of mixed estimates where the two differ by more than chance.

    Colluders that stay within what an honest site may be are found by no distance of their own. A center of mixed
    estimates is hardly moved by them, but knows less; so it is taken only as far as it contradicts the other, as in
    Hausman's test of an efficient estimate by a robust one.
    """
    robust = shrink_to_center(_mixed(theta), say, NARROW * limit, start).center
    part = _contradicted(center, robust, say.sum(axis=0), DIFFERENT)
    return np.asarray(center + part[..., None] * (robust - center))


def _contradicted(center: Array, robust: Array, known: Array, different: tuple[float, float]) -> Array:
    """(..., R) how far the robust center is believed; ``known`` is one over the variance of a coordinate of the other.

    No number, as where nobody differs, is no contradiction.
    """
    size = center.shape[-1]
    apart = np.sqrt(np.square(robust - center).sum(axis=-1) * known / LOST)
    low, high = (np.sqrt(chdtri(size, chance)) for chance in different)
    return np.asarray(np.clip((np.nan_to_num(apart, posinf=0.0) - low) / (high - low), 0.0, 1.0))


CENTER_RULES: dict[str, type[CenterRule]] = {
    **{rule.name: rule for rule in (EmpiricalBayes, SparseCenter, Redescending, Huber, Alternating)},
    **ROBUST_RULES,
}
"""name -> class; every row runs through the conformance tests."""


def pool_weights(
    rule: CenterRule, weights: Array, common: Array, penalty: Array, n_rows: Array, present: Array
) -> tuple[Array, Array]:
    """Mixture weights shrunk towards common ones by a center rule, in log-ratio coordinates, and these.

    Parameters
    ----------
    weights : (K, ..., R); common : (..., R) the last common ones.
    penalty : (K, ...) lambda; n_rows, present : (K,).
    """
    rows, say, heard = (leaf.reshape(-1, *(1,) * (weights.ndim - 1)) for leaf in (n_rows, capped_rows(n_rows), present))
    about = to_log_ratio(weights, common, rows)[..., None, :]
    weight, threshold, held = (
        np.broadcast_to(leaf, about.shape[:-1]) for leaf in (say * heard, penalty[..., None] / np.sqrt(rows), rows)
    )
    found = rule(about, weight, threshold, held, np.zeros_like(about[0]), present)
    shrunk, center = (from_log_ratio(leaf[..., 0, :], common) for leaf in (found.shrunk, found.center))
    return shrunk, center
