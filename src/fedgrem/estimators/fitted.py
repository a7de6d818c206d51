"""What all federated mixtures share once they are fitted: look rows up, score them, report."""

import warnings
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, ClassVar

import narwhals as nw
import numpy as np
from sklearn import get_config
from sklearn.base import BaseEstimator
from sklearn.utils import estimator_html_repr
from sklearn.utils.validation import check_is_fitted, validate_data

from fedgrem.data.federation import Federation, Site, Units, check_finite, stack_sites
from fedgrem.data.tables import Table, gather, gather_values, is_frame, is_site_list, split_like
from fedgrem.data.units import UnitsPlan
from fedgrem.errors import InputError
from fedgrem.estimators.uncertainty import WithErrors
from fedgrem.families.base import Family
from fedgrem.types import Array, Params, components_of, map_arrays


def misspelt(name: str, known: list[str]) -> str | None:
    """The site that a name is probably meant to be; sites that differ in their numbers are others.

    Examples
    --------
    >>> misspelt("Nort", ["north", "south"]), misspelt("site-11", ["site-1"]), misspelt("west", ["north", "south"])
    ('north', None, None)
    """

    def digits(text: str) -> str:
        return "".join(letter for letter in text if letter.isdigit())

    alike = {other.casefold(): other for other in known if digits(other) == digits(name)}
    found = get_close_matches(name.casefold(), list(alike), n=1, cutoff=0.8)
    return alike[found[0]] if found else None


class UnknownSiteWarning(UserWarning):
    """Rows were predicted with the common center, because their site was not fitted."""


def _warn(told: str) -> None:
    warnings.warn(told, UnknownSiteWarning, stacklevel=6)


class FittedMixture(WithErrors, BaseEstimator):
    """One mixture per site, and a common center for rows of no site that was fitted."""

    _theta_name: ClassVar[str] = "params"
    """What users call theta: the fitted attribute is ``<name>_`` and the start ``<name>_init``."""
    _has_target: ClassVar[bool] = False
    _picks_columns: ClassVar[bool] = False
    """Whether a fit may be about a few columns of many."""
    n_components: Any
    secure_sums: bool = False  # of mixtures that have no such options
    privacy: Any = None
    robust_rows: bool | str = False

    # -- what subclasses say

    def _family(self) -> Family:
        raise NotImplementedError  # every public subclass says what a component is

    def _missing_allowed(self) -> bool:
        """Whether cells may be NaN."""
        return False

    def _as_numbers(self, X: Any, sites: Any) -> Any:
        """The rows of a user as numbers."""
        return X

    def _units_plan(self) -> UnitsPlan:
        """In which units the fit runs."""
        return UnitsPlan(standardize=False)

    def _fitted_plan(self) -> UnitsPlan:
        """The same of the fit that was made, which may be about some of the columns only."""
        columns = getattr(self, "informative_columns_", None)
        return self._units_plan()._replace(kept=None if columns is None else tuple(columns.tolist()))

    def _fit_units(self) -> Units | None:
        """The units in which the fit ran; None if those of the rows."""
        return None

    def _log_volume(self, seen: Array, scale: Array | None) -> Array:
        """By what log densities in the units of a fit exceed those in the rows' own units, ``(...)``.

        ``seen`` (..., p) counts the cells that are there by column, the response last.
        """
        return np.zeros(seen.shape[:-1])

    def _params_of(self, k: int | None) -> Params:
        """One site's mixture, or the center's, in the units of the fit."""
        if k is None:
            return Params(self.center_weights_, self.center_)
        return Params(self.weights_[k], getattr(self, f"{self._theta_name}_")[k])

    @property
    def source_columns(self) -> list[str]:
        """The columns that a table for this model has; none if those of the fit had no names."""
        return [str(name) for name in getattr(self, "feature_names_in_", [])]

    # -- using a fit

    def fitted_values(self) -> dict[str, Any]:
        """All that ``fit`` found, by name: what a saved model keeps."""
        check_is_fitted(self)
        return {name: getattr(self, name) for name in self._fitted_names()}

    def _fitted_names(self) -> list[str]:
        """The names of what ``fit`` has found so far; none before it."""
        return [name for name in vars(self) if name.endswith("_") and not name.startswith("_")]

    def _place_of(self, label: Any) -> int | None:
        """The place of a site by its label, or None if it was not fitted."""
        names = [str(name) for name in self.site_names_]
        return names.index(str(label)) if str(label) in names else None

    def _index_to_draw_from(self, site: Any) -> int | None:
        """The place of a site, or None for the center; without a site, the only one or the center."""
        check_is_fitted(self)
        if site is None:
            return 0 if len(self.site_names_) == 1 else None
        place = self._place_of(site)
        if place is None:
            raise InputError(f"site {site!r} was not fitted; the sites are {[str(name) for name in self.site_names_]}.")
        if self._stayed_there(place):
            raise InputError(f"what site {site!r} found stayed there (secure sums); leave the site out for the center.")
        return place

    def _places_for(self, table: Table, sites_given: bool) -> list[int | None]:
        """The place of each site of a table; None, and a warning, for those that were not fitted."""
        if not sites_given and table.kind == "table":
            if len(self.site_names_) == 1:
                return [0]
            _warn(
                f"no sites were given, but the model was fitted on {len(self.site_names_)}; the common center is used. "
                "Pass sites= to use each site's own mixture."
            )
            return [None]
        found = [self._place_of(label) for label in table.labels]
        silent = [str(label) for label, k in zip(table.labels, found, strict=True) if self._stayed_there(k)]
        if silent:
            _warn(
                f"what site(s) {', '.join(silent[:5])} found stayed with them (secure sums); the common center is used "
                "for their rows."
            )
        unknown = [str(label) for label, place in zip(table.labels, found, strict=True) if place is None]
        for name in unknown:
            meant = misspelt(name, [str(known) for known in self.site_names_])
            if meant is not None:
                raise InputError(
                    f"site {name!r} was not fitted, but {meant!r} was; if that is meant, correct the name. A new site "
                    "of such a name can be judged by the center with sites=None, or be added with fit_site."
                )
        if unknown:
            listed = ", ".join(unknown[:5]) + (", ..." if len(unknown) > 5 else "")
            _warn(f"site(s) {listed} were not fitted; the common center is used for their rows.")
        return [None if self._stayed_there(place) else place for place in found]

    def _stayed_there(self, place: int | None) -> bool:
        """Whether what a site found is known to the site only."""
        return place is not None and bool(np.isnan(self.weights_[place]).all())

    def _rows_to_score(self, X: Any, sites: Any) -> tuple[Table, Array]:
        check_is_fitted(self)
        table = self._table_to_predict(self._as_numbers(X, sites), sites)
        rows = validate_data(self, table.rows, reset=False, dtype=np.float64, ensure_all_finite=False)
        self._check_finite(rows, table)
        return table, rows

    def _score_rows(self, X: Any, y: Any, sites: Any) -> tuple[Table, Array, Array]:
        """Posterior ``(N, R)`` and log-likelihood ``(N,)`` of every row.

        A regression without responses says nothing about components: its posterior is the weights.
        """
        table, rows = self._rows_to_score(X, sites)
        target = gather_values("y", y, table)
        places = self._places_for(table, sites is not None)
        posterior, log_likelihood = np.empty((len(rows), self.weights_.shape[1])), np.full(len(rows), np.nan)
        for k, place in enumerate(places):
            mine = np.flatnonzero(table.site_of_row == k)
            if not len(mine):
                continue
            params = self._params_of(place)
            if self._has_target and target is None:
                posterior[mine] = params.weights
                continue
            here = None if target is None else np.asarray(target, dtype=float)[mine]
            posterior[mine], log_likelihood[mine] = self._score_site(rows[mine], here, params)
        return table, posterior, log_likelihood

    def _score_site(self, rows: Array, target: Array | None, params: Params) -> tuple[Array, Array]:
        """Posterior ``(n, R)`` and log-likelihood ``(n,)`` of rows under one mixture, in the units of the fit."""
        site = Site("", rows, target, np.ones(len(rows)))
        columns = tuple(f"x{j}" for j in range(rows.shape[1]))
        units = self._fit_units()
        plan = self._fitted_plan()
        scaled = plan.apply(Federation((site,), columns), units, fitting=False).sites[0]
        rows = rows if plan.kept is None else rows[:, list(plan.kept)]
        stack = stack_sites([scaled], gaps=bool(np.isnan(rows).any()))
        has = np.flatnonzero(params.weights > 0)  # what a site lacks has no row, however far that is from the others
        one: Params = map_arrays(lambda leaf: leaf[None], components_of(params, has))
        with np.errstate(all="ignore"):
            share, value = self._family().row_scores(stack, one)
        order = scaled.ordered()
        posterior, log_likelihood = np.zeros((len(rows), len(params.weights))), np.empty(len(rows))
        # The stack is padded at its end.
        posterior[np.ix_(order, has)], log_likelihood[order] = share[0].T[: len(rows)], value[0][: len(rows)]
        seen = ~np.isnan(rows if target is None else np.column_stack([rows, target]))
        return posterior, log_likelihood - self._log_volume(seen, None if units is None else units.scale)

    def _check_finite(self, rows: Array, table: Table) -> None:
        """As in fit, site by site, with its number and place."""
        columns = getattr(self, "feature_names_in_", [f"x{j}" for j in range(rows.shape[1])])
        for k, label in enumerate(table.labels):
            values = rows[table.site_of_row == k]
            check_finite(
                str(label), np.where(np.isnan(values), 0.0, values) if self._missing_allowed() else values, columns
            )

    def _table_to_predict(self, X: Any, sites: Any) -> Table:
        """As in fit, but one scalar may also name the site of all rows."""
        X = self._in_order(X, sites)
        column = isinstance(sites, str) and is_frame(X) and sites in X.columns
        if sites is not None and np.ndim(sites) == 0 and not column:
            table = gather(X)
            return table._replace(labels=np.array([sites], dtype=object))
        return gather(X, sites)

    def _in_order(self, X: Any, sites: Any) -> Any:
        """The table with the columns of the fit in order, if it has all of them and nothing else but the sites'."""
        columns = getattr(self, "feature_names_in_", None)
        if isinstance(X, Mapping) and not hasattr(X, "shape"):
            return {name: self._in_order(table, None) for name, table in X.items()}
        if is_site_list(X):
            return [self._in_order(table, None) for table in X]
        if columns is None or not is_frame(X):
            return X
        wanted = [str(name) for name in columns]
        frame = nw.from_native(X, eager_only=True)
        more = [name for name in frame.columns if name not in wanted]
        if frame.columns == wanted or set(wanted) - set(frame.columns) or more not in ([], [sites]):
            return X
        return frame.select(*wanted, *more).to_native()

    def score_samples(self, X: Any, y: Any = None, *, sites: Any = None) -> Any:
        """Log-likelihood of every row under its site's mixture, ``(N,)``."""
        table, _, log_likelihood = self._score_rows(X, y, sites)
        return split_like(log_likelihood, table)

    def bic(self, X: Any, y: Any = None, *, sites: Any = None) -> float:
        """Bayesian information criterion on these rows, the lower the better."""
        log_likelihood = self._log_likelihood(X, y, sites)
        return float(-2.0 * log_likelihood.sum() + self.n_parameters_ * np.log(len(log_likelihood)))

    def aic(self, X: Any, y: Any = None, *, sites: Any = None) -> float:
        """Akaike information criterion on these rows, the lower the better."""
        return float(-2.0 * self._log_likelihood(X, y, sites).sum() + 2.0 * self.n_parameters_)

    def _log_likelihood(self, X: Any, y: Any, sites: Any) -> Array:
        """(N,) of every row, with its response."""
        if self._has_target and y is None:
            raise InputError("rows of a regression have no likelihood without their responses; pass them as y.")
        _, _, log_likelihood = self._score_rows(X, y if self._has_target else None, sites)
        return log_likelihood

    # -- telling about it

    def summary(self) -> str:
        """What ``fedgrem show`` prints: components, sites and verdicts, as text."""
        from fedgrem.report.summary import summary_text  # the one import upwards, and only when it is used

        check_is_fitted(self)
        return summary_text(self)

    def _html_repr(self) -> str:
        """In a notebook: the sites and verdicts of a fitted model, and scikit-learn's diagram before that."""
        if not self._fitted_names():
            return str(estimator_html_repr(self))
        from fedgrem.report.summary import html_summary

        return html_summary(self)

    # scikit-learn 1.6 asks for no _html_repr; later ones do.

    def _repr_html_inner(self) -> str:
        return self._html_repr()

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, str]:
        bundle = {"text/plain": repr(self)}
        return bundle | ({"text/html": self._html_repr()} if get_config()["display"] == "diagram" else {})

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
        from fedgrem.report.model import write_model_report

        return write_model_report(self, path, X, y, sites=sites, show_rows=show_rows, seed=seed)
