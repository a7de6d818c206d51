"""What happens to a fit over mutual TLS when something goes wrong, and how long it takes: the table of docs/sites.md.

python benchmarks/faults.py
python benchmarks/faults.py torn   # the faults with that in their title
"""

import contextlib
import os
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from fedgrem import FederatedGaussianMixture
from fedgrem.cli.sites_demo import coordinating, free_port
from fedgrem.engines.flare.kit import Study, init_study, remove_site
from fedgrem.engines.flare.operate import Fit, begin, only_fit, run_folder, session
from fedgrem.engines.flare.processes import (
    PID,
    check_port,
    keep_bytecode,
    keep_private,
    process_of,
    start_server,
    start_site,
    stop,
    workers_of,
)
from fedgrem.engines.remote.journal import JOURNAL, read_journal
from fedgrem.engines.remote.roster import Rules
from fedgrem.engines.remote.site import Settings, write_settings
from fedgrem.errors import FedGrEMError
from fedgrem.estimators.network import spec_for

NAMES = ("east", "north", "south")
ROUNDS, AT = 150, 20
OPTIONS = {"n_components": 2, "covariance_type": "identity", "penalty": 2.0, "n_init": 2, "max_rounds": ROUNDS}
OPTIONS |= {"tol": 0.0, "random_state": 0}


class Trial:
    """Fits of one study, each with a fault in its twentieth round."""

    def __init__(self, study: Study) -> None:
        self.study, self.run, self.only = study, "", sys.argv[1:]
        self.expected: np.ndarray | None = None

    @property
    def journal(self) -> Path:
        """Of the run that is played."""
        return run_folder(self.study, self.run) / JOURNAL

    def fit(self, title: str, fault: Callable[[], object], deadline: float = 30.0) -> None:
        """Fit, resume if it has to be, and say what came of it."""
        if self.only and self.expected is not None and not any(word in title for word in self.only):
            return
        asked = Fit(spec_for(FederatedGaussianMixture(**OPTIONS)), list(NAMES), Rules(min_sites=2, deadline=deadline))
        run, events, done = begin(self.study, asked), [], []
        self.run = run

        def tell(progress) -> None:
            if progress.stage == "rounds" and progress.round >= AT and not done:
                done.append(time.monotonic())
                fault()

        words, finished = "", None
        for _ in range(3):
            try:
                with session(self.study) as talk:
                    finished = talk.carry_out(run, tell, lambda line: events.extend(line.get("events", [])))
                break
            except FedGrEMError as error:
                words = f"{words}; {error}" if words else str(error)
                if process_of(self.study.server) is None:
                    start_server(self.study.server)
                    with coordinating(self.study):
                        pass
        took = time.monotonic() - (done[0] if done else time.monotonic())
        journal = self.journal
        records = list(read_journal(journal))[1:] if journal.exists() else []
        seconds = [record.about["traffic"]["seconds"] for record in records if record.about["task"] == "step"]
        theta = None if finished is None else finished.result.theta
        if self.expected is None:
            self.expected = theta
        same = theta is not None and np.array_equal(theta, self.expected)
        told = "; ".join(f"{event['site']} {event['what']}" for event in events) or words[:300] or "nothing"
        outcome = "the same model, to the bit" if same else "finished" if theta is not None else "not finished"
        timed = f"{took:.1f} | {max(seconds, default=0.0):.2f} | {np.median(seconds or [0.0]):.3f}"
        print(f"| {title} | {outcome} | {told} | {timed} |", flush=True)


def kill(*pids: int | None) -> None:
    """As a crash does."""
    for pid in pids:
        if pid is not None:
            os.kill(pid, signal.SIGKILL)


def tear(journal: Path) -> None:
    """Lose the end of the last record, as a crash of the machine may."""
    os.truncate(journal, journal.stat().st_size - 40)


def fill_disk(pids: list[int], file: Path, seconds: float) -> None:
    """Let these processes write no file beyond the size that one has now, and then again."""
    import psutil

    processes = [psutil.Process(pid) for pid in pids]
    usual = [process.rlimit(psutil.RLIMIT_FSIZE) for process in processes]
    for process in processes:
        process.rlimit(psutil.RLIMIT_FSIZE, (file.stat().st_size, -1))

    def empty() -> None:
        for process, limit in zip(processes, usual, strict=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.rlimit(psutil.RLIMIT_FSIZE, limit)

    threading.Timer(seconds, empty).start()


def freeze(pids: list[int], seconds: float) -> None:
    """Stop processes and let them go on."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    threading.Timer(seconds, lambda: [os.kill(pid, signal.SIGCONT) for pid in pids]).start()


def half_open(port: int, count: int, raw: bytes) -> list[socket.socket]:
    """Connections that say nothing, or nonsense, and stay."""
    opened = [socket.create_connection(("localhost", port)) for _ in range(count)]
    for one in opened:
        one.sendall(raw)
    return opened


def main() -> None:
    """Make a study of three sites on this machine and spoil its fits one way after the other."""
    keep_bytecode()
    keep_private()
    folder = Path(tempfile.mkdtemp(prefix="fedgrem-faults-"))
    study = init_study(folder / "study", NAMES, "localhost", free_port())
    generator, kept = np.random.default_rng(0), []
    kit = study.kit("north")
    try:
        start_server(study.server)
        for name in NAMES:
            rows = generator.normal(size=(60, 2)) + 6.0 * (np.arange(60) % 2)[:, None]
            np.savetxt(folder / f"{name}.csv", rows, delimiter=",", header="a,b", comments="")
            write_settings(Settings(str(folder / f"{name}.csv"), ("a", "b")), study.kit(name) / "local")
            start_site(study.kit(name), name)
        with coordinating(study):
            pass
        trial = Trial(study)
        print(
            "| fault | outcome | said | seconds to the end | longest round | median round |\n|---|---|---|---|---|---|"
        )
        trial.fit("none", lambda: None)
        trial.fit("kill -9 of a site's worker", lambda: kill(*workers_of(kit)))
        trial.fit("a site stops for 3 s and continues", lambda: freeze([process_of(kit), *workers_of(kit)], 3.0))
        trial.fit("200 half-open connections", lambda: kept.extend(half_open(study.port, 200, b"")))
        trial.fit("random bytes on the port", lambda: kept.extend(half_open(study.port, 20, os.urandom(4096))))
        server = study.server

        def crash() -> None:
            kill(process_of(server), *workers_of(server))

        trial.fit("kill -9 of the server and its worker", crash)
        trial.fit("the same, and a torn journal", lambda: (crash(), tear(trial.journal)))
        trial.fit("the server's disk is full for 3 s", lambda: fill_disk(workers_of(server), trial.journal, 3.0))
        copy = folder / "copy"
        trial.fit(
            "a kit runs twice",
            lambda: (shutil.copytree(kit, copy, ignore=shutil.ignore_patterns(PID)), start_site(copy, "north")),
        )
        stop(copy, grace=0.0)
        trial.fit("kill -9 of a whole site", lambda: kill(process_of(kit), *workers_of(kit)), deadline=4.0)
        with only_fit(study, "run-1"):
            trial.fit("a second fit", lambda: None)
        other = init_study(folder / "other", NAMES, "localhost", study.port)
        try:
            check_port(other.port)
        except FedGrEMError as error:
            print(f"| the port is taken | refused at once | {error} | | | |")
        begun = time.monotonic()
        remove_site(study, "east")
        stop(study.server, kit, grace=0.0)
        start_server(study.server)
        start_site(kit, "north")
        time.sleep(8.0)
        with session(study) as talk:
            print(
                f"| a removed site | connected: {', '.join(talk.last_seen())} | | {time.monotonic() - begun:.1f} | | |"
            )
    finally:
        stop(*(study.kit(name) for name in NAMES), study.server, grace=0.0)
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
