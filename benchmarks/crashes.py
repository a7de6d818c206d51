"""kill -9 of everything at every exchange of a fit: rows of the table that ``python benchmarks/faults.py`` prints.

A process holds the center and three sites, each with its log, ledger and secret on disk as in a kit, and function calls
for a network. It kills itself in a given exchange before a site has answered, after one has, or after all have and
before the center has noted it. Another process goes on from the files.
"""

import os
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedgrem import FederatedGaussianMixture, Privacy
from fedgrem.engines.remote.engine import Answer
from fedgrem.engines.remote.guard import Guard
from fedgrem.engines.remote.log import Log, check_log, read_log
from fedgrem.engines.remote.result import read_result
from fedgrem.engines.remote.roster import Rules
from fedgrem.engines.remote.run import fit_over_network
from fedgrem.engines.remote.site import Settings, SiteAtWork
from fedgrem.engines.remote.sums import secret_in, secret_of_fit
from fedgrem.engines.remote.wire import Fields
from fedgrem.estimators.network import spec_for
from fedgrem.fit.spec import FitSpec

NAMES, COLUMNS, RUN = ("east", "north", "south"), ("x0", "x1"), "run-1"
SMALL = {"n_components": 2, "covariance_type": "identity", "n_init": 2, "max_rounds": 4, "tol": 0.0, "random_state": 0}
FITS = {
    "an ordinary fit": FederatedGaussianMixture(**SMALL),
    "a fit of secure sums": FederatedGaussianMixture(**SMALL, penalty=2.0, secure_sums=True),
    "a private fit": FederatedGaussianMixture(
        **{name: SMALL[name] for name in ("n_components", "covariance_type", "random_state")},
        privacy=Privacy(4.0, 1e-6, (-10.0, 10.0)),
    ),
}


class Wire:
    """Three sites behind their guards, as they are on disk; everything goes down once so many answered an exchange."""

    def __init__(self, folder: Path, spec: FitSpec, exchange: int = 0, answers: int = 0) -> None:
        self._guards = {name: guard_of(folder / name, name, spec) for name in NAMES}
        self._exchange, self._at, self._lock = exchange, answers, threading.Lock()
        self._answered: Counter[int] = Counter()

    def ask(self, site: str, task: str, exchange: int, order: Fields, timeout: float) -> Answer:
        """The site's answer, if there still is anybody."""
        self._go_down(exchange)
        reply = self._guards[site].answer(task, order, exchange=exchange)
        with self._lock:
            self._answered[exchange] += 1
        self._go_down(exchange)
        return Answer(reply, exchange)

    def _go_down(self, exchange: int) -> None:
        with self._lock:
            if exchange == self._exchange and self._answered[exchange] >= self._at:
                os.kill(os.getpid(), signal.SIGKILL)


def guard_of(folder: Path, name: str, spec: FitSpec) -> Guard:
    """A site's guard, as its worker makes it from the kit."""
    if not folder.exists():
        folder.mkdir()
        generator = np.random.default_rng(sum(map(ord, name)))
        rows = generator.normal(size=(60, 2)) + 6.0 * (np.arange(60) % 2)[:, None] - 3.0
        np.savetxt(folder / "rows.csv", rows, delimiter=",", header=",".join(COLUMNS), comments="")
    budget: dict[str, Any] = {} if spec.ranges is None else {"epsilon": 4.0, "ledger": str(folder / "budget.jsonl")}
    secret = secret_of_fit(secret_in(folder), RUN) if spec.secure_sums else None
    site = SiteAtWork(name, Settings(str(folder / "rows.csv"), COLUMNS, **budget), spec, secret=secret)
    return Guard(site, Log(folder / "log"), lambda: read_log(folder / "log"), run=RUN)


class Row(NamedTuple):
    """What came of all kills of one kind of fit."""

    title: str
    outcome: str
    said: str
    lost: str
    slowest: float
    """Seconds from a new process to the model."""


def killed_everywhere(title: str) -> Row:
    """Kill everything at every exchange of a fit, three times each, and go on."""
    spec = spec_for(FITS[title], COLUMNS)
    with tempfile.TemporaryDirectory(prefix="fedgrem-crashes-") as name:
        folder = Path(name)
        expected = _finished(folder / "whole", spec)
        kills = same = 0
        lost, slowest = set(), 0.0
        for exchange in range(1, expected.cost["exchanges"] + 1):
            for answers in (0, 1, len(NAMES)):
                here = folder / f"{exchange}-{answers}"
                if _forked(lambda here=here, at=(exchange, answers): _play(here, spec, *at)) != -signal.SIGKILL:
                    raise SystemExit(f"{title}: exchange {exchange} was not killed after {answers} answers.")
                kills, begun = kills + 1, time.monotonic()
                result = _finished(here, spec)
                slowest = max(slowest, time.monotonic() - begun)
                if spec.ranges is not None:  # noise is new in every fit: what is to be seen is what was paid
                    same += all(_paid_once(here / site) for site in NAMES)
                else:
                    same += all(np.array_equal(getattr(result, n), getattr(expected, n), equal_nan=True)
                                for n in ("theta", "weights", "center"))  # fmt: skip
                if result.cost["exchanges"] != expected.cost["exchanges"]:
                    lost.add(f"exchanges of kill {exchange}")
                lost |= {f"log of {site}" for site in NAMES if check_log(here / site / "log").broken}
    what = "the same model, to the bit" if spec.ranges is None else "a model, paid for once, no order answered twice"
    told = f"kill -9 of everything, at each of {expected.cost['exchanges']} exchanges of {title}"
    return Row(told, f"{what}: {same} of {kills}", "nothing", ", ".join(sorted(lost)) or "nothing", slowest)


def _paid_once(site: Path) -> bool:
    """Whether a private site was charged for one fit, and answered every order of it once."""
    records = list(read_log(site / "log"))
    answered = [record["task"] for record in records if record["kind"] == "reply"]
    charges = (site / "budget.jsonl").read_text().splitlines()
    return len(charges) == 1 and len(answered) == 8


def _play(folder: Path, spec: FitSpec, exchange: int = 0, answers: int = 0) -> None:
    folder.mkdir(exist_ok=True)
    rules = Rules(min_sites=len(NAMES), deadline=5.0)
    fit_over_network(spec, list(NAMES), Wire(folder, spec, exchange, answers), folder / "run", rules)


def _finished(folder: Path, spec: FitSpec) -> Any:
    if (code := _forked(lambda: _play(folder, spec))) != 0:
        raise SystemExit(f"the fit in {folder} did not end well ({code}).")
    return read_result(folder / "run").result


def _forked(work: Callable[[], None]) -> int:
    """Do it in a process of its own; how that ended, as a code or minus a signal."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


if __name__ == "__main__":
    for name in sys.argv[1:] or FITS:
        print(killed_everywhere(name))
