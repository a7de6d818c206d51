"""Fuzzed replies of every task: refused, or harmless: ``python benchmarks/fuzz.py --replies 10000``.

Small whole fits of ten sites, three of which are bad: one number in ``--share`` of each of their replies to one task is
replaced by one of the worst there are (:class:`fedgrem.attacks.claims.Fuzz`), fit after fit, until so many replies to
every task have been fuzzed. Printed are how many sites were refused, the fits that died, those with an answer of an
honest site that is not finite, the longest, and the largest error of honest sites over that without fuzz.
"""

import time
import warnings
from collections import Counter, defaultdict
from dataclasses import replace

import numpy as np

from common import Given, asked
from fedgrem.algorithms.fedgrem import FedGrEM
from fedgrem.attacks import Only, fit_attacked
from fedgrem.attacks.claims import Fuzz
from fedgrem.data.simulate import CENTERS, simulate
from fedgrem.data.units import UnitsPlan
from fedgrem.families.covariance import Tied
from fedgrem.families.gaussian import Gaussian
from fedgrem.families.regression import LinearRegression
from fedgrem.fit.spec import FitSpec, StartPlan
from fedgrem.kernels.scores import parameter_errors
from fedgrem.studies.starts import federation_of

FAMILIES = {"gmm": Gaussian(Tied(), robust_rows=True), "mor": LinearRegression("shared")}
N_SITES, BAD = 10, ("site-02", "site-05", "site-09")
TASKS = {
    "gmm": (
        "census", "start", "compare", "path_step", "path_score", "weights_score", "step", "score", "held_down", "look",
        "information",
    ),
    "mor": ("joint_start",),
}  # fmt: skip


class Counted:
    """Fuzz in one task, and how many replies it has rewritten."""

    def __init__(self, task, share):
        self._attack, self._task, self.count = Only(Fuzz(share), (task,)), task, 0

    def __call__(self, replies, scene):
        """Rewrite and count."""
        if scene.ask.task == self._task:
            self.count += int((scene.bad & replies.present).sum())
        return self._attack(replies, scene)


def plan_of(model):
    """A fit of all phases, of little work."""
    start = StartPlan(n_init=2, short=5, long=20, joint_starts=2)
    spec = FitSpec(FAMILIES[model], FedGrEM(), 2, start=start, max_rounds=60, score=True, standard_errors=True)
    return replace(spec, units=UnitsPlan(standardize=True, move=model == "gmm"))


def error(result, drawn):
    """The largest of honest sites; infinite where one has no finite answer."""
    names = list(drawn.rows)
    place = [k for k, name in enumerate(result.site_names) if name not in BAD]
    true = [names.index(result.site_names[k]) for k in place]
    theta = result.theta[place]
    if result.scale is not None:
        scale, location = result.scale, result.location
        if drawn.targets is None:
            theta = theta * scale + location
        else:
            theta = theta * scale[-1] / scale[:-1]
    if not (np.isfinite(theta).all() and np.isfinite(result.weights[place]).all()):
        return np.inf
    return parameter_errors(result.weights[place], theta, drawn.weights[true], drawn.theta[true])[1].max()


def fuzzed(model, task, replies, share, seconds=np.inf):
    """Figures of a task."""
    spec, found, seed, begin = plan_of(model), defaultdict(float), 0, time.perf_counter()
    died = Counter()
    while found["replies"] < replies and time.perf_counter() - begin < seconds:
        drawn = simulate(model, n_sites=N_SITES, n_outliers=0, n_rows=40, centers=CENTERS[:2, :3], seed=seed % 20)
        federation = federation_of(drawn)
        attack = Counted(task, share)
        found["fits"] += 1
        try:
            result = fit_attacked(replace(spec, seed=seed), federation, attack, BAD, seed=seed)
        except Exception as why:  # whatever it is: a finding
            died[f"{type(why).__name__}: {why}"[:100]] += 1
        else:
            honest = fit_attacked(replace(spec, seed=seed), federation, Counted("", share), BAD, seed=seed)
            found["refused"] += N_SITES - len(result.site_names)
            found["rounds"] = max(found["rounds"], result.n_rounds)
            found["late"] += result.n_rounds > 2 * honest.n_rounds + 10
            ratio = error(result, drawn) / error(honest, drawn)
            found["infinite"] += not np.isfinite(ratio)
            found["worst"] = max(found["worst"], ratio)
            found["mean"] += ratio
        found["replies"] += attack.count
        seed += 1
    return found, died


def main():
    """Print a table."""
    chosen = asked(
        __doc__, replies=Given(10_000, "fuzzed ones of every task"), share=Given(0.05, "of the numbers of a reply"),
        tasks=Given([], "default: all"), seconds=Given(np.inf, "the most for a task"),
    )  # fmt: skip
    warnings.simplefilter("ignore")
    print(
        f"{'task':14}{'replies':>9}{'fits':>7}{'refused':>9}{'died':>6}{'infinite':>9}{'rounds':>8}{'late':>6}", end=""
    )
    print(f"{'error mean':>12}{'worst':>8}")
    for model, tasks in TASKS.items():
        for task in tasks:
            if chosen.tasks and task not in chosen.tasks:
                continue
            found, died = fuzzed(model, task, chosen.replies, chosen.share, chosen.seconds)
            print(
                f"{task:14}{found['replies']:9.0f}{found['fits']:7.0f}{found['refused']:9.0f}{sum(died.values()):6}"
                f"{found['infinite']:9.0f}{found['rounds']:8.0f}{found['late']:6.0f}"
                f"{found['mean'] / max(1.0, found['fits'] - sum(died.values())):12.3f}{found['worst']:8.2f}",
                flush=True,
            )
            for why, times in died.items():
                print(f"  died {times} time(s): {why}")


if __name__ == "__main__":
    main()
