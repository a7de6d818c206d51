"""The verdict on every site of a fit, as an estimator exposes it."""

from typing import TYPE_CHECKING, Any

import numpy as np

from fedgrem.algorithms.registry import as_algorithm
from fedgrem.estimators.privacy import private_verdicts
from fedgrem.families.base import Family
from fedgrem.fit.selection import degrees_of_freedom
from fedgrem.fit.verdicts import (
    AT_CENTER,
    JUDGED_FROM,
    NOT_JUDGED,
    OWN_ANSWER,
    SIMILAR,
    Scores,
    Sightings,
    left_out,
    left_out_of_median,
    p_value,
    score,
    words,
)
from fedgrem.types import Array, FitResult, Influence

if TYPE_CHECKING:
    from fedgrem.estimators.base import BaseFederatedMixture

PER_SITE = ("deviance", "fitted", "log_likelihood", "distance", "expected", "limit", "p_distance", "fit", "p_fit",
            "p_value", "leave_one_out", "in_fit", "log_volume", "cells", "judged_from", "same", "group",
            "p_group")  # fmt: skip
"""Of the evidence, what has one entry per site."""


def is_pulled(model: "BaseFederatedMixture", influence: Influence) -> bool:
    """Whether a finite pull decided who ended at the center."""
    finite = influence.between is not None or 0.0 < float(np.max(influence.penalty)) < np.inf
    return as_algorithm(model.algorithm).traits.pulls and finite


def expose_verdicts(model: "BaseFederatedMixture", result: FitResult) -> None:
    """Set ``site_verdict_``, one word per site, and ``site_evidence_``, what it rests on."""
    pooled = as_algorithm(model.algorithm).traits.pools_rows
    model.n_parameters_ = degrees_of_freedom(result, pooled=pooled)
    if model.privacy is not None:
        model.site_verdict_, model.site_evidence_ = private_verdicts(result), dict(result.look or {})
        return
    if result.look is None:
        # From sums nobody can say who is odd; a site knows how far it is from the center, and tells itself.
        known = result.from_sums and not np.isnan(result.distance).all()
        told = told_by_sites(result) if known else NOT_JUDGED
        model.site_verdict_ = np.broadcast_to(told, len(result.site_names)).copy()
        model.site_evidence_ = {}
        return
    seen = sightings(model._family(), result)
    scores = score(seen)
    model.site_verdict_ = judge(model, scores, seen, result)
    volume = log_volume(model, result)
    model.site_evidence_ = evidence(scores, seen, volume, _leave_one_out(model, result), in_fit=True)


def told_by_sites(result: FitResult) -> Array:
    """One word per site, from its own distance and threshold alone."""
    at_center = np.all(result.distance == 0.0, axis=1)
    similar = np.all(result.distance <= result.influence.threshold, axis=1)
    return np.where(at_center, AT_CENTER, np.where(similar, SIMILAR, OWN_ANSWER))


def log_volume(model: "BaseFederatedMixture", result: FitResult) -> Array:
    """(K,) by what the sites' log-likelihoods in the units of the fit exceed those in the rows' own."""
    assert result.seen is not None
    return model._log_volume(result.seen, result.scale)


def sightings(family: Family, result: FitResult) -> Sightings:
    """What the rounds and the last look say of every site."""
    assert result.look is not None
    assert result.seen is not None
    cells = result.seen[:, -1] if family.has_target else result.seen.sum(axis=1)
    own, center = result.look["log_likelihood"], result.look["at_center"]
    fitted = result.n_rows * np.sum(result.weights * result.distance**2, axis=1)
    noise = 0 if result.noise is None else result.noise[0].size
    # Where sites have different components, those that most of them have.
    count = result.theta.shape[1] if result.held is None else float(np.median(result.held.sum(axis=1)))
    noise = (
        noise
        if noise == 0 or result.noise is None or result.noise.shape[1] == 1
        else noise / result.theta.shape[1] * count
    )
    degrees = float(count * result.theta.shape[2] + noise)
    whole = np.asarray((result.seen > 0).all(axis=1))
    away = family.to_noise(result.look["theta"] - result.center, result.center_noise)
    held = np.maximum(result.n_rows[:, None] * result.weights, 1e-3)
    if result.held is not None:  # compared are components that all have
        away, held = (leaf[:, result.held.all(axis=0)] for leaf in (away, held))
    return Sightings(result.n_rows, cells, own, 2.0 * (own - center), fitted, degrees, whole, away, held)


def judge(model: "BaseFederatedMixture", scores: Scores, seen: Sightings, result: FitResult) -> Array:
    """One word per site."""
    pulled = is_pulled(model, result.influence)
    return words(scores, seen, result.distance, result.influence.threshold, pulled=pulled)


def evidence(scores: Scores, seen: Sightings, volume: Array, moved: Array, *, in_fit: bool) -> dict[str, Any]:
    """Behind every verdict, by name; one entry per site.

    Distances are root mean squares over a site's rows, in units of the noise: of where its rows lead from the center
    (``distance``), of what chance and the dispersion of the others explain (``expected``), and beyond which it is
    suspect (``limit``). ``log_volume`` (K,) is what the units of the fit add to each site's log-likelihood. A site of
    fewer rows than ``judged_from`` is not judged. Sites of one number ``same`` say nearly the same, those of one number
    ``group`` stand apart together; -1 where nobody does.
    """

    def as_distance(deviance: Array) -> Array:
        return np.asarray(np.sqrt(np.maximum(deviance, 0.0) / seen.n_rows))

    return {
        "distance": as_distance(np.fmax(seen.deviance, seen.says)),
        "expected": as_distance(scores.expected),
        "limit": as_distance(scores.limit),
        "p_distance": scores.p_distance,
        "log_likelihood": (seen.log_likelihood - volume) / seen.n_rows,
        "log_volume": volume,
        "fit": scores.fit,
        "p_fit": scores.p_fit,
        "p_value": p_value(scores),
        "leave_one_out": moved,
        "deviance": seen.deviance,
        "fitted": seen.fitted,
        "cells": seen.cells,
        "judged_from": np.ceil(JUDGED_FROM * seen.degrees * seen.n_rows / np.maximum(seen.cells, 1e-300)),
        "same": scores.same,
        "group": scores.group,
        "p_group": scores.p_group,
        "in_fit": np.full(len(seen.n_rows), in_fit),
        "degrees": seen.degrees,
    }


def remembered(model: "BaseFederatedMixture") -> Sightings:
    """The sites that the fit itself saw, for a newcomer to be held against."""
    kept = model.site_evidence_
    member = kept["in_fit"].astype(bool)
    n_rows = model.n_rows_[member]
    own = kept["log_likelihood"][member] * n_rows + kept["log_volume"][member]
    whole = ~np.isnan(kept["p_fit"][member])
    return Sightings(
        n_rows,
        kept["cells"][member],
        own,
        kept["deviance"][member],
        kept["fitted"][member],
        float(kept["degrees"]),
        whole,
    )


def _leave_one_out(model: "BaseFederatedMixture", result: FitResult) -> Array:
    """How far the center moves without a site, by the rule that this fit made its center by."""
    assert result.look is not None
    away = model._family().to_noise(result.look["theta"] - result.center, result.center_noise)
    if not result.influence.weight.any():
        return left_out_of_median(away)
    pulled = is_pulled(model, result.influence)
    return left_out(away, result.influence.weight, result.influence.threshold if pulled else None)
