"""Studies on real data, on small data made here; the real files where they are."""

from pathlib import Path

import numpy as np
import pytest

from fedgrem.studies import splits, starts
from fedgrem.studies.base import Setting
from fedgrem.studies.cells import play_cell
from fedgrem.studies.real import EMBEDDINGS
from fedgrem.studies.registry import find_study

SHARED = Path(__file__).parents[3] / "shared" / "data"


@pytest.fixture
def made(monkeypatch):
    """Six writers of three well-separated signs."""
    generator = np.random.default_rng(0)
    labels, sites = np.tile(np.arange(3), 120), np.repeat(np.arange(1, 7), 60)
    centers = 8.0 * np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    rows = centers[labels] + generator.normal(size=(360, 2)) + 0.3 * sites[:, None]
    rows = np.column_stack([rows, rows[:, 0] - 2.0 * rows[:, 1]])
    monkeypatch.setattr(splits, "_prepared", lambda name, embedding: (rows, labels, sites))
    return rows, labels, sites


def test_a_split_holds_a_fifth_out_and_repeats_with_its_seed(made):
    data = splits.by_site("pen", 0)
    split = splits.split_and_contaminate(data, 3)
    assert [len(rows) for rows in split.trained] == [48] * 6
    assert [len(rows) for rows in split.tested] == [12] * 6
    assert split.honest.all()
    everything = np.concatenate([split.trained[0], split.tested[0]])
    np.testing.assert_array_equal(np.sort(everything, axis=0), np.sort(data.rows[0], axis=0))
    again = splits.split_and_contaminate(data, 3)
    np.testing.assert_array_equal(again.trained[0], split.trained[0])
    assert not np.array_equal(splits.split_and_contaminate(data, 4).trained[0], split.trained[0])
    assert len(splits.split_and_contaminate(data, 3, n_train=20).trained[2]) == 20


@pytest.mark.parametrize("way", ["far", "permuted", "clump"])
def test_contamination_changes_what_some_sites_fit_and_nothing_else(made, way):
    data = splits.by_site("pen", 0)
    clean, hit = splits.split_and_contaminate(data, 1), splits.split_and_contaminate(data, 1, contaminated=2, way=way)
    assert (~hit.honest).sum() == 2
    for k in range(6):
        np.testing.assert_array_equal(hit.tested[k], clean.tested[k])
        assert np.array_equal(hit.trained[k], clean.trained[k]) == bool(hit.honest[k])
    k = np.flatnonzero(~hit.honest)[0]
    away = np.linalg.norm(hit.trained[k].mean(axis=0) - clean.trained[k].mean(axis=0))
    if way == "far":
        assert away > 30.0
    if way == "clump":
        assert hit.trained[k].std() < clean.trained[k].std()
        assert hit.trained[k].std(axis=0).max() < 0.5


def test_a_cell_scores_every_method_on_the_rows_held_out(made):
    setting = Setting("33% far", "pen", 33.0, {"contaminated": 2, "way": "far"}, "far")
    methods = find_study("pen", True).with_methods(["fedgrem", "local-em", "fedem", "pooled-em"]).methods
    rows = {row["method"]: row for row in play_cell(setting, 0, methods)}
    assert list(rows) == ["fedgrem", "local-em", "fedem", "pooled-em"]
    assert rows["fedgrem"]["error"] < 5.0
    assert rows["fedem"]["error"] > rows["fedgrem"]["error"] + 5.0
    assert all(row["panel"] == "far" and row["x"] == 33.0 for row in rows.values())
    assert rows["fedgrem"]["log_likelihood"] > rows["fedem"]["log_likelihood"] + 0.5


@pytest.mark.parametrize("alone", [False, True], ids=["after our search", "without it"])
def test_pooled_rows_begin_at_the_likelier_of_two_starts(made, monkeypatch, alone):
    found = starts.search_pooled

    def misled(spec, federation):
        params = found(spec, federation)
        together = params.theta.mean(axis=1, keepdims=True)  # three components in one place stay there
        return params._replace(theta=np.broadcast_to(together, params.theta.shape))

    monkeypatch.setattr(starts, "search_pooled", misled)
    methods = find_study("pen", True).with_methods(["pooled-em"] if alone else ["local-em", "pooled-em"]).methods
    assert play_cell(Setting("0%", "pen", 0.0), 0, methods)[-1]["error"] < 5.0


@pytest.mark.parametrize("name", sorted(EMBEDDINGS))
def test_images_are_embedded_as_their_study_says(monkeypatch, name):
    data = splits.RealData(np.zeros((400, 3)), np.zeros(400, dtype=int), None)
    used = []

    def embedding_of(data, method):
        used.append(method)
        return splits.Embedding(data.rows, 0.0, {})

    monkeypatch.setattr(splits, "load", lambda _: data)
    monkeypatch.setattr(splits, "embedding_of", embedding_of)
    study = find_study(name, True)
    for each in (study, study.with_settings(embedding="tsne")):
        splits._prepared.cache_clear()
        assert {setting.embedding for setting in each.settings} == {each.settings[0].embedding}
        splits.by_site(name, 0, each.settings[0].embedding)
    splits._prepared.cache_clear()
    assert used == [EMBEDDINGS[name], "tsne"]


def test_images_are_divided_anew_in_every_replication(monkeypatch):
    rows, labels = np.arange(400.0)[:, None], np.zeros(400, dtype=int)
    monkeypatch.setattr(splits, "_prepared", lambda name, embedding: (rows, labels, None))
    first, second = splits.by_site("mnist", 0), splits.by_site("mnist", 1)
    assert len(first.rows) == splits.N_IMAGE_SITES
    np.testing.assert_array_equal(np.sort(np.concatenate(first.rows), axis=0), rows)
    assert not np.array_equal(first.rows[0], second.rows[0])


@pytest.mark.skipif(not (SHARED / "pendigits").exists(), reason="the Pen digits are not beside this clone")
def test_pen_digits_are_44_writers(monkeypatch):
    monkeypatch.setenv(splits.DATA, str(SHARED))
    splits._prepared.cache_clear()
    data = splits.by_site("pen", 0)
    assert len(data.rows) == 44
    assert sum(len(rows) for rows in data.rows) == 10_992
    split = splits.split_and_contaminate(data, 0, contaminated=9, way="permuted")
    assert (~split.honest).sum() == 9


@pytest.mark.parametrize("name", ["pen", "pen-small", "mnist", "fashion"])
def test_real_studies_have_the_papers_settings(name):
    study = find_study(name)
    assert len(study.seeds) == 200
    percents = sorted({setting.x for setting in study.settings})
    if name == "pen":
        assert percents == [0.0, 6.8, 13.6, 20.5]
        assert [round(44 * x / 100) for x in percents] == [0, 3, 6, 9]
    if name in ("mnist", "fashion"):
        assert percents == [0.0, 8.0, 16.0, 24.0]
    if name != "pen-small":
        assert {setting.panel for setting in study.settings} == {"none", "far", "permuted", "clump"}
