"""What happens to a fit over mutual TLS when something goes wrong, and how long it takes: the table of docs/sites.md.

python benchmarks/faults.py
python benchmarks/faults.py torn   # the faults with that in their title

Clocks are set wrong by a library that is compiled when it is needed (a C compiler is), and a hostile site is one whose
Python is told to send something else.
"""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np

from crashes import FITS, killed_everywhere
from fedgrem import FederatedGaussianMixture
from fedgrem.cli.sites_demo import coordinating, free_port
from fedgrem.engines.flare.kit import PROJECT, Study, init_study, remove_site, renew_kit
from fedgrem.engines.flare.operate import Fit, begin, only_fit, run_folder, session
from fedgrem.engines.flare.processes import (
    PID,
    await_server,
    check_port,
    keep_bytecode,
    keep_private,
    process_of,
    start_server,
    start_site,
    stop,
    wait_until,
    workers_of,
)
from fedgrem.engines.remote.journal import JOURNAL, read_journal
from fedgrem.engines.remote.log import LOG, check_log
from fedgrem.engines.remote.roster import Rules
from fedgrem.engines.remote.site import Settings, write_settings
from fedgrem.errors import FedGrEMError, SitesError
from fedgrem.estimators.network import spec_for
from fedgrem.studies.processes import environment

NAMES = ("east", "north", "south")
ROUNDS, AT = 150, 20
OPTIONS: dict[str, Any] = {"n_components": 2, "covariance_type": "identity", "n_init": 2, "tol": 0.0, "random_state": 0}
FIXED = FederatedGaussianMixture(**OPTIONS, penalty=2.0, max_rounds=ROUNDS)
WHOLE = FederatedGaussianMixture(**OPTIONS, max_rounds=30)
"""With everything chosen by the fit, and so with every kind of exchange."""
STAGES = ("census", "starts", "penalties", "rounds", "look", "standard errors")
HEAD = "| fault | outcome | said | lost | seconds to the end | longest round | median round |"
CLOCK = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>
int clock_gettime(clockid_t clock, struct timespec *now) {
    static int (*usual)(clockid_t, struct timespec *);
    if (!usual) usual = dlsym(RTLD_NEXT, "clock_gettime");
    int code = usual(clock, now);
    if (!code && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) now->tv_sec += atol(getenv("WRONG_BY"));
    return code;
}
time_t time(time_t *to) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return to ? (*to = now.tv_sec) : now.tv_sec;
}
int gettimeofday(struct timeval *to, void *zone) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    to->tv_sec = now.tv_sec, to->tv_usec = now.tv_nsec / 1000;
    return 0;
}
"""
HOSTILE = """
import os, sys
if "worker_process" in " ".join(sys.orig_argv):
    from fedgrem.engines.flare import site
    usual = site.OutgoingGuard.process
    def process(self, shareable, fl_ctx):
        if not os.path.exists(os.environ["SEND_MUCH"]):
            return usual(self, shareable, fl_ctx)
        os.unlink(os.environ["SEND_MUCH"])
        much = {"params.theta": {"shape": [150 * 2**17], "dtype": "<f8", "bytes": bytes(150 * 2**20)}}
        return site.envelope(site.Letter(site.opened(shareable).exchange, much))
    site.OutgoingGuard.process = process
"""


class Trial:
    """Fits of one study, each with a fault in it."""

    def __init__(self, study: Study) -> None:
        self.study, self.run, self.only = study, "", sys.argv[1:]
        self.expected: dict[str, np.ndarray] = {}

    @property
    def journal(self) -> Path:
        """Of the run that is played."""
        return run_folder(self.study, self.run) / JOURNAL

    def wants(self, title: str) -> bool:
        """Whether this fault was asked for."""
        return not self.only or any(word in title for word in self.only)

    def fit(
        self, title: str, fault: Callable[[], object], deadline: float = 30.0, stage: str = "rounds",
        model: FederatedGaussianMixture = FIXED,
    ) -> None:  # fmt: skip
        """Fit, resume if it has to be, and say what came of it; the fault comes in a stage, in round 20 of rounds."""
        kind = "whole" if model is WHOLE else "fixed"
        if not self.wants(title) and not title.startswith("none"):
            return
        asked = Fit(spec_for(model), list(NAMES), Rules(min_sites=2, deadline=deadline))
        run, events, done = begin(self.study, asked), [], []
        self.run = run
        told_round = 0

        def tell(progress: Any) -> None:
            nonlocal told_round
            late = progress.stage == stage and (stage != "rounds" or progress.round >= AT)
            told_round = progress.round if progress.stage == "rounds" else told_round
            if late and not done:
                done.append(time.monotonic())
                fault()

        words, finished, lost_rounds = "", None, 0
        for _ in range(3):
            try:
                with session(self.study) as talk:
                    finished = talk.carry_out(run, tell, lambda line: events.extend(line.get("events", [])))
                break
            except FedGrEMError as error:
                words = f"{words}; {error}" if words and str(error) not in words else str(error)
                lost_rounds = max(lost_rounds, told_round - 1 - len(self.steps()))
                self.restart()
        took = time.monotonic() - (done[0] if done else time.monotonic())
        steps = self.steps()
        seconds = [about["traffic"]["seconds"] for about in steps]
        theta = None if finished is None else finished.result.theta
        expected = self.expected.setdefault(kind, theta) if theta is not None else None
        same = theta is not None and np.array_equal(theta, expected)
        told = "; ".join(dict.fromkeys(f"{event['site']} {event['what']}" for event in events)) or words or "nothing"
        outcome = "the same model, to the bit" if same else "finished" if theta is not None else "not finished"
        unheard = sum(len(NAMES) - len(about["sites"]) for about in steps)
        lost = [f"{lost_rounds} round(s), asked again"] * (lost_rounds > 0) + [f"{unheard} answers"] * (unheard > 0)
        broken = [name for name in NAMES if check_log(self.study.kit(name) / LOG).broken]
        lost += [f"log of {name}" for name in broken]
        timed = f"{took:.1f} | {max(seconds, default=0.0):.2f} | {np.median(seconds or [0.0]):.3f}"
        self.row(title, outcome, told, ", ".join(lost) or "nothing", timed)

    def row(self, title: str, outcome: str, said: str, lost: str = "nothing", timed: str = "| |") -> None:
        """A line of the table, without paths of this machine."""
        said = said.replace(str(self.study.folder), "STUDY").replace(self.run or "-", "RUN")
        print(f"| {title} | {outcome} | {said[:300]} | {lost} | {timed} |", flush=True)

    def steps(self) -> list[dict[str, Any]]:
        """What the journal says of every round."""
        try:
            records = list(read_journal(self.journal))[1:]
        except FedGrEMError:
            return []
        return [record.about for record in records if record.about["task"] == "step"]

    def restart(self) -> None:
        """Start what does not run, as an operator would, and wait until all is connected."""
        gone = [name for name in NAMES if process_of(self.study.kit(name)) is None]
        if process_of(self.study.server) is None:
            start_server(self.study.server)
            for name in gone:
                start_site(self.study.kit(name), name)
            with coordinating(self.study):
                pass


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


def wrong_clock(folder: Path, seconds: int) -> dict[str, str]:
    """The environment of a process whose clock is wrong by that."""
    library = folder / "clock.so"
    if not library.exists():
        (folder / "clock.c").write_text(CLOCK)
        subprocess.run(["cc", "-shared", "-fPIC", "-o", library, folder / "clock.c", "-ldl"], check=True)
    return {"LD_PRELOAD": str(library), "WRONG_BY": str(seconds)}


def hostile(folder: Path) -> dict[str, str]:
    """The environment of a site that sends 150 MB, once, when a file is there."""
    (folder / "hostile").mkdir(exist_ok=True)
    (folder / "hostile" / "sitecustomize.py").write_text(HOSTILE)
    path = os.pathsep.join([str(folder / "hostile"), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {"PYTHONPATH": path, "SEND_MUCH": str(folder / "send-much")}


def restarted(study: Study, name: str, **more: str) -> None:
    """Start a site again, in another environment, and wait until it is connected."""
    stop(study.kit(name), grace=0.0)
    begun = time.time()
    with environment(more):
        start_site(study.kit(name), name)
    with session(study) as talk:
        wait_until(lambda: talk.last_seen().get(name, 0.0) > begun, 60.0, f"{name} to connect")


def signed_again(study: Study, name: str, begins: datetime, ends: datetime) -> None:
    """Give a site a certificate for other days, by the study's own authority."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization

    state = json.loads((study.folder / "authority" / PROJECT / "state" / "cert.json").read_text())
    key = serialization.load_pem_private_key(state["root_pri_key"].encode(), password=None)
    path = study.kit(name) / "startup" / "client.crt"
    old = x509.load_pem_x509_certificate(path.read_bytes())
    made = x509.CertificateBuilder(old.issuer, old.subject, old.public_key(), x509.random_serial_number(), begins, ends)
    for extension in old.extensions:
        made = made.add_extension(extension.value, extension.critical)
    path.write_bytes(made.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))  # type: ignore[arg-type]


def main() -> None:
    """Make a study of three sites on this machine and spoil its fits one way after the other."""
    keep_bytecode()
    keep_private()
    folder = Path(tempfile.mkdtemp(prefix="fedgrem-faults-"))
    study = init_study(folder / "study", NAMES, "localhost", free_port())
    trial = Trial(study)
    print(f"{HEAD}\n{'|---' * 7}|", flush=True)
    for title in FITS:  # before there are threads here
        if trial.wants(f"kill -9 of everything at each exchange of {title}"):
            row = killed_everywhere(title)
            trial.row(row.title, row.outcome, row.said, row.lost, f"{row.slowest:.1f} at most | |")
    try:
        start_server(study.server)
        for name in NAMES:
            generator = np.random.default_rng(sum(map(ord, name)))
            rows = generator.normal(size=(60, 2)) + 6.0 * (np.arange(60) % 2)[:, None]
            np.savetxt(folder / f"{name}.csv", rows, delimiter=",", header="a,b", comments="")
            write_settings(Settings(str(folder / f"{name}.csv"), ("a", "b")), study.kit(name) / "local")
            start_site(study.kit(name), name)
        with coordinating(study):
            pass
        spoil_fits(trial, folder)
        spoil_study(trial, folder)
    finally:
        stop(*(study.kit(name) for name in NAMES), study.server, grace=0.0)
        shutil.rmtree(folder, ignore_errors=True)


def spoil_fits(trial: Trial, folder: Path) -> None:
    """Faults in the middle of a fit."""
    study, kept = trial.study, []
    server, kit, copy = study.server, study.kit("north"), folder / "copy"
    trial.fit("none", lambda: None)

    def crash() -> None:
        kill(process_of(server), *workers_of(server))

    def crash_all() -> None:
        for name in NAMES:
            kill(process_of(study.kit(name)), *workers_of(study.kit(name)))
        crash()

    trial.fit("kill -9 of a site's worker", lambda: kill(*workers_of(kit)))
    trial.fit("kill -9 of the server and its worker", crash)
    trial.fit("the same, and a torn journal", lambda: (crash(), tear(trial.journal)))
    if any(trial.wants(f"kill -9 of everything, stage: {stage}") for stage in STAGES):
        trial.fit("none, everything chosen by the fit", lambda: None, stage="none", model=WHOLE)
    for stage in STAGES:
        trial.fit(f"kill -9 of everything, stage: {stage}", crash_all, stage=stage, model=WHOLE)
    trial.fit("a site stops for 3 s and continues", lambda: freeze([process_of(kit), *workers_of(kit)], 3.0))
    trial.fit("the server stops for 3 s and continues", lambda: freeze([process_of(server), *workers_of(server)], 3.0))
    trial.fit("the server's disk is full for 3 s", lambda: fill_disk(workers_of(server), trial.journal, 3.0))
    trial.fit("a site's disk is full for 3 s", lambda: fill_disk(workers_of(kit), kit / LOG, 3.0))
    trial.fit("200 half-open connections", lambda: kept.extend(half_open(study.port, 200, b"")))
    trial.fit("random bytes on the port", lambda: kept.extend(half_open(study.port, 20, os.urandom(4096))))
    title = "a site sends 150 MB"
    if trial.wants(title):
        restarted(study, "north", **hostile(folder))
        trial.fit(title, lambda: (folder / "send-much").touch())
        assert not (folder / "send-much").exists(), "it was not sent"
        restarted(study, "north")
    for title, seconds in (("a site's clock is 20 days ahead", 20 * 86400), ("a site's clock is an hour ahead", 3600)):
        if trial.wants(title):
            restarted(study, "north", **wrong_clock(folder, seconds))
            trial.fit(title, lambda: None)
            restarted(study, "north")

    def run_copy() -> None:
        shutil.copytree(kit, copy, ignore=shutil.ignore_patterns(PID))
        start_site(copy, "north")

    trial.fit("a kit runs twice", run_copy)
    stop(copy, grace=0.0)
    title = "kill -9 of a whole site"
    if trial.wants(title):
        restarted(study, "north")
        trial.fit(title, lambda: kill(process_of(kit), *workers_of(kit)), deadline=120.0)
    with only_fit(study, "run-1"):
        trial.fit("a second fit", lambda: None)


def spoil_study(trial: Trial, folder: Path) -> None:
    """Faults that show before a fit: ports, certificates, clocks."""
    study, kit = trial.study, trial.study.kit("north")
    if trial.wants("the port is taken"):
        begun = time.monotonic()
        other = init_study(folder / "other", NAMES, "localhost", study.port)
        try:
            check_port(other.port)
        except FedGrEMError as error:
            trial.row("the port is taken", "refused", str(error), timed=f"{time.monotonic() - begun:.1f} | |")
    now, day = datetime.now(UTC).replace(microsecond=0), timedelta(days=1)
    startup, kept = kit / "startup", folder / "startup"
    shutil.copytree(startup, kept)
    for title, days, wrong_by in (
        ("an expired certificate", (now - 360 * day, now - day), 0),
        ("a certificate that is not good yet", (now + day, now + 360 * day), 0),
        ("a site's clock is two hours behind", None, -7200),
    ):
        if trial.wants(title):
            if days is not None:
                signed_again(study, "north", *days)
            let_in(trial, title, wrong_clock(folder, wrong_by) if wrong_by else {})
            shutil.rmtree(startup)
            shutil.copytree(kept, startup)
    if trial.wants("a renewed certificate"):
        renew_kit(study, "north")
        shutil.move(startup, folder / "renewed")
        shutil.copytree(kept, startup)
        let_in(trial, "the certificate before a renewed certificate", {})
        shutil.rmtree(startup)
        shutil.move(folder / "renewed", startup)
        let_in(trial, "a renewed certificate", {})
    if trial.wants("a removed site"):
        remove_site(study, "east")
        let_in(trial, "a removed site", {}, "east")


def let_in(trial: Trial, title: str, env: dict[str, str], name: str = "north") -> None:
    """Start a site that may not get in: what its operator is told, and who is connected a while later."""
    study, kit = trial.study, trial.study.kit(name)
    stop(kit, study.server, grace=0.0)
    start_server(study.server)
    code = "import sys; from pathlib import Path; from fedgrem.engines.flare.kit import check_certificate\n"
    code += "try:\n    check_certificate(Path(sys.argv[1]), sys.argv[2])\nexcept Exception as error:\n    print(error)"
    with environment(env):
        begun = time.monotonic()
        run = [sys.executable, "-c", code, str(kit), name]
        said = subprocess.run(run, capture_output=True, text=True, check=True).stdout.strip()
        took = time.monotonic() - begun
        start_site(kit, name)  # though the command would not have
    await_server(study)
    others = [other for other in study.sites if other != name and process_of(study.kit(other)) is not None]
    with session(study) as talk:
        talk.await_sites(others)
        with contextlib.suppress(SitesError):
            talk.await_sites([name], 15.0)
        here = sorted(talk.last_seen())
    outcome = f"{'let' if name in here else 'not let'} in; connected: {', '.join(here)}"
    trial.row(title, outcome, said or "nothing", timed=f"{took:.1f} | |")
    stop(kit, grace=0.0)


if __name__ == "__main__":
    sys.exit(main())
