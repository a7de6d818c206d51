"""Where the methods of a study begin: at one search shared by all, at the paper's kind of start, or at a poor one."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from fedgrem.algorithms.local import LocalEM
from fedgrem.data.federation import Federation
from fedgrem.data.simulate import Simulation
from fedgrem.engines.inprocess import InProcess
from fedgrem.families.base import Family
from fedgrem.families.covariance import Tied
from fedgrem.families.gaussian import Gaussian
from fedgrem.families.regression import LinearRegression
from fedgrem.fit.conversation import Ask, converse
from fedgrem.fit.fit import run
from fedgrem.fit.spec import FitSpec, StartPlan
from fedgrem.fit.starts import align, find_starts, middle_of
from fedgrem.fit.tasks import StartRequest
from fedgrem.types import Params, map_arrays

POOLED_RESTARTS: dict[str, Any] = {"n_init": 10, "short": 20, "restart_rows": 4_000, "long": 5}
"""The search on pooled real rows, which no site tells of what it misses: more restarts, on some of the rows. The best
is followed on all rows when it is compared with the sites' common start."""
LEAST_VARIANCE = 1e-3
TIED: dict[str, Family] = {
    "gaussian": Gaussian(Tied(), reg_covar=LEAST_VARIANCE),
    "regression": LinearRegression("shared", reg_covar=LEAST_VARIANCE),
}
"""The models of the paper's starts: R's ``mclust`` with one full covariance for all components, and ``mixreg``."""
POOR_SD = 0.9
"""Standard deviation of each coordinate of a poor start around the centers."""


def federation_of(drawn: Simulation, n_sites: int | None = None) -> Federation:
    """The rows of the first sites of a simulation, or of all."""
    names = list(drawn.rows)[:n_sites]
    targets = None if drawn.targets is None else [drawn.targets[name] for name in names]
    return Federation.from_sites(names, [drawn.rows[name] for name in names], targets)


def search_starts(spec: FitSpec, federation: Federation) -> Params:
    """The package's own search: one start per site, aligned."""
    starts, _ = converse(find_starts(spec, federation.names), InProcess(federation, spec, threads=1))
    return starts.params


def search_pooled(spec: FitSpec, federation: Federation) -> Params:
    """The same for pooled rows, which are a federation of one site."""
    return search_starts(replace(spec, algorithm=LocalEM()), federation.merged())


class RealSearch:
    """The search on real data: one for the sites, and one for pooled rows that knows what the sites have found.

    Many pooled rows have many optima. Of the start found in them and the one that the sites have in common, the
    methods on pooled rows get the likelier, so that they do not lose for want of a start.
    """

    def __init__(self, spec: FitSpec, federation: Federation) -> None:
        self._spec, self._federation = spec, federation
        self._common: Params | None = None

    def __call__(self, pooled: bool) -> Params:
        """One start per site, or one for pooled rows."""
        if self._common is None or not pooled:
            starts = search_starts(self._spec, self._federation)
            self._common = middle_of(starts)
        if not pooled:
            return starts
        restarts = replace(self._spec.start, **POOLED_RESTARTS)
        own = search_pooled(replace(self._spec, start=restarts), self._federation)
        common: Params = map_arrays(lambda leaf: leaf[None], self._common)
        return max((self._followed(start) for start in (own, common)), key=lambda end: end[1])[0]

    def _followed(self, start: Params) -> tuple[Params, float]:
        """Where a few rounds of EM on all rows lead from a start, and the log-likelihood there."""
        spec = replace(from_starts(self._spec, start), algorithm=LocalEM(), max_rounds=self._spec.start.long)
        result = run(spec, InProcess(self._federation.merged(), spec, threads=1))
        value = float(np.nan_to_num(result.history["log_likelihood"][-1, 0], nan=-np.inf))
        return Params(result.weights, result.theta, result.noise), value


def from_starts(spec: FitSpec, params: Params, n_sites: int | None = None) -> FitSpec:
    """The same fit from these starts, labelled as they are; one start goes to each of ``n_sites`` sites."""
    if n_sites is not None:
        params = map_arrays(lambda leaf: np.broadcast_to(leaf, (n_sites, *leaf.shape[1:])), params)
    return replace(spec, given=params, start=replace(spec.start, alignment="none"))


def simulated_starts(
    kind: str, spec: FitSpec, federation: Federation, simulation: Simulation, seed: int
) -> Callable[[bool], Params]:
    """A search on a simulation that is told whether rows are pooled."""

    def search(pooled: bool) -> Params:
        if kind == "poor":
            return poor_starts(simulation, seed)
        if kind == "paper":
            return paper_starts(spec, federation.merged() if pooled else federation)
        return search_pooled(spec, federation) if pooled else search_starts(spec, federation)

    return search


def paper_starts(spec: FitSpec, federation: Federation) -> Params:
    """EM at each site alone with one tied, estimated covariance, and no exchange: the kind of start the paper used.

    The best of ``n_init`` random restarts, by the likelihood of that model, stands for the initial partitions of
    ``mclust`` and ``mixreg``.
    """
    plan = StartPlan(spec.start.n_init, short=spec.start.long, long=0)
    tied = replace(spec, family=TIED[spec.family.name], algorithm=LocalEM(), start=plan)
    request = StartRequest(np.zeros(len(federation.sites), dtype=int), None)
    found = InProcess(federation, tied, threads=1).ask(Ask("start", request)).mail.params
    return align(spec, Params(found.weights, found.theta))


def poor_starts(simulation: Simulation, seed: int) -> Params:
    """One start for all sites, far from the truth: the honest sites' mean truth plus noise, with even weights."""
    truth = simulation.theta[simulation.honest].mean(axis=0)
    n_sites, n_components, _ = simulation.theta.shape
    common = truth + POOR_SD * np.random.default_rng([seed, 1]).normal(size=truth.shape)
    weights = np.full((n_sites, n_components), 1.0 / n_components)
    return Params(weights, np.broadcast_to(common, simulation.theta.shape))
