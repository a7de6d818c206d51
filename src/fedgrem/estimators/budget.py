"""Where the error of a fit comes from: the terms of the paper's bound as numbers, from the fit alone."""

from typing import TYPE_CHECKING, Any

import numpy as np

from fedgrem.algorithms.registry import as_algorithm
from fedgrem.errors import InputError
from fedgrem.fit.verdicts import SUSPECT
from fedgrem.kernels.center import row_norm
from fedgrem.theory.budget import ErrorBudget, budget, contraction, sites_of_fit
from fedgrem.types import Array

if TYPE_CHECKING:
    from fedgrem.estimators.base import BaseFederatedMixture

MOST_SITES = 300
SEEDS = 6
"""Draws of chance, of which a term is the median."""
MOST_PARAMETERS = 200
"""Component parameters of a site up to which the terms are found: their information is a matrix."""


def error_budget(model: "BaseFederatedMixture", seed: int = 0) -> ErrorBudget:
    """The largest error of a component's parameters to expect, part by part, in units of the noise within a component.

    The fit is taken for the truth: sites drawn like those that were found, honest ones as far from the center as the
    between-site variance says, suspect ones where they are.
    """
    why = cannot(model)
    if why:
        raise InputError(f"there is no error budget for this fit: {why}.")
    family: Any = model._family()
    common = model._params_of(None)
    noise = common.noise
    if noise is not None and len(noise) > 1:  # one unit for all components
        noise = family.average_noise(noise[:, None], common.weights / common.weights.sum())
    own = [model._params_of(k).theta for k in range(len(model.site_names_))]
    theta, center = (family.to_noise(np.asarray(leaf), noise) for leaf in (np.stack(own), common.theta))
    suspect = model.site_verdict_ == SUSPECT
    if 2 * suspect.sum() >= len(suspect):
        raise InputError("there is no error budget for this fit: half of its sites are suspect, or more.")
    kind: Any = "mor" if model._has_target else "gmm"
    sites = sites_of_fit(
        model.weights_[~suspect], theta[~suspect], center, model.n_rows_[~suspect], unlike(model, theta.shape[-1]),
        theta[suspect], kind, seed,
    )  # fmt: skip
    rate = min(contraction(sites.found.information.mean(axis=0)[None], sites.found.weights.mean(axis=0)[None]), 0.99)
    moved = float(np.nanmax(model.history_["movement"][-1])) * (1.0 + float(row_norm(center).max()))
    return budget([sites] * SEEDS, list(range(seed, seed + SEEDS)), moved * rate / (1.0 - rate))


def unlike(model: "BaseFederatedMixture", n_parameters: int) -> Array:
    """How far sites are from the center, ``(R,)``: by the between-site variance.

    Where a penalty decided instead, by what the sites' own rows say against the center beyond chance, in the last look.
    """
    between = np.asarray(model.between_site_variance_)
    seen = model.site_evidence_
    told = (seen["deviance"] - seen["degrees"]) / model.n_rows_ if seen else np.zeros(1)
    whole = max(0.0, float(np.nanmedian(told)))
    return np.asarray(np.where(np.isfinite(between), np.sqrt(np.maximum(between, 0.0) * n_parameters), np.sqrt(whole)))


def cannot(model: "BaseFederatedMixture") -> str:
    """Why there is no budget for a fit; empty where there is one."""
    n_sites, n_components = model.weights_.shape
    if model._theta_name not in ("means", "coef") or getattr(model, "response", "gaussian") != "gaussian":
        return "the theory is about Gaussian components and regressions with normal errors"
    if not as_algorithm(model.algorithm).traits.pulls:
        return "its sites were not pulled to a center"
    if n_sites < 2:
        return "it has one site"
    if "deviance" not in model.site_evidence_:
        return "its sites were not judged, and suspect ones are a part of it"
    if n_sites > MOST_SITES:
        return f"it has {n_sites} sites, more than {MOST_SITES}"
    if n_components * model.center_.shape[-1] > MOST_PARAMETERS:
        return f"it has more than {MOST_PARAMETERS} component parameters"
    if not np.isfinite(np.asarray(model.center_)).all() or not len(model.history_["movement"]):
        return "it played no rounds"
    return ""
