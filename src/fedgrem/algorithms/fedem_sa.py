"""FedEM by stochastic approximation, of Dieuleveut, Fort, Moulines and Robin (NeurIPS 2021).

"Federated Expectation Maximization with heterogeneity mitigation and variance reduction", Algorithm 1, with the partial
participation of its Appendix A and compressors as in its Appendix B.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from fedgrem.algorithms.base import Options, Pull, Traits, for_all, keep_absent, lots, no_pull
from fedgrem.algorithms.fedem import average, present_share
from fedgrem.algorithms.local import plain_start
from fedgrem.data.stack import Stack
from fedgrem.errors import InputError
from fedgrem.families.base import Family, weights_of
from fedgrem.kernels.compression import quantize, sparsify, variance_factor
from fedgrem.types import Array, Broadcast, Central, Influence, Params, Sums, Upload


class Memory(NamedTuple):
    """What the center holds besides the parameters."""

    statistics: Array
    """(R, t) S: the running mean of the posterior sums, per row, of all sites."""
    control: Array
    """(K, R, t) V_k: what is known of how far each site is from S."""
    rest: Array
    """(K, u) what no component owns of the sums, per row: it does not change, and is learnt when a site is heard."""
    played: Array
    """() rounds so far."""


class Expected(NamedTuple):
    """What a site is told besides its parameters."""

    statistics: Array
    """(R, t) S + V_k: what the center already expects of this site."""
    played: Array
    """() rounds so far; in round 1 everyone answers in full."""


class Surprise(NamedTuple):
    """What a site sends besides its weights."""

    difference: Array
    """(R, t) Quant(Delta_k): its statistics less what was expected, compressed."""
    rest: Array
    """(u,) what no component owns of its sums, per row."""


@dataclass(frozen=True)
class FedEMSA(Options):
    r"""EM on sufficient statistics that travel compressed, from the sites that take part in a round.

    With :math:`\bar s_k` the mean statistics of site k under the common parameters :math:`T(S)`,

    .. math:: \Delta_k = \bar s_k - V_k - S, \quad
              H = \sum_k \tfrac{n_k}{N} \bigl(V_k + \tfrac{1}{p} \text{Quant}(\Delta_k)\bigr), \quad
              S \leftarrow S + \gamma H, \quad V_k \leftarrow V_k + \alpha\,\text{Quant}(\Delta_k),

    the sums over Quant running over the sites that take part, each with probability p. The control variates V_k learn
    what is particular to a site, so that what remains to be compressed, and its noise, dies out: the limit is that of
    EM without compression. With nothing compressed, everyone taking part and :math:`\gamma = 1`, each round is one
    step of EM with shared components. Quant keeps a random share of the coordinates (rand-k) and rounds those to a few
    levels of their norm, component by component, at random (QSGD's quantizer); both are unbiased.

    The recursion is written down from the article's description. Differences: sites count by their rows (the original
    takes equal sites). Mixture weights are each site's own, like everywhere here, travel uncompressed, and move by
    :math:`\gamma` in the rounds a site takes part in; the original has one common parameter. E-steps are exact, so
    neither mini-batches nor the variance-reduced variant (VR-FedEM) are needed. Round 1 is an exchange of full
    statistics, each site from its own start, which gives S and the V_k. As sites remember nothing, the center keeps V_k
    and sends S + V_k down. A compressed difference travels as an array of full shape.

    Parameters
    ----------
    approximation_step : gamma.
    keep : share of coordinates that travel; 1 for all, the default. Where a covariance is estimated, statistics with
        coordinates left out need not be those of any rows, and a fit may run away.
    levels : of the quantizer; 0 for none.
    participation : p.
    control_step : alpha; by default 1 over the compressor's variance factor.
    """

    name: ClassVar[str] = "fedem-sa"
    traits: ClassVar[Traits] = Traits("FedEM-SA", "all", whole_rows=True)
    approximation_step: float = 0.5
    keep: float = 1.0
    levels: int = 16
    participation: float = 0.75
    control_step: float | None = None

    def invited(self, seed: int, number: int, names: tuple[str, ...]) -> Array:
        """(K,) each site with probability p, at least one; everyone in round 1."""
        if number == 0 or self.participation >= 1.0:
            return np.ones(len(names), dtype=bool)
        drawn = lots(seed, "participation", number, names)
        return np.asarray((drawn < self.participation) | (drawn == drawn.min()))

    def begin(self, family: Family, start: Params, n_rows: Array, pull: Pull) -> Central:
        """Begin at the given starts, expecting nothing."""
        if not family.exponential:
            raise InputError(
                f"algorithm 'fedem-sa' does not run on {family.name} components, which have no sufficient statistics "
                "to exchange; use 'fedem' or 'fedgrem'."
            )
        n_sites, n_components, _ = start.theta.shape
        size = _n_statistics(family, start)
        control = np.zeros((n_sites, n_components, size))
        return plain_start(start, n_rows, Memory(control[0], control, np.zeros((n_sites, 0)), np.zeros((), dtype=int)))

    def broadcast(self, family: Family, central: Central) -> Broadcast:
        """The common components, own weights, and what is expected of the site."""
        memory: Memory = central.extra
        played = np.full(len(central.n_rows), int(memory.played))
        return Broadcast(central.params, Expected(memory.statistics + memory.control, played))

    def local_step(self, family: Family, stack: Stack, sent: Broadcast, seed: int) -> Upload:
        """E-step; the surprise in the sites' statistics, compressed."""
        expected: Expected = sent.extra
        sums = family.expect(stack, sent.params)
        n_rows = stack.n_rows
        surprise = sums.features / n_rows[:, None, None] - expected.statistics
        played = int(expected.played[0])
        step = 1.0
        if played > 0:
            surprise, step = self._compressed(stack, surprise, seed, played), self.approximation_step
        weights = sent.params.weights + step * (weights_of(sums) - sent.params.weights)
        rest = np.broadcast_to(sums.rest, (len(n_rows), sums.rest.shape[-1])) / n_rows[:, None]
        params = sent.params._replace(weights=weights)
        return Upload(params, np.ones_like(weights), n_rows, sums.log_likelihood, Surprise(surprise, rest))

    def _compressed(self, stack: Stack, surprise: Array, seed: int, played: int) -> Array:
        if self.keep >= 1.0 and not self.levels:
            return surprise
        uniforms = stack.uniforms(seed, "compression", (1 + surprise[0].size,), played)
        found = np.stack([sparsify(u[0], s, self.keep) for u, s in zip(uniforms, surprise, strict=True)])
        # Component by component: the norm of a large one would drown a small one in noise.
        return quantize(uniforms[:, 1:].reshape(surprise.shape), found, self.levels) if self.levels else found

    def central_step(
        self, family: Family, central: Central, uploads: Upload, present: Array
    ) -> tuple[Central, Influence]:
        """Move S by the surprises, learn the control variates, and maximize."""
        statistics_of: Any = family  # an exponential one, as checked in the beginning
        memory: Memory = central.extra
        first, n_sites = int(memory.played) == 0, len(present)
        difference = np.where(present[:, None, None], uploads.extra.difference, 0.0)
        share = present_share(central.n_rows, np.ones(n_sites, dtype=bool))
        if first:
            # Of a site that is away when all are to answer nothing is known: it is taken to be like the others.
            share_here = present_share(central.n_rows, present)
            statistics = average(difference, share_here)
            control = np.where(present[:, None, None], difference - statistics, 0.0)
            rest = np.where(present[:, None], uploads.extra.rest, average(uploads.extra.rest, share_here))
        else:
            moved = memory.control + difference / self.participation
            statistics = memory.statistics + self.approximation_step * average(moved, share)
            control = memory.control + self._control_step(difference) * difference
            rest = np.where(present[:, None], uploads.extra.rest, memory.rest)
        total = Sums(statistics, average(rest, share), np.zeros(()))
        center = statistics_of.solve_noisy(total, central.center)
        noise = family.noise_step(total, center, central.noise)
        weights = keep_absent(uploads.params, central.params, present).weights
        params = Params(weights, for_all(center, n_sites), None if noise is None else for_all(noise, n_sites))
        extra = Memory(statistics, control, rest, memory.played + 1)
        central = central._replace(params=params, center=center, noise=noise, extra=extra)
        influence = no_pull(weights, share, np.inf)
        return central, influence._replace(weight=weights * central.n_rows[:, None])

    def _control_step(self, difference: Array) -> float:
        if self.control_step is not None:
            return self.control_step
        return 1.0 / variance_factor(difference.shape[-1], self.keep, self.levels)


def _n_statistics(family: Any, start: Params) -> int:
    """Features of a family, found on two made-up rows."""
    width = start.theta.shape[-1]
    stack = Stack(("",), np.ones((1, 2, width)), np.ones((1, 2)), np.ones((1, 2)))
    return int(family.features(stack).shape[-1])
