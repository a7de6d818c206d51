"""Sentences about columns that say nothing at a site, which would otherwise go unseen."""

from collections.abc import Mapping, Sequence

import numpy as np

from fedgrem.data.federation import LEAST_VARIATION
from fedgrem.types import Array, FitResult

FEWEST_ROWS = 5
"""Rows of a site from which a column of one value is worth a sentence."""


class ColumnWarning(UserWarning):
    """A column is missing or constant at a site."""


def column_notes(
    names: Sequence[str],
    result: FitResult,
    levels: Mapping[str, Array],
    counts: Sequence[str],
    completed: bool,
) -> tuple[list[str], list[str]]:
    """Sentences that a user is to be warned by, and those that are only to be known.

    Parameters
    ----------
    names : of the columns.
    levels : names of the levels of columns that have any: one level for all is news, not a mistake.
    counts : names of columns of counts, of which the same is true.
    completed : whether the center's values stand for columns of which a site tells nothing.
    """
    grave: list[str] = []
    mild: list[str] = []
    mean, deviation = result.column_mean, result.column_deviation
    if mean is None or deviation is None:
        return grave, mild
    for k, site in enumerate(result.site_names):
        rows = float(result.n_rows[k])
        gaps = result.site_gaps is not None and bool(result.site_gaps[k])
        where = f"in all {rows:.6g} rows of site {site!r}"
        recorded = f"in all recorded cells of the {rows:.6g} rows of site {site!r}" if gaps else where
        after = "; the site takes part with its other columns, and has the center's values for this one" * completed
        for j, name in enumerate(names):
            if np.isnan(mean[k, j]):
                grave.append(f"{name} is missing {where}{after}.")
            elif deviation[k, j] < LEAST_VARIATION and rows >= FEWEST_ROWS:
                if name in levels:
                    mild.append(f"{name} is {str(levels[name][int(mean[k, j])])!r} {recorded}.")
                elif name in counts:
                    mild.append(f"{name} is {mean[k, j]:g} {recorded}.")
                else:
                    hint = f". If {mean[k, j]:g} stands for cells that were not recorded, make them missing"
                    grave.append(f"{name} is {mean[k, j]:g} {recorded}, and tells nothing there{after}{hint}.")
    return grave, mild
