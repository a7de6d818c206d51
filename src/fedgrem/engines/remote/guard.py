"""The guard at a site's door: the only way in for an order and out for an answer, and the log of both.

It holds a center to the agreed spec (:mod:`~fedgrem.engines.remote.course`), an answer to the floor and to what was
declared, and remembers hashes and counts, which it reads from its own log when it starts.
"""

import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np

from fedgrem.engines.remote.course import Course, State, digest_of
from fedgrem.engines.remote.declaration import CENSUS, Declaration, Order, read_names, write_names
from fedgrem.engines.remote.log import Log
from fedgrem.engines.remote.site import DeclinedError, SiteAtWork
from fedgrem.engines.remote.wire import Fields, encode, size
from fedgrem.errors import MessageError
from fedgrem.types import named_arrays

REFUSALS = 20
"""Orders that are refused before a fit is refused altogether, and no longer logged: a refusal says something, too."""
DAY = timedelta(hours=24)


class Guard:
    """One fit at one site.

    Parameters
    ----------
    site : whose rows they are.
    log : where everything is written down before it happens; ``earlier`` are the records in it.
    run : the name of the fit, which stays the same when it is taken up again.
    """

    def __init__(
        self,
        site: SiteAtWork,
        log: Log,
        earlier: Callable[[], Any],
        *,
        run: str,
        job: str = "",
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._site, self._log, self._earlier, self._run, self._job, self._now = site, log, earlier, run, job, now
        self._declaration = Declaration(site.spec, len(site.settings.columns))
        self._lock = threading.Lock()
        self._course: Course | None = None
        self._refused = 0
        self._answered: tuple[str, Fields] | None = None
        self._released: tuple[int, Fields] | None = None

    def answer(self, task: str, fields: Fields, *, exchange: int) -> Fields:
        """What leaves in answer to an order; :class:`DeclinedError` where nothing does.

        The same order again has the same answer, from the same rows.
        """
        with self._lock:
            about = {"run": self._run, "exchange": exchange, "task": str(task)[:40]}
            try:
                if self._course is None:
                    self._course = self._enter()
                if self._refused < REFUSALS:
                    released = self._answer(task, fields, about)
            except DeclinedError as error:
                self._refused += 1
                if self._refused <= REFUSALS:
                    self._write("refusal", **about, code=error.code, why=str(error))
                raise
            if self._refused >= REFUSALS:
                raise DeclinedError(
                    "often", f"{REFUSALS} orders of {self._run} were refused; it is not answered any more."
                )
            self._released = exchange, released
            return released

    def was_released(self, exchange: int, fields: Fields) -> bool:
        """Whether this very answer to this exchange has passed the guard."""
        return self._released == (exchange, fields)

    def _answer(self, task: str, fields: Fields, about: dict[str, Any]) -> Fields:
        assert self._course is not None
        order = self._site.read(task, fields)
        digest = digest_of((task, order))
        try:
            again = self._course.take(task, order)
        except MessageError as error:
            self._write("order", **about, **_told(order), digest=digest)
            raise DeclinedError("order", str(error)) from error
        if again and self._answered is not None and self._answered[0] == digest:
            return self._answered[1]
        told = {"again": True} if again else _told(order)
        self._write("order", **about, **told, digest=digest, state=self._course.state)
        reply, held_back = self._site.work(task, order)
        message = self.judge(task, encode(reply))
        released = encode(message)
        numbers = {name: leaf.tolist() for name, leaf in named_arrays(message)}
        if "names" in numbers:
            numbers["names"] = read_names(message.names)
        below = {"held_back": held_back} if held_back else {}
        self._write("reply", **about, bytes=size(released), **below, sent=numbers)
        self._answered = digest, released
        return released

    def judge(self, task: str, reply: Fields) -> Any:
        """The reply as arrays, checked against the declaration, which the guard finds by itself, and the settings."""
        settings = self._site.settings
        try:
            message = self._declaration.read_reply(task, reply)
        except MessageError as error:
            raise DeclinedError("guard", str(error)) from error
        if (
            task == CENSUS
            and len(message.names)
            and not np.array_equal(message.names, write_names(settings.summarized))
        ):
            raise DeclinedError("guard", "the names in the reply are not those of the site's columns.")
        if size(reply) > settings.cap:
            raise DeclinedError("guard", f"the reply has {size(reply)} bytes, and at most {settings.cap} may leave.")
        return message

    # -- what the log remembers

    def _enter(self) -> Course:
        """Take up the fit where the log says that it is, or begin it if the site may."""
        records = list(self._earlier())
        mine = [record for record in records if record.get("run") == self._run]
        spec = self._site.spec.as_plain()
        course = Course(self._site.spec, len(self._site.settings.columns))
        digest = self._site.digest()
        begun = [record for record in mine if record["kind"] == "fit"]
        if begun:
            if begun[0]["spec"] != spec:
                raise DeclinedError("order", f"{self._run} was begun with another spec.")
            if begun[0]["rows"] != digest:
                raise DeclinedError("changed", f"the rows are not those with which {self._run} was begun.")
            self._refused = sum(record["kind"] == "refusal" for record in mine)
            for record in mine:
                if "state" in record:
                    course.restore(State(*record["state"]), record["digest"])
            return course
        self._check_often(records)
        n_rows = len(self._site.rows().sites[0].rows)
        self._check_changed(records, digest, n_rows)
        settings = self._site.settings
        rules = {"floor": settings.floor, "cap": settings.cap, "fits_per_day": settings.fits_per_day}
        self._write("fit", run=self._run, job=self._job, spec=spec, rows=digest, n_rows=n_rows, **rules)
        return course

    def _check_often(self, records: list[dict[str, Any]]) -> None:
        most, since = self._site.settings.fits_per_day, self._now() - DAY
        recent = sum(record["kind"] == "fit" and datetime.fromisoformat(record["time"]) > since for record in records)
        if recent >= most:
            raise DeclinedError("often", f"{recent} fits were begun within a day, and the site answers {most}.")

    def _check_changed(self, records: list[dict[str, Any]], digest: str, n_rows: int) -> None:
        """Two fits whose rows differ by a few tell of these few."""
        since = max((k for k, record in enumerate(records) if record["kind"] == "accepted"), default=-1)
        for record in records[since + 1 :]:
            if record["kind"] == "fit" and record["rows"] != digest:
                apart = abs(record["n_rows"] - n_rows)
                if apart < self._site.settings.floor:
                    raise DeclinedError(
                        "changed",
                        f"the rows have changed since {record['run']}, by {apart} in number, below the floor of "
                        f"{self._site.settings.floor:g}: who compares the two fits may learn of single rows. Keep the "
                        "earlier file, or say that this is all right: `fedgrem site start KIT --accept-changes`.",
                    )

    def _write(self, kind: str, **content: Any) -> None:
        try:
            self._log.append(kind, **content)
        except OSError as error:
            raise DeclinedError("guard", f"the log cannot be written ({error}); nothing leaves without it.") from error


def _told(order: Order) -> dict[str, Any]:
    return {"asked": {name: leaf.tolist() for name, leaf in named_arrays(order)}}
