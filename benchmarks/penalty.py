"""What choosing the penalty costs and gains: `python benchmarks/penalty.py --model gmm --similarity 0 1 --hostile 1`.

For every seed, all fits begin at the same starts: with the chosen penalty, with each of twelve fixed ones and the
paper's central problem, and alone. Errors are those of the component parameters over the honest sites: the largest, as
the paper's figures have it, and the root mean square. "best" is the fixed penalty that is best in hindsight for all
seeds together.
"""

import time
from dataclasses import replace

import numpy as np

from common import asked, some_of, squared_errors
from fedgrem.algorithms.fedgrem import FedGrEM
from fedgrem.data.simulate import Simulation, simulate
from fedgrem.engines.inprocess import InProcess
from fedgrem.fit.fit import run
from fedgrem.fit.spec import FitSpec
from fedgrem.studies.cells import set_up
from fedgrem.studies.starts import from_starts, search_starts
from fedgrem.types import Array, FitResult

GRID = (0.0, 0.25, 0.5, 0.75, 1.0, 1.4, 2.0, 2.8, 4.0, 5.6, 8.0, np.inf)


def errors(result: FitResult, truth: Simulation) -> tuple[float, float]:
    """Largest and root mean square distance of honest components from the truth, up to one relabelling of all."""
    away = squared_errors(result.theta[truth.honest], truth.theta[truth.honest])
    return float(np.sqrt(away.max())), float(np.sqrt(away.mean()))


def one_seed(model: str, h: float, hostile: int, seed: int) -> tuple[Array, Array]:
    """Errors ``(2 + 12, 2)`` of: chosen, chosen without fallback, fixed ones; and seconds of a fit and of a choice."""
    truth = simulate(model, h=h, seed=seed, n_outliers=hostile)
    spec, federation = set_up(model, truth, seed)
    began = time.perf_counter()
    starts = search_starts(spec, federation)
    searched = time.perf_counter() - began
    spec = replace(from_starts(spec, starts), max_rounds=300)
    ours = replace(spec, algorithm=FedGrEM(), penalty=None)
    papers = replace(spec, algorithm=FedGrEM("huber", penalty_rows="site"))

    def fit(spec: FitSpec) -> tuple[FitResult, float]:
        began = time.perf_counter()
        result = run(spec, InProcess(federation, spec))
        return result, time.perf_counter() - began

    chosen, together = fit(replace(ours, fallback=True))
    # Where no site was given its own fit back, there is nothing to compare.
    only = fit(ours)[0] if chosen.path["local_only"].any() else chosen
    fixed = [fit(replace(papers, penalty=c)) for c in GRID]
    found = [errors(result, truth) for result in (chosen, only, *(result for result, _ in fixed))]
    seconds = np.array([searched + fixed[6][1], searched + together, float(chosen.path["penalty"])])
    return np.array(found), seconds


def main() -> None:
    """Print a table: a row for every model, similarity and number of hostile sites."""
    arguments = asked(
        __doc__, model=some_of(("gmm", "mor")), similarity=[0.0, 0.5, 1.0, 1.5, 2.0], hostile=[1], seeds=20
    )
    print("largest error, then root mean square; ratio to the best fixed penalty and to fitting alone")
    for model in arguments.model:
        for hostile in arguments.hostile:
            for h in arguments.similarity:
                cells = [one_seed(model, h, hostile, seed) for seed in range(arguments.seeds)]
                mean = np.mean([errors for errors, _ in cells], axis=0)
                ours, fixed = mean[0], mean[2:]
                seconds = np.array([told for _, told in cells])
                parts = [
                    f"{name} {ours[j]:.3f} (no fallback {mean[1, j]:.3f}), best {fixed[:, j].min():.3f} at "
                    f"C={GRID[int(fixed[:, j].argmin())]:g}, alone {fixed[0, j]:.3f}; ratios "
                    f"{ours[j] / fixed[:, j].min():.3f} {ours[j] / fixed[0, j]:.3f}"
                    for j, name in enumerate(("max", "rms"))
                ]
                cost = np.median(seconds[1:, 1] / seconds[1:, 0]) if len(seconds) > 1 else np.nan
                print(f"{model} h={h:g} hostile={hostile}: {' | '.join(parts)}", flush=True)
                print(
                    f"    chosen C median {np.median(seconds[:, 2]):g}; time of a fit with choice / one fit {cost:.2f}"
                )


if __name__ == "__main__":
    main()
