"""A fitted model in plain values: what is common, which sites agree with it, and which are odd."""

from typing import Any, NamedTuple

import numpy as np

from fedgrem.errors import InputError
from fedgrem.estimators.base import BaseFederatedMixture
from fedgrem.types import NumpyArray

ODD_SPREADS, ODD_PULLS = 4.0, 3.0
"""How much farther out than the typical site an odd one is; see :func:`odd_beyond`."""
KINDS = {
    "FederatedGaussianMixture": "Gaussian mixture",
    "FederatedRegressionMixture": "mixture of linear regressions",
    "FederatedMixture": "custom mixture",
}


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
    odd: bool
    settled: bool

    @property
    def verdict(self) -> str:
        """In a word, as in ``fedgrem show``: odd, at the center, keeps some (of its own answer), keeps its own."""
        if self.odd:
            return "odd"
        if self.n_at_center == len(self.distance):
            return "at the center"
        return "keeps some" if self.n_at_center else "keeps its own"


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
    odd_beyond: float
    """Distance beyond which a site of median size is odd; see :func:`odd_beyond`."""
    sites: list[SiteSummary]
    """In the order of ``site_names_``."""

    @property
    def n_rows(self) -> float:
        """Total row weight of all sites."""
        return sum(site.n_rows for site in self.sites)

    @property
    def oddest_first(self) -> list[SiteSummary]:
        """Sites by distance from the center, the farthest first."""
        return sorted(self.sites, key=lambda site: -site.farthest)

    def as_plain(self) -> dict[str, Any]:
        """Dicts, lists and numbers only, ready for JSON; infinity becomes a string, which JSON has no number for."""
        plain = self._asdict() | {"n_sites": len(self.sites), "sites": [site._asdict() for site in self.sites]}
        plain["penalty"] = self.penalty if np.isfinite(self.penalty) else str(self.penalty)
        plain["odd_beyond"] = self.odd_beyond if np.isfinite(self.odd_beyond) else str(self.odd_beyond)
        return plain


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


def measured_in_noise(model: BaseFederatedMixture) -> bool:
    """Whether distances from the center are in units of an estimated noise, and so do not depend on the columns'."""
    return spread_within(model) is not None or getattr(model, "noise", "unit") != "unit"


def pull(model: BaseFederatedMixture) -> NumpyArray:
    """How far the center pulled each site that withstood it, ``(K,)``: ``lambda / sqrt(n_k)`` of the last round."""
    penalty = model.history_["penalty"]
    return np.asarray((penalty[-1] if len(penalty) else 0.0) / np.sqrt(model.n_rows_))


def odd_beyond(model: BaseFederatedMixture) -> NumpyArray:
    """How far out each site's farthest component may be before the site counts as odd, ``(K,)``.

    Four robust standard deviations above the median site, plus three times the pull it withstood: most sites of a
    homogeneous federation end exactly at the center, where the spread is 0 and no yardstick. A small site may be
    farther out than a large one.
    """
    farthest = model.site_distance_.max(axis=1)
    middle = float(np.median(farthest))
    spread = 1.4826 * float(np.median(np.abs(farthest - middle)))
    withstood = pull(model)
    return np.asarray(middle + ODD_SPREADS * spread + ODD_PULLS * np.maximum(withstood, np.median(withstood)))


def odd_sites(model: BaseFederatedMixture) -> NumpyArray:
    """Which sites are odd, ``(K,)``: farther out than the spread of the others and their own size explain."""
    if len(model.site_names_) < 3:
        return np.zeros(len(model.site_names_), dtype=bool)  # two that differ do not say which one is odd
    return np.asarray(model.site_distance_.max(axis=1) > odd_beyond(model))


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
    >>> [site.name for site in summarize(model).sites if site.odd]
    ['site-10']
    """
    check_fitted(model)
    odd = odd_sites(model)
    unsettled = set(model.unsettled_sites_.tolist())
    sites = [
        SiteSummary(
            name=str(name),
            n_rows=float(model.n_rows_[k]),
            weights=model.weights_[k].tolist(),
            distance=model.site_distance_[k].tolist(),
            n_at_center=int(model.at_center_[k].sum()),
            farthest=float(model.site_distance_[k].max()),
            odd=bool(odd[k]),
            settled=str(name) not in unsettled,
        )
        for k, name in enumerate(model.site_names_)
    ]
    return Summary(
        kind=KINDS.get(type(model).__name__, type(model).__name__),
        n_components=int(model.weights_.shape[1]),
        n_rounds=int(model.n_rounds_),
        converged=bool(model.converged_),
        penalty=float(model.penalty),
        parameters=parameter_names(model),
        center=model.center_.tolist(),
        center_errors=_center_errors(model),
        center_weights=model.center_weights_.tolist(),
        typical_distance=float(np.median(model.site_distance_.max(axis=1))),
        odd_beyond=float(np.median(odd_beyond(model))),
        sites=sites,
    )
