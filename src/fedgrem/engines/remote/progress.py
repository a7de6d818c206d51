"""How a run goes: lines that the center writes into the run's folder, for whoever watches it from outside."""

import contextlib
import errno
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from fedgrem.fit.conversation import Progress

PROGRESS = "progress.jsonl"
RESERVE, ROOM = "reserve", 2**16
"""A file that is there to be deleted when the disk is full, and its bytes."""
STEP = 0.05
"""Seconds between two looks."""
ENDS = ("finished", "paused", "failed")


class Diary:
    """One line per thing that a watcher may want to see, in the run's folder."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._path, self._reserve = folder / PROGRESS, folder / RESERVE
        with contextlib.suppress(OSError):
            self._reserve.write_bytes(bytes(ROOM))

    def write(self, **line: Any) -> None:
        """Add a line; on a full disk, in the room that was reserved for the last words."""
        try:
            self._append(line)
        except OSError:
            self._reserve.unlink(missing_ok=True)
            self._append(line)

    def _append(self, line: dict[str, Any]) -> None:
        with self._path.open("ab", buffering=0) as file:
            size = file.tell()
            whole = (json.dumps(line) + "\n").encode()
            if file.write(whole) < len(whole):
                file.truncate(size)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._path))


class Outcome(NamedTuple):
    """How a run ended, or "gone" if nobody runs it any more."""

    kind: str
    message: str = ""


def follow(
    folder: Path,
    on_progress: Callable[[Progress], None] | None,
    alive: Callable[[], bool],
    on_line: Callable[[dict[str, Any]], None] | None = None,
    *,
    skip: int = 0,
) -> Outcome:
    """Pass progress on until the run ends; ``alive`` says whether anybody still runs it.

    ``skip`` is the number of lines that were there before, from earlier starts of the same run.
    """
    lines = _lines(folder / PROGRESS, skip)
    going = True
    while True:
        for line in lines:
            if line is None:
                break
            if on_line is not None:
                on_line(line)
            if line["kind"] == "progress" and on_progress is not None:
                movement = float("nan") if line["movement"] is None else float(line["movement"])
                on_progress(Progress(line["stage"], line["round"], line["max_rounds"], movement))
            if line["kind"] in ENDS:
                return Outcome(line["kind"], line.get("message", ""))
        if not going:
            return Outcome("gone")
        going = alive()  # and then one last look
        time.sleep(STEP)


def count_lines(folder: Path) -> int:
    """Lines that a run's progress has so far."""
    path = folder / PROGRESS
    return path.read_bytes().count(b"\n") if path.exists() else 0


def _lines(path: Path, skip: int) -> Iterator[dict[str, Any] | None]:
    """Complete lines as they come; None when there is no more for now."""
    place, seen, rest = 0, 0, b""
    while True:
        fresh = b""
        if path.exists():
            with path.open("rb") as file:
                file.seek(place)
                fresh = file.read()
        place += len(fresh)
        *whole, rest = (rest + fresh).split(b"\n")
        for line in whole:
            seen += 1
            if seen > skip:
                yield json.loads(line)
        yield None
