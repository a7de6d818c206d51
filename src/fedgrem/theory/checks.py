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
"""In the sample size: with so many rows the error of theta, labels known, is a quarter of the separation."""
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
    """All of them, in the order of the paper."""
    return [
        check_weights(setting),
        check_separation(setting),
        check_start(setting),
        check_step(setting),
        check_rows(setting),
        check_bad(setting),
        check_exhaustive(setting),
        check_stepwise(setting),
    ]


def check_weights(setting: Setting) -> Check:
    """Assumption 4 (i): no weight is much smaller than 1/R."""
    least, needed = setting.quantities.smallest_weight, LEAST_SHARE / setting.n_components
    told = f"the smallest weight is {least:.3f}; it should be at least {needed:.3f}, a fifth of an even share"
    return Check("weights", least >= needed, told)


def check_separation(setting: Setting) -> Check:
    """Assumption 4 (iii): components are so far apart that an EM step halves a small error."""
    apart, rate = setting.quantities.separation, setting.quantities.contraction
    told = (
        f"the smallest separation is {apart:.2f}, at which an EM step leaves {rate:.2f} of a small error; it should "
        f"leave at most {MOST_LEFT:g}"
    )
    return Check("separation", rate <= MOST_LEFT, told)


def check_start(setting: Setting) -> Check:
    """Assumption 4 (ii): starts are nearer to their own component than to any other."""
    limit = BASIN * setting.quantities.separation
    told = (
        f"a start is expected to be off by up to {setting.start_error:.2f}; it should be at most {limit:.2f}, half of "
        "the smallest separation"
    )
    return Check("start", setting.start_error <= limit, told)


def check_step(setting: Setting) -> Check:
    """Assumption 4 (v): steps as long as an M-step, nearly."""
    told = f"the step size is {setting.step_size:g}; it should be between {STEP:g} and 1, an M-step"
    return Check("step size", STEP <= setting.step_size <= 1.0, told)


def rows_needed(setting: Setting) -> float:
    """The rows of a site that the sample size of the theorem asks for."""
    found, size = setting.quantities, setting.n_parameters
    count = setting.n_components * setting.n_sites
    return ROWS_CONSTANT * (size + log(count)) / (found.smallest_weight * found.separation**2)


def check_rows(setting: Setting) -> Check:
    """Assumption 4 (iv): enough rows for the number of parameters, sites and components."""
    needed = rows_needed(setting)
    told = (
        f"a site has {setting.n_rows:,.0f} rows; it should have at least {needed:,.0f} for components "
        f"{setting.quantities.separation:.2f} apart, the smallest with weight {setting.quantities.smallest_weight:.3f}"
    )
    return Check("rows", setting.n_rows >= needed, told)


def check_bad(setting: Setting) -> Check:
    """The main theorem: fewer than a third of the sites are bad."""
    told = f"{setting.n_bad} of {setting.n_sites} sites are bad; it should be fewer than a third"
    return Check("bad sites", setting.n_bad / setting.n_sites < MOST_BAD, told)


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


def check_exhaustive(setting: Setting) -> Check:
    """The theorem of exhaustive alignment: separation against similarity and starts."""
    found, bad = setting.quantities, setting.n_bad / setting.n_sites
    if bad >= 0.5:
        return Check("exhaustive alignment", False, f"{setting.n_bad} of {setting.n_sites} sites are bad, half or more")
    needed = exhaustive_needs(found.h, setting.start_error, bad)
    told = (
        f"the smallest separation is {found.separation:.2f}; it should be above {needed:.2f}, because sites differ by "
        f"{found.h:.2f} and starts are off by up to {setting.start_error:.2f}"
    )
    return Check("exhaustive alignment", found.separation > needed, told)


def check_stepwise(setting: Setting) -> Check:
    """The theorem of stepwise alignment: the same, and good sites first."""
    name, found, n, bad = "stepwise alignment", setting.quantities, setting.n_sites, setting.n_bad
    if 2 * bad >= n:
        return Check(name, False, f"{bad} of {n} sites are bad, half or more")
    first = first_needed(found.separation, found.h, setting.start_error, n, bad)
    if first is None:
        needed = stepwise_needs(found.h, setting.start_error, bad, n - bad)
        told = (
            f"the smallest separation is {found.separation:.2f}; it should be above {needed:.2f} even if the good "
            f"sites come first, because sites differ by {found.h:.2f} and starts are off by up to "
            f"{setting.start_error:.2f}"
        )
        return Check(name, False, told)
    chance = chance_of_order(n, bad, first)
    told = f"it is right if the first {first} of {n} sites are good, which a random order has with chance {chance:.2f}"
    return Check(name, chance >= 0.5, told + ("" if chance >= 0.5 else "; it should be at least 0.5"))
