"""Slopes over schools that differ in level, against the truth and a mixed model's: ``python benchmarks/schools.py``.

Every seed draws 160 schools of 2 to 70 pupils. Schools differ in level by ``--level`` standard deviations of the noise
and, by ``--leak``, more where pupils have more of the first column, so that differences between schools look like a
slope. One line per estimate of the two slopes, 2.2 and -1: mean, root mean square error, how often its interval of 95%
holds the truth, and how far it is from the mixed model's on average, in standard errors of that. The mixed model is
statsmodels' where that is installed, and otherwise restricted likelihood in NumPy.
"""

import numpy as np
from scipy.optimize import minimize_scalar

from common import asked, show, some_of, table_of
from fedgrem import FederatedRegressionMixture
from fedgrem.studies.processes import quiet

SLOPES = np.array([2.2, -1.0])
NOISE, N_SCHOOLS = 6.0, 160


def draw(seed, level, leak):
    """Covariates and scores by school."""
    generator = np.random.default_rng(seed)
    rows, scores = {}, {}
    for k, n in enumerate(generator.integers(2, 71, size=N_SCHOOLS)):
        mean = 0.5 * generator.normal()
        x = np.column_stack([mean + 0.7 * generator.normal(size=n), generator.normal(size=n)])
        own = NOISE * (level * generator.normal() + leak * mean)
        name = f"school-{k:03d}"
        rows[name], scores[name] = x, 12.0 + own + x @ SLOPES + NOISE * generator.normal(size=n)
    return rows, scores


def federated(rows, scores, intercept):
    """Slopes of the center and their standard errors."""
    with quiet():
        model = FederatedRegressionMixture(1, intercept=intercept, standard_errors=True, random_state=0)
        model.fit(rows, scores)
    return model.center_[0], model.center_se_[0]


def mixed(rows, scores):
    """The same of a random-intercept model."""
    try:
        from statsmodels.regression.mixed_linear_model import MixedLM
    except ImportError:
        return restricted_likelihood(rows, scores)
    x = np.concatenate([np.column_stack([own, np.ones(len(own))]) for own in rows.values()])
    groups = np.repeat(np.arange(len(rows)), [len(own) for own in rows.values()])
    with quiet():  # it tries other optimizers by itself
        fit = MixedLM(np.concatenate(list(scores.values())), x, groups).fit()
    return fit.params[:2], fit.bse[:2]


def restricted_likelihood(rows, scores):
    """Generalized least squares at the ratio of variances that maximizes the restricted likelihood."""
    columns = [np.column_stack([own, np.ones(len(own))]) for own in rows.values()]
    total = sum(map(len, columns)) - columns[0].shape[1]

    def solved(ratio):
        gram, cross, square, logs = np.zeros((3, 3)), np.zeros(3), 0.0, 0.0
        for x, y in zip(columns, scores.values(), strict=True):
            n = len(y)
            less = ratio / (1.0 + n * ratio)
            gram += x.T @ x - less * np.outer(x.sum(axis=0), x.sum(axis=0))
            cross += x.T @ y - less * x.sum(axis=0) * y.sum()
            square += y @ y - less * y.sum() ** 2
            logs += np.log1p(n * ratio)
        slopes = np.linalg.solve(gram, cross)
        variance = (square - slopes @ cross) / total
        value = total * np.log(variance) + logs + np.linalg.slogdet(gram)[1]
        return value, slopes, np.sqrt(variance * np.diagonal(np.linalg.inv(gram)))

    best = minimize_scalar(lambda log: solved(np.exp(log))[0], bounds=(-12.0, 6.0), method="bounded").x
    _, slopes, errors = solved(np.exp(best))
    return slopes[:2], errors[:2]


def main():
    """Estimate for every seed, and print a table."""
    arguments = asked(
        __doc__, level=0.4, leak=[0.0, 0.5], seeds=40, only=some_of(("component", "site", "mixed"), help="estimates")
    )
    table = table_of(
        f"{N_SCHOOLS} schools of 2 to 70 pupils, {arguments.seeds} seeds",
        "leak",
        "estimate",
        "slopes",
        "root mean square error",
        "in the interval",
        "from the mixed model's",
    )
    for leak in arguments.leak:
        found = {name: [] for name in arguments.only or ("component", "site", "mixed")}
        for seed in range(arguments.seeds):
            rows, scores = draw(seed, arguments.level, leak)
            for name, estimates in found.items():
                estimates.append(mixed(rows, scores) if name == "mixed" else federated(rows, scores, name))
        reference = np.array(found.get("mixed", np.full((arguments.seeds, 2, 2), np.nan)))
        for name, estimates in found.items():
            slopes, errors = np.array(estimates).swapaxes(0, 1)
            held = np.abs(slopes - SLOPES) <= 1.96 * errors
            off = np.abs(slopes - reference[:, 0]) / reference[:, 1]
            error = np.sqrt(((slopes - SLOPES) ** 2).mean(axis=0))
            cells = (slopes.mean(axis=0), error, held.mean(axis=0), off.mean(axis=0))
            table.add_row(f"{leak:g}", name, *(" ".join(f"{value:.3f}" for value in cell) for cell in cells))
    show(table)


if __name__ == "__main__":
    main()
