"""The section of the page of a fit that tells how many components were tried, and why it has as many as it has."""

from typing import Any

from fedgrem.estimators.base import BaseFederatedMixture
from fedgrem.plots import plot_selection
from fedgrem.report.model_sections import beside, figure
from fedgrem.report.page import table_markup
from fedgrem.report.selection import cell, selection_of

NOTE = (
    "Fits with several numbers of components were compared. More of them nearly always explain the rows better; {name} "
    "weighs that against what they cost, and the least is best. Parameters that sites share at the center are counted "
    "once."
)
ROBUST = " A minority of odd sites has no say in the choice."
CAPTION = "How much worse each number of components is than the best one; the ring marks the choice."


def selection_section(model: BaseFederatedMixture) -> list[str]:
    """The curve as a table and as a figure; nothing where the number was given."""
    found = selection_of(model)
    if found is None:
        return []
    picture = figure(lambda ax: plot_selection(model, ax), 3.6, "Criterion by number of components", CAPTION)
    note = NOTE.format(name=found["criterion"].upper()) + ROBUST * (len(model.site_names_) > 2)
    return ["<h2>How many components</h2>", f"<p>{note}</p>", beside(_table(found), picture)]


def _table(found: dict[str, Any]) -> str:
    head = ["components", "log-likelihood", "parameters", "BIC", "ICL", "rounds"]
    columns = [found[name] for name in ("n_components", "log_likelihood", "n_parameters", "bic", "icl", "rounds")]
    rows = []
    for line, settled in zip(zip(*columns, strict=True), found["settled"], strict=True):
        cells = [cell(value) for value in line]
        cells[-1] += "" if settled else ", not settled"
        if line[0] == found["chosen"]:
            cells = [f"<b>{cell}</b>" for cell in cells]
        rows.append([f"<td>{cell}</td>" for cell in cells])
    return table_markup([f"<th>{name}</th>" for name in head], rows)
