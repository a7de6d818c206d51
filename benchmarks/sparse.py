"""Few informative columns among many: `python benchmarks/sparse.py --seeds 5`.

10 sites of 100 rows, three components that differ in 10 of p columns. For every p and h: the share of rows in the
wrong component, the largest error of a difference of two components' means over all p columns, and seconds; means over
the seeds. The constant of CHIME's penalty is the better of two in hindsight, its seconds are those of one. The last
columns say how many informative columns the sparse fit found, how many others, and its error over that of every site
alone on the true columns.
"""

import time

import numpy as np

from common import asked, one_of, some_of
from fedgrem.studies.sparse import METHODS, draw, play


def main():
    """Print a line for every method."""
    chosen = asked(
        __doc__, columns=[10, 200, 800], similarity=[0.0], methods=some_of(METHODS),
        covariance=one_of("diag", "spherical", "identity"), seeds=5,
    )  # fmt: skip
    print(f"{'p':>5} {'h':>4}  {'':32}{'wrong':>8}{'error':>8}{'s':>8}{'true':>7}{'false':>7}{'/ oracle':>10}")
    began = time.perf_counter()
    for p in chosen.columns:
        for h in chosen.similarity:
            drawn = [draw(p, h=h, seed=seed) for seed in range(chosen.seeds)]
            found = {
                name: [play(name, one, covariance=chosen.covariance, seed=seed) for seed, one in enumerate(drawn)]
                for name in chosen.methods
            }
            mean = {name: {key: np.mean([r[key] for r in rows]) for key in rows[0]} for name, rows in found.items()}
            for name, row in mean.items():
                line = f"{p:5} {h:4g}  {METHODS[name]:32}"
                line += "".join(f"{row[key]:8.{n}f}" for key, n in (("misclustering", 3), ("error", 2), ("seconds", 2)))
                if name == "sparse":
                    line += f"{row['true_columns']:7.1f}{row['false_columns']:7.1f}"
                    line += f"{row['error'] / mean['oracle']['error']:10.2f}" if "oracle" in mean else ""
                print(line, flush=True)
    print(f"{time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()
