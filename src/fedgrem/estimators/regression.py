"""Mixtures of linear regressions over sites."""

from collections.abc import Callable
from typing import Any, ClassVar, Self

import jax.numpy as jnp
import numpy as np
from sklearn.base import RegressorMixin
from sklearn.metrics import r2_score
from sklearn.utils import check_random_state

from fedgrem.algorithms.plan import Progress
from fedgrem.data.federation import Units
from fedgrem.data.tables import gather_values, split_like
from fedgrem.data.units import UnitsPlan
from fedgrem.errors import InputError
from fedgrem.estimators.base import BaseFederatedMixture
from fedgrem.estimators.network import IN_PROCESS
from fedgrem.estimators.parameters import check_choice, check_number, check_switch
from fedgrem.estimators.scoring import FittedParams
from fedgrem.families.base import Family
from fedgrem.families.regression import NOISES, LinearRegression
from fedgrem.types import FitResult, NumpyArray, Params


class FederatedRegressionMixture(RegressorMixin, BaseFederatedMixture):
    """One mixture of linear regressions per site, shrunk to a common center.

    By default the paper's setting: unit noise in the units of the response, no intercept, and nothing standardized.
    With ``noise="shared"`` covariates and response may have any units: they are standardized by what the sites'
    summaries have in common, there is an intercept, the penalty acts in units of the estimated noise, and all that is
    reported is in their own units.

    Parameters
    ----------
    n_components : int, range or list of int, or "auto", default=1
        R, the same at every site, or several to choose from.
    noise : {"unit", "shared", "component"}, default="unit"
        The known 1, one noise variance for all components of a site, or one for each. Estimated ones are shrunk to a
        common one like the coefficients.
    fit_intercept : bool or "auto", default="auto"
        "auto" does, except with ``noise="unit"``.
    standardize : bool or "auto", default="auto"
        Fit with covariates and response centered (where there is an intercept) and scaled by the medians of the sites'
        means and deviations; "auto" does, except with ``noise="unit"``.
    ridge : float, default=1e-6
        Of the starts and of the exact steps of some rivals, relative to the covariates' mean square: it only matters
        where a component holds too few rows.
    covariance_penalty : float, default=None
        C for the noise; None takes ``penalty``.
    weights_init : array of shape (K, R), optional
    coef_init : array of shape (K, R, p), optional
        Starts, with sites in the order of ``site_names_``, instead of searching for them.
    algorithm, penalty, fallback, penalty_decay, step_size, step_weights, penalty_scaling, penalty_rows : options
    center_solver, center_sweeps, local_steps, acceleration, max_rounds, tol, n_init, align, alignment : options
    criterion, tol_errors, standard_errors, dtype, random_state : options
        As in :class:`FederatedGaussianMixture`.

    Attributes
    ----------
    site_names_ : (K,)
    weights_, coef_, intercept_, noise_ : (K, R), (K, R, p), (K, R), (K, R) standard deviations
    center_, center_weights_ : (R, p) the common center, and the median weights that go with it, (R,)
    center_intercept_, center_noise_ : (R,)
    weights_se_, coef_se_, intercept_se_, center_se_, center_intercept_se_ : standard errors, see :meth:`intervals`
        NaN where a component has vanished or its rows do not tell; None without ``standard_errors``.
    location_, scale_ : (p + 1,) the units in which the fit ran, the response last, if it was standardized
    at_center_, site_distance_ : (K, R) whether a component sits exactly on the center, and how far from it
    vanished_, n_rows_, site_verdict_, site_evidence_ : as in :class:`FederatedGaussianMixture`
    penalty_, penalty_path_, site_gain_, site_gain_se_, fitted_alone_ : as in :class:`FederatedGaussianMixture`
    n_components_, selection_ : R, and where it was chosen the curve: columns by ``n_components``
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
        n_components: Any = 1,
        *,
        noise: str = "unit",
        fit_intercept: bool | str = "auto",
        standardize: bool | str = "auto",
        ridge: float = 1e-6,
        covariance_penalty: float | None = None,
        criterion: str = "bic",
        algorithm: str = "fedgrem",
        penalty: float | str = "auto",
        fallback: str | None = "auto",
        penalty_decay: float = 0.1,
        step_size: float = 0.95,
        step_weights: str = "current",
        penalty_scaling: str = "fixed",
        penalty_rows: str = "auto",
        center_solver: str = "auto",
        center_sweeps: int = 2,
        local_steps: int | str = "auto",
        acceleration: bool | str = "auto",
        max_rounds: int = 1000,
        tol: float = 1e-6,
        tol_errors: float = 0.003,
        standard_errors: bool | str = "auto",
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
        return LinearRegression(ridge=float(self.ridge), noise=self.noise)

    def _check_parameters(self) -> None:
        super()._check_parameters()
        check_choice("noise", self.noise, NOISES)
        check_number("ridge", self.ridge, least=0.0)
        if self.covariance_penalty is not None:
            check_number("covariance_penalty", self.covariance_penalty, least=0.0)
        check_switch("fit_intercept", self.fit_intercept)
        check_switch("standardize", self.standardize)
        if self.noise == "unit" and self.standardize is True:
            raise InputError(
                "standardize=True does not go with noise='unit', which fixes the noise in the response's own units; "
                "use noise='shared', or standardize=False."
            )

    def _options(self) -> dict[str, Any]:
        penalty = self.covariance_penalty
        return super()._options() | {"covariance_penalty": None if penalty is None else float(penalty)}

    # -- units: the fit is standardized, what is reported is not

    def _has_intercept(self) -> bool:
        return self.noise != "unit" if self.fit_intercept == "auto" else bool(self.fit_intercept)

    def _units_plan(self) -> UnitsPlan:
        wanted = self.noise != "unit" if self.standardize == "auto" else bool(self.standardize)
        # Nothing may be moved where a line goes through the origin.
        return UnitsPlan(wanted, move=self._has_intercept(), intercept=self._has_intercept())

    def _n_given(self, n_parameters: int) -> int:
        return n_parameters - 1 if self._has_intercept() else n_parameters

    def _theta_in_units(self, theta: NumpyArray, units: Units | None) -> NumpyArray:
        if units is None:
            return theta
        scaled = theta * units.scale[:-1] / units.scale[-1]
        # A line through the middle of the rows, in the units of the fit.
        return np.concatenate([scaled, np.zeros((*theta.shape[:2], 1))], axis=2) if self._has_intercept() else scaled

    def _expose_theta(self, result: FitResult, units: Units | None) -> None:
        n_features = result.theta.shape[-1] - self._has_intercept()
        if units is None:
            units = Units(np.zeros(n_features + 1), np.ones(n_features + 1))
        elif self.standardize is not False:
            self.location_, self.scale_ = units
        self.coef_, self.intercept_ = self._out_of_units(result.theta, units)
        self.center_, self.center_intercept_ = self._out_of_units(result.center, units)
        self.history_["log_likelihood"] = self.history_["log_likelihood"] - self._log_volume(units) * result.n_rows
        self.noise_ = np.ones(self.weights_.shape)
        self.center_noise_ = np.ones(self.weights_.shape[1])
        if result.spread is not None and result.center_spread is not None:
            self.noise_ = self.noise_ * np.exp(result.spread[..., 0]) * units.scale[-1]
            self.center_noise_ = self.center_noise_ * np.exp(result.center_spread[..., 0]) * units.scale[-1]

    def _stored_units(self) -> Units | None:
        width = self.center_.shape[1] + 1
        plain = Units(np.zeros(width), np.ones(width)) if self._has_intercept() else None
        stored = super()._stored_units()
        return plain if stored is None else stored

    def _log_volume(self, units: Units | None) -> float:
        return 0.0 if units is None else float(np.log(units.scale[-1]))

    def _center_params(self, units: Units | None) -> Params:
        width = self.center_.shape[1] + 1
        location, scale = (np.zeros(width), np.ones(width)) if units is None else units
        theta = self.center_ * scale[:-1] / scale[-1]
        if self._has_intercept():
            level = (self.center_intercept_ + self.center_ @ location[:-1] - location[-1]) / scale[-1]
            theta = np.column_stack([theta, level])
        noise = np.log(self.center_noise_ / scale[-1])[:, None]
        spread = {"unit": None, "shared": jnp.asarray(noise[:1]), "component": jnp.asarray(noise)}[self.noise]
        return Params(jnp.asarray(self.center_weights_), jnp.asarray(theta), spread)

    def _out_of_units(self, theta: NumpyArray, units: Units) -> tuple[NumpyArray, NumpyArray]:
        """Coefficients ``(..., p)`` and intercepts ``(...)`` in the units of the rows."""
        if not self._has_intercept():
            coef = theta * units.scale[-1] / units.scale[:-1]
            return coef, np.zeros(theta.shape[:-1])
        coef = theta[..., :-1] * units.scale[-1] / units.scale[:-1]
        return coef, units.location[-1] + units.scale[-1] * theta[..., -1] - coef @ units.location[:-1]

    def _out_of_fit(self, units: Units | None, n_parameters: int) -> NumpyArray:
        matrix = np.eye(n_parameters)
        if units is not None:
            slopes = units.scale[-1] / units.scale[:-1]
            matrix[: len(slopes), : len(slopes)] = np.diag(slopes)
            if self._has_intercept():
                matrix[-1] = [*(-slopes * units.location[:-1]), units.scale[-1]]
        return matrix

    def _name_errors(self, theta: NumpyArray | None, center: NumpyArray | None) -> None:
        for name, errors in (("", theta), ("center_", center)):
            line, level = errors, None
            if errors is not None:  # without an intercept, 0 is what it is
                line = errors[..., :-1] if self._has_intercept() else errors
                level = errors[..., -1] if self._has_intercept() else np.zeros(errors.shape[:-1])
            setattr(self, f"{name or 'coef_'}se_", line)
            setattr(self, f"{name}intercept_se_", level)

    def _design(self, rows: NumpyArray) -> NumpyArray:
        return np.column_stack([rows, np.ones(len(rows))]) if self._has_intercept() else rows

    def _params_of(self, k: int | None) -> FittedParams:
        if k is None:
            weights, coef, level, noise = (
                self.center_weights_, self.center_, self.center_intercept_, self.center_noise_
            )  # fmt: skip
        else:
            weights, coef, level, noise = self.weights_[k], self.coef_[k], self.intercept_[k], self.noise_[k]
        theta = np.column_stack([coef, level]) if self._has_intercept() else coef
        return FittedParams(weights, theta, None if self.noise == "unit" else np.log(noise)[:, None])

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
        """Fit one mixture of regressions per site; returns ``self``.

        Parameters
        ----------
        X : (N, p) array or data frame of covariates; or a dict or list of them, one per site.
        y : (N,) responses; or a dict or list of them, as X.
        sites : (N,) site labels, or the name of the site column of a frame; None is one site.
        sample_weight : (N,) weights >= 0; a row of weight 2 counts as two rows.
        on_progress : called with a :class:`~fedgrem.algorithms.plan.Progress` between blocks of rounds.
        engine : "in-process", or "flare-simulator": every site in a process of its own, on NVFlare.
        """
        return self._fit(X, y, sites, sample_weight, on_progress, engine)

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
        weights, theta, spread = self._params_to_draw_from(site)
        rows = self._design(np.asarray(X, dtype=float))
        generator = check_random_state(self.random_state)
        labels = generator.choice(len(weights), size=len(rows), p=weights / weights.sum())
        noise = np.ones(len(weights)) if spread is None else np.exp(spread[:, 0])
        response = (rows * theta[labels]).sum(axis=1) + noise[labels] * generator.normal(size=len(rows))
        return response, np.asarray(labels)
