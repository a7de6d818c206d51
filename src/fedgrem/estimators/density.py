"""Mixtures of densities: the methods that all mixtures without a response share."""

from typing import Any

import numpy as np
from sklearn.base import DensityMixin
from sklearn.utils import check_random_state

from fedgrem.data.tables import split_like
from fedgrem.estimators.base import BaseFederatedMixture
from fedgrem.estimators.parameters import check_count
from fedgrem.types import Array


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

    def sample(self, n_samples: int = 1, *, site: Any = None) -> tuple[Array, Array]:
        """Draw rows ``(n, p)`` and their components ``(n,)`` from one site's mixture, or from the center.

        Parameters
        ----------
        n_samples : how many rows.
        site : a fitted site; None draws from the common center (or from the only site).
        """
        k = self._index_to_draw_from(site)
        check_count("n_samples", n_samples, least=1)
        weights, generator = self.center_weights_ if k is None else self.weights_[k], self._generator()
        labels = np.asarray(generator.choice(len(weights), size=n_samples, p=weights / weights.sum()))
        return self._draw(k, labels, generator), labels

    def _generator(self) -> Any:
        return check_random_state(self.random_state)

    def _draw(self, k: int | None, labels: Array, generator: Any) -> Array:
        """Rows of these components of a site, or of the center."""
        raise NotImplementedError  # every mixture without a response says how

    def fit_predict(self, X: Any, y: Any = None, *, sites: Any = None, sample_weight: Any = None) -> Any:
        """Fit, then the most probable component of every row."""
        return self.fit(X, sites=sites, sample_weight=sample_weight).predict(X, sites=sites)

    def score(self, X: Any, y: Any = None, *, sites: Any = None) -> float:
        """Mean log-likelihood per row, each under its own site's mixture."""
        _, _, log_likelihood = self._score_rows(X, None, sites)
        return float(log_likelihood.mean())
