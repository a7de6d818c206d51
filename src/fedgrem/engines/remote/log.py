"""A site's log: what was asked of it, what left it and what it refused, each record bound to the one before it.

Every line ends in a hash of itself and of the line before. A record that was changed, taken out or put in does not fit
any more; only records at the very end can be missing unnoticed, which is why :func:`check_log` also tells the last
hash. A line that was torn when a machine went down is skipped, and said so.
"""

import errno
import fcntl
import json
import os
from collections.abc import Iterator
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from fedgrem.errors import InputError

LOG = "guard.jsonl"
"""In a site's kit."""
TAIL = 2**16
"""Bytes that are read at a time to find the last record."""


class Log:
    """A log that is added to, by one process or several."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._size, self._last = -1, _Last(0, "")

    def append(self, kind: str, *, lasting: bool = False, **content: Any) -> None:
        """Add a record; it is in the file when this returns, and ``lasting`` even where the power fails then."""
        handle = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            size, begin = os.fstat(handle).st_size, b""
            if size != self._size:  # somebody else has written, or this is the first time
                self._last, torn = _last_record(handle, size)
                begin = b"\n" if torn else b""
            stamp = {"number": self._last.number + 1, "time": datetime.now(UTC).isoformat(timespec="milliseconds")}
            text = json.dumps(stamp | {"kind": kind} | content, separators=(",", ":"))
            chain = _chain(self._last.chain, text)
            line = begin + f'{text[:-1]},"chain":"{chain}"}}\n'.encode()
            written = os.write(handle, line)
            if written < len(line):
                os.ftruncate(handle, size)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._path))
            if lasting:
                os.fsync(handle)
            self._size, self._last = size + len(line), _Last(self._last.number + 1, chain)
        finally:
            os.close(handle)


class Checked(NamedTuple):
    """What is known of a log as a whole."""

    records: int
    last: str
    """The hash at its end: whoever keeps it can tell later whether records at the end were taken away."""
    torn: list[int]
    """Lines that were torn."""
    broken: str
    """Where the chain does not hold; empty if it is whole."""


class _Last(NamedTuple):
    number: int
    chain: str


def read_log(path: Path) -> Iterator[dict[str, Any]]:
    """All records, oldest first; torn lines are left out."""
    for _, record, _ in _lines(path):
        if record is not None:
            yield record


def check_log(path: Path) -> Checked:
    """Whether a log is whole."""
    last, torn, broken = _Last(0, ""), [], ""
    for number, record, text in _lines(path):
        if record is None:
            torn.append(number)
            continue
        body = text[: text.rindex(',"chain":')] + "}"
        if not broken and (record["number"] != last.number + 1 or record["chain"] != _chain(last.chain, body)):
            broken = f"line {number} does not follow from the one before it: a record was changed, taken out or put in"
        last = _Last(record["number"], record["chain"])
    return Checked(last.number, last.chain, torn, broken)


def _lines(path: Path) -> Iterator[tuple[int, dict[str, Any] | None, str]]:
    """Numbered lines and the records in them, None where there is none."""
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error}).") from error
    with file:
        for number, line in enumerate(file, 1):
            text = line.rstrip(b"\n").decode(errors="replace")
            yield number, _record(text), text


def _record(text: str) -> dict[str, Any] | None:
    try:
        record = json.loads(text)
        return record if isinstance(record["number"], int) and isinstance(record["chain"], str) else None
    except (ValueError, KeyError, TypeError):
        return None


def _last_record(handle: int, size: int) -> tuple[_Last, bool]:
    """The last whole record of an open file, and whether something torn comes after it."""
    tail, place = b"", size
    while place > 0:
        step = min(TAIL, place)
        place -= step
        tail = os.pread(handle, step, place) + tail
        lines = tail.split(b"\n")
        for line in reversed(lines if place == 0 else lines[1:]):
            record = _record(line.decode(errors="replace"))
            if record is not None:
                return _Last(record["number"], record["chain"]), not tail.endswith(b"\n")
    return _Last(0, ""), bool(tail) and not tail.endswith(b"\n")


def _chain(before: str, text: str) -> str:
    return sha256(f"{before}\n{text}".encode()).hexdigest()
