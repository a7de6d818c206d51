"""The report of a study on real data: beside the paper's figures, honest about what the paper does not say."""

import re
from dataclasses import replace
from html import unescape

import numpy as np
import pytest

from fedgrem.algorithms.fedgrem import FedGrEM
from fedgrem.algorithms.registry import ALGORITHMS
from fedgrem.report.text import name_of
from fedgrem.studies.base import METHODS, Method, Results, page_of
from fedgrem.studies.page import Run, html_page, write_report
from fedgrem.studies.paper import TABLES, reported
from fedgrem.studies.registry import find_study

pytest.importorskip("matplotlib")

RUN = Run("fedgrem reproduce pen", 754.0, 2, note="Embedded by a <made-up> program, seed 0.")
PERCENTS = {"pen": (6.8, 13.6, 20.5), "mnist": (8.0, 16.0, 24.0), "fashion": (8.0, 16.0, 24.0)}
STUDIES = (*PERCENTS, "pen-small")
BASE = dict(zip(METHODS, (4.0, 4.5, 4.6, 6.0, 9.0, 12.0, 6.5, 26.0, 34.0), strict=True))


def study_of(name, n_seeds=4):
    plain = tuple(Method(m.name, m.algorithm) for m in find_study(name).methods)
    return replace(find_study(name), title=f"A study of {name}", methods=plain, n_seeds=n_seeds)


def text_of(study, rows, run=RUN):
    return html_page(study, rows, page_of(study, rows), run)


def made_up(name, n_seeds=4, **errors):
    """Rows nobody ran: a method's error plus something that all methods of a seed share, and a little of its own."""
    study = study_of(name, n_seeds)
    generator = np.random.default_rng(0)
    base = BASE | {method.replace("_", "-"): value for method, value in errors.items()}
    rows = []
    for setting, seed in study.cells():
        common = generator.uniform(-0.1, 0.1)
        for method in study.methods:
            error = base[method.name] + common + generator.uniform(-0.01, 0.01)
            rows.append(
                {"setting": setting.name, "model": setting.model, "panel": setting.panel, "x": setting.x, "seed": seed}
                | {"method": method.name, "error": error, "rounds": 20, "settled": True}
                | {"seconds": 0.5, "start_seconds": 1.25}
            )
    return study, rows


def verdict(study, rows, start):
    return next(v for v in page_of(study, rows).verdicts if v.claim.startswith(start))


def test_the_papers_tables_are_as_printed():
    assert reported("misclustered pen", 0.0, "fedgrem")[:3] == (9.62, 1.03, 200)
    assert reported("misclustered mnist", 24.0, "fedem")[:2] == (21.67, 4.33)
    assert reported("misclustered fashion", 8.0, "pooled-grem")[:2] == (39.71, 1.54)
    assert reported("seconds pen", 20.5, "tgmm")[:2] == (83.84, 3.65)
    assert reported("seconds fashion", 0.0, "fedgrem")[:2] == (134.92, 5.98)
    for name, percents in PERCENTS.items():
        for table in (TABLES[f"misclustered {name}"], TABLES[f"seconds {name}"]):
            assert tuple(table) == (0.0, *percents)
            assert all(set(line) == set(METHODS) - {"fedgmm", "fedem-sa"} for line in table.values())


@pytest.mark.parametrize("name", STUDIES)
def test_the_page_names_methods_and_source_and_asks_nothing_of_the_network(name, tmp_path):
    study, rows = made_up(name)
    _, (page, *others) = write_report(study, rows, tmp_path, RUN)
    text = page.read_text(encoding="utf-8")
    assert all(name_of(method.name) in text for method in study.methods)
    assert not re.search(r"https?:|<script|@import|url\((?!#)", text)
    assert {path.name for path in others} >= {f"{name}-errors.png", f"{name}-errors.svg", "rows.csv"}
    assert "simulation" not in text
    words = " ".join(re.sub(r"<[^>]*>", "", text).split())
    assert f"run with fedgrem. {page_of(study, rows).facts['data']}. {len(study.settings)} settings" in words
    assert {"pen": "CC BY 4.0", "fashion": "MIT licence"}.get(name, "") in text
    assert "Embedded by a &lt;made-up&gt; program" in text


def test_the_page_says_how_sites_were_contaminated_and_what_an_embedding_changes():
    text = text_of(*made_up("mnist"))
    for said in ("The paper does not say what it did", "far away", "permuted", "tight clump", "not with the paper"):
        assert said in text
    assert "An embedding is made" not in text_of(*made_up("pen"))
    assert "How sites were contaminated" not in text_of(*made_up("pen-small"))


def test_one_table_per_way_puts_ours_above_the_papers():
    study, rows = made_up("pen")
    far, permuted, clump = page_of(study, rows).tables[:3]
    assert far.headers == permuted.headers == clump.headers == ["method", "0%", "6.8%", "13.6%", "20.5%"]
    values = [r["error"] for r in rows if (r["setting"], r["method"]) == ("20.5% clump", "fedgrem")]
    assert clump.rows[0][4] == f"{np.mean(values):.2f} ({np.std(values, ddof=1):.2f})\n9.39 (1.25)"
    assert next(row for row in far.rows if row[0] == "FedGMM")[1].endswith("\n—")
    assert [row[1] for row in far.rows] == [row[1] for row in clump.rows]  # nobody is contaminated in either


def test_times_are_means_over_seeds_and_ways_above_the_papers_of_the_same_percentage():
    study, rows = made_up("pen")
    for row in rows:
        row["seconds"] = {"none": 0.25, "far": 1.0, "permuted": 2.0, "clump": 6.0}[row["panel"]] + 0.02 * row["seed"]
    times, efforts = page_of(study, rows).tables[3:]
    assert times.headers == ["method", "0%", "6.8%", "13.6%", "20.5%"]
    values = [way + 0.02 * seed for way in (1.0, 2.0, 6.0) for seed in range(4)]
    ours = f"{np.mean(values):.2f} ({np.std(values, ddof=1):.2f})"
    theirs = ("46.76 (1.92)", "46.90 (2.31)", "46.49 (2.12)")
    assert times.rows[0] == ["FedGrEM", "0.28 (0.03)\n47.07 (2.38)", *(f"{ours}\n{paper}" for paper in theirs)]
    assert times.rows[METHODS.index("tgmm")][4] == f"{ours}\n83.84 (3.65)"
    assert times.rows[METHODS.index("fedgmm")][1].endswith("\n—")
    assert "another machine (Xeon Gold 6226R)" in times.note
    assert efforts.headers == ["method", "fit, s", "shared start, s", "rounds", "settled"]
    assert efforts.rows[0] == ["FedGrEM", f"{np.median([r['seconds'] for r in rows]):.2f}", "1.25", "20", "100%"]


def test_a_quick_study_shows_the_times_of_the_percentages_it_has():
    study = find_study("mnist", True)
    rows = [row for row in made_up("mnist", n_seeds=2)[1] if row["x"] in (0.0, 24.0)]
    times = page_of(study, rows).tables[3]
    assert times.headers == ["method", "0%", "24%"]
    assert times.rows[0][1:] == ["0.50 (0.00)\n134.69 (6.41)", "0.50 (0.00)\n133.74 (6.47)"]


def test_few_rows_have_one_line_of_times_per_method_and_nothing_of_the_papers():
    errors, efforts = page_of(*made_up("pen-small")).tables
    assert "few rows" in errors.title
    assert efforts.rows == [[name, "0.50", "1.25", "20", "100%"] for name in ("FedGrEM", "Local-EM")]
    assert "paper" not in efforts.note


@pytest.mark.parametrize("name", STUDIES)
def test_the_page_says_which_fedgrem_was_run(name):
    study, rows = made_up(name)
    method = next(m for m in find_study(name).methods if m.algorithm == "fedgrem")
    ours: FedGrEM = ALGORITHMS["fedgrem"](**method.options)
    said = page_of(study, rows).facts["FedGrEM"]
    assert f"fixed penalty C = {method.penalty:g} " in said
    assert f"one gradient step with C_eta = {ours.step_size:g} a round" in said
    assert (ours.penalty_rows, ours.rule.name, ours.step_weights) == ("site", "huber", "current")
    assert (ours.local_steps, ours.memory, ours.noise_penalty) == (1, 0, None)
    assert 'the default of the estimators, penalty="auto"' in said
    assert said in unescape(text_of(study, rows))
    if name != "pen-small":
        assert "FedGrEM" not in page_of(study.with_methods(["fedem", "tgmm"]), rows).facts


def test_the_least_and_those_within_three_tenths_are_stressed_and_the_paper_never():
    study, rows = made_up("pen", fedgrem=4.5, local_em=4.3, local_grem=4.7)
    table = page_of(study, rows).tables[0]
    assert {study.methods[i].name for i, j in table.strong if j == 2} == {"fedgrem", "local-em"}
    text = text_of(study, rows)
    ours, paper = table.rows[0][2].split("\n")
    assert f'<td><b>{ours}</b>\n<span class="beside">{paper}</span></td>' in text


def test_few_rows_are_told_with_the_paired_difference_and_its_standard_error():
    study, rows = made_up("pen-small")
    table = page_of(study, rows).tables[0]
    gap = Results(study, rows).gap("error", study.settings[1], "fedgrem", "local-em")
    assert table.rows[1][0] == "60 rows"
    assert table.rows[1][3:] == [f"{gap.mean:+.2f}", f"{gap.se:.2f}"]
    assert gap.se < 0.02  # what a seed does to both methods is gone


@pytest.mark.parametrize("name", PERCENTS)
@pytest.mark.parametrize(("ours", "holds"), [(4.0, True), (4.65, True), (4.9, False)])
def test_being_best_is_judged_to_three_tenths_of_a_point(name, ours, holds):
    study, rows = made_up(name, fedgrem=ours)
    found = verdict(study, rows, "FedGrEM is the best method")
    assert found.holds is holds
    assert ("Local-EM 4.5" in found.finding) is not holds


@pytest.mark.parametrize(("ours", "holds"), [(4.6, True), (4.8, False)])
def test_harm_to_a_site_is_judged_to_a_fifth_of_a_point(ours, holds):
    found = verdict(*made_up("fashion", fedgrem=ours), "At no setting is FedGrEM worse")
    assert found.holds is holds


def test_the_targets_on_pen_hold_or_differ_way_by_way():
    study, rows = made_up("pen")
    start = "FedGrEM puts at most {}% of rows into a wrong group with {}%"
    assert verdict(study, rows, start.format(4.5, 0)).holds is True
    assert verdict(study, rows, start.format("5.0", 20.5)).holds is True
    for row in rows:
        if (row["setting"], row["method"]) == ("20.5% clump", "fedgrem"):
            row["error"] = 5.5
    found = verdict(study, rows, start.format("5.0", 20.5))
    assert found.holds is False
    assert "5.50% at 20.5% clump" in found.finding
    assert not any("puts at most" in v.claim for v in page_of(*made_up("mnist")).verdicts)


def test_the_papers_order_is_asked_where_the_paper_has_it():
    start = "The paper's order holds"
    assert verdict(*made_up("pen"), start).holds is True
    assert verdict(*made_up("pen", fedem=3.0), start).holds is False
    assert verdict(*made_up("pen", fedem=4.0), start).holds is None  # nothing between them but chance
    assert "except at 0%" in verdict(*made_up("mnist"), start).claim
    assert "except" not in verdict(*made_up("fashion"), start).claim


@pytest.mark.parametrize(("ours", "holds"), [(4.0, True), (5.0, False)])
def test_few_rows_must_pay_by_more_than_the_standard_error(ours, holds):
    (found,) = page_of(*made_up("pen-small", fedgrem=ours)).verdicts
    assert found.claim.startswith("With 60 training rows")
    assert found.holds is holds
    assert "standard error" in found.finding


def test_a_single_seed_leaves_questions_of_chance_open():
    assert page_of(*made_up("pen-small", n_seeds=1)).verdicts[0].holds is None
    assert verdict(*made_up("pen", n_seeds=1, fedem=3.0), "The paper's order").holds is None


def test_fits_without_a_finite_answer_are_counted_and_left_out():
    study, rows = made_up("pen")
    for row in rows:
        if row["method"] == "fedgmm" and row["setting"] == "6.8% far":
            row["error"] = float("nan")
    last = page_of(study, rows).verdicts[-1]
    assert f"4 of {len(rows)} did not (FedGMM 4)" in last.finding
    assert "— [4 failed]" in page_of(study, rows).tables[0].rows[METHODS.index("fedgmm")][2]
    page_of(study, rows).draw()


@pytest.mark.parametrize("methods", [["fedgrem"], ["tgmm"], ["fedgrem", "fedem"], ["local-em", "pooled-em"]])
def test_a_study_of_some_methods_is_reported_too(methods, tmp_path):
    study, rows = made_up("pen", n_seeds=1)
    write_report(study.with_methods(methods), [row for row in rows if row["method"] in methods], tmp_path, RUN)


def test_the_figure_has_a_panel_per_way_with_the_paper_as_hollow_marks():
    figure = page_of(*made_up("pen")).draw()
    assert [ax.get_title("left") for ax in figure.axes] == [
        "rows far away",
        "features permuted",
        "rows in a tight clump",
    ]
    for ax in figure.axes:
        lines = {line.get_label(): line for line in ax.get_lines()}
        assert lines["FedGrEM in the paper"].get_ydata() == pytest.approx([9.62, 9.31, 9.04, 9.39])
        assert lines["FedGrEM in the paper"].get_markerfacecolor() == "white"
        assert ax.get_yscale() == "log"  # from 4 to 34
    alike = page_of(*made_up("pen", **dict.fromkeys((m.replace("-", "_") for m in METHODS), 30.0))).draw()
    assert alike.axes[0].get_yscale() == "linear"
