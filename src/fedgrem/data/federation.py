"""Federation: the rows of every site, in process, checked once and stacked for the engine."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import numpy as np

from fedgrem.errors import InputError, ShapeError
from fedgrem.types import Array, NumpyArray, SiteData

BUCKET_OVERHEAD = 4096
"""Padded rows that one more compiled bucket must save to be worth it."""
FINEST, COARSEST = 16, 512
"""Rows: padded sizes are multiples of the first, from thousands of rows on of the second, an eighth of n in between."""
FREE, MOST_FREE = 1024, 128
"""Rows of padding that cost next to nothing, of all sites together and of one: few small sites are padded more."""
LARGEST, LEAST_VARIATION = 1e100, 1e-100
"""Of a value, and of a column: squares of what is larger are infinite, or soon will be, and of what is smaller zero."""


@dataclass(frozen=True)
class Site:
    """The rows of one site: ``rows`` (n, p), ``target`` (n,) or None, ``row_weight`` (n,)."""

    name: str
    rows: NumpyArray
    target: NumpyArray | None
    row_weight: NumpyArray

    def as_data(self, n_padded: int | None = None, dtype: type = np.float64, *, gaps: bool = False) -> SiteData:
        """The site as its local step sees it, in a canonical row order, padded with rows of weight 0.

        Rows are sorted by their values, so that the order in which they were recorded cannot change a fit. With
        ``gaps``, cells may be missing (NaN); the middle of their column stands in their place where starts are drawn.
        """
        n = len(self.rows)
        target = np.zeros(n) if self.target is None else self.target
        order = _order(self.rows, target)
        size = n if n_padded is None else n_padded
        # Padding repeats a real row: a user's density may be infinite at a made-up one, and 0 * inf is not 0.
        padded = np.concatenate([order, np.full(size - n, order[0])])
        weight: Any = np.zeros(size, dtype)
        weight[:n] = self.row_weight[order]
        rows: Any = self.rows[padded].astype(dtype)  # NumPy until the sites are stacked
        observed: Any = np.ascontiguousarray(~np.isnan(rows).T).astype(dtype) if gaps else None
        rows = np.where(np.isnan(rows), _middles(self.rows), rows).astype(dtype) if gaps else rows
        columns: Any = np.ascontiguousarray(rows.T)
        padded_target: Any = target[padded].astype(dtype)
        return SiteData(columns, padded_target, weight, rows, observed)


class Units(NamedTuple):
    """The location and scale in which a federation is fitted."""

    location: NumpyArray
    """(p,), or (p + 1,) with that of the response last."""
    scale: NumpyArray
    """The same, positive."""


@dataclass(frozen=True)
class Federation:
    """The data of all sites, in process. Build it with :meth:`from_sites`, which checks it."""

    sites: tuple[Site, ...]
    columns: tuple[str, ...]

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
        rows: Sequence[NumpyArray],
        targets: Sequence[NumpyArray] | None = None,
        row_weights: Sequence[NumpyArray] | None = None,
        *,
        columns: Sequence[str] | None = None,
        min_rows: int = 1,
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
        if rows[0].ndim != 2:
            raise ShapeError(f"site {names[0]!r} has rows of shape {rows[0].shape}, expected (n, p): one line per row.")
        n_features = rows[0].shape[1]
        labels = tuple(columns) if columns is not None else tuple(f"x{j}" for j in range(n_features))
        sites = []
        for k, name in enumerate(names):
            target = None if targets is None else targets[k]
            weight = np.ones(len(rows[k])) if row_weights is None else row_weights[k]
            _check_site(name, rows[k], target, weight, labels, names[0], min_rows, missing_allowed)
            sites.append(Site(name, rows[k], target, weight))
        return cls(tuple(sites), labels)

    def merged(self) -> "Federation":
        """All rows in one pot: a federation of one site, named after the first site in alphabetical order."""
        targets = [site.target for site in self.sites if site.target is not None]
        pot = Site(
            min(self.names),
            np.concatenate([site.rows for site in self.sites]),
            np.concatenate(targets) if targets else None,
            np.concatenate([site.row_weight for site in self.sites]),
        )
        return Federation((pot,), self.columns)

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

    def stacked(self, dtype: type = np.float64) -> tuple[tuple[SiteData, ...], Array]:
        """Sites stacked in buckets of similar size, and the site index of every stacked place."""
        buckets, order = [], []
        gaps = any(np.isnan(site.rows).any() for site in self.sites)
        for size, members in bucket_sizes([len(site.rows) for site in self.sites]):
            stacked = [self.sites[k].as_data(size, dtype, gaps=gaps) for k in members]
            buckets.append(jax.tree.map(lambda *leaves: jax.device_put(np.stack(leaves)), *stacked))
            order.extend(members)
        return tuple(buckets), jax.device_put(np.array(order))


def _middles(rows: NumpyArray) -> NumpyArray:
    """(p,) the mean of what is there of every column; 0 of one without a single cell."""
    seen = ~np.isnan(rows)
    middles: NumpyArray = rows.sum(axis=0, where=seen) / np.maximum(seen.sum(axis=0), 1)
    return middles


def _order(rows: NumpyArray, target: NumpyArray) -> NumpyArray:
    """(n,) rows by their first column, then by the others and the target; the others are looked at only for ties."""
    order = np.argsort(rows[:, 0])
    rises = np.diff(rows[order, 0]) > 0  # False where there are ties, and where cells are missing
    tied = ~(np.append(True, rises) & np.append(rises, True))
    if tied.any():
        among = np.sort(order[tied])
        order[tied] = among[np.lexsort((target[among], *rows[among].T[::-1]))]
    return order


def padded_size(n_rows: int) -> int:
    """What the rows of one site on its own are padded to."""
    return bucket_sizes([n_rows])[0][0]


def bucket_sizes(n_rows: Sequence[int]) -> list[tuple[int, list[int]]]:
    """Group sites by size: a list of (padded size, site indices), largest first.

    A new bucket begins where a site is less than half the bucket's size and padding all the rest to it would cost more
    than a bucket does. Sizes are rounded up, so that similar federations share a compiled program: compiling takes far
    longer than a fit of so many rows.

    Examples
    --------
    >>> bucket_sizes([150, 150])
    [(256, [0, 1])]
    >>> [(size, len(members)) for size, members in bucket_sizes([100_000] + [100] * 50)]
    [(100352, 1), (112, 50)]
    """
    by_size = np.argsort([-n for n in n_rows], kind="stable").tolist()
    free = FREE // len(n_rows)
    finest = next((grain for grain in (MOST_FREE, 64, 32) if grain <= free), FINEST)
    buckets: list[tuple[int, list[int]]] = []
    for place, k in enumerate(by_size):
        n = n_rows[k]
        grain = min(max(2 ** (n.bit_length() - 4), finest), COARSEST)
        size = max(grain, -(-n // grain) * grain)
        waste = (buckets[-1][0] - size) * (len(by_size) - place) if buckets else 0
        if not buckets or (2 * n < buckets[-1][0] and waste > BUCKET_OVERHEAD):
            buckets.append((size, []))
        buckets[-1][1].append(k)
    return [(size, sorted(members)) for size, members in buckets]


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
    rows: NumpyArray,
    target: NumpyArray | None,
    weight: NumpyArray,
    columns: tuple[str, ...],
    first_name: str,
    min_rows: int,
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
        raise InputError(f"site {name!r} has no rows; leave it out, or give it at least {min_rows}.")
    check_finite(name, np.where(np.isnan(rows), 0.0, rows) if missing_allowed else rows, columns)
    if target is not None:
        if target.shape != (len(rows),):
            raise ShapeError(
                f"site {name!r} has a target of shape {target.shape}, expected ({len(rows)},), one value per row."
            )
        check_finite(name, target[:, None], ("y",))
    _check_weight(name, weight, len(rows))
    used = int((weight > 0).sum())
    if used == 0:
        raise InputError(f"site {name!r} has only sample weights of zero; leave it out, or weigh some rows.")
    if used < min_rows:
        raise InputError(
            f"site {name!r} has {used} row(s) with positive weight, fewer than the {min_rows} components to fit; "
            "use fewer components, leave the site out, or merge it with a similar one."
        )


def _check_weight(name: str, weight: NumpyArray, n_rows: int) -> None:
    if weight.shape != (n_rows,):
        raise ShapeError(
            f"site {name!r} has sample weights of shape {weight.shape}, expected ({n_rows},), one per row."
        )
    if not np.all(np.isfinite(weight)) or np.any(weight < 0):
        raise InputError(
            f"site {name!r} has negative, NaN or infinite sample weights; weights must be >= 0 and finite."
        )


def check_finite(name: str, values: NumpyArray, columns: Sequence[str]) -> None:
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


def _places(found: NumpyArray, columns: Sequence[str]) -> str:
    """The columns in which something was found, the first five of them."""
    where = [str(columns[j]) for j in np.flatnonzero(found.any(axis=0)).tolist()]
    return ", ".join(where[:5]) + (", ..." if len(where) > 5 else "")
