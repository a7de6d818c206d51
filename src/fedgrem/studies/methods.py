"""Every method of a cell on the same rows, from the same starts, timed."""

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from fedgrem.algorithms.registry import ALGORITHMS
from fedgrem.data.federation import Federation
from fedgrem.engines.inprocess import InProcess
from fedgrem.fit.fit import run
from fedgrem.fit.spec import FitSpec
from fedgrem.studies.specs import Method
from fedgrem.studies.starts import from_starts
from fedgrem.types import FitResult, Params, map_arrays


def play_methods(
    methods: tuple[Method, ...], spec: FitSpec, federation: Federation, search: Callable[[bool], Params]
) -> Iterator[tuple[FitResult, dict[str, Any]]]:
    """The fit of every method, and what a table tells of it: its name, rounds and seconds.

    Methods on pooled rows have one start; all others begin where ours does. Each kind of start is searched for once;
    ``search`` is told whether rows are pooled.
    """
    found: dict[bool, tuple[Params, float]] = {}
    for method in methods:
        algorithm = ALGORITHMS[method.algorithm](**method.options)
        pooled = algorithm.traits.pools_rows
        if pooled not in found:
            begin = time.perf_counter()
            params = for_every_site(search(pooled), len(federation.sites))
            found[pooled] = params, time.perf_counter() - begin
        given, start_seconds = found[pooled]
        begin = time.perf_counter()
        own = replace(from_starts(spec, given), algorithm=algorithm, penalty=method.penalty)
        result = run(own, InProcess(federation, own, threads=1))
        seconds = time.perf_counter() - begin
        yield (
            result,
            {"method": method.name, "rounds": result.n_rounds, "settled": bool(result.converged)}
            | {"seconds": seconds, "start_seconds": start_seconds},
        )


def for_every_site(params: Params, n_sites: int) -> Params:
    """One start as each of K sites gets it; one start per site as it is."""
    repeated: Params = map_arrays(lambda leaf: np.broadcast_to(leaf, (n_sites, *leaf.shape[1:])), params)
    return repeated
