"""Downloads that can be broken off: resumed where they stopped, checked, and kept in the user's cache."""

import gzip
import hashlib
import http.client
import os
import socket
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

from fedgrem.errors import FedGrEMError

CHUNK = 256 * 1024
BY_HAND = "give the folder that holds it (in the shell: --data FOLDER)"
"""What to do with a file that was got in another way."""
Progress: TypeAlias = Callable[[str, int, int | None], None]
"""Told the name of a file, the bytes that are there and the bytes in all; None where the server does not say."""


class DownloadError(FedGrEMError, OSError):
    """A file could not be fetched; the message says from where, what happened, and what to do."""


def cache_folder() -> Path:
    """``$FEDGREM_CACHE``, or ``fedgrem`` in the user's cache. It may not exist yet."""
    named = os.environ.get("FEDGREM_CACHE")
    if named:
        return Path(named).expanduser()
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fedgrem"
    except RuntimeError as error:
        raise DownloadError("there is no home folder to keep files in; set FEDGREM_CACHE to a folder.") from error


def unpacked_digest(path: Path) -> str:
    """The sha256 of what a gzip file holds: its header carries a time stamp, which differs from mirror to mirror."""
    with gzip.open(path) as file:
        return hashlib.sha256(file.read()).hexdigest()


def fetch(url: str, path: Path, *, sha256: str | None = None, on_progress: Progress | None = None) -> Path:
    """Download a file, unless it is there already; what came of a broken download is used the next time.

    The file is written beside ``path`` with the ending ``.part`` and renamed when it is complete and checked, so a file
    at ``path`` is a whole one.

    Parameters
    ----------
    url : its address.
    path : where the file is to be.
    sha256 : of what is in it, a gzip file; None checks the length only.
    on_progress : called with (name, bytes there, bytes in all or None).
    """
    if not path.exists():
        part = path.with_name(f"{path.name}.part")
        name = path.name.removesuffix(".gz")
        _download(url, part, lambda done, total: on_progress(name, done, total) if on_progress else None)
        if sha256 is not None:
            _check(url, part, sha256)
        with _locally():
            part.replace(path)
    return path


def _download(url: str, part: Path, tell: Callable[[int, int | None], None]) -> None:
    """All bytes of an address into ``part``, after those that are there."""
    with _locally():
        part.parent.mkdir(parents=True, exist_ok=True)
        there = part.stat().st_size if part.exists() else 0
    response = _open(url, there)
    if response is None:  # the server has nothing from this place on: the part is complete, or not of this file
        part.unlink()
        there, response = 0, _open(url, 0)
    with response:
        resumed = there > 0 and response.status == 206
        begins = str(response.headers.get("Content-Range", "")).removeprefix("bytes ").partition("-")[0]
        if resumed and begins != str(there):
            part.unlink()
            raise DownloadError(
                f"{url} sent another piece than was asked for; run the same command again to start over."
            )
        done, length = (there if resumed else 0), response.headers.get("Content-Length")
        total = done + int(length) if length is not None and length.isdigit() else None
        reason, cause = "the connection was closed", None
        with _locally(), part.open("ab" if resumed else "wb") as file:
            tell(done, total)
            while True:
                try:
                    chunk = response.read1(CHUNK)
                except (OSError, http.client.HTTPException) as error:
                    reason, cause, chunk = _told(error), error, b""
                if not chunk:
                    break
                file.write(chunk)
                done += len(chunk)
                tell(done, total)
    if cause is not None or (total is not None and done < total):
        raise DownloadError(
            f"the download of {url} broke off after {done:,}{'' if total is None else f' of {total:,}'} bytes "
            f"({reason}); what came is kept: run the same command again to resume."
        ) from cause


def _open(url: str, there: int) -> Any:
    """The answer to a request for the bytes from ``there`` on; None if there are none."""
    headers = {"User-Agent": "fedgrem"} | ({"Range": f"bytes={there}-"} if there else {})
    try:
        return urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=30.0)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 416 and there:
            return None
        raise DownloadError(
            f"{url} answered {error.code} ({error.reason}) instead of the file; if it has moved, get it by hand and "
            f"{BY_HAND}."
        ) from error
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", error)
        told = "its name is not known here" if isinstance(reason, socket.gaierror) else _told(reason)
        raise DownloadError(
            f"{url} cannot be reached ({told}); is this machine online? If it may not be, get the file elsewhere and "
            f"{BY_HAND}."
        ) from error


def _check(url: str, part: Path, expected: str) -> None:
    try:
        got = f"sha256 {unpacked_digest(part)}"
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        got = f"a file that cannot be unpacked ({error})"
    if got != f"sha256 {expected}":
        part.unlink()
        raise DownloadError(
            f"{url} has the wrong check sum: expected sha256 {expected}, got {got}. The file was removed; run the same "
            f"command again, and if that does not help, get the file elsewhere and {BY_HAND}."
        )


@contextmanager
def _locally() -> Iterator[None]:
    """Doing something to the disk; its troubles are not the network's."""
    try:
        yield
    except OSError as error:
        raise DownloadError(
            f"the download cannot be written ({_told(error)}); make room, or set FEDGREM_CACHE to another folder."
        ) from error


def _told(reason: object) -> str:
    return str(getattr(reason, "strerror", None) or reason or type(reason).__name__)
