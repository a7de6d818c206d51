"""Pen digits with their writers: UCI's sixteen features, joined row by row with the recordings they were made from.

UCI's processed files (``pendigits.tra``, ``pendigits.tes``) do not say who wrote a digit. Its recordings in UNIPEN
format (``pendigits-orig.tra``, ``pendigits-orig.tes``) do, in lines ``.COMMENT <digit> <writer> <sample number>``, and
are in the same order. Writers are counted from 1 in both halves and are not the same people: 1 to 14 of the second
become 31 to 44. The data are UCI's data set 81 (CC BY 4.0, Alpaydin and Alimoglu 1996). What is checked is the joined
table (:func:`table_digest`).
"""

import csv
import gzip
import hashlib
import io
import re
import zipfile
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedgrem.errors import InputError
from fedgrem.studies.loaders.dataset import Progress, RealData, checked_folder, progress_of
from fedgrem.studies.loaders.download import cache_folder, fetch
from fedgrem.studies.loaders.lzw import unpack_z
from fedgrem.types import Array

N_FEATURES = 16
FIRST_TEST_WRITER = 31
PROCESSED = ("pendigits.tra", "pendigits.tes")
RECORDED = ("pendigits-orig.tra", "pendigits-orig.tes")
PREPARED = ("pendigits_with_writer.csv", "pendigits_with_writer.csv.gz")
_COMMENT = re.compile(rb"^\.COMMENT[ \t]+(\d+)[ \t]+(\d+)[ \t]+(\d+)(?:[ \t].*)?\r?$", re.MULTILINE)


class PenTable(NamedTuple):
    """All samples, training half first, in UCI's order."""

    features: Array
    """(N, 16) integers 0..100: x and y of eight points along the pen's way."""
    digit: Array
    """(N,) integers 0..9."""
    writer: Array
    """(N,) integers 1..44."""


class PenSource(NamedTuple):
    """Where the Pen digits come from."""

    address: str
    """Of UCI's archive."""
    sha256: str
    """Of the joined table, see :func:`table_digest`."""


PEN = PenSource(
    "https://archive.ics.uci.edu/static/public/81/pen+based+recognition+of+handwritten+digits.zip",
    "14acc51f6e354ef65873dcff0cd83dd94881feb5e8e4dfbc145e2dda56ed88e1",
)


def load_pen(
    folder: str | Path | None = None, *, source: PenSource = PEN, on_progress: Progress | None = None
) -> RealData:
    """10,992 handwritten digits of 44 writers, each a site: x and y of eight points along the pen's way, 0 to 100.

    Parameters
    ----------
    folder : that holds (itself or in its folder ``pendigits``) our joined table ``pendigits_with_writer.csv`` or
        ``.csv.gz``, UCI's four files, or its archive. None downloads the archive (1.7 MB) and keeps it in the cache.
    source : where to download from, and the check sum of the joined table.
    on_progress : called while downloading.
    """
    if folder is not None:
        table = find_pen(checked_folder(folder))
        _check_pen(table, str(folder), source, "get the files again")
    else:
        archive = fetch(
            source.address,
            cache_folder() / "data" / "pendigits" / "pendigits.zip",
            on_progress=progress_of(on_progress, "pendigits.zip"),
        )
        try:
            table = read_archive(archive)
            _check_pen(table, source.address, source, "run the same command again to download it anew")
        except InputError:
            archive.unlink()  # nothing but its content tells whether it is the right one
            raise
    columns = tuple(f"{axis}{point}" for point in range(1, 9) for axis in "xy")
    return RealData(table.features.astype(np.float64), table.digit, table.writer, columns, "pen")


def table_digest(table: PenTable) -> str:
    """The sha256 of joined Pen digits: writer, digit and features of each row as 64-bit integers, in file order."""
    whole = np.column_stack([table.writer, table.digit, table.features])
    return hashlib.sha256(whole.astype("<i8").tobytes()).hexdigest()


def _check_pen(table: PenTable, origin: str, source: PenSource, remedy: str) -> None:
    got = table_digest(table)
    if got != source.sha256:
        raise InputError(
            f"{origin}: the Pen digits have the wrong check sum: expected {source.sha256}, got {got} of "
            f"{len(table.digit)} joined rows; {remedy}."
        )


def find_pen(folder: Path) -> PenTable:
    """The table from what a folder holds: our joined table, UCI's four files, or its archive."""
    places = [folder / "pendigits", folder]
    for place in places:
        for name in PREPARED:
            if (place / name).is_file():
                return read_prepared(place / name)
    for place in places:
        if all(_on_disk(place, name) for name in (*PROCESSED, *RECORDED)):
            return join(partial(_read, place), place)
    for place in places:
        for archive in sorted(place.glob("*.zip")):
            if archive.name.startswith("pen"):
                return read_archive(archive)
    raise InputError(
        f"{folder} holds no Pen digits; expected, there or in its folder pendigits, {PREPARED[0]} (or .gz), UCI's four "
        f"files {', '.join((*PROCESSED, *RECORDED))} (the last two also as .Z), or its archive pen*.zip. Without a "
        "folder (in the shell: --data FOLDER) they are downloaded."
    )


def read_archive(path: Path) -> PenTable:
    """The table from UCI's archive of data set 81."""
    try:
        with zipfile.ZipFile(path) as archive:
            held = {member.rsplit("/", 1)[-1]: archive.read(member) for member in archive.namelist()}
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError) as error:
        raise InputError(f"{path} cannot be read ({error}); is it UCI's complete archive?") from error
    return join(lambda name: _unpacked(held, name, path), path)


def read_prepared(path: Path) -> PenTable:
    """The table from a file with columns f1 to f16, digit and writer."""
    try:
        packed = path.read_bytes()
        text = (gzip.decompress(packed) if path.suffix == ".gz" else packed).decode("utf-8")
        lines = csv.DictReader(io.StringIO(text))
        names = [*(f"f{j + 1}" for j in range(N_FEATURES)), "digit", "writer"]
        table = np.array([[int(line[name]) for name in names] for line in lines], dtype=np.int64)
    except KeyError as error:
        raise InputError(f"{path} has no column {error}; expected f1 to f16, digit and writer.") from error
    except (OSError, EOFError, zlib.error, ValueError, TypeError) as error:
        raise InputError(f"{path} cannot be read ({error}); get it again.") from error
    if len(table) == 0:
        raise InputError(f"{path} has no rows; get it again.")
    return PenTable(table[:, :N_FEATURES], table[:, N_FEATURES], table[:, N_FEATURES + 1])


def join(read: Callable[[str], bytes], origin: Path) -> PenTable:
    """Both halves, each sample with its writer.

    Parameters
    ----------
    read : the unpacked bytes of UCI's file of that name.
    origin : where they come from, for complaints.
    """
    features, digits, writers = [], [], []
    for processed, recorded, offset in zip(PROCESSED, RECORDED, (0, FIRST_TEST_WRITER - 1), strict=True):
        table = _features(read(processed), f"{origin}: {processed}")
        comments = np.array(_COMMENT.findall(read(recorded)), dtype=np.int64).reshape(-1, 3)
        if len(comments) != len(table):
            raise InputError(
                f"{origin}: {processed} has {len(table)} rows but {recorded} has {len(comments)} recordings; get both "
                "again, from the same place."
            )
        differ = np.flatnonzero(comments[:, 0] != table[:, N_FEATURES])
        if len(differ):
            row = differ[0]
            raise InputError(
                f"{origin}: row {row + 1} is the digit {table[row, N_FEATURES]} in {processed} but {comments[row, 0]} "
                f"in {recorded}, so their rows do not belong together ({len(differ)} row(s) differ); get both again, "
                "from the same place."
            )
        features.append(table[:, :N_FEATURES])
        digits.append(table[:, N_FEATURES])
        writers.append(comments[:, 1] + offset)
    return PenTable(np.concatenate(features), np.concatenate(digits), np.concatenate(writers))


def _features(text: bytes, name: str) -> Array:
    try:
        rows = [[int(cell) for cell in line.split(b",")] for line in text.splitlines() if line.strip()]
        table = np.array(rows, dtype=np.int64).reshape(max(len(rows), 1), -1)
    except ValueError as error:
        raise InputError(f"{name} is not a table of integers ({error}); get it again.") from error
    if table.shape[1] != N_FEATURES + 1:
        raise InputError(f"{name} has {table.shape[1]} columns, expected 16 features and the digit; get it again.")
    return table


def _on_disk(place: Path, name: str) -> bool:
    return (place / name).is_file() or (place / f"{name}.Z").is_file()


def _read(place: Path, name: str) -> bytes:
    path = place / name
    return path.read_bytes() if path.is_file() else unpack_z((place / f"{name}.Z").read_bytes(), f"{path}.Z")


def _unpacked(held: dict[str, bytes], name: str, archive: Path) -> bytes:
    if name in held:
        return held[name]
    if f"{name}.Z" in held:
        return unpack_z(held[f"{name}.Z"], f"{archive}: {name}.Z")
    raise InputError(f"{archive} holds no {name}, neither plain nor as .Z; is it UCI's archive of data set 81?")
