"""Gaussian mixtures over sites."""

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from fedgrem.data.federation import Units
from fedgrem.data.units import UnitsPlan
from fedgrem.errors import InputError
from fedgrem.estimators.density import FederatedDensity
from fedgrem.estimators.parameters import check_choice
from fedgrem.families.base import Family
from fedgrem.families.covariance import STRUCTURES
from fedgrem.families.gaussian import Gaussian
from fedgrem.types import Array, FitResult, Params


@dataclass(kw_only=True, repr=False, eq=False)
class FederatedGaussianMixture(FederatedDensity):
    """One Gaussian mixture per site, shrunk to a common center.

    Columns may have any units: sites are standardized by what their summaries have in common, the penalty acts in units
    of the estimated noise, and all that is reported is in the columns' own units. ``covariance_type="identity"`` is the
    paper's model: known unit covariances in the columns' own units, and nothing standardized.

    Parameters
    ----------
    n_components : int, range or list of int, or "auto", default=1
        R, the same at every site; or several to choose from by ``criterion``, as what most sites have in common, and
        then components that only some sites have may come on top; "auto" goes up from 1.
    covariance_type : {"tied", "full", "diag", "spherical", "identity"}, default="tied"
        One covariance matrix for all components of a site; one for each; variances only, per column or one for all; or
        none. Covariances are shrunk to a common one like the means, each site's as a whole.
    penalty : float or "auto", default="auto"
        C: how strongly sites are pulled together. 0 fits each site alone; infinity gives one common answer. "auto"
        compares ten penalties between the two on held-out rows, and takes the largest finite one within a standard
        error of the best. 2.0 is the paper's.
    algorithm : str or object, default="fedgrem"
        How the sites work together: a name, or an object with options of its own, such as ``FedGrEM(local_steps=1)``,
        ``FedGrEM.paper()`` or ``TGMM(transfer=0.4)``; ``set_params(algorithm__step_size=0.5)`` sets one of them.
    missing : {"refuse", "em"}, default="refuse"
        What to do about cells that are NaN: refuse them with a message, or take them as missing at random and put what
        is expected of them given the rest of the row in their place, E-step by E-step. Not with "fedgmm" and
        "fedem-sa".
    criterion : {"bic", "icl"}, default="bic"
        How a number of components is chosen: by the Bayesian information criterion, or by the integrated completed
        likelihood, which also asks that rows surely belong to one component, and so merges overlapping ones.
    fallback : {"auto", "local", None}, default="auto"
        With "local", a site that clearly loses by being pulled, on held-out rows, keeps its own fit and has no part in
        the center. "auto" does with ``penalty="auto"``; None never.
    standard_errors : bool or "auto", default="auto"
        Whether to end the fit with one exchange about the precision of its parameters; "auto" does, except where a site
        has more than 400 weights and component parameters.
    max_rounds : int, default=1000
    tol : float, default=1e-6
        Relative movement of a site's parameters below which it counts as settled; so does a site that moves by less
        than a few thousandths of its standard errors. 0 plays exactly ``max_rounds`` rounds, in the paper's single
        steps unless ``algorithm`` is an object that says otherwise.
    n_init : int, default=10
        Restarts at each site before round 1.
    weights_init : array of shape (K, R), optional
    means_init : array of shape (K, R, p), optional
        Starts, with sites in the order of ``site_names_``, instead of searching for them.
    align : bool or {"assignment", "stepwise", "exhaustive"}, default=True
        How starts are relabelled so that component r means the same thing at every site; True is "assignment", False
        takes given starts as they are labelled.
    robust_rows : bool or "auto", default=False
        Whether what a row says is bounded in units of its component's noise, so that rows of no component (far off, in
        one clump, heavy tails) inside honest sites do not move anything; see docs/robust-rows.md. "auto" looks whether
        more rows stand out than clean ones would, and does without where not: it then fits twice.
    secure_sums : bool, default=False
        The center sees nothing but sums over at least three sites; see docs/secure-sums.md.
    privacy : Privacy, optional
        Differential privacy of every site for its rows, such as ``Privacy(epsilon=4, ranges=(-10, 10))``: the fit has
        steps of its own, on sums with noise, for "tied" and "identity" covariances; see docs/privacy.md.
    verbose : int, default=0
        1 shows on standard error what the sites are doing.
    random_state : int, RandomState or None, default=None

    Attributes
    ----------
    site_names_ : (K,)
    weights_, means_ : (K, R), (K, R, p)
    covariances_ : (K, C, p, p) in the columns' own units, C = 1 for "tied" and "identity" and R otherwise
    center_, center_weights_ : (R, p) the common center, and the median weights that go with it, (R,)
    center_covariances_ : (C, p, p) the common ones
    location_, scale_ : (p,) the units in which the fit ran
    weights_se_, means_se_, center_se_ : (K, R), (K, R, p), (R, p) standard errors, see :meth:`intervals`
        NaN where a component has vanished or its rows do not tell; None without ``standard_errors``.
    at_center_, site_distance_ : (K, R) whether a component sits exactly on the center, and how far from it
    site_threshold_ : (K, R) the shrinkage threshold of each, in the same units
    has_component_ : (K, R) which components a site has. With ``n_components`` to choose, some may lack some: their
        weights there are exactly 0, and what stands there otherwise is the center's. A component of fewer than three
        sites is their own and has no center: ``center_`` is their mean, and ``center_weights_`` 0
    vanished_ : (K, R) components of which a site holds less than one row; where a covariance is estimated, they begin
        again at the center
    n_rows_ : (K,) rows of each site, by their weights
    rows_held_down_ : (K,) the share of them that ``robust_rows`` does not count
    penalty_, noise_penalty_, weights_penalty_ : C, as it was given or chosen, and those of the covariances and of the
        weights; of algorithms without one, 0 where every site is fitted alone, infinity where all share components
    penalty_path_ : dict, how it was chosen: ``penalties`` (M,), ``gain`` and ``error`` (M,) per held-out row over
        fitting alone, trimmed over the sites, and ``site_gain``, ``site_error`` (K, M); ``noise_penalties``,
        ``noise_gain`` and ``noise_error`` (M,) of the covariances; empty if nothing was compared
    site_gain_, site_gain_se_ : (K,) each site's gain at ``penalty_``, by fits to a part of its rows; NaN if not
        compared
    local_only_ : (K,) which sites got their own fit back
    informative_columns_ : (q,) with ``FedGrEM(center="sparse")``: places of the columns in which components differ,
        which are those that all of the above is about
    n_components_, selection_ : R, of all sites together, and where it was chosen the curve: columns by
        ``n_components``, which are those that most sites have in common
    n_parameters_ : free parameters of the fit, as :meth:`bic` counts them
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
    _picks_columns: ClassVar[bool] = True

    n_components: Any = field(default=1, kw_only=False)
    covariance_type: str = "tied"
    missing: str = "refuse"
    means_init: Any = None
    robust_rows: bool | str = False
    secure_sums: bool = False
    privacy: Any = None

    def _family(self) -> Family:
        return Gaussian(STRUCTURES[self.covariance_type]())

    def _check_parameters(self) -> None:
        check_choice("covariance_type", self.covariance_type, tuple(STRUCTURES))
        check_choice("missing", self.missing, ("refuse", "em"))
        super()._check_parameters()

    def _check_sparse(self) -> None:
        if self.covariance_type in ("tied", "full"):
            raise InputError(
                f"center='sparse' takes columns as independent given the component, and covariance_type="
                f"{self.covariance_type!r} does not; use 'diag', 'spherical' or 'identity'."
            )
        super()._check_sparse()

    def _missing_allowed(self) -> bool:
        return bool(self.missing == "em")

    # -- units: the fit is standardized, what is reported is not

    def _units_plan(self) -> UnitsPlan:
        return UnitsPlan(standardize=self.covariance_type != "identity")

    def _fit_units(self) -> Units | None:
        return None if self.covariance_type == "identity" else Units(self.location_, self.scale_)

    def _theta_in_units(self, theta: Array, units: Units) -> Array:
        return np.asarray((theta - units.location) / units.scale)

    def _expose_theta(self, result: FitResult) -> None:
        ones = np.ones(result.theta.shape[-1])
        self.location_ = 0.0 * ones if result.location is None else result.location
        self.scale_ = ones if result.scale is None else result.scale
        self.means_ = result.theta * self.scale_ + self.location_
        self.center_ = result.center * self.scale_ + self.location_
        self.center_covariances_ = self._covariances(result.center_noise)
        noise = result.noise
        alone = np.broadcast_to(self.center_covariances_, (len(result.weights), *self.center_covariances_.shape))
        self.covariances_ = alone.copy() if noise is None else self._covariances(noise)

    def _log_volume(self, seen: Array, scale: Array | None) -> Array:
        return super()._log_volume(seen, scale) if scale is None else np.asarray(seen @ np.log(scale))

    def _out_of_fit(self, n_parameters: int) -> Array:
        return np.diag(self.scale_)

    def _covariances(self, noise: Array | None) -> Array:
        """Matrices ``(..., C, p, p)`` in the columns' own units."""
        matrices = STRUCTURES[self.covariance_type]().matrices(noise, len(self.scale_))
        return np.asarray(matrices * self.scale_[:, None] * self.scale_)

    def _params_of(self, k: int | None) -> Params:
        weights, means = (self.center_weights_, self.center_) if k is None else (self.weights_[k], self.means_[k])
        theta = (means - self.location_) / self.scale_
        if self.covariance_type == "identity":
            return Params(weights, theta)
        covariances = self.center_covariances_ if k is None else self.covariances_[k]
        scaled = covariances / (self.scale_[:, None] * self.scale_)
        return Params(weights, theta, STRUCTURES[self.covariance_type]().from_matrices(scaled))

    def _draw(self, k: int | None, labels: Array, generator: Any) -> Array:
        means, covariances = (
            (self.center_, self.center_covariances_) if k is None else (self.means_[k], self.covariances_[k])
        )
        noise = generator.normal(size=(len(labels), means.shape[1]))
        factors = np.linalg.cholesky(covariances)[labels if len(covariances) > 1 else np.zeros_like(labels)]
        return np.asarray(means[labels] + (factors @ noise[..., None])[..., 0])
