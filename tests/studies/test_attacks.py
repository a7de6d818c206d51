"""The study of bad sites: what a cell measures, and what the page makes of it."""

import json
from dataclasses import replace

import numpy as np
import pytest

from fedgrem.algorithms.robust_rules import Krum
from fedgrem.data.simulate import CENTERS, simulate
from fedgrem.errors import InputError
from fedgrem.studies import under_attack
from fedgrem.studies.attacks import ALONE, OURS, Ratios, rule, setting
from fedgrem.studies.base import Results, page_of
from fedgrem.studies.cells import play_cell
from fedgrem.studies.command import choose
from fedgrem.studies.registry import find_study
from fedgrem.studies.under_attack import Scenario, algorithm_of, trial

SCENE = Scenario("gmm", 0.0, 6, 1 / 3, "none")


@pytest.fixture
def small(monkeypatch):
    """Simulations with two components in three dimensions and 40 rows."""

    def drawn(model, **options):
        return simulate(model, **options, n_rows=40, centers=CENTERS[:2, :3])

    monkeypatch.setattr(under_attack, "simulate", drawn)
    under_attack._drawn.cache_clear()
    yield drawn
    under_attack._drawn.cache_clear()


def test_the_last_sites_are_bad_and_rules_are_told_how_many():
    assert SCENE.bad.tolist() == [False] * 4 + [True] * 2
    assert not SCENE._replace(share=0.0).bad.any()
    assert algorithm_of(rule("krum", mixing=True), 0.3).center == Krum(bad=0.3, mixing=True)
    assert algorithm_of(OURS, 0.3) == algorithm_of(ALONE, 0.1)


def test_a_cell_is_a_row_for_every_method_and_a_fit_that_dies_or_dissolves_is_told(small):
    one = setting("nan", 1 / 3, 0.0, 6)
    rows = play_cell(one, 0, (OURS, ALONE))
    assert [row["method"] for row in rows] == ["fedgrem", "alone"]
    assert rows == [row | {"setting": one.name, "seed": 0} for row in rows]
    assert all(row["recall"] == 1.0 and row["died"] == "" for row in rows)  # refused before round 1
    assert 0.0 < rows[0]["theta_error"] < rows[1]["theta_error"]
    json.dumps(rows)


def test_what_kills_a_fit_is_a_finding(small, monkeypatch):
    def infeasible(*_, **__):
        raise ValueError("cost matrix is infeasible")

    monkeypatch.setattr(under_attack, "fit_attacked", infeasible)
    drawn = small("gmm", h=0.0, n_sites=6, n_outliers=0, seed=0)
    row = trial(SCENE._replace(attack="huge"), drawn, 0, OURS)
    assert row["died"] == "ValueError: cost matrix is infeasible"
    assert np.isnan(row["theta_error"])
    assert row["settled"] is False


def test_bad_sites_count_neither_among_the_errors_nor_among_the_false_alarms(small):
    drawn = small("gmm", h=0.0, n_sites=6, n_outliers=0, seed=0)
    told = {attack: trial(SCENE._replace(attack=attack), drawn, 0, ALONE) for attack in ("none", "far")}
    # Alone, an honest site has the same answer whatever others do.
    assert told["none"]["theta_error"] == pytest.approx(told["far"]["theta_error"], rel=1e-12)
    assert told["none"]["alarms"] == 0.0


def made_up(worse):
    """A quick study whose fits have error 1 without attack, and ``worse(setting, method)`` times that with one."""
    study = find_study("attacks", True)
    rows = [
        {"setting": s.name, "model": s.model, "panel": s.panel, "x": s.x, "seed": seed, "method": m.name, "recall": 0.5}
        | {"theta_error": 1.0 if s.simulation["attack"] == "none" else worse(s, m), "alarms": 0.01, "rounds": 7}
        | {"settled": True, "seconds": 0.1, "penalty": 2.0, "died": ""}
        for s, seed in study.cells()
        for m in study.methods
    ]
    return study, rows


def test_the_worst_attack_of_a_cell_counts_over_the_default_without_attack():
    pytest.importorskip("matplotlib")
    study, rows = made_up(lambda s, m: 3.0 if (s.simulation["attack"], m.name) == ("alie", "median") else 1.1)
    ratios = Ratios(Results(study, rows))
    assert ratios.worst(ratios.cells[0], "median", "fedgrem") == (3.0, "alie")
    assert ratios.worst(ratios.cells[0], "fedgrem", "alone")[0] == 1.1
    page = page_of(study, rows)
    assert [verdict.holds for verdict in page.verdicts] == [True, False, True]
    assert page.tables[0].rows[1][1] == "3.00"
    assert "50% / 1.0%" in page.tables[-1].rows[1][1]
    assert len(page.draw().axes) == 3


def test_a_cell_with_a_fit_without_an_answer_is_infinite_and_the_page_says_so():
    pytest.importorskip("matplotlib")
    study, rows = made_up(lambda s, m: float("nan") if m.name == "fedgrem" else 1.0)
    page = page_of(study, rows)
    assert page.tables[0].rows[0][1] == "inf"
    assert not any(verdict.holds for verdict in page.verdicts if "rounds" not in verdict.claim)
    page.draw()
    few = study.with_methods(["median"])
    assert page_of(few, [row for row in rows if row["method"] == "median"]).draw().axes


def test_a_study_with_starts_of_its_own_takes_no_others():
    with pytest.raises(InputError, match="--start paper is not for attacks"):
        choose("attacks", paper_starts=True)
    study, folder = choose("attacks", quick=True, seeds=1)
    assert folder == "attacks-quick"
    assert replace(study, n_seeds=2) == find_study("attacks", True)
