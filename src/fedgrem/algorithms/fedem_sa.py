"""FedEM by stochastic approximation, of Dieuleveut, Fort, Moulines and Robin (NeurIPS 2021).

"Federated Expectation Maximization with heterogeneity mitigation and variance reduction", Algorithm 1, with the partial
participation of its Appendix A and compressors as in its Appendix B.
"""

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedgrem.algorithms.local import unpenalized_start, without_solver
from fedgrem.errors import InputError
from fedgrem.families.base import ExponentialFamily, Family, expect
from fedgrem.kernels.compression import quantize, sparsify, variance_factor
from fedgrem.kernels.randomness import fold_in, split_key, uniforms
from fedgrem.types import Array, Broadcast, Central, Params, SiteData, Upload


class Memory(NamedTuple):
    """What the center holds besides the parameters."""

    statistics: Array
    """(R, s) S: the running mean statistics, per row, of all sites."""
    control: Array
    """(K, R, s) V_k: what is known of how far each site is from S."""
    played: Array
    """() rounds so far."""
    key: Array
    """(2,) from which the numbers of every round and site are derived."""


class Expected(NamedTuple):
    """What a site is told besides its parameters."""

    statistics: Array
    """(R, s) S + V_k: what the center already expects of this site."""
    key: Array
    """(2,) of this round and site."""
    started: Array
    """() 0 in round 1, in which everyone answers in full."""


class Surprise(NamedTuple):
    """What a site sends besides its weights."""

    difference: Array
    """(R, s) Quant(Delta_k): its statistics less what was expected, compressed; zeros if it sat this round out."""


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["approximation_step", "keep", "participation", "control_step", "seed"],
    meta_fields=["family", "levels"],
)
@dataclass(frozen=True)
class FedEMSA:
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
    and sends S + V_k down. A compressed difference travels as an array of full shape, of zeros and few distinct values:
    small to encode, which no engine does yet; a site that sits out sends zeros.

    Parameters
    ----------
    family : an :class:`~fedgrem.families.base.ExponentialFamily`.
    approximation_step : gamma.
    keep : share of coordinates that travel; 1 for all, the default. Where a covariance is estimated, statistics with
        coordinates left out need not be those of any rows, and a fit may run away.
    levels : of the quantizer; 0 for none.
    participation : p.
    control_step : alpha; by default 1 over the compressor's variance factor.
    seed : of the compression and participation.
    """

    family: Family
    approximation_step: float | Array = 0.5
    keep: float | Array = 1.0
    levels: int = 16
    participation: float | Array = 0.75
    control_step: float | Array | None = None
    seed: int | Array = 0

    def __post_init__(self) -> None:
        if not isinstance(self.family, ExponentialFamily):
            raise InputError(
                f"algorithm 'fedem-sa' does not run on {type(self.family).__name__} components, which have no "
                "sufficient statistics to exchange; use 'fedem' or 'fedgrem'."
            )

    def central_start(self, params: Params, n_rows: Array) -> Central:
        """Begin at the given starts, expecting nothing."""
        n_sites, n_components, n_parameters = params.theta.shape
        size = self._exponential().n_statistics(n_parameters)
        control = jnp.zeros((n_sites, n_components, size), dtype=params.theta.dtype)
        memory = Memory(control[0], control, jnp.asarray(0), jax.random.PRNGKey(self.seed))
        return unpenalized_start(params, n_rows, memory)

    def broadcast(self, central: Central) -> Broadcast:
        """The common components, own weights, and what is expected of the site."""
        memory: Memory = central.extra
        n_sites = central.n_rows.shape[0]
        keys = split_key(fold_in(memory.key, memory.played), n_sites)
        started = jnp.full(n_sites, memory.played > 0).astype(memory.control.dtype)
        return Broadcast(
            central.params, central.first_weights, Expected(memory.statistics + memory.control, keys, started)
        )

    def local_step(self, data: SiteData, sent: Broadcast) -> Upload:
        """E-step; the surprise in this site's statistics, compressed."""
        expected: Expected = sent.extra
        mass, log_likelihood = expect(self.family, data, sent.params)
        n_rows = data.row_weight.sum()
        surprise = self._exponential().sufficient_statistics(data, mass) / n_rows - expected.statistics
        for_presence, for_places, for_rounding = split_key(expected.key, 3)
        present = uniforms(for_presence, (1,), jnp.float32)[0] < self.participation
        first = expected.started == 0
        compressed = sparsify(for_places, surprise, self.keep)
        if self.levels:
            # Component by component: the norm of a large one would drown a small one in noise.
            keys = split_key(for_rounding, len(compressed))
            compressed = jax.vmap(lambda key, row: quantize(key, row, self.levels))(keys, compressed)
        difference = jnp.where(first, surprise, jnp.where(present, compressed, 0.0))
        step = jnp.where(first, 1.0, jnp.where(present, self.approximation_step, 0.0))
        weights = sent.params.weights + step * (mass.sum(axis=1) / n_rows - sent.params.weights)
        params = sent.params._replace(weights=weights)
        return Upload(params, jnp.ones_like(weights), n_rows, log_likelihood, Surprise(difference))

    def central_step(self, central: Central, uploads: Upload) -> tuple[Central, Array, Array]:
        """Move S by the surprises, learn the control variates, and maximize."""
        memory: Memory = central.extra
        difference = uploads.extra.difference
        share = uploads.n_rows / uploads.n_rows.sum()
        first = memory.played == 0
        scale = jnp.where(first, 1.0, 1.0 / self.participation)
        step = jnp.where(first, 1.0, self.approximation_step)
        direction = jnp.einsum("k,krs->rs", share, memory.control + scale * difference)
        statistics = memory.statistics + step * direction
        learned = memory.control + self._control_step(difference.shape[-1]) * difference
        control = jnp.where(first, difference - statistics, learned)
        center = self._exponential().from_statistics(statistics, central.center)
        spread = self._exponential().spread_from_statistics(statistics, center, central.spread)
        theta = jnp.broadcast_to(center, central.params.theta.shape)
        sites = None if spread is None else jnp.broadcast_to(spread, (len(theta), *spread.shape))
        params = Params(uploads.params.weights, theta, sites)
        after = memory._replace(statistics=statistics, control=control, played=memory.played + 1)
        return without_solver(central._replace(params=params, center=center, extra=after, spread=spread))

    def _control_step(self, size: int) -> Array | float:
        if self.control_step is not None:
            return self.control_step
        return 1.0 / variance_factor(size, self.keep, self.levels)

    def _exponential(self) -> ExponentialFamily:
        assert isinstance(self.family, ExponentialFamily)
        return self.family
