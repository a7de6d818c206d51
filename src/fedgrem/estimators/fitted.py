"""What all federated mixtures share once they are fitted: look rows up, score them, report."""

import warnings
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted, validate_data

from fedgrem.data.federation import check_finite
from fedgrem.data.tables import Table, gather, gather_values, is_frame, split_like
from fedgrem.errors import InputError
from fedgrem.estimators.scoring import FittedParams, row_scores
from fedgrem.estimators.uncertainty import WithErrors
from fedgrem.families.base import Family
from fedgrem.kernels.precision import numpy_dtype, precision
from fedgrem.types import NumpyArray


class UnknownSiteWarning(UserWarning):
    """Rows were predicted with the common center, because their site was not fitted."""


class FittedMixture(WithErrors, BaseEstimator):
    """One mixture per site, and a common center for rows of no site that was fitted."""

    _theta_name: ClassVar[str] = "params"
    """What users call theta: the fitted attribute is ``<name>_`` and the start ``<name>_init``."""

    dtype: Any

    # -- what subclasses say

    def _family(self) -> Family:
        raise NotImplementedError  # every public subclass says what a component is

    def _missing_allowed(self) -> bool:
        """Whether cells may be NaN."""
        return False

    def _fitted_family(self) -> Family:
        """What a component of the fit is, in the units of the rows."""
        return self._family()

    def _design(self, rows: NumpyArray) -> NumpyArray:
        """Rows as the family sees them."""
        return rows

    # -- using a fit

    def fitted_values(self) -> dict[str, Any]:
        """All that ``fit`` found, by name: what a saved model keeps."""
        check_is_fitted(self)
        return {name: getattr(self, name) for name in self._fitted_names()}

    def _fitted_names(self) -> list[str]:
        """The names of what ``fit`` has found so far; none before it."""
        return [name for name in vars(self) if name.endswith("_") and not name.startswith("_")]

    def _params_of(self, k: int | None) -> FittedParams:
        """One site's mixture, or the center's, in the units of the rows."""
        if k is None:
            return FittedParams(self.center_weights_, self.center_, None)
        return FittedParams(self.weights_[k], getattr(self, f"{self._theta_name}_")[k], None)

    def _site_params(self, label: Any) -> FittedParams | None:
        """The mixture of a site by its label, or None if it was not fitted."""
        names = [str(name) for name in self.site_names_]
        return self._params_of(names.index(str(label))) if str(label) in names else None

    def _params_to_draw_from(self, site: Any) -> FittedParams:
        return self._params_of(self._index_to_draw_from(site))

    def _index_to_draw_from(self, site: Any) -> int | None:
        """The place of a site, or None for the center; without a site, the only one or the center."""
        check_is_fitted(self)
        names = [str(name) for name in self.site_names_]
        if site is None:
            return 0 if len(names) == 1 else None
        if str(site) not in names:
            raise InputError(f"site {site!r} was not fitted; the sites are {names}.")
        return names.index(str(site))

    def _params_for(self, table: Table, sites_given: bool) -> list[FittedParams]:
        """Parameters for each site of a table; the center, and a warning, for those that were not fitted."""
        center = self._params_of(None)
        if not sites_given and table.kind == "table":
            if len(self.site_names_) == 1:
                return [self._params_of(0)]
            warnings.warn(
                f"no sites were given, but the model was fitted on {len(self.site_names_)}; the common center is used. "
                "Pass sites= to use each site's own mixture.",
                UnknownSiteWarning,
                stacklevel=5,
            )
            return [center]
        found = [self._site_params(label) for label in table.labels]
        unknown = [str(label) for label, params in zip(table.labels, found, strict=True) if params is None]
        if unknown:
            listed = ", ".join(unknown[:5]) + (", ..." if len(unknown) > 5 else "")
            warnings.warn(
                f"site(s) {listed} were not fitted; the common center is used for their rows.",
                UnknownSiteWarning,
                stacklevel=5,
            )
        return [center if params is None else params for params in found]

    def _score_rows(self, X: Any, y: Any, sites: Any) -> tuple[Table, NumpyArray, NumpyArray, NumpyArray]:
        """Posterior ``(N, R)``, log-likelihood ``(N,)`` and expected response ``(N,)`` of every row."""
        check_is_fitted(self)
        table = self._table_to_predict(X, sites)
        rows = validate_data(self, table.rows, reset=False, dtype=np.float64, ensure_all_finite=False)
        self._check_finite(rows, table)
        rows = self._design(rows)
        family = self._fitted_family()
        target = gather_values("y", y, table)
        params = self._params_for(table, sites is not None)
        n_components = self.weights_.shape[1]
        posterior, log_likelihood = np.empty((len(rows), n_components)), np.empty(len(rows))
        expected = np.zeros(len(rows))
        with precision(self.dtype):
            for k, fitted in enumerate(params):
                mine = table.site_of_row == k
                if not mine.any():
                    continue
                here = None if target is None else np.asarray(target, dtype=float)[mine]
                posterior[mine], log_likelihood[mine] = row_scores(
                    family, rows[mine], here, fitted, numpy_dtype(self.dtype)
                )
                if family.has_target:
                    expected[mine] = rows[mine] @ (fitted.weights @ fitted.theta)
        return table, posterior, log_likelihood, expected

    def _check_finite(self, rows: NumpyArray, table: Table) -> None:
        """As in fit, site by site, with its number and place."""
        columns = getattr(self, "feature_names_in_", [f"x{j}" for j in range(rows.shape[1])])
        for k, label in enumerate(table.labels):
            values = rows[table.site_of_row == k]
            check_finite(
                str(label), np.where(np.isnan(values), 0.0, values) if self._missing_allowed() else values, columns
            )

    def _table_to_predict(self, X: Any, sites: Any) -> Table:
        """As in fit, but one scalar may also name the site of all rows."""
        column = isinstance(sites, str) and is_frame(X) and sites in X.columns
        if sites is not None and np.ndim(sites) == 0 and not column:
            table = gather(X)
            return table._replace(labels=np.array([sites], dtype=object))
        return gather(X, sites)

    def score_samples(self, X: Any, y: Any = None, *, sites: Any = None) -> Any:
        """Log-likelihood of every row under its site's mixture, ``(N,)``."""
        table, _, log_likelihood, _ = self._score_rows(X, y, sites)
        return split_like(log_likelihood, table)

    def report(
        self, path: str | Path, X: Any = None, y: Any = None, *, sites: Any = None, show_rows: int = 0, seed: int = 0
    ) -> Path:
        """Write one HTML page about this fit, for people who do not read code; returns its path.

        Parameters
        ----------
        path : of the page, ``.html``.
        X, y, sites : rows, as in ``fit``; with them the page also tells what each site gained over fitting alone.
        show_rows : how many rows to draw; 0 for none, because rows are private.
        seed : of the rows held back and of those drawn.
        """
        from fedgrem.report.model import write_model_report  # the one door upwards, open only while it is used

        return write_model_report(self, path, X, y, sites=sites, show_rows=show_rows, seed=seed)
