"""What the network costs: seconds and bytes a round, memory a site. ``python benchmarks/sites.py``.

The simulator with 3, 10 and 30 sites, and a provisioned study of 3 over mutual TLS, all on this machine. The rows are
few and the model is small, so that a round is nearly all network; the local step is timed beside it, in this process.
"""

import statistics
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import psutil
from rich.console import Console
from rich.table import Table

from common import Given, asked, show
from fedgrem import FederatedGaussianMixture
from fedgrem.algorithms.state import Toward
from fedgrem.cli.sites_demo import coordinating, free_port, running
from fedgrem.data.federation import Federation
from fedgrem.engines.flare.kit import init_study
from fedgrem.engines.flare.operate import Fit, begin
from fedgrem.engines.flare.simulator import fit_in_simulator
from fedgrem.engines.remote.declaration import STEP, Order
from fedgrem.engines.remote.roster import Rules
from fedgrem.engines.remote.site import Settings, SiteAtWork
from fedgrem.engines.remote.wire import encode
from fedgrem.estimators.network import spec_for
from fedgrem.types import Broadcast, Params

N_ROWS, N_COLUMNS, N_COMPONENTS = 200, 16, 8
WORKERS = ("simulator_worker", "worker_process")


def draw(n_sites):
    generator = np.random.default_rng(0)
    centers = 3.0 * generator.normal(size=(N_COMPONENTS, N_COLUMNS))
    labels = generator.integers(N_COMPONENTS, size=(n_sites, N_ROWS))
    return centers[labels] + generator.normal(size=(n_sites, N_ROWS, N_COLUMNS))


class Memory:
    """The largest resident memory seen of any worker below this process, in MB."""

    def __init__(self):
        self.peak = 0.0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._done.set()
        self._thread.join()

    def _look(self):
        while not self._done.wait(0.5):
            for process in psutil.Process().children(recursive=True):
                try:
                    if any(worker in " ".join(process.cmdline()) for worker in WORKERS):
                        self.peak = max(self.peak, process.memory_info().rss / 2**20)
                except psutil.Error:
                    continue


def spec(rounds):
    options = {"n_components": N_COMPONENTS, "covariance_type": "identity", "n_init": 1, "penalty": 2.0}
    return spec_for(FederatedGaussianMixture(**options, max_rounds=rounds, tol=0.0, random_state=0))


def local_seconds(folder, rows):
    """Median seconds of one local step at one site."""
    path = write(folder, "alone", rows)
    site = SiteAtWork("alone", Settings(str(path), columns(), floor=1.0), spec(1))
    times = []
    for seed in range(30):
        theta = np.random.default_rng(seed).normal(size=(N_COMPONENTS, N_COLUMNS))
        weights = np.full(N_COMPONENTS, 1.0 / N_COMPONENTS)
        toward = Toward(theta, np.array(1.0), None, np.array(1), np.array(0), None, weights, np.array(0.0))
        order = encode(Order(Broadcast(Params(weights, theta), toward), None, np.asarray(False)))
        begin_at = time.perf_counter()
        encode(site.work(STEP, site.read(STEP, order)).reply)
        times.append(time.perf_counter() - begin_at)
    return statistics.median(times[3:])


def columns():
    return tuple(f"x{j}" for j in range(N_COLUMNS))


def write(folder, name, rows):
    import polars as pl

    path = folder / f"{name}.csv"
    pl.DataFrame(rows, schema=list(columns())).write_csv(path)
    return path


def in_simulator(n_sites, rounds):
    names = [f"site-{k:02d}" for k in range(n_sites)]
    federation = Federation.from_sites(names, list(draw(n_sites)))
    with Memory() as memory:
        finished = fit_in_simulator(spec(rounds), federation, rules=Rules(min_sites=n_sites, deadline=600.0))
    return finished, memory.peak


def provisioned(folder, rounds):
    names = ("east", "north", "south")
    study = init_study(folder / "study", names, "localhost", free_port())
    files = {name: write(folder, name, rows) for name, rows in zip(names, draw(3), strict=True)}
    with running(study, files), coordinating(study) as talk, Memory() as memory:
        run = begin(study, Fit(spec(rounds), list(names), Rules(min_sites=3)))
        finished = talk.carry_out(run)
    return finished, memory.peak


def main():
    arguments = asked(__doc__, sites=Given([3, 10, 30], "sizes for the simulator"), rounds=100)
    table = Table(title=f"{N_ROWS} rows x {N_COLUMNS} columns a site, {N_COMPONENTS} components")
    for column in ("", "s a round", "bytes to a site", "bytes from a site", "MB a worker", "total s"):
        table.add_column(column, justify="right" if column else "left")
    with tempfile.TemporaryDirectory() as folder:
        local = local_seconds(Path(folder), draw(1)[0])
        plans = [(f"simulator, {n} sites", lambda n=n: in_simulator(n, arguments.rounds)) for n in arguments.sites]
        plans.append(("provisioned, 3 sites", lambda: provisioned(Path(folder), arguments.rounds)))
        for name, plan in plans:
            begin_at = time.perf_counter()
            finished, memory = plan()
            cost = finished.result.cost
            table.add_row(
                name,
                f"{finished.about['seconds_per_round']:.3f}",
                f"{cost['bytes_sent_per_round_and_site']:,}",
                f"{cost['bytes_received_per_round_and_site']:,}",
                f"{memory:.0f}",
                f"{time.perf_counter() - begin_at:.0f}",
            )
            Console(stderr=True).print(f"{name}: done")
    show(table, f"One local step alone, in process: {1000 * local:.1f} ms.")


if __name__ == "__main__":
    main()
