"""A whole fit, from top to bottom."""

from collections.abc import Callable

import numpy as np

from fedgrem.algorithms.base import Pull
from fedgrem.fit.conversation import Ask, Engine, Phase, Progress, converse, everyone, with_agreement
from fedgrem.fit.errors import standard_errors
from fedgrem.fit.penalty import choose_penalty
from fedgrem.fit.rounds import distances, play_rounds
from fedgrem.fit.spec import FitSpec
from fedgrem.fit.starts import find_starts
from fedgrem.fit.tasks import Look, Score
from fedgrem.fit.units import common_units
from fedgrem.kernels.threads import one_thread_each
from fedgrem.types import Central, FitResult, Params, map_arrays


def fit(spec: FitSpec, names: tuple[str, ...]) -> Phase[FitResult]:
    """The center's side of a fit: units, starts, penalty, rounds, a last look, standard errors."""
    agreed = yield from common_units(spec, names)
    result = yield from with_agreement(_in_units(spec, names), agreed)
    if agreed.census is not None:
        _, mean, deviation, gaps = agreed.census
        result = result._replace(column_mean=mean, column_deviation=deviation, site_gaps=gaps)
    return result if agreed.units is None else result._replace(location=agreed.units.location, scale=agreed.units.scale)


def _in_units(spec: FitSpec, names: tuple[str, ...]) -> Phase[FitResult]:
    n_sites = len(names)
    starts = yield from find_starts(spec, names)
    traits, params, path = spec.algorithm.traits, starts.params, {}
    noise_penalty = getattr(spec.algorithm, "noise_penalty", None)
    penalty = spec.start_penalty
    pulled = everyone(n_sites)
    # Where nothing is compared, weights are pooled only if that is asked for.
    weights_penalty = penalty if getattr(spec.algorithm, "pool_weights", False) is True else 0.0
    compared = spec.penalty is None or (spec.fallback and spec.penalty > 0)
    if traits.pulls and compared and n_sites > 1:
        choice, params = yield from choose_penalty(spec, starts)
        penalty, noise_penalty = choice.penalty, choice.noise_penalty
        pulled = ~(choice.losers() & spec.fallback)
        path = choice.as_arrays(~pulled)
        weights_penalty = choice.weights_penalty
    pull = Pull(
        np.asarray(penalty), np.asarray(penalty if noise_penalty is None else noise_penalty), pulled, weights_penalty
    )
    central = spec.algorithm.begin(spec.family, params, starts.n_rows, pull)
    played = yield from play_rounds(spec, central, names)
    central = played.central
    result = FitResult(
        site_names=names,
        weights=np.array(central.params.weights),
        theta=np.array(central.params.theta),
        center=np.array(central.center),
        noise=None if central.params.noise is None else np.array(central.params.noise),
        center_noise=None if central.noise is None else np.array(central.noise),
        distance=distances(spec.family, central),
        n_rows=np.array(central.n_rows),
        n_rounds=played.n_rounds,
        converged=played.stopped,
        unsettled=tuple(name for name, settled in zip(names, played.settled, strict=True) if not settled),
        history=played.history,
        influence=played.influence,
        start_choice=starts.choice,
        path=path,
    )
    if spec.score:
        result = yield from _scored(spec, central, result)
    if spec.look and n_sites > 1 and not traits.pools_rows:
        result = yield from _looked(spec, central, result)
    if spec.wants_errors(central.params.theta.shape[-1]):
        found = yield from standard_errors(spec, central, played.influence)
        result = result._replace(**found._asdict())
    return result


def _scored(spec: FitSpec, central: Central, result: FitResult) -> Phase[FitResult]:
    """Ask how well the final parameters explain the sites' rows."""
    told = Progress("score", result.n_rounds, spec.max_rounds, float("nan"))
    replies = yield Ask("score", central.params, told, optional=True)
    score: Score = replies.mail
    return result._replace(log_likelihood=score.log_likelihood, entropy=score.entropy)


def _looked(spec: FitSpec, central: Central, result: FitResult) -> Phase[FitResult]:
    """Ask every site for a look from the center; NaN where a site did not answer."""
    weights = np.median(central.params.weights, axis=0)
    center = Params(weights / weights.sum(), central.center, central.noise)
    sent = map_arrays(lambda leaf: np.broadcast_to(leaf, (len(result.site_names), *leaf.shape)), center)
    told = Progress("look", result.n_rounds, spec.max_rounds, float("nan"))
    replies = yield Ask("look", sent, told, optional=True)
    look: Look = replies.mail
    found = {"theta": look.params.theta, "log_likelihood": look.log_likelihood, "at_center": look.at_center}
    return result._replace(look=found)


def run(spec: FitSpec, engine: Engine, on_progress: Callable[[Progress], None] | None = None) -> FitResult:
    """Fit on an engine."""
    with np.errstate(all="ignore"), one_thread_each():  # what overflows is found by name afterwards
        result, cost = converse(fit(spec, engine.site_names), engine, on_progress)
    return result._replace(cost=cost.as_dict())
