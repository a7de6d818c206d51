"""Speed, as ratios measured in one run: ``make bench``.

One FedGrEM round over all sites against one EM iteration of scikit-learn's spherical GaussianMixture looped over the
same sites; a roofline of NumPy's bare matrix products and one ``exp`` of the same sizes; a full fit; 10,000 sites.
"""

import argparse
import resource
import subprocess
import sys
import time
import warnings

import jax
import jax.numpy as jnp
import numpy as np
from fedgrem.algorithms.rounds import LoopState
from fedgrem.algorithms.start import StartPlan
from fedgrem.kernels.precision import precision
from rich.console import Console
from rich.table import Table
from sklearn.mixture import GaussianMixture

from fedgrem import FederatedGaussianMixture
from fedgrem.algorithms.fedgrem import FedGrEM
from fedgrem.data.federation import Federation
from fedgrem.engines import InProcess
from fedgrem.engines.inprocess import BLOCK
from fedgrem.families import Gaussian
from fedgrem.types import Params

SHAPES = [(10, 150, 10, 5), (44, 200, 16, 10), (100, 560, 10, 10)]
MANY = (10_000, 200, 16, 10)


def draw(n_sites, n_rows, n_features, n_components, seed=0):
    """Well-separated Gaussian sites around common centers, and a start near the truth."""
    generator = np.random.default_rng(seed)
    centers = 2.0 * generator.normal(size=(n_components, n_features))
    means = centers + 0.3 * generator.normal(size=(n_sites, n_components, n_features))
    labels = generator.integers(n_components, size=(n_sites, n_rows))
    rows = np.take_along_axis(means, labels[:, :, None], 1) + generator.normal(size=(n_sites, n_rows, n_features))
    return rows, means + 0.3 * generator.normal(size=means.shape)


def best_of(function, repeats=5):
    """Shortest of a few runs, in seconds: the others were disturbed."""
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        function()
        times.append(time.perf_counter() - begin)
    return min(times)


def blocks_of_rounds(rows, start):
    """A function that plays one block of rounds, compiled, and the seconds its compilation took.

    In the precision of ``rows``.
    """
    n_sites, n_components = start.shape[:2]
    federation = Federation.from_sites([f"site-{k}" for k in range(n_sites)], list(rows))
    algorithm = FedGrEM(Gaussian())
    engine = InProcess(algorithm, federation, StartPlan(n_components), dtype=rows.dtype.type)
    even = np.full((n_sites, n_components), 1.0 / n_components, dtype=rows.dtype)
    params = Params(jnp.asarray(even), jnp.asarray(start))
    central = algorithm.central_start(params, jnp.full(n_sites, float(rows.shape[1]), dtype=rows.dtype))
    zero = jnp.asarray(0)
    state = LoopState(central, zero, zero, jnp.asarray(False))

    def play():
        jax.block_until_ready(engine.play(state, 0.0, BLOCK))

    begin = time.perf_counter()
    play()
    return play, time.perf_counter() - begin


def scikit_learn_iteration(rows, start):
    """Seconds of one EM iteration of scikit-learn, looped over the sites: a long fit less a short one."""
    n_components = start.shape[1]

    def fit(iterations):
        for k in range(len(rows)):
            GaussianMixture(
                n_components, covariance_type="spherical", tol=0.0, max_iter=iterations, means_init=start[k],
                weights_init=np.full(n_components, 1.0 / n_components, dtype=rows.dtype),
                precisions_init=np.ones(n_components, dtype=rows.dtype),
                init_params="random", random_state=0,
            ).fit(rows[k])  # fmt: skip

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return (best_of(lambda: fit(21), 3) - best_of(lambda: fit(1), 3)) / 20


def roofline(rows, start):
    """Seconds of the two matrix products and the one ``exp`` that no E-step can do without, in NumPy."""
    by_columns = np.ascontiguousarray(rows.transpose(0, 2, 1))
    scores = start @ by_columns

    def bare():
        np.exp(start @ by_columns - scores.max())
        scores @ rows

    return best_of(bare, 10)


def rounds_table(console):
    """The three shapes of the design, in both precisions; scikit-learn and the roofline compute in the same one."""
    title = "One round over all sites, against one EM iteration of scikit-learn looped over them"
    heads = "K, n, p, R", "dtype", "round ms", "scikit-learn ms", "ratio", "roofline ms", "x roofline", "first block s"
    table = Table(*heads, title=title)
    for shape in SHAPES:
        for dtype in ("float64", "float32"):
            rows, start = (array.astype(dtype) for array in draw(*shape))
            with precision(dtype):
                play, first = blocks_of_rounds(rows, start)
                ours = best_of(play, 9) / BLOCK
            theirs, bare = scikit_learn_iteration(rows, start), roofline(rows, start)
            figures = f"{ours * 1e3:.3f}", f"{theirs * 1e3:.2f}", f"{theirs / ours:.0f}x", f"{bare * 1e3:.3f}"
            table.add_row(str(shape), dtype, *figures, f"{ours / bare:.2f}", f"{first:.1f}")
    console.print(table)


def full_fit(console):
    """A fit of exactly 1000 rounds at the second shape, after one that compiled it; and that nothing compiled again."""
    rows, start = draw(*SHAPES[1])
    sites = {f"site-{k}": site for k, site in enumerate(rows)}
    options = {"n_components": SHAPES[1][3], "means_init": start, "align": False, "tol": 0.0}
    options["covariance"] = "identity"
    jax.clear_caches()
    begin = time.perf_counter()
    FederatedGaussianMixture(**options, max_rounds=10).fit(sites)
    first = time.perf_counter() - begin
    compiled = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda name, *_, **__: compiled.append(name) if name == "/jax/core/compile/backend_compile_duration" else None
    )
    begin = time.perf_counter()
    FederatedGaussianMixture(**options).fit(sites)
    seconds = time.perf_counter() - begin
    console.print(
        f"1000 rounds at {SHAPES[1]}: {seconds:.2f} s ({first:.1f} s for the first fit of this shape, compilation "
        f"included; {len(compiled)} programs compiled after it)"
    )


def many_sites(console, dtype):
    """Ten thousand sites, in a process of its own so that its memory is its own."""
    rows, start = (array.astype(dtype) for array in draw(*MANY))
    with precision(dtype):
        play, first = blocks_of_rounds(rows, start)
        seconds = best_of(play, 2) / BLOCK
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    console.print(f"{MANY}, {dtype}: {seconds:.3f} s a round, peak memory {peak:.2f} GiB (first block {first:.0f} s)")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=["rounds", "fit", "many"], help="run one part")
    parser.add_argument("--dtype", choices=["float64", "float32"], default="float64", help="of the part 'many'")
    arguments = parser.parse_args()
    only = arguments.only
    console = Console(width=120)
    if only in (None, "rounds"):
        rounds_table(console)
    if only in (None, "fit"):
        full_fit(console)
    if only == "many":
        many_sites(console, arguments.dtype)
    if only is None:
        for dtype in ("float64", "float32"):
            subprocess.run([sys.executable, __file__, "--only", "many", "--dtype", dtype], check=True)


if __name__ == "__main__":
    main()
