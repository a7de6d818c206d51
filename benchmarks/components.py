"""How often ``n_components="auto"`` finds the five components of the simulations: ``python benchmarks/components.py``.

Every seed draws ten sites of 150 rows in ten dimensions, of which ``--hostile`` are not like the others. One line per
similarity h: how often each number was chosen, by BIC and, on the same fits, by ICL; how many curves of BIC zigzag,
which is to rise and fall again by more than a standard error; fits and seconds per choice.
"""

import argparse
import json
import time
import warnings
from collections import Counter
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from fedgrem import FederatedGaussianMixture, FederatedRegressionMixture
from fedgrem.data.simulate import simulate
from fedgrem.studies.runner import read_lines

TRUE = 5


def zigzags(value, error):
    """Whether a curve rises and falls again by more than its standard errors."""
    inner = range(1, len(value) - 1)
    return any(min(value[j] - value[:j].min(), value[j] - value[j + 1 :].min()) > error[j] for j in inner)


def choose(arguments, h, seed):
    """One choice, and how it came about."""
    simulation = simulate(arguments.model, h=h, seed=seed, n_outliers=arguments.hostile)
    options = {"n_components": "auto", "random_state": seed}
    if arguments.penalty is not None:
        options["penalty"] = arguments.penalty
    if arguments.model == "gmm":
        model = FederatedGaussianMixture(covariance_type=arguments.covariance, **options)
    else:
        model = FederatedRegressionMixture(noise=arguments.noise, **options)
    begin = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(simulation.rows, simulation.targets)
    curve = model.selection_
    return {
        "h": h,
        "seed": seed,
        "bic": model.n_components_,
        "icl": int(curve["n_components"][np.argmin(curve["icl"])]),
        "zigzags": zigzags(curve["bic"], curve["error"]),
        "fits": len(curve["bic"]),
        "exchanges": model.cost_["selection_exchanges"],
        "seconds": time.perf_counter() - begin,
    }


def told(chosen):
    """How often each number was chosen."""
    return ", ".join(f"{number}: {times}" for number, times in sorted(Counter(chosen).items()))


def main():
    """Choose for every h and seed, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=["gmm", "mor"], default="gmm")
    parser.add_argument("--covariance", default="identity", help="of the GMM; 'identity' is the paper's setting")
    parser.add_argument("--noise", default="unit", help="of the regressions; 'unit' is the paper's setting")
    parser.add_argument("--penalty", type=float, help="by default the model's own")
    parser.add_argument("--h", type=float, nargs="+", default=[0.0, 0.5, 1.0])
    parser.add_argument("--hostile", type=int, default=1)
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--out", type=Path, help="JSON lines, one per choice; what is there is not done again")
    arguments = parser.parse_args()
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
    table = Table(title=f"{arguments.model}, {setting}, {arguments.hostile} hostile of 10")
    for name in (
        "h",
        "seeds",
        f"BIC finds {TRUE}",
        "BIC chose",
        f"ICL finds {TRUE}",
        "ICL chose",
        "zigzags",
        "fits",
        "seconds",
    ):
        table.add_column(name, justify="right")
    for h in arguments.h:
        lines = [line for line in done if line["h"] == h and line["seed"] < arguments.seeds]
        cells = [f"{h:g}", str(len(lines))]
        for criterion in ("bic", "icl"):
            chosen = [line[criterion] for line in lines]
            cells += [f"{chosen.count(TRUE) / len(lines):.0%}", told(chosen)]
        cells.append(str(sum(line["zigzags"] for line in lines)))
        cells += [f"{np.median([line[key] for line in lines]):.3g}" for key in ("fits", "seconds")]
        table.add_row(*cells)
    Console().print(table)


if __name__ == "__main__":
    main()
