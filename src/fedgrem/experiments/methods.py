"""Every method of a cell on the same rows, from the same starts, timed."""

import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedgrem.algorithms.plan import Plan
from fedgrem.algorithms.pooled import InOnePot, start_plan_for
from fedgrem.algorithms.registry import build_algorithm
from fedgrem.algorithms.rounds import run
from fedgrem.algorithms.search import find_starts
from fedgrem.data.federation import Federation
from fedgrem.engines.inprocess import InProcess
from fedgrem.experiments.specs import Method
from fedgrem.families.base import Family
from fedgrem.types import FitResult, Params


def search_starts(family: Family, plan: Plan, engine: InProcess, in_one_pot: bool) -> Params:
    """The package's own search: one start per site, or one for all rows in one pot."""
    if not in_one_pot:
        return find_starts(engine.serving(build_algorithm("fedgrem", family)), plan, family).params
    alone = build_algorithm("local-em", family)
    plan = plan._replace(start=start_plan_for(build_algorithm("pooled-em", family), plan.start))
    return find_starts(engine.pot_as_site(alone, plan.start), plan, family).params


def play_methods(
    methods: tuple[Method, ...],
    family: Family,
    federation: Federation,
    plan: Plan,
    search: Callable[[InProcess, bool], Params],
    dtype: type = np.float64,
) -> Iterator[tuple[FitResult, dict[str, Any]]]:
    """The fit of every method, and what a table tells of it: its name, rounds and seconds.

    All rows in one pot have one start; every other method begins where ours does. Each kind is searched for once, and
    its rows are stacked once.
    """
    engines: dict[bool, InProcess] = {}
    found: dict[bool, tuple[Params, float]] = {}
    for method in methods:
        algorithm = build_algorithm(method.algorithm, family, **method.options)
        in_one_pot = isinstance(algorithm, InOnePot)
        if in_one_pot not in found:
            begin = time.perf_counter()
            engines[in_one_pot] = InProcess(algorithm, federation, plan.start, dtype=dtype)
            params = for_everyone(search(engines[in_one_pot], in_one_pot), len(federation.sites))
            params.theta.block_until_ready()
            found[in_one_pot] = params, time.perf_counter() - begin
        given, start_seconds = found[in_one_pot]
        begin = time.perf_counter()
        result = run(algorithm, engines[in_one_pot].serving(algorithm), plan._replace(given=given, align=False))
        seconds = time.perf_counter() - begin
        yield (
            result,
            {"method": method.name, "rounds": result.n_rounds, "settled": bool(result.converged)}
            | {"seconds": seconds, "start_seconds": start_seconds},
        )


def for_everyone(params: Params, n_sites: int) -> Params:
    """One start as each of K sites gets it; one start per site as it is."""
    everyone: Params = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (n_sites, *leaf.shape[1:])), params)
    return everyone
