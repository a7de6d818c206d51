"""Sites with different, partly overlapping sets of components: ``python benchmarks/sets.py``.

The kind of simulation of FedGEM (ICLR 2026), not its code: each of ten sites of 150 rows has three of six Gaussian
components in ten dimensions, at random; with ``--each 2 4`` two to four, so that sites differ in their number too.
Compared are ``n_components="auto"``, which looks for components that only some sites have; the six that there are, for
all sites alike; and every site alone, its number by BIC. One line per
method: the mean over sites of the adjusted Rand index of its rows' components; components over all sites (alone: of a
site, in the middle); and of the entries of the matrix sites x components, how many are right (a component of a site is
said to be the nearest true one, and is right where that is within ``NEAR`` of it and no other is).
"""

import argparse
import warnings

import numpy as np
from rich.console import Console
from rich.table import Table
from sklearn.metrics import adjusted_rand_score
from sklearn.mixture import GaussianMixture

from fedgrem import FederatedGaussianMixture
from fedgrem.data.simulate import CENTERS

SIX = np.vstack([CENTERS, [-1.0, 3.0, -2.0, 1.0, 0.0, 2.0, -1.0, 1.0, 2.0, -1.0]])
NEAR = 2.0
N_SITES, N_ROWS = 10, 150


def draw(seed, each):
    """Rows and components of every site, and the matrix of who has what."""
    generator = np.random.default_rng(seed)
    has = np.zeros((N_SITES, len(SIX)), dtype=bool)
    rows, labels = {}, {}
    for k in range(N_SITES):
        size = generator.choice(np.arange(each[0], each[-1] + 1))
        mine = generator.choice(len(SIX), size=size, replace=False)
        has[k, mine] = True
        label = generator.choice(mine, size=N_ROWS, p=generator.dirichlet(np.full(size, 5.0)))
        rows[f"site-{k + 1:02d}"] = SIX[label] + generator.normal(size=(N_ROWS, SIX.shape[1]))
        labels[f"site-{k + 1:02d}"] = label
    return rows, labels, has


def right(means, has):
    """Part of the entries of one site's row of the matrix that its components say rightly."""
    away = np.linalg.norm(means[:, None] - SIX, axis=-1)
    told = np.bincount(away.argmin(axis=1)[away.min(axis=1) < NEAR], minlength=len(SIX))
    return float(np.mean((told == 1) == has) if (told < 2).all() else np.mean(((told == 1) == has) & (told < 2)))


def together(n_components, rows, labels, has, seed):
    """A federated fit: Rand index, components and right entries."""
    model = FederatedGaussianMixture(n_components, covariance_type="identity", random_state=seed).fit(rows)
    found = model.predict(rows)
    index = [adjusted_rand_score(labels[name], found[name]) for name in rows]
    held = model.weights_ * N_ROWS >= 1.0
    entries = [right(means[there], own) for means, there, own in zip(model.means_, held, has, strict=True)]
    return np.mean(index), model.n_components_, np.mean(entries)


def alone(rows, labels, has, seed):
    """The same of every site by itself, scikit-learn's spherical mixtures by BIC."""
    told = []
    for (name, own), there in zip(rows.items(), has, strict=True):
        fits = [
            GaussianMixture(r, covariance_type="spherical", n_init=5, random_state=seed).fit(own) for r in range(1, 9)
        ]
        best = min(fits, key=lambda fit: fit.bic(own))
        told.append(
            (adjusted_rand_score(labels[name], best.predict(own)), best.n_components, right(best.means_, there))
        )
    index, number, entries = zip(*told, strict=True)
    return np.mean(index), np.median(number), np.mean(entries)


def main():
    """Fit every seed by every method, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--each", type=int, nargs="+", default=[3], help="components of a site, of six: least and most")
    parser.add_argument("--seeds", type=int, default=10)
    arguments = parser.parse_args()
    found = {"some": [], "one number for all": [], "alone": []}
    for seed in range(arguments.seeds):
        data = draw(seed, arguments.each)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found["some"].append(together("auto", *data, seed))
            found["one number for all"].append(together(len(SIX), *data, seed))
            found["alone"].append(alone(*data, seed))
    words = " to ".join(map(str, arguments.each))
    table = Table(title=f"{words} of {len(SIX)} components at each of {N_SITES} sites, {arguments.seeds} seeds")
    for name in ("method", "ARI", "components", "right entries"):
        table.add_column(name, justify="right")
    for name, lines in found.items():
        index, number, entries = np.transpose(lines)
        table.add_row(name, f"{index.mean():.3f}", f"{np.median(number):g}", f"{entries.mean():.1%}")
    Console().print(table)


if __name__ == "__main__":
    main()
