"""Pooled rows: what one could do without privacy, by EM or by gradient EM.

Pooled-EM and Pooled-GrEM of Tian, Weng and Feng (ICML 2024), Section 4. An engine that holds all rows merges them for
these; one whose rows are elsewhere refuses. Weights are common too, which is why pooling estimates them badly where
sites differ.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedgrem.algorithms.base import Pull, Traits
from fedgrem.algorithms.local import LocalEM, LocalGrEM, plain_start
from fedgrem.families.base import Family
from fedgrem.types import Array, Central, Params, map_arrays

POOLED = "pooled the rows of all sites"


class OneStart:
    """Begins at one common start: the coordinate-wise median of those given."""

    def begin(self, family: Family, start: Params, n_rows: Array, pull: Pull) -> Central:
        """The same for all sites."""
        common: Params = map_arrays(lambda leaf: np.broadcast_to(np.median(leaf, axis=0), leaf.shape), start)
        common = common._replace(weights=common.weights / common.weights.sum(axis=-1, keepdims=True))
        return plain_start(common, n_rows)


@dataclass(frozen=True)
class PooledEM(OneStart, LocalEM):
    """EM on all rows, as if they came from one site."""

    name: ClassVar[str] = "pooled-em"
    traits: ClassVar[Traits] = Traits("Pooled-EM", "all", pools_rows=True, center=POOLED)


@dataclass(frozen=True)
class PooledGrEM(OneStart, LocalGrEM):
    """Gradient EM on all rows, as if they came from one site."""

    name: ClassVar[str] = "pooled-grem"
    traits: ClassVar[Traits] = Traits("Pooled-GrEM", "all", pools_rows=True, center=POOLED)
