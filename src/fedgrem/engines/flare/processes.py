"""The server and the sites as processes in the background, found again by a file in their kit."""

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from fedgrem.engines.flare.kit import ORGANIZATION
from fedgrem.errors import SitesError

PID = "process.json"
CONSOLE = "console.log"
GRACE = 3.0
"""Seconds that processes have to end by themselves."""


def start_server(kit: Path) -> int:
    """Start the server of a study; returns its process number."""
    return _start(kit, server_command(kit), "the server")


def start_site(kit: Path, name: str) -> int:
    """Start a site; returns its process number."""
    return _start(kit, site_command(kit, name), f"site {name!r}")


def server_command(kit: Path) -> list[str]:
    """What runs the server, for those who run it under a supervisor of their own."""
    return _command("server.server_train", kit, "fed_server.json")


def site_command(kit: Path, name: str) -> list[str]:
    """What runs a site."""
    return _command("client.client_train", kit, "fed_client.json", f"uid={name}")


def _command(module: str, kit: Path, config: str, *more: str) -> list[str]:
    settings = ["secure_train=true", *more, f"org={ORGANIZATION}", "config_folder=config"]
    program = [sys.executable, "-u", "-m", f"nvflare.private.fed.app.{module}"]
    return [*program, "-m", str(kit.resolve()), "-s", config, "--set", *settings]


def _start(kit: Path, command: list[str], who: str) -> int:
    running = process_of(kit)
    if running is not None:
        raise SitesError(f"{who} is running already (process {running}); stop it first, or leave it running.")
    (kit / "transfer").mkdir(exist_ok=True)
    with (kit / CONSOLE).open("ab") as console, open(os.devnull, "rb") as nothing:
        # Not a Popen: the process outlives this one, and nobody here waits for it.
        streams = [(os.POSIX_SPAWN_DUP2, console.fileno(), 1), (os.POSIX_SPAWN_DUP2, console.fileno(), 2)]
        streams += [(os.POSIX_SPAWN_DUP2, nothing.fileno(), 0)]
        pid = os.posix_spawn(command[0], command, os.environ, file_actions=streams, setsid=True)
    (kit / PID).write_text(json.dumps({"pid": pid, "began": _began(pid)}) + "\n")
    return pid


def process_of(kit: Path) -> int | None:
    """The process number of what runs in a kit, or None; a number taken over by another program does not count."""
    try:
        stored = json.loads((kit / PID).read_text())
        pid, began = int(stored["pid"]), stored["began"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return pid if began is not None and _began(pid) == began else None


def stop(*kits: Path) -> bool:
    """End what runs in these kits, all at once, with the workers it started; returns whether anything ran."""
    pids = [process_of(kit) for kit in kits]
    family = [process for pid in pids if pid is not None for process in _family(pid)]
    for wanted in (signal.SIGTERM, signal.SIGKILL):
        for process in family:
            _signal(process, wanted)
        if _wait(family):
            break
    for kit in kits:
        (kit / PID).unlink(missing_ok=True)
    return any(pid is not None for pid in pids)


def workers_of(kit: Path) -> list[int]:
    """Process numbers of the workers that a running kit has started: one per job."""
    pid = process_of(kit)
    return [] if pid is None else [process.pid for process in _family(pid) if process.pid != pid]


def _family(pid: int) -> list[Any]:
    import psutil

    try:
        head = psutil.Process(pid)
        return [head, *head.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def _signal(process: Any, wanted: signal.Signals) -> None:
    import psutil

    try:
        process.send_signal(wanted)
    except psutil.NoSuchProcess:
        return


def _wait(family: list[Any]) -> bool:
    import psutil

    _, alive = psutil.wait_procs(family, timeout=GRACE)
    return not alive


def _began(pid: int) -> float | None:
    """When a process began, which tells it from a later one with the same number; None if it is gone."""
    import psutil

    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else float(process.create_time())
    except psutil.NoSuchProcess:
        return None


def tail(kit: Path, lines: int = 3) -> str:
    """The last lines that a kit's process wrote to its console."""
    path = kit / CONSOLE
    text = path.read_text(errors="replace") if path.exists() else ""
    return " / ".join(line.strip() for line in text.splitlines()[-lines:])


def wait_until(ready: Any, seconds: float, what: str, every: float = 0.25) -> Any:
    """The first true answer of ``ready()``; :class:`~fedgrem.errors.SitesError` if none comes in time."""
    end = time.monotonic() + seconds
    while True:
        answer = ready()
        if answer:
            return answer
        if time.monotonic() >= end:
            raise SitesError(f"waited {seconds:.0f} s for {what}, in vain.")
        time.sleep(every)
