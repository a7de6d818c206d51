"""All rows in one pot: what one could do without privacy, by EM or by gradient EM.

Pooled-EM and Pooled-GrEM of Tian, Weng and Feng (ICML 2024), Section 4.
"""

from dataclasses import dataclass, replace
from functools import partial

import jax
import jax.numpy as jnp

from fedgrem.algorithms.base import Algorithm
from fedgrem.algorithms.local import LocalEM, LocalGrEM, unpenalized_start
from fedgrem.algorithms.start import StartPlan
from fedgrem.kernels.median import median
from fedgrem.types import Array, Central, Params


class InOnePot:
    """Marks an algorithm that sees the rows of all sites as one site's, and gives every site the same answer.

    An engine that holds all rows merges them when it meets this mark; one whose rows are elsewhere must refuse. Weights
    are common too, which is why pooling estimates them badly where sites differ.
    """

    def central_start(self, params: Params, n_rows: Array) -> Central:
        """Begin at one common start: the coordinate-wise median of those given."""
        middle: Params = jax.tree.map(lambda leaf: jnp.broadcast_to(median(leaf), leaf.shape), params)
        middle = middle._replace(weights=middle.weights / middle.weights.sum(axis=1, keepdims=True))
        return unpenalized_start(middle, n_rows)


def start_plan_for(algorithm: Algorithm, plan: StartPlan) -> StartPlan:
    """The plan as it is; a pot has nobody to exchange starts with, so that there only its own restarts remain."""
    return replace(plan, exchanges=0, tracks=0) if isinstance(algorithm, InOnePot) else plan


@partial(jax.tree_util.register_dataclass, data_fields=[], meta_fields=["family"])
@dataclass(frozen=True)
class PooledEM(InOnePot, LocalEM):
    """EM on all rows, as if they came from one site."""


@partial(jax.tree_util.register_dataclass, data_fields=["step_size"], meta_fields=["family", "step_weights"])
@dataclass(frozen=True)
class PooledGrEM(InOnePot, LocalGrEM):
    """Gradient EM on all rows, as if they came from one site."""
