"""The guard at a site's door: the only way in for an order and out for an answer, and the log of both.

It holds a center to the agreed spec (:mod:`~fedgrem.engines.remote.course`), an answer to the floor and to what was
declared, and remembers hashes and counts, which it reads from its own log when it starts.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np

from fedgrem.engines.remote.course import Course
from fedgrem.engines.remote.declaration import Declaration, Order, read_names, write_names
from fedgrem.engines.remote.floor import explained
from fedgrem.engines.remote.ledger import charge, one_at_a_time, spent
from fedgrem.engines.remote.log import Log
from fedgrem.engines.remote.site import DeclinedError, SiteAtWork
from fedgrem.engines.remote.sums import SumCourse, masked_in, told_of
from fedgrem.engines.remote.wire import Fields, digest_of, encode, size
from fedgrem.errors import InputError, MessageError
from fedgrem.fit.private_site import TASKS as PRIVATE_TASKS
from fedgrem.fit.private_site import PrivateReply
from fedgrem.fit.sums_site import SumOrder, SumReply
from fedgrem.kernels.privacy import mu_of
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
        self._declaration = Declaration(site.spec, len(site.columns))
        self._lock = threading.Lock()
        self._course: Course | SumCourse | None = None
        self._refused, self._best = 0, -np.inf
        self._answered: tuple[str, Fields] | None = None
        self._released: tuple[int, Fields] | None = None

    def answer(self, task: str, fields: Fields, *, exchange: int) -> Fields:
        """What leaves in answer to an order; :class:`DeclinedError` where nothing does.

        The same order again has the same answer, from the same rows.
        """
        with self._lock, self._alone():
            about: dict[str, Any] = {"run": self._run, "exchange": exchange, "task": str(task)[:40]}
            try:
                if self._course is None:
                    self._course = self._enter()
                if self._refused < REFUSALS:
                    released = self._answer(task, fields, about)
            except DeclinedError as error:
                if isinstance(error.__cause__, OSError):
                    raise  # a full disk, say: nobody's doing, and nothing can be written of it
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

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """In a private fit, one order after the other, and from what the log says that was answered before.

        Whoever begins the same fit twice has two guards; what both would answer is paid for once.
        """
        ledger = self._site.settings.ledger
        if self._site.spec.ranges is None or ledger is None:
            yield
            return
        try:
            with one_at_a_time(Path(ledger)):
                self._course = None
                yield
        except OSError as error:
            raise DeclinedError("budget", f"the ledger cannot be used ({error}).") from error

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
        private = task in PRIVATE_TASKS
        if again and private and (kept := self._remembered(digest)) is not None:
            return kept
        told = {"again": True} if again else _told(order)
        self._write("order", **about, **told, digest=digest, state=self._course.state)
        answer = self._site.work(task, order, self._best)
        message = self.judge(task, encode(answer.reply), order)
        released = encode(message)
        masked = isinstance(message, SumReply)
        numbers = {} if masked else {name: leaf.tolist() for name, leaf in named_arrays(message)}
        if "names" in numbers:
            numbers["names"] = read_names(message.names)
        below: dict[str, Any] = {"held_back": answer.held_back} if answer.held_back else {}
        below |= {"far": True} if answer.far else {}
        below |= masked_in(released) if masked else {}
        self._write("reply", lasting=private, **about, bytes=size(released), **below, sent=numbers)
        self._answered, self._best = (digest, released), max(self._best, explained(numbers))
        return released

    def _remembered(self, digest: str) -> Fields | None:
        """The answer to an order that was given before: fresh noise on the same sums would not be paid for."""
        mine, last = None, ""
        for record in self._earlier():
            if record.get("run") == self._run:
                last = record.get("digest", last)
                if record["kind"] == "reply" and last == digest:
                    mine = record["sent"]
        return (
            None if mine is None else encode(PrivateReply(*(np.asarray(mine[name]) for name in PrivateReply._fields)))
        )

    def judge(self, task: str, reply: Fields, order: Order | None = None) -> Any:
        """The reply as arrays, checked against the declaration, which the guard finds by itself, and the settings."""
        settings = self._site.settings
        try:
            message = self._declaration.read_reply(task, reply, order)
        except MessageError as error:
            raise DeclinedError("guard", str(error)) from error
        if (
            task == self._declaration.first
            and len(message.names)
            and not np.array_equal(message.names, write_names(settings.summarized))
        ):
            raise DeclinedError("guard", "the names in the reply are not those of the site's columns.")
        if size(reply) > settings.cap:
            raise DeclinedError("guard", f"the reply has {size(reply)} bytes, and at most {settings.cap} may leave.")
        return message

    # -- what the log remembers

    def _enter(self) -> Course | SumCourse:
        """Take up the fit where the log says that it is, or begin it if the site may."""
        self._site.check()
        records = list(self._earlier())
        mine = [record for record in records if record.get("run") == self._run]
        spec = self._site.spec.as_plain()
        sums = self._site.spec.secure_sums
        course = SumCourse(self._site.spec) if sums else Course(self._site.spec, len(self._site.columns))
        digest = self._site.digest()
        begun = [record for record in mine if record["kind"] == "fit"]
        if begun:
            if begun[0]["spec"] != spec:
                raise DeclinedError("order", f"{self._run} was begun with another spec.")
            if begun[0]["rows"] != digest:
                raise DeclinedError("changed", f"the rows are not those with which {self._run} was begun.")
            self._site.budget = begun[0].get("mu")
            self._refused = sum(record["kind"] == "refusal" for record in mine)
            for record in mine:
                self._best = max(self._best, explained(record.get("sent", {})))
                if "state" in record:
                    course.restore(record["state"], record["digest"])
            return course
        self._check_often(records)
        n_rows, settings = len(self._site.rows().sites[0].rows), self._site.settings
        paid = self._pay(interrupted=any(record["kind"] == "paying" for record in mine))
        if not paid:
            self._check_changed(records, digest, n_rows)
        rules: dict[str, Any] = {"floor": settings.floor, "cap": settings.cap, "fits_per_day": settings.fits_per_day}
        self._write("fit", run=self._run, job=self._job, spec=spec, rows=digest, n_rows=n_rows, **rules, **paid)
        return course

    def _pay(self, *, interrupted: bool) -> dict[str, Any]:
        """What the log says of the budget of a private fit, once it is paid for; nothing of another fit.

        The log says first that it is about to be: a crash in between must not cost a budget for nothing.
        """
        settings, private = self._site.settings, self._site.spec.ranges is not None
        if settings.epsilon is None:
            if private:
                raise DeclinedError(
                    "budget",
                    "the fit is private, and the site has no budget; `fedgrem site start KIT --epsilon 4` sets one, "
                    "and a large one, such as 1000, adds hardly any noise.",
                )
            return {}
        if not private:
            raise DeclinedError(
                "budget",
                "the site has a privacy budget, and the fit is not private; the coordinator can ask for one that is, "
                "with `fedgrem sites fit --ranges`.",
            )
        epsilon, delta = settings.epsilon, settings.delta
        total = epsilon if settings.total_epsilon is None else settings.total_epsilon
        told: dict[str, Any] = {"epsilon": epsilon, "delta": delta, "total_epsilon": total}
        try:
            if settings.ledger is None:  # a rehearsal, which nobody hears
                self._site.budget = mu_of(epsilon, delta)
            else:
                if not interrupted:
                    self._write("paying", lasting=True, run=self._run)
                ledger = Path(settings.ledger)
                self._site.budget = charge(ledger, self._run, epsilon, delta, total, interrupted=interrupted)
                told["spent"] = spent(Path(settings.ledger), delta).epsilon
        except (InputError, OSError) as error:
            raise DeclinedError("budget", str(error)) from error
        return told | {"mu": self._site.budget}

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

    def _write(self, kind: str, *, lasting: bool = False, **content: Any) -> None:
        try:
            self._log.append(kind, lasting=lasting, **content)
        except OSError as error:
            raise DeclinedError("guard", f"the log cannot be written ({error}); nothing leaves without it.") from error


def _told(order: Order) -> dict[str, Any]:
    if isinstance(order.mail, SumOrder):
        agreed = named_arrays(order._replace(mail=()))
        return {"asked": told_of(order.mail) | {name: leaf.tolist() for name, leaf in agreed}}
    return {"asked": {name: leaf.tolist() for name, leaf in named_arrays(order)}}
