"""Downloads that can be broken off: resumed where they stopped, checked, and kept in the user's cache."""

import gzip
import hashlib
import http.client
import os
import socket
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn, TypeAlias

from fedgrem.errors import FedGrEMError

CHUNK = 256 * 1024
BY_HAND = "give the folder that holds it (in the shell: --data FOLDER)"
"""What to do with a file that was got in another way."""
Progress: TypeAlias = Callable[[int, int | None], None]
"""Told the bytes that are there and the bytes in all; None where the server does not say."""


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


def file_digest(path: Path) -> str:
    """The sha256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def unpacked_digest(path: Path) -> str:
    """The sha256 of what a gzip file holds: its header carries a time stamp, which differs from mirror to mirror."""
    digest = hashlib.sha256()
    with gzip.open(path) as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def fetch(
    url: str,
    path: Path,
    *,
    sha256: str | None = None,
    digest: Callable[[Path], str] = file_digest,
    on_progress: Progress | None = None,
    timeout: float = 30.0,
) -> Path:
    """Download a file, unless it is there already; what came of a broken download is used the next time.

    The file is written beside ``path`` with the ending ``.part`` and renamed when it is complete and checked, so a file
    at ``path`` is a whole one.

    Parameters
    ----------
    url : its address.
    path : where the file is to be.
    sha256 : its check sum; None checks the length only.
    digest : how to compute the check sum, such as :func:`unpacked_digest`.
    on_progress : called with (bytes there, bytes in all or None).
    timeout : seconds without a byte after which the connection counts as broken.
    """
    if path.exists():
        return path
    part = path.with_name(f"{path.name}.part")
    _download(url, part, on_progress or (lambda done, total: None), timeout)
    if sha256 is not None:
        _check(url, part, sha256, digest)
    _locally(part.replace, path)
    return path


def _download(url: str, part: Path, tell: Progress, timeout: float) -> None:
    """All bytes of an address into ``part``, after those that are there."""
    _locally(part.parent.mkdir, parents=True, exist_ok=True)
    there = part.stat().st_size if part.exists() else 0
    response = _open(url, there, timeout)
    if response is None:  # the server has nothing from this place on: the part is complete, or not of this file
        part.unlink()
        there = 0
        response = _open(url, there, timeout)
    assert response is not None, "only a request for the rest of a file is answered with 416"
    with response:
        resumed = there > 0 and response.status == 206 and _starts_at(response) == there
        if there > 0 and response.status == 206 and not resumed:
            part.unlink()
            raise DownloadError(
                f"{url} sent another piece than was asked for; run the same command again to start over."
            )
        done = there if resumed else 0
        length = response.headers.get("Content-Length")
        total = done + int(length) if length is not None and length.isdigit() else None
        with _locally(part.open, "ab" if resumed else "wb") as file:
            tell(done, total)
            while chunk := _read(response, url, done, total):
                _locally(file.write, chunk)
                done += len(chunk)
                tell(done, total)
    if total is not None and done < total:
        _broken(url, done, total, "the connection was closed")


def _open(url: str, there: int, timeout: float) -> Any:
    """The answer to a request for the bytes from ``there`` on; None if there are none."""
    headers = {"User-Agent": "fedgrem"}
    if there:
        headers["Range"] = f"bytes={there}-"
    try:
        return urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=timeout)
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
        offline = isinstance(reason, socket.gaierror)
        raise DownloadError(
            f"{url} cannot be reached ({'its name is not known here' if offline else _told(reason)}); is this machine "
            f"online? If it may not be, get the file elsewhere and {BY_HAND}."
        ) from error


def _starts_at(response: Any) -> int | None:
    place = str(response.headers.get("Content-Range", "")).removeprefix("bytes ").partition("-")[0]
    return int(place) if place.isdigit() else None


def _read(response: Any, url: str, done: int, total: int | None) -> bytes:
    try:
        chunk: bytes = response.read1(CHUNK)
    except (OSError, http.client.HTTPException) as error:
        _broken(url, done, total, _told(error), error)
    return chunk


def _broken(url: str, done: int, total: int | None, reason: str, error: Exception | None = None) -> NoReturn:
    of_all = "" if total is None else f" of {total:,}"
    raise DownloadError(
        f"the download of {url} broke off after {done:,}{of_all} bytes ({reason}); what came is kept: run the same "
        "command again to resume."
    ) from error


def _check(url: str, part: Path, expected: str, digest: Callable[[Path], str]) -> None:
    try:
        got = f"sha256 {digest(part)}"
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        got = f"a file that cannot be unpacked ({error})"
    if got != f"sha256 {expected}":
        part.unlink()
        raise DownloadError(
            f"{url} has the wrong check sum: expected sha256 {expected}, got {got}. The file was removed; run the same "
            f"command again, and if that does not help, get the file elsewhere and {BY_HAND}."
        )


def _locally(act: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """Do something to the disk; its troubles are not the network's."""
    try:
        return act(*arguments, **options)
    except OSError as error:
        raise DownloadError(
            f"the download cannot be written ({_told(error)}); make room, or set FEDGREM_CACHE to another folder."
        ) from error


def _told(reason: object) -> str:
    told = getattr(reason, "strerror", None) or str(reason) or type(reason).__name__
    return str(told)
