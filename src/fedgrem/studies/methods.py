"""Every method of a cell on the same rows, from the same starts, timed."""

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from fedgrem.algorithms.plan import Plan
from fedgrem.algorithms.pooled import InOnePot
from fedgrem.algorithms.registry import build_algorithm
from fedgrem.algorithms.rounds import run
from fedgrem.data.federation import Federation
from fedgrem.engines.inprocess import InProcess
from fedgrem.families.base import Family
from fedgrem.studies.specs import Method
from fedgrem.studies.starts import for_every_site
from fedgrem.types import FitResult, Params


def play_methods(
    methods: tuple[Method, ...],
    family: Family,
    federation: Federation,
    plan: Plan,
    search: Callable[[InProcess, bool], Params],
    dtype: type = np.float64,
) -> Iterator[tuple[FitResult, dict[str, Any]]]:
    """The fit of every method, and what a table tells of it: its name, rounds and seconds.

    Methods on pooled rows have one start; all others begin where ours does. Each kind of start is searched for once,
    and its rows are stacked once; ``search`` is told the engine and whether rows are pooled.
    """
    engines: dict[bool, InProcess] = {}
    found: dict[bool, tuple[Params, float]] = {}
    for method in methods:
        algorithm = build_algorithm(method.algorithm, family, **method.options)
        pooled = isinstance(algorithm, InOnePot)
        if pooled not in found:
            begin = time.perf_counter()
            engines[pooled] = InProcess(algorithm, federation, plan.start, dtype=dtype)
            params = for_every_site(search(engines[pooled], pooled), len(federation.sites))
            params.theta.block_until_ready()
            found[pooled] = params, time.perf_counter() - begin
        given, start_seconds = found[pooled]
        begin = time.perf_counter()
        result = run(algorithm, engines[pooled].serving(algorithm), plan._replace(given=given, align=False))
        seconds = time.perf_counter() - begin
        yield (
            result,
            {"method": method.name, "rounds": result.n_rounds, "settled": bool(result.converged)}
            | {"seconds": seconds, "start_seconds": start_seconds},
        )
