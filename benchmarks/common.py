"""What benchmarks share: options told by their defaults, fits without warnings, processes, tables, errors of a fit."""

import argparse
import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table
from scipy.optimize import linear_sum_assignment

from fedgrem.types import Array


class Given(NamedTuple):
    """An option that its default does not describe."""

    default: Any
    help: str | None = None
    choices: Sequence[str] | None = None
    kind: Callable[[str], Any] | None = None


def one_of(*choices: str, help: str | None = None) -> Given:
    """One of these words, by default the first."""
    return Given(choices[0], help, choices)


def some_of(choices: Iterable[str], default: Sequence[str] | None = None, help: str | None = None) -> Given:
    """Some of these words, by default all."""
    return Given(list(choices if default is None else default), help, list(choices))


def asked(doc: str | None, **wanted: Any) -> argparse.Namespace:
    """What was asked for on the command line, by name.

    Every option is told by its default: a list takes several values, False is a switch.
    """
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in wanted.items():
        one = default if isinstance(default, Given) else Given(default)
        flag = f"--{name.replace('_', '-')}"
        if one.default is False:
            parser.add_argument(flag, action="store_true", help=one.help)
            continue
        several = isinstance(one.default, list)
        example = one.default[0] if several and one.default else one.default
        kind = one.kind or (str if example is None or (several and not one.default) else type(example))
        more = {"nargs": "*"} if several else {}
        parser.add_argument(flag, default=one.default, help=one.help, type=kind, choices=one.choices, **more)
    return parser.parse_args()


def in_processes(play: Callable[..., Any], tasks: Iterable[Any], processes: int) -> list[Any]:
    """The results of all tasks, in their order; every process computes in one thread."""
    os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"
    with ProcessPoolExecutor(processes) as pool:
        return list(pool.map(play, tasks))


def table_of(title: str, *heads: str) -> Table:
    """An empty table of numbers."""
    table = Table(title=title)
    for head in heads:
        table.add_column(head, justify="right")
    return table


def show(*what: Any, width: int = 150) -> None:
    """Print tables and sentences."""
    Console(width=width).print(*what)


def largest_error(found: Array, true: Array) -> float:
    """Over sites and components ``(K, R, q)``, up to one relabelling of all."""
    return float(np.sqrt(squared_errors(found, true).max()))


def squared_errors(found: Array, true: Array) -> Array:
    """(K, R) squared distances from the truth, up to one relabelling of all sites."""
    square = ((found[:, :, None] - true[:, None]) ** 2).sum(axis=-1)
    return np.asarray(square[:, *linear_sum_assignment(np.median(square, axis=0))])
