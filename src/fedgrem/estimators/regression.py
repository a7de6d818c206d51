"""Mixtures of regressions over sites: linear ones, logistic ones, and Poisson ones."""

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np
from sklearn.base import RegressorMixin
from sklearn.utils import check_random_state

from fedgrem.data.dummies import dummy_names, levels_of, with_dummies
from fedgrem.data.federation import Federation, Units
from fedgrem.data.tables import Table, gather_values, split_like
from fedgrem.data.units import UnitsPlan
from fedgrem.errors import InputError
from fedgrem.estimators.base import BaseFederatedMixture
from fedgrem.estimators.notes import column_notes
from fedgrem.estimators.parameters import check_choice, check_switch
from fedgrem.families.base import Family
from fedgrem.families.generalized import RESPONSES, GeneralizedRegression
from fedgrem.families.regression import NOISES, LinearRegression
from fedgrem.types import Array, FitResult, Params


@dataclass(kw_only=True, repr=False, eq=False)
class FederatedRegressionMixture(RegressorMixin, BaseFederatedMixture):
    """One mixture of regressions per site, shrunk to a common center.

    Covariates and response may have any units: they are standardized by what the sites' summaries have in common, there
    is an intercept, the noise is estimated and the penalty acts in its units, and all that is reported is in their own
    units. ``noise="unit"`` is the paper's setting: unit noise in the units of the response, no intercept, and nothing
    standardized.

    Columns of words or categories of a pandas or polars frame are expanded: a column of zeros and ones for every level
    but the first, named like ``cp=4``; the first is what the others are compared with.

    Parameters
    ----------
    n_components : int, range or list of int, or "auto", default=1
        R, the same at every site, or several to choose from.
    response : {"gaussian", "binary", "count"}, default="gaussian"
        What is explained: numbers, by linear regressions; 0 or 1, by logistic ones, whose coefficients are log odds; or
        counts, by Poisson ones, whose coefficients are logs of rates.
    noise : {"shared", "component", "unit"}, default="shared"
        Of gaussian responses: one noise variance for all components of a site, one for each, or the known 1. Estimated
        ones are shrunk to a common one like the coefficients.
    fit_intercept : bool or "auto", default="auto"
        "auto" does, except with ``noise="unit"``.
    intercept : {"component", "site"}, default="component"
        "component": every component has an intercept, common to the sites at the center. "site": every site has one
        besides, which is not pulled, so that differences between sites in level do not leak into the slopes: the fit
        runs on columns and response about each site's own means, as a within (fixed-effects) estimator does. Of columns
        that do not vary within any site nothing can be said then. Of gaussian responses only.
    weights_init : array of shape (K, R), optional
    coef_init : array of shape (K, R, p), optional
        Starts, with sites in the order of ``site_names_``, instead of searching for them.
    penalty, algorithm, criterion, fallback, standard_errors, max_rounds, tol, n_init, align, robust_rows, verbose,
    random_state : as in :class:`FederatedGaussianMixture`.

    Attributes
    ----------
    site_names_ : (K,)
    weights_, coef_, intercept_, noise_ : (K, R), (K, R, p), (K, R), (K, R) standard deviations, of gaussian responses
    informative_columns_ : (q,) with ``FedGrEM(center="sparse")``: places of the covariates that have coefficients,
        which are those that all of this is about
    levels_ : dict, the levels of every column of words by its name; the first is what the others are compared with
    feature_names_in_ : (p,) names of the covariates of a frame, those of levels like ``cp=4``
    center_, center_weights_ : (R, p) the common center, and the median weights that go with it, (R,)
    center_intercept_, center_noise_ : (R,); with ``intercept="site"`` the intercept of the middle site
    weights_se_, coef_se_, intercept_se_, center_se_, center_intercept_se_ : standard errors, see :meth:`intervals`
        NaN where a component has vanished or its rows do not tell; None without ``standard_errors``.
    location_, scale_ : (p + 1,) the units in which the fit ran, the response last
    at_center_, site_distance_, site_threshold_, vanished_, n_rows_, rows_held_down_, site_verdict_, site_evidence_,
    penalty_, noise_penalty_, weights_penalty_, penalty_path_, site_gain_, site_gain_se_, local_only_, n_components_,
    selection_, n_parameters_, n_rounds_, converged_, unsettled_sites_, history_, cost_ :
        as in :class:`FederatedGaussianMixture`

    Examples
    --------
    >>> from fedgrem import FederatedRegressionMixture
    >>> from fedgrem.data.simulate import simulate
    >>> simulation = simulate("mor", seed=1)
    >>> model = FederatedRegressionMixture(n_components=5, random_state=0).fit(simulation.rows, simulation.targets)
    >>> model.coef_.shape, model.intercept_.shape
    ((10, 5, 10), (10, 5))
    """

    _theta_name: ClassVar[str] = "coef"
    _has_target: ClassVar[bool] = True
    _picks_columns: ClassVar[bool] = True

    n_components: Any = field(default=1, kw_only=False)
    response: Literal["gaussian", "binary", "count"] = "gaussian"
    noise: Literal["unit", "shared", "component"] = "shared"
    fit_intercept: bool | str = "auto"
    intercept: str = "component"
    coef_init: Any = None
    robust_rows: bool | str = False
    secure_sums: bool = False

    def _family(self) -> Family:
        return LinearRegression(noise=self.noise) if self._generalized is None else self._generalized

    @property
    def _generalized(self) -> GeneralizedRegression | None:
        """The family where the response is no number."""
        return None if self.response == "gaussian" else GeneralizedRegression(self.response)

    def _check_parameters(self) -> None:
        check_choice("response", self.response, ("gaussian", *RESPONSES))
        check_choice("noise", self.noise, NOISES)
        if self._generalized is not None:
            self._check_generalized()
        check_switch("fit_intercept", self.fit_intercept)
        check_choice("intercept", self.intercept, ("component", "site"))
        if self.intercept == "site" and self.coef_init is not None:
            raise InputError("coef_init does not go with intercept='site' yet; leave it out.")
        if self.intercept == "site" and self.secure_sums:
            raise InputError("secure_sums does not go with intercept='site' yet; leave one of them out.")
        super()._check_parameters()

    def _check_sparse(self) -> None:
        if self._generalized is not None:
            raise InputError(
                f"center='sparse' goes with numbers as responses, and not with response={self.response!r} yet; use "
                "another center rule, or leave it out."
            )
        super()._check_sparse()

    def _check_generalized(self) -> None:
        """Refuse what needs a response that is a number."""
        what = f"response={self.response!r}"
        if self.noise != "shared":
            raise InputError(f"{what} has no noise of its own, got noise={self.noise!r}; leave it out.")
        if self.intercept == "site":
            raise InputError(
                f"intercept='site' takes sites about their means, which does not go with {what}; leave it out: where "
                "sites clearly differ in level, their components keep an intercept of their own."
            )
        if self.secure_sums:
            raise InputError(f"secure_sums does not go with {what} yet; leave one of them out.")
        if self.robust_rows is not False:
            raise InputError(f"robust_rows does not go with {what}; leave one of them out.")

    # -- rows: words become zeros and ones

    def _validate_federation(self, X: Any, y: Any, sites: Any, sample_weight: Any) -> tuple[Table, Federation]:
        self._words = levels_of(X, sites)
        table, federation = super()._validate_federation(with_dummies(X, self._words), y, sites, sample_weight)
        for site in federation.sites:
            assert site.target is not None
            self._family().check_target(site.name, site.target)
        return table, federation

    def _as_numbers(self, X: Any, sites: Any) -> Any:
        return with_dummies(X, self.levels_)

    def _expose(self, result: FitResult) -> None:
        self.levels_ = getattr(self, "_words", {})
        super()._expose(result)

    @property
    def source_columns(self) -> list[str]:
        """As they are before words are expanded."""
        of_dummy = {f"{name}={level}": name for name, own in self.levels_.items() for level in own[1:].tolist()}
        return list(dict.fromkeys(of_dummy.get(name, name) for name in super().source_columns))

    def _column_notes(self, result: FitResult) -> tuple[list[str], list[str]]:
        """A covariate may be constant beside an intercept; what levels are compared with is to be known."""
        grave, mild = column_notes(self._names_of(result), result, {}, dummy_names(self.levels_), completed=False)
        compared = [f"Coefficients of {name} are against its level {own[0]!s}." for name, own in self.levels_.items()]
        return [], [*compared, *grave, *mild]

    # -- units: the fit is standardized, what is reported is not

    def _has_intercept(self) -> bool:
        if self.intercept == "site":  # components differ by one where slopes do and sites differ in their columns
            return True
        return self.noise != "unit" if self.fit_intercept == "auto" else bool(self.fit_intercept)

    def _units_plan(self) -> UnitsPlan:
        # Nothing may be moved where a line goes through the origin.
        with_ones, within = self._has_intercept(), self.intercept == "site"
        number = self._generalized is None
        return UnitsPlan(self.noise != "unit", move=with_ones, intercept=with_ones, within=within, response=number)

    def _fit_units(self) -> Units | None:
        return None if self._units_plan().as_it_is else Units(self.location_, self.scale_)

    @property
    def _response_scale(self) -> float:
        """What one unit of the fit is of the response, of log odds or of log rates."""
        return float(self.scale_[-1]) if self._generalized is None else self._generalized.unit

    def _theta_in_units(self, theta: Array, units: Units) -> Array:
        response = units.scale[-1] if self._generalized is None else self._generalized.unit
        scaled = theta * units.scale[:-1] / response
        # A line through the middle of the rows, in the units of the fit.
        return np.concatenate([scaled, np.zeros((*theta.shape[:2], 1))], axis=2) if self._has_intercept() else scaled

    def _expose_theta(self, result: FitResult) -> None:
        n_features = result.theta.shape[-1] - self._has_intercept()
        self.location_ = np.zeros(n_features + 1) if result.location is None else result.location
        self.scale_ = np.ones(n_features + 1) if result.scale is None else result.scale
        self.coef_, self.intercept_ = self._out_of_units(result.theta)
        self.center_, self.center_intercept_ = self._out_of_units(result.center)
        if self.intercept == "site":
            assert result.column_mean is not None
            assert result.seen is not None
            self.n_rows_ = result.seen[:, -1]  # the fit counts one fewer, which the site's means took
            x, y = result.column_mean[:, None, :-1], result.column_mean[:, None, -1]
            self.intercept_ = self.intercept_ + y - np.sum(x * self.coef_, axis=-1)
            self.center_intercept_ = self.center_intercept_ + np.median(y - np.sum(x * self.center_, axis=-1), axis=0)
        if self._generalized is not None:
            return
        self.noise_ = np.ones(self.weights_.shape)
        self.center_noise_ = np.ones(self.weights_.shape[1])
        if result.noise is not None and result.center_noise is not None:
            self.noise_ = self.noise_ * np.exp(result.noise[..., 0]) * self.scale_[-1]
            self.center_noise_ = self.center_noise_ * np.exp(result.center_noise[..., 0]) * self.scale_[-1]

    def _log_volume(self, seen: Array, scale: Array | None) -> Array:
        return super()._log_volume(seen, scale) if scale is None else np.asarray(seen[..., -1] * np.log(scale[-1]))

    def _out_of_units(self, theta: Array) -> tuple[Array, Array]:
        """Coefficients ``(..., p)`` and intercepts ``(...)`` in the units of the rows."""
        slopes = self._response_scale / self.scale_[:-1]
        if not self._has_intercept():
            return theta * slopes, np.zeros(theta.shape[:-1])
        coef = theta[..., :-1] * slopes
        return coef, self.location_[-1] + self._response_scale * theta[..., -1] - coef @ self.location_[:-1]

    def _out_of_fit(self, n_parameters: int) -> Array:
        slopes = self._response_scale / self.scale_[:-1]
        if not self._has_intercept():
            return np.diag(slopes)
        matrix = np.eye(n_parameters)
        matrix[:-1, :-1] = np.diag(slopes)
        matrix[-1] = [*(-slopes * self.location_[:-1]), self._response_scale]
        return matrix

    def _name_errors(self, theta: Array | None, center: Array | None) -> None:
        for name, errors in (("", theta), ("center_", center)):
            line, level = errors, None
            if errors is not None:  # without an intercept, 0 is what it is
                line = errors[..., :-1] if self._has_intercept() else errors
                level = errors[..., -1] if self._has_intercept() else np.zeros(errors.shape[:-1])
                if self.intercept == "site":  # that of the site's means was not asked for
                    level = np.full(errors.shape[:-1], np.nan)
            setattr(self, f"{name or 'coef_'}se_", line)
            setattr(self, f"{name}intercept_se_", level)

    def _line(self, k: int | None) -> tuple[Array, Array, Array]:
        """Weights, coefficients and intercepts of a site or of the center, in the units of the rows."""
        if k is None:
            return self.center_weights_, self.center_, self.center_intercept_
        return self.weights_[k], self.coef_[k], self.intercept_[k]

    def _noise_of(self, k: int | None) -> Array:
        """(R,) likewise the standard deviations of a response that is a number."""
        found: Array = self.center_noise_ if k is None else self.noise_[k]
        return found

    def _params_of(self, k: int | None) -> Params:
        weights, coef, level = self._line(k)
        location, scale, response = self.location_, self.scale_, self._response_scale
        theta = coef * scale[:-1] / response
        if self._has_intercept():
            theta = np.column_stack([theta, (level + coef @ location[:-1] - location[-1]) / response])
        if self._generalized is not None or self.noise == "unit":
            return Params(weights, theta)
        logs = np.log(self._noise_of(k) / response)[:, None]
        return Params(weights, theta, logs[:1] if self.noise == "shared" else logs)

    def predict(self, X: Any, *, sites: Any = None) -> Any:
        """Expected response of every row, ``(N,)``: the components' predictions, averaged with the site's weights.

        Of a binary response that is the probability of a 1. A pandas frame gets a Series with its index.
        """
        table, expected = self._expected(X, sites)
        return split_like(expected, table, X, "expected")

    def _of_fit(self, rows: Array) -> Array:
        """The columns that the fit is about."""
        columns = self._fitted_plan().kept
        return rows if columns is None else rows[:, columns]

    def _means(self, lines: Array) -> Array:
        """Expected responses where a component's line, its log odds or its log rate is this."""
        return lines if self._generalized is None else self._generalized.mean(lines)

    def _expected(self, X: Any, sites: Any) -> tuple[Any, Array]:
        table, rows = self._rows_to_score(X, sites)
        rows = self._of_fit(rows)
        expected = np.zeros(len(rows))
        for k, place in enumerate(self._places_for(table, sites is not None)):
            mine = table.site_of_row == k
            weights, coef, level = self._line(place)
            expected[mine] = self._means(rows[mine] @ coef.T + level) @ weights
        return table, expected

    def predict_component(self, X: Any, y: Any, *, sites: Any = None) -> Any:
        """Most probable component of every row, given its response, ``(N,)``."""
        table, posterior, _ = self._score_rows(X, y, sites)
        return split_like(posterior.argmax(axis=1), table, X)

    def predict_component_proba(self, X: Any, y: Any, *, sites: Any = None) -> Any:
        """Posterior probability of every component for every row, given its response, ``(N, R)``."""
        table, posterior, _ = self._score_rows(X, y, sites)
        return split_like(posterior, table)

    def score(self, X: Any, y: Any, sample_weight: Any = None, *, sites: Any = None) -> float:
        """Share of the deviance that the expected response explains: R^2, as for any scikit-learn regressor.

        Of a binary response that of the log loss, of counts that of the Poisson deviance; see ``score_samples`` for
        the likelihood.
        """
        from sklearn.metrics import d2_log_loss_score, d2_tweedie_score, r2_score  # slow to import

        table, expected = self._expected(X, sites)
        target = gather_values("y", y, table)
        weight = gather_values("sample_weight", sample_weight, table)
        if self.response == "binary":
            return float(d2_log_loss_score(target, expected, sample_weight=weight, labels=[0, 1]))
        if self.response == "count":
            return float(d2_tweedie_score(target, expected, sample_weight=weight, power=1))
        return float(r2_score(target, expected, sample_weight=weight))

    def sample(self, X: Any, *, site: Any = None) -> tuple[Array, Array]:
        """Draw a response and a component for every row of covariates, from one site's mixture or from the center."""
        place = self._index_to_draw_from(site)
        weights, coef, level = self._line(place)
        rows = self._of_fit(np.asarray(self._as_numbers(X, None), dtype=float))
        generator = check_random_state(self.random_state)
        labels = generator.choice(len(weights), size=len(rows), p=weights / weights.sum())
        mean = self._means((rows * coef[labels]).sum(axis=1) + level[labels])
        if self.response == "binary":
            response = (generator.uniform(size=len(rows)) < mean).astype(float)
        elif self.response == "count":
            response = generator.poisson(mean).astype(float)
        else:
            response = mean + self._noise_of(place)[labels] * generator.normal(size=len(rows))
        return response, np.asarray(labels)
