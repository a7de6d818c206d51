"""The one loop of the package: start, align, rounds, stop, result."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from fedgrem.algorithms.align import align, align_to, candidates, derive_key, generator_for, middle_of
from fedgrem.algorithms.base import Algorithm, Engine
from fedgrem.algorithms.start import StartPlan
from fedgrem.algorithms.tracks import breed, first_tracks, next_guess, pool_of, score
from fedgrem.types import (
    Array,
    Broadcast,
    Central,
    FitResult,
    NumpyArray,
    Params,
    RoundRecord,
    StartReply,
    StartRequest,
    Upload,
)

LARGEST_PENALTY = 1e6
"""Stands for an infinite penalty where starts are compared: 0 * inf has no answer."""


class Plan(NamedTuple):
    """How a fit is to be run."""

    start: StartPlan
    max_rounds: int = 1000
    tol: float = 1e-6
    seed: int = 0
    given: Params | None = None
    """Starts ``(K, R), (K, R, q)`` to use instead of searching for them."""
    align: bool = True
    start_penalty: float = 0.0
    """lambda by which sites weigh a distance from the common start when they choose among starts."""


class Progress(NamedTuple):
    """What a callback is told while a fit runs."""

    stage: str
    round: int
    max_rounds: int
    movement: float
    """Median movement of the sites in the last round."""


class LoopState(NamedTuple):
    """What is carried from round to round."""

    central: Central
    round: Array
    settled_since: Array
    """() the round since which all but a few sites have been settled; 0 while they are not."""
    stop: Array
    """() whether the rule below says to stop."""


def play_round(
    algorithm: Algorithm, ask: Callable[[Broadcast], Upload], state: LoopState, tol: Array | float
) -> tuple[LoopState, RoundRecord]:
    """One round: local steps, central step, bookkeeping. Every engine calls this, compiled or not."""
    uploads = ask(algorithm.broadcast(state.central))
    central, iterations, gap = algorithm.central_step(state.central, uploads)
    movement = _movement(state.central.params, central.params)
    center_movement = jnp.max(_relative(state.central.center, central.center))
    distance = jnp.sqrt(jnp.sum((central.params.theta - central.center) ** 2, axis=-1))
    record = RoundRecord(
        uploads.log_likelihood, movement, center_movement, central.penalty, distance.max(axis=1), iterations, gap
    )
    return _advance(state, central, movement, center_movement, tol), record


def _relative(before: Array, after: Array) -> Array:
    return jnp.sqrt(jnp.sum((after - before) ** 2, axis=-1)) / (1.0 + jnp.sqrt(jnp.sum(before**2, axis=-1)))


def _movement(before: Params, after: Params) -> Array:
    """Largest movement over a site's components, relative for theta and absolute for weights, ``(K,)``."""
    theta = _relative(before.theta, after.theta).max(axis=1)
    return jnp.maximum(theta, jnp.abs(after.weights - before.weights).max(axis=1))


def tolerated_stragglers(n_sites: int) -> int:
    """How many odd sites may still creep when the rest is settled: one in five, and one where there are 3 or 4."""
    return 0 if n_sites < 3 else max(1, n_sites // 5)


def _advance(
    state: LoopState, central: Central, movement: Array, center_movement: Array, tol: Array | float
) -> LoopState:
    """Stop when all sites and the center are settled, or when all but a few have been for half as long again.

    A straggler thus gets at most 50% more rounds than the others needed, plus ten.
    """
    played = state.round + 1
    moving = jnp.sum(~(movement < tol))
    center_settled = center_movement < tol
    most = center_settled & (moving <= tolerated_stragglers(movement.shape[0]))
    since = jnp.where(most, jnp.where(state.settled_since > 0, state.settled_since, played), 0)
    patience_over = (since > 0) & (played >= 1.5 * since + 10)
    stop = (center_settled & (moving == 0)) | patience_over
    return LoopState(central, played, since, stop)


def run(
    algorithm: Algorithm, engine: Engine, plan: Plan, on_progress: Callable[[Progress], None] | None = None
) -> FitResult:
    """Fit: find starts, align them, play rounds until they settle, and report."""
    tell = on_progress or (lambda _: None)
    params, n_rows, choice, cost = _starts(engine, plan, algorithm.family.start_tracks, tell)
    count = jnp.asarray(0)
    state = LoopState(algorithm.central_start(params, n_rows), count, count, jnp.asarray(False))
    records: list[RoundRecord] = []
    played, stopped = 0, False
    while played < plan.max_rounds and not stopped:
        state, record = engine.play(state, plan.tol, plan.max_rounds - played)
        records.append(record)
        played, stopped = int(state.round), bool(state.stop)
        tell(Progress("rounds", played, plan.max_rounds, float(np.median(record.movement[-1]))))
    cost["rounds"] = played
    cost["numbers_per_round"] = _count(state.central.params)
    return _result(engine.site_names, state, stopped, records, choice, cost, plan.tol)


def _starts(
    engine: Engine, plan: Plan, usual_tracks: int, tell: Callable[[Progress], None]
) -> tuple[Params, Array, NumpyArray, dict[str, int]]:
    """Starts of all sites, aligned; the sites' sizes; and who took whose start."""
    names, start = engine.site_names, plan.start
    keys = jnp.asarray(np.stack([derive_key(plan.seed, name, "start") for name in names]))
    penalties = jnp.full(len(names), min(plan.start_penalty, LARGEST_PENALTY))
    cost = {"start_exchanges": 0, "start_numbers": 0}

    def exchange(task: str, stage: str, tried: Params) -> StartReply:
        tell(Progress(stage, 0, plan.max_rounds, float("nan")))
        reply: StartReply = engine.ask(task, StartRequest(keys, tried, penalties))
        cost["start_exchanges"] += 1
        cost["start_numbers"] += _count(tried) + _count(reply.params)
        return reply

    if plan.given is not None:
        reply = exchange("local_size", "sizes", plan.given)
        params = align(plan.given, start, plan.seed) if plan.align else plan.given
        return params, reply.n_rows, np.zeros(len(names), dtype=int), cost
    nothing = Params(jnp.zeros((len(names), 0)), jnp.zeros((len(names), 0)))
    reply = exchange("local_start", "starts", nothing)
    params = align(reply.params, start, plan.seed)
    common = middle_of(params)
    n_tracks = usual_tracks if start.tracks is None else start.tracks
    # Without a penalty sites have nothing in common, and a joint start would be a start for nobody.
    if n_tracks > 0 and len(names) > 1 and plan.start_penalty > 0:
        common = _joint_start(params, names, plan, n_tracks, partial(exchange, "local_track", "joint starts"))
        params = align_to(params, common)
    for _ in range(start.exchanges if len(names) > 1 else 0):
        tried = candidates(params, common, reply.log_likelihood, reply.n_rows, start)
        reply = exchange("local_compare", "exchange", tried)
        params = align(reply.params, start, plan.seed)
        common = middle_of(params)
    return params, reply.n_rows, np.asarray(reply.choice), cost


def _joint_start(
    params: Params, names: tuple[str, ...], plan: Plan, n_tracks: int, ask: Callable[[Params], StartReply]
) -> Params:
    """The best joint start, ``(R,), (R, q)``, that tracks from the sites' aligned starts lead to."""
    generator, pool = generator_for(plan.seed, "tracks"), pool_of(params)
    tracks = first_tracks(params, names, n_tracks, generator)
    for left in reversed(range(plan.start.generations)):
        weights = jnp.broadcast_to(tracks.weights, (len(names), *tracks.weights.shape))
        for _ in range(plan.start.generation):
            guess = tracks.theta
            reply = ask(Params(weights, jnp.broadcast_to(guess, (len(names), *guess.shape))))
            tracks, weights = next_guess(reply, guess), reply.params.weights
        scores = score(reply)
        if left:
            tracks = breed(tracks, scores, pool, n_tracks, generator)
    best = int(np.argmax(scores))
    return Params(tracks.weights[best], tracks.theta[best])


def _count(params: Params) -> int:
    return int(sum(np.size(leaf) for leaf in params))


def _result(
    names: tuple[str, ...],
    state: LoopState,
    stopped: bool,
    records: list[RoundRecord],
    choice: NumpyArray,
    cost: dict[str, int],
    tol: float,
) -> FitResult:
    fields: list[Any] = [np.concatenate([np.asarray(r) for r in field]) for field in zip(*records, strict=True)]
    history = dict(zip(RoundRecord._fields, fields, strict=True))
    last = history["movement"][-1] if len(history["movement"]) else np.zeros(len(names))
    central = state.central
    return FitResult(
        site_names=names,
        weights=np.array(central.params.weights),
        theta=np.array(central.params.theta),
        center=np.array(central.center),
        n_rows=np.array(central.n_rows),
        n_rounds=int(state.round),
        converged=stopped,
        unsettled=tuple(name for name, moved in zip(names, last, strict=True) if not moved < tol),
        history=history,
        start_choice=choice,
        cost=cost,
    )
