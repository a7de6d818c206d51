"""What the commands about sites share."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedgrem.cli.screen import notice, progress_bar, warnings_as_notices

if TYPE_CHECKING:
    from fedgrem.engines.flare.kit import Study

SERVER_SECONDS = 60.0


def become(command: list[str]) -> None:
    """Turn this process into a server or a site, for a supervisor; does not return."""
    os.execv(command[0], command)


def wait_for_server(study: Study) -> None:
    """Until the server lets the coordinator in; if it has died instead, say what it said last."""
    from fedgrem.engines.flare.processes import process_of, tail, wait_until
    from fedgrem.engines.flare.session import session
    from fedgrem.errors import SitesError

    def ready() -> bool:
        if process_of(study.server) is None:
            raise SitesError(f"the server ended at once; its last words: {tail(study.server)}")
        try:
            with session(study, timeout=2.0):
                return True
        except SitesError:
            return False

    wait_until(ready, SERVER_SECONDS, f"the server at {study.host}:{study.port}")


def wait_for_sites(study: Study, sites: list[str], seconds: float) -> None:
    """Until these sites are connected."""
    from fedgrem.engines.flare.processes import wait_until
    from fedgrem.engines.flare.session import session

    with session(study) as talk:
        wait_until(lambda: set(sites) <= {site.name for site in talk.connected()}, seconds, "all sites to connect")


@contextmanager
def watched(task: str, tol: float, n_sites: int) -> Iterator[dict[str, Any]]:
    """A live bar with the sites in and out; yields the two callbacks of a run that is watched."""
    here = {"sites": n_sites}

    def on_line(line: dict[str, Any]) -> None:
        here["sites"] = line.get("sites", here["sites"])
        for event in line.get("events", []):
            notice(f"site {event['site']!r}: {event['what']} (exchange {event['exchange']}): {event['reason']}")

    with warnings_as_notices(), progress_bar(task, tol, lambda: f", {here['sites']} of {n_sites} sites") as tell:
        yield {"on_progress": tell, "on_line": on_line}


def short(path: Path) -> str:
    """A path as the user would type it."""
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)
