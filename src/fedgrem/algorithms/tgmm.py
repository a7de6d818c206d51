"""TGMM, of Wang, Zhou, Jiang, Han, Wang, Wang and Chen, "A General Transfer Learning-based Gaussian Mixture Model".

International Journal of Fuzzy Systems 23 (2021), 776-793.
"""

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedgrem.algorithms.local import Alone, exact_upload, unpenalized_start
from fedgrem.families.base import Family
from fedgrem.types import Array, Broadcast, Central, Params, SiteData, Upload


class Sources(NamedTuple):
    """What a target site is told of the others, once and for all."""

    theta: Array
    """(R, q) mean of the other sites' components before round 1."""
    number: Array
    """() how many others there are."""


@partial(jax.tree_util.register_dataclass, data_fields=["transfer"], meta_fields=["family"])
@dataclass(frozen=True)
class TGMM(Alone):
    r"""Each site in turn is the target, all others are its sources; their initial components pull on its M-step.

    .. math:: \theta_{kr} = \frac{\sum_i m_{ri}\,\bigl(x_i + \lambda \sum_{l \ne k} \theta^{[0]}_{lr}\bigr)}
                                 {\sum_i m_{ri}\,\bigl(1 + \lambda (K - 1)\bigr)}
                          = \frac{\tilde\theta_{kr} + \lambda \sum_{l \ne k} \theta^{[0]}_{lr}}{1 + \lambda (K - 1)}

    that is, every source's component counts as a pseudo-observation of weight :math:`\lambda` beside each row. The
    sources never change, so a source that is wrong or far away pulls for ever: with K = 10 and :math:`\lambda = 0.4`, a
    site's own rows have a say of 1 / 4.6.

    This reading is the M-step of the public scripts of Tian, Weng and Feng (2024), who ran TGMM on every site with all
    others as sources and :math:`\lambda = 0.4`; of the article itself only the abstract was at hand. By that, the
    original transfers from one source domain, chosen by maximum mean discrepancy, and estimates covariances; there is
    neither here. The scripts transfer nothing in regressions; here :math:`\tilde\theta` is then the weighted
    least-squares solution, which is the same pseudo-observation argument with responses :math:`x_i'\theta^{[0]}_{lr}`.
    Sources count alike, whatever their size.
    """

    family: Family
    transfer: float | Array = 0.4

    def central_start(self, params: Params, n_rows: Array) -> Central:
        """Keep, for every site, the mean of the others' initial components."""
        n_sites = params.theta.shape[0]
        others = (params.theta.sum(axis=0) - params.theta) / max(n_sites - 1, 1)
        count = jnp.full(n_sites, n_sites - 1, dtype=params.theta.dtype)
        return unpenalized_start(params, n_rows, Sources(others, count))

    def broadcast(self, central: Central) -> Broadcast:
        """Each site gets its own parameters back, and its sources."""
        return Broadcast(central.params, central.first_weights, central.extra)

    def local_step(self, data: SiteData, sent: Broadcast) -> Upload:
        """One EM step on this site's rows, its components pulled towards the sources."""
        own, sources = exact_upload(self.family, data, sent.params), sent.extra
        pull = self.transfer * sources.number
        theta = (own.params.theta + pull * sources.theta) / (1.0 + pull)
        return own._replace(params=own.params._replace(theta=theta))
