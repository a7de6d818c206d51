"""The one loop of the package: start, align, rounds, stop, result."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedgrem.algorithms.base import Algorithm, Engine
from fedgrem.algorithms.fedgrem import FedGrEM
from fedgrem.algorithms.look import look_around
from fedgrem.algorithms.path import ROUNDS, Choice, choose_penalty
from fedgrem.algorithms.plan import Plan, Progress
from fedgrem.algorithms.search import Starts, count_numbers, find_starts
from fedgrem.algorithms.uncertainty import ask_uncertainty
from fedgrem.kernels.median import median
from fedgrem.types import (
    Array,
    Broadcast,
    Central,
    FitResult,
    NumpyArray,
    Params,
    RoundRecord,
    Score,
    Upload,
)


class LoopState(NamedTuple):
    """What is carried from round to round."""

    central: Central
    round: Array
    settled_since: Array
    """() the round since which all but a few sites have been settled; 0 while they are not."""
    stop: Array
    """() whether the rule below says to stop."""


class Tolerance(NamedTuple):
    """When a site counts as settled: when either holds."""

    relative: float | Array
    """Movement in a round, relative to the size of the parameters."""
    errors: float | Array
    """Movement in a round, in standard errors."""


class Saved(NamedTuple):
    """All that a fit needs to go on after its last finished round."""

    starts: Starts
    state: LoopState
    records: RoundRecord
    """Of the rounds played so far, stacked."""
    choice: Choice | None = None
    """How the penalty was chosen, if it was."""


def play_round(
    algorithm: Algorithm, ask: Callable[[Broadcast], Upload], state: LoopState, tol: "Array | float | Tolerance"
) -> tuple[LoopState, RoundRecord]:
    """One round: local steps, central step, bookkeeping. Every engine calls this, compiled or not."""
    uploads = ask(algorithm.broadcast(state.central))
    central, iterations, gap = algorithm.central_step(state.central, uploads)
    movement = _movement(state.central.params, central.params)
    center_movement = jnp.max(_relative(state.central.center, central.center))
    distance = distances(algorithm, central).max(axis=1)
    in_errors, center_in_errors = _in_errors(algorithm, state.central, central)
    record = RoundRecord(
        uploads.log_likelihood, movement, center_movement, central.penalty, distance, iterations, in_errors, gap
    )
    limit = tol if isinstance(tol, Tolerance) else Tolerance(tol, 0.0)
    settled = (movement < limit.relative) | (in_errors < limit.errors)
    center_settled = (center_movement < limit.relative) | (center_in_errors < limit.errors)
    return _advance(state, central, settled, center_settled), record


def _in_errors(algorithm: Algorithm, before: Central, after: Central) -> tuple[Array, Array]:
    """Movement of the sites ``(K,)`` and of the center () in units of about their standard errors.

    Those of a parameter in units of the noise are about ``1 / sqrt(rows)``, of the rows that a component holds: at one
    site or, where components sit on the center, at all of these together.
    """
    params, rows = after.params, after.n_rows[:, None]
    held = jnp.maximum(params.weights * rows, 1.0)
    there = jnp.all(params.theta == after.center, axis=-1)
    common = jnp.sum(jnp.where(there, held, 0.0), axis=0)

    def length(change: Array) -> Array:
        noise = algorithm.family.in_noise_units(change, after.spread)
        return jnp.sqrt(jnp.sum(noise * noise, axis=-1))

    theta = length(params.theta - before.params.theta) * jnp.sqrt(jnp.where(there, common, held))
    spread_of_weights = jnp.sqrt(jnp.maximum(params.weights * (1.0 - params.weights), 1.0 / rows) / rows)
    weights = jnp.abs(params.weights - before.params.weights) / spread_of_weights
    moved = jnp.maximum(theta, weights).max(axis=1)
    if params.spread is not None and before.params.spread is not None:
        spread = jnp.abs(params.spread - before.params.spread).max(axis=(1, 2)) * jnp.sqrt(2.0 * after.n_rows)
        moved = jnp.maximum(moved, spread)
    return moved, jnp.max(length(after.center - before.center) * jnp.sqrt(jnp.maximum(common, median(held))))


@jax.jit
def distances(algorithm: Algorithm, central: Central) -> Array:
    """Of every site's components from the center, ``(K, R)``, in units of the common noise."""
    away = algorithm.family.in_noise_units(central.params.theta - central.center, central.spread)
    return jnp.sqrt(jnp.sum(away * away, axis=-1))


def _relative(before: Array, after: Array) -> Array:
    return jnp.sqrt(jnp.sum((after - before) ** 2, axis=-1)) / (1.0 + jnp.sqrt(jnp.sum(before**2, axis=-1)))


def _movement(before: Params, after: Params) -> Array:
    """Largest movement over a site's components, relative for theta and absolute for the rest, ``(K,)``."""
    theta = _relative(before.theta, after.theta).max(axis=1)
    moved = jnp.maximum(theta, jnp.abs(after.weights - before.weights).max(axis=1))
    if before.spread is None or after.spread is None:
        return moved
    return jnp.maximum(moved, jnp.abs(after.spread - before.spread).max(axis=(1, 2)))


def tolerated_stragglers(n_sites: int) -> int:
    """How many odd sites may still creep when the rest is settled: one in four, and one where there are 3."""
    return 0 if n_sites < 3 else max(1, n_sites // 4)


def _advance(state: LoopState, central: Central, settled: Array, center_settled: Array) -> LoopState:
    """Stop when all sites and the center are settled, or when all but a few have been for half as long again.

    A straggler thus gets at most 50% more rounds than the others needed, plus ten.
    """
    played = state.round + 1
    moving = jnp.sum(~settled)
    most = center_settled & (moving <= tolerated_stragglers(settled.shape[0]))
    since = jnp.where(most, jnp.where(state.settled_since > 0, state.settled_since, played), 0)
    patience_over = (since > 0) & (played >= 1.5 * since + 10)
    stop = (center_settled & (moving == 0)) | patience_over
    return LoopState(central, played, since, stop)


def run(
    algorithm: Algorithm,
    engine: Engine,
    plan: Plan,
    on_progress: Callable[[Progress], None] | None = None,
    *,
    resume: Saved | None = None,
    keep: Callable[[Saved], None] | None = None,
) -> FitResult:
    """Fit: find starts, align them, play rounds until they settle, and report.

    ``keep`` is given, whenever the engine has played, all that is needed to go on from there with ``resume``.
    """
    tell = on_progress or (lambda _: None)
    records: list[RoundRecord] = []
    if resume is None:
        starts = find_starts(engine, plan, algorithm.family, tell)
        count = jax.device_put(0)
        central, choice = _begin(algorithm, engine, plan, starts, tell)
        state = LoopState(central, count, count, jax.device_put(False))
    else:
        starts, state, choice = resume.starts, resume.state, resume.choice
        records.append(resume.records)
    cost = dict(starts.cost)
    tol = Tolerance(plan.tol, plan.tol_errors)
    played, stopped = int(state.round), bool(state.stop)
    while played < plan.max_rounds and not stopped:
        state, record = engine.play(state, tol, plan.max_rounds - played)
        records.append(record)
        played, stopped = int(state.round), bool(state.stop)
        if keep is not None:
            keep(Saved(starts, state, _joined(records), choice))
        tell(Progress("rounds", played, plan.max_rounds, float(np.median(record.movement[-1]))))
    cost["rounds"] = played
    cost["numbers_per_round"] = count_numbers(state.central.params)
    if choice is not None:
        cost |= {"penalty_exchanges": choice.exchanges, "penalty_numbers": choice.numbers}
    distance = np.array(distances(algorithm, state.central))
    path = {} if choice is None else choice.as_arrays(plan.fallback)
    result = _result(engine.site_names, state, stopped, records, starts.choice, cost, plan, distance, path)
    if plan.score:
        tell(Progress("score", played, plan.max_rounds, float("nan")))
        score: Score = engine.ask("local_score", state.central.params)
        result = result._replace(log_likelihood=np.array(score.log_likelihood), entropy=np.array(score.entropy))
    if plan.look:
        result = result._replace(look=look_around(engine, state.central), cost=result.cost | {"look_exchanges": 1})
    if plan.standard_errors:
        tell(Progress("standard errors", played, plan.max_rounds, float("nan")))
        found, numbers = ask_uncertainty(algorithm, engine, state.central)
        asked = {"information_exchanges": 1, "information_numbers": numbers}
        result = result._replace(cost=result.cost | asked, **found._asdict())
    return result


def _begin(
    algorithm: Algorithm, engine: Engine, plan: Plan, starts: Starts, tell: Callable[[Progress], None]
) -> tuple[Central, Choice | None]:
    """What the center holds before round 1; where there are penalties to compare, with the one that was chosen."""
    if not plan.path or not isinstance(algorithm, FedGrEM) or len(engine.site_names) < 2:
        return _central_start(algorithm, starts.params, starts.n_rows), None

    def say(number: int) -> None:
        tell(Progress("penalties", number, ROUNDS, float("nan")))

    choice, begin = choose_penalty(
        algorithm, engine, starts.params, starts.n_rows, plan.seed, say, plan.path, plan.given_penalty
    )
    central = _central_start(algorithm, begin, starts.n_rows)
    pulled = jax.device_put(~choice.losers()) if plan.fallback else central.extra.pulled
    return algorithm.with_penalties(central, choice.penalty, choice.covariance_penalty, pulled), choice


@jax.jit
def _central_start(algorithm: Algorithm, params: Params, n_rows: Array) -> Central:
    return algorithm.central_start(params, n_rows)


def _joined(records: list[RoundRecord]) -> RoundRecord:
    fields: list[Any] = [np.concatenate([np.asarray(r) for r in field]) for field in zip(*records, strict=True)]
    return RoundRecord(*fields)


def _result(
    names: tuple[str, ...],
    state: LoopState,
    stopped: bool,
    records: list[RoundRecord],
    choice: NumpyArray,
    cost: dict[str, int],
    plan: Plan,
    distance: NumpyArray,
    path: dict[str, NumpyArray],
) -> FitResult:
    history: dict[str, Any] = _joined(records)._asdict() if records else {}
    settled = np.ones(len(names), dtype=bool)
    if records:
        settled = (history["movement"][-1] < plan.tol) | (history["movement_in_errors"][-1] < plan.tol_errors)
    central = state.central
    return FitResult(
        site_names=names,
        weights=np.array(central.params.weights),
        theta=np.array(central.params.theta),
        center=np.array(central.center),
        spread=None if central.params.spread is None else np.array(central.params.spread),
        center_spread=None if central.spread is None else np.array(central.spread),
        distance=distance,
        n_rows=np.array(central.n_rows),
        n_rounds=int(state.round),
        converged=stopped,
        unsettled=tuple(name for name, still in zip(names, settled, strict=True) if not still),
        history=history,
        start_choice=choice,
        cost=cost,
        path=path,
    )
