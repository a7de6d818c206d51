"""How many rounds a fit takes: `python benchmarks/rounds.py --model gmm mor --similarity 0 1`.

C = 2, from the same starts, by plain rounds (one gradient step of every site, no extrapolation) until nothing moves,
and by rounds as the package plays them. Told are the rounds of both until the parameters of every honest site are, and
stay, within 1e-3 of the end of the plain ones, and how far apart the ends are. The central problem is the paper's, or
with ``--center default`` the one of the package's default fits, in which far sites have no say.
"""

import argparse
from typing import Any

import numpy as np

from fedgrem.algorithms.fedgrem import FedGrEM
from fedgrem.algorithms.path import LOCAL_STEPS, MEMORY
from fedgrem.algorithms.rounds import Saved, run
from fedgrem.algorithms.search import find_starts
from fedgrem.data.simulate import simulate
from fedgrem.engines import inprocess
from fedgrem.experiments.cells import set_up
from fedgrem.kernels.precision import precision
from fedgrem.types import NumpyArray

CLOSE = 1e-3
MOST_ROUNDS = 4000
CENTERS: dict[str, dict[str, Any]] = {
    "paper": {},
    "default": {"center_solver": "redescending", "penalty_rows": "component"},
}


def one_seed(model: str, h: float, hostile: int, seed: int, center: dict[str, Any]) -> tuple[int, int, float]:
    """Plain rounds, ours, and the largest distance between the two ends."""
    truth = simulate(model, h=h, seed=seed, n_outliers=hostile)
    family, federation, plan = set_up(model, truth, seed)
    plain = FedGrEM(family, **center)
    starts = find_starts(inprocess.InProcess(plain, federation, plan.start), plan, family)
    plan = plan._replace(given=starts.params, align=False, tol=1e-12, max_rounds=MOST_ROUNDS)

    def trace(algorithm: FedGrEM) -> NumpyArray:
        """The honest sites' parameters after every round, ``(T, K, R, q)``."""
        kept: list[NumpyArray] = []

        def keep(saved: Saved) -> None:
            kept.append(np.asarray(saved.state.central.params.theta)[truth.honest])

        run(algorithm, inprocess.InProcess(algorithm, federation, plan.start), plan, keep=keep)
        return np.stack(kept)

    slow, fast = trace(plain), trace(FedGrEM(family, local_steps=LOCAL_STEPS, memory=MEMORY, **center))
    end = slow[-1]
    return rounds_to(slow, end), rounds_to(fast, end), float(np.abs(fast[-1] - end).max())


def rounds_to(path: NumpyArray, end: NumpyArray) -> int:
    """After how many rounds a path is, and stays, close to this end; one more than it has if it does not."""
    off = np.flatnonzero(np.abs(path - end).max(axis=(1, 2, 3)) > CLOSE)
    return int(off[-1]) + 2 if len(off) else 1


def main() -> None:
    """Print a line for every model and similarity."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", nargs="+", choices=("gmm", "mor"), default=["gmm", "mor"])
    parser.add_argument("--similarity", nargs="+", type=float, default=[0.0, 0.5, 1.0, 1.5, 2.0], metavar="h")
    parser.add_argument("--hostile", type=int, default=1)
    parser.add_argument("--center", choices=tuple(CENTERS), default="paper")
    parser.add_argument("--seeds", type=int, default=20)
    arguments = parser.parse_args()
    inprocess.BLOCK = 1  # every round is to be seen
    for model in arguments.model:
        for h in arguments.similarity:
            with precision("float64"):
                center = CENTERS[arguments.center]
                cells = [one_seed(model, h, arguments.hostile, seed, center) for seed in range(arguments.seeds)]
            found = np.array(cells)
            slow, fast, apart = found.T
            print(
                f"{model} h={h:g}: median rounds {np.median(slow):g} plain, {np.median(fast):g} ours (90% within "
                f"{np.quantile(fast, 0.9):g}); ends apart: median {np.median(apart):.1e}, "
                f"within 1e-6 in {np.mean(apart < 1e-6):.0%}"
            )


if __name__ == "__main__":
    main()
