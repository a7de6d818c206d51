"""The rows of a real data set by site; what a replication fits and holds out of them; and contaminated sites."""

import os
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedgrem.errors import InputError
from fedgrem.studies.download import Progress
from fedgrem.studies.embeddings import Embedding, embed
from fedgrem.studies.images import FASHION, MNIST, RealData, load_images
from fedgrem.studies.pen import load_pen
from fedgrem.types import Array

DATA = "FEDGREM_DATA"
"""Environment variable: the folder with the data sets, for the workers of a study. Without it they are downloaded."""
TRAINED = 0.8
"""Part of a site's rows that is fitted; the others are held out."""
N_IMAGE_SITES = 100
DIMENSIONS = 10


class SiteRows(NamedTuple):
    """All rows of a data set by site."""

    rows: tuple[Array, ...]
    """(n_k, p) each."""
    labels: tuple[Array, ...]
    """(n_k,) each, for scoring only."""


class Split(NamedTuple):
    """What a replication fits and scores."""

    trained: list[Array]
    tested: list[Array]
    test_labels: list[Array]
    honest: Array
    """(K,) whether a site is as it was recorded."""


def load(name: str, on_progress: Progress | None = None) -> RealData:
    """A data set, from the folder of the study or downloaded, which is told with the name of each file."""
    folder = Path(os.environ[DATA]) if DATA in os.environ else None
    if name == "pen":
        return load_pen(folder, on_progress)
    return load_images(MNIST if name == "mnist" else FASHION, folder, on_progress)


def embedding_of(data: RealData, method: str, on_progress: Callable[[int, int], None] | None = None) -> Embedding:
    """Images in a few dimensions; found once, then read from the cache."""
    return embed(data.rows, method, n_components=DIMENSIONS, seed=0, on_progress=on_progress)


@lru_cache(maxsize=1)
def _prepared(name: str, embedding: str | None) -> tuple[Array, Array, Array | None]:
    data = load(name)
    rows = data.rows if embedding is None else np.asarray(embedding_of(data, embedding).rows, dtype=float)
    return rows, data.labels, data.sites


def by_site(name: str, seed: int, embedding: str | None = None) -> SiteRows:
    """The rows of every site: writers, or images, embedded and assigned at random with the seed of the replication."""
    rows, labels, sites = _prepared(name, embedding)
    if sites is None:
        sites = assign_sites(len(rows), N_IMAGE_SITES, seed)
    order = np.argsort(sites, kind="stable")
    members = np.split(order, np.unique(sites[order], return_index=True)[1][1:])
    return SiteRows(tuple(rows[mine] for mine in members), tuple(labels[mine] for mine in members))


def assign_sites(n_rows: int, n_sites: int, seed: int) -> Array:
    """A site from 1 to ``n_sites`` for every row, at random, sizes differing by at most one row; ``(n_rows,)``.

    Examples
    --------
    >>> np.bincount(assign_sites(11, 3, seed=0)).tolist()
    [0, 4, 4, 3]
    """
    if not 1 <= n_sites <= n_rows:
        raise InputError(f"{n_rows} rows cannot be divided among {n_sites} sites; give from 1 to {n_rows} sites.")
    sites: Array = np.random.default_rng(seed).permutation(np.arange(n_rows) % n_sites) + 1
    return sites


def split_and_contaminate(
    data: SiteRows, seed: int, *, contaminated: int = 0, way: str = "none", n_train: int | None = None
) -> Split:
    """Hold rows out at every site, and contaminate the rows that some random sites fit.

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
        trained[k] = _contaminated(trained[k], way, trained[other], generator)
    return Split(trained, tested, labels, honest)


def _contaminated(rows: Array, way: str, other: Array, generator: np.random.Generator) -> Array:
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
