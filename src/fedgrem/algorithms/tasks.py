"""What the center can ask of a site, by name: the same table for every engine."""

from collections.abc import Callable
from functools import partial
from typing import Any

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


def local_task(name: str, algorithm: Algorithm, start: StartPlan) -> Callable[[SiteData, Any], Any]:
    """The function of one site's rows and what the center sent that answers ``name``."""
    tasks: dict[str, Callable[[SiteData, Any], Any]] = {
        "local_size": partial(local_size, algorithm.family),
        "local_start": partial(local_start, algorithm.family, start),
        "local_compare": partial(local_compare, algorithm.family, start),
        "local_track": partial(local_track, algorithm.family, start),
        "local_step": algorithm.local_step,
        "local_score": partial(local_score, algorithm.family),
        "local_look": partial(local_look, algorithm.family),
        "local_information": partial(local_information, algorithm.family),
    }
    if isinstance(algorithm, FedGrEM):
        tasks["path_step"] = partial(path_step, algorithm)
        tasks["path_score"] = partial(path_score, algorithm.family)
    return tasks[name]
