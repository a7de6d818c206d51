"""The algorithms by name."""

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from fedgrem.algorithms.base import Algorithm
from fedgrem.algorithms.fedem import FedEM
from fedgrem.algorithms.fedem_sa import FedEMSA
from fedgrem.algorithms.fedgmm import fedgmm
from fedgrem.algorithms.fedgrem import FedGrEM
from fedgrem.algorithms.local import LocalEM, LocalGrEM
from fedgrem.algorithms.pooled import PooledEM, PooledGrEM
from fedgrem.algorithms.tgmm import TGMM
from fedgrem.families.base import Family

ALGORITHMS: dict[str, Callable[..., Algorithm]] = {
    "fedgrem": FedGrEM,
    "local-em": LocalEM,
    "local-grem": LocalGrEM,
    "pooled-em": PooledEM,
    "pooled-grem": PooledGrEM,
    "fedem": FedEM,
    "fedgmm": fedgmm,
    "tgmm": TGMM,
    "fedem-sa": FedEMSA,
}
"""name -> constructor; every row runs through the conformance tests."""


def build_algorithm(name: str, family: Family, **options: Any) -> Algorithm:
    """The algorithm of this name for a family, with those of the options that it knows."""
    constructor = ALGORITHMS[name]
    known = inspect.signature(constructor).parameters
    return constructor(family, **{key: value for key, value in options.items() if key in known})


ALONE = frozenset({"local-em", "local-grem"})
"""Algorithms in which nothing leaves a site: their sites exchange no starts either."""


def steady_penalty(penalty: float, decay: float, n_parameters: int, n_sites: int) -> float:
    r"""Where lambda settles: :math:`C\sqrt{q + \log K} / (1 - \text{decay})`."""
    return float(penalty * np.sqrt(n_parameters + np.log(n_sites)) / (1.0 - decay))
