"""What the coordinator does with a running study, over mutual TLS: see who is connected, fit, and resume a fit."""

import contextlib
import fcntl
import io
import json
import logging
import os
import shutil
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from fedgrem.engines.flare.job import write_job
from fedgrem.engines.flare.kit import OPERATOR, Study, check_certificate
from fedgrem.engines.flare.processes import wait_until
from fedgrem.engines.remote.progress import count_lines, follow
from fedgrem.engines.remote.result import RESULT, Finished, read_result
from fedgrem.engines.remote.roster import Rules
from fedgrem.errors import InputError, PausedError, SitesError
from fedgrem.fit.conversation import Progress
from fedgrem.fit.spec import FitSpec, read_spec

FIT = "fit.json"
ONLY = "fit.lock"
"""In the server's kit, locked by the command that carries out a fit; the system lets go of it when that ends."""
LOGIN_SECONDS = 10.0
LOOK = 1.0
"""Seconds between two questions to the server whether a job is still alive."""
LAUNCH = 120.0
"""Seconds in which the server must have started a job."""


class Fit(NamedTuple):
    """What was asked for, kept beside the run so that it can be taken up again."""

    spec: FitSpec
    sites: list[str]
    rules: Rules
    transport: str = "push"
    more: dict[str, Any] | None = None
    """Plain values of the caller, such as where the model is to go."""
    links: list[list[int]] | None = None
    """Which sites are linked with which, by their places, in a fit without a server."""


class Session:
    """A study's server, and the coordinator logged in to it."""

    def __init__(self, study: Study, inner: Any) -> None:
        self.study, self._inner = study, inner

    def last_seen(self) -> dict[str, float]:
        """The sites that are connected now, and when each was last heard of (seconds since 1970)."""
        from nvflare.fuel.flare_api.api_spec import NoClientsAvailable

        try:
            clients = self._inner.get_system_info().client_info
        except NoClientsAvailable:
            return {}
        return {str(client.name): float(client.last_connect_time) for client in clients}

    def await_sites(self, sites: list[str], seconds: float = 60.0) -> None:
        """Until these sites are connected."""
        wait_until(lambda: self.last_seen().keys() >= set(sites), seconds, "all sites to connect")

    def check_connected(self, fit: Fit) -> None:
        """Refuse to begin a fit with too few sites."""
        here = self.last_seen()
        lacking = [site for site in fit.sites if site not in here]
        if len(fit.sites) - len(lacking) < fit.rules.min_sites:
            raise SitesError(
                f"{len(fit.sites) - len(lacking)} of {len(fit.sites)} sites are connected, and min_sites is "
                f"{fit.rules.min_sites}; not connected: {', '.join(lacking)}. Start them with `fedgrem site start`."
            )

    def submit(self, job: Path) -> str:
        """Hand in a job; returns its number."""
        return str(self._inner.submit_job(str(job.resolve())))

    def job_status(self, job: str) -> str:
        """``SUBMITTED``, ``RUNNING``, or how it ended."""
        return str(self._inner.get_job_meta(job).get("status"))

    def job_story(self, job: str) -> str:
        """What the server says about where and why a job was not started."""
        meta = self._inner.get_job_meta(job)
        return "; ".join(str(meta[key]) for key in ("job_deploy_detail", "schedule_history") if meta.get(key))

    def stop_jobs(self) -> None:
        """Stop whatever still runs: a run that is resumed must not have two centers."""
        for job in self._inner.list_jobs():
            if not str(job.get("status", "")).startswith("FINISHED") and "job_id" in job:
                with contextlib.suppress(Exception):  # a job that died with the server cannot be stopped any more
                    self._inner.abort_job(str(job["job_id"]))

    def forbid(self, site: str) -> None:
        """Do not let a site register any more."""
        self._inner.disable_client(site)

    def carry_out(
        self,
        run: str,
        on_progress: Callable[[Progress], None] | None = None,
        on_line: Callable[[dict[str, Any]], None] | None = None,
    ) -> Finished:
        """Submit a run's job and watch it to its end; one that was begun before goes on where its journal ends."""
        fit, folder = read_fit(self.study, run), run_folder(self.study, run)
        skip = count_lines(folder)
        self.check_connected(fit)
        with only_fit(self.study, run):
            return self._carry_out(run, fit, folder, skip, on_progress, on_line)

    def _carry_out(
        self,
        run: str,
        fit: Fit,
        folder: Path,
        skip: int,
        on_progress: Callable[[Progress], None] | None,
        on_line: Callable[[dict[str, Any]], None] | None,
    ) -> Finished:
        if fit.links is not None and skip:
            raise SitesError("a fit without a server cannot be taken up again; begin a new one.")
        self.stop_jobs()  # of fits that nobody watches any more
        shutil.rmtree(folder / "job", ignore_errors=True)
        if fit.links is None:
            written = write_job(folder / "job", fit.spec, fit.sites, run, fit.rules, transport=fit.transport)
        else:
            from fedgrem.engines.flare.neighbours import write_study_job

            written = write_study_job(folder / "job", fit.spec, fit.sites, fit.links, run)
        job = self.submit(written)
        outcome = follow(folder, on_progress, self._pulse(job, lambda: count_lines(folder) > skip), on_line, skip=skip)
        if outcome.kind == "finished":
            return read_result(folder)
        if outcome.kind == "paused":
            raise PausedError(outcome.message)
        if outcome.kind == "failed":
            raise InputError(outcome.message)
        try:
            told = f"the job was not carried out ({self.job_status(job)}): {self.job_story(job)}"
        except Exception as error:
            raise SitesError(
                "the server no longer answers; start it with `fedgrem sites start`, then go on with `fedgrem sites "
                "resume`."
            ) from error
        raise SitesError(told)

    def _pulse(self, job: str, began: Callable[[], bool]) -> Callable[[], bool]:
        """Says whether a job is alive; the server is asked now and then."""
        start = asked = time.monotonic()
        alive = True

        def pulse() -> bool:
            nonlocal asked, alive
            if time.monotonic() >= asked + LOOK:
                asked = time.monotonic()
                try:
                    alive = not self.job_status(job).startswith("FINISHED")
                except Exception:  # whatever NVFlare raises, the server does not answer
                    alive = False
                alive = alive and (asked < start + LAUNCH or began())
            return alive

        return pulse


@contextlib.contextmanager
def only_fit(study: Study, run: str) -> Iterator[None]:
    """Hold the study's one fit; refuse where another command holds it. Whoever has died holds nothing."""
    path = study.server / ONLY
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            other = os.read(handle, 200).decode(errors="replace") or "another fit"
            raise SitesError(
                f"{other} is running in this study; wait for it, or stop that command and go on with `fedgrem sites "
                f"resume {study.folder}`."
            ) from error
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"{run} (process {os.getpid()})".encode(), 0)
        yield
    finally:
        os.close(handle)


@contextlib.contextmanager
def session(study: Study) -> Iterator[Session]:
    """Log in with the coordinator's certificate."""
    from nvflare.fuel.flare_api.api_spec import AuthenticationError, NoConnection
    from nvflare.fuel.flare_api.flare_api import new_secure_session

    check_certificate(study.coordinator, "coordinator")
    logging.getLogger("nvflare").setLevel(logging.CRITICAL)
    (study.coordinator / "transfer").mkdir(exist_ok=True)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            inner = new_secure_session(OPERATOR, str(study.coordinator), timeout=LOGIN_SECONDS)
    except NoConnection as error:
        raise SitesError(
            f"no server answers at {study.host}:{study.port}; start it with `fedgrem sites start {study.folder}`."
        ) from error
    except AuthenticationError as error:
        raise SitesError(f"the server at {study.host}:{study.port} refused the coordinator: {error}.") from error
    try:
        yield Session(study, inner)
    finally:
        inner.close()


# -- runs, in the server's kit


def begin(study: Study, fit: Fit) -> str:
    """Write down a new run; returns its name."""
    run = f"run-{datetime.now(UTC):%Y%m%d-%H%M%S-%f}"[:-3]
    folder = run_folder(study, run)
    folder.mkdir(parents=True)
    plain = fit._asdict() | {"spec": fit.spec.as_plain(), "rules": fit.rules._asdict()}
    (folder / FIT).write_text(json.dumps(plain, indent=1) + "\n", encoding="utf-8")
    return run


def run_folder(study: Study, run: str) -> Path:
    """Where the server keeps a run."""
    return study.server / "runs" / run


def read_fit(study: Study, run: str) -> Fit:
    """What was asked for in a run."""
    path = run_folder(study, run) / FIT
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read ({error}).") from error
    return Fit(**stored | {"spec": read_spec(stored["spec"]), "rules": Rules(**stored["rules"])})


def _runs(study: Study) -> list[Path]:
    """The folders of all runs, oldest first."""
    return sorted(path.parent for path in (study.server / "runs").glob(f"*/{FIT}"))


def last_unfinished(study: Study) -> str:
    """The latest run, if it has no result yet."""
    runs = _runs(study)
    if not runs:
        raise InputError(f"there is no fit to resume in {study.folder}; begin one with `fedgrem sites fit`.")
    if (runs[-1] / RESULT).exists():
        raise InputError(f"the last fit, {runs[-1].name}, is finished; begin a new one with `fedgrem sites fit`.")
    return runs[-1].name


def unfinished(study: Study, run: str) -> str:
    """A run by its name, if it has no result yet."""
    runs = {folder.name: folder for folder in _runs(study)}
    if run not in runs:
        raise InputError(
            f"there is no fit {run!r} in {study.folder}; the last are {', '.join(list(runs)[-5:]) or 'none'}."
        )
    if (runs[run] / RESULT).exists():
        raise InputError(f"the fit {run} is finished; begin a new one with `fedgrem sites fit`.")
    return run


def known_rows(study: Study) -> dict[str, float]:
    """What sites said of their size in the last finished fit they took part in."""
    known: dict[str, float] = {}
    for folder in _runs(study):
        if (folder / RESULT).exists():
            known |= read_result(folder).about["n_rows"]
    return known
