"""What privacy costs: ``python benchmarks/privacy.py``.

The paper's Gaussian simulation, by default 100 sites of 1,000 rows, one hostile: the largest error of the component
means over the honest sites, of a fit without privacy (defaults), of fitting alone without privacy, and at every total
epsilon (delta 1e-6, everything included, starts too) of a private fit, of private fits of single sites on their own
(the first 10), and of private k-means: Lloyd's iterations with Gaussian noise on pooled counts and sums, which begin,
for nothing, where k-means++ on the pooled rows without noise does.
"""

import argparse
import time
import warnings

import numpy as np
from rich.console import Console
from rich.table import Table
from sklearn.cluster import kmeans_plusplus

from fedgrem import FederatedGaussianMixture, Privacy
from fedgrem.data.simulate import simulate
from fedgrem.kernels.privacy import mu_of
from oracle import largest_error

DELTA, HALF = 1e-6, 10.0
ALONE, ITERATIONS = 10, 5


def fitted(rows, covariance, seed, **options):
    model = FederatedGaussianMixture(5, covariance_type=covariance, random_state=seed, standard_errors=False, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return model.fit(rows)


def private(truth, covariance, seed, epsilon):
    """All sites together."""
    budget = Privacy(epsilon, DELTA, (-HALF, HALF))
    model = fitted(truth.rows, covariance, seed, privacy=budget)
    return largest_error(model.means_[truth.honest], truth.theta[truth.honest])


def private_alone(truth, covariance, seed, epsilon):
    """The largest error of sites that spend the same budget each for itself."""
    budget = Privacy(epsilon, DELTA, (-HALF, HALF))
    found = []
    for k in np.flatnonzero(truth.honest)[:ALONE]:
        name = list(truth.rows)[k]
        model = fitted(truth.rows[name], covariance, seed, privacy=budget)
        found.append(largest_error(model.means_, truth.theta[[k]]))
    return max(found)


def private_kmeans(truth, seed, epsilon):
    """Every site's answer is the pooled one; a row adds (1, x / its largest length) to its cluster."""
    generator = np.random.default_rng(seed)
    rows = np.stack(list(truth.rows.values()))
    n_sites, _, size = rows.shape
    radius = HALF * np.sqrt(size)
    rows = np.clip(rows, -HALF, HALF)
    centers = kmeans_plusplus(rows.reshape(-1, size), 5, random_state=seed)[0]
    noise = np.sqrt(2.0 * ITERATIONS * n_sites) / mu_of(epsilon, DELTA)
    for _ in range(ITERATIONS):
        nearest = (rows @ centers.T - 0.5 * np.square(centers).sum(axis=1)).argmax(axis=-1)
        mine = nearest[..., None] == np.arange(5)
        count = mine.sum(axis=(0, 1)) + noise * generator.normal(size=5)
        total = np.einsum("knr,knp->rp", mine, rows) / radius + noise * generator.normal(size=(5, size))
        centers = np.clip(radius * total / np.maximum(count, 1.0)[:, None], -HALF, HALF)
    same = np.repeat(centers[None], int(truth.honest.sum()), axis=0)
    return largest_error(same, truth.theta[truth.honest])


def one_seed(h, sites, rows, covariance, seed, budgets):
    truth = simulate("gmm", h=h, n_sites=sites, n_rows=rows, seed=seed)
    true = truth.theta[truth.honest]
    plain = largest_error(fitted(truth.rows, covariance, seed).means_[truth.honest], true)
    alone = largest_error(fitted(truth.rows, covariance, seed, penalty=0.0).means_[truth.honest], true)
    told = [
        (private(truth, covariance, seed, e), private_alone(truth, covariance, seed, e), private_kmeans(truth, seed, e))
        for e in budgets
    ]
    return np.array([plain, alone]), np.array(told)


def ratio_of(one, other):
    """The ratio of two means over the same seeds, and its standard error."""
    ratio = one.mean() / other.mean()
    spread = np.std(one - ratio * other, ddof=1) if len(one) > 1 else np.nan
    return ratio, spread / (np.sqrt(len(one)) * other.mean())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--sites", type=int, default=100)
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument("--similarity", nargs="+", type=float, default=[0.0, 0.5, 1.0], metavar="h")
    parser.add_argument("--epsilon", nargs="+", type=float, default=[8.0, 4.0, 1.0])
    parser.add_argument("--covariance", choices=("identity", "tied"), default="identity")
    options = parser.parse_args()
    began = time.perf_counter()
    table = Table(
        "h", "epsilon", "without", "alone, without", "private", "private / without", "its error", "worst seed",
        "alone, private", "k-means, private",
        title=f"{options.sites} sites of {options.rows} rows, {options.covariance}, "
        f"{options.seeds} seeds",
    )  # fmt: skip
    for h in options.similarity:
        found = [
            one_seed(h, options.sites, options.rows, options.covariance, seed, options.epsilon)
            for seed in range(options.seeds)
        ]
        plain, alone = np.mean([one[0] for one in found], axis=0)
        for j, epsilon in enumerate(options.epsilon):
            each = np.array([one[1][j] for one in found])
            mean = each.mean(axis=0)
            ratio, error = ratio_of(each[:, 0], np.array([one[0][0] for one in found]))
            shown = (plain, alone, mean[0], ratio, error, each[:, 0].max(), mean[1], mean[2])
            table.add_row(f"{h:g}", f"{epsilon:g}", *(f"{value:.3f}" for value in shown))
        Console(width=140).print(table)
    print(f"{time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()
