"""What reports and plots read of a fitted model: every attribute and option by one function, whatever kind it is."""

from typing import Any, Literal

import numpy as np

from fedgrem.algorithms.verdicts import NOT_JUDGED, SUSPECT
from fedgrem.errors import InputError
from fedgrem.estimators.base import BaseFederatedMixture
from fedgrem.estimators.verdicts import thresholds
from fedgrem.types import Array

Sharing = Literal["alone", "pulled", "shared"]
"""What the sites of a fit have in common: nothing, what the center pulled them to, or all components."""

KINDS = {
    "FederatedGaussianMixture": "Gaussian mixture",
    "FederatedRegressionMixture": "mixture of linear regressions",
    "FederatedMixture": "custom mixture",
}
TITLES = {
    "fedgrem": "FedGrEM",
    "local-em": "Local-EM",
    "local-grem": "Local-GrEM",
    "fedem": "FedEM",
    "fedgmm": "FedGMM",
    "tgmm": "TGMM",
    "fedem-sa": "FedEM-SA",
    "pooled-em": "Pooled-EM",
    "pooled-grem": "Pooled-GrEM",
}
"""Of the algorithms, as the papers write them."""
ALONE = ("local-em", "local-grem", "tgmm")
"""Algorithms whose center nobody is moved to."""
SHARED = ("pooled-em", "pooled-grem", "fedem", "fedgmm", "fedem-sa")
"""Algorithms that give all sites the same components."""
LEAST_UNIT = 1e-300
"""Something to divide by where a standard deviation is 0."""


def check_fitted(model: BaseFederatedMixture) -> None:
    """Refuse a model that has nothing to show yet."""
    if not hasattr(model, "center_"):
        raise InputError(f"this {type(model).__name__} is not fitted; call fit first.")


def option(model: BaseFederatedMixture, name: str, otherwise: Any = None) -> Any:
    """An argument of the constructor, or what stands for it in a model that knows none of this name."""
    return getattr(model, name, otherwise)


def kind(model: BaseFederatedMixture) -> str:
    """What was fitted, in words."""
    return KINDS.get(type(model).__name__, type(model).__name__)


def algorithm_title(model: BaseFederatedMixture) -> str:
    """The algorithm as the papers write it, whether the model was given its name or an object."""
    chosen = option(model, "algorithm", "fedgrem")
    if isinstance(chosen, str):
        return TITLES.get(chosen, chosen)
    return str(getattr(getattr(chosen, "traits", chosen), "title", type(chosen).__name__))


def algorithm_name(model: BaseFederatedMixture) -> str:
    """The algorithm as the option of this name takes it."""
    return algorithm_title(model).lower()


def pools_rows(model: BaseFederatedMixture) -> bool:
    """Whether all rows were fitted as if they came from one site."""
    return algorithm_name(model).startswith("pooled")


def sharing(model: BaseFederatedMixture) -> Sharing:
    """Whether the fit pulled sites to the center, left them alone, or gave all the same components."""
    name = algorithm_name(model)
    if name in ALONE or (name == "fedgrem" and model.penalty_ == 0):
        return "alone"
    return "shared" if name in SHARED or np.isinf(model.penalty_) else "pulled"


def thetas(model: BaseFederatedMixture) -> Array:
    """Component parameters of all sites, ``(K, R, q)``, whatever the model calls them."""
    check_fitted(model)
    theta: Array = getattr(model, f"{model._theta_name}_")
    return theta


def has_response(model: BaseFederatedMixture) -> bool:
    """Whether rows come with a response."""
    return model._theta_name == "coef"


def column_names(model: BaseFederatedMixture) -> list[str]:
    """Of the table that was fitted; empty if its columns had no names."""
    return [str(name) for name in getattr(model, "feature_names_in_", [])]


def parameter_names(model: BaseFederatedMixture) -> list[str]:
    """The columns, where a component has one parameter per column; ``theta[0]``, ... where it has not."""
    n_parameters, columns = model.center_.shape[1], column_names(model)
    if len(columns) == n_parameters:
        return columns
    if model._theta_name != "params" or getattr(model, "n_features_in_", -1) == n_parameters:
        return [f"x{j}" for j in range(n_parameters)]
    return [f"theta[{j}]" for j in range(n_parameters)]


def spread_within(model: BaseFederatedMixture) -> Array | None:
    """Common standard deviations within a component, per column: (R, p), or (1, p) where components share them.

    None for a model that does not estimate them.
    """
    covariances = getattr(model, "center_covariances_", None)
    if covariances is None:
        return None
    return np.asarray(np.sqrt(np.diagonal(covariances, axis1=-2, axis2=-1)))


def parameter_units(model: BaseFederatedMixture) -> Array:
    """What makes the parameters of a component comparable whatever units the columns are in, ``(q,)``.

    The standard deviation within components where it is known. For coefficients the response's scale over the
    column's, if the fit was standardized by them: a coefficient then counts as what it does to the response over the
    column's usual range. 1 where neither is known.
    """
    n_parameters, spread = model.center_.shape[1], spread_within(model)
    if spread is not None and spread.shape[1] == n_parameters:
        return np.asarray(np.maximum(np.median(spread, axis=0), LEAST_UNIT))
    scale = getattr(model, "scale_", None)
    if has_response(model) and scale is not None and len(scale) == n_parameters + 1:
        return np.asarray(np.maximum(scale[-1] / scale[:-1], LEAST_UNIT))
    return np.ones(n_parameters)


def measured_in_noise(model: BaseFederatedMixture) -> bool:
    """Whether distances from the center are in units of an estimated noise, and so do not depend on the columns'."""
    return spread_within(model) is not None or option(model, "noise", "unit") != "unit"


def of_center(model: BaseFederatedMixture, name: str) -> Array | None:
    """One number per component of the center, such as its intercept, ``(R,)``; None where it has none, or only 0."""
    found = getattr(model, f"center_{name}_", None)
    values = np.asarray(() if found is None else found, dtype=float)
    return values if values.shape == (len(model.center_),) and values.any() else None


def center_errors(model: BaseFederatedMixture) -> Array | None:
    """Standard errors of the centers, ``(R, q)``; None where none were asked for."""
    errors: Array | None = getattr(model, "center_se_", None)
    return errors


def local_only(model: BaseFederatedMixture) -> Array:
    """Which sites were given their own fit back, ``(K,)``."""
    alone = getattr(model, "local_only_", getattr(model, "fitted_alone_", None))
    return np.asarray(np.zeros(len(model.site_names_), dtype=bool) if alone is None else alone)


def pull(model: BaseFederatedMixture) -> Array:
    """Shrinkage threshold of each component of each site in the last round, ``(K, R)``; 0 at sites fitted alone."""
    return np.where(local_only(model)[:, None], 0.0, thresholds(model, model.weights_, model.n_rows_))


def suspect_beyond(model: BaseFederatedMixture) -> Array:
    """How far out each site's own answer may be before the site is suspect, ``(K,)``; infinity where nobody judges.

    In units of the noise, as a root mean square over its rows. A small site may be farther out than a large one.
    """
    return _evidence(model, "limit", np.inf)


def own_distance(model: BaseFederatedMixture) -> Array:
    """How far from the center each site's rows lead with nothing that pulls back, ``(K,)``, in the same units."""
    return _evidence(model, "distance", np.nan)


def _evidence(model: BaseFederatedMixture, name: str, otherwise: float) -> Array:
    found = getattr(model, "site_evidence_", {})
    return np.asarray(found[name]) if found else np.full(len(model.site_names_), otherwise)


def verdicts(model: BaseFederatedMixture) -> Array:
    """One word per site, ``(K,)``; a model that an older fedgrem saved was not judged."""
    return np.asarray(getattr(model, "site_verdict_", np.full(len(model.site_names_), NOT_JUDGED)))


def suspect_sites(model: BaseFederatedMixture) -> Array:
    """Which sites are suspect, ``(K,)``."""
    return np.asarray(verdicts(model) == SUSPECT)


def vanished(model: BaseFederatedMixture) -> Array:
    """Components ``(K, R)`` of which a site holds less than one row; none of a model that does not say."""
    return np.asarray(getattr(model, "vanished_", np.zeros(model.weights_.shape, dtype=bool)))


def selection_of(model: BaseFederatedMixture) -> dict[str, Any] | None:
    """How the number of components was chosen: lists of equal length, the criterion and its choice; None if given.

    A value that is not finite, of a fit that no site could judge, becomes None.
    """
    curve = getattr(model, "selection_", None)
    if curve is None:
        return None
    plain = {
        name: [None if isinstance(v, float) and not np.isfinite(v) else v for v in column.tolist()]
        for name, column in curve.items()
    }
    return {"criterion": option(model, "criterion"), "chosen": int(model.n_components_)} | plain
