"""Fuzzed replies of every task: refused, or harmless: ``python benchmarks/fuzz.py --replies 10000``.

Small whole fits of twenty sites, six of which are bad: of each of their replies to one task some numbers are replaced,
``--numbers`` on average, by some of the worst there are (:class:`fedgrem.attacks.claims.Fuzz`), again and again until
the checks of a center behind a network let it pass; with what passes the fit goes on. So it goes, fit after fit, until
so many replies to every task have been fuzzed. Printed are the replies, how many of them were refused, at once or for
what the site said later, the fits that were played with the others, those that died, those with an answer of an honest
site that is not finite, the longest, those that took more than twice the rounds without fuzz plus ten, and the largest
error of honest sites over that without fuzz.
"""

import argparse
import time
import warnings
from collections import Counter, defaultdict
from dataclasses import replace

import numpy as np

from fedgrem.algorithms.fedgrem import FedGrEM
from fedgrem.attacks.claims import Fuzz
from fedgrem.attacks.engine import Attacked, RefusedError, why_refused
from fedgrem.data.federation import Federation
from fedgrem.data.simulate import CENTERS, simulate
from fedgrem.data.units import UnitsPlan
from fedgrem.engines.inprocess import InProcess
from fedgrem.families.covariance import Tied
from fedgrem.families.gaussian import Gaussian
from fedgrem.families.regression import LinearRegression
from fedgrem.fit.fit import run
from fedgrem.fit.spec import FitSpec, StartPlan
from fedgrem.kernels.scores import parameter_errors
from fedgrem.types import count_numbers, map_arrays, named_arrays

FAMILIES = {"gmm": Gaussian(Tied(), robust_rows=True), "mor": LinearRegression("shared")}
N_SITES, BAD, DATA = 20, tuple(f"site-{k:02}" for k in (2, 5, 9, 11, 16, 19)), 5
MOST_TRIES = 40
"""Of a bad site in one exchange; if none of them passes, it is honest there."""
TASKS = {
    "gmm": (
        "census", "start", "compare", "path_step", "path_score", "weights_score", "step", "score", "held_down", "look",
        "information",
    ),
    "mor": ("joint_start",),
}  # fmt: skip


class Screened:
    """Fuzz in one task: what is refused is counted, and what passes is sent."""

    def __init__(self, task, numbers, gaps, first):
        self._numbers, self._task, self._gaps, self._first = numbers, task, gaps, first
        self.replies = self.refused = 0

    def __call__(self, replies, scene):
        """Draw until something passes."""
        if scene.ask.task != self._task:
            return replies
        fuzz = Fuzz(min(0.5, self._numbers * len(scene.bad) / count_numbers(replies.mail)))
        mail, told = map_arrays(np.copy, replies.mail), scene.n_rows if scene.number else [None] * N_SITES

        def refused(k, reply, true):
            return bool(why_refused(scene.names[k], self._task, reply, true, told[k], gaps=self._gaps))

        # What passed before may have made a site's own answers such that none of them is taken.
        own = {k: map_arrays(lambda leaf, k=k: leaf[k], replies.mail) for k in np.flatnonzero(scene.bad).tolist()}
        waiting = {k for k in own if replies.present[k] and not refused(k, own[k], own[k])}
        for attempt in range(MOST_TRIES):
            if not waiting:
                break
            drawn = fuzz(replies, scene._replace(seed=self._first + attempt)).mail
            for k in sorted(waiting):
                lie = map_arrays(lambda leaf, k=k: leaf[k], drawn)
                pairs = zip(named_arrays(lie), named_arrays(own[k]), strict=True)
                if all(np.array_equal(a, b, equal_nan=True) for (_, a), (_, b) in pairs):
                    continue  # nothing was hit
                self.replies += 1
                if refused(k, lie, own[k]):
                    self.refused += 1
                    continue
                map_arrays(lambda leaf, said, k=k: leaf.__setitem__(k, said), mail, lie)
                waiting.remove(k)
        return replies._replace(mail=mail)


class Remembered:
    """An engine that looks up what was asked before: fits begin alike, and go on differently."""

    def __init__(self, engine):
        self._engine, self._known, self.site_names = engine, {}, engine.site_names

    def ask(self, ask):
        """By everything that the sites are sent."""
        sent = b"".join(np.ascontiguousarray(leaf).tobytes() for _, leaf in named_arrays((ask.mail, ask.agreed.units)))
        key = ask.task, hash(sent), None if ask.to is None else ask.to.tobytes()
        if key not in self._known:
            if len(self._known) > 2000:
                self._known.clear()
            self._known[key] = self._engine.ask(ask)
        found = self._known[key]
        return found._replace(present=found.present.copy(), mail=map_arrays(np.copy, found.mail))


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


class Ground:
    """One data set: its honest fit, and an engine that remembers it."""

    def __init__(self, model, seed):
        self.drawn = simulate(model, n_sites=N_SITES, n_outliers=0, n_rows=40, centers=CENTERS[:2, :3], seed=seed)
        targets = self.drawn.targets and list(self.drawn.targets.values())
        self.spec = replace(plan_of(model), seed=seed)
        federation = Federation.from_sites(list(self.drawn.rows), list(self.drawn.rows.values()), targets)
        self.engine = Remembered(InProcess(federation, self.spec, threads=1))
        self.honest = run(self.spec, self.engine)
        self.error = error(self.honest, self.drawn)


def played(ground, task, numbers, first):
    """A fit with what passes; it begins again where a site is refused that cannot be missing, which is then honest."""
    bad, late = list(BAD), 0
    while True:
        attack = Screened(task, numbers, ground.spec.missing, first)
        try:
            result = run(ground.spec, Attacked(ground.engine, attack, bad, spec=ground.spec))
        except RefusedError as error:
            bad.remove(error.site)
            late += 1
        else:
            attack.replies, attack.refused = attack.replies + late, attack.refused + late
            return result, attack


def fuzzed(grounds, task, replies, numbers, seconds=np.inf):
    """Figures of a task."""
    found, died, number, begin = defaultdict(float), Counter(), 0, time.process_time()
    while found["replies"] < replies and time.process_time() - begin < seconds:
        ground = grounds[number % DATA]
        first = number * MOST_TRIES
        number += 1
        try:
            result, attack = played(ground, task, numbers, first)
        except Exception as why:  # whatever it is: a finding
            died[f"{type(why).__name__}: {why}"[:100]] += 1
        else:
            ratio = error(result, ground.drawn) / ground.error
            found["rounds"] = max(found["rounds"], result.n_rounds)
            found["late"] += result.n_rounds > 2 * ground.honest.n_rounds + 10
            found["infinite"] += not np.isfinite(ratio)
            found["worst"] = max(found["worst"], ratio)
            found["mean"] += ratio
            found["replies"] += attack.replies
            found["refused"] += attack.refused
    found["fits"], found["seconds"] = number, time.process_time() - begin
    return found, died


def main():
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replies", type=int, default=10_000, help="fuzzed ones of every task")
    parser.add_argument("--numbers", type=float, default=2.0, help="of a reply that are replaced, on average")
    parser.add_argument("--tasks", nargs="*", default=[], help="default: all")
    parser.add_argument("--seconds", type=float, default=np.inf, help="of processor time, the most for a task")
    chosen = parser.parse_args()
    warnings.simplefilter("ignore")
    print(
        f"{'task':14}{'replies':>9}{'refused':>9}{'fits':>7}{'died':>6}{'infinite':>9}{'rounds':>8}{'late':>6}", end=""
    )
    print(f"{'error mean':>12}{'worst':>8}{'seconds':>9}")
    for model, tasks in TASKS.items():
        wanted = [task for task in tasks if not chosen.tasks or task in chosen.tasks]
        grounds = [Ground(model, seed) for seed in range(DATA)] if wanted else []
        for task in wanted:
            found, died = fuzzed(grounds, task, chosen.replies, chosen.numbers, chosen.seconds)
            print(
                f"{task:14}{found['replies']:9.0f}{found['refused']:9.0f}{found['fits']:7.0f}{sum(died.values()):6}"
                f"{found['infinite']:9.0f}{found['rounds']:8.0f}{found['late']:6.0f}"
                f"{found['mean'] / max(1.0, found['fits'] - sum(died.values())):12.3f}{found['worst']:8.2f}"
                f"{found['seconds']:9.0f}",
                flush=True,
            )
            for why, times in died.items():
                print(f"  died {times} time(s): {why}")


if __name__ == "__main__":
    main()
