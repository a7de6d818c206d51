"""Fits of the paper's simulations of which some sites are bad: drawn, attacked, fitted whole, measured."""

import time
from dataclasses import replace
from functools import lru_cache
from typing import Any, Literal, NamedTuple

import numpy as np

from fedgrem.algorithms.center_rules import CENTER_RULES
from fedgrem.algorithms.fedgrem import FedGrEM
from fedgrem.algorithms.robust_rules import ROBUST_RULES
from fedgrem.attacks import ATTACKS, attack_rows, fit_attacked
from fedgrem.data.simulate import Simulation, simulate
from fedgrem.engines.inprocess import InProcess
from fedgrem.errors import FedGrEMError
from fedgrem.estimators.verdicts import sightings
from fedgrem.families.base import Family
from fedgrem.families.gaussian import Gaussian
from fedgrem.families.regression import LinearRegression
from fedgrem.fit.fit import run
from fedgrem.fit.spec import FitSpec
from fedgrem.fit.verdicts import SUSPECT, score, words
from fedgrem.kernels.scores import parameter_errors
from fedgrem.studies.base import Method, Row
from fedgrem.studies.starts import federation_of
from fedgrem.types import Array, FitResult

FAMILIES: dict[str, Family] = {"gmm": Gaussian(), "mor": LinearRegression()}
MOST_ROUNDS = 300


class Scenario(NamedTuple):
    """Sites of a simulation, the last of which are bad."""

    model: Literal["gmm", "mor"]
    h: float
    n_sites: int
    share: float
    """Of bad sites."""
    attack: str
    """One of :data:`fedgrem.attacks.ATTACKS`, or none."""

    @property
    def bad(self) -> Array:
        """Which sites are bad, ``(K,)``."""
        return np.arange(self.n_sites) >= self.n_sites - round(self.share * self.n_sites)


def algorithm_of(method: Method, share: float) -> FedGrEM:
    """FedGrEM with the center rule of a method; one that asks for the share of bad sites is told."""
    options = dict(method.options)
    name, mixing = options.pop("center", None), options.pop("mixing", False)
    if name in ROBUST_RULES:
        return FedGrEM(center=ROBUST_RULES[name](bad=share, mixing=mixing), **options)
    return FedGrEM(**options) if name is None else FedGrEM(center=CENTER_RULES[name](), **options)


def play(scenario: Scenario, seed: int, methods: tuple[Method, ...]) -> list[Row]:
    """One row per method, each a whole fit with starts of its own: bad sites lie there too."""
    drawn = _drawn(scenario.model, scenario.h, scenario.n_sites, seed)
    return [{"method": method.name} | trial(scenario, drawn, seed, method) for method in methods]


@lru_cache(maxsize=2)
def _drawn(model: Literal["gmm", "mor"], h: float, n_sites: int, seed: int) -> Simulation:
    return simulate(model, h=h, n_sites=n_sites, n_outliers=0, seed=seed)


def trial(scenario: Scenario, drawn: Simulation, seed: int, method: Method) -> Row:
    """What one fit comes to: errors over honest sites are the largest, and NaN where a fit has no answer."""
    names, bad = list(drawn.rows), scenario.bad
    algorithm = algorithm_of(method, scenario.share)
    family, n_components = FAMILIES[scenario.model], drawn.theta.shape[1]
    spec = FitSpec(family, algorithm, n_components, seed=seed, max_rounds=MOST_ROUNDS, standard_errors=False)
    spec = replace(spec, penalty=method.penalty)
    begin = time.perf_counter()
    try:
        result = _fit(spec, scenario, drawn, [name for name, lies in zip(names, bad, strict=True) if lies], seed)
    except (FedGrEMError, ValueError, ArithmeticError, AssertionError) as error:
        # What a hostile site brings about is a finding, whatever it is.
        nothing = np.full(len(names), np.nan)
        return _row(nothing, nothing, nothing, bad, begin) | {
            "rounds": 0, "settled": False, "penalty": float("nan"), "died": f"{type(error).__name__}: {error}"[:120],
        }  # fmt: skip
    told = _row(errors(result, drawn), *suspects(family, result, names), bad, begin)
    return told | {
        "rounds": result.n_rounds, "settled": bool(result.converged),
        "penalty": float(result.path.get("penalty", spec.start_penalty)), "died": "",
    }  # fmt: skip


def _fit(spec: FitSpec, scenario: Scenario, drawn: Simulation, bad: list[str], seed: int) -> FitResult:
    rows, targets, entry = drawn.rows, drawn.targets, ATTACKS.get(scenario.attack)
    if entry is not None and entry.on_rows:
        rows, targets = attack_rows(rows, entry.attack, bad, targets=targets, seed=seed)
    federation = federation_of(drawn._replace(rows=rows, targets=targets))
    if entry is None or entry.on_rows:
        return run(spec, InProcess(federation, spec, threads=1))
    return fit_attacked(spec, federation, entry.attack, bad, seed=seed)


def _row(error: Array, suspect: Array, named: Array, bad: Array, begin: float) -> dict[str, Any]:
    return {
        "theta_error": float(error[~bad].max()),
        "recall": float(suspect[bad].mean()) if bad.any() else float("nan"),
        "named": float(named[bad].mean()) if bad.any() else float("nan"),
        "alarms": float(suspect[~bad].mean()),
        "seconds": time.perf_counter() - begin,
    }


def errors(result: FitResult, drawn: Simulation) -> Array:
    """(K,) largest error of every site's components; NaN of a site without a finite answer."""
    found, names = np.full(len(drawn.theta), np.nan), list(drawn.rows)
    for name, weights, theta in zip(result.site_names, result.weights, result.theta, strict=True):
        k = names.index(name)
        if np.isfinite(theta).all():
            found[k] = parameter_errors(weights[None], theta[None], drawn.weights[[k]], drawn.theta[[k]])[1][0]
    return found


def suspects(family: Family, result: FitResult, names: list[str]) -> tuple[Array, Array]:
    """(K,) who is called suspect, or was refused before round 1; and who is that, or named for saying the same."""
    seen = sightings(family, result)
    scores = score(seen)
    # Whether a pull decided who is at the center does not matter to who is suspect.
    told = words(scores, seen, result.distance, result.influence.threshold, pulled=False) == SUSPECT
    said = dict(zip(result.site_names, zip(told, told | (scores.same >= 0), strict=True), strict=True))
    suspect, named = zip(*(said.get(name, (True, True)) for name in names), strict=True)
    return np.array(suspect), np.array(named)
