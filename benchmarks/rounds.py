"""How many rounds a fit takes: `python benchmarks/rounds.py --model gmm mor --similarity 0 1`.

C = 2, from the same starts, until nothing moves: by plain rounds (one gradient step of every site, no extrapolation),
by rounds of several local steps without extrapolation, and by rounds as the package plays them, with both. Told are the
rounds until the parameters of every honest site are, and stay, within 1e-3 of the end without extrapolation; how far
apart the ends with and without extrapolation are; and how far apart those of one and of several local steps. The
central problem is the paper's, or with ``--center default`` the one of the package's default fits, in which far sites
have no say.
"""

import argparse
from typing import Any, NamedTuple

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


class Told(NamedTuple):
    """Of one seed."""

    plain: int
    """Rounds of one step, without extrapolation, to their end."""
    steps: int
    """Rounds of several steps, likewise."""
    ours: int
    """Rounds of several steps with extrapolation, to the end of those without."""
    apart: float
    """The largest distance between the ends with and without extrapolation."""
    apart_by_steps: float
    """The same between one and several steps."""


def one_seed(model: str, h: float, hostile: int, seed: int, center: dict[str, Any]) -> Told:
    """Play the three kinds of rounds from the same starts."""
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

    slow, steps = trace(plain), trace(FedGrEM(family, local_steps=LOCAL_STEPS, **center))
    ours = trace(FedGrEM(family, local_steps=LOCAL_STEPS, memory=MEMORY, **center))
    end, by_steps = slow[-1], steps[-1]
    return Told(
        rounds_to(slow, end),
        rounds_to(steps, by_steps),
        rounds_to(ours, by_steps),
        float(np.abs(ours[-1] - by_steps).max()),
        float(np.abs(by_steps - end).max()),
    )


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
            found = Told(*np.array(cells).T)
            same, same_by_steps = (np.mean(apart < 1e-6) for apart in (found.apart, found.apart_by_steps))
            print(
                f"{model} h={h:g}: median rounds {np.median(found.plain):g} plain, {np.median(found.steps):g} with "
                f"local steps, {np.median(found.ours):g} ours (90% within {np.quantile(found.ours, 0.9):g}); ends "
                f"with and without extrapolation within 1e-6 in {same:.0%} (median {np.median(found.apart):.1e}), of "
                f"one and of several steps in {same_by_steps:.0%}",
                flush=True,
            )


if __name__ == "__main__":
    main()
