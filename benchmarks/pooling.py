"""What pooling mixture weights gains: `python benchmarks/pooling.py`, about three minutes.

For every seed the same data are fitted with ``pool_weights="auto"`` and without pooling. Printed are the root mean
square errors of the weights of all sites, the ratio of the two over the seeds with its standard error, and how often
weights were pooled. Weights are the same at all sites, nearly the same (Dirichlet(50, ..., 50)), or as different as in
the paper's simulation (Dirichlet(5, ..., 5)).
"""

import sys

import numpy as np
from scipy.optimize import linear_sum_assignment

from common import asked
from fedgrem import FederatedGaussianMixture
from fedgrem.algorithms.fedgrem import FedGrEM
from fedgrem.data.simulate import CENTERS
from fedgrem.types import Array

CONCENTRATIONS = (np.inf, 50.0, 5.0)
SIZES = ((8, 60), (8, 200), (20, 60))


def draw(concentration: float, n_sites: int, n_rows: int, h: float, seed: int) -> tuple[dict[str, Array], Array, Array]:
    """Rows by site, the true weights ``(K, R)`` and the true means ``(K, R, p)``, at distance h from common ones."""
    generator = np.random.default_rng(seed)
    count = len(CENTERS)
    even = generator.dirichlet(np.full(count, 5.0))
    weights = np.array(
        [even if np.isinf(concentration) else generator.dirichlet(concentration * count * even) for _ in range(n_sites)]
    )
    if concentration == min(CONCENTRATIONS):
        weights = generator.dirichlet(np.full(count, concentration), n_sites)
    away = generator.normal(size=(n_sites, *CENTERS.shape))
    means = CENTERS + h * away / np.linalg.norm(away, axis=-1, keepdims=True)
    rows = {}
    for k in range(n_sites):
        label = generator.choice(count, size=n_rows, p=weights[k])
        rows[f"site-{k:02d}"] = means[k][label] + generator.normal(size=(n_rows, CENTERS.shape[1]))
    return rows, weights, means


def error(model: FederatedGaussianMixture, weights: Array, means: Array) -> float:
    """Root mean square error of the weights, up to one relabelling of all sites."""
    square = ((model.means_[:, :, None] - means[:, None]) ** 2).sum(axis=-1)
    _, order = linear_sum_assignment(np.median(square, axis=0).T)
    return float(np.sqrt(np.mean((model.weights_[:, order] - weights) ** 2)))


def main() -> None:
    """Print a line for every setting."""
    arguments = asked(__doc__, seeds=20, similarity=0.5)
    for concentration in CONCENTRATIONS:
        for n_sites, n_rows in SIZES:
            found, pooled = [], 0
            for seed in range(arguments.seeds):
                rows, weights, means = draw(concentration, n_sites, n_rows, arguments.similarity, seed)
                pair = []
                for wanted in ("auto", False):
                    model = FederatedGaussianMixture(
                        len(CENTERS), algorithm=FedGrEM(pool_weights=wanted), standard_errors=False, random_state=seed
                    ).fit(rows)
                    pair.append(error(model, weights, means))
                    pooled += wanted == "auto" and model.weights_penalty_ > 0
                found.append(pair)
            auto, never = np.array(found).T
            ratio = auto.mean() / never.mean()
            spread = np.std(auto - ratio * never, ddof=1) / np.sqrt(len(auto)) / never.mean()
            print(
                f"Dirichlet({concentration:g}), {n_sites} sites of {n_rows} rows: not pooled {never.mean():.4f}, auto "
                f"{auto.mean():.4f}, ratio {ratio:.3f} ({spread:.3f}), pooled {pooled} of {len(auto)}"
            )
            sys.stdout.flush()


if __name__ == "__main__":
    main()
