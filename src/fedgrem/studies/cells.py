"""One cell of a study: draw or split rows, start once, run every method from the same start, measure."""

import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from fedgrem.algorithms.fedgrem import FedGrEM
from fedgrem.algorithms.registry import ALGORITHMS
from fedgrem.data.federation import Federation
from fedgrem.data.simulate import Simulation, simulate
from fedgrem.data.stack import Stack
from fedgrem.data.units import common_units, take_census
from fedgrem.engines.inprocess import InProcess
from fedgrem.families.base import Family
from fedgrem.families.covariance import STRUCTURES
from fedgrem.families.gaussian import Gaussian
from fedgrem.fit.fit import run
from fedgrem.fit.spec import FitSpec, StartPlan
from fedgrem.kernels.scores import misclustering_by_site, parameter_errors
from fedgrem.studies import discussion, under_attack
from fedgrem.studies.base import FITS, OURS, PENALTY, Method, Row, Setting
from fedgrem.studies.splits import Split, by_site, split_and_contaminate
from fedgrem.studies.starts import RealSearch, federation_of, from_starts, simulated_starts
from fedgrem.studies.under_attack import FAMILIES, Scenario
from fedgrem.types import Array, FitResult, Params

TOLERANCE = 1e-7
"""Relative movement in the last round of a simulation, or 3e-4 standard errors: errors are told to three digits."""


def play_cell(setting: Setting, seed: int, methods: tuple[Method, ...]) -> list[Row]:
    """One row per method: errors, rounds, time. All methods see the same rows and start from the same values."""
    play = _play_simulated if setting.model in FAMILIES else _play_real
    if "attack" in setting.simulation:
        play = _play_attacked
    elif "part" in setting.simulation:
        play = discussion.play
    common = {"setting": setting.name, "model": setting.model, "panel": setting.panel, "x": setting.x, "seed": seed}
    return [common | row for row in play(setting, seed, methods)]


def _play_methods(
    methods: tuple[Method, ...],
    spec: FitSpec,
    federation: Federation,
    search: Callable[[bool], Params],
    score: Callable[[FitResult], dict[str, float]],
) -> list[Row]:
    """Every method on the same rows from the same starts, timed and scored.

    Methods on pooled rows have one start; all others begin where ours does. Each kind of start is searched for once;
    ``search`` is told whether rows are pooled.
    """
    found: dict[bool, tuple[Params, float]] = {}
    rows = []
    for method in methods:
        algorithm = ALGORITHMS[method.algorithm](**method.options)
        pooled = algorithm.traits.pools_rows
        begin = time.perf_counter()
        if pooled not in found:
            found[pooled] = search(pooled), time.perf_counter() - begin
        given, start_seconds = found[pooled]
        begin = time.perf_counter()
        own = replace(from_starts(spec, given, len(federation.sites)), algorithm=algorithm, penalty=method.penalty)
        result = run(own, InProcess(federation, own, threads=1))
        seconds = time.perf_counter() - begin
        told = {"method": method.name, "rounds": result.n_rounds, "settled": bool(result.converged)}
        rows.append(told | {"seconds": seconds, "start_seconds": start_seconds} | score(result))
    return rows


def _play_simulated(setting: Setting, seed: int, methods: tuple[Method, ...]) -> list[Row]:
    assert setting.model == "gmm" or setting.model == "mor"
    simulation = simulate(setting.model, seed=seed, **setting.simulation)
    spec, federation = set_up(setting.model, simulation, seed)
    if setting.rounds is not None:
        spec = replace(spec, max_rounds=setting.rounds, tol=0.0)
    search = simulated_starts(setting.start, spec, federation, simulation, seed)
    snr = {"snr": signal(simulation)}
    return [
        snr | row
        for row in _play_methods(methods, spec, federation, search, lambda result: _errors(simulation, result))
    ]


def _play_attacked(setting: Setting, seed: int, methods: tuple[Method, ...]) -> list[Row]:
    assert setting.model == "gmm" or setting.model == "mor"
    return under_attack.play(Scenario(setting.model, **setting.simulation), seed, methods)


def set_up(model: str, simulation: Simulation, seed: int) -> tuple[FitSpec, Federation]:
    """What a simulation of "gmm" or "mor" is fitted by, FedGrEM with the paper's family, and its rows."""
    spec = plain_fit(FAMILIES[model], simulation.theta.shape[1], seed)
    return replace(spec, tol=TOLERANCE), federation_of(simulation)


def plain_fit(family: Family, n_components: int, seed: int) -> FitSpec:
    """A fit with the paper's penalty, and nothing after its rounds."""
    return FitSpec(
        family, FedGrEM(**OURS), n_components, PENALTY, fallback=False, seed=seed, look=False, standard_errors=False
    )


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
    weight, theta = simulation.errors(result.weights, result.theta)
    _, center = parameter_errors(
        result.weights[:1], result.center[None], simulation.weights[:1], simulation.theta[good].mean(axis=0)[None]
    )
    return {
        "weight_error": float(weight[good].max()),
        "theta_error": float(theta[good].max()),
        "center_error": float(center[0]),
    }


def _play_real(setting: Setting, seed: int, methods: tuple[Method, ...]) -> list[Row]:
    split = split_and_contaminate(by_site(setting.model, seed, setting.embedding), seed, **setting.simulation)
    names = [f"site-{k + 1:03d}" for k in range(len(split.trained))]
    raw = Federation.from_sites(names, split.trained)
    census = [take_census(site) for site in raw.sites]
    units = common_units(np.stack([one.mean for one in census]), np.stack([one.deviation for one in census]))
    federation = raw.in_units(units)
    tested = [(rows - units.location) / units.scale for rows in split.tested]
    fits = FITS[setting.model]
    spec = replace(
        plain_fit(Gaussian(STRUCTURES[setting.covariance]()), len(np.unique(np.concatenate(split.test_labels))), seed),
        start=StartPlan(fits.n_init, fits.short, fits.long, fits.restart_rows),
        max_rounds=fits.most_rounds,
        tol=fits.tolerance,
    )
    score = _HeldOut(spec.family, tested, split).scores
    return _play_methods(methods, spec, federation, RealSearch(spec, federation), score)


class _HeldOut:
    """The rows that no method sees, stacked once for the scores of all of them."""

    def __init__(self, family: Family, tested: list[Array], split: Split) -> None:
        self._family, self._honest = family, split.honest
        self._labels = np.concatenate(split.test_labels)
        counts = np.array([len(rows) for rows in tested])
        self._held = np.arange(counts.max()) < counts[:, None]  # (K, n), False where a site has fewer rows
        self._site = np.repeat(np.arange(len(tested)), counts)
        rows = np.zeros((*self._held.shape, tested[0].shape[1]))
        rows[self._held] = np.concatenate(tested)
        self._stack = Stack([str(k) for k in range(len(tested))], rows, None, self._held.astype(float))

    def scores(self, result: FitResult) -> dict[str, float]:
        """What a fit is worth on these rows, as means over honest sites.

        ``error`` is the percentage of rows in the wrong group, each site relabelled as suits it best;
        ``log_likelihood`` is per row, and knows nothing of labels.
        """
        with np.errstate(all="ignore"):
            share, fit = self._family.row_scores(self._stack, Params(result.weights, result.theta, result.noise))
        rates = misclustering_by_site(self._site, self._labels, share.argmax(axis=1)[self._held])
        likelihoods = fit.mean(axis=1, where=self._held)
        return {
            "error": 100.0 * float(np.mean(rates[self._honest])),
            "log_likelihood": float(np.mean(likelihoods[self._honest])),
        }
