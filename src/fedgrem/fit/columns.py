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
    coefficient_scores,
    column_scores,
    combined,
    largest_value,
    leading,
    least_score,
    noise_value,
    slope_scores,
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
    p = census.mean.shape[1] - spec.family.has_target
    return (yield from with_agreement(_sought(spec, p, census.n_rows), agreed))


def _sought(spec: FitSpec, p: int, n_rows: Array) -> Phase[tuple[Array, bool]]:
    size, of_response = min(DIRECTIONS, p), spec.family.has_target
    axes = np.linalg.qr(generator_for(spec.seed, "", "columns").normal(size=(p, size)))[0]
    weight = capped_rows(n_rows)
    count = float(weight.sum())
    # Coefficients are known from the rows of their component alone.
    most = MOST_PER_ROW * float(np.median(n_rows)) / (spec.n_components if of_response else 1)
    most = min(p, max(spec.n_components, int(most)))
    kept = p
    exchanges, dense = (EXCHANGES - DENSE + 1, 1) if of_response else (EXCHANGES, DENSE)
    for number in range(exchanges):
        told = Progress("columns", number + 1, exchanges, float("nan"))
        sent: Any = map_arrays(lambda leaf: np.broadcast_to(leaf, (len(n_rows), *leaf.shape)), Directions(axes))
        replies = yield Ask("variation", sent, told)
        product = combined(replies.mail.product, weight)
        of_slope, of_own = np.zeros(p), np.zeros(p)
        if of_response:
            slope, own = combined(replies.mail.own, weight)
            of_slope, of_own = count * np.square(slope), 0.5 * count * np.square(np.maximum(own, 0.0))
        if number < dense:
            stand_out = of_response or largest_value(product, axes) > noise_value(p, count)
            axes = np.linalg.qr(product)[0]
            if of_response:
                axes = np.eye(p)[:, np.argsort(-of_slope - of_own, kind="stable")[:size]]
            continue
        least = 0.0
        values = np.ones(size)
        if number >= dense + FEWER:
            # Of noise alone, the correlations of so many columns have eigenvalues up to here.
            ratio = kept / count
            product, values = leading(product, axes, 2.0 * np.sqrt(ratio) + ratio)
            least = least_score(product.shape[1] + of_response, p)
        score = association(product, values, count) + of_slope
        wanted = int(np.ceil(p * (most / p) ** min(1.0, (number + 1 - dense) / FEWER)))
        order = np.argsort(-score, kind="stable")[:wanted]
        # Where none stands out, some have to do.
        chosen = order[: max(spec.n_components, int((score[order] > least).sum()))]
        kept = len(chosen)
        few = np.zeros_like(product)
        few[chosen] = product[chosen]
        axes = np.linalg.qr(few)[0]
    return np.sort(chosen), stand_out


def differing(spec: FitSpec, names: tuple[str, ...], columns: Array, found: FitResult) -> Phase[Array]:
    """Places of the columns in which components of a fit differ, or have coefficients: of those it used, and others."""
    agreed, census = yield from common_units(spec, names)
    p = census.mean.shape[1] - spec.family.has_target
    return (yield from with_agreement(_differing(spec, p, columns, found), agreed))


def _differing(spec: FitSpec, p: int, columns: Array, found: FitResult) -> Phase[Array]:
    n_sites = len(found.n_rows)
    params = Params(found.weights, found.theta, found.noise)
    told = Progress("columns", EXCHANGES, EXCHANGES, float("nan"))
    replies = yield Ask("contrast", Found(params, np.tile(columns, (n_sites, 1))), told)
    reply: Contrast = replies.mail
    weight = capped_rows(reply.n_rows)
    count = float(weight.sum())

    def mean(leaf: Array) -> Array:
        return combined(leaf / reply.n_rows.reshape(-1, *(1,) * (leaf.ndim - 1)), weight)

    away = mean(reply.away)
    if not spec.family.has_target:
        share = np.maximum(mean(reply.held), 1e-12)
        score, _ = column_scores(away / share[:, None], share * count)
        differs = score > least_score(max(1, spec.n_components - 1), p)
        differs[columns] = (found.center != found.center[:1]).any(axis=0)
        return np.flatnonzero(differs)
    assert reply.known is not None
    assert reply.gram is not None
    known = mean(reply.known)
    score = count * slope_scores(away, known)
    coefficients = spec.family.to_noise(found.center, found.center_noise)
    score[columns] = count * coefficient_scores(coefficients, known, mean(reply.gram))[: len(columns)]
    return np.flatnonzero(score > least_score(spec.n_components, p))


def run_sparse(
    spec: FitSpec, engine: Callable[[FitSpec], Engine], on_progress: Callable[[Progress], None] | None = None
) -> FitResult:
    """Seek informative columns, fit on these, and again until these are the ones that matter to the fit.

    ``engine`` makes one for a spec, which names the columns that a fit is about.
    """
    whole = engine(spec)
    names = whole.site_names
    (columns, stand_out), cost = converse(find_columns(spec, names), whole, on_progress)
    costs = [cost.as_dict()]
    fits: dict[tuple[int, ...], FitResult] = {}
    while True:
        kept = tuple(columns.tolist())
        here = replace(spec, units=spec.units._replace(kept=kept))
        result = run(here, engine(here), on_progress)
        found, cost = converse(differing(spec, names, columns, result), whole, on_progress)
        costs += [dict(result.cost), cost.as_dict()]
        fits[kept] = result._replace(columns=columns)
        wanted = tuple(found.tolist())
        if not wanted or wanted in fits or len(fits) == FITS:
            # A column that comes in by one fit and goes by the next stays out.
            last = fits[wanted] if wanted in fits and set(wanted) < set(kept) else fits[kept]
            return last._replace(columns_stand_out=stand_out and len(found) > 0, cost=_total(costs))
        columns = found


def _total(costs: list[dict[str, int]]) -> dict[str, int]:
    """Of all conversations; a round's numbers are those of the last fit."""
    found: dict[str, int] = {}
    for cost in costs:
        for name, number in cost.items():
            found[name] = (number or found.get(name, 0)) if name == "numbers_per_round" else found.get(name, 0) + number
    return found
