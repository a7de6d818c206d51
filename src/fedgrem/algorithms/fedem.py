"""FedEM, of Marfoq, Neglia, Bellet, Kameni and Vidal, "Federated Multi-Task Learning under a Mixture of Distributions".

NeurIPS 2021, Algorithm 1.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from fedgrem.algorithms.base import Options, Pull, Traits, for_all, keep_absent, no_pull
from fedgrem.algorithms.local import exact_upload, plain_start
from fedgrem.data.stack import Stack
from fedgrem.families.base import Family
from fedgrem.types import Array, Broadcast, Central, Influence, Params, Upload


def present_share(counts: Array, present: Array) -> Array:
    """(K,) what each site counts for in an average: its part of the counts of those that are present."""
    counted = np.where(present, counts, 0.0)
    return np.asarray(counted / counted.sum())


def average(leaf: Array, share: Array) -> Array:
    """Mean over sites ``(K, ...)`` by their shares (K,); what a site without one sent does not matter."""
    heard = share > 0
    return np.asarray(np.einsum("k,k...->...", share[heard], leaf[heard]))


@dataclass(frozen=True)
class FedEM(Options):
    r"""Exact M-step at every site, components averaged at the center, mixture weights kept by each site.

    .. math:: w_{kr} = \frac1{n_k} \sum_i P(z_i = r \mid x_i), \qquad
              \theta_r = \sum_k \frac{n_k}{N} \tilde\theta_{kr}

    The original fits supervised models, whose M-step is a few gradient steps on the weighted loss; here the M-step of a
    component is known in closed form, which is what Tian, Weng and Feng (2024) ran. Their scripts average sites plainly
    (``averaging="plain"``); sites of equal size make no difference. The original starts from common components; here
    round 1 begins, as for every system, at each site's own aligned start, and components are common from its end on.

    A site that holds next to nothing of a component counts fully in its average: by rows, not by responsibility. Where
    covariances are estimated, they are averaged too, as matrices.
    """

    name: ClassVar[str] = "fedem"
    traits: ClassVar[Traits] = Traits("FedEM", "all")
    averaging: Literal["rows", "plain"] = "rows"

    def begin(self, family: Family, start: Params, n_rows: Array, pull: Pull) -> Central:
        """Begin at the given starts."""
        return plain_start(start, n_rows)

    def broadcast(self, family: Family, central: Central) -> Broadcast:
        """The common components, and each site's own weights."""
        return Broadcast(central.params)

    def local_step(self, family: Family, stack: Stack, sent: Broadcast, seed: int) -> Upload:
        """One EM step on every site's rows."""
        return exact_upload(family, stack, sent.params)

    def central_step(
        self, family: Family, central: Central, uploads: Upload, present: Array
    ) -> tuple[Central, Influence]:
        """Average the components; weights stay those of each site."""
        counts = central.n_rows if self.averaging == "rows" else np.ones_like(central.n_rows)
        share, n_sites = present_share(counts, present), len(present)
        center = average(uploads.params.theta, share)
        noise = uploads.params.noise
        common = (
            None if noise is None else family.average_noise(np.where(share.reshape(-1, 1, 1) > 0, noise, 0.0), share)
        )
        weights = keep_absent(uploads.params, central.params, present).weights
        params = Params(weights, for_all(center, n_sites), None if common is None else for_all(common, n_sites))
        # An exact M-step is a score over the rows held: what a site counts for does not depend on how many it holds.
        return central._replace(params=params, center=center, noise=common), no_pull(weights, share, np.inf)
