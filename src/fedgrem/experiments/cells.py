"""One cell of a study: simulate, start once, run every method from the same start, measure."""

import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedgrem.algorithms.plan import Plan
from fedgrem.algorithms.pooled import InOnePot
from fedgrem.algorithms.registry import build_algorithm, steady_penalty
from fedgrem.algorithms.rounds import run
from fedgrem.algorithms.search import find_starts
from fedgrem.algorithms.start import StartPlan
from fedgrem.data.federation import Federation
from fedgrem.data.simulate import Simulation, simulate
from fedgrem.engines.inprocess import InProcess
from fedgrem.experiments.specs import Method, Setting
from fedgrem.experiments.starts import paper_starts, poor_starts
from fedgrem.families.base import Family
from fedgrem.families.gaussian import Gaussian
from fedgrem.families.regression import LinearRegression
from fedgrem.kernels.precision import precision
from fedgrem.kernels.scores import parameter_errors
from fedgrem.types import FitResult, Params

FAMILIES: dict[str, Family] = {"gmm": Gaussian(), "mor": LinearRegression()}


class _Starts:
    """The starts of one cell, each kind found once: one per site, and one for all rows in one pot."""

    def __init__(self, setting: Setting, seed: int, simulation: Simulation, federation: Federation, plan: Plan) -> None:
        self._setting, self._seed = setting, seed
        self._simulation, self._federation, self._plan = simulation, federation, plan
        self._found: dict[bool, tuple[Params, float]] = {}

    def get(self, in_one_pot: bool) -> tuple[Params, float]:
        """Starts of every site, and the seconds it took to find them."""
        if in_one_pot not in self._found:
            begin = time.perf_counter()
            params = self._search(in_one_pot)
            params.theta.block_until_ready()
            self._found[in_one_pot] = params, time.perf_counter() - begin
        return self._found[in_one_pot]

    def _search(self, in_one_pot: bool) -> Params:
        family = FAMILIES[self._setting.model]
        if self._setting.start == "poor":
            return poor_starts(self._simulation, self._seed)
        if self._setting.start == "paper":
            pot = self._federation.merged() if in_one_pot else self._federation
            params = paper_starts(family, pot, self._plan.start, self._seed)
            n_sites = len(self._federation.sites)
            everyone: Params = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (n_sites, *leaf.shape[1:])), params)
            return everyone
        algorithm = build_algorithm("pooled-em" if in_one_pot else "fedgrem", family)
        engine = InProcess(algorithm, self._federation, self._plan.start)
        return find_starts(engine, self._plan, family).params


def play_cell(setting: Setting, seed: int, methods: tuple[Method, ...]) -> list[dict[str, Any]]:
    """One row per method: errors, rounds, time. All methods see the same rows and start from the same values."""
    assert setting.model == "gmm" or setting.model == "mor"
    simulation = simulate(setting.model, seed=seed, **setting.simulation)
    federation = Federation.from_sites(
        list(simulation.rows),
        list(simulation.rows.values()),
        None if simulation.targets is None else list(simulation.targets.values()),
    )
    family = FAMILIES[setting.model]
    n_sites, n_components, n_parameters = simulation.theta.shape
    plan = Plan(StartPlan(n_components), seed=seed, start_penalty=steady_penalty(2.0, 0.1, n_parameters, n_sites))
    if setting.rounds is not None:
        plan = plan._replace(max_rounds=setting.rounds, tol=0.0)
    common = {"setting": setting.name, "model": setting.model, "panel": setting.panel, "x": setting.x, "seed": seed}
    common["snr"] = signal(simulation)
    rows = []
    with precision("float64"):
        starts = _Starts(setting, seed, simulation, federation, plan)
        for method in methods:
            algorithm = build_algorithm(method.algorithm, family, **method.options)
            # All rows in one pot have one start, of the same kind; every other method begins where ours does.
            given, start_seconds = starts.get(isinstance(algorithm, InOnePot))
            begin = time.perf_counter()
            result = run(
                algorithm, InProcess(algorithm, federation, plan.start), plan._replace(given=given, align=False)
            )
            seconds = time.perf_counter() - begin
            rows.append(
                common
                | {"method": method.name, **_errors(simulation, result)}
                | {"rounds": result.n_rounds, "settled": bool(result.converged)}
                | {"seconds": seconds, "start_seconds": start_seconds}
            )
    return rows


def signal(simulation: Simulation) -> float:
    """The paper's SNR, as its appendix defines it: the least, over honest sites, of their widest gap."""
    theta = simulation.theta[simulation.honest]
    gaps = np.linalg.norm(theta[:, :, None] - theta[:, None], axis=-1)
    return float(gaps.max(axis=(1, 2)).min())


def _errors(simulation: Simulation, result: FitResult) -> dict[str, float]:
    """The paper's errors: the largest over the honest sites and components, each site relabelled to the truth.

    And the error of the center, against the mean truth of the honest sites.
    """
    good = simulation.honest
    weight, theta = parameter_errors(
        result.weights[good], result.theta[good], simulation.weights[good], simulation.theta[good]
    )
    _, center = parameter_errors(
        result.weights[:1], result.center[None], simulation.weights[:1], simulation.theta[good].mean(axis=0)[None]
    )
    return {
        "weight_error": float(weight.max()),
        "theta_error": float(theta.max()),
        "center_error": float(center[0]),
    }
