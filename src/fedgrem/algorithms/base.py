"""The protocols: what an algorithm is, and what an engine owes it."""

from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp

from fedgrem.families.base import Family
from fedgrem.kernels.median import median
from fedgrem.types import Array, Broadcast, Central, Params, SiteData, Upload

WEIGHT_CAP = 10.0
"""A site counts at the center for at most this many times the median site, whatever number of rows it reports."""


@runtime_checkable
class Algorithm(Protocol):
    """A local step and a central step: pure functions of arrays, each written once for every engine."""

    @property
    def family(self) -> Family:
        """What a component is."""
        ...

    def central_start(self, params: Params, n_rows: Array) -> Central:
        """What the center holds before round 1, from aligned starts ``(K, R), (K, R, q)``."""
        ...

    def broadcast(self, central: Central) -> Broadcast:
        """What each site is sent, stacked ``(K, ...)``."""
        ...

    def local_step(self, data: SiteData, sent: Broadcast) -> Upload:
        """One site's work in a round. Sees one site."""
        ...

    def central_step(self, central: Central, uploads: Upload) -> tuple[Central, Array, Array]:
        """The center's work in a round; returns the new state, solver iterations and solver gap."""
        ...


class Engine(Protocol):
    """Who runs the local steps, and where."""

    @property
    def site_names(self) -> tuple[str, ...]:
        """In the order of every stacked array."""
        ...

    def ask(self, task: str, sent: Any) -> Any:
        """Send ``sent[k]`` to site k, for all sites, and return their stacked replies in site order."""
        ...

    def play(self, state: Any, tol: Any, limit: int) -> tuple[Any, Any]:
        """Play up to ``limit`` rounds from ``state``; returns the new state and the stacked records of those rounds."""
        ...


@jax.jit
def capped_rows(n_rows: Array) -> Array:
    """Site weights at the center: rows, but at most ``WEIGHT_CAP`` times the median site's."""
    return jnp.minimum(n_rows, WEIGHT_CAP * median(n_rows))


@jax.jit
def vanished(weights: Array, n_rows: Array) -> Array:
    """Components ``(K, R)`` of which a site holds less than one row."""
    return weights * n_rows[:, None] < 1.0
