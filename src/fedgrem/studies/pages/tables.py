"""The rows of a study as tables: means and standard deviations, beside the paper's where it has any."""

from collections.abc import Callable

import numpy as np

from fedgrem.report.names import name_of
from fedgrem.studies.pages.real_tables import real_tables
from fedgrem.studies.pages.stats import Row, Stat, Table, effort_table, mean_of, pick, stat
from fedgrem.studies.paper import THETA_ERROR, WEIGHT_ERROR, Reported
from fedgrem.studies.specs import REAL, Study

MEASURES = {"weight_error": "w", "theta_error": "θ"}
REPORTED = {"weight_error": WEIGHT_ERROR, "theta_error": THETA_ERROR}
DIGITS = {"weight_error": 3, "theta_error": 2}
NOTE = "Largest error over honest sites and components. Bold: the least of a setting, and all within 3% of it."


def error_table(study: Study, rows: list[Row], measure: str) -> Table:
    """Mean (sd) of every method at every setting; the least mean of a setting, and all within 3%, are stressed."""
    settings = [s for s in study.settings if s.panel != "T"]
    means = np.array([[mean_of(rows, measure, setting=s.name, method=m.name) for s in settings] for m in study.methods])
    strong = frozenset((int(i), int(j) + 1) for i, j in np.argwhere(means <= 1.03 * np.nanmin(means, axis=0)))
    body = [
        [name_of(m.name)]
        + [stat(pick(rows, measure, setting=s.name, method=m.name)).text(DIGITS[measure]) for s in settings]
        for m in study.methods
    ]
    title = f"Error of {MEASURES[measure]}: mean (sd) over seeds"
    if study.name in ("theory", "sizes"):  # many settings, few methods: settings go down
        across = [list(row) for row in zip(*body, strict=True)]
        below = [[s.name, *cells] for s, cells in zip(settings, across[1:], strict=True)]
        turned = frozenset((j - 1, i + 1) for i, j in strong)
        return Table(title, ["setting", *across[0]], below, NOTE, turned)
    return Table(title, ["method", *(s.name for s in settings)], body, NOTE, strong)


def beside_paper(
    rows: list[Row], measure: str, scaling: str, sizes: list[float], settings: list[tuple[str, float]]
) -> Table:
    """Ours, the paper's and the difference, by step size and h."""

    def cell(size: float, setting: str, h: float) -> str:
        ours = stat(pick(rows, measure, setting=setting, method=f"{scaling} {size:.2f}"))
        told = reported(measure, size, h)
        digits = DIGITS[measure]
        if told is None:
            return f"{ours.text(digits)}\n—"
        return (
            f"{ours.text(digits)}\n{told.mean:.{digits}f} ({told.sd:.{digits}f})\n{ours.mean - told.mean:+.{digits}f}"
        )

    body = [[f"{size:.2f}", *(cell(size, *setting) for setting in settings)] for size in sizes]
    threshold = "fixed threshold, as in the paper" if scaling == "fixed" else "threshold scaled with the step"
    title = f"Error of {MEASURES[measure]} by C_eta and h: {threshold}"
    note = "In each cell: ours, mean (sd); the paper's; ours less the paper's. A dash: the paper has no figure."
    return Table(title, ["C_eta", *(name for name, _ in settings)], body, note)


def flat_table(rows: list[Row], sizes: list[float], settings: list[tuple[str, float]]) -> Table:
    """How much the error of theta depends on the step size, under both thresholds."""
    body = []
    for scaling in ("fixed", "step"):
        means = {
            name: [mean_of(rows, "theta_error", setting=name, method=f"{scaling} {size:.2f}") for size in sizes]
            for name, _ in settings
        }
        body.append([scaling, *(f"{relative_range(values):.1%}" for values in means.values())])
    note = "(largest - least) / least of the mean error over all C_eta; 0% is no dependence at all."
    return Table("Dependence of θ's error on C_eta", ["threshold", *(name for name, _ in settings)], body, note)


def relative_range(values: list[float]) -> float:
    """(largest - least) / least."""
    return max(values) / min(values) - 1.0


def reported(measure: str, size: float, h: float) -> Reported | None:
    """What the paper prints for this step size and h."""
    return REPORTED[measure].get(round(size, 2), {}).get(h)


def paper_row_table(study: Study, rows: list[Row]) -> Table:
    """FedGrEM at the default step beside the paper's table row for it."""
    settings = [(s.name, s.x) for s in study.settings if reported("theta_error", 0.95, s.x) is not None]
    body = []
    for measure, word in MEASURES.items():
        lines: list[Callable[[str, float], str]] = [
            lambda name, h, m=measure: stat(pick(rows, m, setting=name, method="fedgrem")).text(DIGITS[m]),  # type: ignore[misc]
            lambda name, h, m=measure: _told(m, h),  # type: ignore[misc]
            lambda name, h, m=measure: _difference(rows, m, name, h),  # type: ignore[misc]
        ]
        for label, line in zip(("ours", "the paper", "difference"), lines, strict=True):
            body.append([f"{word}, {label}", *(line(name, h) for name, h in settings)])
    note = "The paper prints numbers for FedGrEM only, in its tables over C_eta; this is their row 0.95, our default."
    return Table("FedGrEM beside the paper's figures", ["", *(name for name, _ in settings)], body, note)


def _told(measure: str, h: float) -> str:
    told = reported(measure, 0.95, h)
    return "—" if told is None else Stat(told.mean, told.sd, 100).text(DIGITS[measure])


def _difference(rows: list[Row], measure: str, name: str, h: float) -> str:
    told = reported(measure, 0.95, h)
    ours = mean_of(rows, measure, setting=name, method="fedgrem")
    return "—" if told is None else f"{ours - told.mean:+.{DIGITS[measure]}f}"


def eta_sizes(study: Study) -> list[float]:
    """The step sizes of the study over C_eta."""
    return sorted({float(m.options["step_size"]) for m in study.methods})


def has_both_thresholds(study: Study) -> bool:
    """Whether every step size was run with both thresholds."""
    names = {m.name for m in study.methods}
    return all(f"{scaling} {size:.2f}" in names for scaling in ("fixed", "step") for size in eta_sizes(study))


def tables(study: Study, rows: list[Row]) -> list[Table]:
    """All tables of a study, the most telling first."""
    if study.name in REAL:
        return real_tables(study, rows)
    if study.name == "eta":
        return _eta_tables(study, rows)
    found = [error_table(study, rows, "theta_error"), error_table(study, rows, "weight_error")]
    if study.name == "gmm" and any(m.name == "fedgrem" for m in study.methods):
        found.append(paper_row_table(study, rows))
    return [*found, effort_table(study, rows, 3)]


def _eta_tables(study: Study, rows: list[Row]) -> list[Table]:
    sizes, settings = eta_sizes(study), [(s.name, s.x) for s in study.settings]
    if not has_both_thresholds(study):
        return [error_table(study, rows, "theta_error"), error_table(study, rows, "weight_error")]
    found = [
        beside_paper(rows, measure, scaling, sizes, settings)
        for scaling, measure in (("fixed", "theta_error"), ("fixed", "weight_error"), ("step", "theta_error"))
    ]
    return [found[0], flat_table(rows, sizes, settings), *found[1:], effort_table(study, rows, 3)]
