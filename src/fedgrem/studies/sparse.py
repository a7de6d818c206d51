"""Few informative columns among many: a sparse fit, sites alone, the columns given, and CHIME at each site."""

import time
import warnings
from itertools import combinations, permutations
from typing import Any, NamedTuple

import numpy as np

from fedgrem.algorithms.fedgrem import FedGrEM
from fedgrem.data.simulate import simulate
from fedgrem.estimators.gaussian import FederatedGaussianMixture
from fedgrem.studies.chime import CONSTANTS, chime
from fedgrem.types import Array

CENTERS = np.array(
    [
        [1, -1, 0, 1, -1, 0, 1, -1, 0, 1],
        [-1, 0, 1, -1, 0, 1, -1, 0, 1, 0],
        [0, 1, -1, 0, 1, -1, 0, 1, -1, -1],
    ],
    dtype=float,
)
"""Three components in ten informative columns, 4.4 to 4.7 standard deviations apart."""
R = len(CENTERS)
MOST_ROUNDS = 200
"""Of every fit: alone, sites of noise creep for ever."""
METHODS = {
    "sparse": "sparse center",
    "alone": "each site alone",
    "chime": "CHIME at each site",
    "oracle": "each site alone, columns known",
    "federated oracle": "FedGrEM, columns known",
}
"""What is compared, in words."""


class Drawn(NamedTuple):
    """Rows of sites with many columns."""

    rows: dict[str, Array]
    labels: dict[str, Array]
    theta: Array
    """(K, R, p)"""
    informative: Array
    """(10,) places."""


def draw(p: int, *, h: float = 0.0, n_rows: int = 100, n_sites: int = 10, seed: int = 0) -> Drawn:
    """Ten informative columns somewhere among ``p``, the others standard Gaussian noise."""
    truth = simulate("gmm", h=h, n_sites=n_sites, n_rows=n_rows, n_outliers=0, centers=CENTERS, seed=seed)
    generator = np.random.default_rng([seed, p])
    places = np.sort(generator.permutation(p)[: CENTERS.shape[1]])
    theta = np.zeros((n_sites, R, p))
    theta[..., places] = truth.theta
    rows = {}
    for name, own in truth.rows.items():
        rows[name] = generator.normal(size=(len(own), p))
        rows[name][:, places] = own
    return Drawn(rows, truth.labels, theta, places)


def score(drawn: Drawn, labels: dict[str, Array], differences: dict[str, Array]) -> dict[str, float]:
    """Mean share of rows in the wrong component, and the largest error of the difference of two components' means.

    ``differences`` (R, p) are of a site's components from its first one; each site is relabelled as suits it best.
    """
    wrong, errors = [], []
    for k, (name, true) in enumerate(drawn.labels.items()):
        orders = [np.array(order) for order in permutations(range(R))]
        order = min(orders, key=lambda one: float(np.mean(one[labels[name]] != true)))
        wrong.append(float(np.mean(order[labels[name]] != true)))
        found = differences[name][np.argsort(order)]
        gaps = [(found[r] - found[s]) - (drawn.theta[k, r] - drawn.theta[k, s]) for r, s in combinations(range(R), 2)]
        errors.append(max(float(np.linalg.norm(gap)) for gap in gaps))
    return {"misclustering": float(np.mean(wrong)), "error": max(errors)}


def play(method: str, drawn: Drawn, *, covariance: str = "diag", seed: int = 0) -> dict[str, float]:
    """Mis-clustering, error and seconds of one method, and how many columns it found, true and false."""
    begin = time.perf_counter()
    if method == "chime":
        tried = [_chime(drawn, constant, seed) for constant in CONSTANTS]
        best = min(tried, key=lambda one: one["misclustering"])
        return best | {"seconds": (time.perf_counter() - begin) / len(CONSTANTS)}
    p = drawn.theta.shape[-1]
    known = "oracle" in method
    columns = drawn.informative if known else np.arange(p)
    algorithm: Any = {"sparse": FedGrEM(center="sparse"), "federated oracle": "fedgrem"}.get(method, "local-em")
    model = FederatedGaussianMixture(
        R,
        covariance_type=covariance,
        algorithm=algorithm,
        max_rounds=MOST_ROUNDS,
        random_state=seed,
        standard_errors=False,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit({name: rows[:, columns] for name, rows in drawn.rows.items()})
    seconds = time.perf_counter() - begin
    columns = columns[getattr(model, "informative_columns_", slice(None))]
    labels, differences = {}, {}
    for k, (name, rows) in enumerate(drawn.rows.items()):
        seen = rows if method in ("sparse", "alone") else rows[:, columns]
        labels[name] = model.predict(seen, sites=name)
        differences[name] = np.zeros((R, p))
        differences[name][:, columns] = model.means_[k] - model.means_[k][:1]
    found = score(drawn, labels, differences) | {"seconds": seconds}
    if method == "sparse":
        true = int(np.isin(columns, drawn.informative).sum())
        found |= {"true_columns": float(true), "false_columns": float(len(columns) - true)}
    return found


def _chime(drawn: Drawn, constant: float, seed: int) -> dict[str, float]:
    found = {name: chime(rows, R, constant, seed) for name, rows in drawn.rows.items()}
    labels = {name: one.labels for name, one in found.items()}
    # The covariance is the identity, so that discriminants are differences of means.
    differences = {name: np.pad(one.beta, ((1, 0), (0, 0))) for name, one in found.items()}
    return score(drawn, labels, differences)
