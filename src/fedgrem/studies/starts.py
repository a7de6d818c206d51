"""Where the methods of a study begin: at one search shared by all, at the paper's kind of start, or at a poor one."""

from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedgrem.algorithms.align import align, derive_key, middle_of
from fedgrem.algorithms.plan import Plan
from fedgrem.algorithms.pooled import start_plan_for
from fedgrem.algorithms.registry import build_algorithm
from fedgrem.algorithms.rounds import run
from fedgrem.algorithms.search import find_starts
from fedgrem.algorithms.start import StartPlan
from fedgrem.data.federation import Federation
from fedgrem.data.simulate import Simulation
from fedgrem.engines.inprocess import InProcess
from fedgrem.families.base import Family
from fedgrem.families.regression import LinearRegression
from fedgrem.kernels.randomness import split_key
from fedgrem.kernels.responsibilities import posterior
from fedgrem.kernels.triangular import cholesky, solve_lower
from fedgrem.types import Array, Params, SiteData

POOLED_RESTARTS: dict[str, Any] = {"n_init": 10, "short": 20, "restart_rows": 4_000, "long": 5}
"""The search on pooled real rows, which no site tells of what it misses: more restarts, on some of the rows. The best
is followed on all rows when it is compared with the sites' common start."""
LEAST_VARIANCE = 1e-3
POOR_SD = 0.9
"""Standard deviation of each coordinate of a poor start around the centers."""


def search_starts(family: Family, plan: Plan, engine: InProcess, pooled: bool) -> Params:
    """The package's own search: one start per site, or one for pooled rows."""
    if not pooled:
        return find_starts(engine.serving(build_algorithm("fedgrem", family)), plan, family).params
    alone = build_algorithm("local-em", family)
    plan = plan._replace(start=start_plan_for(build_algorithm("pooled-em", family), plan.start))
    return find_starts(engine.pot_as_site(alone, plan.start), plan, family).params


def for_every_site(params: Params, n_sites: int) -> Params:
    """One start as each of K sites gets it; one start per site as it is."""
    repeated: Params = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (n_sites, *leaf.shape[1:])), params)
    return repeated


class RealSearch:
    """The search on real data: one for the sites, and one for pooled rows that knows what the sites have found.

    Many pooled rows have many optima. Of the start found in them and the one that the sites have in common, the
    methods on pooled rows get the likelier, so that they do not lose for want of a start.
    """

    def __init__(self, family: Family, federation: Federation, plan: Plan, dtype: type) -> None:
        self._family, self._federation, self._plan, self._dtype = family, federation, plan, dtype
        self._common: Params | None = None

    def __call__(self, engine: InProcess, pooled: bool) -> Params:
        """One start per site, or one for pooled rows."""
        if not pooled:
            starts = search_starts(self._family, self._plan, engine, pooled=False)
            self._common = middle_of(starts)
            return starts
        if self._common is None:
            ours = build_algorithm("fedgrem", self._family)
            self(InProcess(ours, self._federation, self._plan.start, dtype=self._dtype), pooled=False)
        restarts = self._plan._replace(start=replace(self._plan.start, **POOLED_RESTARTS))
        own = search_starts(self._family, restarts, engine, pooled=True)
        common: Params = jax.tree.map(lambda leaf: leaf[None], self._common)
        return max((self._followed(engine, start) for start in (own, common)), key=lambda end: end[1])[0]

    def _followed(self, engine: InProcess, start: Params) -> tuple[Params, float]:
        """Where a few rounds on all rows lead from a start, and the log-likelihood there."""
        given = for_every_site(start, len(self._federation.sites))
        plan = self._plan._replace(given=given, align=False, max_rounds=self._plan.start.long)
        algorithm = build_algorithm("pooled-em", self._family)
        result = run(algorithm, engine.serving(algorithm), plan)
        spread = None if result.spread is None else jnp.asarray(result.spread[:1])
        end = Params(jnp.asarray(result.weights[:1]), jnp.asarray(result.theta[:1]), spread)
        return end, float(np.nan_to_num(result.history["log_likelihood"][-1, 0], nan=-np.inf))


def paper_starts(family: Family, federation: Federation, plan: StartPlan, seed: int) -> Params:
    """EM at each site alone with one tied, estimated covariance, and no exchange: the kind of start the paper used.

    The paper ran R's ``mclust`` (a full covariance common to all components) and ``mixreg`` (a common noise variance).
    Here the best of ``plan.n_init`` random restarts, by the likelihood of that model, stands for their own starts.
    """
    keys = jnp.asarray(np.stack([derive_key(seed, name, "paper start") for name in federation.names]))
    buckets, order = federation.stacked()
    first, found = 0, []
    for bucket in buckets:
        last = first + bucket.row_weight.shape[0]
        found.append(_tied_at_every_site(bucket, keys[order[first:last]], family=family, plan=plan))
        first = last
    back = jnp.argsort(order)
    params: Params = jax.tree.map(lambda *leaves: jnp.concatenate(leaves)[back], *found)
    return align(family, params, plan, seed)


@partial(jax.jit, static_argnames=("family", "plan"))
def _tied_at_every_site(bucket: SiteData, keys: Array, *, family: Family, plan: StartPlan) -> Params:
    return jax.vmap(partial(_tied_start, family, plan))(bucket, keys)


def _tied_start(family: Family, plan: StartPlan, data: SiteData, key: Array) -> Params:
    even = jnp.full(plan.n_components, 1.0 / plan.n_components)

    def restart(key: Array) -> tuple[Params, Array]:
        return _tied_em(family, data, Params(even, family.draw_start(key, data, plan.n_components)), plan.long)

    runs, log_likelihood = jax.lax.map(restart, split_key(key, plan.n_init))
    best: Params = jax.tree.map(lambda leaf: leaf[jnp.argmax(log_likelihood)], runs)
    return best


def _tied_em(family: Family, data: SiteData, params: Params, iterations: int) -> tuple[Params, Array]:
    """EM for weights, theta and the covariance that all components share; and the log-likelihood reached."""
    n_rows = data.row_weight.sum()
    size = 1 if isinstance(family, LinearRegression) else data.columns.shape[0]

    def residuals(theta: Array) -> Array:
        """``(R, m, n)``: m is 1 for responses, p for rows."""
        if isinstance(family, LinearRegression):
            return (data.target - theta @ data.columns)[:, None, :]
        return data.columns[None] - theta[:, :, None]

    def log_density(theta: Array, covariance: Array) -> Array:
        root = cholesky(covariance)
        white = jax.vmap(lambda rest: solve_lower(root, rest))(residuals(theta))
        constant = jnp.log(jnp.diag(root)).sum() + 0.5 * size * jnp.log(2.0 * jnp.pi)
        return -0.5 * jnp.sum(white**2, axis=1) - constant

    def once(_: int, state: tuple[Params, Array]) -> tuple[Params, Array]:
        params, covariance = state
        mass, _log_likelihood = posterior(log_density(params.theta, covariance), params.weights, data.row_weight)
        theta = family.exact_step(data, params.theta, mass)
        rest = residuals(theta)
        covariance = jnp.einsum("rn,rin,rjn->ij", mass, rest, rest) / n_rows
        return Params(mass.sum(axis=1) / n_rows, theta), covariance + LEAST_VARIANCE * jnp.eye(size)

    params, covariance = jax.lax.fori_loop(0, iterations, once, (params, jnp.eye(size)))
    _, value = posterior(log_density(params.theta, covariance), params.weights, data.row_weight)
    return params, jnp.where(jnp.isfinite(value), value, -jnp.inf)


def poor_starts(simulation: Simulation, seed: int) -> Params:
    """One start for all sites, far from the truth: the honest sites' mean truth plus noise, with even weights."""
    truth = simulation.theta[simulation.honest].mean(axis=0)
    n_sites, n_components, _ = simulation.theta.shape
    common = truth + POOR_SD * np.random.default_rng([seed, 1]).normal(size=truth.shape)
    weights = np.full((n_sites, n_components), 1.0 / n_components)
    return Params(jnp.asarray(weights), jnp.asarray(np.broadcast_to(common, simulation.theta.shape)))
