"""How often 95% intervals hold the truth, in the paper's simulations with one hostile site of ten.

python benchmarks/coverage.py --seeds 100
python benchmarks/coverage.py --seeds 20 --h 0 1 --cells gmm-identity
"""

import time
from typing import Any

import numpy as np
from scipy.optimize import linear_sum_assignment

from common import asked, some_of
from fedgrem import FederatedGaussianMixture, FederatedRegressionMixture
from fedgrem.data.simulate import CENTERS, simulate

CELLS: dict[str, tuple[str, Any]] = {
    "gmm-identity": ("gmm", lambda: FederatedGaussianMixture(5, covariance_type="identity", random_state=0)),
    "gmm-tied": ("gmm", lambda: FederatedGaussianMixture(5, random_state=0)),
    "mor-unit": ("mor", lambda: FederatedRegressionMixture(5, noise="unit", random_state=0)),
}


def covered(cell: str, h: float, n_rows: int, seed: int, level: float) -> dict[str, float]:
    """Share of true values within their intervals: of the center, and of the honest sites' components and weights."""
    name, build = CELLS[cell]
    simulation = simulate(name, h=h, n_rows=n_rows, seed=seed)
    model = build().fit(simulation.rows, simulation.targets)
    _, order = linear_sum_assignment(np.linalg.norm(CENTERS[:, None] - model.center_, axis=-1))
    honest = simulation.honest
    found = {}
    truth = {"center": CENTERS, model._theta_name: simulation.theta[honest], "weights": simulation.weights[honest]}
    for what, true in truth.items():
        interval = model.intervals(level)[what]
        low, high = (edge[order] if what == "center" else edge[honest][:, order] for edge in interval)
        found["sites" if what == model._theta_name else what] = float(np.mean((low <= true) & (true <= high)))
    return found


def main() -> None:
    arguments = asked(__doc__, seeds=20, h=[0.0, 1.0], rows=500, level=0.95, cells=some_of(CELLS))
    print(f"{'':14}{'h':>5}{'seeds':>7}{'center':>9}{'sites':>9}{'weights':>9}{'seconds':>9}")
    for cell in arguments.cells:
        for h in arguments.h:
            begin = time.perf_counter()
            runs = [covered(cell, h, arguments.rows, seed, arguments.level) for seed in range(arguments.seeds)]
            mean = {
                what: 100.0 * float(np.mean([run[what] for run in runs])) for what in ("center", "sites", "weights")
            }
            figures = "".join(f"{mean[what]:8.1f}%" for what in mean)
            print(f"{cell:14}{h:5g}{arguments.seeds:7d}{figures}{time.perf_counter() - begin:9.0f}", flush=True)


if __name__ == "__main__":
    main()
