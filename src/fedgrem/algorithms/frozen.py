"""One more site against a center that is already there: FedGrEM's steps, with a center that does not move."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedgrem.algorithms.base import Options, Pull, Traits
from fedgrem.algorithms.centered import Centered
from fedgrem.algorithms.fedgrem import FedGrEM
from fedgrem.algorithms.state import Toward, bounded_scale, reseeded
from fedgrem.data.stack import Stack
from fedgrem.families.base import Family
from fedgrem.kernels.center import row_norm, shrink, trust_within
from fedgrem.kernels.log_ratio import shrink_weights
from fedgrem.types import Array, Broadcast, Central, Influence, Params, Upload


@dataclass(frozen=True)
class FrozenCenter(Options):
    r"""Local steps of FedGrEM, each shrunk towards a given center by :math:`\lambda / \sqrt n`.

    Parameters
    ----------
    algorithm : whose steps are taken.
    center : (R,), (R, q), (C, s) the center, in the units of the fit.
    penalty, noise_penalty, weights_penalty : lambda, and those of the noise and of the weights, as the last round of
        the fit had them.
    between, noise_between : (R,), (C,) the between-site variances, where these say how strongly to pull.
    """

    name: ClassVar[str] = "frozen-center"
    traits: ClassVar[Traits] = Traits("FedGrEM", "pulled", pulls=True)
    algorithm: FedGrEM
    center: Params
    penalty: float
    noise_penalty: float
    weights_penalty: float = 0.0
    between: Array | None = None
    noise_between: Array | None = None

    def begin(self, family: Family, start: Params, n_rows: Array, pull: Pull) -> Central:
        """Begin at the given starts."""
        return Central(start, self.center.theta, n_rows, self.center.noise)

    def broadcast(self, family: Family, central: Central) -> Broadcast:
        """The site's parameters, and the center."""
        one = np.ones(len(central.n_rows), dtype=int)
        center, noise = central.center[None], central.noise
        toward = Toward(
            center,
            self.penalty * one.astype(float),
            None if noise is None else noise[None],
            self.algorithm.local_steps * one,
            0 * one,
            None,
            self.center.weights[None],
            self.weights_penalty * one.astype(float),
            None,
            None if self.between is None else self.between[None],
            None if self.between is None else np.ones((1, len(self.between))),
        )
        return Broadcast(central.params, toward)

    def local_step(self, family: Family, stack: Stack, sent: Broadcast, seed: int) -> Upload:
        """As FedGrEM's."""
        return self.algorithm.local_step(family, stack, sent, seed)

    def central_step(
        self, family: Family, central: Central, uploads: Upload, present: Array
    ) -> tuple[Central, Influence]:
        """Shrink what the site sent towards the center, which stays."""
        weights, theta, _ = uploads.params
        held = central.n_rows[:, None] * self.algorithm.share(weights)
        within = self.penalty / np.sqrt(held)
        away = row_norm(family.to_noise(theta - central.center, central.noise))
        part: Array | None = None
        if self.between is not None:
            # A site that is too far out to be one of the others is not pulled to what they have in common.
            rows = held / held.shape[-1]
            trusted = trust_within(away * away, self.between + 1.0 / rows, theta.shape[-1])
            part = trusted / (1.0 + rows * self.between)
        theta = shrink(theta, central.center, within * bounded_scale(uploads.step_scale), away, part)

        def of_noise(relative: Array, share: Array, start: Array) -> Centered:
            held = central.n_rows[:, None] * share
            known = None if self.noise_between is None else held / held.shape[-1] * self.noise_between
            part = None if known is None else 1.0 / (1.0 + known)
            shrunk = shrink(relative, start, self.noise_penalty / np.sqrt(held), most=part)
            return Centered(shrunk, start, np.ones_like(held), np.zeros((), dtype=int), np.zeros(()))

        noise, _, _ = self.algorithm.shrink_noise(family, central, uploads.params, central.noise, of_noise)
        if noise is not None and central.noise is not None:
            weights, theta, noise = reseeded(
                Params(weights, theta, noise), central.center, central.noise, central.n_rows
            )
        if self.weights_penalty > 0:
            weights = shrink_weights(
                weights, self.center.weights, np.array([[self.weights_penalty]]), central.n_rows[:, None]
            )
        central = central._replace(params=Params(weights, theta, noise))
        threshold = within / self.algorithm.step_size
        if self.between is not None:
            threshold = away - row_norm(family.to_noise(theta - central.center, central.noise))
        none = np.zeros((), dtype=int)
        return central, Influence(
            np.zeros_like(weights), threshold, np.asarray(self.penalty), none, np.zeros(()), self.between
        )
