"""A center alone under the worst attack: ``python benchmarks/center.py``.

20 vectors in ten dimensions, the honest ones standard Gaussian about 0, and 2, 4, 6 or 8 of them bad. Every attack is
tried, colluders at every distance among them, and the worst counts: the root mean square error of the center over
that of the honest mean. ``--each`` says which attack it was. Rules that must be told how many are bad are told.
"""

import time
from dataclasses import fields, replace

import numpy as np

from common import Given, asked, some_of
from fedgrem.algorithms.center_rules import CENTER_RULES

MIXED = [name for name, rule in CENTER_RULES.items() if "mixing" in {one.name for one in fields(rule)}]
RULES = {name: rule() for name, rule in CENTER_RULES.items()}
RULES |= {f"nnm+{name}": CENTER_RULES[name](mixing=True) for name in MIXED}

DISTANCES = (0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 7.0, 10.0, 100.0)
"""Of colluders from the honest mean, over the usual distance of an honest vector."""


def attacks(honest, n_bad, generator):
    """Name -> bad vectors ``(n_bad, problems, q)``."""
    n_problems, size = honest.shape[1:]
    mean, deviation = honest.mean(axis=0), honest.std(axis=0)
    usual = np.sqrt(size)
    direction = generator.normal(size=(n_problems, size))
    direction /= np.linalg.norm(direction, axis=-1, keepdims=True)
    scatter = generator.normal(size=(n_bad, n_problems, size))
    alike = np.ones((n_bad, 1, 1))
    found = {}
    for distance in DISTANCES:
        away = mean + distance * usual * direction
        found[f"together at {distance:g}"] = alike * away
        found[f"scattered about {distance:g}"] = away + scatter
        found[f"half scattered about {distance:g}"] = away + 0.5 * scatter
    for z in (0.5, 1.0, 1.5, 2.0, 3.0):
        found[f"ALIE {z:g}"] = alike * (mean - z * deviation)
    widest = np.linalg.norm(honest - mean, axis=-1).argmax(axis=0)
    found["mimic"] = alike * honest[widest, np.arange(n_problems)]
    found["sign flip"] = alike * -mean - scatter
    found["noise"] = mean + 10.0 * scatter
    found["huge"] = alike * 1e8 * direction
    return found


def told(rule, n_bad, n_sites):
    """The rule, told how many are bad if it asks."""
    names = [one.name for one in fields(rule)]
    return replace(rule, bad=n_bad / n_sites) if "bad" in names else rule


def center_of(rule, theta, threshold):
    """Where the rule settles, begun at the coordinate-wise median, as rounds do."""
    ones, present = np.ones(theta.shape[:-1]), np.ones(len(theta), dtype=bool)
    center = np.median(theta, axis=0)
    for _ in range(6):
        center = rule(theta, ones, threshold * ones, ones, center, present).center
    return center


def main():
    """Print a line for every rule."""
    chosen = asked(
        __doc__, rules=some_of(RULES), bad=[0, 2, 4, 6, 8], vectors=20, dimensions=10, problems=200,
        penalty=Given(1.0, "C, from which Huber's threshold follows"), each=Given(False, "name the worst attack"),
    )  # fmt: skip
    threshold = chosen.penalty * np.sqrt(chosen.dimensions + np.log(chosen.vectors)) / 0.9
    print(f"{'rule':24}" + "".join(f"{f'{n} bad':>10}" for n in chosen.bad) + f"{'s':>8}")
    for name in chosen.rules:
        begin, line, worst_names = time.perf_counter(), [], []
        for n_bad in chosen.bad:
            generator = np.random.default_rng(n_bad)
            honest = generator.normal(size=(chosen.vectors - n_bad, chosen.problems, chosen.dimensions))
            least = np.sqrt((honest.mean(axis=0) ** 2).mean())
            rule, ratios = told(RULES[name], n_bad, chosen.vectors), {}
            tried = attacks(honest, n_bad, generator) if n_bad else {"none": honest[:0]}
            for attack, bad in tried.items():
                with np.errstate(all="ignore"):
                    center = center_of(rule, np.concatenate([honest, bad]), threshold)
                ratios[attack] = float(np.nan_to_num(np.sqrt((center**2).mean()) / least, nan=np.inf))
            worst = max(ratios, key=ratios.__getitem__)
            line.append(ratios[worst])
            worst_names.append(worst)
        seconds = time.perf_counter() - begin
        print(f"{name:24}" + "".join(f"{value:10.3g}" for value in line) + f"{seconds:8.1f}", flush=True)
        if chosen.each:
            print(f"{'':24}  " + ", ".join(worst_names))


if __name__ == "__main__":
    main()
