"""The guard at a site's door: nothing leaves that was not declared, and every number that leaves is written down."""

import json
import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from fedgrem.engines.remote.declaration import CENSUS, Declaration, read_names, write_names
from fedgrem.engines.remote.site import DeclinedError, Settings
from fedgrem.engines.remote.wire import Fields, encode, size
from fedgrem.errors import InputError, MessageError
from fedgrem.fit.spec import FitSpec
from fedgrem.types import named_arrays

LOG = "sent.jsonl"
"""In a site's kit: one line per message that left, with every number in it."""


class Guard:
    """The only way out of a site: every reply passes :meth:`release`."""

    def __init__(self, settings: Settings, spec: FitSpec, log: Path) -> None:
        self._settings, self._log = settings, log
        self._declaration = Declaration(spec, len(settings.columns))

    def release(self, task: str, reply: Fields, *, job: str, exchange: int) -> Fields:
        """Judge a reply, log every number, and let it go; :class:`DeclinedError` where it must not leave.

        What leaves is made anew from what was judged.
        """
        message = self.judge(task, reply)
        numbers = {name: leaf.tolist() for name, leaf in named_arrays(message)}
        if task == CENSUS:
            numbers["names"] = read_names(message.names)
        released = encode(message)
        append(self._log, {"job": job, "exchange": exchange, "task": task, "bytes": size(released), "sent": numbers})
        return released

    def judge(self, task: str, reply: Fields) -> Any:
        """The reply as arrays, checked against the declaration, which the guard finds by itself, and the settings."""
        try:
            message = self._declaration.read_reply(task, reply)
        except MessageError as error:
            raise DeclinedError("guard", str(error)) from error
        if task == CENSUS and not np.array_equal(message.names, write_names(self._settings.summarized)):
            raise DeclinedError("guard", "the names in the reply are not those of the site's columns.")
        if size(reply) > self._settings.cap:
            raise DeclinedError(
                "guard", f"the reply has {size(reply)} bytes, and at most {self._settings.cap} may leave."
            )
        check_floor(message, self._settings.floor)
        return message


def check_floor(reply: Any, floor: float) -> None:
    """Refuse to answer where a component holds fewer rows than the floor."""
    part = getattr(reply, "fits", reply)  # to a part of the rows each
    params = getattr(part, "params", None)
    if floor <= 0 or params is None:
        return
    n_rows = np.asarray(part.n_rows)
    held = float(np.min(params.weights * n_rows.reshape(*n_rows.shape, *(1,) * (params.weights.ndim - n_rows.ndim))))
    if held < floor:
        raise DeclinedError("floor", f"a component holds {held:.3g} rows, and the floor is {floor:g}.")


# -- the log


def append(log: Path, line: dict[str, Any]) -> None:
    """Add a line to the log, with the time."""
    stamped = {"time": datetime.now(UTC).isoformat(timespec="milliseconds")} | line
    handle = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(handle, (json.dumps(stamped, separators=(",", ":")) + "\n").encode())
    finally:
        os.close(handle)


def read_log(path: Path) -> Iterator[dict[str, Any]]:
    """The messages that left a site, oldest first."""
    if not path.exists():
        return
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            try:
                yield json.loads(line)
            except ValueError as error:
                raise InputError(f"line {number} of {path} is not what the guard wrote ({error}).") from error
