"""Gaussian mixtures over sites."""

from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from sklearn.utils import check_random_state

from fedgrem.data.federation import Units
from fedgrem.data.units import UnitsPlan
from fedgrem.errors import InputError
from fedgrem.estimators.density import FederatedDensity
from fedgrem.estimators.parameters import check_choice, check_count, check_number, check_switch
from fedgrem.estimators.scoring import FittedParams
from fedgrem.families.base import Family
from fedgrem.families.gaussian import COVARIANCES, Gaussian
from fedgrem.kernels.spread import from_covariance, to_covariance
from fedgrem.types import FitResult, NumpyArray, Params


class FederatedGaussianMixture(FederatedDensity):
    """One Gaussian mixture per site, shrunk to a common center.

    Columns may have any units: they are standardized by what the sites' summaries have in common, distances count in
    units of the estimated noise, and all that is reported is in the columns' own units. ``covariance="identity"`` is
    the paper's setting: unit covariances in the units of the rows, and nothing standardized.

    Parameters
    ----------
    n_components : int, range or list of int, or "auto", default=1
        R, the same at every site. Of several, the one with the least ``criterion`` is taken; "auto" goes up from 1
        until three more have not been better, and at most to 20 or the rows of the smallest site.
    covariance : {"tied", "full", "diag", "spherical", "identity"}, default="tied"
        One matrix for all components of a site; one for each; variances only, per column or one for all; or none.
        Covariances are shrunk to a common one like the means, each site's as a whole.
    covariance_penalty : float, default=None
        C for the covariances; None takes ``penalty``, and chooses it with ``penalty="auto"``.
    standardize : bool or "auto", default="auto"
        Fit in columns centered and scaled by the medians of the sites' means and deviations; "auto" does, except with
        ``covariance="identity"``.
    reg_covar : float, default=1e-6
        Added to every variance, in the units of the fit, so that no covariance is singular.
    missing : {"refuse", "em"}, default="refuse"
        What to do about cells that are NaN: refuse them with a message, or take them as missing at random and put what
        is expected of them given the rest of the row in their place, E-step by E-step. Not with "fedgmm" and
        "fedem-sa".
    criterion : {"bic", "icl"}, default="bic"
        How a number of components is chosen: by the Bayesian information criterion, or by the integrated completed
        likelihood, which also asks that rows surely belong to one component, and so merges overlapping ones.
    algorithm : str, default="fedgrem"
        How the sites work together.
    penalty : float or "auto", default="auto"
        C: how strongly sites are pulled together. 0 fits each site alone; infinity gives one common answer. "auto"
        compares ten penalties between the two on held-out rows, in nine exchanges more, and takes the largest finite
        one within a standard error of the best; ``covariance_penalty`` likewise, in five. 2.0 is the paper's.
    fallback : {"auto", "local", None}, default="auto"
        With "local", a site that clearly loses by being pulled, in that comparison, keeps its own fit and has no part
        in the center. "auto" does with ``penalty="auto"``; None never.
    penalty_decay : float, default=0.1
        Of the recursion ``lambda_t = penalty_decay * lambda_{t-1} + penalty * sqrt(p + log K)``.
    step_size : float, default=0.95
        C_eta: the gradient step of a component is ``step_size / weight``; below 2.
    step_weights : {"current", "initial"}, default="current"
        Whose weight: that of the present E-step, floored at a fifth of 1/R, which settles; or the paper's initial one,
        which may not.
    penalty_scaling : {"fixed", "step"}, default="fixed"
        With "step" the threshold is multiplied by ``step_size``, and the answer no longer depends on ``step_size``.
    penalty_rows : {"auto", "component", "site"}, default="auto"
        Which rows an estimate counts for at the center: those its component holds, so that rare components are pulled
        more and count less; or, as in the paper, all rows of the site. "auto" is "component" with ``penalty="auto"``.
    center_solver : {"auto", "redescending", "exact", "alternating"}, default="auto"
        "exact" solves the paper's central problem to tolerance, "alternating" takes ``center_sweeps`` of its sweeps;
        "redescending" solves it without the sites that are far off, which would still shift it a little. "auto" is
        "redescending" with ``penalty="auto"`` and "exact" otherwise.
    center_sweeps : int, default=2
    local_steps : int or "auto", default="auto"
        Gradient steps of a site per round, each pulled towards the center that it was sent. More of them need fewer
        rounds, that is fewer messages, and lead to the same answer. "auto" is 10 where the fit is to settle, and with
        ``tol=0``, which plays a given number of rounds, the paper's 1.
    acceleration : bool or "auto", default="auto"
        Whether the center extrapolates its own path, with a guard; again, fewer rounds to the same answer. "auto" does,
        except with ``tol=0``.
    max_rounds : int, default=1000
    tol : float, default=1e-6
        Relative movement of a site's parameters below which it counts as settled; 0 plays exactly ``max_rounds``.
    tol_errors : float, default=0.003
        It also counts as settled when they move by less than this many of their standard errors in a round, as far as
        these are known from the rows that a component holds: its rows leave far more open than that. 0 for never.
    standard_errors : bool or "auto", default="auto"
        Whether to end the fit with one exchange about the precision of its parameters; "auto" does, except where a site
        has more than 400 weights and component parameters.
    n_init : int, default=10
        Restarts at each site before round 1.
    weights_init : array of shape (K, R), optional
    means_init : array of shape (K, R, p), optional
        Starts, with sites in the order of ``site_names_``, instead of searching for them.
    align : bool, default=True
        Relabel given starts so that component r means the same thing at every site.
    alignment : {"assignment", "stepwise", "exhaustive"}, default="assignment"
    dtype : {"float64", "float32"}, default="float64"
    random_state : int, RandomState or None, default=None

    Attributes
    ----------
    site_names_ : (K,)
    weights_, means_ : (K, R), (K, R, p)
    covariances_ : (K, C, p, p) in the columns' own units, C = 1 for "tied" and R otherwise; not with "identity"
    center_, center_weights_ : (R, p) the common center, and the median weights that go with it, (R,)
    center_covariances_ : (C, p, p) the common ones
    location_, scale_ : (p,) the units in which the fit ran, if it was standardized
    weights_se_, means_se_, center_se_ : (K, R), (K, R, p), (R, p) standard errors, see :meth:`intervals`
        NaN where a component has vanished or its rows do not tell; None without ``standard_errors``.
    at_center_, site_distance_ : (K, R) whether a component sits exactly on the center, and how far from it
    vanished_ : (K, R) components of which a site holds less than one row; where a covariance is estimated, they begin
        again at the center
    n_rows_ : (K,) rows of each site, by their weights
    penalty_ : C, as it was given or chosen
    penalty_path_ : dict, how it was chosen: ``penalties`` (M,), ``gain`` and ``error`` (M,) per held-out row over
        fitting alone, trimmed over the sites, and ``site_gain``, ``site_error`` (K, M); ``noise_penalties``,
        ``noise_gain`` and ``noise_error`` (M,) of the covariances
    covariance_penalty_ : C for the covariances, if penalties were compared
    site_gain_, site_gain_se_ : (K,) each site's gain at ``penalty_``, by fits to a part of its rows
    fitted_alone_ : (K,) which sites got their own fit back
    n_components_, selection_ : R, and where it was chosen the curve: columns by ``n_components``
    site_verdict_ : (K,) "at the center", "similar", "own answer", "suspect", or "not judged" where there is no center
    site_evidence_ : dict of arrays, what the verdicts rest on; see docs/verdicts.md
    n_rounds_, converged_, unsettled_sites_, history_, cost_ : how the fit went

    Examples
    --------
    >>> from fedgrem import FederatedGaussianMixture
    >>> from fedgrem.data.simulate import simulate
    >>> simulation = simulate("gmm", h=0.5, seed=1)
    >>> model = FederatedGaussianMixture(n_components=5, random_state=0).fit(simulation.rows)
    >>> model.means_.shape, bool(model.converged_)
    ((10, 5, 10), True)
    """

    _theta_name: ClassVar[str] = "means"

    def __init__(
        self,
        n_components: Any = 1,
        *,
        covariance: str = "tied",
        covariance_penalty: float | None = None,
        standardize: bool | str = "auto",
        reg_covar: float = 1e-6,
        missing: str = "refuse",
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
        means_init: Any = None,
        align: bool = True,
        alignment: str = "assignment",
        dtype: str = "float64",
        random_state: Any = None,
    ) -> None:
        self._store(locals())

    def _family(self) -> Family:
        return Gaussian(self.covariance, float(self.reg_covar))

    def _check_parameters(self) -> None:
        super()._check_parameters()
        check_choice("covariance", self.covariance, COVARIANCES)
        check_number("reg_covar", self.reg_covar, least=0.0)
        if self.covariance_penalty is not None:
            check_number("covariance_penalty", self.covariance_penalty, least=0.0)
        check_switch("standardize", self.standardize)
        check_choice("missing", self.missing, ("refuse", "em"))
        if self.missing == "em" and self.algorithm in ("fedgmm", "fedem-sa"):
            raise InputError(
                f"missing='em' does not go with algorithm={self.algorithm!r}, whose sites send sums over complete "
                "rows; use 'fedgrem', 'fedem', 'tgmm' or a local or pooled one."
            )
        if self.covariance == "identity" and self.standardize is True:
            raise InputError(
                "standardize=True does not go with covariance='identity', which fixes the covariance in the columns' "
                "own units; use covariance='spherical', or standardize=False."
            )

    def _options(self) -> dict[str, Any]:
        penalty = self.covariance_penalty
        return super()._options() | {"covariance_penalty": None if penalty is None else float(penalty)}

    def _missing_allowed(self) -> bool:
        return bool(self.missing == "em")

    # -- units: the fit is standardized, what is reported is not

    def _units_plan(self) -> UnitsPlan:
        return UnitsPlan(self.covariance != "identity" if self.standardize == "auto" else bool(self.standardize))

    def _theta_in_units(self, theta: NumpyArray, units: Units | None) -> NumpyArray:
        return theta if units is None else (theta - units.location) / units.scale

    def _expose_theta(self, result: FitResult, units: Units | None) -> None:
        if units is None:
            ones = np.ones(result.theta.shape[-1], dtype=result.theta.dtype)
            units = Units(0.0 * ones, ones)
        else:
            self.location_, self.scale_ = units
        self.means_ = result.theta * units.scale + units.location
        self.center_ = result.center * units.scale + units.location
        self.history_["log_likelihood"] = self.history_["log_likelihood"] - self._log_volume(units) * result.n_rows
        if result.spread is not None and result.center_spread is not None:
            self.covariances_ = self._covariances(result.spread, units)
            self.center_covariances_ = self._covariances(result.center_spread, units)

    def _log_volume(self, units: Units | None) -> float:
        return 0.0 if units is None else float(np.log(units.scale).sum())

    def _center_params(self, units: Units | None) -> Params:
        params = super()._center_params(units)
        if units is not None:
            params = params._replace(theta=(params.theta - units.location) / units.scale)
        if self.covariance == "identity":
            return params
        scale = np.ones(self.center_.shape[1]) if units is None else units.scale
        matrices = jnp.asarray(self.center_covariances_ / (scale[:, None] * scale))
        return params._replace(spread=from_covariance(self.covariance, matrices))

    def _out_of_fit(self, units: Units | None, n_parameters: int) -> NumpyArray:
        return np.eye(n_parameters) if units is None else np.diag(units.scale)

    def _covariances(self, spread: NumpyArray, units: Units) -> NumpyArray:
        """Matrices ``(..., C, p, p)`` in the columns' own units."""
        matrices = np.asarray(to_covariance(self.covariance, jnp.asarray(spread), len(units.scale)))
        return np.asarray(matrices * units.scale[:, None] * units.scale)

    def _fitted_family(self) -> Family:
        # What is spherical in standardized columns has a variance per column in their own units.
        return Gaussian("diag" if self.covariance == "spherical" else self.covariance, float(self.reg_covar))

    def _params_of(self, k: int | None) -> FittedParams:
        if self.covariance == "identity":
            return super()._params_of(k)
        weights, means = (self.center_weights_, self.center_) if k is None else (self.weights_[k], self.means_[k])
        return FittedParams(weights, means, self._spread(self._covariances_of(k)))

    def _covariances_of(self, k: int | None) -> NumpyArray:
        """Of one site or of the center, ``(C, p, p)``."""
        if self.covariance == "identity":
            return np.eye(self.center_.shape[1])[None]
        covariances: NumpyArray = self.center_covariances_ if k is None else self.covariances_[k]
        return covariances

    def _spread(self, covariances: NumpyArray) -> NumpyArray:
        family = self._fitted_family()
        assert isinstance(family, Gaussian)
        # NumPy: a factor of what was fitted, in whatever precision JAX is in.
        if family.covariance == "diag":
            return np.asarray(0.5 * np.log(np.diagonal(covariances, axis1=1, axis2=2)))
        factor = np.linalg.cholesky(covariances)
        rows, columns = np.tril_indices(factor.shape[-1])
        packed = factor[:, rows, columns]
        on_diagonal = rows == columns
        packed[:, on_diagonal] = np.log(packed[:, on_diagonal])
        return np.asarray(packed)

    def sample(self, n_samples: int = 1, *, site: Any = None) -> tuple[NumpyArray, NumpyArray]:
        """Draw rows ``(n, p)`` and their components ``(n,)`` from one site's mixture, or from the center.

        Parameters
        ----------
        n_samples : how many rows.
        site : a fitted site; None draws from the common center (or from the only site).
        """
        weights, means, _ = self._params_to_draw_from(site)
        check_count("n_samples", n_samples, least=1)
        generator = check_random_state(self.random_state)
        labels = generator.choice(len(weights), size=n_samples, p=weights / weights.sum())
        noise = generator.normal(size=(n_samples, means.shape[1]))
        if self.covariance != "identity":
            factors = np.linalg.cholesky(self._covariances_of(self._index_to_draw_from(site)))
            noise = np.einsum("npq,nq->np", factors[labels if len(factors) > 1 else np.zeros_like(labels)], noise)
        return means[labels] + noise, np.asarray(labels)
