"""Gaussian mixtures over sites."""

from typing import Any, ClassVar

import numpy as np
from sklearn.utils import check_random_state

from fedgrem.estimators.density import FederatedDensity
from fedgrem.estimators.parameters import check_count
from fedgrem.families.base import Family
from fedgrem.families.gaussian import Gaussian
from fedgrem.types import NumpyArray


class FederatedGaussianMixture(FederatedDensity):
    """One Gaussian mixture per site, with unit covariance, shrunk to a common center.

    Parameters
    ----------
    n_components : int, default=1
        R, the same at every site.
    algorithm : str, default="fedgrem"
        How the sites work together.
    penalty : float, default=2.0
        C: how strongly sites are pulled together. 0 fits each site alone; infinity gives one common answer.
    penalty_decay : float, default=0.1
        Of the recursion ``lambda_t = penalty_decay * lambda_{t-1} + penalty * sqrt(p + log K)``.
    step_size : float, default=0.95
        C_eta: the gradient step of a component is ``step_size / weight``; below 2.
    step_weights : {"current", "initial"}, default="current"
        Whose weight: that of the present E-step, floored at a fifth of 1/R, which settles; or the paper's initial one,
        which may not.
    penalty_scaling : {"fixed", "step"}, default="fixed"
        With "step" the threshold is multiplied by ``step_size``, and the answer no longer depends on ``step_size``.
    center_solver : {"exact", "alternating"}, default="exact"
        Solve the central problem to tolerance, or take ``center_sweeps`` of the paper's alternating sweeps.
    center_sweeps : int, default=2
    max_rounds : int, default=1000
    tol : float, default=1e-6
        Relative movement of a site's parameters below which it counts as settled; 0 plays exactly ``max_rounds``.
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
    center_, center_weights_ : (R, p) the common center, and the median weights that go with it, (R,)
    at_center_, site_distance_ : (K, R) whether a component sits exactly on the center, and how far from it
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
        means_init: Any = None,
        align: bool = True,
        alignment: str = "assignment",
        dtype: str = "float64",
        random_state: Any = None,
    ) -> None:
        self._store(locals())

    def _family(self) -> Family:
        return Gaussian()

    def sample(self, n_samples: int = 1, *, site: Any = None) -> tuple[NumpyArray, NumpyArray]:
        """Draw rows ``(n, p)`` and their components ``(n,)`` from one site's mixture, or from the center.

        Parameters
        ----------
        n_samples : how many rows.
        site : a fitted site; None draws from the common center (or from the only site).
        """
        weights, means = self._params_to_draw_from(site)
        check_count("n_samples", n_samples, least=1)
        generator = check_random_state(self.random_state)
        labels = generator.choice(len(weights), size=n_samples, p=weights / weights.sum())
        return means[labels] + generator.normal(size=(n_samples, means.shape[1])), np.asarray(labels)
