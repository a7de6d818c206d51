"""The field's center rules, as rivals: each finds a center its own way, and sites are shrunk to it as by any other.

They count every site once, whatever rows it has. ``bad`` is the share of bad sites, of which most of them must be told;
``mixing`` puts nearest-neighbour mixing before the rule, which is told too.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedgrem.algorithms.centered import Centered
from fedgrem.kernels import robust
from fedgrem.kernels.center import shrink
from fedgrem.types import Array


@dataclass(frozen=True)
class RobustRule:
    """What they share; a subclass says where the center is."""

    name: ClassVar[str]
    estimates: ClassVar[bool] = False
    picks_columns: ClassVar[bool] = False
    bad: float = 0.2
    mixing: bool = False

    def __call__(
        self, theta: Array, weight: Array, threshold: Array, held: Array, start: Array, present: Array
    ) -> Centered:
        """Find the center of the sites that answered and are not fitted alone, and shrink all sites to it."""
        axes = tuple(range(1, threshold.ndim))
        heard = present & (threshold > 0).any(axis=axes)
        heard = heard if heard.any() else present
        points = theta[heard]
        bad = round(self.bad * len(points))
        if self.mixing:
            points = robust.nearest_neighbor_mixing(points, bad)
        center = self.center(points, weight[heard], start, bad)
        shrunk = shrink(theta, center, np.broadcast_to(threshold, theta.shape[:-1]))
        return Centered(shrunk, center, np.ones_like(weight), np.asarray(1), np.zeros(()))

    def center(self, points: Array, weight: Array, start: Array, bad: int) -> Array:
        """The center ``(..., R, q)`` of these points ``(K, ..., R, q)``, of which ``bad`` may be anything."""
        raise NotImplementedError


@dataclass(frozen=True)
class Mean(RobustRule):
    """The mean, weighted by rows: what all others are to beat where nobody lies, and nobody trusts otherwise."""

    name: ClassVar[str] = "mean"

    def center(self, points: Array, weight: Array, start: Array, bad: int) -> Array:
        """The weighted mean."""
        return np.asarray(np.sum(weight[..., None] * points, axis=0) / weight.sum(axis=0)[..., None])


@dataclass(frozen=True)
class CoordinateMedian(RobustRule):
    """The coordinate-wise median (Yin et al. 2018)."""

    name: ClassVar[str] = "median"

    def center(self, points: Array, weight: Array, start: Array, bad: int) -> Array:
        """Of every coordinate by itself."""
        return robust.coordinate_median(points)


@dataclass(frozen=True)
class TrimmedMean(RobustRule):
    """The coordinate-wise trimmed mean, told how many to trim (Yin et al. 2018)."""

    name: ClassVar[str] = "trimmed-mean"

    def center(self, points: Array, weight: Array, start: Array, bad: int) -> Array:
        """Of every coordinate by itself."""
        return robust.trimmed_mean(points, bad)


@dataclass(frozen=True)
class GeometricMedian(RobustRule):
    """The geometric median (Pillutla et al. 2022)."""

    name: ClassVar[str] = "geometric-median"

    def center(self, points: Array, weight: Array, start: Array, bad: int) -> Array:
        """The point of least total distance."""
        return robust.geometric_median(points)


@dataclass(frozen=True)
class Krum(RobustRule):
    """The site that is closest to its nearest others, told how many to count (Blanchard et al. 2017)."""

    name: ClassVar[str] = "krum"

    def center(self, points: Array, weight: Array, start: Array, bad: int) -> Array:
        """One of the points."""
        return robust.mean_of(points, robust.best_scored(robust.krum_scores(points, bad), 1))


@dataclass(frozen=True)
class MultiKrum(RobustRule):
    """The mean of all but the ``bad`` worst by Krum's score (Blanchard et al. 2017)."""

    name: ClassVar[str] = "multi-krum"

    def center(self, points: Array, weight: Array, start: Array, bad: int) -> Array:
        """The mean of the best."""
        return robust.mean_of(points, robust.best_scored(robust.krum_scores(points, bad), len(points) - bad))


@dataclass(frozen=True)
class CenteredClipping(RobustRule):
    """The last center, moved by what each site adds when it is cut to a radius (Karimireddy et al. 2021)."""

    name: ClassVar[str] = "centered-clipping"

    def center(self, points: Array, weight: Array, start: Array, bad: int) -> Array:
        """A few steps from the last one."""
        return robust.centered_clipping(points, start)


ROBUST_RULES: dict[str, type[RobustRule]] = {
    rule.name: rule
    for rule in (Mean, CoordinateMedian, TrimmedMean, GeometricMedian, Krum, MultiKrum, CenteredClipping)
}
"""name -> class."""
