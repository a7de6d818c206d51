"""One cell of a study: draw or split rows, start once, run every method from the same start, measure."""

from functools import partial
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np

from fedgrem.algorithms.plan import Plan
from fedgrem.algorithms.registry import steady_penalty
from fedgrem.algorithms.start import StartPlan
from fedgrem.data.federation import Federation
from fedgrem.data.simulate import Simulation, simulate
from fedgrem.data.units import common_units, summarize_site
from fedgrem.engines.inprocess import InProcess
from fedgrem.families.base import Family
from fedgrem.families.gaussian import Covariance, Gaussian
from fedgrem.families.regression import LinearRegression
from fedgrem.kernels.precision import numpy_dtype, precision
from fedgrem.kernels.responsibilities import row_posterior
from fedgrem.kernels.scores import misclustering_by_site, parameter_errors
from fedgrem.studies.methods import play_methods
from fedgrem.studies.specs import DTYPE, FITS, Method, Setting
from fedgrem.studies.splits import Split, by_site, split_and_contaminate
from fedgrem.studies.starts import RealSearch, paper_starts, poor_starts, search_starts
from fedgrem.types import Array, FitResult, Array, Params, SiteData

TOLERANCE = 1e-5
"""Relative movement in the last round of a simulation: errors of a method are told to three digits."""
FAMILIES: dict[str, Family] = {"gmm": Gaussian(), "mor": LinearRegression()}


def play_cell(setting: Setting, seed: int, methods: tuple[Method, ...]) -> list[dict[str, Any]]:
    """One row per method: errors, rounds, time. All methods see the same rows and start from the same values."""
    play = _play_simulated if setting.model in FAMILIES else _play_real
    common = {"setting": setting.name, "model": setting.model, "panel": setting.panel, "x": setting.x, "seed": seed}
    return [common | row for row in play(setting, seed, methods)]


def _play_simulated(setting: Setting, seed: int, methods: tuple[Method, ...]) -> list[dict[str, Any]]:
    assert setting.model == "gmm" or setting.model == "mor"
    simulation = simulate(setting.model, seed=seed, **setting.simulation)
    family, federation, plan = set_up(setting.model, simulation, seed)
    if setting.rounds is not None:
        plan = plan._replace(max_rounds=setting.rounds, tol=0.0)

    def search(engine: InProcess, pooled: bool) -> Params:
        if setting.start == "poor":
            return poor_starts(simulation, seed)
        if setting.start == "shared":
            return search_starts(family, plan, engine, pooled)
        return paper_starts(family, federation.merged() if pooled else federation, plan.start, seed)

    with precision("float64"):
        return [
            {"snr": signal(simulation)} | told | _errors(simulation, result)
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


def _play_real(setting: Setting, seed: int, methods: tuple[Method, ...]) -> list[dict[str, Any]]:
    split = split_and_contaminate(by_site(setting.model, seed, setting.embedding), seed, **setting.simulation)
    names = [f"site-{k + 1:03d}" for k in range(len(split.trained))]
    raw = Federation.from_sites(names, split.trained)
    units = common_units([summarize_site(site) for site in raw.sites])
    federation = raw.in_units(units)
    tested = [(rows - units.location) / units.scale for rows in split.tested]
    n_groups = len(np.unique(np.concatenate(split.test_labels)))
    fits = FITS[setting.model]
    family = Gaussian(cast(Covariance, setting.covariance))
    penalty = steady_penalty(2.0, 0.1, federation.n_features, len(names))
    start = StartPlan(n_groups, fits.n_init, fits.short, fits.restart_rows, fits.long)
    plan = Plan(start, max_rounds=fits.most_rounds, tol=fits.tolerance, seed=seed, start_penalty=penalty)
    dtype = numpy_dtype(DTYPE)
    with precision(DTYPE):
        search, held_out = RealSearch(family, federation, plan, dtype), _HeldOut(family, tested, split)
        return [
            told | held_out.scores(result)
            for result, told in play_methods(methods, family, federation, plan, search, dtype)
        ]


class _HeldOut:
    """The rows that no method sees, stacked once for the scores of all of them."""

    def __init__(self, family: Family, tested: list[Array], split: Split) -> None:
        self._family, self._honest = family, split.honest
        self._labels = np.concatenate(split.test_labels)
        counts = np.array([len(rows) for rows in tested])
        self._held = np.arange(counts.max()) < counts[:, None]  # (K, n), False where a site has fewer rows
        self._site = np.repeat(np.arange(len(tested)), counts)
        columns = np.zeros((len(tested), tested[0].shape[1], counts.max()))
        for k, rows in enumerate(tested):
            columns[k, :, : len(rows)] = rows.T
        blank = jnp.ones(self._held.shape)
        self._data = SiteData(jnp.asarray(columns), blank, blank)

    def scores(self, result: FitResult) -> dict[str, float]:
        """What a fit is worth on these rows, as means over honest sites.

        ``error`` is the percentage of rows in the wrong group, each site relabelled as suits it best;
        ``log_likelihood`` is per row, and knows nothing of labels.
        """
        params = Params(
            jnp.asarray(result.weights),
            jnp.asarray(result.theta),
            None if result.spread is None else jnp.asarray(result.spread),
        )
        found, fit = map(np.asarray, _predicted(self._family, self._data, params))
        rates = misclustering_by_site(self._site, self._labels, found[self._held])
        likelihoods = fit.mean(axis=1, where=self._held)
        return {
            "error": 100.0 * float(np.mean(rates[self._honest])),
            "log_likelihood": float(np.mean(likelihoods[self._honest])),
        }


@partial(jax.jit, static_argnames="family")
def _predicted(family: Family, data: SiteData, params: Params) -> tuple[Array, Array]:
    """The likeliest component of every row, and the row's log-likelihood, ``(K, n)`` each."""

    def one(data: SiteData, params: Params) -> tuple[Array, Array]:
        density = family.log_density(data, params.theta, params.spread)
        share, log_likelihood = row_posterior(density, params.weights)
        return jnp.argmax(share, axis=0), log_likelihood

    return jax.vmap(one)(data, params)
