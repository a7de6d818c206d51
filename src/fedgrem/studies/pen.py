"""Pen digits with their writers: UCI's sixteen features, joined row by row with the recordings they were made from.

UCI's processed files (``pendigits.tra``, ``pendigits.tes``) do not say who wrote a digit. Its recordings in UNIPEN
format (``pendigits-orig.tra``, ``pendigits-orig.tes``) do, in lines ``.COMMENT <digit> <writer> <sample number>``, and
are in the same order. Writers are counted from 1 in both halves and are not the same people: 1 to 14 of the second
become 31 to 44. The data are UCI's data set 81 (CC BY 4.0, Alpaydin and Alimoglu 1996). What is checked is the joined
table, since UCI publishes no check sum of its archive.
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
from fedgrem.studies.download import Progress, cache_folder, fetch
from fedgrem.studies.images import RealData, checked_folder
from fedgrem.types import Array

N_FEATURES = 16
HALVES = (("pendigits.tra", "pendigits-orig.tra", 0), ("pendigits.tes", "pendigits-orig.tes", 30))
"""Features and digits, recordings, and what is added to the writers' numbers."""
FILES = [name for processed, recorded, _ in HALVES for name in (processed, recorded)]
PREPARED = ("pendigits_with_writer.csv", "pendigits_with_writer.csv.gz")
COLUMNS = [*(f"f{j + 1}" for j in range(N_FEATURES)), "digit", "writer"]
"""Of a joined table: x and y of eight points along the pen's way, 0 to 100; 0 to 9; 1 to 44."""
MAGIC = b"\x1f\x9d"
"""With which a file packed by ``compress`` begins."""
CLEAR = 256
"""In block mode of ``compress``, the code that says: forget all words."""
_COMMENT = re.compile(rb"^\.COMMENT[ \t]+(\d+)[ \t]+(\d+)[ \t]+(\d+)(?:[ \t].*)?\r?$", re.MULTILINE)


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


def load_pen(folder: Path | None = None, on_progress: Progress | None = None, source: PenSource = PEN) -> RealData:
    """10,992 handwritten digits of 44 writers, each a site: x and y of eight points along the pen's way, 0 to 100.

    Parameters
    ----------
    folder : that holds (itself or in its folder ``pendigits``) our joined table ``pendigits_with_writer.csv`` or
        ``.csv.gz``, UCI's four files, or its archive. None downloads the archive (1.7 MB) and keeps it in the cache.
    on_progress : called while downloading.
    source : where to download from, and the check sum of the joined table.
    """
    if folder is not None:
        table = _checked(_find(checked_folder(folder)), f"{folder}", source, "get the files again")
    else:
        archive = fetch(
            source.address, cache_folder() / "data" / "pendigits" / "pendigits.zip", on_progress=on_progress
        )
        try:
            remedy = "run the same command again to download it anew"
            table = _checked(_from_archive(archive), source.address, source, remedy)
        except InputError:
            archive.unlink()  # nothing but its content tells whether it is the right one
            raise
    return RealData(table[:, :N_FEATURES].astype(np.float64), table[:, -2], table[:, -1])


def table_digest(table: Array) -> str:
    """The sha256 of joined Pen digits: writer, digit and features of each row as 64-bit integers, in file order."""
    whole = np.column_stack([table[:, -1], table[:, -2], table[:, :N_FEATURES]])
    return hashlib.sha256(whole.astype("<i8").tobytes()).hexdigest()


def _checked(table: Array, origin: str, source: PenSource, remedy: str) -> Array:
    got = table_digest(table)
    if got != source.sha256:
        raise InputError(
            f"{origin}: the Pen digits have the wrong check sum: expected {source.sha256}, got {got} of {len(table)} "
            f"joined rows; {remedy}."
        )
    return table


def _find(folder: Path) -> Array:
    """The table from what a folder holds: our joined table, UCI's four files, or its archive."""
    places = [folder / "pendigits", folder]
    for path in (place / name for place in places for name in PREPARED):
        if path.is_file():
            return _read_prepared(path)
    for place in places:
        if all((place / name).is_file() or (place / f"{name}.Z").is_file() for name in FILES):
            return _join(partial(_read, place), place)
    for archive in (path for place in places for path in sorted(place.glob("pen*.zip"))):
        return _from_archive(archive)
    raise InputError(
        f"{folder} holds no Pen digits; expected, there or in its folder pendigits, {PREPARED[0]} (or .gz), UCI's four "
        f"files {', '.join(FILES)} (the recordings also as .Z), or its archive pen*.zip. Without a folder (in the "
        "shell: --data FOLDER) they are downloaded."
    )


def _read(place: Path, name: str) -> bytes:
    return (place / name).read_bytes()


def _from_archive(path: Path) -> Array:
    """The table from UCI's archive of data set 81."""
    try:
        with zipfile.ZipFile(path) as archive:
            held = {member.rsplit("/", 1)[-1]: archive.read(member) for member in archive.namelist()}
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError) as error:
        raise InputError(f"{path} cannot be read ({error}); is it UCI's complete archive?") from error
    return _join(held.__getitem__, path)


def _read_prepared(path: Path) -> Array:
    """The table from a file with columns f1 to f16, digit and writer."""
    try:
        packed = path.read_bytes()
        text = (gzip.decompress(packed) if path.suffix == ".gz" else packed).decode("utf-8")
        lines = csv.DictReader(io.StringIO(text))
        table = np.array([[int(line[name]) for name in COLUMNS] for line in lines], dtype=np.int64)
    except KeyError as error:
        raise InputError(f"{path} has no column {error}; expected f1 to f16, digit and writer.") from error
    except (OSError, EOFError, zlib.error, ValueError, TypeError) as error:
        raise InputError(f"{path} cannot be read ({error}); get it again.") from error
    if len(table) == 0:
        raise InputError(f"{path} has no rows; get it again.")
    return table


def _join(read: Callable[[str], bytes], origin: Path) -> Array:
    """Both halves, each sample with its writer; ``read`` gives a file's bytes, or says that it is not there."""

    def unpacked(name: str) -> bytes:
        for kind in (name, f"{name}.Z"):
            try:
                content = read(kind)
            except (KeyError, FileNotFoundError):
                continue
            return content if kind == name else unpack_z(content, f"{origin}: {kind}")
        raise InputError(f"{origin} holds no {name}, neither plain nor as .Z; is it UCI's archive of data set 81?")

    tables = []
    for processed, recorded, offset in HALVES:
        table = _features(unpacked(processed), f"{origin}: {processed}")
        comments = np.array(_COMMENT.findall(unpacked(recorded)), dtype=np.int64).reshape(-1, 3)
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
        tables.append(np.column_stack([table, comments[:, 1] + offset]))
    return np.concatenate(tables)


def _features(text: bytes, name: str) -> Array:
    try:
        rows = [[int(cell) for cell in line.split(b",")] for line in text.splitlines() if line.strip()]
        table = np.array(rows, dtype=np.int64).reshape(max(len(rows), 1), -1)
    except ValueError as error:
        raise InputError(f"{name} is not a table of integers ({error}); get it again.") from error
    if table.shape[1] != N_FEATURES + 1:
        raise InputError(f"{name} has {table.shape[1]} columns, expected 16 features and the digit; get it again.")
    return table


# -- files packed by Unix compress, which Python's standard library cannot unpack


def unpack_z(packed: bytes, name: str = "the .Z file") -> bytes:
    """What a ``.Z`` file holds.

    Codes stand for words that were seen before; each code but the first adds a word. They have 9 bits at first and one
    more whenever the words outgrow them, up to a limit in the header. Codes of one width come in groups of eight; what
    is left of a group when the width changes, or the words are forgotten, is filling.

    Parameters
    ----------
    packed : the bytes of the file.
    name : of the file, for complaints.

    Examples
    --------
    >>> unpack_z(bytes.fromhex("1f9d9061c40404"))
    b'abab'
    """
    if packed[:2] != MAGIC or len(packed) < 3:
        raise InputError(f"{name} is not a .Z file: it begins with {packed[:3].hex(' ') or 'nothing'}; get it again.")
    flags = packed[2]
    block_mode = bool(flags & 0x80)
    most = flags & 0x1F
    if not 10 <= most <= 16 or flags & 0x60:  # tools do not agree on what a limit of 9 bits means
        raise InputError(f"{name} is packed in a way that is not known (flags {flags:#x}); unpack it by hand.")
    first_words = [bytes([value]) for value in range(256)] + [b""] * block_mode
    words, width, previous = first_words.copy(), 9, b""
    out: list[bytes] = []
    place = 3
    while place < len(packed):
        group = packed[place : place + width]
        place += width
        bits = int.from_bytes(group, "little")
        for _ in range(len(group) * 8 // width):
            code = bits & ((1 << width) - 1)
            bits >>= width
            if block_mode and code == CLEAR:
                words, width, previous = first_words.copy(), 9, b""
                break
            if code > len(words) or (code == len(words) and not previous):
                raise InputError(f"{name} is damaged after {len(b''.join(out)):,} bytes; get it again.")
            word = words[code] if code < len(words) else previous + previous[:1]
            out.append(word)
            if previous and len(words) < 1 << most:
                words.append(previous + word[:1])
            previous = word
            if len(words) == 1 << width and width < most:
                width += 1
                break
    return b"".join(out)
