"""Few informative columns among many: a sparse fit, sites alone, the columns given, and CHIME at each site."""

import time
from itertools import combinations, permutations
from typing import Any, NamedTuple

import numpy as np
from sklearn.cluster import KMeans

from fedgrem.algorithms.fedgrem import FedGrEM
from fedgrem.data.simulate import simulate
from fedgrem.estimators.gaussian import FederatedGaussianMixture
from fedgrem.families.base import largest_eigenvalue_bound
from fedgrem.studies.processes import quiet
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
    with quiet():
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


# -- CHIME, transcribed: EM with sparse discriminants, at one site
# Cai, Ma and Zhang, "CHIME: Clustering of high-dimensional Gaussian mixtures with EM algorithm and its optimality"
# (Annals of Statistics, 2019), for R components: each against the first.

FIRST, KEPT = 0.1, 0.7
"""Lambda before the first step, and the part of it that the next one keeps, as in the authors' program."""
CONSTANTS = (0.1, 0.3, 1.0)
"""Of the penalty: the authors choose by the truth as well."""
STEPS, LASSO_STEPS = 20, 50


class Chime(NamedTuple):
    """What it finds at a site."""

    labels: Array
    """(n,)"""
    beta: Array
    """(R - 1, p) discriminants of every further component against the first."""


def chime(rows: Array, n_components: int, constant: float, seed: int) -> Chime:
    r"""EM from k-means, with posteriors by sparse discriminants.

    They are :math:`\beta_r = \arg\min \tfrac12 \beta'\hat\Sigma\beta - \beta'(\mu_r - \mu_1) + \lambda\|\beta\|_1`; to
    a covariance of more columns than rows :math:`\sqrt{\log p / n}` times the identity is added, as in the authors'
    program.
    """
    n, p = rows.shape
    labels = KMeans(n_components, n_init=10, random_state=seed).fit(rows).labels_
    posterior = (labels[:, None] == np.arange(n_components)).astype(float)
    beta, level = np.zeros((n_components - 1, p)), np.sqrt(np.log(p) / n)
    penalty = FIRST + constant * level
    for _ in range(STEPS):
        held = np.maximum(posterior.sum(axis=0), 1e-6)
        means = posterior.T @ rows / held[:, None]
        middle = (held / n) @ means
        about = rows - middle
        across = np.sqrt(held / n)[:, None] * (means - middle)
        before, ridge = beta, level if p >= n else 0.0
        beta = np.array(
            [
                sparse_discriminant(about / np.sqrt(n), across, ridge, mean - means[0], penalty, start)
                for mean, start in zip(means[1:], beta, strict=True)
            ]
        )
        penalty = KEPT * penalty + constant * level
        ratio = np.zeros((n, n_components))
        for r in range(1, n_components):
            ratio[:, r] = np.log(held[r] / held[0]) + (rows - 0.5 * (means[r] + means[0])) @ beta[r - 1]
        ratio -= ratio.max(axis=1, keepdims=True)
        posterior = np.exp(ratio)
        posterior /= posterior.sum(axis=1, keepdims=True)
        if np.abs(beta - before).max() < 1e-3:
            break
    return Chime(posterior.argmax(axis=1), beta)


def sparse_discriminant(
    about: Array, across: Array, ridge: float, difference: Array, penalty: float, start: Array
) -> Array:
    """By accelerated proximal gradient steps; the covariance is ``A'A - B'B`` and the ridge."""
    step = 1.0 / (float(largest_eigenvalue_bound(about @ about.T)) + ridge + 1e-12)
    here, ahead, momentum = start, start, 1.0
    for _ in range(LASSO_STEPS):
        slope = about.T @ (about @ ahead) - across.T @ (across @ ahead) + ridge * ahead - difference
        moved = ahead - step * slope
        new = np.sign(moved) * np.maximum(np.abs(moved) - step * penalty, 0.0)
        following = 0.5 * (1.0 + np.sqrt(1.0 + 4.0 * momentum**2))
        ahead = new + (momentum - 1.0) / following * (new - here)
        done = np.abs(new - here).max() < 1e-4
        here, momentum = new, following
        if done:
            break
    return np.asarray(here)
