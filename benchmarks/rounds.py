"""How many rounds a fit takes: `python benchmarks/rounds.py --model gmm mor --similarity 0 1`.

C = 2, from the same starts, until nothing moves: by plain rounds (one gradient step of every site, no extrapolation),
by rounds of several local steps without extrapolation, and by rounds as the package plays them, with both. Told are the
rounds until the parameters of every honest site are, and stay, within 1e-3 of the end without extrapolation; how far
apart the ends with and without extrapolation are, and those of one and of several local steps. A mixture has many
optima, and a hostile site may end in any; so it is also told whether our end is one of the plain rounds: whether
fifty of them, begun there, lead away. The central problem is the paper's, or with ``--center default`` the one of the
package's default fits, in which far sites have no say.
"""

import argparse
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from fedgrem.algorithms.base import Pull
from fedgrem.algorithms.fedgrem import FedGrEM
from fedgrem.algorithms.state import State
from fedgrem.data.simulate import simulate
from fedgrem.engines.inprocess import InProcess
from fedgrem.fit.conversation import converse, everyone
from fedgrem.fit.rounds import play_rounds
from fedgrem.fit.starts import steady_penalty
from fedgrem.studies.cells import set_up
from fedgrem.studies.starts import search_starts
from fedgrem.types import Array, Central, Params

CLOSE = 1e-3
MOST_ROUNDS = 4000
CENTERS: dict[str, dict[str, Any]] = {
    "paper": {"center": "huber", "penalty_rows": "site"},
    "default": {},
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
    moved: float
    """How far fifty plain rounds lead away from our end."""


class Watched(FedGrEM):
    """FedGrEM whose center is looked at after every round."""

    def central_step(self, family: Any, central: Central, uploads: Any, present: Array) -> Any:
        """The same, and keep the parameters."""
        after, influence = super().central_step(family, central, uploads, present)
        kept.append(after.params)
        return after, influence


kept: list[Params] = []


def one_seed(model: str, h: float, hostile: int, seed: int, center: dict[str, Any], n_steps: int) -> Told:
    """Play the three kinds of rounds from the same starts."""
    truth = simulate(model, h=h, seed=seed, n_outliers=hostile)
    spec, federation = set_up(model, truth, seed)
    starts = search_starts(replace(spec, algorithm=FedGrEM(local_steps=1, memory=0, **center)), federation)
    n_rows = np.array([float(len(site.rows)) for site in federation.sites])
    pull = Pull(np.asarray(spec.penalty), np.asarray(spec.penalty), everyone(len(n_rows)))

    def trace(start: Params, *, settled: bool = False, **options: Any) -> tuple[Array, Params]:
        """The honest sites' parameters after every round, ``(T, K, R, q)``, and where all sites end."""
        algorithm = Watched(**center, **options)
        tol, most = (0.0, 50) if settled else (1e-12, MOST_ROUNDS)
        own = replace(spec, algorithm=algorithm, tol=tol, max_rounds=most)
        central = algorithm.begin(own.family, start, n_rows, pull)
        if settled:  # lambda is where it stays
            state: State = central.extra
            lasting = np.asarray(steady_penalty(own, len(n_rows), start.theta.shape[-1]))
            central = central._replace(extra=state._replace(penalty=lasting))
        kept.clear()
        engine = InProcess(federation, own)
        converse(play_rounds(own, central, engine.site_names), engine)
        return np.stack([params.theta[truth.honest] for params in kept]), kept[-1]

    slow, _ = trace(starts, local_steps=1, memory=0)
    steps = slow if n_steps == 1 else trace(starts, local_steps=n_steps, memory=0)[0]
    ours, reached = trace(starts, local_steps=n_steps)
    after, _ = trace(reached, settled=True, local_steps=1, memory=0)
    end, by_steps = slow[-1], steps[-1]
    return Told(
        rounds_to(slow, end),
        rounds_to(steps, by_steps),
        rounds_to(ours, by_steps),
        float(np.abs(ours[-1] - by_steps).max()),
        float(np.abs(by_steps - end).max()),
        float(np.abs(after[-1] - ours[-1]).max()),
    )


def rounds_to(path: Array, end: Array) -> int:
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
    parser.add_argument("--local-steps", type=int, default=10, help="of a site in a round; 1 is the paper's")
    parser.add_argument("--seeds", type=int, default=20)
    arguments = parser.parse_args()
    for model in arguments.model:
        for h in arguments.similarity:
            center = CENTERS[arguments.center]
            cells = [
                one_seed(model, h, arguments.hostile, seed, center, arguments.local_steps)
                for seed in range(arguments.seeds)
            ]
            found = Told(*np.array(cells).T)
            same, same_by_steps, lasting = (
                np.mean(apart < 1e-6) for apart in (found.apart, found.apart_by_steps, found.moved)
            )
            print(
                f"{model} h={h:g}: median rounds {np.median(found.plain):g} plain, {np.median(found.steps):g} with "
                f"local steps, {np.median(found.ours):g} ours (90% within {np.quantile(found.ours, 0.9):g}); ends "
                f"with and without extrapolation within 1e-6 in {same:.0%} (median {np.median(found.apart):.1e}), of "
                f"one and of several steps in {same_by_steps:.0%}; our end is one of plain rounds, to 1e-6, in "
                f"{lasting:.0%}",
                flush=True,
            )


if __name__ == "__main__":
    main()
