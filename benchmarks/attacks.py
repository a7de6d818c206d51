"""What bad sites can do to a fit with default options: ``python benchmarks/attacks.py --share 0.1 0.3 --sites 10``.

The paper's simulations without its outlier: the last ``share`` of the sites turn bad, by one attack of
:data:`fedgrem.attacks.ATTACKS` after the other. Errors are the largest over honest sites and components, means over
seeds; printed is the ratio to the same sites' error without attack, and to their error where every site is fitted
alone; with ``--each`` for every attack, then the worst of each cell. Recall is the share of bad sites called suspect,
named that of those who are, or are said to say the same as others; false alarms are honest ones called suspect; rounds
are those of the longest fit, over twice those without attack plus ten.
"""

import time
from collections import defaultdict
from functools import partial

import numpy as np

from common import Given, asked, in_processes, one_of, some_of
from fedgrem.algorithms.center_rules import CENTER_RULES
from fedgrem.attacks import ATTACKS
from fedgrem.data.simulate import simulate
from fedgrem.studies.attacks import ALONE, NONE, OURS
from fedgrem.studies.base import Method
from fedgrem.studies.processes import quiet
from fedgrem.studies.under_attack import Scenario, trial


@quiet()
def one_seed(task, shares, attacks, method):
    """Everything of one model, h, number of sites and seed: a list of (share, attack, dict of figures)."""
    model, h, n_sites, seed = task
    drawn = simulate(model, h=h, n_sites=n_sites, n_outliers=0, seed=seed)
    rows = []
    for share in shares:
        scene = Scenario(model, h, n_sites, share, NONE)
        clean, alone = (trial(scene, drawn, seed, one) for one in (method, ALONE))
        base = {"clean": clean["theta_error"], "alone": alone["theta_error"], "clean_rounds": clean["rounds"]}
        rows += [(share, name, base | trial(scene._replace(attack=name), drawn, seed, method)) for name in attacks]
    return rows


def summary(rows):
    """Figures of one cell over its seeds."""

    def mean(what):
        return float(np.mean([row[what] for row in rows if np.isfinite(row[what])] or [np.nan]))

    error = mean("theta_error") if all(np.isfinite(row["theta_error"]) for row in rows) else np.inf
    return {
        "clean": error / mean("clean"), "alone": error / mean("alone"),
        "recall": mean("recall"), "named": mean("named"), "alarms": mean("alarms"),
        "rounds": max(r["rounds"] / (2.0 * r["clean_rounds"] + 10.0) for r in rows),
        "penalty": float(np.median([row["penalty"] for row in rows if np.isfinite(row["penalty"])] or [np.nan])),
        "died": sum(bool(row["died"]) for row in rows), "seconds": mean("seconds"),
    }  # fmt: skip


def verdicts_of(one):
    return f"{one['recall']:.0%}/{one['named']:.0%}/{one['alarms']:.1%} {one['penalty']:g}"


def each(one):
    return f"{one['clean']:.2f}/{one['alone']:.2f}" + "!" * (one["died"] > 0) + "~" * (one["rounds"] > 1.0)


def main():
    """Print the tables."""
    chosen = asked(
        __doc__, model=one_of("gmm", "mor"), share=[0.1, 0.2, 0.3, 0.4], similarity=[0.0, 1.0], sites=[10, 20],
        seeds=5, first_seed=0, attacks=some_of(ATTACKS),
        rule=Given(None, "default: that of the default fit", list(CENTER_RULES)),
        mixing=Given(False, "with nearest-neighbour mixing before the rule"),
        each=Given(False, "a line for every attack, not only the worst of each cell"),
        verdicts=Given(False, "likewise, recall and false alarms of every attack"), processes=2,
    )  # fmt: skip
    attacks = chosen.attacks or list(ATTACKS)
    method = OURS
    if chosen.rule is not None:
        method = Method(chosen.rule, "fedgrem", {"center": chosen.rule, "mixing": chosen.mixing}, None)
    seeds = range(chosen.first_seed, chosen.first_seed + chosen.seeds)
    tasks = [(chosen.model, h, n_sites, seed) for n_sites in chosen.sites for h in chosen.similarity for seed in seeds]
    play = partial(one_seed, shares=chosen.share, attacks=attacks, method=method)
    cells, begin = defaultdict(list), time.perf_counter()
    for task, rows in zip(tasks, in_processes(play, tasks, chosen.processes), strict=True):
        for share, name, row in rows:
            cells[task[2], share, task[1], name].append(row)
    found = {key: summary(rows) for key, rows in cells.items()}
    columns = [(n_sites, share, h) for n_sites in chosen.sites for share in chosen.share for h in chosen.similarity]
    for asked_for, title, cell in (
        (
            chosen.verdicts,
            "bad sites called suspect / suspect or named / honest sites called suspect; penalty",
            verdicts_of,
        ),
        (
            chosen.each,
            "error over that without attack / over fitting alone; ! a fit died, ~ took too many rounds",
            each,
        ),
    ):
        if asked_for:
            print(f"{title}\n{'':18}" + "".join(f"{f'K={k} {s:.0%} h={h:g}':>22}" for k, s, h in columns))
            for name in attacks:
                print(f"{name:18}" + "".join(f"{cell(found[(*column, name)]):>22}" for column in columns))
    print(f"\nworst over {len(attacks)} attack(s), {chosen.model}, {chosen.seeds} seeds, {chosen.rule or 'defaults'}")
    print("died: fits without an answer, which count in no other column")
    print(
        f"{'cell':16}{'/ clean':>9}  {'by':18}{'/ alone':>9}  {'by':18}{'recall':>8}{'alarms':>8}"
        f"{'rounds':>9}{'died':>6}"
    )
    for column in columns:
        told = {name: found[(*column, name)] for name in attacks}
        ended = {name: one for name, one in told.items() if np.isfinite(one["clean"])} or told
        by_clean, by_alone = (max(ended, key=lambda n, w=what: ended[n][w]) for what in ("clean", "alone"))
        n_sites, share, h = column
        print(
            f"{f'K={n_sites} {share:.0%} h={h:g}':16}{ended[by_clean]['clean']:9.2f}  {by_clean:18}"
            f"{ended[by_alone]['alone']:9.2f}  {by_alone:18}{min(one['recall'] for one in ended.values()):8.0%}"
            f"{max(one['alarms'] for one in ended.values()):8.1%}"
            f"{max(one['rounds'] for one in told.values()):9.1f}{sum(one['died'] for one in told.values()):6}"
        )
    died = {key: {row["died"] for row in rows if row["died"]} for key, rows in cells.items()}
    for (n_sites, share, h, name), why in died.items():
        if why:
            print(f"died: K={n_sites} {share:.0%} h={h:g} {name}: {min(why)}")
    print(f"{time.perf_counter() - begin:.0f} s")


if __name__ == "__main__":
    main()
