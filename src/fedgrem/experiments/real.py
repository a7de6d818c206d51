"""One cell of a study on real data: split, spoil some sites, fit without labels, score the rows held out."""

import os
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np

from fedgrem.algorithms.align import middle_of
from fedgrem.algorithms.plan import Plan
from fedgrem.algorithms.registry import build_algorithm, steady_penalty
from fedgrem.algorithms.rounds import run
from fedgrem.algorithms.start import StartPlan
from fedgrem.data.download import cache_folder
from fedgrem.data.embedding import Embedding, embed
from fedgrem.data.federation import Federation
from fedgrem.data.real import Progress, RealData, load_fashion, load_mnist, load_pen, spread_over_sites
from fedgrem.data.units import common_units, summarize_site
from fedgrem.engines.inprocess import InProcess
from fedgrem.experiments.methods import for_everyone, play_methods, search_starts
from fedgrem.experiments.specs import DTYPE, FITS, Method, Setting
from fedgrem.families.base import Family
from fedgrem.families.gaussian import Covariance, Gaussian
from fedgrem.kernels.precision import numpy_dtype, precision
from fedgrem.kernels.responsibilities import row_posterior
from fedgrem.kernels.scores import misclustering_by_site
from fedgrem.types import Array, FitResult, NumpyArray, Params, SiteData

DATA = "FEDGREM_DATA"
"""Environment variable: the folder with the data sets, for the workers of a study. Without it they are downloaded."""
TRAINED = 0.8
"""Part of a site's rows that is fitted; the others are held out."""
POT_RESTARTS: dict[str, Any] = {"n_init": 10, "short": 20, "restart_rows": 4_000, "long": 5}
"""The search of all rows in one pot, which nobody tells of what it misses: more restarts, on some of the rows. What
they lead to is followed on all rows when it is compared with the sites' common start."""
N_IMAGE_SITES = 100
DIMENSIONS = 10


class SiteRows(NamedTuple):
    """All rows of a data set by site."""

    rows: tuple[NumpyArray, ...]
    """(n_k, p) each."""
    labels: tuple[NumpyArray, ...]
    """(n_k,) each, for scoring only."""


class Split(NamedTuple):
    """What a replication fits and scores."""

    trained: list[NumpyArray]
    tested: list[NumpyArray]
    test_labels: list[NumpyArray]
    honest: NumpyArray
    """(K,) whether a site is as it was recorded."""


def load(name: str, on_progress: Progress | None = None) -> RealData:
    """A data set, from the folder of the study or downloaded, which is told with the name of each file."""
    folder = Path(os.environ[DATA]) if DATA in os.environ else None
    if name == "pen":
        return load_pen(folder, on_progress=on_progress)
    return (load_mnist if name == "mnist" else load_fashion)(folder, on_progress=on_progress)


def embedding_of(data: RealData, method: str, on_progress: Callable[[int, int], None] | None = None) -> Embedding:
    """Images in a few dimensions; found once, then read from the cache."""
    chosen: Any = method
    place = cache_folder() / "embeddings"
    return embed(data.rows, method=chosen, n_components=DIMENSIONS, seed=0, cache=place, on_progress=on_progress)


@lru_cache(maxsize=1)
def _prepared(name: str, embedding: str | None) -> tuple[NumpyArray, NumpyArray, NumpyArray | None]:
    data = load(name)
    rows = data.rows if embedding is None else np.asarray(embedding_of(data, embedding).rows, dtype=float)
    return rows, data.labels, data.sites


def by_site(name: str, seed: int, embedding: str | None = None) -> SiteRows:
    """The rows of every site: writers, or images, embedded and spread at random with the seed of the replication."""
    rows, labels, sites = _prepared(name, embedding)
    if sites is None:
        sites = spread_over_sites(len(rows), N_IMAGE_SITES, seed)
    order = np.argsort(sites, kind="stable")
    members = np.split(order, np.unique(sites[order], return_index=True)[1][1:])
    return SiteRows(tuple(rows[mine] for mine in members), tuple(labels[mine] for mine in members))


def split_and_spoil(
    data: SiteRows, seed: int, *, contaminated: int = 0, way: str = "none", n_train: int | None = None
) -> Split:
    """Hold rows out at every site, and spoil what some random sites fit.

    Parameters
    ----------
    contaminated : how many sites.
    way : "far" replaces their rows by a Gaussian as wide as theirs, ten of its standard deviations away; "permuted"
        puts their columns in another order; "clump" replaces their rows by a tight clump next to a group of another
        site.
    n_train : rows to fit at each site, instead of four fifths.
    """
    generator = np.random.default_rng([seed, 2024])
    trained, tested, labels = [], [], []
    for rows, label in zip(data.rows, data.labels, strict=True):
        order = generator.permutation(len(rows))
        held_in = round(TRAINED * len(rows))
        fitted = order[: held_in if n_train is None else min(n_train, held_in)]
        trained.append(rows[fitted])
        tested.append(rows[order[held_in:]])
        labels.append(label[order[held_in:]])
    honest = np.ones(len(trained), dtype=bool)
    honest[generator.permutation(len(trained))[:contaminated]] = False
    good = np.flatnonzero(honest)
    for k in np.flatnonzero(~honest):
        other = int(generator.choice(good))
        trained[k] = _spoiled(trained[k], way, trained[other], generator)
    return Split(trained, tested, labels, honest)


def _spoiled(rows: NumpyArray, way: str, other: NumpyArray, generator: np.random.Generator) -> NumpyArray:
    size = rows.std(axis=0)
    if way == "far":
        return np.asarray(rows.mean(axis=0) + 10.0 * size + size * generator.normal(size=rows.shape))
    if way == "permuted":
        places = np.empty(rows.shape[1], dtype=int)
        cycle = generator.permutation(rows.shape[1])
        places[cycle] = np.roll(cycle, 1)  # one long cycle: no column stays where it was
        return rows[:, places]
    if way == "clump":
        target = other[generator.integers(len(other))]
        return np.asarray(target + 0.5 * size + 0.02 * size * generator.normal(size=rows.shape))
    raise ValueError(way)


@partial(jax.jit, static_argnames="family")
def _predicted(family: Family, data: SiteData, params: Params) -> tuple[Array, Array]:
    """The likeliest component of every row, and the row's log-likelihood, ``(K, n)`` each."""

    def one(data: SiteData, params: Params) -> tuple[Array, Array]:
        density = family.log_density(data, params.theta, params.spread)
        share, log_likelihood = row_posterior(density, params.weights)
        return jnp.argmax(share, axis=0), log_likelihood

    return jax.vmap(one)(data, params)


class _HeldOut:
    """The rows that no method sees, stacked once for the scores of all of them."""

    def __init__(self, family: Family, tested: list[NumpyArray], split: Split) -> None:
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


def play_real_cell(setting: Setting, seed: int, methods: tuple[Method, ...]) -> list[dict[str, Any]]:
    """One row per method: scores, rounds, time. All methods fit the same rows from the same start."""
    split = split_and_spoil(by_site(setting.model, seed, setting.embedding), seed, **setting.simulation)
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
    common = {"setting": setting.name, "model": setting.model, "panel": setting.panel, "x": setting.x, "seed": seed}
    with precision(DTYPE):
        dtype = numpy_dtype(DTYPE)
        search, held_out = _Search(family, federation, plan), _HeldOut(family, tested, split)
        return [
            common | told | held_out.scores(result)
            for result, told in play_methods(methods, family, federation, plan, search, dtype)
        ]


class _Search:
    """One search for the sites, and one for all rows in one pot that knows what the sites have found.

    A pot of many rows has many optima. Of the start found in it and the one that the sites have in common, the methods
    that merge all rows get the likelier, so that they do not lose for want of a start.
    """

    def __init__(self, family: Family, federation: Federation, plan: Plan) -> None:
        self._family, self._federation, self._plan = family, federation, plan
        self._common: Params | None = None

    def __call__(self, engine: InProcess, in_one_pot: bool) -> Params:
        if not in_one_pot:
            starts = search_starts(self._family, self._plan, engine, in_one_pot=False)
            self._common = middle_of(starts)
            return starts
        if self._common is None:
            ours = build_algorithm("fedgrem", self._family)
            self(InProcess(ours, self._federation, self._plan.start, dtype=numpy_dtype(DTYPE)), in_one_pot=False)
        restarts = self._plan._replace(start=replace(self._plan.start, **POT_RESTARTS))
        own = search_starts(self._family, restarts, engine, in_one_pot=True)
        common: Params = jax.tree.map(lambda leaf: leaf[None], self._common)
        return max((self._followed(engine, start) for start in (own, common)), key=lambda end: end[1])[0]

    def _followed(self, engine: InProcess, start: Params) -> tuple[Params, float]:
        """Where a few rounds on all rows lead from a start, and the log-likelihood there."""
        given = for_everyone(start, len(self._federation.sites))
        plan = self._plan._replace(given=given, align=False, max_rounds=self._plan.start.long)
        pooled = build_algorithm("pooled-em", self._family)
        result = run(pooled, engine.serving(pooled), plan)
        spread = None if result.spread is None else jnp.asarray(result.spread[:1])
        end = Params(jnp.asarray(result.weights[:1]), jnp.asarray(result.theta[:1]), spread)
        return end, float(np.nan_to_num(result.history["log_likelihood"][-1, 0], nan=-np.inf))
