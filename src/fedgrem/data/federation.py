"""Federation: the rows of every site, in process, checked once and stacked for the engine."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from fedgrem.data.stack import Stack, padded_size
from fedgrem.errors import InputError, ShapeError
from fedgrem.types import Array

LARGEST, LEAST_VARIATION = 1e100, 1e-100
"""Of a value, and of a column: squares of what is larger are infinite, or soon will be, and of what is smaller zero."""
LEAST_KEPT = 0.01
"""Of the weight of a site's rows, where one row is taken about itself."""


@dataclass(frozen=True)
class Site:
    """The rows of one site: ``rows`` (n, p), ``target`` (n,) or None, ``row_weight`` (n,)."""

    name: str
    rows: Array
    target: Array | None
    row_weight: Array

    def ordered(self) -> Array:
        """(n,) places of the rows in an order that depends on their values only, so that no fit depends on theirs."""
        return _order(self.rows, np.zeros(len(self.rows)) if self.target is None else self.target)


class Units(NamedTuple):
    """The location and scale in which a federation is fitted."""

    location: Array
    """(p,), or (p + 1,) with that of the response last."""
    scale: Array
    """The same, positive."""


@dataclass(frozen=True)
class Federation:
    """The data of all sites, in process. Build it with :meth:`from_sites`, which checks it."""

    sites: tuple[Site, ...]
    columns: tuple[str, ...]
    types: Any = ()
    """What the columns are, where they are of several types."""

    @property
    def names(self) -> tuple[str, ...]:
        """Site names, in order."""
        return tuple(site.name for site in self.sites)

    @property
    def n_features(self) -> int:
        """Columns of every site."""
        return len(self.columns)

    @classmethod
    def from_sites(
        cls,
        names: Sequence[str],
        rows: Sequence[Array],
        targets: Sequence[Array] | None = None,
        row_weights: Sequence[Array] | None = None,
        *,
        columns: Sequence[str] | None = None,
        missing_allowed: bool = False,
    ) -> "Federation":
        """Check every site and put them together; each complaint names the site, what was got, and what to do.

        With ``missing_allowed``, a cell may be NaN.
        """
        if len(names) != len(rows):
            raise ShapeError(f"got {len(names)} site names for {len(rows)} sites; give one name per site.")
        if not names:
            raise InputError("got no sites; give at least one site with rows.")
        for what, values in (("targets", targets), ("row_weights", row_weights)):
            if values is not None and len(values) != len(names):
                raise ShapeError(f"got {what} of {len(values)} sites for {len(names)} sites; give them for every site.")
        _check_names(names)
        # In other kinds of numbers even the comparison with a limit may overflow.
        rows = [np.asarray(own, dtype=float) for own in rows]
        targets = None if targets is None else [np.asarray(own, dtype=float) for own in targets]
        row_weights = None if row_weights is None else [np.asarray(own, dtype=float) for own in row_weights]
        if rows[0].ndim != 2:
            raise ShapeError(f"site {names[0]!r} has rows of shape {rows[0].shape}, expected (n, p): one line per row.")
        n_features = rows[0].shape[1]
        labels = tuple(columns) if columns is not None else tuple(f"x{j}" for j in range(n_features))
        sites = []
        for k, name in enumerate(names):
            target = None if targets is None else targets[k]
            weight = np.ones(len(rows[k])) if row_weights is None else row_weights[k]
            _check_site(name, rows[k], target, weight, labels, names[0], missing_allowed)
            sites.append(Site(name, rows[k], target, weight))
        return cls(tuple(sites), labels)

    def merged(self) -> "Federation":
        """The pooled rows: a federation of one site, named after the first site in alphabetical order."""
        targets = [site.target for site in self.sites if site.target is not None]
        pot = Site(
            min(self.names),
            np.concatenate([site.rows for site in self.sites]),
            np.concatenate(targets) if targets else None,
            np.concatenate([site.row_weight for site in self.sites]),
        )
        return Federation((pot,), self.columns)

    def of_columns(self, places: Sequence[int]) -> "Federation":
        """The same rows with some of their columns."""
        sites = tuple(replace(site, rows=site.rows[:, list(places)]) for site in self.sites)
        return Federation(sites, tuple(self.columns[j] for j in places), self.types)

    def in_units(self, units: Units, *, intercept: bool = False) -> "Federation":
        """The same rows in other units, the response of a regression last; a column of ones is added on demand."""
        width = self.n_features
        location, scale = units.location[:width], units.scale[:width]
        sites = []
        for site in self.sites:
            rows = (site.rows - location) / scale
            if intercept:
                rows = np.column_stack([rows, np.ones(len(rows))])
            target = None if site.target is None else (site.target - units.location[-1]) / units.scale[-1]
            sites.append(Site(site.name, rows, target, site.row_weight))
        return Federation(tuple(sites), (*self.columns, "intercept") if intercept else self.columns)

    def within_sites(self) -> "Federation":
        r"""Columns and response about each site's weighted means, as rows that have lost nothing by that.

        n rows about their mean know as much of slopes and noise as n - 1 rows: the deviations grow by
        :math:`\sqrt{n/(n-1)}`, and row weights shrink by the square of that. One row knows next to nothing.
        """
        sites = []
        for site in self.sites:
            total = float(site.row_weight.sum())
            kept = max(1.0 - 1.0 / total, LEAST_KEPT)
            grown = 1.0 / np.sqrt(kept) if kept > LEAST_KEPT else 1.0
            share = site.row_weight / total

            def about(values: Array, share: Array = share, grown: float = grown) -> Array:
                return np.asarray(grown * (values - share @ values))

            target = None if site.target is None else about(site.target)
            sites.append(Site(site.name, about(site.rows), target, kept * site.row_weight))
        return Federation(tuple(sites), self.columns)

    def check_columns(self, *, constant_allowed: bool) -> None:
        """Refuse a column that says nothing at any site: all zeros, or one value where no intercept can be meant."""
        for j, column in enumerate(self.columns):
            values = np.concatenate([site.rows[:, j] for site in self.sites])
            values = values[~np.isnan(values)]
            if not len(values):
                raise InputError(f"column {column!r} is missing in every row of every site; drop it.")
            low, high = values.min(), values.max()
            if low == high and (low == 0.0 or not constant_allowed):
                raise InputError(
                    f"column {column!r} is constant ({low:g}) at every site and carries no information; drop it."
                )
            if 0.0 < high - low < LEAST_VARIATION:
                raise InputError(
                    f"column {column!r} varies by no more than {high - low:.3g} over all sites, the square of which is "
                    "zero; use another unit for it."
                )

    def stacked(self, *, gaps: bool | None = None) -> list[tuple[Stack, Array]]:
        """Sites stacked by padded size, and the places of the sites of each stack.

        With ``gaps``, cells may be missing (NaN); the middle of their column stands in their place where starts are
        drawn. None looks whether there are any.
        """
        if gaps is None:
            gaps = any(np.isnan(site.rows).any() for site in self.sites)
        sizes = np.array([padded_size(len(site.rows)) for site in self.sites])
        places = [np.flatnonzero(sizes == size) for size in np.unique(sizes)]
        return [(stack_sites([self.sites[k] for k in here], gaps=gaps), here) for here in places]


def stack_sites(sites: Sequence[Site], *, gaps: bool) -> Stack:
    """Sites of one padded size, stacked, and filled up with rows of weight 0.

    Padding repeats a real row: a user's density may be infinite at a made-up one, and 0 * inf is not 0.
    """
    size = max(padded_size(len(site.rows)) for site in sites)
    # Beside a column of ones, so that the features (1, x) of many sites need no copy.
    rows = np.ones((len(sites), size, 1 + sites[0].rows.shape[1]))[:, :, 1:]
    weight = np.zeros((len(sites), size))
    target = None if sites[0].target is None else np.zeros((len(sites), size))
    observed = np.ones(rows.shape, dtype=bool) if gaps else None
    for k, site in enumerate(sites):
        order, n = site.ordered(), len(site.rows)
        own = site.rows[order]
        if observed is not None:
            observed[k, :n] = ~np.isnan(own)
            observed[k, n:] = observed[k, 0]
            own = np.where(np.isnan(own), _middles(own), own)
        rows[k, :n], rows[k, n:], weight[k, :n] = own, own[0], site.row_weight[order]
        if target is not None and site.target is not None:
            target[k, :n], target[k, n:] = site.target[order], site.target[order[0]]
    return Stack([site.name for site in sites], rows, target, weight, observed)


def _middles(rows: Array) -> Array:
    """(p,) the mean of what is there of every column; 0 of one without a single cell."""
    seen = ~np.isnan(rows)
    middles: Array = rows.sum(axis=0, where=seen) / np.maximum(seen.sum(axis=0), 1)
    return middles


def _order(rows: Array, target: Array) -> Array:
    """(n,) rows by their first column, then by the others and the target; the others are looked at only for ties."""
    order = np.argsort(rows[:, 0])
    rises = np.diff(rows[order, 0]) > 0  # False where there are ties, and where cells are missing
    tied = ~(np.append(True, rises) & np.append(rises, True))
    if tied.any():
        among = np.sort(order[tied])
        order[tied] = among[np.lexsort((target[among], *rows[among].T[::-1]))]
    return order


def _check_names(names: Sequence[str]) -> None:
    missing = [k for k, name in enumerate(names) if not name]
    if missing:
        raise InputError(f"site number {missing[0]} has no name; give every site a non-empty name.")
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise InputError(f"site name {name!r} occurs more than once; give every site a name of its own.")
        seen.add(name)


def _check_site(
    name: str,
    rows: Array,
    target: Array | None,
    weight: Array,
    columns: tuple[str, ...],
    first_name: str,
    missing_allowed: bool,
) -> None:
    if rows.ndim != 2 or rows.shape[1] != len(columns):
        raise ShapeError(
            f"site {name!r} has rows of shape {rows.shape}, expected (n, {len(columns)}) as at site {first_name!r}; "
            "give every site the same columns in the same order."
        )
    if rows.shape[1] == 0:
        raise InputError(f"site {name!r} has 0 feature(s) (shape={rows.shape}) while a minimum of 1 is required.")
    if len(rows) == 0:
        raise InputError(f"site {name!r} has no rows; leave it out, or give it some.")
    check_finite(name, np.where(np.isnan(rows), 0.0, rows) if missing_allowed else rows, columns)
    if target is not None:
        if target.shape != (len(rows),):
            raise ShapeError(
                f"site {name!r} has a target of shape {target.shape}, expected ({len(rows)},), one value per row."
            )
        check_finite(name, target[:, None], ("y",))
    _check_weight(name, weight, len(rows))
    if not (weight > 0).any():
        raise InputError(f"site {name!r} has only sample weights of zero; leave it out, or weigh some rows.")


def _check_weight(name: str, weight: Array, n_rows: int) -> None:
    if weight.shape != (n_rows,):
        raise ShapeError(
            f"site {name!r} has sample weights of shape {weight.shape}, expected ({n_rows},), one per row."
        )
    if not np.all(np.isfinite(weight)) or np.any(weight < 0):
        raise InputError(
            f"site {name!r} has negative, NaN or infinite sample weights; weights must be >= 0 and finite."
        )


def check_finite(name: str, values: Array, columns: Sequence[str]) -> None:
    """Refuse NaN, infinity and what squares to it at a site, with their number and place."""
    bad = ~np.isfinite(values)
    if bad.any():
        n_nan, n_inf = int(np.isnan(values).sum()), int(np.isinf(values).sum())
        raise InputError(
            f"site {name!r} contains NaN ({n_nan}) or infinity ({n_inf}) in {int(bad.any(axis=1).sum())} row(s), "
            f"in column(s) {_places(bad, columns)}; drop or impute those rows, or fit Gaussian components with "
            "missing='em' (NaN only)."
        )
    size = np.abs(values)
    if (size > LARGEST).any():
        raise InputError(
            f"site {name!r} holds values as large as {size.max():.3g}, in column(s) "
            f"{_places(size > LARGEST, columns)}; beyond {LARGEST:g} nothing can be computed from their squares. "
            "Correct them, or use another unit."
        )


def _places(found: Array, columns: Sequence[str]) -> str:
    """The columns in which something was found, the first five of them."""
    where = [str(columns[j]) for j in np.flatnonzero(found.any(axis=0)).tolist()]
    return ", ".join(where[:5]) + (", ..." if len(where) > 5 else "")
