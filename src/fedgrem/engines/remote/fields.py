"""The tables of what leaves a site, from the tasks themselves: `python -m fedgrem.engines.remote.fields`.

docs/what-leaves.md holds what this prints, and a test compares the two.
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from fedgrem.algorithms.fedem_sa import FedEMSA
from fedgrem.algorithms.fedgmm import FedGMM
from fedgrem.algorithms.fedgrem import FedGrEM
from fedgrem.data.units import UnitsPlan
from fedgrem.engines.remote.declaration import CENSUS, STEP, Declaration
from fedgrem.errors import MessageError
from fedgrem.families.base import Family
from fedgrem.families.covariance import Tied
from fedgrem.families.gaussian import Gaussian
from fedgrem.families.regression import LinearRegression
from fedgrem.fit.private_site import TASKS as PRIVATE_TASKS
from fedgrem.fit.spec import FitSpec
from fedgrem.fit.sums_site import KEYS
from fedgrem.types import named_arrays

N_COMPONENTS, N_COLUMNS = 2, 3
TITLES = {
    CENSUS: "First report, once per fit",
    "start": "A start, once or twice before round 1",
    "joint_start": "Joint starts, 30 times before round 1 (regressions only)",
    "compare": "The exchange of starts, once before round 1",
    "path_step": "The choice of the penalty, at most 12 times before round 1",
    "path_score": "What came of it, once or twice before round 1",
    "weights_score": "Whether mixture weights are common, once before round 1",
    STEP: "Every round",
    "score": "At the end, where several numbers of components are compared",
    "birth": "Where a number of components was chosen: one that only some sites have, at most 3 times after rounds",
    "hold": "Likewise: which components a site has, at most 6 times",
    "private_columns": "A private fit: where columns lie, once, and nothing before it",
    "private_moments": "A private fit: second moments, once",
    "private_cells": "A private fit: rows by cells, twice",
    "private_step": "A private fit: steps, four times, and nothing after them",
    "held_down": "At the end, with `robust_rows`",
    "look": "A last look, once after the rounds",
    "information": "Standard errors, once at the end",
}
"""Of the tasks, in the order of a fit."""
SUM_TITLES = {
    KEYS: "Secure sums: the first report, once per fit, instead of the one above",
    "sum_middle": "Secure sums: units, at most 61 times before the starts",
    "sum_guess": "Secure sums: joint starts, 20 times before round 1",
    "sum_begin": "Secure sums: the common start, once or twice",
    "sum_round": "Secure sums: every round",
    "sum_pass": "Secure sums: more passes, at most 4 a round",
    "sum_gain": "Secure sums: the choice of the penalty, once before round 1",
    "sum_end": "Secure sums: once at the end",
}
"""Likewise of the tasks of a fit that sees sums only."""
WORDS = {
    "key": "a public key, made for this fit",
    "width": "how many columns the site has, the response among them",
    "masked": "whole numbers modulo 2^64 that look like noise, and open only in the sum over all sites",
    "sealed": "bytes that only the site itself can read: what it wants to be told in the next order",
    "n_rows": "how many rows the site has (the sum of their weights)",
    "mean": "the mean of every column, and of the response of a regression",
    "deviation": "the standard deviation of every column, likewise",
    "seen": "in how many rows the column has a cell (the sum of their weights), likewise",
    "gaps": "whether any cell is missing",
    "names": "the names of the columns, as text, so that columns are not mixed up; not sent where the fit names them",
    "weights": "the share of the rows that each component holds",
    "theta": "the mean of each component; for regressions its coefficients, the intercept last",
    "noise": "the covariance within components: logarithms and a triangular factor; for regressions the log noise",
    "step_scale": "how long the last step was, relative to the usual one",
    "log_likelihood": "of all rows together",
    "choice": "which of several starts the site took",
    "base": "whether that is about the site's own components (0) or the center's (1)",
    "lead": "how much better the rows are explained by its own components than by the center's, in log-likelihood",
    "loss": "by how much worse the rows would be explained without each component; 0 for what the site lacks",
    "gain": "for each penalty, the mean gain in held-out log-likelihood per row over fitting alone",
    "birth.gain": "by how much better the rows are explained with one more component, in log-likelihood",
    "error": "the standard errors of these",
    "entropy": "how unsure the components of all rows are together; 0 if each row surely belongs to one",
    "held_down": "the share of the rows that does not count, being of no component; 0 below the floor",
    "at_center": "log-likelihood of the center's components, with weights of the site's own",
    "packed": "the observed information matrix, half of a symmetric matrix: sums over rows of products of scores",
    "sums": "posterior sums of the columns and of products of two columns, per component",
    "joint": "how groups of covariates and components go together",
    "covariates": "posterior sums of the covariates and of products of two of them",
    "regressions": "posterior sums of products of covariates and response, per component",
    "difference": "posterior sums less what was expected of the site, compressed",
    "noisy": "sums over rows, with noise in every one: see docs/privacy.md",
    "added": "the standard deviation of that noise, which no row has a part in",
    "rest": "sums of products of two columns, or of the squared response, over all rows",
}
"""What the fields are, by the last part of their names."""


def tables() -> Iterator[tuple[str, list[tuple[str, int, str]]]]:
    """Titles, and below each the fields with their numbers (for two components of three columns) and their words."""
    gaussian, regression = Gaussian(Tied(), robust_rows=True), LinearRegression(noise="shared")
    for task, title in TITLES.items():
        family: Family = regression if task == "joint_start" else gaussian
        spec = FitSpec(family, FedGrEM(), N_COMPONENTS, score=True, units=_units(family))
        if task in ("birth", "hold"):
            spec = replace(spec, some=N_COMPONENTS)
        if task in PRIVATE_TASKS:
            spec = replace(spec, score=False, ranges=((0.0, 10.0),) * N_COLUMNS)
        yield title, _fields(spec, task)
    sums = FitSpec(gaussian, FedGrEM(), N_COMPONENTS, units=_units(gaussian), secure_sums=True)
    for task, title in SUM_TITLES.items():
        yield title, _fields(sums, task)
    for algorithm, family in ((FedGMM(), gaussian), (FedGMM(), regression), (FedEMSA(), gaussian)):
        spec = FitSpec(family, algorithm, N_COMPONENTS, units=_units(family))
        extra = [row for row in _fields(spec, STEP) if row[0].startswith("extra.")]
        kind = "regressions" if family.has_target else "Gaussians"
        yield f"More in every round of {algorithm.traits.title}, {kind}", extra


def _units(family: Family) -> UnitsPlan:
    return UnitsPlan(standardize=True, intercept=family.has_target)


def _fields(spec: FitSpec, task: str) -> list[tuple[str, int, str]]:
    declared = Declaration(spec, N_COLUMNS).forms(task)[-1].reply
    rows = []
    for name, leaf in named_arrays(declared):
        word = f"{task}.{name}" if f"{task}.{name}" in WORDS else name.rpartition(".")[2]
        if word not in WORDS:
            raise MessageError(f"{name} of {task} has no words that say what it is; add them to WORDS.")
        rows.append((name, int(np.prod(leaf.shape, dtype=int)), WORDS[word]))
    return rows


def markdown() -> str:
    """All of it, as it stands in the document."""
    lines = []
    for title, rows in tables():
        lines += [f"### {title}", "", "| field | numbers | what it is |", "|---|---|---|"]
        lines += [f"| `{name}` | {count} | {words} |" for name, count, words in rows]
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


if __name__ == "__main__":
    print(markdown(), end="")
