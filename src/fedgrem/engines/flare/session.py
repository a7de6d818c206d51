"""Talking to a study's server as its coordinator: who is connected, submit a job, stop it. Over mutual TLS."""

import contextlib
import io
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from fedgrem.engines.flare.kit import OPERATOR, Study
from fedgrem.errors import SitesError

OVER = ("FINISHED",)
LOGIN_SECONDS = 10.0


class Connected(NamedTuple):
    """A site that is connected."""

    name: str
    last_seen: float
    """Seconds since 1970."""


class Session:
    """A conversation with the server."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def connected(self) -> list[Connected]:
        """The sites that are connected now."""
        from nvflare.fuel.flare_api.api_spec import NoClientsAvailable

        try:
            clients = self._inner.get_system_info().client_info
        except NoClientsAvailable:
            return []
        return sorted(Connected(str(client.name), float(client.last_connect_time)) for client in clients)

    def submit(self, job: Path) -> str:
        """Hand in a job; returns its number."""
        return str(self._inner.submit_job(str(job.resolve())))

    def job_status(self, job: str) -> str:
        """``SUBMITTED``, ``RUNNING``, or how it ended."""
        return str(self._inner.get_job_meta(job).get("status"))

    def job_story(self, job: str) -> str:
        """What the server says about where and why a job was not started."""
        meta = self._inner.get_job_meta(job)
        told = [str(meta[key]) for key in ("job_deploy_detail", "schedule_history") if meta.get(key)]
        return "; ".join(told)

    def stop_jobs(self) -> None:
        """Stop whatever still runs: a run that is resumed must not have two centers."""
        for job in self._inner.list_jobs():
            status = str(job.get("status", ""))
            if not status.startswith(OVER) and "job_id" in job:
                with contextlib.suppress(Exception):  # a job that died with the server cannot be stopped any more
                    self._inner.abort_job(str(job["job_id"]))

    def forbid(self, site: str) -> None:
        """Do not let a site register any more."""
        self._inner.disable_client(site)


@contextlib.contextmanager
def session(study: Study, timeout: float | None = None) -> Iterator[Session]:
    """Log in with the coordinator's certificate."""
    from nvflare.fuel.flare_api.api_spec import AuthenticationError, NoConnection
    from nvflare.fuel.flare_api.flare_api import new_secure_session

    logging.getLogger("nvflare").setLevel(logging.CRITICAL)
    (study.coordinator / "transfer").mkdir(exist_ok=True)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            inner = new_secure_session(
                OPERATOR, str(study.coordinator), timeout=LOGIN_SECONDS if timeout is None else timeout
            )
    except NoConnection as error:
        raise SitesError(
            f"no server answers at {study.host}:{study.port}; start it with `fedgrem sites start {study.folder}`."
        ) from error
    except AuthenticationError as error:
        raise SitesError(f"the server at {study.host}:{study.port} refused the coordinator: {error}.") from error
    try:
        yield Session(inner)
    finally:
        inner.close()
