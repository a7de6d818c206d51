"""A fitted model in plain values: what is common, which sites agree with it, and which are suspect."""

from typing import Any, NamedTuple

import numpy as np

from fedgrem.algorithms.verdicts import FALSE_ALARM, NOT_JUDGED, SUSPECT
from fedgrem.errors import InputError
from fedgrem.estimators.base import BaseFederatedMixture
from fedgrem.estimators.verdicts import thresholds
from fedgrem.report.selection import selection_of
from fedgrem.types import NumpyArray

KINDS = {
    "FederatedGaussianMixture": "Gaussian mixture",
    "FederatedRegressionMixture": "mixture of linear regressions",
    "FederatedMixture": "custom mixture",
}

LEAST_UNIT = 1e-300
"""Something to divide by where a spread is 0."""


class SiteSummary(NamedTuple):
    """One site against the common center."""

    name: str
    n_rows: float
    """Total row weight."""
    weights: list[float]
    distance: list[float]
    """Of each component from the center; 0 means exactly at it."""
    n_at_center: int
    farthest: float
    verdict: str
    """In a word, as in ``site_verdict_``: at the center, similar, own answer, suspect, or not judged."""
    evidence: dict[str, float]
    """What the verdict rests on, as in ``site_evidence_``; empty if the site was not judged."""
    settled: bool
    vanished: tuple[int, ...] = ()
    """Components of which it holds less than one row."""

    @property
    def suspect(self) -> bool:
        """Whether the verdict says so."""
        return self.verdict == SUSPECT


class Summary(NamedTuple):
    """A fitted model."""

    kind: str
    n_components: int
    n_rounds: int
    converged: bool
    penalty: float
    parameters: list[str]
    """Names of the parameters of a component: the columns, where a component has one parameter per column."""
    center: list[list[float]]
    center_errors: list[list[float | None]] | None
    """Standard errors of the centers, None where nothing can be said, or where none were asked for."""
    center_weights: list[float]
    typical_distance: float
    """Median over sites of the distance of the farthest component from its center."""
    suspect_beyond: float
    """Distance of a site's own answer beyond which the middle site is suspect; see :func:`suspect_beyond`."""
    false_alarm: float
    """Share of honest sites that are called suspect, as stated; docs/verdicts.md says when it is more."""
    sites: list[SiteSummary]
    """In the order of ``site_names_``."""
    selection: dict[str, Any] | None = None
    """How the number of components was chosen; None if it was given."""
    parameter_units: list[float] | None = None
    """What makes the parameters comparable, one for each; see :func:`parameter_units`."""

    @property
    def n_rows(self) -> float:
        """Total row weight of all sites."""
        return sum(site.n_rows for site in self.sites)

    @property
    def oddest_first(self) -> list[SiteSummary]:
        """Suspects, then the others; each by distance from the center, the farthest first."""
        return sorted(self.sites, key=lambda site: (not site.suspect, -site.farthest))

    def as_plain(self) -> dict[str, Any]:
        """Dicts, lists and numbers only, ready for JSON; infinity becomes a string, which JSON has no number for."""
        plain = self._asdict() | {"n_sites": len(self.sites), "sites": [site._asdict() for site in self.sites]}
        for site in plain["sites"]:
            site["evidence"] = {key: _in_json(value) for key, value in site["evidence"].items()}
            site["vanished"] = list(site["vanished"])
        return plain | {key: _in_json(plain[key]) for key in ("penalty", "suspect_beyond")}


def _in_json(value: float) -> float | str:
    """JSON has no number for infinity, nor for what is not known."""
    return value if np.isfinite(value) else str(value)


def check_fitted(model: BaseFederatedMixture) -> None:
    """Refuse a model that has nothing to show yet."""
    if not hasattr(model, "center_"):
        raise InputError(f"this {type(model).__name__} is not fitted; call fit first.")


def thetas(model: BaseFederatedMixture) -> NumpyArray:
    """Component parameters of all sites, ``(K, R, q)``, whatever the model calls them."""
    check_fitted(model)
    theta: NumpyArray = getattr(model, f"{model._theta_name}_")
    return theta


def parameter_names(model: BaseFederatedMixture) -> list[str]:
    """The columns, where a component has one parameter per column; ``theta[0]``, ... where it has not."""
    n_parameters = model.center_.shape[1]
    columns = [str(name) for name in getattr(model, "feature_names_in_", [])]
    if len(columns) == n_parameters:
        return columns
    if model._theta_name != "params" or getattr(model, "n_features_in_", -1) == n_parameters:
        return [f"x{j}" for j in range(n_parameters)]
    return [f"theta[{j}]" for j in range(n_parameters)]


def spread_within(model: BaseFederatedMixture) -> NumpyArray | None:
    """Common spread within a component, per column and in its unit: (R, p), or (1, p) where components share it.

    The square roots of the variances; None for a model that does not estimate them.
    """
    covariances = getattr(model, "center_covariances_", None)
    if covariances is None:
        return None
    return np.asarray(np.sqrt(np.diagonal(covariances, axis1=-2, axis2=-1)))


def parameter_units(model: BaseFederatedMixture) -> NumpyArray:
    """What makes the parameters of a component comparable whatever units the columns are in, ``(q,)``.

    The spread within components where it is known. For coefficients the response's scale over the column's, if the fit
    was standardized by them: a coefficient then counts as what it does to the response over the column's usual range.
    1 where neither is known.
    """
    n_parameters = model.center_.shape[1]
    spread = spread_within(model)
    if spread is not None and spread.shape[1] == n_parameters:
        return np.asarray(np.maximum(np.median(spread, axis=0), LEAST_UNIT))
    scale = getattr(model, "scale_", None)
    if model._theta_name == "coef" and scale is not None and len(scale) == n_parameters + 1:
        return np.asarray(np.maximum(scale[-1] / scale[:-1], LEAST_UNIT))
    return np.ones(n_parameters)


def measured_in_noise(model: BaseFederatedMixture) -> bool:
    """Whether distances from the center are in units of an estimated noise, and so do not depend on the columns'."""
    return spread_within(model) is not None or getattr(model, "noise", "unit") != "unit"


def pull(model: BaseFederatedMixture) -> NumpyArray:
    """How far the center pulled each component of each site in the last round, ``(K, R)``; 0 at sites fitted alone."""
    alone = getattr(model, "fitted_alone_", np.zeros(len(model.site_names_), dtype=bool))
    return np.where(alone[:, None], 0.0, thresholds(model, model.weights_, model.n_rows_))


def suspect_beyond(model: BaseFederatedMixture) -> NumpyArray:
    """How far out each site's own answer may be before the site is suspect, ``(K,)``; infinity where nobody judges.

    In units of the noise, as a root mean square over its rows. A small site may be farther out than a large one.
    """
    return _evidence(model, "limit", np.inf)


def own_distance(model: BaseFederatedMixture) -> NumpyArray:
    """How far from the center each site's rows lead with nothing that pulls back, ``(K,)``, in the same units."""
    return _evidence(model, "distance", np.nan)


def _evidence(model: BaseFederatedMixture, name: str, otherwise: float) -> NumpyArray:
    found = getattr(model, "site_evidence_", {})
    return np.asarray(found[name]) if found else np.full(len(model.site_names_), otherwise)


def verdicts(model: BaseFederatedMixture) -> NumpyArray:
    """One word per site, ``(K,)``; a model that an older fedgrem saved was not judged."""
    return np.asarray(getattr(model, "site_verdict_", np.full(len(model.site_names_), NOT_JUDGED)))


def suspect_sites(model: BaseFederatedMixture) -> NumpyArray:
    """Which sites are suspect, ``(K,)``."""
    return np.asarray(verdicts(model) == SUSPECT)


def vanished(model: BaseFederatedMixture) -> NumpyArray:
    """Components ``(K, R)`` of which a site holds less than one row; none of a model that does not say."""
    return np.asarray(getattr(model, "vanished_", np.zeros(model.weights_.shape, dtype=bool)))


def center_errors(model: BaseFederatedMixture) -> NumpyArray | None:
    """Standard errors of the centers, ``(R, q)``; None where none were asked for."""
    errors: NumpyArray | None = getattr(model, "center_se_", None)
    return errors


def _center_errors(model: BaseFederatedMixture) -> list[list[float | None]] | None:
    errors = center_errors(model)
    if errors is None:
        return None
    return [[float(error) if np.isfinite(error) else None for error in row] for row in errors]


def summarize(model: BaseFederatedMixture) -> Summary:
    """Collect what was found.

    Examples
    --------
    >>> from fedgrem import FederatedGaussianMixture
    >>> from fedgrem.data.simulate import simulate
    >>> model = FederatedGaussianMixture(n_components=5, random_state=0).fit(simulate("gmm", h=0.5, seed=1).rows)
    >>> [site.name for site in summarize(model).sites if site.suspect]
    ['site-10']
    """
    check_fitted(model)
    words, evidence = verdicts(model), getattr(model, "site_evidence_", {})
    unsettled, gone = set(model.unsettled_sites_.tolist()), vanished(model)
    sites = [
        SiteSummary(
            name=str(name),
            n_rows=float(model.n_rows_[k]),
            weights=model.weights_[k].tolist(),
            distance=model.site_distance_[k].tolist(),
            n_at_center=int(model.at_center_[k].sum()),
            farthest=float(model.site_distance_[k].max()),
            verdict=str(words[k]),
            evidence={key: float(value[k]) for key, value in evidence.items() if np.ndim(value)},
            settled=str(name) not in unsettled,
            vanished=tuple(np.flatnonzero(gone[k]).tolist()),
        )
        for k, name in enumerate(model.site_names_)
    ]
    return Summary(
        kind=KINDS.get(type(model).__name__, type(model).__name__),
        n_components=int(model.weights_.shape[1]),
        n_rounds=int(model.n_rounds_),
        converged=bool(model.converged_),
        penalty=float(model.penalty_),
        parameters=parameter_names(model),
        center=model.center_.tolist(),
        center_errors=_center_errors(model),
        center_weights=model.center_weights_.tolist(),
        typical_distance=float(np.median(model.site_distance_.max(axis=1))),
        suspect_beyond=float(np.median(suspect_beyond(model))),
        false_alarm=FALSE_ALARM,
        sites=sites,
        selection=selection_of(model),
        parameter_units=parameter_units(model).tolist(),
    )
