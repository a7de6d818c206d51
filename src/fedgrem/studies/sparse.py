"""Few informative columns among many: a sparse fit, sites alone, the columns given, and methods for one site.

Of Gaussians, whose components differ in these columns, and of regressions on them.
"""

import time
import warnings
from itertools import combinations, permutations
from typing import Any, NamedTuple

import numpy as np

from fedgrem.algorithms.fedgrem import FedGrEM
from fedgrem.data.simulate import Model, simulate
from fedgrem.estimators.gaussian import FederatedGaussianMixture
from fedgrem.estimators.regression import FederatedRegressionMixture
from fedgrem.studies.chime import CONSTANTS, chime
from fedgrem.studies.lasso import PENALTIES, lasso_mixture
from fedgrem.types import Array

CENTERS = np.array(
    [
        [1, -1, 0, 1, -1, 0, 1, -1, 0, 1],
        [-1, 0, 1, -1, 0, 1, -1, 0, 1, 0],
        [0, 1, -1, 0, 1, -1, 0, 1, -1, -1],
    ],
    dtype=float,
)
"""Three components in ten informative columns, 4.4 to 4.7 standard deviations apart; or three lines, as far apart."""
R = len(CENTERS)
MOST_ROUNDS = 200
"""Of every fit: alone, sites of noise creep for ever."""
METHODS = {
    "sparse": "sparse center",
    "alone": "each site alone",
    "one site": "CHIME at each site",
    "oracle": "each site alone, columns known",
    "federated oracle": "FedGrEM, columns known",
}
"""What is compared, in words; of regressions the method for one site is a lasso mixture."""


class Drawn(NamedTuple):
    """Rows of sites with many columns."""

    rows: dict[str, Array]
    targets: dict[str, Array] | None
    """Responses of regressions."""
    labels: dict[str, Array]
    theta: Array
    """(K, R, p)"""
    informative: Array
    """(10,) places."""


def draw(p: int, *, model: Model = "gmm", h: float = 0.0, n_rows: int = 100, n_sites: int = 10, seed: int = 0) -> Drawn:
    """Ten informative columns somewhere among ``p``, the others standard Gaussian noise."""
    truth = simulate(model, h=h, n_sites=n_sites, n_rows=n_rows, n_outliers=0, centers=CENTERS, seed=seed)
    generator = np.random.default_rng([seed, p])
    places = np.sort(generator.permutation(p)[: CENTERS.shape[1]])
    theta = np.zeros((n_sites, R, p))
    theta[..., places] = truth.theta
    rows = {}
    for name, own in truth.rows.items():
        rows[name] = generator.normal(size=(len(own), p))
        rows[name][:, places] = own
    return Drawn(rows, truth.targets, truth.labels, theta, places)


def score(drawn: Drawn, labels: dict[str, Array], theta: dict[str, Array]) -> dict[str, float]:
    """Mean share of rows in the wrong component, and the largest error of theta over all p columns.

    Of Gaussians that is the error of the difference of two components' means, so that ``theta`` (R, p) may be about
    any point. Each site is relabelled as suits it best.
    """
    wrong, errors = [], []
    for k, (name, true) in enumerate(drawn.labels.items()):
        orders = [np.array(order) for order in permutations(range(R))]
        order = min(orders, key=lambda one: float(np.mean(one[labels[name]] != true)))
        wrong.append(float(np.mean(order[labels[name]] != true)))
        away = theta[name][np.argsort(order)] - drawn.theta[k]
        gaps = away if drawn.targets is not None else [away[r] - away[s] for r, s in combinations(range(R), 2)]
        errors.append(max(float(np.linalg.norm(gap)) for gap in gaps))
    return {"misclustering": float(np.mean(wrong)), "error": max(errors)}


def play(method: str, drawn: Drawn, *, covariance: str = "diag", seed: int = 0) -> dict[str, float]:
    """Mis-clustering, error and seconds of one method, and how many columns it found, true and false."""
    begin = time.perf_counter()
    if method == "one site":
        constants = CONSTANTS if drawn.targets is None else PENALTIES
        tried = [_at_each_site(drawn, constant, seed) for constant in constants]
        best = min(tried, key=lambda one: one["misclustering"])
        return best | {"seconds": (time.perf_counter() - begin) / len(constants)}
    p = drawn.theta.shape[-1]
    known = "oracle" in method
    columns = drawn.informative if known else np.arange(p)
    algorithm: Any = {"sparse": FedGrEM(center="sparse"), "federated oracle": "fedgrem"}.get(method, "local-em")
    options: dict[str, Any] = {
        "algorithm": algorithm, "max_rounds": MOST_ROUNDS, "random_state": seed, "standard_errors": False
    }  # fmt: skip
    model: Any = (
        FederatedGaussianMixture(R, covariance_type=covariance, **options)
        if drawn.targets is None
        else FederatedRegressionMixture(R, **options)
    )
    seen = {name: rows[:, columns] for name, rows in drawn.rows.items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(seen, drawn.targets)
    seconds = time.perf_counter() - begin
    columns = columns[getattr(model, "informative_columns_", slice(None))]
    labels, theta = {}, {}
    for k, (name, rows) in enumerate(seen.items()):
        theta[name] = np.zeros((R, p))
        if drawn.targets is None:
            labels[name] = model.predict(rows, sites=name)
            theta[name][:, columns] = model.means_[k] - model.means_[k][:1]
        else:
            labels[name] = model.predict_component(rows, drawn.targets[name], sites=name)
            theta[name][:, columns] = model.coef_[k]
    found = score(drawn, labels, theta) | {"seconds": seconds}
    if method == "sparse":
        true = int(np.isin(columns, drawn.informative).sum())
        found |= {"true_columns": float(true), "false_columns": float(len(columns) - true)}
    return found


def _at_each_site(drawn: Drawn, constant: float, seed: int) -> dict[str, float]:
    labels, theta = {}, {}
    for name, rows in drawn.rows.items():
        if drawn.targets is None:
            labels[name], beta = chime(rows, R, constant, seed)
            # The covariance is the identity, so that discriminants are differences of means.
            theta[name] = np.pad(beta, ((1, 0), (0, 0)))
        else:
            labels[name], theta[name] = lasso_mixture(rows, drawn.targets[name], R, constant, seed)
    return score(drawn, labels, theta)
