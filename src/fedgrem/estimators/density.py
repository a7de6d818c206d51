"""Mixtures of densities: the methods that all mixtures without a response share."""

from collections.abc import Callable
from typing import Any, Self

import numpy as np
from sklearn.base import DensityMixin

from fedgrem.data.tables import split_like
from fedgrem.estimators.base import BaseFederatedMixture
from fedgrem.estimators.network import IN_PROCESS
from fedgrem.fit.conversation import Progress


class FederatedDensity(DensityMixin, BaseFederatedMixture):
    """A federated mixture over rows without a response."""

    def fit(
        self,
        X: Any,
        y: Any = None,
        *,
        sites: Any = None,
        sample_weight: Any = None,
        on_progress: Callable[[Progress], None] | None = None,
        engine: str = IN_PROCESS,
    ) -> Self:
        """Fit one mixture per site, shrunk to a common center; returns ``self``.

        Parameters
        ----------
        X : (N, p) array or data frame; or a dict or list of them, one per site.
        y : ignored.
        sites : (N,) site labels, or the name of the site column of a frame; None is one site.
        sample_weight : (N,) weights >= 0; a row of weight 2 counts as two rows.
        on_progress : called with a :class:`~fedgrem.fit.conversation.Progress` before every exchange.
        engine : "in-process", or "flare-simulator": every site in a process of its own, on NVFlare.
        """
        return self._fit(X, None, sites, sample_weight, on_progress, engine)

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

    def bic(self, X: Any, *, sites: Any = None) -> float:
        """Bayesian information criterion on these rows, the lower the better."""
        _, _, log_likelihood = self._score_rows(X, None, sites)
        return float(-2.0 * log_likelihood.sum() + self.n_parameters_ * np.log(len(log_likelihood)))

    def aic(self, X: Any, *, sites: Any = None) -> float:
        """Akaike information criterion on these rows, the lower the better."""
        _, _, log_likelihood = self._score_rows(X, None, sites)
        return float(-2.0 * log_likelihood.sum() + 2.0 * self.n_parameters_)
