"""Each site alone: EM (Dempster, Laird and Rubin 1977) and gradient EM (Balakrishnan, Wainwright and Yu 2017).

Local-EM and Local-GrEM of Tian, Weng and Feng (ICML 2024), Section 4. They say what federating gains.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp

from fedgrem.families.base import Family, ascend, expect, maximize
from fedgrem.kernels.median import median
from fedgrem.types import Array, Broadcast, Central, Params, SiteData, Upload


def gradient_upload(
    family: Family, data: SiteData, params: Params, step_size: float | Array, first_weights: Array | None
) -> Upload:
    """One gradient EM step on one site's rows: E-step, weights, and one ascent step, as FedGrEM's sites take it."""
    mass, log_likelihood = expect(family, data, params)
    n_rows = data.row_weight.sum()
    moved = ascend(
        family, data, params.theta, mass, step_size=step_size, first_weights=first_weights, spread=params.spread
    )
    spread = family.spread_step(data, moved.theta, mass, params.spread)
    return Upload(Params(mass.sum(axis=1) / n_rows, moved.theta, spread), moved.step_scale, n_rows, log_likelihood)


def exact_upload(family: Family, data: SiteData, params: Params) -> Upload:
    """One EM step on one site's rows: E-step, weights, and the family's exact M-step."""
    mass, log_likelihood = expect(family, data, params)
    after = maximize(family, data, params, mass)
    return Upload(after, jnp.ones_like(after.weights), data.row_weight.sum(), log_likelihood)


def unpenalized_start(params: Params, n_rows: Array, extra: Any = ()) -> Central:
    """What the center of an algorithm without a penalty holds before round 1."""
    nothing = jnp.zeros((), dtype=params.theta.dtype)
    center = median(params.theta)
    return Central(params, center, n_rows, params.weights, nothing, extra, middle_spread(params))


def middle_spread(params: Params) -> Array | None:
    """The coordinate-wise median of the sites' spreads ``(K, C, s)``; any numbers are a valid spread."""
    return None if params.spread is None else median(params.spread)


def without_solver(central: Central) -> tuple[Central, Array, Array]:
    """The answer of a central step that has no problem to solve: no iterations, no gap."""
    return central, jnp.asarray(0), jnp.zeros((), dtype=central.params.theta.dtype)


class Alone:
    """The center of an algorithm in which sites do not work together: it only looks on."""

    def central_start(self, params: Params, n_rows: Array) -> Central:
        """Begin at the given starts."""
        return unpenalized_start(params, n_rows)

    def broadcast(self, central: Central) -> Broadcast:
        """Each site gets its own parameters back."""
        return Broadcast(central.params, central.first_weights)

    def central_step(self, central: Central, uploads: Upload) -> tuple[Central, Array, Array]:
        """Take what the sites sent; the coordinate-wise median is reported as center, and nobody is moved to it."""
        center = median(uploads.params.theta)
        spread = middle_spread(uploads.params)
        return without_solver(central._replace(params=uploads.params, center=center, spread=spread))


@partial(jax.tree_util.register_dataclass, data_fields=[], meta_fields=["family"])
@dataclass(frozen=True)
class LocalEM(Alone):
    """EM at each site alone, with the exact M-step: weighted means, or weighted least squares.

    The paper ran R's ``mclust`` (one full covariance for all components) and ``mixreg`` (estimated noise); here, as for
    every other system, that is the family's business: ``covariance="tied"``, or a noise that is not "unit".
    """

    family: Family

    def local_step(self, data: SiteData, sent: Broadcast) -> Upload:
        """One EM step on this site's rows."""
        return exact_upload(self.family, data, sent.params)


@partial(jax.tree_util.register_dataclass, data_fields=["step_size"], meta_fields=["family", "step_weights"])
@dataclass(frozen=True)
class LocalGrEM(Alone):
    """Gradient EM at each site alone: FedGrEM's local step, with no center to be pulled to.

    The step of a component is ``step_size / weight`` as in FedGrEM; the authors' scripts used a fixed 0.1 for every
    component, which has the same fixed points and takes longer to reach them.
    """

    family: Family
    step_size: float | Array = 0.95
    step_weights: Literal["current", "initial"] = "current"

    def local_step(self, data: SiteData, sent: Broadcast) -> Upload:
        """E-step and one gradient step on this site's rows."""
        first = sent.first_weights if self.step_weights == "initial" else None
        return gradient_upload(self.family, data, sent.params, self.step_size, first)
