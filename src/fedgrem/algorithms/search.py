"""The search for starts: what happens between the center and the sites before round 1."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedgrem.algorithms.align import align, align_to, candidates, derive_key, generator_for, middle_of
from fedgrem.algorithms.base import Engine
from fedgrem.algorithms.plan import Plan, Progress
from fedgrem.algorithms.tracks import breed, first_tracks, next_guess, pool_of, score
from fedgrem.families.base import Family
from fedgrem.types import Array, NumpyArray, Params, StartReply, StartRequest

LARGEST_PENALTY = 1e6
"""Stands for an infinite penalty where starts are compared: 0 * inf has no answer."""


class Starts(NamedTuple):
    """Where every site begins, aligned."""

    params: Params
    """(K, R), (K, R, q)"""
    n_rows: Array
    """(K,)"""
    choice: NumpyArray
    """(K,) which candidate each site took in the last exchange; 0 is its own."""
    cost: dict[str, int]
    """Exchanges and numbers sent."""


def find_starts(
    engine: Engine, plan: Plan, family: Family, on_progress: Callable[[Progress], None] | None = None
) -> Starts:
    """Ask every site for a start, align them, and let the sites improve on each other's."""
    tell = on_progress or (lambda _: None)
    names, start = engine.site_names, plan.start
    keys = jax.device_put(np.stack([derive_key(plan.seed, name, "start") for name in names]))
    penalties = jax.device_put(np.full(len(names), min(plan.start_penalty, LARGEST_PENALTY)))
    cost = {"start_exchanges": 0, "start_numbers": 0}

    def exchange(task: str, stage: str, tried: Params) -> StartReply:
        tell(Progress(stage, 0, plan.max_rounds, float("nan")))
        reply: StartReply = engine.ask(task, StartRequest(keys, tried, penalties))
        cost["start_exchanges"] += 1
        cost["start_numbers"] += count_numbers(tried) + count_numbers(reply.params)
        return reply

    if plan.given is not None:
        reply = exchange("local_size", "sizes", plan.given)
        params = plan.given._replace(spread=reply.params.spread)
        params = align(family, params, start, plan.seed) if plan.align else params
        return Starts(params, reply.n_rows, np.zeros(len(names), dtype=int), cost)
    empty = jax.device_put(np.zeros((len(names), 0)))
    nothing = Params(empty, empty)
    reply = exchange("local_start", "starts", nothing)
    spread = reply.params.spread
    if spread is not None and start.n_components > 1:
        # Alone, a site may fit its noise to a poor partition; starting again in common units, it does so less often.
        noise = jax.device_put(np.broadcast_to(np.median(spread, axis=(0, 1)), spread.shape))
        reply = exchange("local_start", "starts", nothing._replace(spread=noise))
    params = align(family, reply.params, start, plan.seed)
    common = middle_of(params)
    n_tracks = family.start_tracks if start.tracks is None else start.tracks
    # Without a penalty sites have nothing in common, and a joint start would be a start for nobody.
    if n_tracks > 0 and len(names) > 1 and plan.start_penalty > 0:
        common = _joint_start(family, params, names, plan, n_tracks, partial(exchange, "local_track", "joint starts"))
        params = align_to(family, params, common)
    for _ in range(start.exchanges if len(names) > 1 else 0):
        tried = candidates(params, common, reply.log_likelihood, reply.n_rows, start)
        reply = exchange("local_compare", "exchange", tried)
        params = align(family, reply.params, start, plan.seed)
        common = middle_of(params)
    return Starts(params, reply.n_rows, np.asarray(reply.choice), cost)


def _joint_start(
    family: Family,
    params: Params,
    names: tuple[str, ...],
    plan: Plan,
    n_tracks: int,
    ask: Callable[[Params], StartReply],
) -> Params:
    """The best joint start, ``(R,), (R, q)``, that tracks from the sites' aligned starts lead to."""
    generator, pool = generator_for(plan.seed, "tracks"), pool_of(params)
    tracks = first_tracks(params, names, n_tracks, generator)
    for left in reversed(range(plan.start.generations)):
        weights = jnp.broadcast_to(tracks.weights, (len(names), *tracks.weights.shape))
        for _ in range(plan.start.generation):
            sent: Params = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (len(names), *leaf.shape)), tracks)
            reply = ask(sent._replace(weights=weights))
            tracks, weights = next_guess(family, reply, tracks), reply.params.weights
        scores = score(reply)
        if left:
            tracks = breed(tracks, scores, pool, n_tracks, generator)
    best = int(np.argmax(scores))
    winner: Params = jax.tree.map(lambda leaf: leaf[best], tracks)
    return winner


def count_numbers(params: Params) -> int:
    """How many numbers these parameters are."""
    return int(sum(np.size(leaf) for leaf in jax.tree.leaves(params)))
