"""The server and the sites as processes in the background, found again by a file in their kit."""

import contextlib
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

from fedgrem.engines.flare.kit import ORGANIZATION, Study
from fedgrem.errors import MissingExtraError, SitesError

Answer = TypeVar("Answer")

PID = "process.json"
CONSOLE = "console.log"
GRACE = 3.0
"""Seconds that processes have to end by themselves."""
LARGEST_MESSAGE = 2**25
"""Bytes of a message that a server takes: far more than any fit sends."""
SERVER_SECONDS = 60.0
"""That the server has to start."""


def check_flare() -> None:
    """Say what to install where NVFlare is not."""
    if find_spec("nvflare") is None:
        raise MissingExtraError(
            "fitting over a network needs NVFlare, which is not installed; run: pip install 'fedgrem[flare]'."
        )


def keep_bytecode() -> None:
    """Let this process, and those it starts, keep compiled modules in the user's cache if not beside the sources.

    A site starts a process for every fit: where Python is told to keep no bytecode, as in many containers, each would
    compile more than a thousand modules anew. Never in a kit: what a coordinator hands out must not be run.
    """
    if not sys.dont_write_bytecode:
        return
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()) / "fedgrem" / "bytecode"
    sys.dont_write_bytecode, sys.pycache_prefix = False, sys.pycache_prefix or str(cache)
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix


def keep_private() -> None:
    """Let this process, and those it starts, make files that nobody else on the machine can read."""
    os.umask(0o077)


def bound_replies() -> None:
    """Let a server that this process starts refuse larger messages while they arrive, before it has read them."""
    os.environ["NVFLARE_STREAMING_MAX_BLOB_SIZE"] = str(LARGEST_MESSAGE)


def check_port(port: int) -> None:
    """Refuse a port on which something else listens: two servers on one port both seem to run."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError as error:
            raise SitesError(
                f"port {port} cannot be used ({error.strerror}): stop what listens there, or make the study with "
                "another --port."
            ) from error


def start_server(kit: Path) -> int:
    """Start the server of a study; returns its process number."""
    bound_replies()
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


def check_stopped(kit: Path, who: str) -> None:
    """Refuse to start, or to change, what runs."""
    running = process_of(kit)
    if running is not None:
        raise SitesError(f"{who} is running already (process {running}); stop it first, or leave it running.")


def _start(kit: Path, command: list[str], who: str) -> int:
    check_stopped(kit, who)
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


def stop(*kits: Path, grace: float = GRACE) -> bool:
    """End what runs in these kits, all at once, with the workers it started; returns whether anything ran."""
    import psutil

    pids = [pid for pid in map(process_of, kits) if pid is not None]
    family = [process for pid in pids for process in _family(pid)]
    for wanted in (signal.SIGTERM, signal.SIGKILL):
        for process in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(wanted)
        _, family = psutil.wait_procs(family, timeout=grace if wanted is signal.SIGTERM else GRACE)
    for kit in kits:
        (kit / PID).unlink(missing_ok=True)
    return bool(pids)


def workers_of(kit: Path) -> list[int]:
    """Process numbers of the workers that a running kit has started: one per job."""
    pid = process_of(kit)
    return [] if pid is None else [process.pid for process in _family(pid)[1:]]


def _family(pid: int) -> list[Any]:
    """A process, and all below it."""
    import psutil

    try:
        head = psutil.Process(pid)
        return [head, *head.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def _began(pid: int) -> float | None:
    """When a process began, which tells it from a later one with the same number; None if it is gone."""
    import psutil

    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else float(process.create_time())
    except psutil.NoSuchProcess:
        return None


def wait_until(ready: Callable[[], Answer], seconds: float, what: str, every: float = 0.1) -> Answer:
    """The first true answer of ``ready()``; :class:`~fedgrem.errors.SitesError` if none comes in time."""
    end = time.monotonic() + seconds
    while not (answer := ready()):
        if time.monotonic() >= end:
            raise SitesError(f"waited {seconds:.0f} s for {what}, in vain.")
        time.sleep(every)
    return answer


def await_server(study: Study) -> None:
    """Until the server can be reached; if it has died instead, say what it said last."""

    def listening() -> bool:
        if process_of(study.server) is None:
            console = study.server / CONSOLE
            text = console.read_text(errors="replace") if console.exists() else ""
            words = " / ".join(line.strip() for line in text.splitlines()[-3:])
            raise SitesError(f"the server ended at once; its last words: {words}")
        try:
            socket.create_connection((study.host, study.port), timeout=1.0).close()
            return True
        except OSError:
            return False

    wait_until(listening, SERVER_SECONDS, f"the server at {study.host}:{study.port}")
