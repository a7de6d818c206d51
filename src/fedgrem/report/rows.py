"""Rows that a report is given: checked against the model, with the place of each row's site in it."""

from typing import Any, NamedTuple

import narwhals as nw
import numpy as np

from fedgrem.data.tables import column_names, gather, gather_values, is_frame
from fedgrem.errors import InputError, ShapeError
from fedgrem.estimators.base import BaseFederatedMixture
from fedgrem.report.attributes import check_fitted, has_response
from fedgrem.report.attributes import column_names as fitted_columns
from fedgrem.report.text import listed
from fedgrem.types import Array


class GivenRows(NamedTuple):
    """Rows of sites that the model knows."""

    rows: Any
    """(N, p) array or data frame."""
    target: Array | None
    """(N,) responses of a regression."""
    site: Array
    """(N,) index into the model's ``site_names_``."""
    unknown: list[str]
    """Sites that were not fitted; their rows are left out."""

    def take(self, which: Array) -> "GivenRows":
        """Some of the rows: those at these places, or where a mask is true."""
        place = np.flatnonzero(which) if which.dtype == bool else which
        rows = (
            nw.from_native(self.rows, eager_only=True)[place].to_native() if is_frame(self.rows) else self.rows[place]
        )
        return self._replace(
            rows=rows, target=None if self.target is None else self.target[place], site=self.site[place]
        )


def given_rows(model: BaseFederatedMixture, X: Any, y: Any = None, sites: Any = None) -> GivenRows:
    """Check that rows are of the model's columns and of its sites.

    Parameters
    ----------
    model : a fitted model.
    X, y, sites : as in ``fit``.
    """
    check_fitted(model)
    table = gather(X, sites)
    _check_columns(model, table.rows)
    target = None
    if has_response(model):
        if y is None:
            raise InputError("a mixture of regressions is judged by its responses; give them as y=.")
        target = np.asarray(gather_values("y", y, table), dtype=float)
        if target.shape != table.site_of_row.shape:
            raise ShapeError(f"y has shape {target.shape}, expected {table.site_of_row.shape}, one value per row.")
    place = {str(name): k for k, name in enumerate(model.site_names_)}
    site = np.array([place.get(str(label), -1) for label in table.labels])[table.site_of_row]
    unknown = [str(label) for label in table.labels if str(label) not in place]
    if not (site >= 0).any():
        raise InputError(
            f"no row is of a fitted site: the rows are of {listed(unknown)}, the model of {listed(list(place))}; "
            "name the site of each row with sites=."
        )
    rows = table.rows if is_frame(table.rows) else np.asarray(table.rows)
    given = GivenRows(rows, target, site, unknown)
    return given.take(site >= 0) if unknown else given


def _check_columns(model: BaseFederatedMixture, rows: Any) -> None:
    names, fitted = column_names(rows), fitted_columns(model)
    if names is not None and fitted and names != fitted:
        lacking = [name for name in fitted if name not in names]
        remedy = (
            f"the rows lack {listed(lacking)}: add every fitted column, under its name"
            if lacking
            else "take these, in this order: X[list(model.feature_names_in_)]"
        )
        raise InputError(
            f"the rows have the columns {listed(names)}, the model was fitted on {listed(fitted)}; {remedy}."
        )
    shape = np.shape(rows)
    if len(shape) != 2 or shape[1] != model.n_features_in_:
        raise ShapeError(
            f"the rows have shape {shape}, expected (n, {model.n_features_in_}); give the columns of the fit, and no "
            "others."
        )
