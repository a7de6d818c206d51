"""What the coordinator does with a running study: begin a fit, watch it, take it up again."""

import json
import shutil
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from fedgrem.engines.flare.job import write_job
from fedgrem.engines.flare.kit import Study
from fedgrem.engines.flare.session import Session, session
from fedgrem.engines.remote.result import RESULT, Finished, read_result
from fedgrem.engines.remote.roster import Rules
from fedgrem.engines.remote.watch import Outcome, count_lines, follow
from fedgrem.errors import InputError, PausedError, SitesError
from fedgrem.fit.conversation import Progress
from fedgrem.fit.spec import FitSpec, read_spec

FIT = "fit.json"
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


def begin(study: Study, fit: Fit) -> str:
    """Write the job of a new run into the server's kit; returns the run's name."""
    run = f"run-{datetime.now(UTC):%Y%m%d-%H%M%S-%f}"[:-3]
    folder = run_folder(study, run)
    folder.mkdir(parents=True)
    plain = fit._asdict() | {"spec": fit.spec.as_plain(), "rules": fit.rules._asdict()}
    (folder / FIT).write_text(json.dumps(plain, indent=1) + "\n", encoding="utf-8")
    return run


def check_ready(study: Study, fit: Fit) -> None:
    """Refuse to begin a fit without a server, or with too few sites."""
    with session(study) as talk:
        _check_connected(talk, fit)


def carry_out(
    study: Study,
    run: str,
    on_progress: Callable[[Progress], None] | None = None,
    on_line: Callable[[dict[str, Any]], None] | None = None,
) -> Finished:
    """Submit a run's job and watch it to its end; one that was begun before goes on where its journal ends."""
    fit, folder = read_fit(study, run), run_folder(study, run)
    skip = count_lines(folder)
    with session(study) as talk:
        _check_connected(talk, fit)
        talk.stop_jobs()
        shutil.rmtree(folder / "job", ignore_errors=True)
        path = write_job(folder / "job", fit.spec, fit.sites, run, fit.rules, transport=fit.transport)
        job = talk.submit(path)
        outcome = follow(folder, on_progress, _Pulse(talk, job, folder, skip), on_line, skip=skip)
        return _concluded(folder, outcome, talk, job)


class _Pulse:
    """Whether a job is alive, asked now and then."""

    def __init__(self, talk: Session, job: str, folder: Path, skip: int) -> None:
        self._talk, self._job, self._folder, self._skip = talk, job, folder, skip
        self._next = self._begin = time.monotonic()
        self._alive = True

    def __call__(self) -> bool:
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + LOOK
            try:
                self._alive = not self._talk.job_status(self._job).startswith("FINISHED")
            except Exception:  # whatever NVFlare raises, the server does not answer
                self._alive = False
            if count_lines(self._folder) == self._skip and time.monotonic() > self._begin + LAUNCH:
                self._alive = False
        return self._alive


def _concluded(folder: Path, outcome: Outcome, talk: Session, job: str) -> Finished:
    if outcome.kind == "finished":
        return read_result(folder)
    if outcome.kind == "paused":
        raise PausedError(outcome.message)
    if outcome.kind == "failed":
        raise InputError(outcome.message)
    try:
        status, story = talk.job_status(job), talk.job_story(job)
    except Exception as error:
        raise SitesError(
            "the server no longer answers; start it with `fedgrem sites start`, then go on with `fedgrem sites resume`."
        ) from error
    raise SitesError(f"the job was not carried out ({status}): {story}")


def _check_connected(talk: Session, fit: Fit) -> None:
    here = {site.name for site in talk.connected()}
    lacking = [site for site in fit.sites if site not in here]
    if len(fit.sites) - len(lacking) < fit.rules.min_sites:
        raise SitesError(
            f"{len(fit.sites) - len(lacking)} of {len(fit.sites)} sites are connected, and min_sites is "
            f"{fit.rules.min_sites}; not connected: {', '.join(lacking)}. Start them with `fedgrem site start`."
        )


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
    spec, rules = read_spec(stored["spec"]), Rules(**stored["rules"])
    return Fit(spec, stored["sites"], rules, stored["transport"], stored["more"])


def runs_of(study: Study) -> list[str]:
    """All runs, oldest first."""
    folder = study.server / "runs"
    return sorted(path.name for path in folder.iterdir() if (path / FIT).exists()) if folder.exists() else []


def last_unfinished(study: Study) -> str:
    """The latest run, if it has no result yet."""
    runs = runs_of(study)
    if not runs:
        raise InputError(f"there is no fit to resume in {study.folder}; begin one with `fedgrem sites fit`.")
    if (run_folder(study, runs[-1]) / RESULT).exists():
        raise InputError(f"the last fit, {runs[-1]}, is finished; begin a new one with `fedgrem sites fit`.")
    return runs[-1]


def known_rows(study: Study) -> dict[str, float]:
    """What sites said of their size in the last finished fit they took part in."""
    known: dict[str, float] = {}
    for run in runs_of(study):
        if (run_folder(study, run) / RESULT).exists():
            known |= read_result(run_folder(study, run)).about["n_rows"]
    return known
