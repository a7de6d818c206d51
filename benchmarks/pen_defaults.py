"""Pen digits with defaults only: `python benchmarks/pen_defaults.py --data FOLDER`.

Writers are sites. For every number of writers and of training rows per writer, held-out mis-clustering (percent, mean
over writers and seeds, best relabelling per writer) of the default fit, of the same fit with fixed penalties, and of EM
at every writer alone; all in the package's defaults otherwise.
"""

import argparse
import os
import warnings

import numpy as np

from fedgrem import FederatedGaussianMixture
from fedgrem.experiments.real import DATA, SiteRows, by_site, split_and_spoil
from fedgrem.kernels.scores import misclustering_rate

FIXED = (0.0, 0.5, 1.0, 2.0, 4.0, 8.0)


def one_seed(data: SiteRows, n_writers: int, n_train: int, seed: int, fixed: tuple[float, ...]) -> dict[str, float]:
    """Mis-clustering by name of the fit; "C" is the penalty that was chosen."""
    chosen = np.random.default_rng([seed, 7]).permutation(len(data.rows))[:n_writers]
    split = split_and_spoil(SiteRows(*([part[k] for k in chosen] for part in data)), seed, n_train=n_train)
    names = [f"writer-{k:02d}" for k in chosen]
    trained, tested = (dict(zip(names, rows, strict=True)) for rows in (split.trained, split.tested))
    found: dict[str, float] = {}
    fits = {"auto": {}, "local-em": {"algorithm": "local-em"}} | {f"C={c:g}": {"penalty": c} for c in fixed}
    for name, options in fits.items():
        model = FederatedGaussianMixture(n_components=10, random_state=seed, **options).fit(trained)
        groups = model.predict(tested)
        rates = [
            misclustering_rate(labels, groups[writer]) for writer, labels in zip(names, split.test_labels, strict=True)
        ]
        found[name] = 100.0 * float(np.mean(rates))
        if name == "auto":
            found["C"] = model.penalty_
    return found


def main() -> None:
    """Print a line for every number of writers and rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help="folder with the data; downloaded without it")
    parser.add_argument("--writers", nargs="+", type=int, default=[44, 20, 10])
    parser.add_argument("--rows", nargs="+", type=int, default=[200, 100, 60, 40])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--fixed", nargs="*", type=float, default=list(FIXED))
    arguments = parser.parse_args()
    if arguments.data:
        os.environ[DATA] = arguments.data
    warnings.simplefilter("ignore")
    data = by_site("pen", 0)
    for n_writers in arguments.writers:
        for n_train in arguments.rows:
            told = [one_seed(data, n_writers, n_train, seed, tuple(arguments.fixed)) for seed in range(arguments.seeds)]
            mean = {name: np.mean([one[name] for one in told]) for name in told[0]}
            ahead = np.array([one["local-em"] - one["auto"] for one in told])
            error = ahead.std(ddof=1) / np.sqrt(len(ahead)) if len(ahead) > 1 else np.nan
            line = ", ".join(f"{name} {value:.2f}" for name, value in mean.items())
            print(
                f"{n_writers} writers, {n_train} rows: {line}; ahead of alone {ahead.mean():.2f} ({error:.2f})",
                flush=True,
            )


if __name__ == "__main__":
    main()
