"""How often ``n_components="auto"`` finds the five components of the simulations: ``python benchmarks/components.py``.

Every seed draws ten sites of 150 rows in ten dimensions, of which ``--hostile`` are not like the others. One line per
similarity h: how often each number was chosen, by BIC and, on the same fits, by ICL; how many curves of BIC zigzag,
which is to rise and fall again by more than a standard error; fits and seconds per choice.

With ``--minority 3``, three of the sites have a sixth Gaussian component. The last columns say how often a component
near it was found at exactly these sites, with weights of 0 at all others; how often all honest sites were said to have
those of the other five of which they have two rows; and how often there was anything else, at any honest site.
"""

import json
import time
from collections import Counter
from pathlib import Path

import numpy as np
from scipy.optimize import linear_sum_assignment

from common import Given, asked, one_of, show, table_of
from fedgrem import FederatedGaussianMixture, FederatedRegressionMixture
from fedgrem.data.simulate import CENTERS, simulate
from fedgrem.fit.selection import best_number
from fedgrem.studies.processes import quiet
from fedgrem.studies.runner import read_lines

TRUE = 5
SIXTH = np.array([-1.0, 3.0, -2.0, 1.0, 0.0, 2.0, -1.0, 1.0, 2.0, -1.0])
"""Between 7 and 9 from the other five, which are between 5.6 and 9.3 from each other."""


def draw(arguments, h, seed):
    """One replication; with a minority, its first sites are drawn with one more component."""
    plain = simulate(arguments.model, h=h, seed=seed, n_outliers=arguments.hostile)
    if not arguments.minority:
        return plain
    more = simulate("gmm", h=h, seed=seed + 1000, centers=np.vstack([CENTERS, SIXTH]))
    few = list(plain.rows)[: arguments.minority]
    chosen = {name: more if name in few else plain for name in plain.rows}
    rows, labels = ({name: getattr(one, what)[name] for name, one in chosen.items()} for what in ("rows", "labels"))
    return plain._replace(rows=rows, labels=labels)


def told_of_sites(arguments, model, simulation):
    """Whether the sixth component was found where it is, whether all have the others, and whether anything else was."""
    honest = simulation.honest
    there = np.array([np.bincount(np.maximum(one, 0), minlength=TRUE)[:TRUE] > 1 for one in simulation.labels.values()])
    has, few = model.weights_ > 0, np.arange(len(honest)) < arguments.minority
    away = np.linalg.norm(np.vstack([CENTERS, SIXTH])[:, None] - model.center_, axis=-1)
    places = linear_sum_assignment(away)[1] if len(model.center_) > TRUE else np.argmin(away, axis=1)
    five, sixth = places[:TRUE], places[TRUE] if len(model.center_) > TRUE else None
    others = np.setdiff1d(np.arange(len(model.center_)), places)
    return {
        "sixth": sixth is not None and bool((has[honest, sixth] == few[honest]).all()),
        "five": bool((has[:, five] | ~there)[honest].all()),
        "else": bool(has[np.ix_(honest, others)].any()),
    }


def zigzags(value, error):
    """Whether a curve rises and falls again by more than its standard errors."""
    inner = range(1, len(value) - 1)
    return any(min(value[j] - value[:j].min(), value[j] - value[j + 1 :].min()) > error[j] for j in inner)


def choose(arguments, h, seed):
    """One choice, and how it came about."""
    simulation = draw(arguments, h, seed)
    options = {"n_components": "auto", "random_state": seed}
    if arguments.penalty is not None:
        options["penalty"] = arguments.penalty
    if arguments.model == "gmm":
        model = FederatedGaussianMixture(covariance_type=arguments.covariance, **options)
    else:
        model = FederatedRegressionMixture(noise=arguments.noise, **options)
    begin = time.perf_counter()
    with quiet():
        model.fit(simulation.rows, simulation.targets)
    curve = model.selection_
    return {
        "h": h,
        "seed": seed,
        "bic": best_number(curve, "bic"),
        "icl": int(curve["n_components"][np.argmin(curve["icl"])]),
        "zigzags": zigzags(curve["bic"], curve["error"]),
        "fits": len(curve["bic"]),
        "exchanges": model.cost_["selection_exchanges"],
        "seconds": time.perf_counter() - begin,
        **(told_of_sites(arguments, model, simulation) if arguments.model == "gmm" else {}),
    }


def told(chosen):
    """How often each number was chosen."""
    return ", ".join(f"{number}: {times}" for number, times in sorted(Counter(chosen).items()))


def main():
    """Choose for every h and seed, and print a table."""
    arguments = asked(
        __doc__, model=one_of("gmm", "mor"),
        covariance=Given("identity", "of the GMM; 'identity' is the paper's setting"),
        noise=Given("unit", "of the regressions; 'unit' is the paper's setting"),
        penalty=Given(None, "by default the model's own", kind=float), h=[0.0, 0.5, 1.0], hostile=1,
        minority=Given(0, "sites that have a sixth component"), seeds=100,
        out=Given(None, "JSON lines, one per choice; what is there is not done again", kind=Path),
    )  # fmt: skip
    done = [] if arguments.out is None else read_lines(arguments.out)
    known = {(line["h"], line["seed"]) for line in done}
    for seed in range(arguments.seeds):
        for h in arguments.h:
            if (h, seed) in known:
                continue
            done.append(choose(arguments, h, seed))
            if arguments.out is not None:
                with arguments.out.open("a") as file:
                    file.write(json.dumps(done[-1]) + "\n")
    setting = f"covariance {arguments.covariance}" if arguments.model == "gmm" else f"noise {arguments.noise}"
    heads = "BIC chose", f"ICL finds {TRUE}", "ICL chose", "zigzags", "fits", "seconds", "sixth"
    title = f"{arguments.model}, {setting}, {arguments.hostile} hostile of 10"
    table = table_of(title, "h", "seeds", f"BIC finds {TRUE}", *heads, "all have five", "something else")
    for h in arguments.h:
        lines = [line for line in done if line["h"] == h and line["seed"] < arguments.seeds]
        cells = [f"{h:g}", str(len(lines))]
        for criterion in ("bic", "icl"):
            chosen = [line[criterion] for line in lines]
            cells += [f"{chosen.count(TRUE) / len(lines):.0%}", told(chosen)]
        cells.append(str(sum(line["zigzags"] for line in lines)))
        cells += [f"{np.median([line[key] for line in lines]):.3g}" for key in ("fits", "seconds")]
        cells += [str(sum(line.get(key, False) for line in lines)) for key in ("sixth", "five", "else")]
        table.add_row(*cells)
    show(table)


if __name__ == "__main__":
    main()
