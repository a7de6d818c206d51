"""Tables of the studies on real data: mis-clustering by contaminated sites, time, and what few rows do."""

import numpy as np

from fedgrem.report.names import name_of
from fedgrem.studies.pages.stats import Row, Table, effort_table, mean_of, paired, pick, stat
from fedgrem.studies.paper import MISCLUSTERING, SECONDS, Reported
from fedgrem.studies.specs import Setting, Study
from fedgrem.types import Array

NEAR = 0.3
"""Points of mis-clustering within which a method counts as good as the best."""
NOBODY = "none"
"""The panel of the setting without contamination, shared by all ways."""
WAYS = {
    "far": "rows far away",
    "permuted": "features permuted",
    "clump": "rows in a tight clump",
    NOBODY: "no contaminated sites",
}
"""Way of contamination -> what it is called in titles."""


def ways_of(study: Study) -> list[str]:
    """The ways in which sites are contaminated, in the order of the study."""
    found = list(dict.fromkeys(s.panel for s in study.settings if s.panel != NOBODY))
    return found or [NOBODY]


def settings_of(study: Study, way: str) -> list[Setting]:
    """Without contamination, then more and more of it in one way."""
    return [s for s in study.settings if s.panel in (NOBODY, way)]


def told(study: Study, percent: float, method: str) -> Reported | None:
    """What the paper prints for this share of contaminated sites."""
    return MISCLUSTERING.get(study.name, {}).get(percent, {}).get(method)


def mean_errors(study: Study, rows: list[Row], settings: list[Setting]) -> Array:
    """(methods, settings) mean mis-clustering; NaN where no seed gave a number."""
    return np.array([[mean_of(rows, "error", setting=s.name, method=m.name) for s in settings] for m in study.methods])


def least(means: Array) -> Array:
    """The best of every setting; infinity where there is none."""
    return np.asarray(np.where(np.isnan(means), np.inf, means).min(axis=0))


def real_tables(study: Study, rows: list[Row]) -> list[Table]:
    """All tables of a study on real data, the most telling first."""
    if study.name == "pen-small":
        return [few_rows_table(study, rows), effort_table(study, rows, 2)]
    errors = [contamination_table(study, rows, way) for way in ways_of(study)]
    return [*errors, real_time_table(study, rows), effort_table(study, rows, 2)]


def contamination_table(study: Study, rows: list[Row], way: str) -> Table:
    """Ours and the paper's, methods down, percent of contaminated sites across."""
    settings = settings_of(study, way)
    means = mean_errors(study, rows, settings)
    strong = frozenset((int(i), int(j) + 1) for i, j in np.argwhere(means <= least(means) + NEAR))
    body = [
        [name_of(m.name), *(f"{_ours(rows, s, m.name)}\n{_text(told(study, s.x, m.name))}" for s in settings)]
        for m in study.methods
    ]
    note = (
        "In each cell: ours, and below it the paper's, which does not say how it contaminated sites; a dash: it has no "
        f"such figure. Bold: the least of ours, and all within {NEAR} points of it."
    )
    if study.name != "pen":
        note += " The paper's figures are on its own embedding."
    title = f"Mis-clustering in percent, {WAYS.get(way, way)}: mean (sd) over seeds"
    return Table(title, ["method", *(f"{s.x:g}%" for s in settings)], body, note, strong)


def few_rows_table(study: Study, rows: list[Row]) -> Table:
    """Settings down, methods across, and the difference to EM at each site alone where both were run."""
    names = [m.name for m in study.methods]
    settings = list(study.settings)
    body = [[s.name, *(_ours(rows, s, name) for name in names)] for s in settings]
    headers = ["training rows per writer", *map(name_of, names)]
    note = "Mis-clustering on held-out rows."
    if {"fedgrem", "local-em"} <= set(names):
        headers += ["FedGrEM less Local-EM", "its standard error"]
        for line, setting in zip(body, settings, strict=True):
            gap = paired(rows, "error", setting.name, "fedgrem", "local-em")
            line += [f"{gap.mean:+.2f}", f"{gap.se:.2f}" if gap.n > 1 else "—"]
        note += " The difference is taken seed by seed, on the same rows; below 0, FedGrEM is better."
    means = mean_errors(study, rows, settings)
    strong = frozenset((int(j), int(i) + 1) for i, j in np.argwhere(means <= least(means)))
    return Table("Mis-clustering in percent with few rows: mean (sd) over seeds", headers, body, note, strong)


def real_time_table(study: Study, rows: list[Row]) -> Table:
    """Seconds of a fit, ours and the paper's, methods down, percent of contaminated sites across."""
    percents = list(dict.fromkeys(s.x for s in study.settings))
    reported = SECONDS.get(study.name, {})
    body = [
        [name_of(m.name), *(f"{_seconds(rows, x, m.name)}\n{_text(reported.get(x, {}).get(m.name))}" for x in percents)]
        for m in study.methods
    ]
    note = (
        "In each cell: ours, from the shared start on, on one thread, whichever way sites are contaminated. Below it "
        "the paper's, with its own R code on one core of another machine (Xeon Gold 6226R); whether its starts are "
        "counted it does not say. A dash: it has no such figure."
    )
    title = "Seconds of a fit: mean (sd) over seeds and ways of contamination"
    return Table(title, ["method", *(f"{x:g}%" for x in percents)], body, note)


def _ours(rows: list[Row], setting: Setting, method: str) -> str:
    return stat(pick(rows, "error", setting=setting.name, method=method)).text(2)


def _seconds(rows: list[Row], percent: float, method: str) -> str:
    return stat(pick(rows, "seconds", x=percent, method=method)).text(2)


def _text(reported: Reported | None) -> str:
    return "—" if reported is None else f"{reported.mean:.2f} ({reported.sd:.2f})"
