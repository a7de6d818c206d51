"""Speed, as ratios measured in one run against scikit-learn: ``make bench``.

First fits: defaults and everything included (penalty, verdicts, standard errors), each in a fresh process after its
imports, against scikit-learn's ``GaussianMixture(covariance_type="tied", n_init=10)`` looped over the sites in one.
Rounds: one FedGrEM round over all sites, and a local step within rounds of ten, against one EM iteration of
scikit-learn's spherical GaussianMixture looped over the same sites. And 10,000 sites. ``--only`` runs one part.
"""

import argparse
import gc
import json
import resource
import subprocess
import sys
import time
import warnings
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from fedgrem import FederatedGaussianMixture, FederatedRegressionMixture
from fedgrem.algorithms.base import Pull
from fedgrem.algorithms.fedgrem import FedGrEM
from fedgrem.data.federation import Federation
from fedgrem.data.simulate import simulate
from fedgrem.engines.inprocess import InProcess
from fedgrem.families.gaussian import Gaussian
from fedgrem.fit.conversation import converse, everyone
from fedgrem.fit.rounds import play_rounds
from fedgrem.fit.spec import FitSpec
from fedgrem.types import Array, Params

FITS = [(5, 200, 4, 3), (10, 150, 10, 5), (44, 200, 16, 10)]
"""(K, n, p, R)"""
REGRESSION, RANGE = (10, 150, 10, 5), (5, 200, 4, 3)
FIT_AIM, MEMORY_AIM = 0.3, 250.0
"""Of scikit-learn's time; and megabytes, of the two smaller fits."""
ROUNDS = {(10, 150, 10, 5): (4, 10), (44, 200, 16, 10): (7, 12), (100, 560, 10, 10): (8, 12)}
"""(K, n, p, R) -> how many times as fast as an iteration of scikit-learn a round and a local step are to be."""
MANY = (10_000, 200, 16, 10)
KINDS = ("fit", "range", "regression", "sklearn", "nothing")
REPEATS = 3
"""Fresh processes for every first fit; the quickest counts, since the others were disturbed."""


def draw(n_sites: int, n_rows: int, n_features: int, n_components: int, seed: int = 0) -> tuple[Array, Array]:
    """Gaussian sites around common centers, and a start near the truth."""
    generator = np.random.default_rng(seed)
    centers = 2.0 * generator.normal(size=(n_components, n_features))
    means = centers + 0.3 * generator.normal(size=(n_sites, n_components, n_features))
    rows = np.empty((n_sites, n_rows, n_features))
    for site, mean in zip(rows, means, strict=True):  # one by one: memory is measured here
        site[:] = mean[generator.integers(n_components, size=n_rows)] + generator.normal(size=site.shape)
    return rows, means + 0.3 * generator.normal(size=means.shape)


def by_name(values: Any) -> dict[str, Array]:
    """Sites as a user has them."""
    return {f"site-{k:05d}": value for k, value in enumerate(values)}


def peak_memory() -> float:
    """Megabytes that this process has needed so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10


# -- first fits, each in a process of its own


def first(kind: str, shape: tuple[int, int, int, int]) -> dict[str, Any]:
    """One fit in this process, which has done nothing but import: seconds, peak memory, and whether JAX was loaded."""
    n_components = shape[3]
    sites = by_name(draw(*shape)[0])
    targets = None
    if kind == "regression":  # the paper's, which has this shape
        simulation = simulate("mor", h=0.5, seed=0)
        sites, targets = simulation.rows, simulation.targets
    begin = time.perf_counter()
    if kind == "fit":
        FederatedGaussianMixture(n_components, random_state=0).fit(sites)
    elif kind == "range":
        FederatedGaussianMixture(range(2, 9), random_state=0).fit(sites)
    elif kind == "regression":
        FederatedRegressionMixture(n_components, random_state=0).fit(sites, targets)
    elif kind == "sklearn":
        from sklearn.mixture import GaussianMixture

        begin = time.perf_counter()  # after imports, like the others
        for site in sites.values():
            GaussianMixture(n_components, covariance_type="tied", n_init=10, random_state=0).fit(site)
    return {"seconds": time.perf_counter() - begin, "memory": peak_memory(), "jax": "jax" in sys.modules}


def in_fresh_processes(kind: str, shape: tuple[int, int, int, int]) -> dict[str, Any]:
    """The quickest of a few such processes."""
    command = [sys.executable, __file__, "--first", kind, *map(str, shape)]
    runs = [
        json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout) for _ in range(REPEATS)
    ]
    best: dict[str, Any] = min(runs, key=lambda run: run["seconds"])
    return best | {"jax": any(run["jax"] for run in runs)}


def fits_table(console: Console) -> None:
    """Every first fit, and scikit-learn's on the same rows."""
    heads = "first fit", "K, n, p, R", "s", "scikit-learn s", "ratio", "aim", "peak MB", "jax loaded"
    table = Table(*heads, title="First default fit in a fresh process, after imports")
    imported = in_fresh_processes("nothing", FITS[0])
    for shape in FITS:
        ours, theirs = in_fresh_processes("fit", shape), in_fresh_processes("sklearn", shape)
        ratio = ours["seconds"] / theirs["seconds"]
        figures = f"{ours['seconds']:.2f}", f"{theirs['seconds']:.2f}", f"{ratio:.2f}", f"{FIT_AIM}"
        table.add_row("Gaussians", str(shape), *figures, f"{ours['memory']:.0f}", _said(ours["jax"]))
    for name, kind, shape, aim in (
        ("regressions", "regression", REGRESSION, "0.8 s"),
        ("range(2, 9)", "range", RANGE, "1.5 s"),
    ):
        ours = in_fresh_processes(kind, shape)
        figures = f"{ours['seconds']:.2f}", "", "", aim, f"{ours['memory']:.0f}"
        table.add_row(name, str(shape), *figures, _said(ours["jax"]))
    console.print(table)
    console.print(
        f"Imports and the rows alone take {imported['memory']:.0f} MB; at most {MEMORY_AIM:.0f} MB for the first two "
        "fits. Aims in seconds are those of a quiet machine."
    )


def _said(loaded: bool) -> str:
    return "YES" if loaded else "no"


# -- rounds


class Rounds:
    """Rounds over the same rows and start, of any number of local steps and threads; stacked before they are timed."""

    def __init__(self, rows: Array, start: Array) -> None:
        n_sites, n_components = start.shape[:2]
        self._federation = Federation.from_sites(list(by_name(rows)), list(rows))
        self._start = Params(np.full((n_sites, n_components), 1.0 / n_components), start)
        self._n_rows = np.full(n_sites, float(rows.shape[1]))

    def seconds(self, local_steps: int, threads: int, rounds: int = 10, repeats: int = 7) -> float:
        """Of one round, the best of a few runs."""
        algorithm = FedGrEM(local_steps=local_steps)
        spec = FitSpec(Gaussian(), algorithm, self._start.weights.shape[1], 2.0, max_rounds=rounds, tol=0.0)
        engine = InProcess(self._federation, spec, threads=threads)
        pull = Pull(np.asarray(2.0), np.asarray(2.0), everyone(len(self._n_rows)))

        def play() -> None:
            central = algorithm.begin(spec.family, self._start, self._n_rows, pull)
            converse(play_rounds(spec, central, engine.site_names), engine)

        gc.collect()  # earlier stacks, which their parts refer to
        play()
        return best_of(play, repeats) / rounds


def best_of(function: Any, repeats: int) -> float:
    """Shortest of a few runs, in seconds: the others were disturbed."""
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        function()
        times.append(time.perf_counter() - begin)
    return min(times)


def scikit_learn_iteration(rows: Array, start: Array) -> float:
    """Seconds of one EM iteration of scikit-learn, looped over the sites: a long fit less a short one."""
    from sklearn.mixture import GaussianMixture

    n_components = start.shape[1]

    def fit(iterations: int) -> None:
        for k in range(len(rows)):
            GaussianMixture(
                n_components, covariance_type="spherical", tol=0.0, max_iter=iterations, means_init=start[k],
                weights_init=np.full(n_components, 1.0 / n_components), precisions_init=np.ones(n_components),
                init_params="random", random_state=0,
            ).fit(rows[k])  # fmt: skip

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return (best_of(lambda: fit(21), 3) - best_of(lambda: fit(1), 3)) / 20


def rounds_table(console: Console) -> None:
    """Rounds of one step, and local steps within rounds of ten, by one thread and by two."""
    heads = "K, n, p, R", "scikit-learn ms", "threads", "round ms", "ratio", "aim", "step of ten ms", "ratio", "aim"
    table = Table(*heads, title="A round over all sites, against one EM iteration of scikit-learn looped over them")
    for shape, aims in ROUNDS.items():
        rows, start = draw(*shape)
        played, theirs = Rounds(rows, start), scikit_learn_iteration(rows, start)
        for threads in (1, 2):
            one, ten = played.seconds(1, threads), played.seconds(10, threads) / 10
            first = (str(shape), f"{theirs * 1e3:.2f}") if threads == 1 else ("", "")
            figures = f"{one * 1e3:.3f}", f"{theirs / one:.1f}x", f"{aims[0]}x"
            table.add_row(*first, str(threads), *figures, f"{ten * 1e3:.3f}", f"{theirs / ten:.1f}x", f"{aims[1]}x")
    console.print(table)


def many_sites(console: Console) -> None:
    """Ten thousand sites, in a process of its own so that its memory is its own."""
    rows, start = draw(*MANY)
    played = Rounds(rows, start)
    seconds = [played.seconds(1, threads, rounds=3, repeats=2) for threads in (1, 2)]
    console.print(
        f"{MANY}: {seconds[0]:.3f} s a one-step round by one thread, {seconds[1]:.3f} s by two (aim 0.1 s); peak "
        f"memory {peak_memory() / 2**10:.2f} GiB (aim 0.9 GiB)"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=["fits", "rounds", "many"], help="run one part")
    parser.add_argument("--first", nargs=5, metavar=("KIND", "K", "n", "p", "R"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.first is not None:
        kind, *shape = arguments.first
        if kind not in KINDS:
            parser.error(f"--first {kind}: one of {', '.join(KINDS)}")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            print(json.dumps(first(kind, tuple(map(int, shape)))))  # type: ignore[arg-type]
        return
    console, only = Console(width=120), arguments.only
    if only in (None, "fits"):
        fits_table(console)
    if only in (None, "rounds"):
        rounds_table(console)
    if only == "many":
        many_sites(console)
    if only is None:
        subprocess.run([sys.executable, __file__, "--only", "many"], check=True)


if __name__ == "__main__":
    main()
