"""Beside an oracle: `python benchmarks/oracle.py --seeds 100`.

On the paper's Gaussian simulation (10 sites of 150 rows, one hostile), the largest error of the component means over
the honest sites: of an oracle that knows the labels, who is honest and how alike the sites are, and shrinks the means
of the labelled rows accordingly; of a fit with defaults; of one whose penalty is chosen on held-out rows; and of
fitting alone.
"""

import time
from functools import partial

import numpy as np

from common import asked, in_processes, largest_error, one_of, show, table_of
from fedgrem import FederatedGaussianMixture, FedGrEM
from fedgrem.data.simulate import Simulation, simulate
from fedgrem.studies.processes import quiet
from fedgrem.types import Array

FITS = {
    "defaults": {},
    "penalty chosen": {"algorithm": FedGrEM(center="redescending")},
    "alone": {"penalty": 0.0},
}


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
        with quiet():
            found.append(largest_error(model.fit(truth.rows).means_[truth.honest], true))
    return found


def main() -> None:
    """Print a row for every similarity."""
    arguments = asked(
        __doc__, seeds=20, similarity=[0.0, 0.5, 1.0, 1.5, 2.0], covariance=one_of("identity", "tied"), processes=2
    )
    table = table_of(f"{arguments.seeds} seeds", "h", "oracle", *FITS, *(f"{name} / oracle" for name in FITS))
    began = time.perf_counter()
    for h in arguments.similarity:
        play = partial(one_seed, h, arguments.covariance)
        errors = np.array(in_processes(play, range(arguments.seeds), arguments.processes))
        mean = errors.mean(axis=0)
        ratio = mean[1:] / mean[0]
        spread = (errors[:, 1:] - ratio * errors[:, :1]).std(axis=0, ddof=1) / np.sqrt(len(errors)) / mean[0]
        told = [f"{r:.3f} ({s:.3f})" for r, s in zip(ratio, spread, strict=True)]
        table.add_row(f"{h:g}", *(f"{e:.3f}" for e in mean), *told)
    show(table, f"{time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()
