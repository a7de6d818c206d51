"""How often verdicts are right: hostile sites found, honest sites called suspect. ``python benchmarks/verdicts.py``.

The paper's simulations (10 sites of 150 rows, five components in ten dimensions) for every h up to 1.5, with 0 to 3
hostile sites, and sites of unequal sizes. One line per setting: the share of hostile sites that are called suspect, and
the share of honest ones that are too.
"""

import time
import warnings

import numpy as np

from common import asked, one_of, show, some_of, table_of
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


def verdicts(setting, h, n_outliers, seed, sizes):
    """Which sites are suspect, and which are honest, in one replication."""
    kind, options = SETTINGS[setting]
    n_rows = UNEQUAL if sizes == "unequal" else 150
    drawn = simulate(kind, h=h, n_outliers=n_outliers, n_rows=n_rows, seed=seed)
    model = FederatedRegressionMixture if kind == "mor" else FederatedGaussianMixture
    given = (drawn.rows,) if drawn.targets is None else (drawn.rows, drawn.targets)
    fitted = model(5, random_state=seed, **options).fit(*given)
    return fitted.site_verdict_ == SUSPECT, drawn.honest


def main():
    chosen = asked(
        __doc__, seeds=20, settings=some_of(SETTINGS, ["gmm-identity", "gmm", "mor"]),
        similarity=[0.0, 0.5, 1.0, 1.5], hostile=[0, 1, 2, 3], sizes=one_of("equal", "unequal"),
    )  # fmt: skip
    warnings.simplefilter("ignore")
    table = table_of(
        f"Suspect, at a stated false-alarm rate of {FALSE_ALARM:.0%}; {chosen.seeds} seeds",
        "setting",
        "h",
        "hostile of 10",
        "found",
        "seeds with all found",
        "false alarms",
        "seconds a fit",
    )
    for setting in chosen.settings:
        for n_outliers in chosen.hostile:
            for h in chosen.similarity:
                begin, found, whole, false = time.perf_counter(), [], [], []
                for seed in range(1, chosen.seeds + 1):
                    suspect, honest = verdicts(setting, h, n_outliers, seed, chosen.sizes)
                    found.extend(suspect[~honest])
                    whole.append(suspect[~honest].all())
                    false.extend(suspect[honest])
                seconds = (time.perf_counter() - begin) / chosen.seeds
                shares = (f"{np.mean(found):.1%}", f"{np.mean(whole):.1%}") if n_outliers else ("", "")
                row = (setting, f"{h:g}", str(n_outliers), *shares, f"{np.mean(false):.2%}", f"{seconds:.2f}")
                table.add_row(*row)
                show(*row)
    show(table)


if __name__ == "__main__":
    main()
