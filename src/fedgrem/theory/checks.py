"""The assumptions of the theorems, each with a verdict that names the number to blame.

The paper states them up to constants. Where it does, a constant is chosen that can be read off: an even share, half a
separation, half of an error.
"""

from math import comb, log
from typing import NamedTuple

from fedgrem.theory.budget import Quantities

LEAST_SHARE = 0.2
"""Of an even share of the rows that a component is to have: the floor of the fit's step sizes."""
MOST_LEFT = 0.5
"""Of a small error that an EM step is to leave at most."""
BASIN = 0.5
"""Of the separation that a start is to be off at most."""
ROWS_CONSTANT = 16.0
"""In the sample size: with that number of rows the error of theta, labels known, is a quarter of the separation."""
STEP = 0.5
"""What a step is to go at least, of the way to the M-step."""
MOST_BAD = 1.0 / 3.0


class Setting(NamedTuple):
    """What the assumptions are about."""

    n_sites: int
    n_bad: int
    n_rows: float
    n_components: int
    n_parameters: int
    quantities: Quantities
    start_error: float
    """The largest error of a start, over sites and components."""
    step_size: float = 0.95
    model: str = "gmm"


class Check(NamedTuple):
    """An assumption, whether it holds, and why."""

    name: str
    holds: bool
    verdict: str


def check_assumptions(setting: Setting) -> list[Check]:
    """All of them, in the order of the paper: Assumption 4 (i), (iii), (ii), (v), (iv), and what its theorems ask."""
    found, off, bad, n = setting.quantities, setting.start_error, setting.n_bad, setting.n_sites
    apart, least, rate = found.separation, found.smallest_weight, found.contraction
    share, basin, rows = LEAST_SHARE / setting.n_components, BASIN * apart, rows_needed(setting)
    told = {
        "weights": (
            least >= share,
            f"the smallest weight is {least:.3f}; it should be at least {share:.3f}, a fifth of an even share",
        ),
        "separation": (
            rate <= MOST_LEFT,
            f"the smallest separation is {apart:.2f}, at which an EM step leaves {rate:.2f} of a small error; it "
            f"should leave at most {MOST_LEFT:g}",
        ),
        "start": (
            off <= basin,
            f"a start is expected to be off by up to {off:.2f}; it should be at most {basin:.2f}, half of the smallest "
            "separation",
        ),
        "step size": (
            STEP <= setting.step_size <= 1.0,
            f"the step size is {setting.step_size:g}; it should be between {STEP:g} and 1, an M-step",
        ),
        "rows": (
            setting.n_rows >= rows,
            f"a site has {setting.n_rows:,.0f} rows; it should have at least {rows:,.0f} for components {apart:.2f} "
            f"apart, the smallest with weight {least:.3f}",
        ),
        "bad sites": (
            bad / n < MOST_BAD,
            f"{bad} of {n} sites are bad; it should be fewer than a third",
        ),
        "exhaustive alignment": _exhaustive(setting),
        "stepwise alignment": _stepwise(setting),
    }
    return [Check(name, *verdict) for name, verdict in told.items()]


def rows_needed(setting: Setting) -> float:
    """The rows of a site that the sample size of the theorem asks for."""
    found, size = setting.quantities, setting.n_parameters
    count = setting.n_components * setting.n_sites
    return ROWS_CONSTANT * (size + log(count)) / (found.smallest_weight * found.separation**2)


def exhaustive_needs(h: float, start_error: float, bad: float) -> float:
    """The separation above which the exhaustive alignment is right, for a share ``bad`` below 1/2 of bad sites."""
    return ((2.0 + 2.0 * bad) * h + (4.0 + 4.0 * bad) * start_error) / (1.0 - bad)


def stepwise_needs(h: float, start_error: float, n_bad: int, first: int) -> float:
    """The separation above which the stepwise alignment is right, if the ``first`` sites, more than bad, are good."""
    return (first + n_bad) / (first - n_bad) * (2.0 * h + 6.0 * start_error)


def first_needed(separation: float, h: float, start_error: float, n_sites: int, n_bad: int) -> int | None:
    """How many of the first sites have to be good for the stepwise alignment; None if no number is enough."""
    for first in range(n_bad + 1, n_sites - n_bad + 1):
        if separation > stepwise_needs(h, start_error, n_bad, first):
            return first
    return None


def chance_of_order(n_sites: int, n_bad: int, first: int) -> float:
    """That the first sites of a random order are all good.

    Examples
    --------
    >>> chance_of_order(10, 1, 2)
    0.8
    """
    return comb(n_sites - n_bad, first) / comb(n_sites, first)


def _exhaustive(setting: Setting) -> tuple[bool, str]:
    """Separation against similarity and starts."""
    found, off, bad, n = setting.quantities, setting.start_error, setting.n_bad, setting.n_sites
    if 2 * bad >= n:
        return False, f"{bad} of {n} sites are bad, half or more"
    needed = exhaustive_needs(found.h, off, bad / n)
    return found.separation > needed, _apart(setting, f"{needed:.2f}")


def _stepwise(setting: Setting) -> tuple[bool, str]:
    """The same, and good sites first."""
    found, off, bad, n = setting.quantities, setting.start_error, setting.n_bad, setting.n_sites
    if 2 * bad >= n:
        return False, f"{bad} of {n} sites are bad, half or more"
    first = first_needed(found.separation, found.h, off, n, bad)
    if first is None:
        needed = stepwise_needs(found.h, off, bad, n - bad)
        return False, _apart(setting, f"{needed:.2f} even if the good sites come first")
    chance = chance_of_order(n, bad, first)
    told = f"it is right if the first {first} of {n} sites are good, which a random order has with chance {chance:.2f}"
    return chance >= 0.5, told + ("" if chance >= 0.5 else "; it should be at least 0.5")


def _apart(setting: Setting, needed: str) -> str:
    found = setting.quantities
    return (
        f"the smallest separation is {found.separation:.2f}; it should be above {needed}, because sites differ by "
        f"{found.h:.2f} and starts are off by up to {setting.start_error:.2f}"
    )
