"""Each site alone: EM (Dempster, Laird and Rubin 1977) and gradient EM (Balakrishnan, Wainwright and Yu 2017).

Local-EM and Local-GrEM of Tian, Weng and Feng (ICML 2024), Section 4. They say what federating gains.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from fedgrem.algorithms.base import Options, Pull, Traits, keep_absent, middle, no_pull
from fedgrem.data.stack import Stack
from fedgrem.families.base import Family, weights_of
from fedgrem.types import Array, Broadcast, Central, Influence, Params, Upload

ALONE = "fitted every site alone"


def gradient_upload(
    family: Family, stack: Stack, params: Params, step_size: float, first_weights: Array | None = None
) -> Upload:
    """One gradient EM step on every site's rows: E-step, weights, and one ascent step, as FedGrEM's sites take it."""
    sums = family.expect(stack, params)
    moved = family.ascend(stack, params, sums, step_size, first_weights)
    after = Params(weights_of(sums), moved.theta, family.noise_step(sums, moved.theta, params.noise))
    return Upload(after, moved.step_scale, stack.n_rows, sums.log_likelihood)


def exact_upload(family: Family, stack: Stack, params: Params) -> Upload:
    """One EM step on every site's rows: E-step, weights, and the family's exact M-step."""
    sums = family.expect(stack, params)
    theta = family.maximize(stack, params, sums)
    after = Params(weights_of(sums), theta, family.noise_step(sums, theta, params.noise))
    return Upload(after, np.ones_like(after.weights), stack.n_rows, sums.log_likelihood)


def plain_start(params: Params, n_rows: Array, extra: Any = ()) -> Central:
    """What the center of an algorithm without a penalty holds before round 1."""
    return Central(params, np.median(params.theta, axis=0), n_rows, middle(params.noise), extra)


class Alone(Options):
    """The center of an algorithm in which sites do not work together: it only looks on."""

    def begin(self, family: Family, start: Params, n_rows: Array, pull: Pull) -> Central:
        """Begin at the given starts."""
        return plain_start(start, n_rows)

    def broadcast(self, family: Family, central: Central) -> Broadcast:
        """Each site gets its own parameters back."""
        return Broadcast(central.params, central.extra)

    def central_step(
        self, family: Family, central: Central, uploads: Upload, present: Array
    ) -> tuple[Central, Influence]:
        """Take what the sites sent; the coordinate-wise median is reported as center, and nobody is moved to it."""
        params = keep_absent(uploads.params, central.params, present)
        central = central._replace(params=params, center=np.median(params.theta, axis=0), noise=middle(params.noise))
        return central, no_pull(params.weights)


@dataclass(frozen=True)
class LocalEM(Alone):
    """EM at each site alone, with the exact M-step: weighted means, or weighted least squares.

    The paper ran R's ``mclust`` (one full covariance for all components) and ``mixreg`` (estimated noise); here, as for
    every other system, that is the family's business: ``covariance_type="tied"``, or a noise that is not "unit".
    """

    name: ClassVar[str] = "local-em"
    traits: ClassVar[Traits] = Traits("Local-EM", "none", center=ALONE, starts_alone=True)

    def local_step(self, family: Family, stack: Stack, sent: Broadcast, seed: int) -> Upload:
        """One EM step on every site's rows."""
        return exact_upload(family, stack, sent.params)


@dataclass(frozen=True)
class LocalGrEM(Alone):
    """Gradient EM at each site alone: FedGrEM's local step, with no center to be pulled to.

    The step of a component is ``step_size / weight`` as in FedGrEM; the authors' scripts used a fixed 0.1 for every
    component, which has the same fixed points and takes longer to reach them.
    """

    name: ClassVar[str] = "local-grem"
    traits: ClassVar[Traits] = Traits("Local-GrEM", "none", center=ALONE, starts_alone=True)
    step_size: float = 0.95

    def local_step(self, family: Family, stack: Stack, sent: Broadcast, seed: int) -> Upload:
        """E-step and one gradient step on every site's rows."""
        return gradient_upload(family, stack, sent.params, self.step_size)
