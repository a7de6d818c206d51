"""How K site estimates of a component become a center: one class a rule, a value that an algorithm holds."""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Protocol

import numpy as np

from fedgrem.kernels.center import alternate_to_center, capped_rows, shrink_to_center, trust
from fedgrem.kernels.log_ratio import from_log_ratio, to_log_ratio
from fedgrem.types import Array


class Centered(NamedTuple):
    """What a center rule answers."""

    shrunk: Array
    """(K, ..., R, q)"""
    center: Array
    """(..., R, q)"""
    trust: Array
    """(K, ..., R) in [0, 1]: by what the rule multiplied each site's weight."""
    iterations: Array
    gap: Array


class CenterRule(Protocol):
    """A function of site estimates in noise units."""

    name: ClassVar[str]

    def __call__(
        self, theta: Array, weight: Array, threshold: Array, held: Array, start: Array, present: Array
    ) -> Centered:
        """The center, and the sites shrunk to it.

        Parameters
        ----------
        theta : (K, ..., R, q) estimates, aligned; start : (..., R, q) the last center.
        weight, threshold, held : (K, ..., R) what a site counts for, how far it is pulled, and how many rows its
            estimate rests on.
        present : (K,) whose estimates are of this round; the others have weight 0.
        """
        ...


@dataclass(frozen=True)
class Huber:
    """The paper's central problem, solved to tolerance: Huber's location with each site's threshold."""

    name: ClassVar[str] = "huber"

    def __call__(
        self, theta: Array, weight: Array, threshold: Array, held: Array, start: Array, present: Array
    ) -> Centered:
        """Weigh every site by how far it is trusted, then solve."""
        trusted = self.trust(theta, held, start, present)
        found = shrink_to_center(theta, weight * trusted, threshold, start)
        return Centered(found.shrunk, found.center, trusted, found.iterations, found.gap)

    def trust(self, theta: Array, held: Array, start: Array, present: Array) -> Array:
        """(K, ..., R) by what sites' weights are multiplied."""
        return np.ones_like(held)


@dataclass(frozen=True)
class Redescending(Huber):
    """The same problem without the sites that are far off, which would still shift the center a little."""

    name: ClassVar[str] = "redescending"

    def trust(self, theta: Array, held: Array, start: Array, present: Array) -> Array:
        """Less, the farther a site is from the last center; nothing beyond some distance."""
        return trust(theta, held, start, None if present.all() else present)


@dataclass(frozen=True)
class Alternating:
    """The paper's way to that problem: a few alternating sweeps, which stop short of its solution."""

    name: ClassVar[str] = "alternating"
    sweeps: int = 2

    def __call__(
        self, theta: Array, weight: Array, threshold: Array, held: Array, start: Array, present: Array
    ) -> Centered:
        """Sweep."""
        # A site that is not pulled, beside others that are, is fitted alone.
        say = np.where((threshold > 0) | (threshold == 0).all(axis=0), weight, 0.0)
        found = alternate_to_center(theta, say, threshold, sweeps=self.sweeps)
        return Centered(found.shrunk, found.center, np.ones_like(weight), found.iterations, found.gap)


CENTER_RULES: dict[str, type[CenterRule]] = {rule.name: rule for rule in (Redescending, Huber, Alternating)}
"""name -> class; every row runs through the conformance tests."""


def pool_weights(
    rule: CenterRule, weights: Array, common: Array, penalty: Array, n_rows: Array, present: Array
) -> tuple[Array, Array]:
    """Mixture weights shrunk towards common ones by a center rule, in log-ratio coordinates, and these.

    Parameters
    ----------
    weights : (K, ..., R); common : (..., R) the last common ones.
    penalty : (K, ...) lambda; n_rows, present : (K,).
    """
    rows, say, heard = (leaf.reshape(-1, *(1,) * (weights.ndim - 1)) for leaf in (n_rows, capped_rows(n_rows), present))
    about = to_log_ratio(weights, common, rows)[..., None, :]
    weight, threshold, held = (
        np.broadcast_to(leaf, about.shape[:-1]) for leaf in (say * heard, penalty[..., None] / np.sqrt(rows), rows)
    )
    found = rule(about, weight, threshold, held, np.zeros_like(about[0]), present)
    shrunk, center = (from_log_ratio(leaf[..., 0, :], common) for leaf in (found.shrunk, found.center))
    return shrunk, center
