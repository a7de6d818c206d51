"""Mixtures of linear regressions over sites."""

from collections.abc import Callable
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.base import RegressorMixin
from sklearn.metrics import r2_score
from sklearn.utils import check_random_state

from fedgrem.algorithms.plan import Progress
from fedgrem.data.tables import gather_values, split_like
from fedgrem.estimators.base import BaseFederatedMixture
from fedgrem.families.base import Family
from fedgrem.families.regression import LinearRegression
from fedgrem.types import NumpyArray


class FederatedRegressionMixture(RegressorMixin, BaseFederatedMixture):
    """One mixture of linear regressions per site, with unit noise, shrunk to a common center.

    There is no intercept: add a column of ones if the model needs one. Covariates may be on any scale, the step adapts
    to their curvature; the penalty acts on the coefficients as they are.

    Parameters
    ----------
    n_components : int, default=1
        R, the same at every site.
    weights_init : array of shape (K, R), optional
    coef_init : array of shape (K, R, p), optional
        Starts, with sites in the order of ``site_names_``, instead of searching for them.
    algorithm, penalty, penalty_decay, step_size, step_weights, penalty_scaling, center_solver, center_sweeps : options
    max_rounds, tol, n_init, align, alignment, dtype, random_state : options
        As in :class:`FederatedGaussianMixture`.

    Attributes
    ----------
    site_names_ : (K,)
    weights_, coef_ : (K, R), (K, R, p)
    center_, center_weights_ : (R, p) the common center, and the median weights that go with it, (R,)
    at_center_, site_distance_ : (K, R) whether a component sits exactly on the center, and how far from it
    n_rounds_, converged_, unsettled_sites_, history_, cost_ : how the fit went

    Examples
    --------
    >>> from fedgrem import FederatedRegressionMixture
    >>> from fedgrem.data.simulate import simulate
    >>> simulation = simulate("mor", seed=1)
    >>> model = FederatedRegressionMixture(n_components=5, random_state=0).fit(simulation.rows, simulation.targets)
    >>> model.coef_.shape
    (10, 5, 10)
    """

    _theta_name: ClassVar[str] = "coef"

    def __init__(
        self,
        n_components: int = 1,
        *,
        algorithm: str = "fedgrem",
        penalty: float = 2.0,
        penalty_decay: float = 0.1,
        step_size: float = 0.95,
        step_weights: str = "current",
        penalty_scaling: str = "fixed",
        center_solver: str = "exact",
        center_sweeps: int = 2,
        max_rounds: int = 1000,
        tol: float = 1e-6,
        n_init: int = 10,
        weights_init: Any = None,
        coef_init: Any = None,
        align: bool = True,
        alignment: str = "assignment",
        dtype: str = "float64",
        random_state: Any = None,
    ) -> None:
        self._store(locals())

    def _family(self) -> Family:
        return LinearRegression()

    def fit(
        self,
        X: Any,
        y: Any = None,
        *,
        sites: Any = None,
        sample_weight: Any = None,
        on_progress: Callable[[Progress], None] | None = None,
    ) -> Self:
        """Fit one mixture of regressions per site; returns ``self``.

        Parameters
        ----------
        X : (N, p) array or data frame of covariates; or a dict or list of them, one per site.
        y : (N,) responses; or a dict or list of them, as X.
        sites : (N,) site labels, or the name of the site column of a frame; None is one site.
        sample_weight : (N,) weights >= 0; a row of weight 2 counts as two rows.
        on_progress : called with a :class:`~fedgrem.algorithms.plan.Progress` between blocks of rounds.
        """
        return self._fit(X, y, sites, sample_weight, on_progress)

    def predict(self, X: Any, *, sites: Any = None) -> Any:
        """Expected response of every row, ``(N,)``: the components' predictions, averaged with the site's weights."""
        table, _, _, expected = self._score_rows(X, None, sites)
        return split_like(expected, table)

    def predict_component(self, X: Any, y: Any, *, sites: Any = None) -> Any:
        """Most probable component of every row, given its response, ``(N,)``."""
        table, posterior, _, _ = self._score_rows(X, y, sites)
        return split_like(posterior.argmax(axis=1), table)

    def predict_component_proba(self, X: Any, y: Any, *, sites: Any = None) -> Any:
        """Posterior probability of every component for every row, given its response, ``(N, R)``."""
        table, posterior, _, _ = self._score_rows(X, y, sites)
        return split_like(posterior, table)

    def score(self, X: Any, y: Any, sample_weight: Any = None, *, sites: Any = None) -> float:
        """R^2 of the expected response, as for any scikit-learn regressor; see ``score_samples`` for the likelihood."""
        table, _, _, expected = self._score_rows(X, None, sites)
        target = gather_values("y", y, table)
        return float(r2_score(target, expected, sample_weight=gather_values("sample_weight", sample_weight, table)))

    def sample(self, X: Any, *, site: Any = None) -> tuple[NumpyArray, NumpyArray]:
        """Draw a response and a component for every row of covariates, from one site's mixture or from the center."""
        weights, coef = self._params_to_draw_from(site)
        rows = np.asarray(X, dtype=float)
        generator = check_random_state(self.random_state)
        labels = generator.choice(len(weights), size=len(rows), p=weights / weights.sum())
        return (rows * coef[labels]).sum(axis=1) + generator.normal(size=len(rows)), np.asarray(labels)
