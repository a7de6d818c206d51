"""How K site estimates of a component become a center: one class a rule, a value that an algorithm holds."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedgrem.algorithms.centered import Centered, CenterRule
from fedgrem.algorithms.robust_rules import ROBUST_RULES
from fedgrem.kernels.center import alternate_to_center, shrink_to_center, trust
from fedgrem.types import Array


@dataclass(frozen=True)
class Huber:
    """The paper's central problem, solved to tolerance: Huber's location with each site's threshold."""

    name: ClassVar[str] = "huber"

    def __call__(
        self, theta: Array, weight: Array, threshold: Array, held: Array, start: Array, present: Array
    ) -> Centered:
        """Solve it."""
        found = shrink_to_center(theta, weight, threshold, start)
        return Centered(found.shrunk, found.center, np.ones_like(weight), found.iterations, found.gap)


@dataclass(frozen=True)
class Redescending:
    """The same problem without the sites that are far off, which would still shift the center a little."""

    name: ClassVar[str] = "redescending"

    def __call__(
        self, theta: Array, weight: Array, threshold: Array, held: Array, start: Array, present: Array
    ) -> Centered:
        """Weigh every site by how far it is, then solve."""
        trusted = trust(theta, held, start, None if present.all() else present)
        found = shrink_to_center(theta, weight * trusted, threshold, start)
        return Centered(found.shrunk, found.center, trusted, found.iterations, found.gap)


@dataclass(frozen=True)
class Alternating:
    """The paper's way to that problem: a few alternating sweeps, which stop short of its solution."""

    name: ClassVar[str] = "alternating"
    sweeps: int = 2

    def __call__(
        self, theta: Array, weight: Array, threshold: Array, held: Array, start: Array, present: Array
    ) -> Centered:
        """Sweep."""
        found = alternate_to_center(theta, weight, threshold, sweeps=self.sweeps)
        return Centered(found.shrunk, found.center, np.ones_like(weight), found.iterations, found.gap)


CENTER_RULES: dict[str, type[CenterRule]] = {
    **{rule.name: rule for rule in (Redescending, Huber, Alternating)},
    **ROBUST_RULES,
}
"""name -> class; every row runs through the conformance tests."""
