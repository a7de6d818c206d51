"""TGMM, of Wang, Zhou, Jiang, Han, Wang, Wang and Chen, "A General Transfer Learning-based Gaussian Mixture Model".

International Journal of Fuzzy Systems 23 (2021), 776-793.
"""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from fedgrem.algorithms.base import Pull, Traits
from fedgrem.algorithms.local import Alone, exact_upload, plain_start
from fedgrem.data.stack import Stack
from fedgrem.families.base import Family
from fedgrem.types import Array, Broadcast, Central, Params, Upload


class Sources(NamedTuple):
    """What a target site is told of the others, once and for all."""

    theta: Array
    """(R, q) mean of the other sites' components before round 1."""
    number: Array
    """() how many others there are."""


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

    name: ClassVar[str] = "tgmm"
    traits: ClassVar[Traits] = Traits("TGMM", "none", center="drew every site towards the others' starts")
    transfer: float = 0.4

    def begin(self, family: Family, start: Params, n_rows: Array, pull: Pull) -> Central:
        """Keep, for every site, the mean of the others' initial components."""
        n_sites = len(start.theta)
        others = (start.theta.sum(axis=0) - start.theta) / max(n_sites - 1, 1)
        return plain_start(start, n_rows, Sources(others, np.full(n_sites, n_sites - 1.0)))

    def local_step(self, family: Family, stack: Stack, sent: Broadcast, seed: int) -> Upload:
        """One EM step on every site's rows, its components pulled towards the sources."""
        own, sources = exact_upload(family, stack, sent.params), sent.extra
        pull = (self.transfer * sources.number)[:, None, None]
        theta = (own.params.theta + pull * sources.theta) / (1.0 + pull)
        params: Params = own.params._replace(theta=theta)
        return own._replace(params=params)
