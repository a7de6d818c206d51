"""The report of a study: what it says is what the rows say, and it needs nothing from elsewhere."""

import csv
import re
from dataclasses import replace

import numpy as np
import pytest

from fedgrem.report.text import name_of
from fedgrem.studies.base import page_of, stat
from fedgrem.studies.page import Run, html_page, write_report
from fedgrem.studies.registry import find_study
from fedgrem.studies.theory import contraction, slope

pytest.importorskip("matplotlib")

RUN = Run("fedgrem reproduce gmm --out 'a <b>'", 754.0, 2)


def made_up(name, n_seeds=3, **errors):
    """A quick study with rows nobody ran; ``errors`` gives a method's theta error, at every setting and seed."""
    study = replace(find_study(name, True), n_seeds=n_seeds)
    generator = np.random.default_rng(0)
    rows = []
    for setting, seed in study.cells():
        for place, method in enumerate(study.methods):
            theta = errors.get(method.name.replace("-", "_"), 1.0 + place + generator.uniform())
            rows.append(
                {"setting": setting.name, "model": setting.model, "panel": setting.panel, "x": setting.x, "seed": seed}
                | {"snr": 9.0, "center_error": 0.3, "method": method.name, "weight_error": generator.uniform(0.05, 0.1)}
                | {"theta_error": theta, "rounds": 10, "settled": True, "seconds": 0.1, "start_seconds": 0.2}
            )
    return study, rows


@pytest.mark.parametrize("name", ["gmm", "mor", "eta", "theory", "sizes"])
def test_the_page_names_every_method_asks_nothing_of_the_network_and_comes_with_tidy_rows(name, tmp_path):
    study, rows = made_up(name)
    _, (page, *others) = write_report(study, rows, tmp_path, RUN)
    text = page.read_text(encoding="utf-8")
    assert all(name_of(method.name) in text for method in study.methods)
    assert not re.search(r"https?:|<script|@import|url\((?!#)", text)
    assert {path.suffix for path in others} >= {".png", ".svg", ".csv"}
    assert all(path.stat().st_size > 0 for path in others)
    with (tmp_path / "rows.csv").open(encoding="utf-8", newline="") as file:
        written = list(csv.DictReader(file))
    assert len(written) == len(rows) == len(study.settings) * len(study.methods) * len(study.seeds)
    assert float(written[3]["theta_error"]) == rows[3]["theta_error"]


def test_numbers_on_the_page_are_those_of_the_rows():
    study, rows = made_up("gmm")
    text = html_page(study, rows, page_of(study, rows), RUN)
    for method in study.methods:
        for setting in study.settings:
            values = [r["theta_error"] for r in rows if (r["method"], r["setting"]) == (method.name, setting.name)]
            assert f"{np.mean(values):.2f} ({np.std(values, ddof=1):.2f})" in text


def test_the_page_tells_command_time_versions_and_the_shared_starts():
    study, rows = made_up("gmm")
    text = html_page(study, rows, page_of(study, rows), RUN)
    for said in ("--out &#39;a &lt;b&gt;&#39;", "12 min 34 s", "numpy", "scipy", "Python 3", "same searched starts"):
        assert said in text


def test_ours_stand_beside_the_papers_with_the_difference():
    study, rows = made_up("eta", **{"fixed 0.95": 1.0})
    table = page_of(study, rows).tables[0]
    row = next(row for row in table.rows if row[0] == "0.95")
    assert row[1] == "1.00 (0.00)\n1.13 (0.47)\n-0.13"


def test_the_least_error_and_those_within_3_percent_are_stressed():
    study, rows = made_up("gmm", fedgrem=0.50, local_em=0.51, tgmm=0.52)
    column = {i for i, j in page_of(study, rows).tables[0].strong if j == 1}
    assert {study.methods[i].name for i in column} == {"fedgrem", "local-em"}


def test_a_claim_holds_or_differs_as_the_rows_have_it():
    for error, holds in ((0.5, True), (50.0, False)):
        study, rows = made_up("gmm", fedgrem=error)
        best = next(v for v in page_of(study, rows).verdicts if v.claim.startswith("FedGrEM has the least"))
        assert best.holds is holds


def test_fits_without_a_finite_answer_are_counted_and_said():
    study, rows = made_up("gmm")
    lost = next(row for row in rows if row["method"] == "fedgmm")
    lost["weight_error"] = float("nan")
    last = page_of(study, rows).verdicts[-1]
    assert last.holds is False
    assert f"1 of {len(rows)} did not (FedGMM 1)" in last.finding
    assert "[1 failed]" in html_page(study, rows, page_of(study, rows), RUN)
    page_of(study, rows).draw()


def test_a_single_seed_has_no_standard_deviation():
    assert stat([0.5]).text(2) == "0.50"
    assert stat([]).text(2) == "—"


def test_slopes_and_contraction_are_recovered_from_exact_curves():
    x = np.array([1.0, 2.0, 4.0, 8.0])
    assert slope(x, 3.0 * x**-0.5) == pytest.approx(-0.5)
    rounds = np.array([1.0, 2.0, 3.0, 4.0, 60.0])
    assert contraction(rounds, 0.2 + 0.5**rounds) == pytest.approx((0.5, -1.0))


def test_a_study_of_some_methods_is_reported_too():
    for name, methods in (("gmm", ["tgmm"]), ("eta", ["fixed 0.55"]), ("theory", ["fedgrem"]), ("sizes", ["fedem"])):
        study, rows = made_up(name)
        study, rows = study.with_methods(methods), [row for row in rows if row["method"] in methods]
        page = page_of(study, rows)
        assert page.draw().axes
        assert study.title in html_page(study, rows, page, RUN)
