"""Few informative columns among many: `python benchmarks/sparse.py --seeds 5`, `--model mor` for regressions.

10 sites of 100 rows, three components that differ in 10 of p columns, or three regressions on these. For every p and
h: the share of rows in the wrong component, the largest error over all p columns (of a difference of two components'
means, or of a regression's coefficients), and seconds; means over the seeds. The constant of the penalty of CHIME, or
of the lasso mixture, is the best of some in hindsight, its seconds are those of one. The last columns say how many
informative columns the sparse fit found, how many others, and its error over those of every site alone and of FedGrEM
on the true columns.
"""

import argparse
import time

import numpy as np

from fedgrem.studies.sparse import METHODS, draw, play


def main():
    """Print a line for every method."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="gmm", choices=("gmm", "mor"))
    parser.add_argument("--columns", nargs="+", type=int, default=[10, 200, 800], metavar="p")
    parser.add_argument("--similarity", nargs="+", type=float, default=[0.0], metavar="h")
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=list(METHODS))
    parser.add_argument("--covariance", default="diag", choices=("diag", "spherical", "identity"))
    parser.add_argument("--seeds", type=int, default=5)
    chosen = parser.parse_args()
    print(
        f"{'p':>5} {'h':>4}  {'':32}{'wrong':>8}{'error':>8}{'s':>8}{'true':>7}{'false':>7}{'/ alone':>10}"
        f"{'/ FedGrEM':>10}"
    )
    words = METHODS | ({"one site": "lasso mixture at each site"} if chosen.model == "mor" else {})
    began = time.perf_counter()
    for p in chosen.columns:
        for h in chosen.similarity:
            drawn = [draw(p, model=chosen.model, h=h, seed=seed) for seed in range(chosen.seeds)]
            found = {
                name: [play(name, one, covariance=chosen.covariance, seed=seed) for seed, one in enumerate(drawn)]
                for name in chosen.methods
            }
            mean = {name: {key: np.mean([r[key] for r in rows]) for key in rows[0]} for name, rows in found.items()}
            for name, row in mean.items():
                line = f"{p:5} {h:4g}  {words[name]:32}"
                line += "".join(f"{row[key]:8.{n}f}" for key, n in (("misclustering", 3), ("error", 2), ("seconds", 2)))
                if name == "sparse":
                    line += f"{row['true_columns']:7.1f}{row['false_columns']:7.1f}"
                    for other in ("oracle", "federated oracle"):
                        line += f"{row['error'] / mean[other]['error']:10.2f}" if other in mean else ""
                print(line, flush=True)
    print(f"{time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()
