"""Mixture models over data that cannot be merged.

Every site holds its own rows; a round is one local step at each site and one central step at the center.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedgrem.algorithms.fedem import FedEM
    from fedgrem.algorithms.fedem_sa import FedEMSA
    from fedgrem.algorithms.fedgmm import FedGMM
    from fedgrem.algorithms.fedgrem import FedGrEM
    from fedgrem.algorithms.tgmm import TGMM
    from fedgrem.data.networks import embed_network
    from fedgrem.engines.decentralized import Decentralized
    from fedgrem.estimators import (
        FederatedGaussianMixture,
        FederatedMixture,
        FederatedNetworkMixture,
        FederatedRegressionMixture,
        FederatedTableMixture,
        align_embeddings,
    )
    from fedgrem.estimators.privacy import Privacy
    from fedgrem.models import load_model, save_model

__version__ = "0.2.0.dev0"
__all__ = [
    "TGMM",
    "Decentralized",
    "FedEM",
    "FedEMSA",
    "FedGMM",
    "FedGrEM",
    "FederatedGaussianMixture",
    "FederatedMixture",
    "FederatedNetworkMixture",
    "FederatedRegressionMixture",
    "FederatedTableMixture",
    "Privacy",
    "__version__",
    "align_embeddings",
    "embed_network",
    "load_model",
    "save_model",
]

_HOMES = {
    "Decentralized": "fedgrem.engines.decentralized",
    "TGMM": "fedgrem.algorithms.tgmm",
    "FedEM": "fedgrem.algorithms.fedem",
    "FedEMSA": "fedgrem.algorithms.fedem_sa",
    "FedGMM": "fedgrem.algorithms.fedgmm",
    "FedGrEM": "fedgrem.algorithms.fedgrem",
    "FederatedGaussianMixture": "fedgrem.estimators",
    "FederatedMixture": "fedgrem.estimators",
    "FederatedNetworkMixture": "fedgrem.estimators",
    "FederatedRegressionMixture": "fedgrem.estimators",
    "FederatedTableMixture": "fedgrem.estimators",
    "Privacy": "fedgrem.estimators.privacy",
    "align_embeddings": "fedgrem.estimators",
    "embed_network": "fedgrem.data.networks",
    "load_model": "fedgrem.models",
    "save_model": "fedgrem.models",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: scikit-learn is heavy, ``fedgrem --help`` is not."""
    if name not in _HOMES:
        raise AttributeError(f"module 'fedgrem' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
