"""The verdict on every site of a fit, as an estimator exposes it."""

from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np

from fedgrem.algorithms.base import capped_rows
from fedgrem.algorithms.fedgrem import FedGrEM, threshold
from fedgrem.algorithms.registry import ALONE
from fedgrem.algorithms.verdicts import (
    NOT_JUDGED,
    Scores,
    Sightings,
    left_out,
    left_out_of_median,
    p_value,
    score,
    words,
)
from fedgrem.data.federation import Units
from fedgrem.kernels.center import trust
from fedgrem.types import FitResult, NumpyArray

if TYPE_CHECKING:
    from fedgrem.estimators.base import BaseFederatedMixture

PER_SITE = ("deviance", "fitted", "log_likelihood", "distance", "expected", "limit", "p_distance", "fit", "p_fit",
            "p_value", "leave_one_out", "in_fit")  # fmt: skip
"""Of the evidence, what has one entry per site."""


def wants_look(algorithm: str, n_sites: int) -> bool:
    """Whether there is a center to hold the sites against: not of one site, nor where all rows are in one pot."""
    return n_sites > 1 and not algorithm.startswith("pooled")


def last_pull(model: "BaseFederatedMixture") -> float:
    """Lambda of the last round; 0 where nothing was pulled."""
    penalty = model.history_["penalty"]
    return float(penalty[-1]) if len(penalty) else 0.0


def thresholds(model: "BaseFederatedMixture", weights: NumpyArray, n_rows: NumpyArray) -> NumpyArray:
    """How far the last round pulled each component of each site, ``(K, R)``; 0 where nothing was pulled.

    Parameters
    ----------
    weights : (K, R) of the sites; n_rows : (K,).
    """
    if model.algorithm != "fedgrem":
        return np.zeros_like(weights)
    options = [model._options()[name] for name in ("penalty_rows", "penalty_scaling", "step_size")]
    return np.asarray(threshold(last_pull(model), jnp.asarray(n_rows)[:, None], jnp.asarray(weights), *options))


def is_pulled(model: "BaseFederatedMixture") -> bool:
    """Whether a finite pull decided who ended at the center."""
    return model.algorithm == "fedgrem" and 0.0 < last_pull(model) < np.inf


def expose_verdicts(model: "BaseFederatedMixture", result: FitResult, units: Units | None) -> None:
    """Set ``site_verdict_``, one word per site, and ``site_evidence_``, what it rests on."""
    if result.look is None:
        model.site_verdict_ = np.full(len(result.site_names), NOT_JUDGED)
        model.site_evidence_ = {}
        return
    seen = sightings(result)
    scores = score(seen)
    moved = _leave_one_out(model, result)
    model.site_verdict_ = judge(model, scores, seen, result)
    model.site_evidence_ = evidence(model, scores, seen, units, moved, in_fit=True)


def sightings(result: FitResult) -> Sightings:
    """What the rounds and the last look say of every site."""
    assert result.look is not None
    own, center = result.look["log_likelihood"], result.look["at_center"]
    fitted = result.n_rows * np.sum(result.weights * result.distance**2, axis=1)
    spread = 0 if result.spread is None else result.spread[0].size
    return Sightings(result.n_rows, own, 2.0 * (own - center), fitted, float(result.theta[0].size + spread))


def judge(model: "BaseFederatedMixture", scores: Scores, seen: Sightings, result: FitResult) -> NumpyArray:
    """One word per site."""
    pull = thresholds(model, result.weights, result.n_rows)
    return words(scores, seen, result.distance, pull, pulled=is_pulled(model))


def evidence(
    model: "BaseFederatedMixture",
    scores: Scores,
    seen: Sightings,
    units: Units | None,
    moved: NumpyArray,
    *,
    in_fit: bool,
) -> dict[str, Any]:
    """Behind every verdict, by name; one entry per site.

    Distances are root mean squares over a site's rows, in units of the noise: of where its rows lead from the center
    (``distance``), of what chance and the spread of the others explain (``expected``), and beyond which it is suspect
    (``limit``).
    """

    def as_distance(deviance: NumpyArray) -> NumpyArray:
        return np.asarray(np.sqrt(np.maximum(deviance, 0.0) / seen.n_rows))

    return {
        "distance": as_distance(seen.deviance),
        "expected": as_distance(scores.expected),
        "limit": as_distance(scores.limit),
        "p_distance": scores.p_distance,
        "log_likelihood": seen.log_likelihood / seen.n_rows - model._log_volume(units),
        "fit": scores.fit,
        "p_fit": scores.p_fit,
        "p_value": p_value(scores),
        "leave_one_out": moved,
        "deviance": seen.deviance,
        "fitted": seen.fitted,
        "in_fit": np.full(len(seen.n_rows), in_fit),
        "degrees": seen.degrees,
    }


def remembered(model: "BaseFederatedMixture", units: Units | None) -> Sightings:
    """The sites that the fit itself saw, for a newcomer to be held against."""
    kept = model.site_evidence_
    member = kept["in_fit"].astype(bool)
    n_rows = model.n_rows_[member]
    own = (kept["log_likelihood"][member] + model._log_volume(units)) * n_rows
    return Sightings(n_rows, own, kept["deviance"][member], kept["fitted"][member], float(kept["degrees"]))


def _leave_one_out(model: "BaseFederatedMixture", result: FitResult) -> NumpyArray:
    """How far the center moves without a site, by the rule that this fit made its center by."""
    assert result.look is not None
    family = model._family()
    spread = None if result.center_spread is None else jnp.asarray(result.center_spread)
    away = np.asarray(family.in_noise_units(jnp.asarray(result.look["theta"] - result.center), spread))
    if model.algorithm in ALONE:
        return left_out_of_median(away)
    counted = np.asarray(capped_rows(jnp.asarray(result.n_rows)))[:, None] * np.ones_like(result.weights)
    if not is_pulled(model):
        return left_out(away, counted, None)
    algorithm = model._build_algorithm(family)
    assert isinstance(algorithm, FedGrEM), "nothing else pulls"
    share = np.asarray(algorithm.share(jnp.asarray(result.weights)))
    held = result.n_rows[:, None] * share
    weight = counted * share * ~result.path.get("released", np.zeros(len(held), dtype=bool))[:, None]
    if algorithm.center_solver == "redescending":
        weight = weight * np.asarray(trust(jnp.asarray(away), jnp.asarray(held), jnp.zeros_like(away[0])))
    return left_out(away, weight, last_pull(model) / np.sqrt(held))
