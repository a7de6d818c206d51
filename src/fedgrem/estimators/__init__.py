"""The scikit-learn face of the package."""

from fedgrem.estimators.gaussian import FederatedGaussianMixture
from fedgrem.estimators.networks import FederatedNetworkMixture, align_embeddings
from fedgrem.estimators.own import FederatedMixture
from fedgrem.estimators.regression import FederatedRegressionMixture
from fedgrem.estimators.table import FederatedTableMixture

__all__ = [
    "FederatedGaussianMixture",
    "FederatedMixture",
    "FederatedNetworkMixture",
    "FederatedRegressionMixture",
    "FederatedTableMixture",
    "align_embeddings",
]
