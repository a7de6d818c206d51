"""How a fit is to be run, and what is told while it runs."""

from typing import NamedTuple

from fedgrem.algorithms.start import StartPlan
from fedgrem.types import Params


class Plan(NamedTuple):
    """How a fit is to be run."""

    start: StartPlan
    max_rounds: int = 1000
    tol: float = 1e-6
    tol_errors: float = 0.0
    """A site also counts as settled when it moves by less than this many standard errors in a round; 0 for never."""
    seed: int = 0
    given: Params | None = None
    """Starts ``(K, R), (K, R, q)`` to use instead of searching for them."""
    align: bool = True
    start_penalty: float = 0.0
    """lambda by which sites weigh a distance from the common start when they choose among starts."""
    path: tuple[float, ...] = ()
    """Penalties to compare on held-out rows before round 1; the first is that of fitting alone. Empty compares none."""
    given_penalty: float | None = None
    """The penalty to take whatever the comparison says; None takes the best."""
    fallback: bool = False
    """Whether sites that clearly lose by being pulled, in that comparison, are fitted alone."""
    score: bool = False
    """Whether sites are asked, after the last round, how well the final parameters explain their rows."""
    look: bool = False
    """Whether every site takes a last look from the center after the rounds, for the verdicts."""
    standard_errors: bool = False
    """Whether to ask, at the end, what the sites know of their parameters."""


class Progress(NamedTuple):
    """What a callback is told while a fit runs."""

    stage: str
    round: int
    max_rounds: int
    movement: float
    """Median movement of the sites in the last round."""
