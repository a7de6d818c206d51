"""One more site against a center that is already there: FedGrEM's steps, with a center that does not move."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedgrem.algorithms.base import Options, Pull, Traits, vanished
from fedgrem.algorithms.fedgrem import FedGrEM, Toward, _bounded
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
        weights, theta, noise = uploads.params
        held = central.n_rows[:, None] * self.algorithm.share(weights)
        within = self.penalty / np.sqrt(held)
        away = away_before = row_norm(family.to_noise(theta - central.center, central.noise))
        part: Array | None = None
        if self.between is not None:
            # A site that is too far out to be one of the others is not pulled to what they have in common.
            rows = held / held.shape[-1]
            trusted = trust_within(away * away, self.between + 1.0 / rows, theta.shape[-1])
            part = trusted / (1.0 + rows * self.between)
        theta = shrink(theta, central.center, within * _bounded(uploads.step_scale), away, part)
        if noise is not None and central.noise is not None:
            width = theta.shape[-1]
            relative = family.relative_noise(noise, central.noise, width)
            rows = held if relative.shape[1] > 1 else central.n_rows[:, None]
            part_of_noise: Array | None = None
            if self.noise_between is not None:
                counted = rows / held.shape[-1] if relative.shape[1] > 1 else rows
                part_of_noise = 1.0 / (1.0 + counted * self.noise_between)
            away = row_norm(relative)
            relative = shrink(
                relative, np.zeros_like(relative), self.noise_penalty / np.sqrt(rows), away, part_of_noise
            )
            noise = family.absolute_noise(relative, central.noise, width)
            gone = vanished(weights, central.n_rows)[..., None]
            noise = noise if noise.shape[1] == 1 else np.where(gone, central.noise, noise)
            theta = np.where(gone, central.center, theta)
        if self.weights_penalty > 0:
            weights = shrink_weights(
                weights, self.center.weights, np.array([[self.weights_penalty]]), central.n_rows[:, None]
            )
        central = central._replace(params=Params(weights, theta, noise))
        threshold = within / self.algorithm.step_size
        if self.between is not None:
            threshold = away_before - row_norm(family.to_noise(theta - central.center, central.noise))
        none = np.zeros((), dtype=int)
        return central, Influence(
            np.zeros_like(weights), threshold, np.asarray(self.penalty), none, np.zeros(()), self.between
        )
