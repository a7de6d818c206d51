"""Attacks on rows: what a bad site's data may look like, before it computes anything."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

import numpy as np

from fedgrem.errors import InputError
from fedgrem.kernels.randomness import generator_for
from fedgrem.types import Array


class SiteRows(NamedTuple):
    """The rows of one site."""

    rows: Array
    """(n, p)"""
    target: Array | None = None
    """(n,) responses of a regression."""


class RowAttack(Protocol):
    """A value that rewrites the rows of a bad site."""

    def __call__(self, site: SiteRows, own: np.random.Generator, shared: np.random.Generator) -> SiteRows:
        """The rows of this site, with random numbers of its own and those that all bad sites share."""
        ...


def attack_rows(
    rows: Mapping[str, Array],
    attack: RowAttack,
    bad: Sequence[str],
    *,
    targets: Mapping[str, Array] | None = None,
    seed: int = 0,
) -> tuple[dict[str, Array], dict[str, Array] | None]:
    """The rows of all sites, and their responses, those of the bad ones rewritten.

    Examples
    --------
    >>> rows = {"a": np.zeros((3, 2)), "b": np.ones((3, 2))}
    >>> attacked, _ = attack_rows(rows, CommonShift(2.0), ["b"])
    >>> float(attacked["a"].sum()), float(np.linalg.norm(attacked["b"][0] - 1.0).round(6))
    (0.0, 2.0)
    """
    unknown = [name for name in bad if name not in rows]
    if unknown:
        raise InputError(f"{', '.join(unknown)} is no site; the sites are {', '.join(rows)}.")
    found, responses = dict(rows), None if targets is None else dict(targets)
    for name in bad:
        own, shared = (generator_for(seed, who, "attack", "rows") for who in (name, ""))
        site = SiteRows(np.array(rows[name], dtype=float), None if targets is None else np.array(targets[name]))
        found[name], target = attack(site, own, shared)
        if responses is not None and target is not None:
            responses[name] = target
    return found, responses


def _direction(shared: np.random.Generator, size: int) -> Array:
    drawn = shared.normal(size=size)
    return np.asarray(drawn / np.linalg.norm(drawn))


@dataclass(frozen=True)
class Far:
    """Rows far from everybody else's: ``distance`` times the width of the data away, in a common direction.

    Of a regression, the responses are those of one line whose coefficients are as large.
    """

    distance: float = 3.0

    def __call__(self, site: SiteRows, own: np.random.Generator, shared: np.random.Generator) -> SiteRows:
        rows, direction = site.rows, _direction(shared, site.rows.shape[1])
        width = np.sqrt(rows.var(axis=0).sum())
        if site.target is not None:
            away = rows @ (self.distance * site.target.std() / max(rows.std(), 1e-300) * direction)
            return site._replace(target=away + own.normal(size=len(away)))
        return site._replace(rows=rows + self.distance * width * direction)


@dataclass(frozen=True)
class PermutedColumns:
    """Columns mixed up, each site in its own way."""

    def __call__(self, site: SiteRows, own: np.random.Generator, shared: np.random.Generator) -> SiteRows:
        return site._replace(rows=site.rows[:, own.permutation(site.rows.shape[1])])


@dataclass(frozen=True)
class Clump:
    """All rows nearly the same one, and so are their responses."""

    width: float = 0.01

    def __call__(self, site: SiteRows, own: np.random.Generator, shared: np.random.Generator) -> SiteRows:
        model = own.integers(len(site.rows))
        scale = self.width * site.rows.std(axis=0)
        rows = site.rows[model] + scale * own.normal(size=site.rows.shape)
        if site.target is None:
            return SiteRows(rows)
        noise = self.width * site.target.std() * own.normal(size=len(rows))
        return SiteRows(rows, site.target[model] + noise)


@dataclass(frozen=True)
class CommonShift:
    """All rows moved by ``size`` in a direction that all bad sites share; of a regression, its coefficients.

    With ``size`` in units of the noise of a row (1 in the paper's simulations), one of these is less than two standard
    errors of a component that holds 30 rows in ten dimensions: no single site looks odd.
    """

    size: float = 1.0

    def __call__(self, site: SiteRows, own: np.random.Generator, shared: np.random.Generator) -> SiteRows:
        away = self.size * _direction(shared, site.rows.shape[1])
        if site.target is not None:
            return site._replace(target=site.target + site.rows @ away)
        return site._replace(rows=site.rows + away)


@dataclass(frozen=True)
class Merged:
    """Components that cannot be told apart: rows without their ``directions`` widest directions, one line for all."""

    directions: int = 2

    def __call__(self, site: SiteRows, own: np.random.Generator, shared: np.random.Generator) -> SiteRows:
        rows = site.rows
        if site.target is not None:
            line, *_ = np.linalg.lstsq(rows, site.target, rcond=None)
            return site._replace(target=rows @ line + own.normal(size=len(rows)))
        middle = rows.mean(axis=0)
        widest = np.linalg.svd(rows - middle, full_matrices=False)[2][: self.directions]
        noise = own.normal(size=(len(rows), len(widest)))
        return site._replace(rows=rows - (rows - middle) @ widest.T @ widest + noise @ widest)


@dataclass(frozen=True)
class HugeCells:
    """A few cells, chosen by chance, that hold an absurd value."""

    value: float = 1e6
    share: float = 0.01

    def __call__(self, site: SiteRows, own: np.random.Generator, shared: np.random.Generator) -> SiteRows:
        rows = site.rows.copy()
        count = max(1, round(self.share * rows.size))
        rows.flat[own.permutation(rows.size)[:count]] = self.value
        return site._replace(rows=rows)


@dataclass(frozen=True)
class PartOfRows:
    """A ``share`` of the rows is not of the model: far away, in one clump, or with Student's tails; the rest is honest.

    Also what an honest site may suffer: put it on all sites.
    """

    kind: Literal["far", "clump", "heavy"] = "far"
    share: float = 0.1

    def __call__(self, site: SiteRows, own: np.random.Generator, shared: np.random.Generator) -> SiteRows:
        n = len(site.rows)
        some = own.permutation(n)[: round(self.share * n)]
        rows, target = site.rows.copy(), None if site.target is None else site.target.copy()
        direction = _direction(own if self.kind == "far" else shared, rows.shape[1])
        width = np.sqrt(rows.var(axis=0).sum())
        if self.kind == "far":
            moved = rows[some] + 3.0 * width * direction
        elif self.kind == "clump":
            middle = rows.mean(axis=0) + width * direction
            moved = middle + 0.1 * own.normal(size=(len(some), rows.shape[1]))
        else:
            moved = rows[some] + rows.std(axis=0) * own.standard_t(1.5, size=(len(some), rows.shape[1]))
        if target is None:
            rows[some] = moved
            return SiteRows(rows)
        scale = target.std()
        if self.kind == "heavy":
            target[some] += scale * own.standard_t(1.5, size=len(some))
        elif self.kind == "far":
            target[some] += 5.0 * scale
        else:
            target[some] = 2.0 * scale + 0.1 * own.normal(size=len(some))
        return SiteRows(rows, target)
