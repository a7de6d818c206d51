"""One more site for a model that is fitted: from its rows and the stored center alone."""

import copy
import warnings
from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_is_fitted, validate_data

from fedgrem.algorithms.align import align_to, derive_key
from fedgrem.algorithms.fedgrem import FedGrEM
from fedgrem.algorithms.join import join
from fedgrem.algorithms.look import Look, local_look
from fedgrem.algorithms.registry import build_algorithm
from fedgrem.algorithms.start import StartPlan, local_start
from fedgrem.algorithms.verdicts import score
from fedgrem.data.federation import Federation, Units, padded_size
from fedgrem.data.tables import gather, gather_values
from fedgrem.errors import InputError, ShapeError
from fedgrem.estimators.verdicts import PER_SITE, evidence, judge, last_pull, remembered, sightings
from fedgrem.families.base import Family
from fedgrem.kernels.precision import numpy_dtype, precision
from fedgrem.types import FitResult, Params, SiteData, StartReply, StartRequest

if TYPE_CHECKING:
    from fedgrem.estimators.base import BaseFederatedMixture

WITHOUT_CENTER = {
    "pooled-em": "put all rows in one pot",
    "pooled-grem": "put all rows in one pot",
    "local-em": "fitted every site alone",
    "local-grem": "fitted every site alone",
    "tgmm": "drew every site towards the others' starts",
}
"""Algorithms that leave no center to fit a new site against, and what they did instead."""
LEAST_TOL = 1e-6
ON_CENTER = 1e-12
"""Relative distance that rounding may leave."""


def fit_site(model: "BaseFederatedMixture", rows: Any, y: Any, name: Any, sample_weight: Any) -> None:
    """Fit one more site against the stored center, and add it to the model."""
    check_is_fitted(model)
    label = _check_name(model, name)
    _check_center(model)
    family = model._family()
    federation = _federation(model, family, rows, y, label, sample_weight)
    units = model._stored_units()
    with precision(model.dtype):
        site = model._units_plan().apply(federation, units).sites[0]
        gaps = bool(np.isnan(site.rows).any())
        arrays = site.as_data(padded_size(len(site.rows)), numpy_dtype(model.dtype), gaps=gaps)
        data: SiteData = jax.device_put(arrays)
        result = _fit_one(model, family, data, label, units)
        _append(model, result, units)
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
    if model.algorithm in WITHOUT_CENTER:
        raise InputError(
            f"algorithm={model.algorithm!r} {WITHOUT_CENTER[model.algorithm]}, and has no center to fit a new site "
            "against; fit with algorithm='fedgrem', or fit again with the new site."
        )
    if len(model.site_names_) < 2 or not model.site_evidence_:
        raise InputError(
            "the model has no common center, because it was fitted on one site or by an older fedgrem; fit it again on "
            "at least two sites."
        )


def _federation(
    model: "BaseFederatedMixture", family: Family, rows: Any, y: Any, name: str, sample_weight: Any
) -> Federation:
    """The rows of the new site, checked as in ``fit``."""
    table = gather(rows)
    if table.kind != "table":
        raise InputError(f"fit_site takes the rows of one site as one table; got {len(table.labels)} tables.")
    if family.has_target and y is None:
        raise InputError(f"site {name!r} has no responses; pass them as y, one per row.")
    values = validate_data(model, table.rows, reset=False, dtype=np.float64, ensure_all_finite=False)
    target = gather_values("y", y, table) if family.has_target else None
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
        min_rows=model.weights_.shape[1],
        missing_allowed=model._missing_allowed(),
    )


def _fit_one(
    model: "BaseFederatedMixture", family: Family, data: SiteData, name: str, units: Units | None
) -> FitResult:
    """A fit of this one site, in the units of the fit, as the rounds would have ended for it."""
    center = model._center_params(units)
    n_components, tol = len(center.weights), max(float(model.tol), LEAST_TOL)
    key = jnp.asarray(derive_key(model._seed(), name, "start"))
    nothing = jnp.zeros(0, dtype=center.theta.dtype)
    request = StartRequest(key, Params(nothing, nothing, center.spread), jnp.zeros((), dtype=center.theta.dtype))
    plan = StartPlan(n_components, n_init=model.n_init)
    start = _start(family, plan, data, request)
    one = jax.tree.map(lambda leaf: leaf[None], start.params)
    own: Params = jax.tree.map(lambda leaf: leaf[0], align_to(family, one, center))
    algorithm = build_algorithm("fedgrem", family, **model._options())
    assert isinstance(algorithm, FedGrEM)
    shared = model.algorithm != "fedgrem"
    penalty = np.inf if shared else last_pull(model)
    spread_penalty = np.inf if shared else model._spread_penalty(center.spread)
    joined = join(algorithm, data, own, center, jnp.asarray(penalty), jnp.asarray(spread_penalty), jnp.asarray(tol))
    look = _look(family, data, center)
    away = family.in_noise_units(joined.params.theta - center.theta, center.spread)
    distance = np.array(jnp.sqrt(jnp.sum(away * away, axis=-1)))
    # Into the units of the noise and back is not exact: what was moved onto the center is on it.
    there = distance < ON_CENTER * (1.0 + np.abs(np.asarray(center.theta)).max())
    distance[there] = 0.0
    movement = float(joined.movement)
    spread = joined.params.spread
    return FitResult(
        site_names=(name,),
        weights=np.array(joined.params.weights)[None],
        theta=np.where(there[:, None], center.theta, joined.params.theta)[None],
        center=np.array(center.theta),
        spread=None if spread is None else np.array(spread)[None],
        center_spread=None if center.spread is None else np.array(center.spread),
        distance=distance[None],
        n_rows=np.array([float(look.n_rows)]),
        n_rounds=model.n_rounds_,
        converged=movement < tol,
        unsettled=() if movement < tol else (name,),
        history={
            "log_likelihood": np.array([[float(joined.log_likelihood)]]),
            "movement": np.array([[movement]]),
        },
        start_choice=np.array([int(joined.choice)]),
        cost={},
        path={},
        look={
            "theta": np.array(look.params.theta)[None],
            "log_likelihood": np.array([float(look.log_likelihood)]),
            "at_center": np.array([float(look.at_center)]),
        },
    )


@partial(jax.jit, static_argnames=("family", "plan"))
def _start(family: Family, plan: StartPlan, data: SiteData, request: StartRequest) -> StartReply:
    return local_start(family, plan, data, request)


@partial(jax.jit, static_argnames=("family",))
def _look(family: Family, data: SiteData, center: Params) -> Look:
    return local_look(family, data, center)


def _append(model: "BaseFederatedMixture", result: FitResult, units: Units | None) -> None:
    """Add the new site behind the others, in everything that has one entry per site."""
    seen = sightings(result)
    scores = score(seen, remembered(model, units))
    verdict = judge(model, scores, seen, result)
    nobody = np.zeros(1)  # it has no part in the center, and leaving it out moves nothing
    found = evidence(model, scores, seen, units, nobody, in_fit=False)
    alone = copy.copy(model)
    alone._expose(result)
    alone._expose_theta(result, units)
    for attribute in model._per_site():
        setattr(model, attribute, np.concatenate([getattr(model, attribute), getattr(alone, attribute)]))
    for attribute in ("weights_se_", f"{model._theta_name}_se_", "intercept_se_"):
        known = getattr(model, attribute, None)
        if known is not None:  # its own are not asked for
            setattr(model, attribute, np.concatenate([known, np.full_like(known[:1], np.nan)]))
    for attribute, unknown in model._per_site_of_choice():
        setattr(model, attribute, np.append(getattr(model, attribute), unknown))
    names = model.site_names_ if model.site_names_.dtype.kind in "UO" else model.site_names_.astype(object)
    model.site_names_ = np.append(names, np.array(result.site_names, dtype=names.dtype.kind))
    model.site_verdict_ = np.append(model.site_verdict_, verdict)
    model.site_evidence_ = model.site_evidence_ | {
        key: np.append(model.site_evidence_[key], found[key]) for key in PER_SITE
    }
    model.unsettled_sites_ = np.append(model.unsettled_sites_, np.array(result.unsettled, dtype=str))
    model.history_ = {
        key: np.pad(kept, ((0, 0), (0, 1)), constant_values=np.nan) if kept.ndim == 2 else kept
        for key, kept in model.history_.items()
    }
