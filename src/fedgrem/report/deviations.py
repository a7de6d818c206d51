"""How sites differ from the center, in numbers: parameter by parameter, and in the spread of rows within components."""

from typing import NamedTuple

import numpy as np

from fedgrem.estimators.base import BaseFederatedMixture
from fedgrem.report.attributes import (
    LEAST_UNIT,
    center_line,
    estimates_noise,
    parameter_names,
    parameter_units,
    spread_within,
    thetas,
)
from fedgrem.types import Array

INTERCEPT = "intercept"
TYPICAL_INTERCEPT = "intercept at typical columns"
"""Of a standardized fit: the expected response of a row in the middle of all columns."""
CLEARLY = 1.25
"""Times the common spread, or its inverse, from which on another spread is worth a word."""
BEYOND_CHANCE = 3.0
"""Standard errors of a log spread within which it may be chance."""


class Deviations(NamedTuple):
    """Parameters of the sites less those of the center."""

    names: list[str]
    away: Array
    """(K, R, q), each in its own unit."""
    units: Array
    """(q,), to compare the parameters by."""

    def of(self, k: int) -> "Deviations":
        """Those of one site, ``(R, q)``."""
        return self._replace(away=self.away[k])


class Spreads(NamedTuple):
    """Standard deviations of the sites over the common ones: of rows within components, or about their lines."""

    what: str
    """Spread or noise."""
    names: list[str]
    """Of each: that word, and of which column."""
    ratio: Array
    """(K, C, s); C is 1 where the components of a site share it, and s is 0 where nothing is known."""
    clear: Array
    """(K, C, s), where it is neither small nor a matter of chance."""

    @property
    def size(self) -> Array:
        """How far those that are clear are from 1, either way; the others count as 0."""
        return np.where(self.clear, np.abs(np.log(self.ratio)), 0.0)

    def of(self, k: int) -> "Spreads":
        """Those of one site, ``(C, s)``."""
        return self._replace(ratio=self.ratio[k], clear=self.clear[k])


def deviations_of(model: BaseFederatedMixture) -> Deviations:
    """Component parameters less the center's, with the intercept where there is one.

    A standardized fit compares sites by the intercept of a row in the middle of all columns, and so does this: at zero,
    which may be far from any row, the intercept differs wherever a slope does.
    """
    names, units, away = parameter_names(model), parameter_units(model), thetas(model) - model.center_
    common = center_line(model, "intercept")
    if common is None:
        return Deviations(names, away, units)
    raised = model.intercept_ - common + away @ model.location_[:-1]
    name = TYPICAL_INTERCEPT if model.location_.any() else INTERCEPT
    unit = max(float(model.scale_[-1]), LEAST_UNIT)
    return Deviations([*names, name], np.concatenate([away, raised[..., None]], axis=2), np.append(units, unit))


def spreads_of(model: BaseFederatedMixture) -> Spreads:
    """Every site's own spread against the common one; of no column where it is not estimated, or not kept."""
    if spread_within(model) is not None:
        ratio = np.sqrt(_variances(model.covariances_) / _variances(model.center_covariances_))
        return Spreads("spread", [f"spread in {name}" for name in parameter_names(model)], ratio, _clear(model, ratio))
    if not estimates_noise(model):
        nothing = np.empty((len(model.site_names_), 1, 0))
        return Spreads("spread", [], nothing, nothing > 0)
    ratio = (model.noise_ / np.maximum(model.center_noise_, LEAST_UNIT))[:, :, None]
    if model.noise == "shared":
        ratio = ratio[:, :1]
    return Spreads("noise", ["noise"], ratio, _clear(model, ratio))


def _variances(covariances: Array) -> Array:
    return np.asarray(np.maximum(np.diagonal(covariances, axis1=-2, axis2=-1), LEAST_UNIT))


def _clear(model: BaseFederatedMixture, ratio: Array) -> Array:
    """Neither small, nor within what so few rows leave open: the log of a deviation from n rows errs by 1/sqrt(2n)."""
    n_rows = model.n_rows_[:, None] * (model.weights_ if ratio.shape[1] > 1 else np.ones((len(ratio), 1)))
    chance = BEYOND_CHANCE / np.sqrt(2.0 * np.maximum(n_rows, LEAST_UNIT))
    return np.asarray(np.abs(np.log(ratio)) > np.maximum(np.log(CLEARLY), chance)[..., None])
