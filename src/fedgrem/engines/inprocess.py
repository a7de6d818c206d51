"""All sites in one process: stacked by size, ``vmap``ped, blocks of rounds in one compiled call."""

from collections.abc import Callable
from copy import copy
from functools import partial
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from fedgrem.algorithms.base import Algorithm
from fedgrem.algorithms.pooled import InOnePot
from fedgrem.algorithms.rounds import LoopState, Tolerance, play_round
from fedgrem.algorithms.start import StartPlan
from fedgrem.algorithms.tasks import Task, local_task
from fedgrem.data.federation import Federation
from fedgrem.types import Array, RoundRecord, SiteData

Stacked: TypeAlias = tuple[SiteData, ...]


BLOCK = 100
"""Rounds in one compiled call: the longest wait between two progress reports."""


ROWS_AT_ONCE = 12_000
"""Rows of the sites that search for starts at the same time: what they compute with then stays in the processor's
cache, where a pass takes a little more than half the time."""


class InProcess:
    """Runs the local steps of a federation in this process.

    Sites are stacked in buckets of similar size, each padded to its largest site with rows of weight 0, so that one
    large site does not blow up the rest.
    """

    def __init__(
        self, algorithm: Algorithm, federation: Federation, start: StartPlan, *, dtype: type = np.float64
    ) -> None:
        self._algorithm = algorithm
        self._start = start
        self._names = federation.names
        self._in_one_pot = isinstance(algorithm, InOnePot)
        self._sizes = jax.device_put(np.array([site.row_weight.sum() for site in federation.sites], dtype=dtype))
        self._buckets, self._order = (federation.merged() if self._in_one_pot else federation).stacked(dtype)
        if self._in_one_pot:  # one site in the buckets: it reads the mail of the first by name, whatever their order
            self._order = jnp.asarray([self._names.index(min(self._names))])

    def serving(self, algorithm: Algorithm) -> "InProcess":
        """The same rows, stacked once, for another algorithm."""
        if isinstance(algorithm, InOnePot) != self._in_one_pot:
            raise ValueError("rows in one pot are stacked otherwise than those of sites")
        other = copy(self)
        other._algorithm = algorithm
        return other

    def pot_as_site(self, algorithm: Algorithm, start: StartPlan) -> "InProcess":
        """Rows in one pot as a federation of one site: what is asked of it need not be told to everyone."""
        if not self._in_one_pot:
            raise ValueError("these rows are not in one pot")
        other = copy(self)
        other._algorithm, other._start, other._in_one_pot = algorithm, start, False
        other._names, other._order = (min(self._names),), jnp.asarray([0])
        return other

    @property
    def site_names(self) -> tuple[str, ...]:
        """In the order of every stacked array."""
        return self._names

    def ask(self, task: str, sent: Any) -> Any:
        """Run one task at every site."""
        reply = _ask(local_task(task, self._algorithm, self._start), self._buckets, self._order, sent)
        return reply._replace(n_rows=self._sizes) if self._in_one_pot else reply

    def play(self, state: LoopState, tol: float | Tolerance, limit: int) -> tuple[LoopState, RoundRecord]:
        """Play up to ``limit`` rounds, at most ``BLOCK``, in one compiled call."""
        state, records, played = _play(self._algorithm, self._buckets, self._order, state, tol, limit)
        # Cut in NumPy: JAX would compile a slice anew for every number of rounds, which takes longer than the rounds.
        kept: list[Any] = [np.asarray(leaf)[: int(played)] for leaf in records]
        return state, RoundRecord(*kept)


def _at_every_site(
    step: Callable[[SiteData, Any], Any], buckets: Stacked, order: Array, sent: Any, *, in_groups: bool = False
) -> Any:
    """Apply a one-site function to all sites; ``order`` lists the sites bucket by bucket."""
    over_sites = partial(_group_by_group if in_groups else _all_at_once, step)
    if len(order) == 1:  # one site, or all rows in one pot: the answer is everybody's
        n_sites = jax.tree.leaves(sent)[0].shape[0]
        reply = over_sites(buckets[0], jax.tree.map(lambda leaf: leaf[order], sent))
        return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (n_sites, *leaf.shape[1:])), reply)
    if len(buckets) == 1:
        return over_sites(buckets[0], sent)
    replies, first = [], 0
    for bucket in buckets:
        last = first + bucket.row_weight.shape[0]
        mine = order[first:last]
        replies.append(over_sites(bucket, jax.tree.map(lambda leaf, mine=mine: leaf[mine], sent)))
        first = last
    back = jnp.argsort(order)
    return jax.tree.map(lambda *leaves: jnp.concatenate(leaves)[back], *replies)


def _all_at_once(step: Callable[[SiteData, Any], Any], bucket: SiteData, sent: Any) -> Any:
    return jax.vmap(step)(bucket, sent)


def _group_by_group(step: Callable[[SiteData, Any], Any], bucket: SiteData, sent: Any) -> Any:
    """The same, a few sites at a time: for steps that pass over a site's rows many times."""
    n_sites, size = bucket.row_weight.shape
    n_groups = -(-n_sites // max(1, ROWS_AT_ONCE // size))
    if n_groups == 1:
        return _all_at_once(step, bucket, sent)
    return jax.lax.map(lambda site: step(*site), (bucket, sent), batch_size=-(-n_sites // n_groups))


@jax.jit
def _ask(task: Task, buckets: Stacked, order: Array, sent: Any) -> Any:
    return _at_every_site(task, buckets, order, sent, in_groups=True)


@jax.jit
def _play(
    algorithm: Algorithm, buckets: Stacked, order: Array, state: LoopState, tol: float | Tolerance, limit: int
) -> tuple[LoopState, RoundRecord, Array]:
    ask = partial(_at_every_site, algorithm.local_step, buckets, order)
    # Its shapes are asked for before it is played: as a program of its own it is traced once for both.
    one_round = jax.jit(lambda state: play_round(algorithm, ask, state, tol), inline=True)

    def once(carry: tuple[LoopState, RoundRecord, Array]) -> tuple[LoopState, RoundRecord, Array]:
        state, records, played = carry
        state, record = one_round(state)
        records = jax.tree.map(lambda kept, new: kept.at[played].set(new), records, record)
        return state, records, played + 1

    def keep_going(carry: tuple[LoopState, RoundRecord, Array]) -> Array:
        state, _, played = carry
        return (played < jnp.minimum(limit, BLOCK)) & ~state.stop

    _, shapes = jax.eval_shape(one_round, state)
    empty = jax.tree.map(lambda s: jnp.zeros((BLOCK, *s.shape), s.dtype), shapes)
    state, records, played = jax.lax.while_loop(keep_going, once, (state, empty, jnp.asarray(0)))
    return state, records, played
