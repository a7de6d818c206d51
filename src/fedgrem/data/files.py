"""Files: CSV, TSV and Parquet tables, with a site column or one file per site. Reading them needs polars."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fedgrem.errors import InputError, MissingExtraError

if TYPE_CHECKING:
    import polars

SEPARATORS = {".csv": ",", ".tsv": "\t"}
PARQUET = (".parquet", ".pq")
MISSING_MARKS = ["", "NA", "N/A", "NULL"]
"""Cells of a text file that mean "no value"."""


class FileTable(NamedTuple):
    """All rows of one or several files, with the site of each."""

    frame: polars.DataFrame
    """(N, columns), without the site column."""
    sites: list[Any]
    """(N,) site labels: the values of the site column, or the names of the files."""
    row: list[int]
    """(N,) place of each row in its own file, from 0."""


def read_table(path: str | Path, *, text_columns: Sequence[str] = ()) -> polars.DataFrame:
    """Read one file into a polars frame; the complaint about a bad file names it and says what to do.

    Parameters
    ----------
    path : a ``.csv``, ``.tsv`` or ``.parquet`` file.
    text_columns : columns to keep as they are written, so that site 007 does not become site 7.
    """
    path = Path(path)
    suffix = path.suffix.lower()
    if not path.exists():
        raise InputError(f"{path} does not exist; check the name, or give the full path.")
    if path.is_dir():
        raise InputError(f"{path} is a folder; give the files in it, one per site.")
    if suffix not in (*SEPARATORS, *PARQUET):
        raise InputError(f"{path} has the extension {suffix!r}; fedgrem reads .csv, .tsv and .parquet.")
    if path.stat().st_size == 0:
        raise InputError(f"{path} is empty; give a file with a header and rows.")
    pl = _polars()
    try:
        frame = _read_parquet(pl, path) if suffix in PARQUET else _read_text(pl, path, SEPARATORS[suffix], text_columns)
    except (pl.exceptions.PolarsError, OSError, UnicodeDecodeError) as error:
        reason = str(error).strip().split("\n")[0]
        raise InputError(f"{path} cannot be read ({reason}); is it a complete {suffix} file?") from error
    _check_table(path, frame)
    return frame


def read_sites(paths: Sequence[str | Path], *, site: str | None = None) -> FileTable:
    """Read one table with a site column, or several files: one per site, named after it.

    Parameters
    ----------
    paths : one or several files with the same columns.
    site : the column that names the site of each row; None takes the name of each file without its extension.
    """
    files = [Path(path) for path in paths]
    if not files:
        raise InputError("got no files; give at least one.")
    if site is None:
        _check_names(files)
    frames = [read_table(path, text_columns=() if site is None else (site,)) for path in files]
    if site is not None:
        for path, frame in zip(files, frames, strict=True):
            if site not in frame.columns:
                raise InputError(f"{path} has no site column {site!r}; {_listed(frame.columns)}.")
    frame = _stack(files, frames)
    sizes = [len(one) for one in frames]
    row = [i for size in sizes for i in range(size)]
    if site is None:
        names = [path.stem for path, size in zip(files, sizes, strict=True) for _ in range(size)]
        return FileTable(frame, names, row)
    labels = _site_labels(frame[site], site)
    return FileTable(frame.drop(site), labels, row)


def choose_columns(
    frame: polars.DataFrame,
    *,
    columns: Sequence[str] = (),
    drop: Sequence[str] = (),
    aside: Sequence[str] = (),
    words: bool = False,
) -> list[str]:
    """The columns to fit: those named, or all but those dropped and set aside. All of them must be numeric.

    Parameters
    ----------
    frame : the table.
    columns : to use; empty means all.
    drop : to leave out.
    aside : used for something else, such as a target or a weight.
    words : whether they may hold words instead.
    """
    for name in (*columns, *drop, *aside):
        check_column(frame, name)
    chosen = list(columns) or [name for name in frame.columns if name not in drop and name not in aside]
    twice = [name for name in columns if name in aside or name in drop]
    if twice:
        raise InputError(f"column {twice[0]!r} is to be used and to be left out or set aside at once; name it once.")
    if not chosen:
        raise InputError(f"no columns are left to fit; {_listed(frame.columns)}.")
    if not words:
        check_numeric(frame, chosen)
    return chosen


def check_column(frame: polars.DataFrame, name: str) -> None:
    """Refuse a name that is not a column, and list the columns."""
    if name not in frame.columns:
        raise InputError(f"there is no column {name!r}; {_listed(frame.columns)}.")


def check_numeric(frame: polars.DataFrame, names: Sequence[str]) -> None:
    """Refuse columns that are not numbers, and name them."""
    bad = [name for name in names if not (frame.schema[name].is_numeric() or str(frame.schema[name]) == "Boolean")]
    empty = [name for name in bad if frame[name].null_count() == len(frame)]
    if empty:
        raise InputError(f"column(s) {_quoted(empty)} hold no values at all; drop them.")
    if bad:
        kinds = ", ".join(f"{name!r} ({frame.schema[name]}, such as {_first(frame[name])!r})" for name in bad[:5])
        more = f" and {len(bad) - 5} more" if len(bad) > 5 else ""
        raise InputError(
            f"columns that are not numeric: {kinds}{more}; drop them, encode them, name those to use, or fit mixed "
            "columns with --table."
        )


def check_no_gaps(frame: polars.DataFrame, names: Sequence[str]) -> None:
    """Refuse columns with missing, NaN or infinite values, and say where the first one is."""
    for name in names:
        column = frame[name].cast(float)
        bad = (~(column.is_finite().fill_null(False))).arg_true()
        if len(bad):
            raise InputError(
                f"column {name!r} has {len(bad)} missing, NaN or infinite value(s), the first in row {bad[0]}; "
                "drop or impute those rows."
            )


def _polars() -> Any:
    try:
        import polars
    except ImportError as error:
        raise MissingExtraError(
            "reading files needs polars, which is not installed; run: pip install 'fedgrem[files]' (or: pip install "
            "polars)."
        ) from error
    return polars


def _read_parquet(pl: Any, path: Path) -> polars.DataFrame:
    frame: polars.DataFrame = pl.read_parquet(path)
    return frame


def _read_text(pl: Any, path: Path, separator: str, text_columns: Sequence[str]) -> polars.DataFrame:
    with path.open(encoding="utf-8-sig") as file:
        header = file.readline().rstrip("\r\n")
    frame: polars.DataFrame = pl.read_csv(
        path,
        separator=separator,
        infer_schema_length=None,  # types from all rows: a decimal in the last one must not be an error
        schema_overrides={name: pl.String for name in text_columns if name in _names(header, separator)},
        null_values=MISSING_MARKS,
        try_parse_dates=False,
    )
    if frame.width == 1 and separator == "," and (";" in header or "\t" in header):
        mark = "a semicolon" if ";" in header else "a tab"
        raise InputError(f"{path} seems to separate its columns with {mark}; save it with commas.")
    empty = [name for name in frame.columns if frame[name].null_count() == len(frame)]
    return frame.with_columns(pl.lit(None).alias(name) for name in empty)  # no values, hence no type


def _names(header: str, separator: str) -> list[str]:
    return [name.strip('"') for name in header.split(separator)]


def _check_table(path: Path, frame: polars.DataFrame) -> None:
    if frame.width == 0 or len(frame) == 0:
        raise InputError(f"{path} has no rows; give a file with a header and rows.")
    for name in frame.columns:
        match = re.fullmatch(r"(.*)_duplicated_\d+", name)
        if match:
            raise InputError(f"{path} has two columns named {match[1]!r}; give every column a name of its own.")


def _check_names(files: list[Path]) -> None:
    seen: dict[str, Path] = {}
    for path in files:
        if path.stem in seen:
            raise InputError(
                f"{seen[path.stem]} and {path} would both be site {path.stem!r}; rename one, or name a site column."
            )
        seen[path.stem] = path


def _stack(files: list[Path], frames: list[polars.DataFrame]) -> polars.DataFrame:
    pl = _polars()
    first = frames[0].columns
    for path, frame in zip(files, frames, strict=True):
        if set(frame.columns) != set(first):
            lacking = sorted(set(first) - set(frame.columns))
            extra = sorted(set(frame.columns) - set(first))
            what = f"lacks {_quoted(lacking)}" if lacking else f"also has {_quoted(extra)}"
            raise InputError(f"{path} {what}, unlike {files[0]}; give every site the same columns.")
    for name in first:
        kinds = {_kind(frame, name): path for path, frame in zip(files, frames, strict=True)}
        kinds.pop("empty", None)
        if len(kinds) > 1:
            told = ", ".join(f"{kind} in {path}" for kind, path in kinds.items())
            raise InputError(f"column {name!r} is {told}; give it one type in all files.")
    stacked: polars.DataFrame = pl.concat([frame.select(first) for frame in frames], how="vertical_relaxed")
    return stacked


def _kind(frame: polars.DataFrame, name: str) -> str:
    kind = frame.schema[name]
    if str(kind) == "Null":
        return "empty"
    return "numeric" if kind.is_numeric() else str(kind)


def _site_labels(column: polars.Series, site: str) -> list[Any]:
    gaps = column.is_null().arg_true()
    if len(gaps):
        raise InputError(
            f"site column {site!r} has {len(gaps)} missing value(s) (an empty cell or NA), the first in row {gaps[0]}; "
            "name the site of every row, or drop those rows."
        )
    labels = column.to_list() if column.dtype.is_integer() else [str(value) for value in column.to_list()]
    if all(isinstance(label, str) and re.fullmatch(r"0|[1-9]\d{0,17}", label) for label in labels):
        return [int(label) for label in labels]  # so that site 10 comes after site 9; 007 stays as it is written
    return labels


def _first(column: polars.Series) -> Any:
    return column.drop_nulls()[0]


def _quoted(names: Sequence[str]) -> str:
    return ", ".join(repr(name) for name in names[:5]) + (", ..." if len(names) > 5 else "")


def _listed(columns: Sequence[str]) -> str:
    shown = ", ".join(columns[:20]) + (f", ... ({len(columns)} in all)" if len(columns) > 20 else "")
    return f"the columns are {shown}"
