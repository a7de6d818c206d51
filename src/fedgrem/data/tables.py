"""From what users pass (arrays, frames, a dict or a list per site) to one table and the site of every row."""

from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any, NamedTuple

import narwhals as nw
import numpy as np

from fedgrem.errors import InputError, InputTypeError, ShapeError
from fedgrem.types import Array

ONE_SITE = "all"
"""The name of the only site when no sites are given."""


class Table(NamedTuple):
    """All rows in one table, with the site of each."""

    rows: Any
    """(N, p) array or data frame, without the site column."""
    labels: Array
    """(K,) site labels as the user wrote them."""
    site_of_row: Array
    """(N,) index into ``labels``."""
    kind: str
    """"table", "mapping" or "sequence": how the rows came, and so how results go back."""


def is_frame(value: object) -> bool:
    """Whether narwhals knows this as an eager data frame (pandas, polars, pyarrow, ...)."""
    return isinstance(nw.from_native(value, eager_only=True, pass_through=True), nw.DataFrame)


def is_site_list(value: object) -> bool:
    """Whether this is a list of tables, one per site, and not a nested list of numbers."""
    return (
        isinstance(value, list | tuple)
        and len(value) > 0
        and all(is_frame(item) or (hasattr(item, "shape") and np.ndim(item) == 2) for item in value)
    )


def gather(rows: Any, sites: Any = None) -> Table:
    """One table from one table, a mapping of site name to table, or a list of tables.

    ``sites`` labels the rows of a table, or names one of its columns; of a list, it names the members.

    Examples
    --------
    >>> table = gather({"north": np.zeros((2, 1)), "south": np.ones((1, 1))})
    >>> table.labels.tolist(), table.site_of_row.tolist()
    (['north', 'south'], [0, 0, 1])
    """
    if isinstance(rows, Mapping) and not hasattr(rows, "shape"):  # some sparse matrices are mappings too
        if sites is not None:
            raise InputError("rows came as a mapping of site name to table, which names the sites; leave sites=None.")
        if not rows:
            raise InputError("got an empty mapping of sites; give at least two sites with rows.")
        return _stack(list(rows), list(rows.values()), "mapping")
    if is_site_list(rows):
        names = [str(k) for k in range(len(rows))] if sites is None else list(sites)
        if len(names) != len(rows):
            raise ShapeError(f"sites names {len(names)} sites, but {len(rows)} tables were given; give one name each.")
        return _stack(names, list(rows), "sequence")
    if isinstance(sites, str):
        rows, sites = _take_column(rows, sites)
    if is_frame(rows):
        _check_numeric("the table", rows)
    if sites is None:
        return Table(rows, np.array([ONE_SITE]), np.zeros(_length(rows), dtype=int), "table")
    labels, site_of_row = _label_rows(sites, _length(rows))
    return Table(rows, labels, site_of_row, "table")


def check_federation(table: Table, sites_given: bool) -> None:
    """Refuse to fit a federation of one named site: it is nearly always a mistake in the site column."""
    if len(table.labels) == 1 and (sites_given or table.kind != "table"):
        raise InputError(
            f"got only one site, {str(table.labels[0])!r}; a federation needs at least two. To fit one site alone, "
            "pass its rows as a table with sites=None."
        )


def check_target(target: Array | None, table: Table) -> None:
    """Refuse responses that are no numbers, and name the site where some are missing, before a general check does."""
    if target is not None and target.dtype.kind not in "biufc":
        try:
            target.astype(float)
        except (TypeError, ValueError) as error:
            first = target.ravel()[0] if target.size else None
            raise InputError(f"y is not numeric: it begins with {first!r} ({target.dtype}); give numbers.") from error
    if target is None or target.shape != table.site_of_row.shape or target.dtype.kind != "f" or len(table.labels) == 1:
        return
    bad = np.flatnonzero(~np.isfinite(target))
    if len(bad):
        site = str(table.labels[table.site_of_row[bad[0]]])
        raise InputError(
            f"y contains NaN or infinity in {len(bad)} row(s), the first at site {site!r}; drop or impute those rows."
        )


def gather_values(name: str, values: Any, table: Table) -> Array | None:
    """One value per row (a target, sample weights), in the order of the table's rows."""
    if values is None:
        return None
    if table.kind == "mapping" and isinstance(values, Mapping):
        missing = [label for label in table.labels.tolist() if label not in values]
        if missing or len(values) != len(table.labels):
            raise InputError(
                f"{name} names the sites {list(values)}, but the rows name {table.labels.tolist()}; use the same names."
            )
        values = [values[label] for label in table.labels.tolist()]
    if table.kind != "table" and isinstance(values, list | tuple) and len(values) == len(table.labels):
        counts = np.bincount(table.site_of_row, minlength=len(table.labels))
        for label, value, count in zip(table.labels, values, counts, strict=True):
            if np.shape(value) != (count,):
                raise ShapeError(
                    f"{name} of site {str(label)!r} has shape {np.shape(value)}, expected ({count},), one per row."
                )
        return np.concatenate([np.asarray(value) for value in values])
    return np.asarray(values)


def split_like(values: Array, table: Table, rows: Any = None, name: str = "component") -> Any:
    """Results in the shape the rows came in: an array, a dict of arrays, or a list of arrays.

    With ``rows``, one number for each of a pandas frame comes as a Series of this name with its index.
    """
    if table.kind == "table":
        return _indexed(values, rows, name)
    parts = [values[table.site_of_row == k] for k in range(len(table.labels))]
    if table.kind == "mapping":
        named = dict(zip(table.labels.tolist(), parts, strict=True))
        return named if rows is None else {site: _indexed(part, rows[site], name) for site, part in named.items()}
    return parts if rows is None else [_indexed(part, own, name) for part, own in zip(parts, rows, strict=True)]


def _indexed(values: Array, rows: Any, name: str) -> Any:
    if rows is None or not is_frame(rows):
        return values
    frame = nw.from_native(rows, eager_only=True)
    if not frame.implementation.is_pandas():
        return values
    return frame.implementation.to_native_namespace().Series(values, index=rows.index, name=name)


def column_names(rows: Any) -> list[str] | None:
    """Column names of a frame, None of an array."""
    return list(nw.from_native(rows, eager_only=True).columns) if is_frame(rows) else None


def _stack(labels: Sequence[Any], tables: list[Any], kind: str) -> Table:
    names = [str(label) for label in labels]
    first = column_names(tables[0])
    arrays: list[Array] = []
    for name, table in zip(names, tables, strict=True):
        columns = column_names(table)
        if columns is not None and first is not None and columns != first and set(columns) == set(first):
            table, columns = nw.from_native(table, eager_only=True).select(first).to_native(), first
        if columns != first and columns is not None and first is not None:
            raise InputError(
                f"site {name!r} has columns {columns}, expected {first} as at site {names[0]!r}; give every site the "
                "same columns."
            )
        if is_frame(table):
            _check_numeric(f"site {name!r}", table)
            table = nw.from_native(table, eager_only=True).to_numpy()
        array = np.asarray(table)
        if array.ndim != 2 or array.shape[1] != arrays[0].shape[1] if arrays else array.ndim != 2:
            expected = f"(n, {arrays[0].shape[1]}) as at site {names[0]!r}" if arrays else "(n, p)"
            raise ShapeError(f"site {name!r} has rows of shape {array.shape}, expected {expected}.")
        arrays.append(array)
    rows: Any = np.concatenate(arrays)
    if first is not None:
        native = nw.get_native_namespace(tables[0])
        rows = nw.from_numpy(rows, schema=first, backend=native).to_native()
    site_of_row = np.repeat(np.arange(len(arrays)), [len(array) for array in arrays])
    return Table(rows, _as_labels(labels), site_of_row, kind)


def _as_labels(labels: Sequence[Any]) -> Array:
    array = np.empty(len(labels), dtype=object)
    array[:] = list(labels)
    return np.array(list(labels)) if all(isinstance(label, str) for label in labels) else array


def _take_column(rows: Any, name: str) -> tuple[Any, Any]:
    if not is_frame(rows):
        raise InputTypeError(
            f"sites={name!r} names a column, but the rows are a {type(rows).__name__} without column names; pass a "
            "data frame, or one site label per row."
        )
    frame = nw.from_native(rows, eager_only=True)
    if name not in frame.columns:
        raise InputError(f"sites={name!r} is not a column; the columns are {list(frame.columns)}.")
    return frame.drop(name).to_native(), frame[name].to_list()


def _check_numeric(who: str, rows: Any) -> None:
    frame = nw.from_native(rows, eager_only=True)
    bad = [f"{name!r} ({kind})" for name, kind in frame.schema.items() if not is_numeric(frame, name)]
    if bad:
        raise InputError(
            f"{who} has columns that are not numeric: {', '.join(bad)}; drop them, encode them, or name the site "
            "column with sites=."
        )


def is_numeric(frame: nw.DataFrame[Any], name: str) -> bool:
    """Whether a column holds numbers or yes and no."""
    kind = frame.schema[name]
    return bool(kind.is_numeric() or kind == nw.Boolean or (kind == nw.Object and _holds_numbers(frame[name])))


def _holds_numbers(column: nw.Series[Any]) -> bool:
    """Whether every cell of a column of Python objects is a number, or missing."""
    return all(cell is None or isinstance(cell, Real) for cell in column.to_list())


def _length(rows: Any) -> int:
    """Number of rows; 0 of what is not a table, which the estimator's own validation then refuses."""
    shape = rows.shape if hasattr(rows, "shape") else np.asarray(rows, dtype=object).shape
    return int(shape[0]) if len(shape) > 0 else 0


def _is_missing(label: Any) -> bool:
    return label is None or label == "" or label != label


def _label_rows(sites: Any, n_rows: int) -> tuple[Array, Array]:
    if is_frame(sites) or np.ndim(sites) != 1:
        raise ShapeError(
            f"sites has shape {np.shape(sites)}, expected ({n_rows},): one label per row, or the name of a column."
        )
    listed = sites.to_list() if hasattr(sites, "to_list") else np.asarray(sites, dtype=object).tolist()
    if len(listed) != n_rows:
        raise ShapeError(f"sites has {len(listed)} labels for {n_rows} rows; give one label per row.")
    missing = [i for i, label in enumerate(listed) if _is_missing(label)]
    if missing:
        raise InputError(
            f"{len(missing)} row(s) have no site, the first is row {missing[0]}; name the site of every row or drop "
            "them."
        )
    kinds = sorted({type(label).__name__ for label in listed})
    try:
        labels = sorted(set(listed))
    except TypeError as error:
        raise InputTypeError(f"site labels mix the types {', '.join(kinds)}; use one type for all labels.") from error
    place = {label: k for k, label in enumerate(labels)}
    return np.array(labels), np.array([place[label] for label in listed])
