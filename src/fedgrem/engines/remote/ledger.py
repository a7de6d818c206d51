"""A site's ledger: what fits have cost of the privacy budget of its life, on its own disk.

A fit is paid for in full before its first answer, whether it comes to its end or not. Squares of mu add up, whatever
the budgets of single fits were, and the sum converts to one (epsilon, delta).
"""

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from math import sqrt
from pathlib import Path
from typing import Any, NamedTuple

from fedgrem.errors import InputError
from fedgrem.kernels.privacy import epsilon_of, mu_of

LEDGER = "budget.jsonl"
"""In the ``local`` folder of a site's kit, unless it is kept elsewhere for several kits."""
SLACK = 1e-9
"""Relative: what is left of a budget after some fits may be exactly one more."""


class Spent(NamedTuple):
    """Where a budget is."""

    fits: int
    epsilon: float
    """Of all of them together."""


@contextmanager
def one_at_a_time(path: Path) -> Iterator[None]:
    """While this lasts, nobody else who asks for it goes on: two workers must not answer the same order twice."""
    handle = os.open(path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def charge(
    path: Path, run: str, epsilon: float, delta: float, total_epsilon: float, *, interrupted: bool = False
) -> float:
    """Pay for a fit, once, and return its mu; :class:`~fedgrem.errors.InputError` where too little is left.

    Where a crash ``interrupted`` this before anything was answered, what was paid then is good.
    """
    mu = mu_of(epsilon, delta)
    handle = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        records = _records(path)
        square, runs = sum(record["mu"] ** 2 for record in records), [record["run"] for record in records]
        if run in runs and interrupted:
            return float(records[runs.index(run)]["mu"])
        if run in runs:
            raise InputError(f"{run} has been paid for before, and its answers are in another log; begin a new fit.")
        if square + mu * mu > mu_of(total_epsilon, delta) ** 2 * (1.0 + SLACK):
            raise InputError(
                f"{len(runs)} fit(s) have spent epsilon {epsilon_of(sqrt(square), delta):.4g} of {total_epsilon:g} "
                f"(delta {delta:g}), and one more costs {epsilon:g}; what is spent does not come back. The site's own "
                "word raises the total: `fedgrem site start KIT --total-epsilon N`."
            )
        told = {"time": datetime.now(UTC).isoformat(timespec="seconds"), "run": run}
        os.write(handle, (json.dumps(told | {"epsilon": epsilon, "delta": delta, "mu": mu}) + "\n").encode())
        os.fsync(handle)
    finally:
        os.close(handle)
    return mu


def spent(path: Path, delta: float) -> Spent:
    """What was spent so far."""
    records = _records(path)
    return Spent(len(records), epsilon_of(sqrt(sum(record["mu"] ** 2 for record in records)), delta))


def _records(path: Path) -> list[dict[str, Any]]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return []
    try:
        records = [json.loads(line) for line in lines]
        if not all(isinstance(record["run"], str) and record["mu"] > 0 for record in records):
            raise ValueError("a line is no fit")
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path} cannot be read ({error}); nothing is answered until it is mended.") from error
    return records
