"""A fitted model in plain values: what is common, which sites agree and which are suspect; also as text and as HTML."""

from html import escape
from typing import Any, NamedTuple

import numpy as np

from fedgrem.algorithms.holders import FEWEST
from fedgrem.algorithms.registry import as_algorithm
from fedgrem.estimators.base import BaseFederatedMixture
from fedgrem.estimators.table import FederatedTableMixture
from fedgrem.fit.verdicts import FALSE_ALARM, SUSPECT
from fedgrem.report import attributes as of
from fedgrem.report.text import capital, count, largest, listed, most_telling, n_cells, paragraph, short, text_table
from fedgrem.report.words import agreement, suspicion, those_of_some, vanishing

MOST_SITES = 20
MOST_PARAMETERS = 20
MOST_NOTES = 5
"""On columns, that a text holds."""
MOST_VANISHED = 5
"""Sites without rows of some component that a text names."""
NO_CENTER = "No center is shown: with a penalty of 0 every site was fitted alone, and nothing is common."
FEWEST_COLUMNS, COLUMN_WIDTH, ERROR_WIDTH = 2, 7, 17
FROM_SUMS = "What they found stayed with them: the center has seen sums over them, and nothing else (secure sums)."
OTHER_CELLS = 46
"""Width of a line about a site beside its name and its weights."""


class SiteSummary(NamedTuple):
    """One site against the common center."""

    name: str
    n_rows: float
    """Total row weight."""
    weights: list[float]
    distance: list[float]
    """Of each component from the center; 0 means exactly at it."""
    n_at_center: int
    farthest: float
    verdict: str
    """In a word, as in ``site_verdict_``: at the center, similar, own answer, suspect, or not judged."""
    evidence: dict[str, float]
    """What the verdict rests on, as in ``site_evidence_``; empty if the site was not judged."""
    settled: bool
    vanished: tuple[int, ...] = ()
    """Components of which it holds less than one row."""
    lacking: tuple[int, ...] = ()
    """Components that only other sites have."""
    own: tuple[int, ...] = ()
    """Components that too few sites have for a center."""
    held_down: float | None = None
    """The share of its rows that does not count, being of no component; None where it did not say."""
    same_as: tuple[str, ...] = ()
    """Sites that say nearly the same as this one, closer than rows of their own would let them."""
    apart_with: tuple[str, ...] = ()
    """Sites with which it stands apart from the others."""

    @property
    def suspect(self) -> bool:
        """Whether the verdict says so."""
        return self.verdict == SUSPECT


class Summary(NamedTuple):
    """A fitted model."""

    kind: str
    n_components: int
    n_rounds: int
    converged: bool
    penalty: float
    pull: str
    parameters: list[str]
    """Names of the parameters of a component: the columns, where a component has one parameter per column."""
    center: list[list[float]]
    center_errors: list[list[float | None]] | None
    """Standard errors of the centers, None where nothing can be said, or where none were asked for."""
    center_weights: list[float]
    typical_distance: float
    """Median over sites of the distance of the farthest component from its center."""
    suspect_beyond: float
    """Distance of a site's own answer beyond which the middle site is suspect."""
    false_alarm: float
    """Share of honest sites that are called suspect, as stated; docs/verdicts.md says when it is more."""
    sites: list[SiteSummary]
    """In the order of ``site_names_``."""
    selection: dict[str, Any] | None = None
    """How the number of components was chosen; None if it was given."""
    parameter_units: list[float] | None = None
    """What makes the parameters comparable, one for each."""
    center_intercept: list[float] | None = None
    """Of each component of a regression; None where it has none."""
    center_intercept_errors: list[float | None] | None = None
    """Standard errors of the intercepts, likewise."""
    center_noise: list[float] | None = None
    """Standard deviation about each component of a regression; None where it has none."""
    algorithm: str = "fedgrem"
    method: str = "FedGrEM"
    """The algorithm as the papers write it."""
    sharing: str = "pulled"
    """Whether sites were pulled to the center, left alone, or given the same components: pulled, alone or shared."""
    n_local_only: int = 0
    """Sites that were given their own fit back."""
    profile: list[list[str]] | None = None
    """What tells each component from the others, in words; None where the centers say it themselves."""
    notes: tuple[str, ...] = ()
    """Sentences about columns that are missing or constant at a site."""
    private: bool = False
    """Whether sites added noise for the privacy of their rows."""

    @property
    def n_rows(self) -> float:
        """Total row weight of all sites."""
        return sum(site.n_rows for site in self.sites)

    @property
    def has_center(self) -> bool:
        """Whether anything is common: where sites were fitted alone, what stands for a center means nothing."""
        return self.sharing != "alone" or self.penalty > 0 or len(self.sites) == 1

    @property
    def from_sums(self) -> bool:
        """Whether what the sites found is known to them only."""
        return all(np.isnan(site.farthest) for site in self.sites)

    @property
    def oddest_first(self) -> list[SiteSummary]:
        """Suspects, then the others; each by distance from the center, the farthest first."""
        return sorted(self.sites, key=lambda site: (not site.suspect, -site.farthest))

    def as_plain(self) -> dict[str, Any]:
        """Dicts, lists and numbers only, ready for JSON; infinity becomes a string, which JSON has no number for."""
        plain = self._asdict() | {"n_sites": len(self.sites), "sites": [site._asdict() for site in self.sites]}
        if self.from_sums:
            plain |= {"typical_distance": None, "sites": [{"name": site.name} for site in self.sites]}
            return plain | {"notes": list(self.notes)} | {k: _in_json(plain[k]) for k in ("penalty", "suspect_beyond")}
        for site in plain["sites"]:
            site["evidence"] = {key: _in_json(value) for key, value in site["evidence"].items()}
            site |= {key: list(site[key]) for key in ("vanished", "lacking", "own")}
        plain["notes"] = list(self.notes)
        return plain | {key: _in_json(plain[key]) for key in ("penalty", "suspect_beyond")}


def _in_json(value: float) -> float | str:
    return value if np.isfinite(value) else str(value)


def _or_none(value: float) -> float | None:
    return value if np.isfinite(value) else None


def summarize(model: BaseFederatedMixture) -> Summary:
    """Collect what was found.

    Examples
    --------
    >>> from fedgrem import FederatedGaussianMixture
    >>> from fedgrem.data.simulate import simulate
    >>> model = FederatedGaussianMixture(n_components=5, random_state=0).fit(simulate("gmm", h=0.5, seed=1).rows)
    >>> [site.name for site in summarize(model).sites if site.suspect]
    ['site-10']
    """
    of.check_fitted(model)
    unsettled, has = set(model.unsettled_sites_.tolist()), model.has_component_
    own = (has.sum(axis=0) < FEWEST) & ~has.all(axis=0)
    errors, intercept, noise = model.center_se_, of.center_line(model, "intercept"), of.center_line(model, "noise")
    of_intercept = None if intercept is None else getattr(model, "center_intercept_se_", None)
    sites = [
        SiteSummary(
            name=str(name),
            n_rows=float(model.n_rows_[k]),
            weights=model.weights_[k].tolist(),
            distance=model.site_distance_[k].tolist(),
            n_at_center=int(model.at_center_[k].sum()),
            farthest=float(model.site_distance_[k].max()),
            verdict=str(model.site_verdict_[k]),
            evidence={key: float(value[k]) for key, value in model.site_evidence_.items() if np.ndim(value)},
            settled=str(name) not in unsettled,
            vanished=tuple(np.flatnonzero(model.vanished_[k]).tolist()),
            lacking=tuple(np.flatnonzero(~has[k]).tolist()),
            own=tuple(np.flatnonzero(has[k] & own).tolist()),
            held_down=_or_none(float(model.rows_held_down_[k])),
            same_as=_sharing(model, "same", k),
            apart_with=_sharing(model, "group", k),
        )
        for k, name in enumerate(model.site_names_)
    ]
    return Summary(
        kind=of.kind(model),
        n_components=int(model.weights_.shape[1]),
        n_rounds=int(model.n_rounds_),
        converged=bool(model.converged_),
        penalty=float(model.penalty_),
        pull=of.pull_words(model),
        parameters=of.parameter_names(model),
        center=model.center_.tolist(),
        center_errors=None if errors is None else [[_or_none(error) for error in row] for row in errors.tolist()],
        center_weights=model.center_weights_.tolist(),
        typical_distance=float(np.median(model.site_distance_.max(axis=1))),
        suspect_beyond=float(np.median(of.suspect_beyond(model))),
        false_alarm=FALSE_ALARM,
        sites=sites,
        selection=of.selection_of(model),
        parameter_units=of.parameter_units(model).tolist(),
        center_intercept=None if intercept is None else intercept.tolist(),
        center_intercept_errors=None if of_intercept is None else [_or_none(error) for error in of_intercept.tolist()],
        center_noise=None if noise is None else noise.tolist(),
        algorithm=as_algorithm(model.algorithm).name,
        method=of.traits(model).title,
        sharing=of.sharing(model),
        n_local_only=int(model.local_only_.sum()),
        profile=model.profile() if isinstance(model, FederatedTableMixture) else None,
        notes=(*of.sparse_notes(model), *of.robust_notes(model), *map(str, model.notes_)),
        private=model.privacy is not None,
    )


def _sharing(model: BaseFederatedMixture, number: str, k: int) -> tuple[str, ...]:
    """The other sites that share a site's number in the evidence."""
    numbers = model.site_evidence_.get(number)  # older saved models have none
    if numbers is None or numbers[k] < 0:
        return ()
    return tuple(str(name) for j, name in enumerate(model.site_names_) if j != k and numbers[j] == numbers[k])


def summary_text(model: BaseFederatedMixture, width: int = 80) -> str:
    """What was found, as ``fedgrem show`` prints it: the number of components if chosen, centers, sites, verdicts."""
    summary = summarize(model)
    chosen = [] if summary.selection is None else [selection_text(summary.selection)]
    return "\n\n".join([*chosen, text_of(summary, width)])


def html_summary(model: BaseFederatedMixture) -> str:
    """The sites and their verdicts as a fragment of HTML, for a notebook."""
    summary = summarize(model)
    sites = summary.oddest_first[:MOST_SITES]
    if summary.from_sums:
        return "".join(f"<p>{escape(line)}</p>" for line in [*_headline(summary), FROM_SUMS])
    head = "".join(f"<th>{name}</th>" for name in ("site", "verdict", "rows", "at center", "farthest"))
    rows = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in _site_cells(s, summary))}</tr>" for s in sites)
    first, second = (escape(line) for line in _headline(summary))
    told = "<br>".join(escape(line) for line in (_more_sites(summary, len(sites)), *_sentences(summary)) if line)
    return (
        f"<div><p><b>{first}</b><br>{second}</p><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
        f"<p>{told}</p></div>"
    )


def text_of(summary: Summary, width: int = 80, most_sites: int = MOST_SITES) -> str:
    """A headline, the centers, the sites and what to make of them, as plain text."""
    parts = [_headline(summary), _center_lines(summary, width), _profile_lines(summary)]
    parts += [_site_lines(summary, width, most_sites), _matrix_lines(summary, width, most_sites), _sentences(summary)]
    parts = [part for part in parts if any(part)]
    return "\n\n".join(
        "\n".join(line if "\n" in line else paragraph(line, width) for line in part if line) for part in parts
    )


def selection_text(found: dict[str, Any]) -> str:
    """One line per number of components, the chosen one marked."""
    names = {"log_likelihood": "log-likelihood", "n_parameters": "parameters", "bic": "BIC", "icl": "ICL"}
    names["error"] = "error"
    rows = []
    for place, tried in enumerate(found["n_components"]):
        cells = [selection_cell(found[name][place]) for name in names]
        cells += [str(found["rounds"][place]), "" if found["settled"][place] else "not settled"]
        rows.append([f"{tried}{' *' if tried == found['chosen'] else ''}", *cells])
    title = f"How many components: {found['chosen']}, by {found['criterion'].upper()} (the least is best)\n"
    return title + text_table(["components", *names.values(), "rounds", ""], rows) + "\n" + flatness(found)


def flatness(found: dict[str, Any]) -> str:
    """What the errors say of the choice."""
    value = [np.inf if v is None else v for v in found[found["criterion"]]]
    least, criterion = found["n_components"][int(np.argmin(value))], found["criterion"].upper()
    error = f"error: standard error of what {criterion} exceeds its least by, from the differences between sites."
    if least == found["chosen"]:
        return error
    return f"{error} {least} has the least, but {found['chosen']} is not clearly worse (within one error), and smaller."


def selection_cell(value: float | None) -> str:
    """A number of the curve by which the number of components was chosen."""
    if value is None:
        return "-"
    return f"{value:,.1f}" if isinstance(value, float) else f"{value:,}"


def _headline(summary: Summary) -> list[str]:
    """Sites, components, rows, rounds; whether it settled."""
    sites = count(len(summary.sites), "site")
    rows = "from sums" if summary.from_sums else f"{summary.n_rows:,.6g} rows"
    moving = listed([site.name for site in summary.sites if not site.settled], 5)
    settled = f"settled; still moving: {moving}." if moving else "settled."
    if not summary.converged:
        moving = moving or "nobody knows who"
        settled = f"NOT settled, still moving: {moving}; raise max_rounds or tol."
    return [
        f"{capital(summary.kind)}: {count(summary.n_components, 'component')} over {sites}, {rows}",
        f"{count(summary.n_rounds, 'round')} of {summary.method} with {summary.pull}, {settled}",
    ]


def _center_lines(summary: Summary, width: int) -> list[str]:
    """Parameters down, components across; the largest components and the most telling parameters if there are many."""
    if not summary.has_center:
        return [NO_CENTER]
    center, weights = np.array(summary.center), np.array(summary.center_weights)
    names = [short(name) for name in summary.parameters]
    space = width - max(map(n_cells, [*names, "typical weight"])) - 2
    shown = largest(weights, max(FEWEST_COLUMNS, space // (COLUMN_WIDTH + 2)))
    kept = most_telling(center, summary.parameter_units or np.ones(len(names)), MOST_PARAMETERS)
    errors = summary.center_errors if len(center) * (ERROR_WIDTH + 2) <= space else None
    lines: list[tuple[str, list[float], list[float | None] | None]] = [
        (names[j], center[:, j].tolist(), None if errors is None else [row[j] for row in errors]) for j in kept
    ]
    of_intercept = None if errors is None else summary.center_intercept_errors
    lines += [("intercept", summary.center_intercept or [], of_intercept), ("noise", summary.center_noise or [], None)]
    rows = [["typical weight", *(f"{weights[r]:.2f}" for r in shown)]]
    rows += [[name, *_with_errors(values, known, shown)] for name, values, known in lines if values]
    return [
        "Centers\n" + text_table(["component", *map(str, shown)], rows),
        _typical_error(summary),
        _more(len(center), len(shown), "component", "of the largest weight"),
        _more(len(names), len(kept), "parameter", "in which the centers differ most"),
    ]


def _with_errors(values: list[float], errors: list[float | None] | None, shown: list[int]) -> list[str]:
    """Numbers, with their standard errors where there is room: a dash for one that means nothing."""
    if errors is None:
        return [_number(values[r]) for r in shown]
    known = [errors[r] for r in shown]
    told = ["-" if error is None else _number(error) for error in known]
    width = max(map(len, told))
    return [f"{_number(values[r])} ± {error:>{width}}" for r, error in zip(shown, told, strict=True)]


def _typical_error(summary: Summary) -> str:
    """How well the centers are known, in one line: of many components the table has no room for more."""
    told = [error for row in summary.center_errors or [] for error in row]
    errors = [error for error in told if error is not None]
    if not told:
        return ""
    if not errors:
        return "Standard errors: - (the rows do not tell)."
    lacking = f" - for {len(told) - len(errors)} of {len(told)}, of which the rows do not tell."
    least, most = _number(float(np.median(errors))), _number(max(errors))
    return f"Standard errors: {least} in the middle, {most} at most{'.' if len(errors) == len(told) else ';' + lacking}"


def _profile_lines(summary: Summary) -> list[str]:
    """What tells the components apart, a line each."""
    if not summary.has_center:
        return []
    weights = summary.center_weights
    return [f"Component {r} ({weights[r]:.0%}): {'; '.join(told)}." for r, told in enumerate(summary.profile or [])]


def _site_lines(summary: Summary, width: int, most_sites: int) -> list[str]:
    """One line per site, the oddest first: weights, how much of it sits at the center, how far out it is."""
    if summary.from_sums:
        return [f"Sites: {listed([site.name for site in summary.sites], most_sites)}. {FROM_SUMS}"]
    sites = summary.oddest_first[:most_sites]
    names = min(24, max(8, width - OTHER_CELLS), max(4, *(n_cells(site.name) for site in sites)))
    space, weights = width - names - OTHER_CELLS, np.array(summary.center_weights)
    shown = largest(weights, max(0, space // 5)) if space >= 10 else []
    rows = [[*_site_cells(site, summary, names), *(_share(site.weights[r]) for r in shown)] for site in sites]
    return [
        "Sites\n" + text_table(["site", "", "rows", "at center", "farthest", *(f"w{r}" for r in shown)], rows, left=2),
        _more_sites(summary, len(sites)),
        _more(len(weights), len(shown), "weight", "of the largest components") if shown else "",
    ]


def _matrix_lines(summary: Summary, width: int, most_sites: int) -> list[str]:
    """Sites by components, with the weights; nothing where all sites have all components."""
    if not any(site.lacking for site in summary.sites):
        return []
    sites = sorted(summary.sites, key=lambda site: site.lacking)[:most_sites]
    names = min(24, max(4, *(n_cells(site.name) for site in sites)))
    total = len(summary.center_weights)
    # The components that only some have first, and in their order what the line has room for.
    wanted = sorted(range(total), key=lambda r: -sum(r in site.lacking for site in summary.sites))
    shown = sorted(wanted[: max(1, (width - names - 2) // 6)])
    rows = [[short(site.name, names), *(_held(site, r) for r in shown)] for site in sites]
    return [
        "Which site has which component, with its weight (-: it has not; *: its own, with no center)\n"
        + text_table(["site", *map(str, shown)], rows),
        _more(len(summary.sites), len(sites), "site", "that lack the fewest"),
        _more(total, len(shown), "component", "that the most sites lack"),
    ]


def _held(site: SiteSummary, component: int) -> str:
    if component in site.lacking:
        return "-"
    return _share(site.weights[component]) + "*" * (component in site.own)


def _site_cells(site: SiteSummary, summary: Summary, width: int = 24) -> list[str]:
    at_center = f"{site.n_at_center}/{summary.n_components - len(site.lacking)}"
    return [short(site.name, width), site.verdict, f"{site.n_rows:.6g}", at_center, _number(site.farthest)]


def _sentences(summary: Summary) -> list[str]:
    told = [] if summary.from_sums else [str(line) for line in agreement(summary)]
    told += [str(suspicion(summary))] if len(summary.sites) > 1 and not summary.from_sums else []
    more = len(summary.notes) - MOST_NOTES
    notes = [*summary.notes[:MOST_NOTES], *([f"And {more} notes more on columns."] if more > 0 else [])]
    return [*told, those_of_some(summary, MOST_VANISHED), vanishing(summary, MOST_VANISHED), *notes]


def _more_sites(summary: Summary, n_shown: int) -> str:
    return _more(len(summary.sites), n_shown, "site", "farthest from the center")


def _more(total: int, shown: int, what: str, which: str) -> str:
    return f"... the {shown} {what}s {which} are shown, of {total}." if shown < total else ""


def _number(value: float) -> str:
    if value == 0.0:
        return "0"
    return f"{value:.2f}" if 0.005 <= abs(value) < 1000 else f"{value:.1e}"


def _share(value: float) -> str:
    return f"{value:.2f}".removeprefix("0") if value < 0.995 else "1"
