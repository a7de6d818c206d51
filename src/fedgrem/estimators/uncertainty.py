"""Standard errors and intervals of a fit, in the units of the rows."""

from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, cast

import numpy as np
from scipy.special import ndtri
from sklearn.utils.validation import check_is_fitted

from fedgrem.errors import InputError
from fedgrem.estimators.parameters import check_number
from fedgrem.theory.budget import ErrorBudget
from fedgrem.types import Array, FitResult

if TYPE_CHECKING:
    from fedgrem.estimators.base import BaseFederatedMixture


class Interval(NamedTuple):
    """Between what a parameter is likely to be; NaN where nothing can be said."""

    low: Array
    high: Array


class WithErrors:
    """What estimators know of the precision of their parameters."""

    _theta_name: ClassVar[str]
    standard_errors: bool | str

    @property
    def _errors_switch(self) -> bool | None:
        return None if self.standard_errors == "auto" else bool(self.standard_errors)

    def _out_of_fit(self, n_parameters: int) -> Array:
        """The matrix ``(q, q)`` that takes changes of a component's parameters into the units of the rows."""
        return np.eye(n_parameters)

    def _expose_errors(self, result: FitResult) -> None:
        """``weights_se_``, ``<theta>_se_`` and ``center_se_``; None if they were not asked for."""
        self.weights_se_: Array | None = None
        theta = center = None
        if result.theta_covariance is not None and result.weights_variance is not None:
            self.weights_se_ = np.sqrt(result.weights_variance)
            matrix = self._out_of_fit(result.theta.shape[-1])
            theta, center = (_errors(c, matrix) for c in (result.theta_covariance, result.center_covariance))
        self._name_errors(theta, center)

    def _name_errors(self, theta: Array | None, center: Array | None) -> None:
        setattr(self, f"{self._theta_name}_se_", theta)
        self.center_se_ = center

    def intervals(self, level: float = 0.95) -> dict[str, Interval]:
        """Intervals of every parameter by its name, each with arrays ``low`` and ``high`` as large as the parameter's.

        The parameter plus and minus ``z`` standard errors; weights within [0, 1]. Components off the center have been
        pulled towards it, which no interval makes up for: docs/algorithm.md says how to read them.

        Parameters
        ----------
        level : how often such an interval is to hold the truth, between 0 and 1.
        """
        check_is_fitted(self)
        if not 0.0 < check_number("level", level, least=0.0, most=1.0, below=True):
            raise InputError(f"level must be above 0, got {level!r}.")
        names = ("weights", self._theta_name, "intercept", "center", "center_intercept")
        errors: dict[str, Any] = {n: getattr(self, f"{n}_se_") for n in names if hasattr(self, f"{n}_se_")}
        if any(error is None for error in errors.values()):
            raise InputError(
                "this model was fitted without standard errors; fit it again with standard_errors=True, while the "
                "sites are there."
            )
        z = float(ndtri(0.5 + 0.5 * level))
        found = {}
        for name, error in errors.items():
            value = getattr(self, f"{name}_")
            low, high = value - z * error, value + z * error
            found[name] = Interval(*np.clip((low, high), 0.0, 1.0)) if name == "weights" else Interval(low, high)
        return found

    def error_budget(self, *, seed: int = 0) -> ErrorBudget:
        """Where the error comes from: the largest error of a component to expect, as a sum of the theory's five terms.

        In units of the noise within a component: what the rounds left, the error of all rows pooled, own weights, sites
        that differ, and bad sites; beside them that of each site alone. Of Gaussian components and regressions whose
        sites were pulled to a center; see docs/theory.md.

        Parameters
        ----------
        seed : of the draws of chance.
        """
        check_is_fitted(self)
        from fedgrem.estimators.budget import error_budget  # the theory is not needed for a fit

        return error_budget(cast("BaseFederatedMixture", self), seed)


def _errors(covariance: Array | None, matrix: Array) -> Array:
    """Square roots of the diagonals of ``M C M'``, ``(..., q)``; NaN where a variance is."""
    assert covariance is not None
    variance = np.einsum("ab,...bc,ac->...a", matrix, covariance, matrix)
    # A column of which nothing is known must not hide the others: 0 * NaN is NaN.
    plain = np.einsum("aa,...aa->...a", matrix**2, covariance)
    diagonal = np.all((matrix != 0) <= np.eye(len(matrix), dtype=bool), axis=1)
    variance = np.where(diagonal, plain, variance)
    return np.asarray(np.sqrt(np.where(variance >= 0, variance, np.nan)))
