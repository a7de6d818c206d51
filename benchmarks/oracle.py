"""Beside an oracle: `python benchmarks/oracle.py --seeds 100`.

On the paper's Gaussian simulation (10 sites of 150 rows, one hostile), the largest error of the component means over
the honest sites: of an oracle that knows the labels, who is honest and how alike the sites are, and shrinks the means
of the labelled rows accordingly; of a fit with defaults; of one whose penalty is chosen on held-out rows; and of
fitting alone.
"""

import argparse
import time
import warnings
from concurrent.futures import ProcessPoolExecutor
from functools import partial

import numpy as np
from rich.console import Console
from rich.table import Table
from scipy.optimize import linear_sum_assignment

from fedgrem import FederatedGaussianMixture, FedGrEM
from fedgrem.data.simulate import Simulation, simulate
from fedgrem.types import Array

FITS = {
    "defaults": {},
    "penalty chosen": {"algorithm": FedGrEM(center="redescending")},
    "alone": {"penalty": 0.0},
}


def largest_error(found: Array, true: Array) -> float:
    """Over sites and components, up to one relabelling of all."""
    square = ((found[:, :, None] - true[:, None]) ** 2).sum(axis=-1)
    return float(np.sqrt(square[:, *linear_sum_assignment(np.median(square, axis=0))]).max())


def oracle(truth: Simulation, h: float) -> Array:
    """(K, R, q) of the honest sites."""
    names = [name for name, honest in zip(truth.rows, truth.honest, strict=True) if honest]
    _, n_components, size = truth.theta.shape
    between = h * h / size
    own = [[truth.rows[name][truth.labels[name] == r] for r in range(n_components)] for name in names]
    held = np.array([[len(rows) for rows in site] for site in own], dtype=float)
    means = np.array([[rows.mean(axis=0) if len(rows) else np.zeros(size) for rows in site] for site in own])
    weight = held / (1.0 + held * between)
    center = (weight[..., None] * means).sum(axis=0) / weight.sum(axis=0)[:, None]
    return np.asarray(center + (held * between / (1.0 + held * between))[..., None] * (means - center))


def one_seed(h: float, covariance: str, seed: int) -> list[float]:
    """Errors of the oracle and of every fit."""
    truth = simulate("gmm", h=h, seed=seed)
    true = truth.theta[truth.honest]
    found = [largest_error(oracle(truth, h), true)]
    for options in FITS.values():
        model = FederatedGaussianMixture(
            truth.theta.shape[1], covariance_type=covariance, random_state=seed, standard_errors=False, **options
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found.append(largest_error(model.fit(truth.rows).means_[truth.honest], true))
    return found


def main() -> None:
    """Print a row for every similarity."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--similarity", nargs="+", type=float, default=[0.0, 0.5, 1.0, 1.5, 2.0], metavar="h")
    parser.add_argument("--covariance", choices=("identity", "tied"), default="identity")
    parser.add_argument("--processes", type=int, default=2)
    arguments = parser.parse_args()
    table = Table("h", "oracle", *FITS, *(f"{name} / oracle" for name in FITS), title=f"{arguments.seeds} seeds")
    began = time.perf_counter()
    with ProcessPoolExecutor(arguments.processes) as pool:
        for h in arguments.similarity:
            errors = np.array(list(pool.map(partial(one_seed, h, arguments.covariance), range(arguments.seeds))))
            mean = errors.mean(axis=0)
            ratio = mean[1:] / mean[0]
            spread = (errors[:, 1:] - ratio * errors[:, :1]).std(axis=0, ddof=1) / np.sqrt(len(errors)) / mean[0]
            told = [f"{r:.3f} ({s:.3f})" for r, s in zip(ratio, spread, strict=True)]
            table.add_row(f"{h:g}", *(f"{e:.3f}" for e in mean), *told)
    Console(width=120).print(table, f"{time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()
