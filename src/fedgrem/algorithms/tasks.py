"""What the center can ask of a site, by name: the same table for every engine."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

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


class Setup(NamedTuple):
    """What the answer to a task depends on; None for what it does not: then it is one program for all of them."""

    family: Family
    start: StartPlan | None
    algorithm: Algorithm | None


def setup_of(task: str, algorithm: Algorithm, start: StartPlan) -> Setup:
    """What matters for this task."""
    of_family = task in BY_START or task in BY_FAMILY
    return Setup(algorithm.family, start if task in BY_START else None, None if of_family else algorithm)


def local_task(task: str, setup: Setup) -> Callable[[SiteData, Any], Any]:
    """The function of one site's rows and what the center sent that answers ``task``."""
    if task in BY_START and setup.start is not None:
        return partial(BY_START[task], setup.family, setup.start)
    if task in BY_FAMILY:
        return partial(BY_FAMILY[task], setup.family)
    if task == "local_step" and setup.algorithm is not None:
        return setup.algorithm.local_step
    if task == "path_step" and isinstance(setup.algorithm, FedGrEM):
        return partial(path_step, setup.algorithm)
    raise ValueError(f"{task} is no task of {setup.algorithm}")
