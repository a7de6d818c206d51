"""The algorithms by name."""

from typing import Any, cast

from fedgrem.algorithms.base import Algorithm
from fedgrem.algorithms.fedem import FedEM
from fedgrem.algorithms.fedem_sa import FedEMSA
from fedgrem.algorithms.fedgmm import FedGMM
from fedgrem.algorithms.fedgrem import FedGrEM
from fedgrem.algorithms.local import LocalEM, LocalGrEM
from fedgrem.algorithms.pooled import PooledEM, PooledGrEM
from fedgrem.algorithms.tgmm import TGMM
from fedgrem.errors import InputError, InputTypeError

ALGORITHMS: dict[str, Any] = {
    one.name: one for one in (FedGrEM, LocalEM, LocalGrEM, PooledEM, PooledGrEM, FedEM, FedGMM, TGMM, FedEMSA)
}
"""name -> class; every row runs through the conformance tests."""


def as_algorithm(given: Any) -> Algorithm:
    """An algorithm from its name, or the object as it is."""
    if isinstance(given, str):
        if given not in ALGORITHMS:
            raise InputError(f"algorithm must be one of {', '.join(map(repr, ALGORITHMS))}; got {given!r}.")
        given = ALGORITHMS[given]()
    if not isinstance(given, tuple(ALGORITHMS.values())):
        raise InputTypeError(
            f"algorithm must be a name or an object such as FedGrEM(step_size=0.5), got {given!r} of type "
            f"{type(given).__name__}."
        )
    return cast(Algorithm, given)
