"""A whole fit, from top to bottom."""

from collections.abc import Callable

import numpy as np
from scipy.special import chdtri

from fedgrem.algorithms.base import Pull, middle_weights
from fedgrem.algorithms.center_rules import MOST_BAD
from fedgrem.algorithms.holders import FEWEST, weights_to_look_from, without_lacking
from fedgrem.fit.conversation import Ask, Engine, Phase, Progress, converse, everyone, with_agreement
from fedgrem.fit.errors import standard_errors
from fedgrem.fit.few_rows import has_enough, knows_weights, lean_on_others
from fedgrem.fit.penalty import choose_penalty
from fedgrem.fit.private import private_fit
from fedgrem.fit.rounds import Near, play_rounds, result_of
from fedgrem.fit.selection import center_of, leads
from fedgrem.fit.some import components_of_some, every_message
from fedgrem.fit.spec import FitSpec
from fedgrem.fit.starts import Starts, find_starts, grown
from fedgrem.fit.sums import secure_fit
from fedgrem.fit.sums_start import Circle
from fedgrem.fit.tasks import Score
from fedgrem.fit.units import common_units, with_census
from fedgrem.types import Array, Central, FitResult, Params, map_arrays

BY_CHANCE = 0.05
"""A site's rows speak against a fit if parameters of its own are with this chance as much better."""


def fit(spec: FitSpec, names: tuple[str, ...], *, rehearsed: bool = False) -> Phase[FitResult]:
    """The center's side of a fit: units, starts, penalty, rounds, a last look, standard errors.

    Where it is ``rehearsed``, every kind of message is sent that may come, whatever the answers.
    """
    if spec.ranges is not None:
        return (yield from private_fit(spec, names))
    if spec.secure_sums:
        return (yield from secure_fit(spec, Circle(names)))
    agreed, census = yield from common_units(spec, names)
    result = yield from with_agreement(_in_units(spec, names, rehearsed), agreed)
    result = with_census(result, census, spec.units.constant(census.deviation))
    return result if agreed.units is None else result._replace(location=agreed.units.location, scale=agreed.units.scale)


def _in_units(spec: FitSpec, names: tuple[str, ...], rehearsed: bool) -> Phase[FitResult]:
    n_sites = len(names)
    starts = yield from find_starts(spec, names)
    traits, path = spec.algorithm.traits, {}
    noise_penalty = spec.algorithm.noise_penalty
    penalty = np.inf if spec.estimates_pull and n_sites > 1 else spec.start_penalty
    pulled = everyone(n_sites)
    # Where nothing is compared, weights are pooled only if that is asked for.
    weights_penalty = penalty if spec.algorithm.pool_weights is True else 0.0
    compared = spec.penalty is None or (spec.fallback and spec.penalty > 0)
    if traits.pulls and compared and not spec.candidate and n_sites > 1:
        choice = yield from choose_penalty(spec, starts)
        penalty, noise_penalty = choice.penalty, choice.noise_penalty
        # Few rows say nothing for certain, whatever the error of what they say.
        pulled = ~(choice.losers() & spec.fallback & has_enough(spec.family, starts.params, starts.n_rows))
        path = choice.as_arrays(~pulled)
        weights_penalty = choice.weights_penalty
    pull = Pull(
        np.asarray(penalty),
        np.asarray(penalty if noise_penalty is None else noise_penalty),
        pulled,
        weights_penalty,
        spec.estimates_pull,
    )
    shrunk = traits.pulls and penalty > 0 and n_sites > 1
    begin = starts.begin(pulled & shrunk)
    central, result = yield from _played(spec, names, begin, starts, pull, shrunk=shrunk)
    if spec.smaller is not None and spec.score:
        start = grown(spec.family, spec.smaller, center_of(result), n_sites)
        other = yield from _played(spec, names, start, starts, pull, shrunk=shrunk)
        if leads(other[1], result, pooled=traits.pools_rows):
            central, result = other
    if spec.some and n_sites >= FEWEST and (shrunk or spec.estimates_pull or (rehearsed and traits.pulls)):

        def play(start: Params, pull: Pull) -> Phase[tuple[Central, FitResult]]:
            return _played(spec, names, start, starts, pull, shrunk=True)

        tried = central, result
        if spec.estimates_pull and (rehearsed or not (shrunk and pulled.all())):
            # Sites may seem to have nothing in common, for want of a component that some of them have.
            infinite = np.asarray(np.inf)
            pull = pull._replace(penalty=infinite, noise_penalty=infinite, pulled=everyone(n_sites))
            tried = yield from play(begin, pull)
        tried = yield from (every_message if rehearsed else components_of_some)(spec, *tried, pull, play)
        if tried[1].held is not None:
            central, result = tried
            changed = {"penalty": pull.penalty, "noise_penalty": pull.noise_penalty, "local_only": ~pull.pulled}
            path = path | changed if path else path
    # With a penalty that is given, some may lose because of that.
    if traits.pulls and spec.fallback and spec.penalty is None and result.held is None:
        worse = worse_than_start(starts, result)
        if worse.any():
            central, result = _back_at_starts(spec, central, result, starts, worse)
            path = path | {"local_only": ~pulled | worse} if path else path
    result = result._replace(path=path)
    if spec.family.robust_rows:
        result = yield from _counted(spec, central, result)
    if spec.look and n_sites > 1 and not traits.pools_rows:
        result = yield from _looked(spec, central, result)
    if spec.wants_errors(central.params.theta.shape[-1]):
        found = yield from standard_errors(spec, central, result.influence, result.held)
        result = result._replace(**found._asdict())
    return result


def _played(
    spec: FitSpec, names: tuple[str, ...], start: Params, found: Starts, pull: Pull, *, shrunk: bool
) -> Phase[tuple[Central, FitResult]]:
    """The rounds from a start, and how well the sites' rows are explained, if anybody wants to know."""
    central = spec.algorithm.begin(spec.family, start, found.n_rows, pull)
    leans = shrunk and spec.algorithm.pool_weights is not False  # else every site has its own weights, as in the paper
    played = yield from play_rounds(spec, central, names)
    central = _leaning(spec, played.central, pull) if leans else played.central
    common = None if central.weights is None or not np.any(pull.weights_penalty) else np.array(central.weights)
    result = result_of(spec.family, names, played._replace(central=central), found.choice, common_weights=common)
    if spec.score:
        result = yield from _scored(spec, central, result)
    return central, result


def worse_than_start(starts: Starts, result: FitResult) -> Array:
    """(K,) whose rows speak against the fit, and for where the site began.

    With parameters of its own a site gains log-likelihood by chance alone, twice of it about chi-squared (Wilks), but
    that starts are pulled to common ones already. Whatever becomes of the center, no honest site is left with an answer
    that its own rows contradict. What a site says decides about nobody else, unless more say so than may be bad: then
    the center is no center, and all go back.
    """
    parameters = sum(0 if leaf is None else leaf[0].size for leaf in starts.params) - 1
    behind = starts.log_likelihood - result.history["log_likelihood"][-1]
    worse = 2.0 * behind > chdtri(parameters, BY_CHANCE)
    return np.asarray(np.isfinite(behind) if worse.mean() > MOST_BAD else worse)


def _back_at_starts(
    spec: FitSpec, central: Central, result: FitResult, starts: Starts, worse: Array
) -> tuple[Central, FitResult]:
    """Some sites at their starts again, with no say in the center."""

    def back(fitted: Array, start: Array) -> Array:
        return np.where(worse.reshape(-1, *(1,) * (start.ndim - 1)), start, fitted)

    central = central._replace(params=map_arrays(back, central.params, starts.params))
    weights, theta, noise = central.params
    weight, threshold = (np.where(worse[:, None], 0.0, leaf) for leaf in result.influence[:2])
    influence = result.influence._replace(weight=weight, threshold=threshold)
    return central, result._replace(
        weights=weights, theta=theta, noise=noise, distance=Near.of(spec.family, central).distance, influence=influence
    )


def _leaning(spec: FitSpec, central: Central, pull: Pull) -> Central:
    """The weights of sites of few rows shrunk to the others', unless they are fitted alone."""
    enough = knows_weights(spec.family, central.params, central.n_rows) | ~pull.pulled
    weights = lean_on_others(central.params.weights, central.n_rows, enough)
    if pull.lacking is not None:
        weights = without_lacking(weights, pull.lacking)
    return central._replace(params=central.params._replace(weights=weights))


def _scored(spec: FitSpec, central: Central, result: FitResult) -> Phase[FitResult]:
    """Ask how well the final parameters explain the sites' rows."""
    told = Progress("score", result.n_rounds, spec.max_rounds, float("nan"))
    replies = yield Ask("score", central.params, told, optional=True)
    score: Score = replies.mail
    return result._replace(log_likelihood=score.log_likelihood, entropy=score.entropy)


def _counted(spec: FitSpec, central: Central, result: FitResult) -> Phase[FitResult]:
    """Ask what share of its rows every site holds down under its final parameters; NaN where one did not answer."""
    told = Progress("rows held down", result.n_rounds, spec.max_rounds, float("nan"))
    replies = yield Ask("held_down", central.params, told, optional=True)
    return result._replace(held_down=np.clip(replies.mail.held_down, 0.0, 1.0))


def _looked(spec: FitSpec, central: Central, result: FitResult) -> Phase[FitResult]:
    """Ask every site for a look from the center; NaN where a site did not answer."""
    center = Params(middle_weights(central.params.weights), central.center, central.noise)
    sent = map_arrays(lambda leaf: np.broadcast_to(leaf, (len(result.site_names), *leaf.shape)), center)
    if result.held is not None:
        sent = sent._replace(weights=weights_to_look_from(central.params.weights))
    told = Progress("look", result.n_rounds, spec.max_rounds, float("nan"))
    replies = yield Ask("look", sent, told, optional=True)
    return result._replace(look=replies.mail.found())


def run(spec: FitSpec, engine: Engine, on_progress: Callable[[Progress], None] | None = None) -> FitResult:
    """Fit on an engine."""
    result, cost = converse(fit(spec, engine.site_names), engine, on_progress)
    return result._replace(cost=cost.as_dict())
