"""A part of the rows of every site is of no component: ``python benchmarks/contaminated.py --seeds 20``.

The paper's simulations, a tenth of the rows of every site replaced by :class:`fedgrem.attacks.rows.PartOfRows`: far
away, in one clump, or with Student's tails. Errors are the largest over honest sites and components, means over seeds,
over those of a plain fit to the same sites without such rows; ``none`` is what ``robust_rows`` costs where all rows are
clean, and ``held`` the share of the rows that a robust fit holds down.
"""

import time
from dataclasses import replace
from functools import partial

import numpy as np

from common import Given, asked, in_processes, one_of, some_of
from fedgrem.algorithms.fedgrem import FedGrEM
from fedgrem.attacks.rows import PartOfRows, attack_rows
from fedgrem.data.simulate import simulate
from fedgrem.data.units import UnitsPlan
from fedgrem.engines.inprocess import InProcess
from fedgrem.families.covariance import STRUCTURES
from fedgrem.families.gaussian import Gaussian
from fedgrem.families.regression import LinearRegression
from fedgrem.fit.fit import run
from fedgrem.fit.spec import FitSpec
from fedgrem.studies.processes import quiet
from fedgrem.studies.starts import federation_of

KINDS = ("none", "far", "clump", "heavy")


def one_fit(spec, drawn, kind, share, seed):
    """The largest error of honest sites, the seconds, and the share of rows held down."""
    rows, targets = drawn.rows, drawn.targets
    if kind != "none":
        rows, targets = attack_rows(rows, PartOfRows(kind, share), list(rows), targets=targets, seed=seed)
    federation = federation_of(drawn._replace(rows=rows, targets=targets))
    begin = time.perf_counter()
    result = run(spec, InProcess(federation, spec, threads=1))
    if result.scale is not None:
        result = result._replace(theta=result.theta * result.scale + result.location)
    seconds = time.perf_counter() - begin
    held = np.nan if result.held_down is None else float(np.mean(result.held_down[drawn.honest]))
    return drawn.errors(result.weights, result.theta)[1][drawn.honest].max(), seconds, held


@quiet()
def one_seed(task, family, share, outliers, kinds):
    """Everything of one h and seed: kind -> (plain, robust), and the plain fit without such rows first."""
    model, h, seed = task
    drawn = simulate(model, h=h, n_outliers=outliers, seed=seed)
    standardize = model == "gmm" and family.covariance.name != "identity"
    spec = FitSpec(
        family, FedGrEM(), drawn.theta.shape[1], seed=seed, standard_errors=False, units=UnitsPlan(standardize)
    )
    robust = replace(spec, family=replace(family, robust_rows=True))
    return {kind: [one_fit(one, drawn, kind, share, seed) for one in (spec, robust)] for kind in ("none", *kinds)}


def main():
    """Print a table."""
    chosen = asked(
        __doc__, model=one_of("gmm", "mor"), covariance=Given("identity", choices=list(STRUCTURES)),
        noise=one_of("unit", "shared", "component", help="of regressions"), similarity=[0.0, 1.0, 2.0], share=0.1,
        outliers=Given(1, "sites that are bad as a whole, as in the paper"), kinds=some_of(KINDS[1:]), seeds=20,
        first_seed=0, each=Given(False, "print every seed"), processes=2,
    )  # fmt: skip
    family = Gaussian(STRUCTURES[chosen.covariance]()) if chosen.model == "gmm" else LinearRegression(chosen.noise)
    seeds = range(chosen.first_seed, chosen.first_seed + chosen.seeds)
    tasks = [(chosen.model, h, seed) for h in chosen.similarity for seed in seeds]
    kinds = tuple(kind for kind in chosen.kinds if kind != "none")
    play = partial(one_seed, family=family, share=chosen.share, outliers=chosen.outliers, kinds=kinds)
    told = list(zip(tasks, in_processes(play, tasks, chosen.processes), strict=True))
    what = chosen.covariance if chosen.model == "gmm" else f"{chosen.noise} noise"
    print(
        f"{chosen.model}, {what}, {chosen.seeds} seeds, {chosen.share:.0%} of the rows; error over a plain clean fit's"
    )
    print(f"{'h':>4} {'rows':6}{'plain':>8}{'robust':>8}{'worst':>8}{'held':>8}{'seconds':>16}")
    for h in chosen.similarity:
        here = [found for task, found in told if task[1] == h]
        clean = np.array([found["none"][0][0] for found in here])
        for kind in ("none", *kinds):
            plain, robust = (np.array([found[kind][place] for found in here]) for place in (0, 1))
            worst = (robust[:, 0] / clean).max()
            print(
                f"{h:4g} {kind:6}{plain[:, 0].mean() / clean.mean():8.3f}{robust[:, 0].mean() / clean.mean():8.3f}"
                f"{worst:8.2f}{robust[:, 2].mean():8.1%}{plain[:, 1].mean():8.2f}{robust[:, 1].mean():8.2f}"
            )
            if chosen.each:
                print("     ", *(f"{a:.2f}/{b:.2f}" for a, b in zip(robust[:, 0], clean, strict=True)))


if __name__ == "__main__":
    main()
