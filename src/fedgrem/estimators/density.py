"""Mixtures of densities: the methods that all mixtures without a response share."""

from typing import Any

from sklearn.base import DensityMixin

from fedgrem.data.tables import split_like
from fedgrem.estimators.base import BaseFederatedMixture


class FederatedDensity(DensityMixin, BaseFederatedMixture):
    """A federated mixture over rows without a response."""

    def predict(self, X: Any, *, sites: Any = None) -> Any:
        """Most probable component of every row, ``(N,)``; of a pandas frame a Series with its index."""
        table, posterior, _ = self._score_rows(X, None, sites)
        return split_like(posterior.argmax(axis=1), table, X)

    def predict_proba(self, X: Any, *, sites: Any = None) -> Any:
        """Posterior probability of every component for every row, ``(N, R)``.

        Parameters
        ----------
        X : rows, in any form that ``fit`` takes.
        sites : one label per row, a column name, or one label for all rows. Rows of a site that was not fitted are
            judged by the common center, with a warning.
        """
        table, posterior, _ = self._score_rows(X, None, sites)
        return split_like(posterior, table)

    def fit_predict(self, X: Any, y: Any = None, *, sites: Any = None, sample_weight: Any = None) -> Any:
        """Fit, then the most probable component of every row."""
        return self.fit(X, sites=sites, sample_weight=sample_weight).predict(X, sites=sites)

    def score(self, X: Any, y: Any = None, *, sites: Any = None) -> float:
        """Mean log-likelihood per row, each under its own site's mixture."""
        _, _, log_likelihood = self._score_rows(X, None, sites)
        return float(log_likelihood.mean())
