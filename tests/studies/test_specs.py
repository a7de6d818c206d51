"""Studies as data: the paper's settings, and the paper's numbers."""

import numpy as np
import pytest

from fedgrem.algorithms.registry import ALGORITHMS
from fedgrem.algorithms.robust_rules import ROBUST_RULES
from fedgrem.attacks import ATTACKS
from fedgrem.errors import InputError
from fedgrem.studies.base import METHODS, OURS
from fedgrem.studies.paper import TABLES, reported
from fedgrem.studies.registry import STUDIES, find_study


@pytest.mark.parametrize("name", ["gmm", "mor"])
def test_the_comparison_has_nine_h_a_hundred_seeds_and_every_system(name):
    study = find_study(name)
    np.testing.assert_allclose([s.simulation["h"] for s in study.settings], np.arange(9) * 0.25)
    assert study.seeds == range(100)
    assert {m.algorithm for m in study.methods} == set(ALGORITHMS) == set(METHODS)
    assert all(s.start == "shared" and s.rounds is None for s in study.settings)


def test_the_step_size_study_covers_the_papers_tables_with_both_thresholds():
    study = find_study("eta")
    assert [f"{s.x:g}" for s in study.settings] == list(TABLES["theta_error"][0.95])
    for scaling in ("fixed", "step"):
        methods = [m for m in study.methods if m.name.startswith(scaling)]
        np.testing.assert_allclose([m.options["step_size"] for m in methods], list(TABLES["theta_error"]))
        penalties = 2.0 * np.array(list(TABLES["theta_error"])) if scaling == "step" else 2.0
        np.testing.assert_allclose([m.penalty for m in methods], penalties)


@pytest.mark.parametrize("name", [name for name in STUDIES if name not in ("attacks", "discussion")])
def test_every_study_of_the_paper_runs_our_system_with_its_central_problem_and_single_steps(name):
    ours = [m for m in find_study(name, True).methods if m.algorithm == "fedgrem"]
    assert ours
    assert all(m.options.items() >= OURS.items() for m in ours)


def test_the_papers_tables_hold_its_printed_figures():
    for name, last in (("theta_error", 1.75), ("weight_error", 1.5)):
        assert list(TABLES[name]) == pytest.approx(np.arange(0.55, 1.36, 0.1))
        assert all(list(row) == [f"{h:g}" for h in np.arange(0.0, last + 0.1, 0.25)] for row in TABLES[name].values())
    assert reported("theta_error", 1.35, 0.0)[:3] == (1.21, 1.42, 100)
    assert reported("theta_error", 0.95, 1.75)[:2] == (2.14, 1.05)
    assert reported("weight_error", 0.95, 1.0)[:2] == (0.072, 0.02)
    assert reported("weight_error", 0.95, 1.75) is None


@pytest.mark.parametrize("name", STUDIES)
@pytest.mark.parametrize("quick", [True, False])
def test_names_within_a_study_are_unique(name, quick):
    study = find_study(name, quick)
    assert len({s.name for s in study.settings}) == len(study.settings)
    assert len({m.name for m in study.methods}) == len(study.methods)
    assert len(study.cells()) == len(study.settings) * len(study.seeds)


def test_the_theory_study_varies_one_thing_at_a_time_and_follows_the_rounds_from_a_poor_start():
    study = find_study("theory")
    assert {s.panel for s in study.settings} == {"n", "K", "h", "epsilon", "d", "T"}
    rounds = [s for s in study.settings if s.panel == "T"]
    assert [s.rounds for s in rounds] == [s.x for s in rounds]
    assert {s.start for s in rounds} == {"poor"}


def test_the_study_of_attacks_runs_our_defaults_against_every_rule_of_the_field_in_every_cell():
    study = find_study("attacks")
    ours = study.methods[0]
    assert (ours.name, ours.options, ours.penalty) == ("fedgrem", {}, None)
    told = {name for method in study.methods if (name := method.options.get("center"))}
    assert told == set(ROBUST_RULES)
    assert {m.options["center"] for m in study.methods if m.options.get("mixing")} == told - {"mean"}
    tried = {s.simulation["attack"] for s in study.settings}
    assert tried <= {"none", *ATTACKS}
    cells = {(s.simulation["n_sites"], s.simulation["h"], s.simulation["share"]) for s in study.settings}
    assert cells == {(k, h, share) for k in (10, 20) for h in (0.0, 1.0) for share in (0.1, 0.2, 0.3, 0.4)}
    assert len(study.settings) == len(tried) * len(cells)


def test_methods_and_seeds_can_be_chosen_and_unknown_methods_are_refused():
    study = find_study("gmm", True).with_methods(["tgmm", "fedgrem"])
    assert [m.name for m in study.methods] == ["fedgrem", "tgmm"]
    with pytest.raises(InputError, match="fedavg is no method of this study; choose from"):
        study.with_methods(["fedavg"])


def test_paper_starts_replace_all_but_poor_ones():
    study = find_study("theory", True).from_paper_starts()
    assert {(s.panel == "T", s.start) for s in study.settings} == {(True, "poor"), (False, "paper")}
