"""One cell of a study: simulate, start once, run every method from the same start, measure."""

from functools import partial
from typing import Any

import numpy as np

from fedgrem.algorithms.plan import Plan
from fedgrem.algorithms.registry import steady_penalty
from fedgrem.algorithms.start import StartPlan
from fedgrem.data.federation import Federation
from fedgrem.data.simulate import Simulation, simulate
from fedgrem.engines.inprocess import InProcess
from fedgrem.experiments.methods import play_methods, search_starts
from fedgrem.experiments.specs import Method, Setting
from fedgrem.experiments.starts import paper_starts, poor_starts
from fedgrem.families.base import Family
from fedgrem.families.gaussian import Gaussian
from fedgrem.families.regression import LinearRegression
from fedgrem.kernels.precision import precision
from fedgrem.kernels.scores import parameter_errors
from fedgrem.types import FitResult, Params

TOLERANCE = 1e-5
"""Relative movement in the last round: errors of a method are told to three digits."""
FAMILIES: dict[str, Family] = {"gmm": Gaussian(), "mor": LinearRegression()}


def play_cell(setting: Setting, seed: int, methods: tuple[Method, ...]) -> list[dict[str, Any]]:
    """One row per method: errors, rounds, time. All methods see the same rows and start from the same values."""
    assert setting.model == "gmm" or setting.model == "mor"
    simulation = simulate(setting.model, seed=seed, **setting.simulation)
    family, federation, plan = set_up(setting.model, simulation, seed)
    if setting.rounds is not None:
        plan = plan._replace(max_rounds=setting.rounds, tol=0.0)
    common = {"setting": setting.name, "model": setting.model, "panel": setting.panel, "x": setting.x, "seed": seed}
    common["snr"] = signal(simulation)
    with precision("float64"):
        search = partial(_search, setting, seed, simulation, family, federation, plan)
        return [
            common | told | _errors(simulation, result)
            for result, told in play_methods(methods, family, federation, plan, search)
        ]


def set_up(model: str, simulation: Simulation, seed: int) -> tuple[Family, Federation, Plan]:
    """What a simulation of "gmm" or "mor" is fitted by: the paper's family, its rows, and our way to starts."""
    targets = None if simulation.targets is None else list(simulation.targets.values())
    federation = Federation.from_sites(list(simulation.rows), list(simulation.rows.values()), targets)
    n_sites, n_components, n_parameters = simulation.theta.shape
    penalty = steady_penalty(2.0, 0.1, n_parameters, n_sites)
    plan = Plan(StartPlan(n_components), tol=TOLERANCE, seed=seed, start_penalty=penalty)
    return FAMILIES[model], federation, plan


def _search(
    setting: Setting,
    seed: int,
    simulation: Simulation,
    family: Family,
    federation: Federation,
    plan: Plan,
    engine: InProcess,
    in_one_pot: bool,
) -> Params:
    """The kind of start that a setting asks for."""
    if setting.start == "poor":
        return poor_starts(simulation, seed)
    if setting.start == "shared":
        return search_starts(family, plan, engine, in_one_pot)
    return paper_starts(family, federation.merged() if in_one_pot else federation, plan.start, seed)


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
