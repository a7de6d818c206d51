"""What secure sums cost: ``python benchmarks/secure_sums.py``, and ``--network 3 10`` over mutual TLS.

The paper's Gaussians (five components in ten columns, h = 0.5) at 3, 10 and 30 sites of 150 rows in one process, masks
and all: passes a round, exchanges, bytes that a site sends and is sent in a round, seconds, and how far the center is
from that of the same fit without, from the same start, after 60 rounds of both.
"""

import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from common import Given, asked, some_of
from fedgrem import FederatedGaussianMixture
from fedgrem.algorithms.center_rules import Huber
from fedgrem.algorithms.fedgrem import FedGrEM
from fedgrem.cli.sites_demo import coordinating, free_port, running
from fedgrem.data.simulate import simulate
from fedgrem.engines.inprocess import InProcess
from fedgrem.estimators.network import spec_for
from fedgrem.families.covariance import STRUCTURES
from fedgrem.families.gaussian import Gaussian
from fedgrem.fit.fit import run
from fedgrem.fit.spec import FitSpec, StartPlan
from fedgrem.studies.starts import federation_of
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
    data = federation_of(simulated)
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


def over_network(n_sites, rounds, folder):
    """Both fits over mutual TLS: median seconds of an exchange, and bytes of a site's round."""
    import polars as pl

    from fedgrem.engines.flare.kit import init_study
    from fedgrem.engines.flare.operate import Fit, begin, run_folder
    from fedgrem.engines.remote.journal import JOURNAL, read_journal
    from fedgrem.engines.remote.roster import Rules

    simulated = simulate("gmm", h=0.5, n_sites=n_sites, seed=1)
    files = {name: folder / f"{name}.csv" for name in simulated.rows}
    for name, rows in simulated.rows.items():
        pl.DataFrame(rows, schema=[f"x{j}" for j in range(rows.shape[1])]).write_csv(files[name])
    study = init_study(folder / "study", tuple(files), "localhost", free_port())
    options = {"n_components": 5, "covariance_type": "identity", "penalty": 2.0, "random_state": 0}
    plain, secure = (
        FederatedGaussianMixture(**options, max_rounds=rounds, tol=0.0, standard_errors=False, secure_sums=sums)
        for sums in (False, True)
    )
    spent = {}
    with running(study, files), coordinating(study) as talk:
        for name, model in (("without", plain), ("with", secure)):
            run_name = begin(study, Fit(spec_for(model), list(files), Rules(min_sites=n_sites, deadline=900.0)))
            finished = talk.carry_out(run_name)
            records = [one.about for one in read_journal(run_folder(study, run_name) / JOURNAL)][1:]
            traffic = [one["traffic"] for one in records if one["task"] in ("step", "sum_round", "sum_pass")]
            spent[name] = statistics.median(one["seconds"] for one in traffic)
            sent, received = (sum(one[way] for one in traffic) / rounds / n_sites for way in ("sent", "received"))
            print(
                f"{n_sites:3} sites over TLS, {name:7} secure sums: {len(traffic) / rounds:.1f} exchanges a round "
                f"of {spent[name]:.3f} s each, so {len(traffic) / rounds * spent[name]:.3f} s a round; "
                f"{received:,.0f} bytes from a site and {sent:,.0f} to it a round; {len(records)} exchanges in all"
            )
    here = secure.fit(simulated.rows)
    apart = np.abs(finished.result.center - here.center_).max()
    print(f"    an exchange takes {spent['with'] / spent['without']:.2f} times as long; the center is {apart:.1e} off")


if __name__ == "__main__":
    arguments = asked(
        __doc__, sites=[3, 10, 30], covariance=some_of(STRUCTURES, ["identity", "tied"]),
        network=Given([], "instead: sites of a study", kind=int), rounds=Given(30, "with --network"),
    )  # fmt: skip
    for n_sites in arguments.network:
        with tempfile.TemporaryDirectory() as folder:
            over_network(n_sites, arguments.rounds, Path(folder))
    for covariance in [] if arguments.network else arguments.covariance:
        for n_sites in arguments.sites:
            measure(n_sites, covariance)
