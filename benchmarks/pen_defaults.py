"""Pen digits with defaults only: `python benchmarks/pen_defaults.py --data FOLDER`.

Writers are sites. For every number of writers and of training rows per writer, held-out mis-clustering (percent, mean
over writers and seeds, best relabelling per writer) of the default fit, of one whose penalty is chosen by held-out
rows, of fits with fixed penalties and the paper's central problem, and of EM at every writer alone; all in the
package's defaults otherwise. With ``--out FILE`` what is done is kept, and the same command goes on from there.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from common import Given, asked
from fedgrem import FederatedGaussianMixture
from fedgrem.algorithms.fedgrem import FedGrEM
from fedgrem.kernels.scores import misclustering_rate
from fedgrem.studies.processes import environment, in_processes, quiet
from fedgrem.studies.runner import read_lines
from fedgrem.studies.splits import DATA, SiteRows, by_site, split_and_contaminate

FIXED = (0.0, 0.25, 0.5, 0.75, 1.0, 1.4, 2.0, 2.8, 4.0, 8.0)


class Job(NamedTuple):
    """One line of the file to keep."""

    n_writers: int
    n_train: int
    seed: int
    fixed: tuple[float, ...]


def play(job: Job) -> dict[str, float]:
    """Mis-clustering by name of the fit; "C" is the penalty that was chosen."""
    data = by_site("pen", 0)
    chosen = np.random.default_rng([job.seed, 7]).permutation(len(data.rows))[: job.n_writers]
    split = split_and_contaminate(
        SiteRows(*([part[k] for k in chosen] for part in data)), job.seed, n_train=job.n_train
    )
    names = [f"writer-{k:02d}" for k in chosen]
    trained, tested = (dict(zip(names, rows, strict=True)) for rows in (split.trained, split.tested))
    found: dict[str, float] = {}
    papers = FedGrEM("huber", penalty_rows="site")
    fits = {
        "auto": {},
        "chosen C": {"algorithm": FedGrEM(center="redescending")},
        "local-em": {"algorithm": "local-em"},
    }
    fits |= {f"C={c:g}": {"penalty": c, "algorithm": papers} for c in job.fixed}
    with quiet():
        for name, options in fits.items():
            # Standard errors, which take as long as the rest, have no part in where a fit ends.
            model = FederatedGaussianMixture(
                n_components=10, standard_errors=False, random_state=job.seed, **options
            ).fit(trained)
            groups = model.predict(tested)
            rates = [
                misclustering_rate(labels, groups[writer])
                for writer, labels in zip(names, split.test_labels, strict=True)
            ]
            found[name] = 100.0 * float(np.mean(rates))
            if name == "chosen C":
                found["C"] = model.penalty_
    return found


def told(jobs: list[Job], workers: int, out: Path | None) -> Iterator[tuple[Job, dict[str, float]]]:
    """What is kept of these jobs, then the others as they finish."""
    kept = [] if out is None else read_lines(out)
    done = {Job(*job[:3], tuple(job[3])): found for job, found in kept}
    yield from ((job, done[job]) for job in jobs if job in done)
    for job, found in in_processes(play, [job for job in jobs if job not in done], workers):
        if out is not None:
            with out.open("a", encoding="utf-8") as file:
                file.write(json.dumps([job, found]) + "\n")
        yield job, found


def line(n_writers: int, n_train: int, found: list[dict[str, float]]) -> str:
    """Means over the seeds, and how far the default is from the best fixed penalty and from fitting alone."""
    mean = {name: np.mean([one[name] for one in found]) for name in found[0]}
    fixed = {name: value for name, value in mean.items() if name.startswith("C=")}

    def difference(other: str) -> str:
        away = np.array([one["auto"] - one[other] for one in found])
        error = away.std(ddof=1) / np.sqrt(len(away)) if len(away) > 1 else np.nan
        return f"{away.mean():+.2f} ({error:.2f})"

    best = f", {difference(min(fixed, key=fixed.__getitem__))} on the best fixed one" if fixed else ""
    means = ", ".join(f"{name} {value:.2f}" for name, value in mean.items())
    return (
        f"{n_writers} writers, {n_train} rows, {len(found)} seeds: {means}; default {difference('local-em')} on "
        f"fitting alone{best}"
    )


def main() -> None:
    """Print a line for every number of writers and rows."""
    arguments = asked(
        __doc__, data=Given(None, "folder with the data; downloaded without it"), writers=[44, 20, 10],
        rows=[200, 100, 60, 40], seeds=5, fixed=list(FIXED), workers=os.cpu_count(),
        out=Given(None, "file to keep what is done in, and to go on from", kind=Path),
    )  # fmt: skip
    settings = [(n_writers, n_train) for n_writers in arguments.writers for n_train in arguments.rows]
    seeds, fixed = range(arguments.seeds), tuple(arguments.fixed)
    jobs = [Job(*setting, seed, fixed) for setting in settings for seed in seeds]
    found: dict[tuple[int, int], list[dict[str, float]]] = {setting: [] for setting in settings}
    with environment({DATA: arguments.data} if arguments.data else {}):
        for job, one in told(jobs, arguments.workers, arguments.out):
            mine = found[job.n_writers, job.n_train]
            mine.append(one)
            if len(mine) == len(seeds):
                print(line(job.n_writers, job.n_train, mine), flush=True)


if __name__ == "__main__":
    main()
