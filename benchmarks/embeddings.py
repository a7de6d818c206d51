"""On which embedding of the images do fits agree? `python benchmarks/embeddings.py --data files/`.

Ten Gaussians of one covariance are fitted to samples of the embedded images, each time the likeliest of a few restarts,
and put the same images that no sample holds into groups. Told is how far these partitions agree, as the adjusted Rand
index of every pair (1 is the same partition, 0 is chance), and how their held-out log-likelihoods differ. No label is
looked at, and no method of the package takes part: where fits to samples of one table do not agree, a study of methods
measures which optimum each happened to find. Embeddings are made if they are not in the cache, which takes t-SNE most
of an hour for each data set; `--embedding umap pca` leaves it out.
"""

import os
from itertools import combinations

import numpy as np
from sklearn.metrics import adjusted_rand_score
from sklearn.mixture import GaussianMixture

from common import Given, asked, some_of
from fedgrem.studies.splits import DATA, embedding_of, load

HELD_OUT = 5_000
SAMPLE = 10_000


def partitions(rows: np.ndarray, fits: int, restarts: int) -> tuple[list[np.ndarray], list[float]]:
    """The held-out rows' groups by every fit, and their log-likelihood per row."""
    generator = np.random.default_rng(0)
    order = generator.permutation(len(rows))
    rows = (rows - rows.mean(axis=0)) / rows.std(axis=0)
    held_out, others = rows[order[:HELD_OUT]], rows[order[HELD_OUT:]]
    groups, fit = [], []
    for seed in range(fits):
        sample = others[generator.permutation(len(others))[:SAMPLE]]
        mixture = GaussianMixture(
            10, covariance_type="tied", n_init=restarts, max_iter=300, tol=1e-4, random_state=seed
        )
        mixture.fit(sample)
        groups.append(mixture.predict(held_out))
        fit.append(float(mixture.score(held_out)))
    return groups, fit


def main() -> None:
    """Print a line for every data set and embedding."""
    arguments = asked(
        __doc__, data=Given(None, "the folder with the files of the data sets; without it they are downloaded"),
        sets=some_of(("mnist", "fashion")), embedding=some_of(("umap", "tsne", "pca")), fits=12, restarts=8,
    )  # fmt: skip
    if arguments.data:
        os.environ[DATA] = os.path.abspath(arguments.data)
    for name in arguments.sets:
        data = load(name)
        for method in arguments.embedding:
            groups, fit = partitions(embedding_of(data, method).rows, arguments.fits, arguments.restarts)
            agreement = [adjusted_rand_score(*pair) for pair in combinations(groups, 2)]
            print(
                f"{name} {method}: adjusted Rand index {np.mean(agreement):.3f} on average, {np.min(agreement):.3f} at "
                f"the least; log-likelihoods {min(fit):.2f} to {max(fit):.2f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
