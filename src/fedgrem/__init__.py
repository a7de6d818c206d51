"""Mixture models over data that cannot be merged.

Every site holds its own rows; a round is one local step at each site and one central step at the center.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedgrem.compiled import keep_compiled_programs
    from fedgrem.estimators import FederatedGaussianMixture, FederatedMixture, FederatedRegressionMixture
    from fedgrem.models import load_model, save_model

__version__ = "0.1.0"
__all__ = [
    "FederatedGaussianMixture",
    "FederatedMixture",
    "FederatedRegressionMixture",
    "__version__",
    "keep_compiled_programs",
    "load_model",
    "save_model",
]

_HOMES = {
    "FederatedGaussianMixture": "fedgrem.estimators",
    "FederatedMixture": "fedgrem.estimators",
    "FederatedRegressionMixture": "fedgrem.estimators",
    "keep_compiled_programs": "fedgrem.compiled",
    "load_model": "fedgrem.models",
    "save_model": "fedgrem.models",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: JAX and scikit-learn are heavy, ``fedgrem --help`` is not."""
    if name not in _HOMES:
        raise AttributeError(f"module 'fedgrem' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
