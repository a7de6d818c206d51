"""How often verdicts are right: hostile sites found, honest sites called suspect. ``python benchmarks/verdicts.py``.

The paper's simulations (10 sites of 150 rows, or ``--sites``, five components in ten dimensions) for every h up to
1.5, with 0 to 3 hostile sites, and sites of unequal sizes. One line per setting: the share of hostile sites that are
called suspect, and the share of honest ones that are too.
"""

import argparse
import time
import warnings
from itertools import product

import numpy as np
from rich.console import Console
from rich.table import Table

from fedgrem import FederatedGaussianMixture, FederatedRegressionMixture
from fedgrem.algorithms.fedgrem import FedGrEM
from fedgrem.data.simulate import simulate
from fedgrem.fit.verdicts import FALSE_ALARM, SUSPECT

IDENTITY = {"covariance_type": "identity"}
SETTINGS = {
    "gmm-identity": ("gmm", IDENTITY),
    "gmm": ("gmm", {}),
    "mor": ("mor", {"noise": "unit"}),
    "gmm-alone": ("gmm", IDENTITY | {"penalty": 0.0}),
    # With one answer for all, sites that are far off have a say at the center, as in the paper.
    "gmm-common": ("gmm", IDENTITY | {"penalty": np.inf, "algorithm": FedGrEM("huber", penalty_rows="site")}),
    "gmm-local-em": ("gmm", IDENTITY | {"algorithm": "local-em"}),
    "gmm-fedem": ("gmm", IDENTITY | {"algorithm": "fedem"}),
}
UNEQUAL = [40, 60, 80, 100, 150, 150, 200, 400, 1000, 150]


def verdicts(setting, h, n_sites, n_outliers, seed, sizes):
    """Which sites are suspect, and which are honest, in one replication."""
    kind, options = SETTINGS[setting]
    n_rows = np.resize(UNEQUAL, n_sites).tolist() if sizes == "unequal" else 150
    drawn = simulate(kind, h=h, n_sites=n_sites, n_outliers=n_outliers, n_rows=n_rows, seed=seed)
    model = FederatedRegressionMixture if kind == "mor" else FederatedGaussianMixture
    given = (drawn.rows,) if drawn.targets is None else (drawn.rows, drawn.targets)
    fitted = model(5, random_state=seed, **options).fit(*given)
    return fitted.site_verdict_ == SUSPECT, drawn.honest


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--settings", nargs="+", default=["gmm-identity", "gmm", "mor"], choices=list(SETTINGS))
    parser.add_argument("--similarity", nargs="+", type=float, default=[0.0, 0.5, 1.0, 1.5], metavar="H")
    parser.add_argument("--sites", nargs="+", type=int, default=[10], metavar="K")
    parser.add_argument("--hostile", nargs="+", type=int, default=[0, 1, 2, 3])
    parser.add_argument("--sizes", choices=["equal", "unequal"], default="equal")
    chosen = parser.parse_args()
    warnings.simplefilter("ignore")
    console = Console()
    table = Table(title=f"Suspect, at a stated false-alarm rate of {FALSE_ALARM:.0%}; {chosen.seeds} seeds")
    for column in ("setting", "h", "hostile", "found", "seeds with all found", "false alarms", "seconds a fit"):
        table.add_column(column, justify="right")
    cells = product(chosen.settings, chosen.sites, chosen.hostile, chosen.similarity)
    for setting, n_sites, n_outliers, h in cells:
        begin, found, whole, false = time.perf_counter(), [], [], []
        for seed in range(1, chosen.seeds + 1):
            suspect, honest = verdicts(setting, h, n_sites, n_outliers, seed, chosen.sizes)
            found.extend(suspect[~honest])
            whole.append(suspect[~honest].all())
            false.extend(suspect[honest])
        seconds = (time.perf_counter() - begin) / chosen.seeds
        shares = (f"{np.mean(found):.1%}", f"{np.mean(whole):.1%}") if n_outliers else ("", "")
        row = (setting, f"{h:g}", f"{n_outliers} of {n_sites}", *shares, f"{np.mean(false):.2%}", f"{seconds:.2f}")
        table.add_row(*row)
        console.print(*row)
    console.print(table)


if __name__ == "__main__":
    main()
