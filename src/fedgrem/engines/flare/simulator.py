"""All sites on one machine, each in a process of its own, on NVFlare's simulator: for developers."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

from fedgrem.data.federation import Federation
from fedgrem.engines.flare.job import write_job
from fedgrem.engines.flare.kit import CONTROLLER, EXECUTOR, GUARD
from fedgrem.engines.flare.processes import check_flare
from fedgrem.engines.remote.declaration import check_over_network
from fedgrem.engines.remote.progress import follow
from fedgrem.engines.remote.result import RESULT, Finished, read_result
from fedgrem.engines.remote.roster import Rules
from fedgrem.engines.remote.site import Settings, write_settings
from fedgrem.errors import InputError, SitesError
from fedgrem.fit.conversation import Progress
from fedgrem.fit.spec import FitSpec

RUN = "simulated"
LOG, LOG_LEVEL = "log.txt", "ERROR"


def fit_in_simulator(
    spec: FitSpec,
    federation: Federation,
    on_progress: Callable[[Progress], None] | None = None,
    *,
    rules: Rules | None = None,
    transport: str = "push",
) -> Finished:
    """Fit a federation with every site in its own process; its rows go there by file."""
    check_flare()
    check_over_network(spec)
    rules = rules or Rules(min_sites=len(federation.sites))
    with tempfile.TemporaryDirectory(prefix="fedgrem-", ignore_cleanup_errors=True) as folder:
        place = Path(folder)
        workspace = place / "workspace"
        write_sites(workspace / "local", place, federation, [CONTROLLER, EXECUTOR, GUARD])
        names = list(federation.names)
        job = write_job(place / "job", spec, names, RUN, rules, transport=transport, guard=True)
        run = play(place, job, names, on_progress)
        if not (run / RESULT).exists():
            raise SitesError(f"the simulator ended without a result: {tail(place)}")
        return read_result(run)


def play(place: Path, job: Path, names: list[str], on_progress: Callable[[Progress], None] | None = None) -> Path:
    """Run a job in a simulator whose workspace and log are in ``place``; the folder of what came of it."""
    workspace = place / "workspace"
    command = [sys.executable, "-m", "nvflare.cli", "simulator", str(job), "-w", str(workspace)]
    command += ["-c", ",".join(names), "-t", str(len(names)), "-l", LOG_LEVEL]
    run = workspace / "server" / "runs" / RUN
    with (place / LOG).open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=_environment(place))
        try:
            outcome = follow(run, on_progress, lambda: process.poll() is None)
            process.wait()
        finally:
            process.kill()
            process.wait()
    if outcome.kind == "failed":
        raise InputError(outcome.message)
    if outcome.kind != "finished":
        raise SitesError(f"the simulator ended without a result: {outcome.message or tail(place)}")
    return run


def tail(place: Path) -> str:
    """The end of the simulator's log."""
    return " ".join((place / LOG).read_text(errors="replace").split()[-60:])


def write_sites(local: Path, place: Path, federation: Federation, classes: list[str]) -> None:
    """The sites' rows and settings, and the classes that a job may name."""
    import polars as pl

    local.mkdir(parents=True)
    allowed = {"class_allow_list": classes, "class_list_enforcement_mode": "enforce"}
    (local / "resources.json").write_text(json.dumps({"format_version": 2} | allowed))
    columns = [f"x{j}" for j in range(federation.n_features)]
    for k, site in enumerate(federation.sites):
        table = pl.DataFrame(np.asarray(site.rows), schema=columns).with_columns(weight=pl.Series(site.row_weight))
        if site.target is not None:
            table = table.with_columns(target=pl.Series(site.target))
        path = place / f"site-{k}.parquet"
        table.write_parquet(path)
        target = None if site.target is None else "target"
        # All rows are in this process: there is nobody to keep them from.
        settings = Settings(str(path), tuple(columns), target, "weight", floor=1.0)
        write_settings(settings, local, site.name)


def _environment(place: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONWARNINGS": "ignore", "TMPDIR": str(place)}
