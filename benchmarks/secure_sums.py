"""What secure sums cost: ``python benchmarks/secure_sums.py``.

The paper's Gaussians (five components in ten columns, h = 0.5) at 3, 10 and 30 sites of 150 rows in one process, masks
and all: passes a round, exchanges, bytes that a site sends and is sent in a round, seconds, and how far the center is
from that of the same fit without, from the same start, after 60 rounds of both.
"""

import argparse
import time
from dataclasses import replace

import numpy as np

from fedgrem.algorithms.center_rules import Huber
from fedgrem.algorithms.fedgrem import FedGrEM
from fedgrem.data.federation import Federation
from fedgrem.data.simulate import simulate
from fedgrem.engines.inprocess import InProcess
from fedgrem.families.covariance import STRUCTURES
from fedgrem.families.gaussian import Gaussian
from fedgrem.fit.fit import run
from fedgrem.fit.spec import FitSpec, StartPlan
from fedgrem.types import Params, named_arrays


class Counting:
    """An engine that counts exchanges, bytes and seconds by task."""

    def __init__(self, engine):
        self.engine, self.told = engine, []

    @property
    def site_names(self):
        """Of the engine."""
        return self.engine.site_names

    def ask(self, ask):
        """Let it ask, and count."""
        begin = time.perf_counter()
        replies = self.engine.ask(ask)
        sent, received = (
            sum(np.asarray(leaf[0]).nbytes for _, leaf in named_arrays(mail)) if mail else 0
            for mail in (ask.mail, replies.mail)
        )
        self.told.append((ask.task, sent, received, time.perf_counter() - begin))
        return replies


def measure(n_sites, covariance):
    simulated = simulate("gmm", h=0.5, n_sites=n_sites, seed=1)
    names = list(simulated.rows)
    data = Federation.from_sites(names, [simulated.rows[name] for name in names])
    algorithm = FedGrEM(center=Huber(), memory=0, pool_weights=False)
    spec = FitSpec(
        Gaussian(STRUCTURES[covariance]()), algorithm, 5, 2.0, fallback=False, look=False, standard_errors=False,
        secure_sums=True,
    )  # fmt: skip
    counting = Counting(InProcess(data, spec))
    begin = time.perf_counter()
    result = run(spec, counting)
    seconds = time.perf_counter() - begin
    rounds = [one for one in counting.told if one[0] in ("sum_round", "sum_pass")]
    sent, received, spent = (sum(one[j] for one in rounds) / result.n_rounds for j in (1, 2, 3))
    # From the center found, both ways: the same start, the same rounds.
    noise = None if result.center_noise is None else np.repeat(result.center_noise[None], n_sites, axis=0)
    given = Params(np.full((n_sites, 5), 0.2), np.repeat(result.center[None] + 0.1, n_sites, axis=0), noise)
    again = replace(spec, given=given, start=StartPlan(alignment="none"), tol=0.0, max_rounds=60)
    plain = replace(again, secure_sums=False)
    begin = time.perf_counter()
    expected = run(plain, InProcess(data, plain))
    plainly = (time.perf_counter() - begin) / expected.n_rounds
    apart = np.abs(run(again, InProcess(data, again)).center - expected.center).max()
    passes = result.history["passes"]
    print(
        f"{n_sites:3} sites, {covariance:8}: {result.n_rounds:3} rounds, passes {passes[0]:.0f} in the first, "
        f"{passes.max():.0f} at most, {passes[-1]:.0f} in the last; {len(counting.told)} exchanges in all; "
        f"{received:,.0f} bytes from a site and {sent:,.0f} to it a round; {spent:.3f} s a round, "
        f"{plainly:.3f} s without; {seconds:.1f} s in all; the center is {apart:.1e} from that without"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sites", type=int, nargs="+", default=[3, 10, 30])
    parser.add_argument("--covariance", nargs="+", default=["identity", "tied"], choices=list(STRUCTURES))
    options = parser.parse_args()
    for covariance in options.covariance:
        for n_sites in options.sites:
            measure(n_sites, covariance)
