"""What each site gained over fitting alone, judged on rows that neither fit has seen; and the rows that are given."""

import warnings
from typing import Any, NamedTuple
from zlib import crc32

import narwhals as nw
import numpy as np

from fedgrem.data.tables import column_names, gather, gather_values, is_frame
from fedgrem.errors import InputError, ShapeError
from fedgrem.estimators.base import BaseFederatedMixture
from fedgrem.report.attributes import check_fitted, has_response
from fedgrem.report.attributes import column_names as fitted_columns
from fedgrem.report.text import listed
from fedgrem.types import Array

ALONE = "local-em"
CLEAR = 2.0
"""Standard errors from which on a gain or a loss is clear."""
FEWEST_HELD = 2
"""Rows that a site must hold back to be judged: fewer have no standard error."""


class GivenRows(NamedTuple):
    """Rows of sites that the model knows."""

    rows: Any
    """(N, p) array or data frame."""
    target: Array | None
    """(N,) responses of a regression."""
    site: Array
    """(N,) index into the model's ``site_names_``."""
    unknown: list[str]
    """Sites that were not fitted; their rows are left out."""

    def take(self, which: Array) -> "GivenRows":
        """Some of the rows: those at these places, or where a mask is true."""
        place = np.flatnonzero(which) if which.dtype == bool else which
        rows = (
            nw.from_native(self.rows, eager_only=True)[place].to_native() if is_frame(self.rows) else self.rows[place]
        )
        return self._replace(
            rows=rows, target=None if self.target is None else self.target[place], site=self.site[place]
        )


def given_rows(model: BaseFederatedMixture, X: Any, y: Any = None, sites: Any = None) -> GivenRows:
    """Check that rows are of the model's columns and of its sites.

    Parameters
    ----------
    model : a fitted model.
    X, y, sites : as in ``fit``.
    """
    check_fitted(model)
    table = gather(model._as_numbers(X, sites) if has_response(model) else X, sites)
    _check_columns(model, table.rows)
    target = None
    if has_response(model):
        if y is None:
            raise InputError("a mixture of regressions is judged by its responses; give them as y=.")
        target = np.asarray(gather_values("y", y, table), dtype=float)
        if target.shape != table.site_of_row.shape:
            raise ShapeError(f"y has shape {target.shape}, expected {table.site_of_row.shape}, one value per row.")
    place = {str(name): k for k, name in enumerate(model.site_names_)}
    site = np.array([place.get(str(label), -1) for label in table.labels])[table.site_of_row]
    unknown = [str(label) for label in table.labels if str(label) not in place]
    if not (site >= 0).any():
        raise InputError(
            f"no row is of a fitted site: the rows are of {listed(unknown)}, the model of {listed(list(place))}; "
            "name the site of each row with sites=."
        )
    rows = table.rows if is_frame(table.rows) else np.asarray(table.rows)
    given = GivenRows(rows, target, site, unknown)
    return given.take(site >= 0) if unknown else given


def _check_columns(model: BaseFederatedMixture, rows: Any) -> None:
    names, fitted = column_names(rows), fitted_columns(model)
    if names is not None and fitted and names != fitted:
        lacking = [name for name in fitted if name not in names]
        remedy = (
            f"the rows lack {listed(lacking)}: add every fitted column, under its name"
            if lacking
            else "take these, in this order: X[list(model.feature_names_in_)]"
        )
        raise InputError(
            f"the rows have the columns {listed(names)}, the model was fitted on {listed(fitted)}; {remedy}."
        )
    shape = np.shape(rows)
    if len(shape) != 2 or shape[1] != model.n_features_in_:
        raise ShapeError(
            f"the rows have shape {shape}, expected (n, {model.n_features_in_}); give the columns of the fit, and no "
            "others."
        )


class SiteGain(NamedTuple):
    """One site: log-likelihood per held-out row, by the fit of all sites together and by its own fit."""

    name: str
    n_fitted: int
    n_held: int
    together: float
    alone: float
    gain: float
    """Together less alone; above 0 the site is better off with the others."""
    error: float
    """Standard error of the gain, from the differences of single rows."""

    @property
    def word(self) -> str:
        """Gains, loses, or unclear: within two standard errors."""
        return word_of(self.gain, self.error)


class Gains(NamedTuple):
    """All sites that could be judged."""

    sites: list[SiteGain]
    """In the order of the model's ``site_names_``."""
    too_small: list[str]
    """Sites with too few rows to hold any back."""
    unknown: list[str]
    """Sites of the rows that the model does not know; left out."""
    share: float
    """Of each site's rows held out."""
    settled: bool
    """Whether both fits settled."""

    def worst_first(self, suspect: frozenset[str]) -> list[SiteGain]:
        """Odd sites first, then those that lost most."""
        return sorted(self.sites, key=lambda site: (site.name not in suspect, site.gain))

    def over(self, names: set[str]) -> tuple[float, float]:
        """Gain per held-out row of these sites taken together, and its standard error."""
        chosen = [site for site in self.sites if site.name in names]
        held = np.array([site.n_held for site in chosen], dtype=float)
        if not len(held):
            return float("nan"), float("nan")
        share = held / held.sum()
        gain = float(share @ [site.gain for site in chosen])
        return gain, float(np.sqrt(share**2 @ [site.error**2 for site in chosen]))


def word_of(gain: float, error: float) -> str:
    """Gains, loses, or unclear.

    Examples
    --------
    >>> word_of(0.3, 0.1), word_of(0.1, 0.1), word_of(-0.3, 0.1)
    ('gains', 'unclear', 'loses')
    """
    if not abs(gain) > CLEAR * error:  # nor where there is none
        return "unclear"
    return "gains" if gain > 0 else "loses"


def measure_gain(
    model: BaseFederatedMixture, X: Any, y: Any = None, *, sites: Any = None, share: float = 0.2, seed: int = 0
) -> Gains:
    """Hold back some rows of every site, fit the rest together and alone, and score both on what was held back.

    Both fits have the model's options, except that alone means ``algorithm="local-em"``. Every row counts once.

    Parameters
    ----------
    model : a fitted model; it is not changed.
    X, y, sites : rows, as in ``fit``.
    share : of every site's rows to hold back.
    seed : of the split and of both fits.
    """
    given = given_rows(model, X, y, sites)
    names = [str(name) for name in model.site_names_]
    used, held = _split(given, names, model.weights_.shape[1], share, seed)
    if len(np.unique(given.site[used])) < 2 or not held.any():
        raise InputError(
            "the gain over fitting alone needs at least two sites with rows to fit and to hold back; give more rows, "
            "and name their sites with sites=."
        )
    seen, unseen = given.take(used & ~held), given.take(held)
    together = _refitted(model, seen, {"random_state": seed})
    alone = _refitted(model, seen, {"random_state": seed, "algorithm": ALONE, "penalty": "auto", "fallback": None})
    labels = model.site_names_[unseen.site]
    scores = [np.asarray(fit.score_samples(unseen.rows, unseen.target, sites=labels)) for fit in (together, alone)]
    judged = []
    for k in np.unique(unseen.site).tolist():
        ours, theirs = (score[unseen.site == k] for score in scores)
        error = float((ours - theirs).std(ddof=1) / np.sqrt(len(ours)))
        gain = float((ours - theirs).mean())
        n_fitted = int((seen.site == k).sum())
        judged.append(SiteGain(names[k], n_fitted, len(ours), float(ours.mean()), float(theirs.mean()), gain, error))
    known = {site.name for site in judged}
    too_small = [names[k] for k in np.unique(given.site).tolist() if names[k] not in known]
    return Gains(judged, too_small, given.unknown, share, bool(together.converged_ and alone.converged_))


def _split(given: GivenRows, names: list[str], n_components: int, share: float, seed: int) -> tuple[Array, Array]:
    """Which rows are used at all, and which are held back, ``(N,)`` each; what a site holds back is its own affair."""
    used, held = np.ones(len(given.site), dtype=bool), np.zeros(len(given.site), dtype=bool)
    for k in np.unique(given.site).tolist():
        mine = np.flatnonzero(given.site == k)
        n_held = round(share * len(mine))
        if len(mine) < n_components:
            used[mine] = False
        elif n_held >= FEWEST_HELD and len(mine) - n_held >= n_components:
            generator = np.random.default_rng([seed, crc32(names[k].encode())])
            held[generator.choice(mine, size=n_held, replace=False)] = True
    return used, held


def _refitted(model: BaseFederatedMixture, seen: GivenRows, changes: dict[str, Any]) -> BaseFederatedMixture:
    """A fit of the same options on other rows; starts that the user gave need all the sites they were given for."""
    options = model.get_params(deep=False) | {"n_components": model.weights_.shape[1]} | changes
    if len(np.unique(seen.site)) < len(model.site_names_):
        options |= {"weights_init": None, f"{model._theta_name}_init": None}
    fit: Any = type(model)(**options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # whether it settled is told with the gains
        fit.fit(seen.rows, seen.target, sites=model.site_names_[seen.site])
    refitted: BaseFederatedMixture = fit
    return refitted
