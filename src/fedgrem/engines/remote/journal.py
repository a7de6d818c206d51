"""The journal of a run: every exchange, as it was checked and used, appended to one file that is never rewritten.

A run that crashed goes on by playing the same conversation on its journal, and then live. Records have a length and a
checksum before them, and are on disk before the next message is sent; one that was torn by a crash is not read. Where a
record is damaged before the end, the run goes on after the last good one before it, and asks the rest again, which the
sites answer alike; the damaged file is kept.
"""

import json
import os
import shutil
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from fedgrem.engines.remote.wire import Fields
from fedgrem.errors import ModelFileError
from fedgrem.fit.spec import FitSpec

JOURNAL = "journal"
MAGIC = b"fedgrem journal 1\n"
HEAD = struct.Struct("<QI")
"""Bytes of a record, and their CRC-32."""
AGAIN = "again"
"""Task of a record that is no exchange: there were too few sites before round 1, and all begin anew."""


class Record(NamedTuple):
    """One exchange."""

    about: dict[str, Any]
    """Plain values: the number of the exchange, its task, who answered, what it cost, and the roster if it changed."""
    fields: Fields
    """The replies of those who answered, stacked."""


class Journal:
    """The journal in a folder, opened for a spec and its sites; made if there is none.

    Reading comes first, by :meth:`next`; what is appended later goes after the last whole record.
    """

    def __init__(self, folder: Path, spec: FitSpec, sites: list[str]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / JOURNAL
        header = {"spec": json.loads(spec.to_json()), "sites": sites}
        whole = _scan(path) if path.exists() else None
        if whole is not None and whole.damaged:
            shutil.copyfile(path, path.with_suffix(".damaged"))
        if whole is not None and whole.header != header:
            raise ModelFileError(f"{path} is of another fit; resume that one, or begin a new one.")
        self._file: BinaryIO = path.open("r+b" if path.exists() else "w+b")
        self._places: list[int] = []
        self.exchange = 0
        """The number of the last exchange of earlier starts of the run."""
        if whole is None:
            self._file.truncate(0)
            self._file.write(MAGIC)
            self.append(Record(header, {}))
            _sync_folder(folder)
        else:
            self._file.truncate(whole.end)
            self._places, self.exchange = whole.places, whole.exchange
            self._file.seek(0, os.SEEK_END)
        self._place = 0

    def next(self) -> Record | None:
        """The next record of an earlier start of the run; None when it is to go on live."""
        if self._place == len(self._places):
            return None
        self._place += 1
        self._file.seek(self._places[self._place - 1])
        record = _read(self._file)
        self._file.seek(0, os.SEEK_END)
        assert record is not None
        return record

    def append(self, record: Record) -> None:
        """Add a record; it is on disk when this returns."""
        self._file.write(_bytes(record))
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class _Whole(NamedTuple):
    """What a file holds."""

    header: dict[str, Any]
    places: list[int]
    """Of the records that are to be played again."""
    exchange: int
    """The number of the last exchange."""
    end: int
    """Of the last whole record, or the last before the damage."""
    damaged: bool


def read_journal(path: Path) -> Iterator[Record]:
    """All whole records of a journal, the header first, and those of attempts that were begun again."""
    with _opened(path) as file:
        while (record := _read(file)) is not None:
            yield record


def _scan(path: Path) -> _Whole | None:
    """What is in a file; None if not even its header was written."""
    places: list[int] = []
    exchange = 0
    if path.stat().st_size < len(MAGIC) and MAGIC.startswith(path.read_bytes()):
        return None
    damaged = False
    with _opened(path) as file:
        header = _read(file)
        end = file.tell()
        while header is not None:
            try:
                record = _read(file)
            except ModelFileError:
                damaged = True
                break
            if record is None:
                break
            exchange = record.about["exchange"]
            if record.about["task"] == AGAIN:
                places.clear()
            else:
                places.append(end)
            end = file.tell()
    return None if header is None else _Whole(header.about, places, exchange, end, damaged)


def _opened(path: Path) -> BinaryIO:
    try:
        file = path.open("rb")
    except OSError as error:
        raise ModelFileError(f"{path} cannot be read ({error}).") from error
    if file.read(len(MAGIC)) != MAGIC:
        file.close()
        raise ModelFileError(f"{path} cannot be read: it is no journal of this version.")
    return file


def _read(file: BinaryIO) -> Record | None:
    """The next record; None at the end, or where the last one is torn, and then the place stays before it."""
    place = file.tell()
    head = file.read(HEAD.size)
    length, checksum = HEAD.unpack(head) if len(head) == HEAD.size else (1, 0)
    rest = os.fstat(file.fileno()).st_size - place - HEAD.size
    raw = file.read(length) if length <= rest else b""
    if not raw or zlib.crc32(raw) != checksum:
        if 0 < length < rest:
            raise ModelFileError(f"{file.name} is damaged at byte {place}, before its end; restore it from a copy.")
        file.seek(place)
        return None
    line, arrays = raw.split(b"\n", 1)
    about = json.loads(line)
    fields, begin = {}, 0
    for name, shape, dtype, size in about.pop("arrays"):
        fields[name] = {"shape": shape, "dtype": dtype, "bytes": arrays[begin : begin + size]}
        begin += size
    return Record(about, fields)


def _bytes(record: Record) -> bytes:
    arrays = [(name, f["shape"], f["dtype"], len(f["bytes"])) for name, f in record.fields.items()]
    line = json.dumps({**record.about, "arrays": arrays}).encode()
    raw = b"".join([line, b"\n", *(field["bytes"] for field in record.fields.values())])
    return HEAD.pack(len(raw), zlib.crc32(raw)) + raw


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
