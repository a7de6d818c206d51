"""``fedgrem sites demo``: a whole study on one machine, over real certificates, compared with the fit in process."""

from __future__ import annotations

import socket
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedgrem.cli.files import check_folder, prepare_network
from fedgrem.cli.fit import fitted
from fedgrem.cli.options import estimator, examples, option
from fedgrem.cli.screen import print_model
from fedgrem.cli.sites_fit import carry_out, cost_of, save_fitted
from fedgrem.data.files import read_sites, read_table
from fedgrem.errors import SitesError

if TYPE_CHECKING:
    from fedgrem.data.simulate import Simulation
    from fedgrem.engines.flare.kit import Study
    from fedgrem.engines.flare.operate import Session

SITES = ("north", "south", "east", "west")
N_COMPONENTS = 5
TOLERANCE = 1e-10
"""The most by which the fit over the network may differ from the one in process."""


@examples("fedgrem sites demo", "`fedgrem sites demo --keep demo/`, then `fedgrem site log demo/study/kits/north`")
def demo(
    seed: Annotated[int, option("N", "Of the simulation and of the fit.", least=0)] = 0,
    keep: Annotated[Path | None, option("FOLDER", "Keep the study, the rows and the model in a new folder.")] = None,
    port: Annotated[int, option("N", "Of the server; 0 takes a free one.", least=0, most=65535)] = 0,
) -> None:
    """Run a study of four sites on this machine, one of them hostile, and compare it with the fit in process.

    Everything is real but the distance: certificates, one server and four site processes that talk over mutual TLS,
    each with a file of its own rows. The fourth site's rows come from somewhere else.
    """
    prepare_network()
    if keep is not None:
        check_folder(keep, force=False)
        keep.mkdir(parents=True, exist_ok=True)
        _demonstrate(keep, seed, port)
        typer.echo(f"Kept in {keep}; try: fedgrem show {keep}/model, or fedgrem site log {keep}/study/kits/north")
        return
    with tempfile.TemporaryDirectory(prefix="fedgrem-demo-", ignore_cleanup_errors=True) as folder:
        _demonstrate(Path(folder), seed, port)


def _demonstrate(folder: Path, seed: int, port: int) -> None:
    from fedgrem.data.simulate import simulate
    from fedgrem.engines.flare.kit import init_study
    from fedgrem.engines.flare.operate import Fit, begin
    from fedgrem.engines.remote.roster import Rules
    from fedgrem.estimators.network import spec_for

    clock = _Clock()
    simulation = simulate("gmm", h=0.5, n_sites=len(SITES), seed=seed)
    study = init_study(folder / "study", SITES, "localhost", port or free_port())
    clock.tell(f"certificates and hardened kits for the server and {len(SITES)} sites")
    files = _write_rows(simulation, folder)
    options: dict[str, Any] = {"n_components": N_COMPONENTS, "random_state": seed}
    more = {"regression": False, "options": options, "out": str(folder / "model")}
    with running(study, files):
        table = read_sites([files[name] for name in sorted(files)])
        here = fitted(table, table.frame.columns, None, None, options)
        clock.tell("fitted in this process, while the server and the sites start")
        spec = spec_for(estimator(options, regression=False))
        with coordinating(study) as talk:
            clock.tell("the server and all sites run and have let each other in, over mutual TLS")
            run = begin(study, Fit(spec, list(study.sites), Rules(min_sites=len(SITES)), more=more))
            finished = carry_out(talk, run, "Fitting")
        clock.tell(f"the same fit over the network in {finished.result.n_rounds} rounds, starts found at the sites")
    over_network = save_fitted(finished, more)
    print_model(over_network)
    typer.echo("\n" + cost_of(finished))
    _compare(over_network, here)
    typer.echo(f"Total: {clock.total:.0f} s, {finished.about['seconds_per_round']:.3f} s a round.")


class _Clock:
    def __init__(self) -> None:
        self._begin = time.monotonic()

    @property
    def total(self) -> float:
        return time.monotonic() - self._begin

    def tell(self, what: str) -> None:
        typer.echo(f"{self.total:5.1f} s  {what}", err=True)


def _write_rows(simulation: Simulation, folder: Path) -> dict[str, Path]:
    """One file per site; the last is the hostile one."""
    import polars as pl

    files = {}
    for name, rows in zip(SITES, simulation.rows.values(), strict=True):
        files[name] = folder / f"{name}.csv"
        pl.DataFrame(rows, schema=[f"x{j + 1}" for j in range(rows.shape[1])]).write_csv(files[name])
    return files


@contextmanager
def running(study: Study, files: dict[str, Path]) -> Iterator[None]:
    """The server and all sites, from their start; whatever happens, none is left behind."""
    from fedgrem.engines.flare.processes import start_server, start_site, stop
    from fedgrem.engines.remote.site import Settings, write_settings

    kits = {name: study.kit(name) for name in study.sites}
    try:
        start_server(study.server)
        for name, kit in kits.items():
            columns = tuple(read_table(files[name]).columns)
            # No floor: these rows are nobody's, and the fit is compared with the one in process.
            write_settings(Settings(str(files[name].resolve()), columns, floor=1.0), kit / "local")
            start_site(kit, name)
        yield
    finally:
        stop(*kits.values(), study.server, grace=0.0)  # whatever is to stay is on disk


@contextmanager
def coordinating(study: Study) -> Iterator[Session]:
    """The coordinator, logged in, when the server and all sites are there."""
    from fedgrem.engines.flare.operate import session
    from fedgrem.engines.flare.processes import await_server

    await_server(study)
    with session(study) as talk:
        talk.await_sites(list(study.sites))
        yield talk


def _compare(over_network: Any, here: Any) -> None:
    import numpy as np

    gap = max(
        float(np.abs(getattr(over_network, name) - getattr(here, name)).max())
        for name in ("weights_", "means_", "covariances_", "center_")
    )
    typer.echo(f"Largest difference from the fit in process: {gap:.1e} (at most {TOLERANCE:.0e} is allowed).")
    if not gap <= TOLERANCE:
        raise SitesError(f"the fit over the network differs from the one in process by {gap:.1e}.")


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
