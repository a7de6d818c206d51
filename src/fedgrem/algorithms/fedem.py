"""FedEM, of Marfoq, Neglia, Bellet, Kameni and Vidal, "Federated Multi-Task Learning under a Mixture of Distributions".

NeurIPS 2021, Algorithm 1.
"""

from dataclasses import dataclass
from functools import partial
from typing import Literal

import jax
import jax.numpy as jnp

from fedgrem.algorithms.local import exact_upload, unpenalized_start, without_solver
from fedgrem.families.base import Family
from fedgrem.types import Array, Broadcast, Central, Params, SiteData, Upload


@partial(jax.tree_util.register_dataclass, data_fields=[], meta_fields=["family", "averaging"])
@dataclass(frozen=True)
class FedEM:
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

    family: Family
    averaging: Literal["rows", "plain"] = "rows"

    def central_start(self, params: Params, n_rows: Array) -> Central:
        """Begin at the given starts."""
        return unpenalized_start(params, n_rows)

    def broadcast(self, central: Central) -> Broadcast:
        """The common components, and each site's own weights."""
        return Broadcast(central.params, central.first_weights)

    def local_step(self, data: SiteData, sent: Broadcast) -> Upload:
        """One EM step on this site's rows."""
        return exact_upload(self.family, data, sent.params)

    def central_step(self, central: Central, uploads: Upload) -> tuple[Central, Array, Array]:
        """Average the components; weights stay those of each site."""
        counts = uploads.n_rows if self.averaging == "rows" else jnp.ones_like(uploads.n_rows)
        theta = uploads.params.theta
        center = jnp.einsum("k,krq->rq", counts / counts.sum(), theta)
        params, spread = uploads.params._replace(theta=jnp.broadcast_to(center, theta.shape)), None
        if params.spread is not None:
            spread = self.family.average_spread(params.spread, counts / counts.sum())
            params = params._replace(spread=jnp.broadcast_to(spread, params.spread.shape))
        return without_solver(central._replace(params=params, center=center, spread=spread))
