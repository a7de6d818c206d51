"""Covariates of words: a column of zeros and ones for every level but the first, named like ``cp=4``."""

from collections.abc import Mapping, Sequence
from typing import Any

import narwhals as nw
import numpy as np

from fedgrem.data.columns import BINARY, CATEGORICAL, CONTINUOUS, Column, encode, read_columns
from fedgrem.data.tables import is_frame, is_numeric, is_site_list
from fedgrem.types import Array

Levels = dict[str, Array]
"""The levels of every column of words, by its name; the first is what the others are compared with."""


def levels_of(X: Any, sites: Any = None) -> Levels:
    """The levels of all columns of words, of all sites together, in the order that they declare or are sorted in.

    Examples
    --------
    >>> import pandas as pd
    >>> levels_of(pd.DataFrame({"age": [61, 47, 50], "pain": ["none", "mild", "none"]}))["pain"].tolist()
    ['mild', 'none']
    """
    frames = [nw.from_native(table, eager_only=True) for table in _tables(X) if is_frame(table)]
    aside = sites if isinstance(sites, str) else None
    wordy = {str(n) for frame in frames for n in frame.columns if n != aside and not is_numeric(frame, n)}
    if not wordy:
        return {}
    numbers = {str(n): CONTINUOUS for n in frames[0].columns if str(n) not in wordy and n != aside}
    return {c.name: np.array(c.levels) for c in read_columns(X, numbers, sites) if c.name in wordy}


def dummy_names(levels: Levels) -> list[str]:
    """Of the columns that stand for words."""
    return [f"{name}={level}" for name, own in levels.items() for level in own[1:].tolist()]


def with_dummies(X: Any, levels: Levels) -> Any:
    """The same rows with zeros and ones in the place of words, in the form they came in."""
    if not levels:
        return X
    if isinstance(X, Mapping) and not hasattr(X, "shape"):
        return {name: _expanded(table, levels, f"site {str(name)!r}") for name, table in X.items()}
    if is_site_list(X):
        return [_expanded(table, levels, f"site {str(k)!r}") for k, table in enumerate(X)]
    return _expanded(X, levels, "the table")


def levels_from(words: Sequence[Column]) -> Levels:
    """Of columns whose levels are agreed on."""
    return {column.name: np.array(column.levels) for column in words}


def _tables(X: Any) -> list[Any]:
    if isinstance(X, Mapping) and not hasattr(X, "shape"):
        return list(X.values())
    return list(X) if is_site_list(X) else [X]


def _expanded(table: Any, levels: Levels, who: str) -> Any:
    if not is_frame(table):
        return table  # of an array the check of its width says that something is missing
    frame: Any = nw.from_native(table, eager_only=True)
    data: dict[str, Any] = {}
    for name in frame.columns:
        if name not in levels:
            own = frame.get_column(name)
            data[name] = own.to_numpy() if is_numeric(frame, name) else own.to_list()
            continue
        codes = encode(frame.select(name).to_native(), [_column(name, levels)], who)[:, 0]
        for place, level in enumerate(levels[name].tolist()[1:], start=1):
            data[f"{name}={level}"] = np.where(np.isnan(codes), np.nan, codes == place)
    found = nw.from_dict(data, backend=frame.implementation)
    if frame.implementation.is_pandas():
        return found.to_native().set_axis(table.index)
    return found.to_native()


def _column(name: str, levels: Levels) -> Column:
    own = tuple(levels[name].tolist())
    return Column(name, BINARY if len(own) == 2 else CATEGORICAL, own)
