"""One more site for a model that is fitted: from its rows and the stored center alone."""

import copy
import warnings
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_is_fitted, validate_data

from fedgrem.algorithms.base import full_penalty
from fedgrem.algorithms.fedgrem import FedGrEM
from fedgrem.algorithms.frozen import FrozenCenter
from fedgrem.algorithms.registry import as_algorithm
from fedgrem.data.federation import Federation
from fedgrem.data.tables import gather, gather_values
from fedgrem.data.units import Census, take_census
from fedgrem.engines.inprocess import InProcess
from fedgrem.errors import InputError, ShapeError
from fedgrem.estimators.verdicts import PER_SITE, evidence, judge, log_volume, remembered, sightings
from fedgrem.fit.conversation import Agreed, converse
from fedgrem.fit.join import as_one_site, join, kept
from fedgrem.fit.spec import FitSpec
from fedgrem.fit.units import with_census
from fedgrem.fit.verdicts import score
from fedgrem.types import Array, FitResult, Params, components_of, map_arrays

if TYPE_CHECKING:
    from fedgrem.estimators.base import BaseFederatedMixture

LEAST_TOL = 1e-6


def fit_site(model: "BaseFederatedMixture", rows: Any, y: Any, name: Any, sample_weight: Any) -> None:
    """Fit one more site against the stored center, and add it to the model."""
    check_is_fitted(model)
    label = _check_name(model, name)
    _check_center(model)
    federation = _federation(model, rows, y, label, sample_weight)
    result = _fit_what_it_has(model, federation, label)
    _append(model, result)
    if result.unsettled:
        warnings.warn(
            f"site {label!r} had not settled after its last step ({result.history['movement'][-1, 0]:.2g} away, "
            f"tol={max(model.tol, LEAST_TOL):g}); its answer may still be used with care.",
            ConvergenceWarning,
            stacklevel=3,
        )


def _check_name(model: "BaseFederatedMixture", name: Any) -> str:
    names = [str(known) for known in model.site_names_]
    if not isinstance(name, str) or not name:
        raise InputError(f"name must be a non-empty string, the new site's name; got {name!r}.")
    if name in names:
        raise InputError(
            f"site {name!r} is already in the model; give the new site another name, or fit all sites again. The sites "
            f"are {', '.join(names[:10])}{', ...' if len(names) > 10 else ''}."
        )
    return name


def _check_center(model: "BaseFederatedMixture") -> None:
    if model._units_plan().within:
        raise InputError(
            "one more site cannot join a fit with intercept='site' yet; fit again with the new site, or with "
            "intercept='component'."
        )
    traits = as_algorithm(model.algorithm).traits
    if traits.center:
        raise InputError(
            f"{traits.title} {traits.center}, and has no center to fit a new site against; fit with "
            "algorithm='fedgrem', or fit again with the new site."
        )
    if model.secure_sums:
        raise InputError(
            "one more site cannot join a fit from secure sums yet: nobody knows how much its sites differ; fit again "
            "with the new site."
        )
    if len(model.site_names_) < 2 or not model.site_evidence_:
        raise InputError(
            "the model has no common center, because it was fitted on one site; fit it again on at least two sites."
        )


def _federation(model: "BaseFederatedMixture", rows: Any, y: Any, name: str, sample_weight: Any) -> Federation:
    """The rows of the new site, checked as in ``fit``."""
    table = gather(model._in_order(model._as_numbers(rows, None), None))
    if table.kind != "table":
        raise InputError(f"fit_site takes the rows of one site as one table; got {len(table.labels)} tables.")
    if model._has_target and y is None:
        raise InputError(f"site {name!r} has no responses; pass them as y, one per row.")
    values = validate_data(model, table.rows, reset=False, dtype=np.float64, ensure_all_finite=False)
    target = gather_values("y", y, table) if model._has_target else None
    weight = gather_values("sample_weight", sample_weight, table)
    if weight is not None and weight.shape != (len(values),):
        raise ShapeError(f"sample_weight has shape {weight.shape}, expected ({len(values)},), one weight per row.")
    columns = getattr(model, "feature_names_in_", None)
    return Federation.from_sites(
        [name],
        [values],
        None if target is None else [np.asarray(target, dtype=float)],
        None if weight is None else [np.asarray(weight, dtype=float)],
        columns=None if columns is None else [str(column) for column in columns],
        missing_allowed=model._missing_allowed(),
    )


def _fit_what_it_has(model: "BaseFederatedMixture", federation: Federation, name: str) -> FitResult:
    """A fit with the components that sites share, without those of a few that this one does not miss."""
    center = model._params_of(None)
    has = np.asarray(model.has_component_)
    if has.all():
        return _fit_one(model, federation, name, center)[0]
    shared, common = np.flatnonzero(center.weights > 0), np.all(has, axis=0)
    result, spec, agreed = _fit_one(model, federation, name, center, shared)
    price = np.where(common[shared], -np.inf, 0.5 * np.log(result.n_rows[0]))
    found = Params(result.weights, result.theta, result.noise)
    held, _ = converse(kept(found, price, agreed), InProcess(federation, spec))
    if not held.all():
        shared = shared[held]
        result, _, _ = _fit_one(model, federation, name, center, shared)
    return _among_all(result, center, shared)


def _among_all(result: FitResult, center: Params, shared: Array) -> FitResult:
    """A fit of some components as one of all: what the site lacks is at the center, with a weight of 0."""

    def spread(leaf: Array, otherwise: Array | float) -> Array:
        whole = np.broadcast_to(otherwise, (1, len(center.weights), *leaf.shape[2:])).copy()
        whole[:, shared] = leaf
        return whole

    influence, noise, between = result.influence, result.noise, result.influence.between
    assert result.look is not None
    if between is not None:
        between = spread(between[None], 0.0)[0]
    if noise is not None and center.noise is not None and len(center.noise) > 1:
        noise = spread(noise, center.noise)
    return result._replace(
        weights=spread(result.weights, 0.0),
        theta=spread(result.theta, center.theta),
        center=center.theta,
        noise=noise,
        center_noise=center.noise,
        distance=spread(result.distance, 0.0),
        look=result.look | {"theta": spread(result.look["theta"], center.theta)},
        influence=influence._replace(
            weight=spread(influence.weight, 0.0), threshold=spread(influence.threshold, 0.0), between=between
        ),
        held=np.isin(np.arange(len(center.weights)), shared)[None],
    )


def _fit_one(
    model: "BaseFederatedMixture", federation: Federation, name: str, center: Params, shared: Array | None = None
) -> tuple[FitResult, FitSpec, Agreed]:
    """A fit of this one site, in the units of the fit, as the rounds would have ended for it; with some components."""
    between, noise_between = model.between_site_variance_, model.noise_between_site_variance_
    if shared is not None:
        if len(noise_between) == len(center.weights) > 1:
            noise_between = noise_between[shared]
        center, between = components_of(center, shared), between[shared]
    algorithm: Any = as_algorithm(model.algorithm)
    pulls = algorithm.traits.pulls
    size = 0 if center.noise is None else center.noise.shape[-1]
    n_sites = int(model.site_evidence_["in_fit"].sum())
    penalty = float(model.history_["penalty"][-1]) if pulls else np.inf
    noise_penalty = float(full_penalty(model.noise_penalty_ if pulls else np.inf, size, n_sites))
    weights_penalty = float(full_penalty(model.weights_penalty_, len(center.weights) - 1.0, n_sites)) if pulls else 0.0
    steps = replace(algorithm, batch=1.0, sites=1.0) if pulls else FedGrEM()
    steps = replace(steps, step_weights="current", local_steps=max(steps.local_steps, 10))
    known = bool(np.isfinite(between).all())
    frozen = FrozenCenter(
        steps, center, penalty, noise_penalty, weights_penalty, between if known else None,
        noise_between if known and center.noise is not None else None,
    )  # fmt: skip
    chosen = copy.copy(model)
    chosen.n_components = len(center.weights)
    spec = as_one_site(chosen._spec(), frozen, max(float(model.tol), LEAST_TOL))
    spec = replace(spec, units=model._fitted_plan())
    census = spec.units.of_kept(take_census(federation.sites[0]), spec.family.has_target)
    constant = spec.units.constant(census.deviation)
    agreed = Agreed(model._fit_units(), bool(census.gaps or constant.any()))
    result, _ = converse(join(spec, name, center, agreed), InProcess(federation, spec))
    units = model._fit_units()
    location, scale = (None, None) if units is None else units
    whole: Census = map_arrays(lambda leaf: np.asarray(leaf)[None], census)
    return with_census(result._replace(location=location, scale=scale), whole, constant[None]), spec, agreed


def _append(model: "BaseFederatedMixture", result: FitResult) -> None:
    """Add the new site behind the others, in everything that has one entry per site."""
    seen = sightings(model._family(), result)
    scores = score(seen, remembered(model))
    verdict = judge(model, scores, seen, result)
    nobody = np.zeros(1)  # it has no part in the center, and leaving it out moves nothing
    found = evidence(scores, seen, log_volume(model, result), nobody, in_fit=False)
    alone = copy.copy(model)
    alone._expose(result)
    alone._expose_theta(result)
    alone.at_center_ = (alone.site_distance_ == 0.0) & alone.has_component_  # it has none that is its own
    for attribute in model._per_site():
        setattr(model, attribute, np.concatenate([getattr(model, attribute), getattr(alone, attribute)]))
    for attribute in ("weights_se_", f"{model._theta_name}_se_", "intercept_se_"):
        known = getattr(model, attribute, None)
        if known is not None:  # its own are not asked for
            setattr(model, attribute, np.concatenate([known, np.full_like(known[:1], np.nan)]))
    names = model.site_names_ if model.site_names_.dtype.kind in "UO" else model.site_names_.astype(object)
    model.site_names_ = np.append(names, np.array(result.site_names, dtype=names.dtype.kind))
    model.site_verdict_ = np.append(model.site_verdict_, verdict)
    model.site_evidence_ = model.site_evidence_ | {
        key: np.append(model.site_evidence_[key], found[key]) for key in PER_SITE if key in model.site_evidence_
    }
    model.unsettled_sites_ = np.append(model.unsettled_sites_, np.array(result.unsettled, dtype=str))
    model.history_ = {
        key: np.pad(kept, ((0, 0), (0, 1)), constant_values=np.nan) if kept.ndim == 2 else kept
        for key, kept in model.history_.items()
    }
