"""The columns of a table and their types: found from dtypes and values, or given by name; and cells as numbers.

Categories are known by their names, as words: 4 and 4.0 are "4", True and False are "yes" and "no". What a column is,
is agreed on before rows are touched: from the tables of all sites where these are in one process, and in the words of
the fit over a network, where no site shows its values.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, NamedTuple

import narwhals as nw
import numpy as np

from fedgrem.data.tables import is_frame, is_site_list
from fedgrem.errors import InputError, InputTypeError
from fedgrem.types import Array

CONTINUOUS, ROBUST, BINARY, CATEGORICAL, COUNT = "continuous", "robust", "binary", "categorical", "count"
KINDS = (CONTINUOUS, ROBUST, BINARY, CATEGORICAL, COUNT)
AUTO = "auto"
MOST_CODES = 5
"""Whole numbers of so many values are taken as codes of categories, unless the type is given."""
MOST_LEVELS = 50
"""A column of more words than that names things rather than kinds of them."""
MOST_COUNT = 50
"""Whole numbers from 0 or 1 up to at most that are taken as counts."""
NO, YES = "no", "yes"


@dataclass(frozen=True)
class Column:
    """A column of a table: its name, what it is, and the names of its levels if it has any."""

    name: str
    kind: str
    levels: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.name}: {self.kind}" + (f" ({', '.join(self.levels)})" if self.levels else "")

    def as_plain(self) -> list[Any]:
        """Words and lists, for JSON."""
        return [self.name, self.kind, list(self.levels)]


class Cells(NamedTuple):
    """One column of one site as it came: numbers, or words."""

    numbers: Array | None
    """(n,) NaN where a cell is missing; None if the column holds words."""
    words: Array | None
    """(n,) objects, None where a cell is missing."""
    levels: tuple[str, ...] = ()
    """Levels that the column itself declares, in order."""


def columns_from_plain(plain: Any) -> tuple[Column, ...]:
    """Columns from JSON, as :meth:`Column.as_plain` wrote them, or refused."""
    if not isinstance(plain, list | tuple) or not plain:
        raise InputError("the columns of a table are not a list of [name, type, levels].")
    found = []
    for one in plain:
        if isinstance(one, Column):
            one = one.as_plain()
        if (
            not isinstance(one, list | tuple)
            or len(one) != 3
            or not isinstance(one[0], str)
            or not isinstance(one[2], list | tuple)
            or not all(isinstance(level, str) for level in one[2])
        ):
            raise InputError(f"the column {str(one)[:60]} of a table is not [name, type, levels].")
        found.append(_checked(Column(one[0], one[1], tuple(one[2]))))
    names = [column.name for column in found]
    if len(set(names)) < len(names):
        raise InputError("two columns of a table have one name; give every column a name of its own.")
    return tuple(found)


def _checked(column: Column) -> Column:
    if column.kind not in KINDS:
        raise InputError(
            f"column {column.name!r} is to be {str(column.kind)[:40]!r}; a type is one of {', '.join(KINDS)}."
        )
    n_levels, wants = len(column.levels), column.kind in (BINARY, CATEGORICAL)
    if len(set(column.levels)) < n_levels:
        raise InputError(f"column {column.name!r} names a level twice: {', '.join(column.levels)}.")
    if wants and (n_levels < 2 or (column.kind == BINARY and n_levels > 2) or n_levels > 1000):
        expected = "2 levels" if column.kind == BINARY else "2 levels or more"
        raise InputError(f"column {column.name!r} is {column.kind} with {n_levels} level(s), expected {expected}.")
    if not wants and n_levels:
        raise InputError(f"column {column.name!r} is {column.kind} and has no levels, got {', '.join(column.levels)}.")
    return column


# -- finding out what columns are


def word(value: Any) -> str | None:
    """The name of a level.

    Examples
    --------
    >>> [word(v) for v in (4, 4.0, 4.5, True, "asymptomatic", float("nan"), None)]
    ['4', '4', '4.5', 'yes', 'asymptomatic', None, None]
    """
    if value is None or value != value:  # NaN, NA and NaT are not themselves
        return None
    if isinstance(value, bool | np.bool_):
        return YES if value else NO
    if isinstance(value, int | float | np.integer | np.floating):
        return str(int(value)) if float(value).is_integer() else repr(float(value))
    return str(value)


def read_columns(X: Any, wanted: Any = AUTO, sites: Any = None) -> tuple[Column, ...]:
    """What the columns of a table are, of all sites together.

    Parameters
    ----------
    X : a data frame or array, or a dict or list of them, one per site.
    wanted : "auto", or a dict of column names to types or lists of levels; the others are "auto".
    sites : the name of the site column, which is not one of them.

    Examples
    --------
    >>> import pandas as pd
    >>> frame = pd.DataFrame({"age": [61.5, 47.0], "smokes": [True, False], "pain": ["none", "mild"]})
    >>> print(*read_columns(frame, {"pain": ["none", "mild", "severe"]}), sep="; ")
    age: continuous; smokes: binary (no, yes); pain: categorical (none, mild, severe)
    """
    wanted = _wanted(wanted)
    tables = list(_tables(X).values())
    names = _names(tables[0], sites)
    for name in wanted:
        if str(name) not in names:
            raise InputError(f"columns names {str(name)!r}, which is no column{near(str(name), names)}.")
    cells = [_cells_of(table, names) for table in tables]
    return tuple(_read(name, [own[name] for own in cells], wanted.get(name, AUTO)) for name in names)


def declared_columns(names: Sequence[str], wanted: Any) -> tuple[Column, ...]:
    """The columns of tables that nobody here has seen: a type or levels must be given for each."""
    wanted = _wanted(wanted)
    found = []
    for name in names:
        value = wanted.get(name, AUTO)
        if value == AUTO or value in (BINARY, CATEGORICAL):
            needed = "its type" if value == AUTO else "its levels"
            raise InputError(
                f"column {name!r} needs {needed} before rows are touched, because no site shows its values over a "
                f"network; name it, such as columns={{{name!r}: "
                f"{repr('continuous') if value == AUTO else repr(['no', 'yes'])}}}."
            )
        found.append(_read(name, [], value))
    return tuple(found)


def _wanted(wanted: Any) -> dict[str, Any]:
    if isinstance(wanted, str):
        if wanted != AUTO:
            raise InputError(f"columns must be 'auto' or a dict of names to types, got {wanted!r}.")
        return {}
    if not isinstance(wanted, Mapping):
        raise InputTypeError(f"columns must be 'auto' or a dict of names to types, got {type(wanted).__name__}.")
    return {str(name): value for name, value in wanted.items()}


def near(name: str, names: Sequence[str]) -> str:
    """The nearest of some names, in words; nothing if none is near.

    Examples
    --------
    >>> near("hights", ["height", "weight"]), near("x", ["height"])
    ("; did you mean 'height'?", '')
    """
    found = get_close_matches(name.lower(), [other.lower() for other in names], n=1, cutoff=0.6)
    return "" if not found else f"; did you mean {next(n for n in names if n.lower() == found[0])!r}?"


def _tables(X: Any) -> dict[str, Any]:
    if isinstance(X, Mapping) and not hasattr(X, "shape"):
        if not X:
            raise InputError("got an empty mapping of sites; give at least two sites with rows.")
        return {str(name): table for name, table in X.items()}
    if is_site_list(X):
        return {str(k): table for k, table in enumerate(X)}
    return {"": X}


def _names(table: Any, sites: Any) -> list[str]:
    if is_frame(table):
        found = [str(name) for name in nw.from_native(table, eager_only=True).columns]
        return [name for name in found if not (isinstance(sites, str) and name == sites)]
    array = np.asarray(table)
    if array.ndim != 2:
        raise InputError(f"the table has shape {array.shape}, expected (n, p): one line per row.")
    return [f"x{j}" for j in range(array.shape[1])]


def _cells_of(table: Any, names: Sequence[str], who: str = "the table") -> dict[str, Cells]:
    """The columns of a table by their names, in any order."""
    if not is_frame(table):
        array = np.asarray(table)
        if array.ndim != 2 or array.shape[1] != len(names):
            raise InputError(f"{who} has shape {array.shape}, expected (n, {len(names)}): one column for each name.")
        return {name: _of_values(array[:, j]) for j, name in enumerate(names)}
    frame: Any = nw.from_native(table, eager_only=True)
    called = {str(name): name for name in frame.columns}  # pandas may call them by numbers
    lacking = [name for name in names if name not in called]
    if lacking:
        there = list(called)
        raise InputError(f"{who} has no column {lacking[0]!r}{near(lacking[0], there)}; its columns are {there}.")
    return {name: _of_series(frame.get_column(called[name])) for name in names}


def _of_series(series: Any) -> Cells:
    kind = series.dtype
    if kind.is_numeric():
        numbers = series.cast(nw.Float64).to_numpy()
        return Cells(np.array(numbers, dtype=float), None)
    cells = _of_values(np.array([*series.to_list(), None], dtype=object)[:-1])
    if kind == nw.Categorical or kind == nw.Enum:  # whose names may be numbers
        declared = (word(level) for level in getattr(kind, "categories", ()))
        return Cells(None, _as_words(cells), tuple(level for level in declared if level is not None))
    return cells


def _of_values(values: Array) -> Cells:
    if values.dtype.kind in "iuf":
        return Cells(values.astype(float), None)
    if values.dtype.kind == "c":
        raise InputError("the table holds complex numbers; give numbers, words or yes/no.")
    found = values.astype(object)
    missing = np.array([v is None or v != v for v in found], dtype=bool)
    if all(isinstance(v, int | float | np.number) and not isinstance(v, bool) for v in found[~missing]):
        numbers = np.full(len(found), np.nan)
        numbers[~missing] = found[~missing].astype(float)
        return Cells(numbers, None)
    return Cells(None, np.array([None if gone else word(v) for v, gone in zip(found, missing, strict=True)], object))


def _as_words(cells: Cells) -> Array:
    if cells.words is not None:
        return cells.words
    assert cells.numbers is not None
    values, place = np.unique(cells.numbers, return_inverse=True)
    named = np.array([*(word(v) for v in values), None], dtype=object)[:-1]
    return np.asarray(named[place])


def _read(name: str, sites: list[Cells], wanted: Any) -> Column:
    """What one column is, from all sites."""
    if not isinstance(wanted, str):
        if not isinstance(wanted, list | tuple):
            raise InputTypeError(
                f"columns[{name!r}] must be a type ({', '.join(KINDS)}) or a list of levels, got {wanted!r}."
            )
        levels = tuple(str(word(level)) for level in wanted)
        return _checked(Column(name, BINARY if len(levels) == 2 else CATEGORICAL, levels))
    if wanted not in (AUTO, *KINDS):
        raise InputError(f"columns[{name!r}]={wanted!r} is no type; a type is one of {', '.join(KINDS)}.")
    wordy = any(cells.words is not None and any(w is not None for w in cells.words) for cells in sites)
    if wanted == AUTO:
        wanted = CATEGORICAL if wordy else _kind_of_numbers(sites)
    if wanted in (BINARY, CATEGORICAL):
        return _with_levels(name, sites, wanted)
    if wordy:
        first = next(w for cells in sites if cells.words is not None for w in cells.words if w is not None)
        raise InputError(f"column {name!r} is to be {wanted}, but holds words such as {first!r}; give it numbers.")
    return Column(name, wanted)


def _kind_of_numbers(sites: list[Cells]) -> str:
    values = np.unique(np.concatenate([_there(cells) for cells in sites]))
    if not len(values) or not np.isfinite(values).all() or (values != np.round(values)).any():
        return CONTINUOUS
    if len(values) <= MOST_CODES:
        return CATEGORICAL
    return COUNT if values[0] in (0.0, 1.0) and values[-1] <= MOST_COUNT else CONTINUOUS


def _there(cells: Cells) -> Array:
    return np.empty(0) if cells.numbers is None else cells.numbers[~np.isnan(cells.numbers)]


def _with_levels(name: str, sites: list[Cells], wanted: str) -> Column:
    met: dict[str, None] = {}
    declared: dict[str, None] = {}
    for cells in sites:
        met |= dict.fromkeys(w for w in _as_words(cells) if w is not None)
        declared |= dict.fromkeys(cells.levels)
    levels = [level for level in declared if level in met] + sorted(
        (w for w in met if w not in declared), key=_in_order
    )
    if not levels:
        raise InputError(f"column {name!r} is missing in every row of every site; drop it.")
    if len(levels) == 1:
        raise InputError(
            f"column {name!r} is constant ({levels[0]}) at every site and carries no information; drop it."
        )
    if len(levels) > MOST_LEVELS:
        raise InputError(
            f"column {name!r} has {len(levels)} different values such as {levels[0]!r} and {levels[1]!r}, more than "
            f"the {MOST_LEVELS} that kinds of rows could be told apart by; drop it, or give it a type in columns=."
        )
    if wanted == BINARY and len(levels) > 2:
        raise InputError(f"column {name!r} is to be binary, but has the values {', '.join(levels[:6])}.")
    return Column(name, BINARY if len(levels) == 2 else CATEGORICAL, tuple(levels))


def _in_order(level: str) -> tuple[int, float, str]:
    """Numbers by their size, "no" before "yes" as all other words by the alphabet."""
    try:
        return 0, float(level), level
    except ValueError:
        return 1, 0.0, level


# -- cells as numbers


def encode(table: Any, columns: Sequence[Column], who: str = "the table") -> Array:
    """Rows ``(n, p)`` in the order of the columns: numbers as they are, levels by their place, NaN where missing."""
    cells = _cells_of(table, [column.name for column in columns], who)
    return np.column_stack([_encoded(column, cells[column.name], who) for column in columns])


def _encoded(column: Column, cells: Cells, who: str) -> Array:
    if not column.levels:
        if cells.numbers is None:
            assert cells.words is not None
            told = [w for w in cells.words if w is not None]
            if told:
                raise InputError(f"{who} has {told[0]!r} in column {column.name!r}, which is {column.kind}.")
            return np.full(len(cells.words), np.nan)
        if column.kind == COUNT:
            bad = cells.numbers[~np.isnan(cells.numbers) & ((cells.numbers < 0) | (cells.numbers % 1 != 0))]
            if len(bad):
                raise InputError(
                    f"{who} has {bad[0]:g} in column {column.name!r}, which holds counts; give whole numbers from 0 "
                    f"on, or take it as continuous with columns={{{column.name!r}: 'continuous'}}."
                )
        return cells.numbers
    place: dict[str | None, float] = {level: float(j) for j, level in enumerate(column.levels)}
    place[None] = np.nan
    words = _as_words(cells)
    strange = next((w for w in words if w not in place), None)
    if strange is not None:
        raise InputError(
            f"{who} has {strange!r} in column {column.name!r}, whose levels are {', '.join(column.levels)}"
            f"{near(strange, column.levels)}; correct it, or name all levels in columns=."
        )
    return np.array([place[w] for w in words], dtype=float)


def encode_like(X: Any, columns: Sequence[Column], sites: Any = None) -> Any:
    """The same rows as numbers, in the form they came in: an array, a frame with the site column, a dict, a list."""
    if isinstance(X, Mapping) and not hasattr(X, "shape"):
        return {name: _like(table, columns, f"site {str(name)!r}") for name, table in X.items()}
    if is_site_list(X):
        return [_like(table, columns, f"site {str(k)!r}") for k, table in enumerate(X)]
    return _like(X, columns, "the table", sites)


def _like(table: Any, columns: Sequence[Column], who: str, sites: Any = None) -> Any:
    values = encode(table, columns, who)
    if not is_frame(table):
        return values
    frame: Any = nw.from_native(table, eager_only=True)
    data: dict[str, Any] = {column.name: values[:, j] for j, column in enumerate(columns)}
    if isinstance(sites, str) and sites in frame.columns:
        data[sites] = frame[sites].to_list()
    return nw.from_dict(data, backend=frame.implementation).to_native()
