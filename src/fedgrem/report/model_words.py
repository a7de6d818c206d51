"""A fit in sentences, for people who do not read code."""

from collections.abc import Sequence
from datetime import datetime
from html import escape
from typing import NamedTuple

import numpy as np

from fedgrem import __version__
from fedgrem.algorithms.verdicts import FEWEST_SITES, NOT_JUDGED
from fedgrem.estimators.base import BaseFederatedMixture
from fedgrem.report.gain import Gains, word_of
from fedgrem.report.model_notes import ALGORITHM_WORDS, GROUPS
from fedgrem.report.numbers import number, signed
from fedgrem.report.study_stats import name_of
from fedgrem.report.summary import SiteSummary, Summary

ALONE = ("local-em", "local-grem", "tgmm")
"""Algorithms whose center nobody is moved to."""
SHARED = ("pooled-em", "pooled-grem", "fedem", "fedgmm", "fedem-sa")
"""Algorithms that give all sites the same components."""


class Origin(NamedTuple):
    """Where a model comes from, as far as its folder tells."""

    folder: str
    version: str
    saved: datetime


Line = tuple[str, str, str]
"""(kind, word, markup), for :func:`~fedgrem.report.page.marked_list`."""


def count(n: int, what: str) -> str:
    """A number of things.

    Examples
    --------
    >>> count(1, "site"), count(2000, "row")
    ('1 site', '2,000 rows')
    """
    return f"{n:,} {what}" + ("" if n == 1 else "s")


def listed(names: Sequence[str], most: int = 8) -> str:
    """Names in a row, the first few.

    Examples
    --------
    >>> listed(["a", "b", "c"], most=2)
    'a, b and 1 more'
    """
    return ", ".join(names[:most]) + (f" and {len(names) - most:,} more" if len(names) > most else "")


def headline(summary: Summary) -> str:
    """What the page is about."""
    return f"{summary.kind[:1].upper()}{summary.kind[1:]} over {count(len(summary.sites), 'site')}"


def lead(model: BaseFederatedMixture, summary: Summary) -> str:
    """What was done, in two sentences."""
    groups = GROUPS.get(type(model).__name__, "kinds of rows")
    text = f"{summary.n_rows:,.12g} rows at {count(len(summary.sites), 'site')} were described by "
    text += f"{count(summary.n_components, 'component')}: {groups}. "
    if model.algorithm.startswith("pooled"):
        return text + "All rows were taken together."
    if _way(model) == "alone" and model.algorithm != "tgmm":
        return text + "Each site was described by itself."
    return text + "The sites worked together without showing each other their rows."


def in_short(model: BaseFederatedMixture, summary: Summary, gains: Gains | None) -> list[Line]:
    """The page in a few marked lines."""
    lines = [*_agreement(model, summary), *_suspicion(summary), _settling(model, summary)]
    return lines + ([] if gains is None else [_gain_line(summary, gains)])


def facts(model: BaseFederatedMixture, summary: Summary, origin: Origin | None, made: datetime) -> dict[str, str]:
    """What was fitted, how, with what and when; markup."""
    rows = np.array([site.n_rows for site in summary.sites])
    per_site = f"{rows.min():,.12g} to {rows.max():,.12g} per site, the middle one {np.median(rows):,.12g}"
    if rows.min() == rows.max():
        per_site = f"{rows[0]:,.12g} at each site"
    told = {
        "model": f"{escape(summary.kind)} with {count(summary.n_components, 'component')}",
        "sites": count(len(summary.sites), "site"),
        "rows": f"{summary.n_rows:,.12g}" + (f" ({per_site})" if len(rows) > 1 else ""),
        "columns": escape(listed(_columns(model, summary), 24)),
        "method": f"{name_of(model.algorithm)}. {ALGORITHM_WORDS.get(model.algorithm, '')}",
    }
    if model.algorithm == "fedgrem":
        how = "chosen on held-out rows; " if hasattr(model, "penalty_path_") and model.penalty == "auto" else ""
        told["pull to the center"] = f"{summary.penalty:g} ({how}0 fits each site alone, inf gives one answer for all)"
    told["rounds"] = f"{summary.n_rounds:,}, {'settled' if summary.converged else 'not settled'}"
    told["sent per site"] = _numbers_sent(model)
    if origin is not None:
        told["fitted"] = f"saved on {_when(origin.saved)} by fedgrem {escape(origin.version)}"
        told["folder"] = f"<code>{escape(origin.folder)}</code>"
    told["this page"] = f"made on {_when(made)} by fedgrem {__version__}"
    return {key: value for key, value in told.items() if value}


def _way(model: BaseFederatedMixture) -> str:
    """Whether the fit pulled sites to the center, left them alone, or gave all the same components."""
    if model.algorithm in ALONE or (model.algorithm == "fedgrem" and model.penalty_ == 0):
        return "alone"
    return "shared" if model.algorithm in SHARED or np.isinf(model.penalty_) else "pulled"


def _agreement(model: BaseFederatedMixture, summary: Summary) -> list[Line]:
    n_sites, way = len(summary.sites), _way(model)
    if n_sites == 1:
        return [("open", "one site", "One site: there is nothing to compare it with.")]
    if way == "shared":
        alone = int(np.sum(getattr(model, "fitted_alone_", 0)))
        own = "a fit of its own" if alone == 1 else "fits of their own"
        but = f" but {alone:,}, with {own}," if alone else ""
        return [("open", "shared", f"All sites{but} share the components, by construction; only their weights differ.")]
    if way == "alone":
        return [("open", "own", "Every site has an answer of its own; the center is only the middle of the sites.")]
    lines: list[Line] = []
    at_it = "at the common center in every component"
    for word, kind, one, many in (
        (
            "at the center",
            "yes",
            f"is {at_it}: its rows gave no reason to differ",
            f"are {at_it}: their rows gave no reason to differ",
        ),
        (
            "similar",
            "open",
            "is close to it, but not in every component: its rows gave some reason to differ",
            "are close to it, but not in every component: their rows gave some reason to differ",
        ),
        (
            "own answer",
            "open",
            "has an answer of its own: its rows clearly speak for it",
            "have answers of their own: their rows clearly speak for them",
        ),
    ):
        n = sum(site.verdict == word for site in summary.sites)
        if n:
            lines.append((kind, word, f"<b>{n:,} of {count(n_sites, 'site')}</b> {one if n == 1 else many}."))
    return lines


def _suspicion(summary: Summary) -> list[Line]:
    if len(summary.sites) < FEWEST_SITES:
        return [("open", "suspect", f"With fewer than {FEWEST_SITES} sites nobody can say which one is suspect.")]
    if all(site.verdict == NOT_JUDGED for site in summary.sites):
        return [("open", "not judged", "The sites were not judged: this fit has no center to hold them against.")]
    suspect = [site for site in summary.oddest_first if site.suspect]
    if not suspect:
        none = "none is farther out, or stranger to itself, than its size and the other sites explain."
        return [("yes", "none suspect", f"<b>No site</b> is suspect: {none}")]
    names = listed([f"{site.name} ({why(site)})" for site in suspect], 5)
    are = "is" if len(suspect) == 1 else "are"
    text = (
        f"<b>{len(suspect):,} of {count(len(summary.sites), 'site')}</b> {are} suspect: {escape(names)}. Of honest "
        f"sites about {summary.false_alarm:.0%} are called so. Look at the rows there first: units, coding, or "
        "another kind of case."
    )
    return [("no", "suspect", text)]


def why(site: SiteSummary) -> str:
    """What speaks most against a suspect site, in a few words.

    Examples
    --------
    >>> told = {"p_distance": 1e-4, "p_fit": 0.2, "p_value": 2e-4, "distance": 6.0, "expected": 1.0, "fit": -1.0}
    >>> why(SiteSummary("west", 150.0, [1.0], [5.0], 0, 5.0, "suspect", told, True))
    '6.00 from the center, where 1.00 would be usual'
    """
    found = site.evidence
    if found["p_value"] == 0.0 and found["p_distance"] > 0.0 and found["p_fit"] > 0.0:
        return "what it reported cannot all be true"
    if found["p_distance"] <= found["p_fit"]:
        return f"{number(found['distance'])} from the center, where {number(found['expected'])} would be usual"
    return f"its rows fit {'worse' if found['fit'] < 0 else 'better'} than those of other sites"


def vanishing(summary: Summary, most: int) -> str:
    """Which sites hold next to no rows of which components, and what stands there then; empty if none do.

    Parameters
    ----------
    summary : of the model.
    most : how many sites to name in a sentence; the others are counted.
    """
    sentences = []
    for at_center, stands in ((True, "is the center's"), (False, "rests on next to nothing")):
        told: list[str] = []
        for site in summary.sites:
            gone = [str(r) for r in site.vanished if (site.distance[r] == 0.0) == at_center]
            if gone:
                which = f"component{'' if len(gone) == 1 else 's'} {' and '.join(gone)}"
                told.append(f"{site.name} {'of' if told else 'has next to no rows of'} {which}")
        if told:
            more = [f"and {count(len(told) - most, 'more site')} of some"] if len(told) > most else []
            sentences.append(f"{', '.join(told[:most] + more)}; what stands there {stands}.")
    return " ".join(sentences)


def _settling(model: BaseFederatedMixture, summary: Summary) -> Line:
    moving = [site.name for site in summary.sites if not site.settled]
    rounds = count(summary.n_rounds, "round")
    if not summary.converged:
        fixed = model.tol <= 0
        why = f"The fit played the {rounds} it was told to." if fixed else f"The fit had not settled after {rounds}."
        also = (
            "" if fixed else f" Still moving: {escape(listed(moving, 5))}. Allow it more rounds before relying on it."
        )
        return ("open" if fixed else "no", "played" if fixed else "not settled", why + also)
    also = f" Still moving a little: {escape(listed(moving, 5))}." if moving else ""
    return "yes", "settled", f"The answer stopped moving after <b>{rounds}</b>.{also}"


def _gain_line(summary: Summary, gains: Gains) -> Line:
    ordinary = {site.name for site in summary.sites if not site.suspect}
    gain, error = gains.over(ordinary)
    words = [site.word for site in gains.sites]
    word = word_of(gain, error)
    kind = {"gains": "yes", "loses": "no"}.get(word, "open")
    said = {"gains": "better", "loses": "worse"}.get(word, "not clearly better or worse")
    losers = [site.name for site in gains.sites if site.word == "loses"]
    lost = f"{len(losers):,} clearly lost ({escape(listed(losers, 5))})" if losers else "none clearly lost"
    whose = "sites that are not suspect" if len(ordinary) < len(summary.sites) else "all sites"
    text = (
        f"On rows that were held back, working together was <b>{said}</b> than fitting alone: {signed(gain, 3)} ± "
        f"{error:.3f} in log-likelihood per row, over {whose}. {words.count('gains'):,} of "
        f"{count(len(words), 'site')} clearly gained, {lost}."
    )
    return kind, word, text


def _columns(model: BaseFederatedMixture, summary: Summary) -> list[str]:
    names = [str(name) for name in getattr(model, "feature_names_in_", [])]
    return names or (summary.parameters if model._theta_name != "params" else [])


def _numbers_sent(model: BaseFederatedMixture) -> str:
    """What leaves a site, where the fit counted it."""
    per_round = model.cost_.get("numbers_per_round")
    if per_round is None or _way(model) == "alone" or model.algorithm.startswith("pooled"):
        return ""
    return f"about {count(int(per_round) // len(model.site_names_), 'number')} per round, however many rows it has"


def _when(time: datetime) -> str:
    return f"{time.day} {time:%B %Y, %H:%M}"
