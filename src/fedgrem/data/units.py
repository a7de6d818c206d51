"""Federated standardization: a common location and scale for every column, from summaries of the sites only."""

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from fedgrem.data.federation import LEAST_VARIATION, Federation, Site, Units
from fedgrem.types import Array


class Census(NamedTuple):
    """What a site says before everything else: its size, and two numbers for every column, the response last."""

    n_rows: Array
    """() the total row weight."""
    mean: Array
    """(p,); NaN for a column of which the site has not a single cell."""
    deviation: Array
    """(p,) standard deviations within the site."""
    seen: Array
    """(p,) the row weight of the cells that are there."""
    gaps: Array
    """() whether cells are missing."""


def take_census(site: Site) -> Census:
    """Weighted mean and standard deviation of every column, over the cells that are there."""
    values = site.rows if site.target is None else np.column_stack([site.rows, site.target])
    weight = np.where(np.isnan(values), 0.0, site.row_weight[:, None])
    there = weight.sum(axis=0)
    total = np.maximum(there, np.finfo(float).tiny)
    # About a value of the column itself: columns may sit far from zero.
    anchor = np.nan_to_num(values[np.argmax(weight > 0, axis=0), np.arange(values.shape[1])])
    away = np.nan_to_num(values - anchor)
    shift = (weight * away).sum(axis=0) / total
    variance = (weight * (away - shift) ** 2).sum(axis=0) / total
    seen = (weight > 0).any(axis=0)
    mean, deviation = (np.where(seen, found, np.nan) for found in (anchor + shift, np.sqrt(variance)))
    return Census(site.row_weight.sum(), mean, deviation, there, np.asarray(np.isnan(site.rows).any()))


class UnitsPlan(NamedTuple):
    """How the columns of every site are to be put before a fit; the same in process and over a network."""

    standardize: bool
    """Center and scale columns by what the sites' summaries have in common."""
    move: bool = True
    """Whether columns may be centered: not where a line must go through the origin."""
    intercept: bool = False
    """Whether a column of ones is added."""
    scaled: tuple[int, ...] | None = None
    """Places of the columns that are centered and scaled, as the others hold codes and counts; None is all columns.
    One of them that is constant at a site tells nothing there, and counts as missing in a fit."""
    within: bool = False
    """Whether columns and response are taken about each site's own means, which a site intercept stands for."""
    response: bool = True
    """Whether the response, the last column of a regression, is centered and scaled too."""
    kept: tuple[int, ...] | None = None
    """Places of the columns that the fit is about, in order; None is all columns."""

    @property
    def as_it_is(self) -> bool:
        """Whether rows stay as they are."""
        return not self.standardize and not self.intercept

    def of_kept(self, census: Census, has_target: bool) -> Census:
        """What sites say of the columns that the fit is about, and of the response, if there is one."""
        if self.kept is None:
            return census
        places = [*self.kept, -1] if has_target else list(self.kept)
        return census._replace(
            mean=census.mean[..., places], deviation=census.deviation[..., places], seen=census.seen[..., places]
        )

    def units(self, means: Array, deviations: Array) -> Units | None:
        """The common units of sites with these means and deviations, ``(K, p)``; None leaves their rows as they are."""
        if self.as_it_is:
            return None
        width = means.shape[1]
        units = common_units(means, deviations) if self.standardize else Units(np.zeros(width), np.ones(width))
        if self.scaled is not None:
            among = np.isin(np.arange(width), self.scaled)
            units = Units(np.where(among, units.location, 0.0), np.where(among, units.scale, 1.0))
        if not self.response:
            units.location[-1], units.scale[-1] = 0.0, 1.0
        return units if self.move and not self.within else units._replace(location=np.zeros(width))

    def constant(self, deviations: Array) -> Array:
        """Which columns count as missing, because they are constant at a site, by deviations ``(..., p)``."""
        found = np.zeros(deviations.shape, dtype=bool)
        if self.scaled is not None:
            found[..., self.scaled] = deviations[..., self.scaled] < LEAST_VARIATION
        return found

    def apply(self, federation: Federation, units: Units | None, *, fitting: bool = True) -> Federation:
        """The same rows in these units; in a fit about their sites' means, if asked for, and without constant columns.

        Rows to predict are not taken about their own means, but about those of the fit, which the intercepts know.
        """
        if self.kept is not None:
            federation = federation.of_columns(self.kept)
        if fitting and self.scaled:
            federation = Federation(tuple(self._without(site) for site in federation.sites), federation.columns)
        if fitting and self.within:
            federation = federation.within_sites()
        return federation if units is None else federation.in_units(units, intercept=self.intercept)

    def _without(self, site: Site) -> Site:
        constant = self.constant(take_census(site).deviation)
        return replace(site, rows=np.where(constant, np.nan, site.rows)) if constant.any() else site


def common_units(means: Array, deviations: Array) -> Units:
    """The medians of the sites' means and deviations: a minority of bad sites cannot move them far.

    A column that is constant at most sites has the median of the deviations that are not zero. Where there are not even
    three of these, one bad site could set it, and the distances of the means from their median are looked at as well.

    Examples
    --------
    >>> units = common_units(np.array([[1.0], [1.0], [1e9]]), np.array([[2.0], [2.0], [1e9]]))
    >>> units.location.tolist(), units.scale.tolist()
    ([1.0], [2.0])
    """
    deviations = np.where(deviations < LEAST_VARIATION, 0.0, deviations)
    location = np.nanmedian(means, axis=0)
    scale = np.nanmedian(deviations, axis=0)
    for j in np.flatnonzero(~(scale > 0)):
        found = deviations[deviations[:, j] > 0, j]
        if len(found) < 3:
            apart = np.abs(means[:, j] - location[j])
            found = np.concatenate([found, apart[apart > LEAST_VARIATION]])
        scale[j] = np.median(found) if len(found) else 1.0
    return Units(location, np.where(scale > 0, scale, 1.0))
