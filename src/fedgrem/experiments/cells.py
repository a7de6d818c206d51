"""One cell of a study: simulate, start once, run every method from the same start, measure."""

import time
from typing import Any

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
from fedgrem.families.base import Family
from fedgrem.families.gaussian import Gaussian
from fedgrem.families.regression import LinearRegression
from fedgrem.kernels.precision import precision
from fedgrem.kernels.scores import parameter_errors
from fedgrem.types import FitResult

FAMILIES: dict[str, Family] = {"gmm": Gaussian(), "mor": LinearRegression()}


def play_cell(setting: Setting, seed: int, methods: tuple[Method, ...]) -> list[dict[str, Any]]:
    """One row per method: errors, rounds, time. All methods see the same rows and start from the same values."""
    simulation = simulate(setting.model, seed=seed, **setting.simulation)  # type: ignore[arg-type]
    federation = Federation.from_sites(
        list(simulation.rows),
        list(simulation.rows.values()),
        None if simulation.targets is None else list(simulation.targets.values()),
    )
    family = FAMILIES[setting.model]
    n_sites, n_components, n_parameters = simulation.theta.shape
    plan = Plan(
        StartPlan(n_components), seed=seed, start_penalty=steady_penalty("fedgrem", 2.0, 0.1, n_parameters, n_sites)
    )
    rows = []
    with precision("float64"):
        ours = build_algorithm("fedgrem", family)
        begin = time.perf_counter()
        starts = find_starts(InProcess(ours, federation, plan.start), plan, family.start_tracks)
        start_seconds = time.perf_counter() - begin
        for method in methods:
            algorithm = build_algorithm(method.algorithm, family, **method.options)
            # All rows in one pot have one start, of the same kind; every other method begins where ours does.
            alone = isinstance(algorithm, InOnePot)
            mine = plan if alone else plan._replace(given=starts.params, align=False)
            begin = time.perf_counter()
            result = run(algorithm, InProcess(algorithm, federation, plan.start), mine)
            rows.append(
                {
                    "setting": setting.name,
                    "model": setting.model,
                    "panel": setting.panel,
                    "x": setting.x,
                    "method": method.name,
                    "seed": seed,
                    **_errors(simulation, result),
                    "rounds": result.n_rounds,
                    "settled": bool(result.converged),
                    "seconds": time.perf_counter() - begin,
                    "start_seconds": start_seconds,
                }
            )
    return rows


def _errors(simulation: Simulation, result: FitResult) -> dict[str, float]:
    """The paper's errors: the largest over the honest sites and components, each site relabelled to the truth."""
    good = simulation.honest
    weight, theta = parameter_errors(
        result.weights[good], result.theta[good], simulation.weights[good], simulation.theta[good]
    )
    return {"weight_error": float(weight.max()), "theta_error": float(theta.max())}
