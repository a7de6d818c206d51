"""What the floor of ten rows costs: the paper's simulation with sites behind their guards, with and without it.

python benchmarks/floor.py --rows 150 --seeds 3
"""

import tempfile
from pathlib import Path

import numpy as np
import polars as pl
from scipy.optimize import linear_sum_assignment

from common import asked
from fedgrem import FederatedGaussianMixture
from fedgrem.data.simulate import Simulation, simulate
from fedgrem.engines.remote.delivery import Answer
from fedgrem.engines.remote.guard import Guard
from fedgrem.engines.remote.log import Log, read_log
from fedgrem.engines.remote.roster import Rules
from fedgrem.engines.remote.run import fit_over_network
from fedgrem.engines.remote.site import DeclinedError, Settings, SiteAtWork
from fedgrem.engines.remote.wire import Fields
from fedgrem.estimators.network import adopt, spec_for


class Guarded:
    """Sites in this process, each behind its guard."""

    def __init__(self, folder: Path, simulation: Simulation, spec, floor: float) -> None:
        self.guards, self.folder = {}, folder
        for name, rows in simulation.rows.items():
            columns = tuple(f"x{j}" for j in range(rows.shape[1]))
            pl.DataFrame(rows, schema=list(columns)).write_parquet(folder / f"{name}.parquet")
            site = SiteAtWork(name, Settings(str(folder / f"{name}.parquet"), columns, floor=floor), spec)
            self.guards[name] = Guard(site, Log(folder / f"{name}.jsonl"), lambda: (), run="run-1")

    def ask(self, site: str, task: str, exchange: int, order: Fields, timeout: float) -> Answer:
        """The answer, or a refusal."""
        try:
            return Answer(self.guards[site].answer(task, order, exchange=exchange), exchange)
        except DeclinedError as error:
            return Answer(None, exchange, error.code)

    def held_back(self) -> tuple[int, int]:
        """Answers that leave a component out, and all."""
        records = [record for name in self.guards for record in read_log(self.folder / f"{name}.jsonl")]
        replies = [record for record in records if record["kind"] == "reply"]
        return sum("held_back" in record for record in replies), len(replies)


def largest_error(means: np.ndarray, simulation: Simulation) -> float:
    """Over the components of honest sites, matched to the truth."""
    found = []
    for k in np.flatnonzero(simulation.honest):
        away = np.linalg.norm(means[k][:, None] - np.asarray(simulation.theta)[k][None], axis=-1)
        found.append(away[linear_sum_assignment(away)].max())
    return float(max(found))


def main() -> None:
    """Fit every seed with a floor of 1 and of 10, and print a line for each."""
    arguments = asked(__doc__, rows=150, seeds=3)
    for seed in range(arguments.seeds):
        simulation = simulate("gmm", h=0.5, n_sites=10, n_rows=arguments.rows, seed=seed)
        for floor in (1.0, 10.0):
            model = FederatedGaussianMixture(5, random_state=seed)
            spec = spec_for(model)
            with tempfile.TemporaryDirectory() as name:
                sites = Guarded(Path(name), simulation, spec, floor)
                finished = fit_over_network(spec, list(simulation.rows), sites, Path(name) / "run", Rules())
                few, total = sites.held_back()
            adopt(model, finished, finished.about["columns"])
            error = largest_error(model.means_, simulation)
            print(f"seed {seed}, floor {floor:g}: largest error {error:.3f}; {few} of {total} answers leave some out")


if __name__ == "__main__":
    main()
