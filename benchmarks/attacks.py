"""What bad sites can do to a fit with default options: ``python benchmarks/attacks.py --share 0.1 0.3 --sites 10``.

The paper's simulations without its outlier: the last ``share`` of the sites turn bad, by one attack of
:data:`fedgrem.attacks.ATTACKS` after the other. Errors are the largest over honest sites and components, means over
seeds; printed is the ratio to the same sites' error without attack, and to their error where every site is fitted
alone; with ``--each`` for every attack, then the worst of each cell. Recall is the share of bad sites called suspect,
false alarms that of honest ones; rounds are those of the longest fit, over twice those without attack plus ten.
"""

import argparse
import os
import time
import warnings
from collections import defaultdict
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial

import numpy as np

from fedgrem.algorithms.center_rules import CENTER_RULES
from fedgrem.algorithms.fedgrem import FedGrEM
from fedgrem.algorithms.robust_rules import ROBUST_RULES
from fedgrem.attacks import ATTACKS, attack_rows, fit_attacked
from fedgrem.data.federation import Federation
from fedgrem.data.simulate import simulate
from fedgrem.engines.inprocess import InProcess
from fedgrem.errors import FedGrEMError
from fedgrem.estimators.verdicts import sightings
from fedgrem.families.gaussian import Gaussian
from fedgrem.families.regression import LinearRegression
from fedgrem.fit.fit import run
from fedgrem.fit.spec import FitSpec
from fedgrem.fit.verdicts import SUSPECT, score, words
from fedgrem.kernels.scores import parameter_errors

FAMILIES = {"gmm": Gaussian(), "mor": LinearRegression()}
MOST_ROUNDS = 300


def federation_of(rows, targets):
    """The rows of all sites as a federation."""
    return Federation.from_sites(list(rows), list(rows.values()), None if targets is None else list(targets.values()))


def errors(result, drawn):
    """(K,) largest error of every site's components; infinite where there is no finite answer, or no answer at all."""
    found = np.full(len(drawn.theta), np.inf)
    names = list(drawn.rows)
    for name, weights, theta in zip(result.site_names, result.weights, result.theta, strict=True):
        k = names.index(name)
        if np.isfinite(theta).all():
            found[k] = parameter_errors(weights[None], theta[None], drawn.weights[[k]], drawn.theta[[k]])[1][0]
    return found


def suspects(result, names):
    """(K,) who is called suspect; sites that were refused before round 1 are."""
    seen = sightings(result)
    penalty = float(np.max(result.influence.penalty))
    told = words(score(seen), seen, result.distance, result.influence.threshold, pulled=0.0 < penalty < np.inf)
    said = dict(zip(result.site_names, told == SUSPECT, strict=True))
    return np.array([said.get(name, True) for name in names])


def one_seed(task, shares, attacks, algorithm):
    """Everything of one model, h, number of sites and seed: a list of (share, attack, dict of figures)."""
    model, h, n_sites, seed = task
    warnings.simplefilter("ignore")
    drawn = simulate(model, h=h, n_sites=n_sites, n_outliers=0, seed=seed)
    names = list(drawn.rows)
    spec = FitSpec(
        FAMILIES[model], algorithm, drawn.theta.shape[1], seed=seed, max_rounds=MOST_ROUNDS, standard_errors=False
    )
    whole = federation_of(drawn.rows, drawn.targets)
    clean = run(spec, InProcess(whole, spec, threads=1))
    alone = replace(spec, penalty=0.0)
    of_clean, of_alone = (errors(r, drawn) for r in (clean, run(alone, InProcess(whole, alone, threads=1))))
    rows = []
    for share in shares:
        n_bad = round(share * n_sites)
        bad, honest = names[n_sites - n_bad :], np.arange(n_sites) < n_sites - n_bad
        for name in attacks:
            entry, begin, crashed = ATTACKS[name], time.process_time(), ""
            federation, result = whole, None
            try:
                if entry.on_rows:
                    spoilt = attack_rows(drawn.rows, entry.attack, bad, targets=drawn.targets, seed=seed)
                    federation = federation_of(*spoilt)
                    result = run(spec, InProcess(federation, spec, threads=1))
                else:
                    result = fit_attacked(spec, federation, entry.attack, bad, seed=seed)
            except (FedGrEMError, ValueError, np.linalg.LinAlgError, AssertionError) as error:
                crashed = f"{type(error).__name__}: {error}"[:120]
            base = {"clean": of_clean[honest].max(), "alone": of_alone[honest].max(), "clean_rounds": clean.n_rounds}
            if result is None:
                rows.append((share, name, base | {"error": np.inf, "rounds": 0, "crashed": crashed}))
                continue
            suspect = suspects(result, names)
            told = {
                "error": errors(result, drawn)[honest].max(), "rounds": result.n_rounds, "crashed": "",
                "recall": suspect[~honest].mean(), "alarms": suspect[honest].mean(),
                "penalty": float(result.path.get("penalty", np.nan)), "seconds": time.process_time() - begin,
            }  # fmt: skip
            rows.append((share, name, base | told))
    return rows


def summary(rows):
    """Figures of one cell over its seeds."""

    def mean(what):
        return (
            float(np.mean([row[what] for row in rows if what in row])) if any(what in row for row in rows) else np.nan
        )

    error = mean("error")
    return {
        "clean": error / mean("clean"), "alone": error / mean("alone"), "recall": mean("recall"),
        "alarms": mean("alarms"), "rounds": max(r["rounds"] / (2.0 * r["clean_rounds"] + 10.0) for r in rows),
        "penalty": float(np.median([row.get("penalty", np.nan) for row in rows])),
        "crashed": sum(bool(row["crashed"]) for row in rows), "seconds": mean("seconds"),
    }  # fmt: skip


def main():
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=list(FAMILIES), default="gmm")
    parser.add_argument("--share", nargs="+", type=float, default=[0.1, 0.2, 0.3, 0.4])
    parser.add_argument("--similarity", nargs="+", type=float, default=[0.0, 1.0], metavar="H")
    parser.add_argument("--sites", nargs="+", type=int, default=[10, 20], metavar="K")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--attacks", nargs="+", default=[], choices=list(ATTACKS), metavar="NAME", help="default: all")
    parser.add_argument("--rule", default=None, choices=list(CENTER_RULES), help="center rule; default: the default")
    parser.add_argument("--mixing", action="store_true", help="with nearest-neighbour mixing before the rule")
    parser.add_argument("--bad", type=float, default=0.3, help="share of bad sites that a rule is told, if it asks")
    parser.add_argument("--each", action="store_true", help="a line for every attack, not only the worst of each cell")
    parser.add_argument("--verdicts", action="store_true", help="likewise, recall and false alarms of every attack")
    parser.add_argument("--processes", type=int, default=2)
    chosen = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"
    attacks = chosen.attacks or list(ATTACKS)
    algorithm = FedGrEM()
    if chosen.rule is not None:
        told = {"bad": chosen.bad, "mixing": chosen.mixing} if chosen.rule in ROBUST_RULES else {}
        algorithm = FedGrEM(center=CENTER_RULES[chosen.rule](**told))
    seeds = range(chosen.first_seed, chosen.first_seed + chosen.seeds)
    tasks = [(chosen.model, h, n_sites, seed) for n_sites in chosen.sites for h in chosen.similarity for seed in seeds]
    play = partial(one_seed, shares=chosen.share, attacks=attacks, algorithm=algorithm)
    cells, begin = defaultdict(list), time.perf_counter()
    with ProcessPoolExecutor(chosen.processes) as pool:
        for task, rows in zip(tasks, pool.map(play, tasks), strict=True):
            for share, name, row in rows:
                cells[task[2], share, task[1], name].append(row)
    found = {key: summary(rows) for key, rows in cells.items()}
    columns = [(n_sites, share, h) for n_sites in chosen.sites for share in chosen.share for h in chosen.similarity]
    if chosen.verdicts:
        print("bad sites called suspect / honest sites called suspect; penalty")
        print(f"{'':18}" + "".join(f"{f'K={k} {s:.0%} h={h:g}':>18}" for k, s, h in columns))
        for name in attacks:
            told = [found[(*column, name)] for column in columns]
            texts = [f"{one['recall']:.0%}/{one['alarms']:.1%} {one['penalty']:g}" for one in told]
            print(f"{name:18}" + "".join(f"{text:>18}" for text in texts))
    if chosen.each:
        print("error over that without attack / over fitting alone; ! a fit died, ~ took too many rounds")
        print(f"{'':18}" + "".join(f"{f'K={k} {s:.0%} h={h:g}':>16}" for k, s, h in columns))
        for name in attacks:
            told = [found[(*column, name)] for column in columns]
            marks = ["!" * (one["crashed"] > 0) + "~" * (one["rounds"] > 1.0) for one in told]
            texts = [f"{one['clean']:.2f}/{one['alone']:.2f}{mark}" for one, mark in zip(told, marks, strict=True)]
            print(f"{name:18}" + "".join(f"{text:>16}" for text in texts))
    print(f"\nworst over {len(attacks)} attack(s), {chosen.model}, {chosen.seeds} seeds, {chosen.rule or 'defaults'}")
    print(
        f"{'cell':16}{'/ clean':>9}  {'by':18}{'/ alone':>9}  {'by':18}{'recall':>8}{'alarms':>8}"
        f"{'rounds':>9}{'died':>6}"
    )
    for column in columns:
        told = {name: found[(*column, name)] for name in attacks}
        by_clean, by_alone = (max(told, key=lambda n, w=what: told[n][w]) for what in ("clean", "alone"))
        n_sites, share, h = column
        print(
            f"{f'K={n_sites} {share:.0%} h={h:g}':16}{told[by_clean]['clean']:9.2f}  {by_clean:18}"
            f"{told[by_alone]['alone']:9.2f}  {by_alone:18}{np.nanmin([one['recall'] for one in told.values()]):8.0%}"
            f"{np.nanmax([one['alarms'] for one in told.values()]):8.1%}"
            f"{max(one['rounds'] for one in told.values()):9.1f}{sum(one['crashed'] for one in told.values()):6}"
        )
    died = {key: {row["crashed"] for row in rows if row["crashed"]} for key, rows in cells.items()}
    for (n_sites, share, h, name), why in died.items():
        if why:
            print(f"died: K={n_sites} {share:.0%} h={h:g} {name}: {min(why)}")
    print(f"{time.perf_counter() - begin:.0f} s")


if __name__ == "__main__":
    main()
