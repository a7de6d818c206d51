"""Logistic and Poisson regressions over sites: ``python benchmarks/responses.py --seeds 20``.

Ten sites of 40 to 200 rows with common coefficients, the last one with others. One line per response: the largest error
of a coefficient over the nine alike sites, of the fit and of fitting alone; how often the odd site is suspect, and any
other one; how often intervals of 95% hold the common coefficients; and seconds of processor time.
"""

import time

import numpy as np
from scipy.special import expit

from common import asked, show, table_of
from fedgrem import FederatedRegressionMixture
from fedgrem.studies.processes import quiet

COMMON = {"binary": np.array([1.0, -0.7, 0.4]), "count": np.array([0.4, -0.3, 0.2])}
N_SITES, LEVEL = 10, 0.3


def draw(response, seed):
    """Covariates and responses by site."""
    generator = np.random.default_rng(seed)
    rows, target = {}, {}
    for k, n in enumerate(generator.integers(40, 200, size=N_SITES)):
        coef = COMMON[response] * (-1.5 if k == N_SITES - 1 else 1.0)
        x = generator.normal(size=(n, 3))
        eta = LEVEL + x @ coef
        y = generator.random(n) < expit(eta) if response == "binary" else generator.poisson(np.exp(eta))
        rows[f"site-{k}"], target[f"site-{k}"] = x, y.astype(float)
    return rows, target


def judged(response, seed):
    """Errors together and alone, whether the odd site and others are suspect, whether intervals hold, seconds."""
    rows, target = draw(response, seed)
    options = {"response": response, "random_state": 0, "standard_errors": True}
    begun = time.process_time()
    model = FederatedRegressionMixture(1, **options).fit(rows, target)
    seconds = time.process_time() - begun
    alone = FederatedRegressionMixture(1, penalty=0.0, **options).fit(rows, target)
    errors = [np.abs(one.coef_[:-1, 0] - COMMON[response]).max() for one in (model, alone)]
    suspect = model.site_verdict_ == "suspect"
    low, high = (end[0] for end in model.intervals()["center"])
    held = ((low <= COMMON[response]) & (COMMON[response] <= high)).mean()
    return [*errors, suspect[-1], suspect[:-1].mean(), held, seconds]


def main():
    """Fit for every seed, and print a table."""
    seeds = asked(__doc__, seeds=20).seeds
    table = table_of(
        f"{N_SITES} sites, {seeds} seeds",
        "response",
        "error",
        "alone",
        "odd site found",
        "false alarms",
        "intervals hold",
        "seconds",
    )
    for response in COMMON:
        with quiet():
            found = np.mean([judged(response, seed) for seed in range(seeds)], axis=0)
        table.add_row(response, *(f"{value:.3f}" for value in found))
    show(table)


if __name__ == "__main__":
    main()
