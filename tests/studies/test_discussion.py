"""The discussion as one page: every part is played, drawn and judged; and what decides about labels."""

import numpy as np
import pytest

from fedgrem.studies import alignment
from fedgrem.studies.base import Results
from fedgrem.studies.cells import play_cell
from fedgrem.studies.discussion import discussion, page
from fedgrem.studies.discussion_parts import PARTS
from fedgrem.studies.networks import draw, play


def rows_of(study, error):
    return [
        {"setting": s.name, "method": "fedgrem", "seed": seed, "error": error(s), "seconds": 0.1}
        for s in study.settings
        for seed in study.seeds
    ]


def test_the_page_has_a_picture_a_table_and_a_verdict_for_every_part():
    study = discussion(quick=True)
    told = page(Results(study, rows_of(study, lambda setting: 1.0)))
    assert len(told.tables) == len(told.verdicts) == len(PARTS) == len(told.draw().axes)
    assert [table.title for table in told.tables] == [part.title for part in PARTS.values()]


@pytest.mark.parametrize(("factor", "holds"), [(0.1, True), (4.0, False)])
def test_a_claim_holds_or_not_by_the_rows(factor, holds):
    study = discussion(quick=True)
    ours = {name: next(iter(part.lines)) for name, part in PARTS.items()}

    def error(setting):
        mine = setting.simulation["line"] == ours[setting.panel]
        return factor if mine and setting.panel in ("weights", "sparse", "networks") else 1.0

    told = page(Results(study, rows_of(study, error)))
    assert [
        v.holds for v, name in zip(told.verdicts, PARTS, strict=True) if name in ("weights", "sparse", "networks")
    ] == [holds] * 3


@pytest.mark.parametrize("part", ["sampling", "weights", "server", "sparse", "plan", "labels"])
def test_a_part_is_played_line_by_line(part):
    study = discussion(quick=True)
    first = [s for s in study.settings if s.panel == part and s.x == study_values(study, part)[0]]
    errors = [play_cell(setting, 0, study.methods)[0]["error"] for setting in first]
    assert len(errors) == len(PARTS[part].lines)
    assert np.isfinite(errors).all()


def study_values(study, part):
    return [s.x for s in study.settings if s.panel == part]


def test_networks_are_played_in_every_way():
    networks = draw(scale=1.6, sizes=(120, 160), seed=1)
    wrong = {
        name: play(name, networks, seed=1)["misclustering"] for name in ("together", "alone", "aligned", "embedded")
    }
    assert all(0.0 <= share <= 0.75 for share in wrong.values())
    assert wrong["together"] <= wrong["embedded"]


@pytest.mark.parametrize("name", alignment.ALIGNERS)
def test_labels_are_right_where_the_condition_holds_with_room(name):
    assert alignment.share_right(name, 2.0, seed=0) == 1.0


def test_labels_that_recur_are_right_more_often_than_those_of_an_order():
    found = {name: np.mean([alignment.share_right(name, 0.15, s) for s in range(3)]) for name in alignment.ALIGNERS}
    assert found["order given"] < found["random order"] < found["recurring"]
    assert found["ours"] >= found["recurring"] - 0.1


def test_labels_count_as_right_up_to_one_permutation_of_all():
    starts = alignment.draw(2.0, np.random.default_rng(0))
    order = alignment.ALIGNERS["ours"](starts.theta, np.random.default_rng(0))
    assert alignment.right(starts, order[:, [2, 0, 3, 1]])
    swapped = order.copy()
    swapped[-1, :2] = swapped[-1, 1::-1]
    assert not alignment.right(starts, swapped)
