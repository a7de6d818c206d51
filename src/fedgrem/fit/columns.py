"""Before a sparse fit: the sites seek together the columns that may tell components apart; after it, those missed."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from fedgrem.fit.conversation import Ask, Engine, Phase, Progress, converse, with_agreement
from fedgrem.fit.fit import run
from fedgrem.fit.spec import FitSpec
from fedgrem.fit.tasks import Contrast, Directions, Found
from fedgrem.fit.units import common_units
from fedgrem.kernels.center import capped_rows
from fedgrem.kernels.columns import (
    association,
    column_scores,
    combined,
    largest_value,
    leading,
    least_score,
    noise_value,
)
from fedgrem.kernels.randomness import generator_for
from fedgrem.types import Array, FitResult, Params, map_arrays

DIRECTIONS = 10
"""In which the columns' common variation is looked for at the most."""
DENSE, FEWER, CLEAR = 4, 4, 3
"""Exchanges with all columns, with fewer and fewer of them, and with those that clearly vary with others."""
EXCHANGES = DENSE + FEWER + CLEAR
MOST_PER_ROW = 0.5
"""Columns at the most, relative to the rows of the middle site: with more, it could not begin."""


FITS = 4
"""Times that a fit is made at the most: columns that turn out to tell nothing are left out of the next, and those that
differ between its components are taken in."""


def find_columns(spec: FitSpec, names: tuple[str, ...]) -> Phase[tuple[Array, bool]]:
    """Places of the columns that may be informative, in order, and whether any of them stands out."""
    agreed, census = yield from common_units(spec, names)
    return (yield from with_agreement(_sought(spec, census.mean.shape[1], census.n_rows), agreed))


def _sought(spec: FitSpec, p: int, n_rows: Array) -> Phase[tuple[Array, bool]]:
    size = min(DIRECTIONS, p)
    axes = np.linalg.qr(generator_for(spec.seed, "", "columns").normal(size=(p, size)))[0]
    weight = capped_rows(n_rows)
    count = float(weight.sum())
    most = min(p, max(spec.n_components, int(MOST_PER_ROW * float(np.median(n_rows)))))
    kept = p
    for number in range(EXCHANGES):
        told = Progress("columns", number + 1, EXCHANGES, float("nan"))
        sent: Any = map_arrays(lambda leaf: np.broadcast_to(leaf, (len(n_rows), *leaf.shape)), Directions(axes))
        replies = yield Ask("variation", sent, told)
        product = combined(replies.mail.product, weight)
        if number < DENSE:
            stand_out = largest_value(product, axes) > noise_value(p, count)
            axes = np.linalg.qr(product)[0]
            continue
        least = 0.0
        values = np.ones(size)
        if number >= DENSE + FEWER:
            # Of noise alone, the correlations of so many columns have eigenvalues up to here.
            ratio = kept / count
            product, values = leading(product, axes, 2.0 * np.sqrt(ratio) + ratio)
            least = least_score(product.shape[1], p)
        score = association(product, values, count)
        wanted = int(np.ceil(p * (most / p) ** min(1.0, (number + 1 - DENSE) / FEWER)))
        order = np.argsort(-score, kind="stable")[:wanted]
        # Where none stands out, some have to do.
        chosen = order[: max(spec.n_components, int((score[order] > least).sum()))]
        kept = len(chosen)
        few = np.zeros_like(product)
        few[chosen] = product[chosen]
        axes = np.linalg.qr(few)[0]
    return np.sort(chosen), stand_out


def differing(spec: FitSpec, names: tuple[str, ...], columns: Array, found: FitResult) -> Phase[Array]:
    """Places of the columns in which the components of a fit differ: of those it was about, and of all others."""
    agreed, census = yield from common_units(spec, names)
    return (yield from with_agreement(_differing(spec, census.mean.shape[1], columns, found), agreed))


def _differing(spec: FitSpec, p: int, columns: Array, found: FitResult) -> Phase[Array]:
    n_sites = len(found.n_rows)
    params = Params(found.weights, found.theta, found.noise)
    told = Progress("columns", EXCHANGES, EXCHANGES, float("nan"))
    replies = yield Ask("contrast", Found(params, np.tile(columns, (n_sites, 1))), told)
    reply: Contrast = replies.mail
    weight = capped_rows(reply.n_rows)
    share = combined(reply.held / reply.n_rows[:, None], weight)
    away = combined(reply.away / reply.n_rows[:, None, None], weight)
    rows = np.maximum(share, 0.0) * weight.sum()
    score, _ = column_scores(away / np.maximum(share, 1e-12)[:, None], rows)
    differs = score > least_score(max(1, spec.n_components - 1), p)
    differs[columns] = (found.center != found.center[:1]).any(axis=0)
    return np.flatnonzero(differs)


def run_sparse(
    spec: FitSpec, engine: Callable[[FitSpec], Engine], on_progress: Callable[[Progress], None] | None = None
) -> FitResult:
    """Seek informative columns, fit on these, and again until the fit's components differ in these columns alone.

    ``engine`` makes one for a spec, which names the columns that a fit is about.
    """
    whole = engine(spec)
    names = whole.site_names
    (columns, stand_out), cost = converse(find_columns(spec, names), whole, on_progress)
    costs = [cost.as_dict()]
    tried: set[tuple[int, ...]] = set()
    while True:
        kept = tuple(columns.tolist())
        here = replace(spec, units=spec.units._replace(kept=kept))
        result = run(here, engine(here), on_progress)
        found, cost = converse(differing(spec, names, columns, result), whole, on_progress)
        costs += [dict(result.cost), cost.as_dict()]
        tried.add(kept)
        if not len(found) or tuple(found.tolist()) in tried or len(tried) == FITS:
            return result._replace(columns=columns, columns_stand_out=stand_out, cost=_total(costs))
        columns = found


def _total(costs: list[dict[str, int]]) -> dict[str, int]:
    """Of all conversations; a round's numbers are those of the last fit."""
    found: dict[str, int] = {}
    for cost in costs:
        for name, number in cost.items():
            found[name] = (number or found.get(name, 0)) if name == "numbers_per_round" else found.get(name, 0) + number
    return found
