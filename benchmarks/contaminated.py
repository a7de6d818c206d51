"""A part of the rows of every site is of no component: ``python benchmarks/contaminated.py --seeds 20``.

The paper's simulations, a tenth of the rows of every site replaced by :class:`fedgrem.attacks.rows.PartOfRows`: far
away, in one clump, or with Student's tails. Errors are the largest over honest sites and components, means over seeds,
over those of a plain fit to the same sites without such rows; ``none`` is what ``robust_rows`` costs where all rows are
clean, and ``held`` the share of the rows that a robust fit holds down.
"""

import argparse
import os
import time
import warnings
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial

import numpy as np

from fedgrem.algorithms.fedgrem import FedGrEM
from fedgrem.attacks.rows import PartOfRows, attack_rows
from fedgrem.data.federation import Federation
from fedgrem.data.simulate import simulate
from fedgrem.data.units import UnitsPlan
from fedgrem.engines.inprocess import InProcess
from fedgrem.families.covariance import STRUCTURES
from fedgrem.families.gaussian import Gaussian
from fedgrem.families.regression import LinearRegression
from fedgrem.fit.fit import run
from fedgrem.fit.spec import FitSpec
from fedgrem.kernels.scores import parameter_errors

KINDS = ("none", "far", "clump", "heavy")


def one_fit(spec, drawn, kind, share, seed):
    """The largest error of honest sites, the seconds, and the share of rows held down."""
    rows, targets = drawn.rows, drawn.targets
    if kind != "none":
        rows, targets = attack_rows(rows, PartOfRows(kind, share), list(rows), targets=targets, seed=seed)
    federation = Federation.from_sites(
        list(rows), list(rows.values()), None if targets is None else list(targets.values())
    )
    begin = time.perf_counter()
    result = run(spec, InProcess(federation, spec, threads=1))
    if result.scale is not None:
        result = result._replace(theta=result.theta * result.scale + result.location)
    seconds = time.perf_counter() - begin
    held = np.nan if result.held_down is None else float(np.mean(result.held_down[drawn.honest]))
    parts = (result.weights, result.theta, drawn.weights, drawn.theta)
    return parameter_errors(*(part[drawn.honest] for part in parts))[1].max(), seconds, held


def one_seed(task, family, share, outliers, kinds):
    """Everything of one h and seed: kind -> (plain, robust), and the plain fit without such rows first."""
    model, h, seed = task
    warnings.simplefilter("ignore")
    drawn = simulate(model, h=h, n_outliers=outliers, seed=seed)
    standardize = model == "gmm" and family.covariance.name != "identity"
    spec = FitSpec(
        family, FedGrEM(), drawn.theta.shape[1], seed=seed, standard_errors=False, units=UnitsPlan(standardize)
    )
    robust = replace(spec, family=replace(family, robust_rows=True))
    return {kind: [one_fit(one, drawn, kind, share, seed) for one in (spec, robust)] for kind in ("none", *kinds)}


def main():
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=("gmm", "mor"), default="gmm")
    parser.add_argument("--covariance", choices=tuple(STRUCTURES), default="identity")
    parser.add_argument("--noise", choices=("unit", "shared", "component"), default="unit", help="of regressions")
    parser.add_argument("--similarity", nargs="+", type=float, default=[0.0, 1.0, 2.0], metavar="H")
    parser.add_argument("--share", type=float, default=0.1)
    parser.add_argument("--outliers", type=int, default=1, help="sites that are bad as a whole, as in the paper")
    parser.add_argument("--kinds", nargs="*", choices=KINDS[1:], default=KINDS[1:])
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--each", action="store_true", help="print every seed")
    parser.add_argument("--processes", type=int, default=2)
    chosen = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"
    family = Gaussian(STRUCTURES[chosen.covariance]()) if chosen.model == "gmm" else LinearRegression(chosen.noise)
    seeds = range(chosen.first_seed, chosen.first_seed + chosen.seeds)
    tasks = [(chosen.model, h, seed) for h in chosen.similarity for seed in seeds]
    kinds = tuple(kind for kind in chosen.kinds if kind != "none")
    play = partial(one_seed, family=family, share=chosen.share, outliers=chosen.outliers, kinds=kinds)
    with ProcessPoolExecutor(chosen.processes) as pool:
        told = list(zip(tasks, pool.map(play, tasks), strict=True))
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
