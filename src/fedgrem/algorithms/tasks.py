"""What the center can ask of a site, by name: the same table for every engine."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from fedgrem.algorithms.base import Algorithm
from fedgrem.algorithms.fedgrem import FedGrEM
from fedgrem.algorithms.information import local_information
from fedgrem.algorithms.look import local_look
from fedgrem.algorithms.path import path_score, path_step
from fedgrem.algorithms.selection import local_score
from fedgrem.algorithms.start import StartPlan, local_compare, local_start, local_track
from fedgrem.families.base import Family
from fedgrem.types import SiteData, StartReply, StartRequest


def local_size(family: Family, data: SiteData, request: StartRequest) -> StartReply:
    """The site's size and, where the noise is estimated, a first guess of it, for a fit from given values."""
    given = request.candidates
    if given.spread is None:
        given = given._replace(spread=family.first_spread(data, given.theta))
    return StartReply(given, data.row_weight.sum(), jnp.asarray(0.0), jnp.asarray(0))


BY_START: dict[str, Callable[[Family, StartPlan, SiteData, Any], Any]] = {
    "local_start": local_start,
    "local_compare": local_compare,
    "local_track": local_track,
}
"""Tasks that depend on the family and on how starts are found."""
BY_FAMILY: dict[str, Callable[[Family, SiteData, Any], Any]] = {
    "local_size": local_size,
    "local_score": local_score,
    "local_look": local_look,
    "local_information": local_information,
    "path_score": path_score,
}
"""Tasks that depend on the family alone."""


@partial(jax.tree_util.register_dataclass, data_fields=["algorithm"], meta_fields=["name", "family", "start"])
@dataclass(frozen=True)
class Task:
    """A function of one site's rows and what the center sent, and an argument of compiled programs.

    It holds what its answer depends on and None for what it does not: then one program serves all of them.
    """

    name: str
    family: Family
    start: StartPlan | None
    algorithm: Algorithm | None

    def __call__(self, data: SiteData, sent: Any) -> Any:
        """The site's answer."""
        if self.start is not None:
            return BY_START[self.name](self.family, self.start, data, sent)
        if self.algorithm is None:
            return BY_FAMILY[self.name](self.family, data, sent)
        if self.name == "path_step" and isinstance(self.algorithm, FedGrEM):
            return path_step(self.algorithm, data, sent)
        if self.name == "local_step":
            return self.algorithm.local_step(data, sent)
        raise ValueError(f"{self.name} is no task of {self.algorithm}")


def local_task(name: str, algorithm: Algorithm, start: StartPlan) -> Task:
    """The task of this name."""
    of_family = name in BY_START or name in BY_FAMILY
    return Task(name, algorithm.family, start if name in BY_START else None, None if of_family else algorithm)
