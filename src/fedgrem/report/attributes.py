"""What reports and plots read of a fitted model: every attribute and option by one function, whatever kind it is."""

from typing import Any, Literal

import numpy as np

from fedgrem.algorithms.base import Traits
from fedgrem.algorithms.registry import as_algorithm
from fedgrem.errors import InputError
from fedgrem.estimators.base import BaseFederatedMixture
from fedgrem.estimators.table import FederatedTableMixture
from fedgrem.fit.selection import best_number
from fedgrem.fit.verdicts import SUSPECT
from fedgrem.types import Array

Sharing = Literal["alone", "pulled", "shared"]
"""What the sites of a fit have in common: nothing, what the center pulled them to, or all components."""

KINDS = {
    "FederatedGaussianMixture": "Gaussian mixture",
    "FederatedRegressionMixture": "mixture of linear regressions",
    "FederatedMixture": "custom mixture",
    "FederatedTableMixture": "mixture of mixed columns",
}
REGRESSIONS = {"binary": "mixture of logistic regressions", "count": "mixture of Poisson regressions"}
"""By the response, where it is no number."""
LEAST_UNIT = 1e-300
"""Something to divide by where a standard deviation is 0."""
MOST_COLUMNS = 20
"""Informative columns that a sentence names."""


def check_fitted(model: BaseFederatedMixture) -> None:
    """Refuse a model that has nothing to show yet."""
    if not hasattr(model, "center_"):
        raise InputError(f"this {type(model).__name__} is not fitted; call fit first.")


def kind(model: BaseFederatedMixture) -> str:
    """What was fitted, in words."""
    name = type(model).__name__
    return REGRESSIONS.get(getattr(model, "response", ""), KINDS.get(name, name))


def traits(model: BaseFederatedMixture) -> Traits:
    """What the algorithm says of itself, whether the model was given its name or an object."""
    return as_algorithm(model.algorithm).traits


def sharing(model: BaseFederatedMixture) -> Sharing:
    """Whether the fit pulled sites to the center, left them alone, or gave all the same components."""
    said = traits(model)
    if said.sharing == "none" or (said.pulls and model.penalty_ == 0):
        return "alone"
    shared = np.isinf(model.penalty_) and not estimates_pull(model)
    return "shared" if said.sharing == "all" or shared else "pulled"


def estimates_pull(model: BaseFederatedMixture) -> bool:
    """Whether the between-site variance says how strongly sites are pulled, and no penalty."""
    return bool(np.isfinite(model.between_site_variance_).any()) and model.penalty_ > 0


def pull_words(model: BaseFederatedMixture) -> str:
    """How strongly sites were pulled, for the summary and the report."""
    if not estimates_pull(model):
        return f"penalty {model.penalty_:g}"
    low, high = (
        f"{np.sqrt(end):.2g}" for end in (model.between_site_variance_.min(), model.between_site_variance_.max())
    )
    if high == "0":
        return "sites that do not differ beyond chance"
    return f"sites that truly differ by {low if low == high else f'{low} to {high}'} noise units per parameter"


def thetas(model: BaseFederatedMixture) -> Array:
    """Component parameters of all sites, ``(K, R, q)``, whatever the model calls them."""
    check_fitted(model)
    theta: Array = getattr(model, f"{model._theta_name}_")
    return theta


def has_response(model: BaseFederatedMixture) -> bool:
    """Whether rows come with a response."""
    return model._theta_name == "coef"


def column_names(model: BaseFederatedMixture) -> list[str]:
    """Of the columns that the fit is about; empty if those of the table had no names, and the fit is about all."""
    names = [str(name) for name in getattr(model, "feature_names_in_", [])]
    places = getattr(model, "informative_columns_", None)
    return names if places is None else [names[j] if names else f"x{j}" for j in places]


def parameter_names(model: BaseFederatedMixture) -> list[str]:
    """The columns, where a component has one parameter per column; ``theta[0]``, ... where it has not."""
    if isinstance(model, FederatedTableMixture):
        return list(model.mean_names)
    n_parameters, columns = model.center_.shape[1], column_names(model)
    if len(columns) == n_parameters:
        return columns
    if model._theta_name != "params" or getattr(model, "n_features_in_", -1) == n_parameters:
        return [f"x{j}" for j in range(n_parameters)]
    return [f"theta[{j}]" for j in range(n_parameters)]


def sparse_notes(model: BaseFederatedMixture) -> list[str]:
    """Which columns matter to the components, in a sentence; none unless the fit is about some columns only."""
    if not hasattr(model, "informative_columns_"):
        return []
    names = column_names(model)
    more = ", ..." if len(names) > MOST_COLUMNS else ""
    told = ", ".join(names[:MOST_COLUMNS]) + more
    how = "that have coefficients" if has_response(model) else "in which components differ"
    return [f"The fit is about {len(names)} of {model.n_features_in_} columns, {how}: {told}."]


def robust_notes(model: BaseFederatedMixture) -> list[str]:
    """What share of their rows sites hold down, in a sentence; none where all rows count."""
    share = model.rows_held_down_
    if not (share > 0).any():
        return []
    most = int(np.nanargmax(share))
    return [
        f"Rows of no component do not count: {np.nanmedian(share):.1%} of the middle site's, at most {share[most]:.1%} "
        f"({model.site_names_[most]})."
    ]


def spread_within(model: BaseFederatedMixture) -> Array | None:
    """Common standard deviations within a component, per column: (R, p), or (1, p) where components share them.

    None for a model that does not estimate them.
    """
    if isinstance(model, FederatedTableMixture):
        return model.mean_units[None]
    if getattr(model, "covariance_type", "identity") == "identity":
        return None
    return np.asarray(np.sqrt(np.diagonal(model.center_covariances_, axis1=-2, axis2=-1)))


def parameter_units(model: BaseFederatedMixture) -> Array:
    """What makes the parameters of a component comparable whatever units the columns are in, ``(q,)``.

    The standard deviation within components where it is estimated. For coefficients the response's scale over the
    column's, if the fit was standardized by them: a coefficient then counts as what it does to the response over the
    column's usual range. 1 otherwise.
    """
    spread = spread_within(model)
    if spread is not None:
        return np.asarray(np.maximum(np.median(spread, axis=0), LEAST_UNIT))
    if has_response(model):
        return np.asarray(np.maximum(model.scale_[-1] / model.scale_[:-1], LEAST_UNIT))
    return np.ones(model.center_.shape[1])


def estimates_noise(model: BaseFederatedMixture) -> bool:
    """Whether this is a regression that does not take its noise as known."""
    return hasattr(model, "center_noise_") and getattr(model, "noise", "unit") != "unit"


def center_line(model: BaseFederatedMixture, name: str) -> Array | None:
    """The center's ``intercept`` or ``noise``, ``(R,)``; None where the model has none."""
    if not has_response(model) or (name == "intercept" and not model._units_plan().intercept):
        return None
    values: Array | None = getattr(model, f"center_{name}_", None)
    return values


def suspect_beyond(model: BaseFederatedMixture) -> Array:
    """How far out each site's own answer may be before the site is suspect, ``(K,)``; infinity where nobody judges.

    In units of the noise, as a root mean square over its rows. A small site may be farther out than a large one.
    """
    return _evidence(model, "limit", np.inf)


def own_distance(model: BaseFederatedMixture) -> Array:
    """How far from the center each site's rows lead with nothing that pulls back, ``(K,)``, in the same units."""
    return _evidence(model, "distance", np.nan)


def _evidence(model: BaseFederatedMixture, name: str, otherwise: float) -> Array:
    found = model.site_evidence_
    return np.asarray(found[name]) if found else np.full(len(model.site_names_), otherwise)


def suspect_sites(model: BaseFederatedMixture) -> Array:
    """Which sites are suspect, ``(K,)``."""
    return np.asarray(model.site_verdict_ == SUSPECT)


def selection_of(model: BaseFederatedMixture) -> dict[str, Any] | None:
    """How the number of components was chosen: lists of equal length, the criterion and its choice; None if given.

    A value that is not finite, of a fit that no site could judge, becomes None.
    """
    curve = model.selection_
    if not curve:
        return None
    plain = {
        name: [None if isinstance(v, float) and not np.isfinite(v) else v for v in column.tolist()]
        for name, column in curve.items()
    }
    chosen = int(model.n_components_) if model.has_component_.all() else best_number(curve, model.criterion)
    return {"criterion": model.criterion, "chosen": chosen} | plain
