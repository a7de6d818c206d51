"""Mixtures over tables of mixed columns."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
from sklearn.utils import Tags
from sklearn.utils.validation import validate_data

from fedgrem.algorithms.registry import as_algorithm
from fedgrem.data.columns import (
    BINARY,
    CATEGORICAL,
    CONTINUOUS,
    COUNT,
    ROBUST,
    Column,
    declared_columns,
    encode_like,
    read_columns,
)
from fedgrem.data.federation import Federation, Units
from fedgrem.data.tables import Table as Rows
from fedgrem.data.tables import is_frame, is_site_list
from fedgrem.data.units import UnitsPlan
from fedgrem.errors import InputError
from fedgrem.estimators.density import FederatedDensity
from fedgrem.estimators.notes import column_notes
from fedgrem.estimators.parameters import check_choice, check_number
from fedgrem.estimators.selection import Search
from fedgrem.families.base import Family
from fedgrem.families.covariance import STRUCTURES
from fedgrem.families.table import Table
from fedgrem.fit.spec import FitSpec
from fedgrem.kernels.center import row_norm
from fedgrem.types import Array, FitResult, Params

COVARIANCES = ("diag", "tied", "full")
WIDTH = 1e-6
"""Of the differences that tell how means change with coordinates."""


@dataclass(kw_only=True, repr=False, eq=False)
class FederatedTableMixture(FederatedDensity):
    """One mixture of mixed columns per site, shrunk to a common center.

    Columns may be numbers, counts, yes/no answers and categories, and cells may be missing: what is not seen of a row
    says nothing of that column. Given the component, columns are independent; with ``covariance_type`` "full" or
    "tied", continuous ones have a covariance. A continuous column that is missing or constant at a site tells nothing
    there: the site takes part with its other columns, and has the center's values for that one.

    Parameters
    ----------
    n_components : int, range or list of int, or "auto", default=1
        R, the same at every site, or several to choose from by ``criterion``.
    columns : "auto" or dict, default="auto"
        What columns are, by their names: "continuous", "robust" (continuous, with rows far out), "binary",
        "categorical", "count", or a list of levels; "auto", as for columns not named, reads it from all sites. Words,
        categories, enums and booleans are categories (of two levels, binary); so are whole numbers of up to five
        values. Whole numbers from 0 or 1 up to at most 50 are counts, all other numbers continuous. See ``columns_``.
    covariance_type : {"diag", "full", "tied"}, default="diag"
        Of continuous columns given the component: independent, a covariance matrix for each component, or one for all.
    degrees : float or "auto", default=4.0
        Degrees of freedom of robust columns; "auto" estimates those of every column.
    penalty, algorithm, criterion, fallback, standard_errors, max_rounds, tol, n_init, align, verbose, random_state :
        as of :class:`~fedgrem.FederatedGaussianMixture`.
    weights_init : array of shape (K, R), optional
    means_init : array of shape (K, R, m), optional
        Starts, with sites in the order of ``site_names_`` and means as in ``means_``.

    Attributes
    ----------
    site_names_ : (K,)
    columns_ : dict, the type of every column by its name
    levels_ : dict, the names of the levels of binary and categorical columns
    weights_, means_ : (K, R), (K, R, m)
        Means of components in the columns' own units: of numbers and counts, of the second level of binary columns
        ("yes"), and of every level of categorical ones, that is, its probability; named by ``mean_names``
    center_, center_weights_ : (R, m), (R,) of the common center
    covariances_, center_covariances_ : (K, C, p, p), (C, p, p) of the continuous columns, in their own units
    scales_, degrees_ : (K, C, p) of robust columns
    constant_ : (K, p) the one value of a continuous column that is constant at a site; NaN elsewhere
    seen_ : (K, p) whether a site has anything to tell of a column
    notes_ : sentences about columns that are missing or constant at a site
    weights_se_, means_se_, center_se_, at_center_, site_distance_, site_verdict_, ... :
        as of :class:`~fedgrem.FederatedGaussianMixture`

    Examples
    --------
    >>> import pandas as pd
    >>> from fedgrem import FederatedTableMixture
    >>> generator = np.random.default_rng(0)
    >>> kind, site = generator.integers(2, size=400), np.repeat(["north", "south", "east", "west"], 100)
    >>> frame = pd.DataFrame({
    ...     "age": generator.normal(np.where(kind, 65.0, 40.0), 8.0),
    ...     "smokes": generator.random(400) < np.where(kind, 0.8, 0.2),
    ...     "pain": np.where(generator.random(400) < np.where(kind, 0.7, 0.1), "often", "seldom"),
    ... })
    >>> model = FederatedTableMixture(2, random_state=0).fit(frame, sites=site)
    >>> model.columns_
    {'age': 'continuous', 'smokes': 'binary', 'pain': 'binary'}
    >>> model.mean_names
    ('age', 'smokes = yes', 'pain = seldom')
    >>> bool(abs(np.sort(model.center_[:, 0]) - [40.0, 65.0]).max() < 3.0)
    True
    """

    _theta_name: ClassVar[str] = "means"

    n_components: Any = field(default=1, kw_only=False)
    columns: Any = "auto"
    covariance_type: str = "diag"
    degrees: float | str = 4.0
    means_init: Any = None

    # -- columns

    @property
    def _types(self) -> tuple[Column, ...]:
        """What the columns are, as a fit found or was told."""
        if hasattr(self, "_agreed"):
            found: tuple[Column, ...] = self._agreed
            return found
        if not hasattr(self, "columns_"):  # the fit runs elsewhere
            return declared_columns(self._column_names(), self.columns)
        return tuple(
            Column(name, kind, tuple(str(level) for level in self.levels_.get(name, ())))
            for name, kind in self.columns_.items()
        )

    @property
    def _table(self) -> Table:
        degrees = None if self.degrees == "auto" else float(self.degrees)
        return Table(self._types, STRUCTURES[self.covariance_type](), degrees)

    def _family(self) -> Family:
        return self._table

    @property
    def mean_names(self) -> tuple[str, ...]:
        """What every mean of ``means_`` is of, such as "age" and "cp = 4"."""
        return self._table.mean_names

    def _missing_allowed(self) -> bool:
        return True

    def __sklearn_tags__(self) -> Tags:
        tags: Tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = tags.input_tags.categorical = tags.input_tags.string = True
        return tags

    def _as_numbers(self, X: Any, sites: Any) -> Any:
        return encode_like(self._checked(X, reset=False), self._types, sites)

    def _checked(self, X: Any, *, reset: bool) -> Any:
        """What is one array is checked as scikit-learn does it; frames and tables by site are by their columns."""
        if is_frame(X) or is_site_list(X) or (isinstance(X, Mapping) and not hasattr(X, "shape")):
            return X
        least = 2 if reset else 1
        return validate_data(self, X, reset=reset, dtype=None, ensure_all_finite=False, ensure_min_samples=least)

    def _validate_federation(self, X: Any, y: Any, sites: Any, sample_weight: Any) -> tuple[Rows, Federation]:
        X = self._checked(X, reset=True)
        types = self._agreed = read_columns(X, self.columns, sites)
        rows, federation = super()._validate_federation(encode_like(X, types, sites), y, sites, sample_weight)
        return rows, replace(federation, types=types)

    def _check_family(self, federation: Federation) -> None:
        self._agreed = federation.types

    def _spec(self, *, candidate: bool = False, columns: tuple[str, ...] | None = None) -> FitSpec:
        if columns is not None:  # over a network, where the sites' values are not seen
            self._agreed = declared_columns(columns, self.columns)
        return super()._spec(candidate=candidate, columns=columns)

    def _check_parameters(self) -> None:
        check_choice("covariance_type", self.covariance_type, COVARIANCES)
        if self.degrees != "auto":
            check_number("degrees", self.degrees, least=1.0)
        if as_algorithm(self.algorithm).traits.whole_rows:
            raise InputError(
                f"{as_algorithm(self.algorithm).traits.title} does not run on tables, whose cells may be missing: its "
                "sites send sums over complete rows; use 'fedgrem', 'fedem', 'tgmm' or a local or pooled one."
            )
        super()._check_parameters()

    # -- units: numbers are standardized, codes and counts are not

    def _among(self, *kinds: str) -> Array:
        """Places of the columns of some types."""
        return np.array([j for j, column in enumerate(self._types) if column.kind in kinds], dtype=int)

    def _units_plan(self) -> UnitsPlan:
        return UnitsPlan(standardize=True, scaled=tuple(self._among(CONTINUOUS, ROBUST).tolist()))

    def _fit_units(self) -> Units | None:
        return Units(self.location_, self.scale_)

    def _log_volume(self, seen: Array, scale: Array | None) -> Array:
        return super()._log_volume(seen, scale) if scale is None else np.asarray(seen @ np.log(scale))

    def _of_means(self, units: Units) -> Units:
        """Location and scale of every mean."""
        columns = np.array([j for j, _ in self._table.mean_columns])
        return Units(units.location[columns], units.scale[columns])

    def _start_size(self, n_features: int) -> int:
        return len(self._table.mean_columns)

    def _theta_in_units(self, theta: Array, units: Units) -> Array:
        location, scale = self._of_means(units)
        return self._table.from_means((theta - location) / scale)

    def _means_of(self, theta: Array) -> Array:
        location, scale = self._of_means(Units(self.location_, self.scale_))
        return self._table.means(theta) * scale + location

    # -- what a fit found

    def _take_over(self, result: FitResult, labels: Array, search: Search | None) -> None:
        super()._take_over(self._completed(result), labels, search)

    def _unseen(self, result: FitResult) -> Array:
        """(K, p) columns of which a site tells nothing."""
        assert result.column_mean is not None
        assert result.column_deviation is not None
        return np.asarray(np.isnan(result.column_mean) | self._units_plan().constant(result.column_deviation))

    def _completed(self, result: FitResult) -> FitResult:
        """With the center's values for columns of which a site tells nothing."""
        unseen, family = self._unseen(result), self._table
        if not unseen.any():
            return result
        theta = result.theta.copy()
        for k, j in np.argwhere(unseen):
            own = family.coordinates_of(int(j))
            theta[k][:, own] = result.center[:, own]
        noise, lay = result.noise, family.layout
        if noise is not None and result.center_noise is not None:
            noise = noise.copy()
            apart = self.covariance_type == "diag"
            for k, j in np.argwhere(unseen):
                if apart and lay.continuous is not None and j in lay.continuous.columns:
                    at = lay.continuous.columns.index(int(j))
                    noise[k, :, at] = result.center_noise[:, at]
                elif lay.robust is not None and j in lay.robust.columns:
                    at = lay.noise[1].start + lay.robust.columns.index(int(j))
                    noise[k, :, at] = result.center_noise[:, at]
        distance = row_norm(family.to_noise(theta - result.center, result.center_noise))
        return result._replace(theta=theta, noise=noise, distance=distance)

    def _expose(self, result: FitResult) -> None:
        types = self._types
        self.columns_ = {column.name: column.kind for column in types}
        self.levels_ = {column.name: np.array(column.levels) for column in types if column.levels}
        assert result.column_mean is not None
        unseen = self._unseen(result)
        self.seen_ = ~unseen
        self.constant_ = np.where(unseen, result.column_mean, np.nan)
        super()._expose(result)

    def _expose_theta(self, result: FitResult) -> None:
        width = len(self._types)
        self.location_ = np.zeros(width) if result.location is None else result.location
        self.scale_ = np.ones(width) if result.scale is None else result.scale
        self.means_, self.center_ = self._means_of(result.theta), self._means_of(result.center)
        n_sites = len(result.weights)
        # Without continuous columns there is no noise: an array of no numbers stands for it.
        self.noise_ = np.zeros((n_sites, 1, 0)) if result.noise is None else result.noise
        self.center_noise_ = np.zeros((1, 0)) if result.center_noise is None else result.center_noise
        lay = self._table.layout
        if lay.continuous is not None:
            columns, structure = list(lay.continuous.columns), STRUCTURES[self.covariance_type]()
            scale = self.scale_[columns]
            both = scale[:, None] * scale
            of_sites, of_center = (
                structure.matrices(noise[..., lay.noise[0]], len(columns))
                for noise in (self.noise_, self.center_noise_)
            )
            self.covariances_, self.center_covariances_ = of_sites * both, of_center * both
        if lay.robust is not None:
            found = lay.robust.open(self.noise_[..., lay.noise[1]])
            self.scales_, self.degrees_ = found.scale * self.scale_[list(lay.robust.columns)], found.degrees

    def _column_notes(self, result: FitResult) -> tuple[list[str], list[str]]:
        counts = [name for name, kind in self.columns_.items() if kind == COUNT]
        return column_notes(list(self.columns_), result, self.levels_, counts, completed=True)

    def _per_site(self) -> tuple[str, ...]:
        more = ("seen_", "constant_", "scales_", "degrees_")
        return super()._per_site() + tuple(name for name in more if hasattr(self, name))

    def _params_of(self, k: int | None) -> Params:
        weights, means = (self.center_weights_, self.center_) if k is None else (self.weights_[k], self.means_[k])
        noise = self.center_noise_ if k is None else self.noise_[k]
        theta = self._theta_in_units(means, Units(self.location_, self.scale_))
        return Params(weights, theta, noise if noise.size else None)

    def _expose_errors(self, result: FitResult) -> None:
        self.weights_se_ = means = center = None
        if result.theta_covariance is not None and result.weights_variance is not None:
            assert result.center_covariance is not None
            self.weights_se_ = np.sqrt(result.weights_variance)
            means = self._errors(result.theta, result.theta_covariance)
            center = self._errors(result.center, result.center_covariance)
            of_column = [j for j, _ in self._table.mean_columns]
            means = np.where(self.seen_[:, None, of_column], means, np.nan)
        self._name_errors(means, center)

    def _errors(self, theta: Array, covariance: Array) -> Array:
        """Standard errors of means, ``(..., R, m)``, by how they change with the coordinates of their column."""
        family = self._table
        scale = self._of_means(Units(self.location_, self.scale_)).scale
        slopes = np.empty((*theta.shape[:-1], len(scale), theta.shape[-1]))
        for i, shift in enumerate(WIDTH * np.eye(theta.shape[-1])):
            slopes[..., i] = (family.means(theta + shift) - family.means(theta - shift)) / (2.0 * WIDTH)
        variance = np.empty((*theta.shape[:-1], len(scale)))
        for e, (j, _) in enumerate(family.mean_columns):
            own = family.coordinates_of(j)
            slope = slopes[..., e, own]
            variance[..., e] = np.einsum("...i,...ij,...j->...", slope, covariance[..., own[:, None], own], slope)
        return np.asarray(scale * np.sqrt(np.where(variance >= 0, variance, np.nan)))

    # -- using a fit

    def _rows_to_score(self, X: Any, sites: Any) -> tuple[Rows, Array]:
        """A continuous column that was constant at a site is not looked at there as long as it still is."""
        table, rows = super()._rows_to_score(X, sites)
        rows = rows.copy()
        for label, k in zip(table.labels, range(len(table.labels)), strict=True):
            place = self._place_of(label)
            if place is not None:
                mine = table.site_of_row == k
                rows[mine] = np.where(rows[mine] == self.constant_[place], np.nan, rows[mine])
        return table, rows

    def _draw(self, k: int | None, labels: Array, generator: Any) -> Array:
        """Rows are objects: numbers, and the names of levels."""
        params, family, n_samples = self._params_of(k), self._table, len(labels)
        means = (self.center_ if k is None else self.means_[k])[labels]
        rows = np.empty((n_samples, len(family.types)), dtype=object)
        of_column = np.array([j for j, _ in family.mean_columns])
        for j, column in enumerate(family.types):
            own = means[:, of_column == j]
            if column.kind == COUNT:
                rows[:, j] = generator.poisson(own[:, 0])
            elif column.kind in (BINARY, CATEGORICAL):
                chances = np.column_stack([1.0 - own, own]) if column.kind == BINARY else own
                below = np.cumsum(chances / chances.sum(axis=1, keepdims=True), axis=1)
                drawn = (generator.uniform(size=(n_samples, 1)) > below[:, :-1]).sum(axis=1)
                rows[:, j] = np.array(column.levels, dtype=object)[drawn]
            else:
                rows[:, j] = own[:, 0]
        lay = family.layout
        if lay.continuous is not None:
            matrices = self.center_covariances_ if k is None else self.covariances_[k]
            factors = np.linalg.cholesky(matrices)[labels if len(matrices) > 1 else np.zeros_like(labels)]
            noise = (factors @ generator.normal(size=(n_samples, factors.shape[-1], 1)))[..., 0]
            rows[:, lay.continuous.columns] += noise
        if lay.robust is not None and params.noise is not None:
            scales = lay.robust.open(params.noise[:, lay.noise[1]])
            place = labels if len(params.noise) > 1 else np.zeros_like(labels)
            columns = list(lay.robust.columns)
            drawn = generator.standard_t(scales.degrees[place], size=(n_samples, len(columns)))
            rows[:, columns] += drawn * scales.scale[place] * self.scale_[columns]
        return rows

    @property
    def mean_units(self) -> Array:
        """(m,) the standard deviation of a row about its component, of every mean: what makes means comparable."""
        units = np.ones(len(self.mean_names))
        middle = self.center_weights_ @ self.center_
        family = self._table
        for e, (j, _) in enumerate(family.mean_columns):
            kind = family.types[j].kind
            if kind in (BINARY, CATEGORICAL):
                units[e] = np.sqrt(max(middle[e] * (1.0 - middle[e]), 1e-4))
            elif kind == COUNT:
                units[e] = np.sqrt(max(middle[e], 1e-4))
            elif family.layout.continuous is not None and j in family.layout.continuous.columns:
                at = family.layout.continuous.columns.index(j)
                units[e] = np.sqrt(np.median(self.center_covariances_[:, at, at]))
            elif family.layout.robust is not None:
                at = family.layout.noise[1].start + family.layout.robust.columns.index(j)
                units[e] = np.exp(np.median(self.center_noise_[:, at])) * self.scale_[j]
        return units

    def profile(self, most: int = 5) -> list[list[str]]:
        """What tells the components apart at the center, in words: for each, the most telling means first.

        Such as "cp = 4: 62% against 30% elsewhere"; elsewhere is in the other components, by their weights.

        Parameters
        ----------
        most : means of each component.
        """
        units, weights, found = self.mean_units, self.center_weights_, []
        kinds = [self._table.types[j].kind for j, _ in self._table.mean_columns]
        for r, own in enumerate(self.center_):
            share = np.where(np.arange(len(weights)) == r, 0.0, weights)
            other = share @ self.center_ / max(share.sum(), 1e-300) if len(weights) > 1 else own
            order = np.argsort(-np.abs(own - other) / units, kind="stable")[:most]
            found.append([_told(self.mean_names[e], kinds[e], own[e], other[e], len(weights)) for e in order])
        return found


def _told(name: str, kind: str, own: float, other: float, n_components: int) -> str:
    def said(value: float) -> str:
        return f"{value:.0%}" if kind in (BINARY, CATEGORICAL) else f"{value:.3g}"

    return f"{name}: {said(own)}" + (f" against {said(other)} elsewhere" if n_components > 1 else "")
