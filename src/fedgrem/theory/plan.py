"""Before any data: what federating would gain, and what a design can afford."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from fedgrem.errors import InputError
from fedgrem.theory.budget import ErrorBudget, Quantities, budget, draws_of, quantities, rounds_needed
from fedgrem.theory.checks import Check, Setting, check_assumptions
from fedgrem.theory.design import Design
from fedgrem.theory.predict import PAYS, Prediction, errors, predict, summarize

MOST_ROWS = 1_000_000
MANY = 8
"""Times the sites of a design up to which a search for more goes."""
CLOSE = 0.02
"""Relative to a target, at which a search for it ends."""
AFFORDED = 1.25
"""Times the error without bad sites that is still afforded with them."""
DRAWS = 8
"""Of a search, which compares."""


class Plan(NamedTuple):
    """What is to be expected of a design."""

    design: Design
    budget: ErrorBudget
    """Its total is the largest error to expect."""
    quantities: Quantities
    checks: list[Check]
    pays: bool
    rounds: int
    """Of one EM step each."""
    rows_alone: int | None
    """Rows with which a site alone would do as well; None if more than a million."""
    target: float
    rows: int | None
    """Rows a site that reach the target; None if more than a million."""
    sites: int | None
    """Sites that reach the target; None if no number does."""
    bad: int
    """Colluding bad sites that raise the error by at most a quarter, while federating still pays."""


def plan(design: Design, target: float | None = None) -> Plan:
    """Answer the questions of somebody who thinks of starting a study.

    Parameters
    ----------
    target : the largest error that is wanted; half of what is to be expected by default.

    Examples
    --------
    >>> found = plan(Design(n_sites=6, n_rows=100, n_features=3, n_components=2, separation=5.0, h=0.0))
    >>> found.pays, found.budget.total < 0.7 * found.budget.alone
    (True, True)
    """
    draws, seeds = draws_of(design)
    expected = budget(draws, seeds)
    if target is None:
        target = 0.5 * expected.total
    if not 0.0 < target < np.inf:
        raise InputError(f"the target must be a positive error, got {target:g}.")
    found = quantities(draws, expected)
    size = (design.n_sites, design.n_outliers, design.n_rows, design.n_components, design.n_features)
    checks = check_assumptions(Setting(*size, found, expected.alone, model=design.model))
    return Plan(
        design,
        expected,
        found,
        checks,
        expected.ratio <= PAYS,
        rounds_needed(found.contraction, expected.alone, expected.total),
        _rows(lambda n: _alone(design.but(n_rows=n)), expected.total, design.n_rows),
        target,
        _rows(lambda n: predict(design.but(n_rows=n), DRAWS).together, target, design.n_rows),
        _sites(design, target),
        _bad(design),
    )


def _alone(design: Design) -> float:
    draws, seeds = draws_of(design)
    return summarize([errors(d, s, alone_only=True) for d, s in zip(draws, seeds, strict=True)], design.model).alone


def _rows(error: Callable[[int], float], target: float, start: int) -> int | None:
    """The rows with which an error that falls about as a power of them meets a target."""
    n, power = float(start), 0.5
    last: tuple[float, float] | None = None
    for _ in range(8):
        found = error(round(n))
        if abs(found / target - 1.0) <= CLOSE:
            break
        if last is not None and last[0] != n and found != last[1]:
            power = float(np.clip(-np.log(found / last[1]) / np.log(n / last[0]), 0.1, 1.0))
        last = n, found
        n = max(4.0, n * float(np.clip((found / target) ** (1.0 / power), 0.02, 50.0)))
        if n > MOST_ROWS:
            return None
    return round(n)


def _sites(design: Design, target: float) -> int | None:
    """The sites, bad ones in proportion, with which the target is met; None if no number of them does."""

    def error(n_sites: int) -> float:
        n_bad = round(design.n_outliers * n_sites / design.n_sites)
        return predict(design.but(n_sites=n_sites, n_outliers=n_bad), DRAWS).together

    low, high = 1, MANY * design.n_sites
    if error(high) > target:
        return None
    while high > 1.1 * low and high > low + 1:
        middle = round(np.sqrt(low * high))
        low, high = (low, middle) if error(middle) <= target else (middle, high)
    return high


def _bad(design: Design) -> int:
    """How many colluding bad sites are afforded."""
    draws, seeds = draws_of(design.but(n_outliers=0), DRAWS)

    def error(n_bad: int) -> Prediction:
        good = design.n_sites - n_bad
        changed = [
            d._replace(n_bad=n_bad, colluding=True, weights=d.weights[:good], n_rows=d.n_rows[:good]) for d in draws
        ]
        return summarize([errors(d, s) for d, s in zip(changed, seeds, strict=True)], design.model)

    clean = error(0).together
    low, high = 0, (design.n_sites - 1) // 2
    while low < high:
        middle = (low + high + 1) // 2
        found = error(middle)
        good = found.together <= AFFORDED * clean and found.pays
        low, high = (middle, high) if good else (low, middle - 1)
    return low


def sentences(found: Plan) -> list[str]:
    """The answers in words."""
    design, expected = found.design, found.budget
    change = expected.total / expected.alone - 1.0
    lines = [
        f"{'Federating pays' if found.pays else 'Federating hardly pays'}: the largest error of a component goes from "
        f"{expected.alone:.2f} to {expected.total:.2f} ({change:+.0%}), in units of the noise within a component."
    ]
    if found.rows_alone is None:
        lines.append("A site alone would need more than a million rows to do as well.")
    else:
        lines.append(f"A site alone would need about {_rounded(found.rows_alone)} rows to do as well.")
    more = []
    if found.rows is not None:
        more.append(f"about {_rounded(found.rows)} rows at each of {design.n_sites} sites")
    if found.sites is not None:
        more.append(f"about {_rounded(found.sites)} sites of {design.n_rows:,} rows")
    elif design.h > 0:
        more.append(f"not by more sites of {design.n_rows:,} rows, because sites differ by {design.h:g}")
    else:
        more.append(f"more than {MANY * design.n_sites:,} sites of {design.n_rows:,} rows")
    lines.append(f"For a largest error of {found.target:.2f}: {'; or '.join(more)}.")
    if not found.pays:
        bad = "Where federating hardly pays anyway, no bad site is worth its risk."
    elif found.bad == 0:
        bad = "Not one bad site can be afforded: colluding ones raise the largest error by more than a quarter."
    else:
        bad = (
            f"Up to {found.bad} of {design.n_sites} sites may be bad: even if they collude, federating pays, and the "
            "largest error rises by at most a quarter."
        )
    lines.append(bad)
    lines.append(
        f"An EM step leaves {found.quantities.contraction:.2f} of a small error: about {found.rounds} plain "
        f"round{'' if found.rounds == 1 else 's'}, which the fit shortens by extrapolation."
    )
    return lines


def _rounded(n: int) -> str:
    """To two digits: nobody knows more."""
    if n < 100:
        return str(n)
    unit = 10 ** (len(str(n)) - 2)
    return f"{round(n / unit) * unit:,}"
