import json
import re

import numpy as np
import polars as pl
import pytest

from fedgrem.engines.flare.declaration import CENSUS, STEP, Declaration, Order
from fedgrem.engines.flare.recipe import Recipe
from fedgrem.engines.flare.rehearsal import rehearse
from fedgrem.engines.flare.site import (
    REASONS,
    SETTINGS,
    DeclinedError,
    Settings,
    SiteAtWork,
    _answer,
    read_settings,
    write_settings,
)
from fedgrem.engines.flare.wire import encode
from fedgrem.errors import InputError
from fedgrem.types import Broadcast, Params
from tests.engines.flare.studies import rows_of, write_site

RECIPE = Recipe("gaussian", "fedgrem", 2)
HELLO = encode(Order((), None, np.asarray(False)))
SENT = Broadcast(Params(np.array([0.5, 0.5]), np.array([[-3.0, -3.0], [3.0, 3.0]])), np.array([0.5, 0.5]))


def declined(site, task=CENSUS, fields=HELLO):
    with pytest.raises(DeclinedError) as refusal:
        site.answer(task, fields)
    assert refusal.value.code in REASONS
    return refusal.value.code, str(refusal.value)


def test_rows_are_read_when_they_are_first_needed_and_only_then(tmp_path):
    settings = write_site(tmp_path, "north")
    site = SiteAtWork("north", settings, RECIPE)
    rows, _ = rows_of("north")
    census = site.answer(CENSUS, HELLO)
    assert float(census.n_rows) == len(rows)
    np.testing.assert_allclose(census.mean, rows.mean(axis=0))
    (tmp_path / "north.parquet").unlink()
    step = site.answer(STEP, encode(Order(SENT, None, np.asarray(False))))
    assert float(step.n_rows) == len(rows)


def test_the_same_order_is_not_worked_on_twice(tmp_path, monkeypatch):
    site = SiteAtWork("north", write_site(tmp_path, "north"), RECIPE)
    worked = []
    compute = site._computed
    monkeypatch.setattr(site, "_computed", lambda *order: worked.append(order) or compute(*order))
    for _ in range(3):
        site.answer(STEP, encode(Order(SENT, None, np.asarray(False))))
    assert len(worked) == 1


def test_a_site_compiles_its_round_once(tmp_path):
    site = SiteAtWork("north", write_site(tmp_path, "north"), RECIPE)
    replies, sizes = [], []
    for shift in (0.0, 0.5, 1.0):
        moved = SENT._replace(params=SENT.params._replace(theta=SENT.params.theta + shift))
        replies.append(site.answer(STEP, encode(Order(moved, None, np.asarray(False)))))
        sizes.append(_answer._cache_size())
    assert sizes[0] == sizes[-1]
    assert not np.array_equal(replies[0].params.theta, replies[1].params.theta)


def test_a_file_that_is_gone_is_a_reason_and_its_path_stays_here(tmp_path):
    settings = write_site(tmp_path, "north")
    (tmp_path / "north.parquet").unlink()
    code, message = declined(SiteAtWork("north", settings, RECIPE))
    assert code == "rows"
    assert "does not exist" in message
    assert str(tmp_path) not in REASONS[code]


def test_a_cell_that_is_no_number_is_quoted_here_and_not_in_the_reason(tmp_path):
    (tmp_path / "bad.csv").write_text("x0,x1\n1,secret-patient\n2,3\n")
    code, message = declined(SiteAtWork("north", Settings(str(tmp_path / "bad.csv"), ("x0", "x1")), RECIPE))
    assert "secret-patient" in message
    assert "secret-patient" not in REASONS[code]


def test_too_few_rows_for_the_components_is_a_reason(tmp_path):
    pl.DataFrame({"x0": [1.0], "x1": [2.0]}).write_csv(tmp_path / "one.csv")
    code, message = declined(SiteAtWork("north", Settings(str(tmp_path / "one.csv"), ("x0", "x1")), RECIPE))
    assert (code, "fewer than the 2 components" in message) == ("rows", True)


def test_empty_cells_are_refused_unless_the_recipe_allows_them(tmp_path):
    (tmp_path / "gaps.csv").write_text("x0,x1\n1,\n2,3\n4,5\n")
    settings = Settings(str(tmp_path / "gaps.csv"), ("x0", "x1"))
    assert declined(SiteAtWork("north", settings, RECIPE))[0] == "rows"
    filled = Recipe("gaussian", "fedgrem", 2, {"covariance": "tied"}, missing=True)
    assert bool(SiteAtWork("north", settings, filled).answer(CENSUS, HELLO).gaps)


@pytest.mark.parametrize(
    ("recipe", "message"),
    [
        (Recipe("gaussian", "fedgrem", 2, columns=("x1", "x0")), "names the columns x1, x0, and the site x0, x1"),
        (Recipe("regression", "fedgrem", 2), "needs a --target column, and the site has set none"),
    ],
)
def test_a_recipe_for_other_columns_is_declined(tmp_path, recipe, message):
    code, told = declined(SiteAtWork("north", write_site(tmp_path, "north"), recipe))
    assert code == "columns"
    assert message in told


@pytest.mark.parametrize(
    ("task", "fields", "message"),
    [
        ("send_rows", HELLO, "there is no task 'send_rows'"),
        (STEP, HELLO, "lacks sent.params.weights"),
        (STEP, encode(Order(SENT._replace(first_weights=np.ones(3)), None, np.asarray(False))), r"\(3,\), expected"),
        (CENSUS, HELLO | encode({"more": np.ones(1)}), "also holds more"),
        ("local_start", {"sent.candidates.weights": 3}, "lacks"),
        ("local_compare", {"sent.candidates.weights": {"shape": "x"}}, "lacks"),
    ],
)
def test_an_order_that_does_not_fit_the_recipe_is_declined(tmp_path, task, fields, message):
    code, told = declined(SiteAtWork("north", write_site(tmp_path, "north"), RECIPE), task, fields)
    assert code == "order"
    assert re.search(message, told)


def test_units_must_be_finite_and_positive(tmp_path):
    recipe = Recipe("gaussian", "fedgrem", 2, {"covariance": "identity"}, standardize=True)
    declared = Declaration(recipe, 2).order(STEP)
    order = Order(SENT, declared.units._replace(location=np.zeros(2), scale=np.array([1.0, 0.0])), np.asarray(False))
    site = SiteAtWork("north", write_site(tmp_path, "north"), recipe)
    assert declined(site, STEP, encode(order)) == ("order", "the order's units are not finite and positive.")


@pytest.mark.parametrize("task", ["local_start", "local_compare", "local_track", "local_size", STEP, CENSUS])
@pytest.mark.parametrize("family", ["gaussian", "regression"])
def test_no_declared_reply_depends_on_the_number_of_rows(monkeypatch, task, family):
    import fedgrem.engines.flare.declaration as declaration

    shapes = []
    for n in (8, 80):
        monkeypatch.setattr(declaration, "SOME_ROWS", n)
        options = {"covariance": "tied"} if family == "gaussian" else {"noise": "shared"}
        recipe = Recipe(family, "fedgrem", 3, options, start={"tracks": 4}, standardize=True)
        shapes.append(repr(Declaration(recipe, 2).reply(task)))
    assert shapes[0] == shapes[1]
    assert "80" not in shapes[1]


def test_settings_come_back_and_a_damaged_file_is_named(tmp_path):
    settings = Settings("/data/rows.csv", ("a", "b"), "y", None, 5.0, 1000)
    write_settings(settings, tmp_path)
    assert read_settings(tmp_path) == settings
    (tmp_path / SETTINGS).write_text(json.dumps({"data": 1}))
    with pytest.raises(InputError, match=r"fedgrem.json cannot be read"):
        read_settings(tmp_path)
    with pytest.raises(InputError, match=r"fedgrem.json is missing; start the site with"):
        read_settings(tmp_path / "elsewhere")


@pytest.mark.parametrize("target", [False, True])
def test_a_rehearsal_shows_every_kind_of_message(tmp_path, target):
    census, start, path, score, step, look, information = rehearse(
        "north", write_site(tmp_path, "north", target=target), 2
    )
    n_numbers = 2 * (1 + (3 if target else 2))  # with an intercept
    assert dict((n, shape) for n, shape, _ in information.fields)["packed"] == (n_numbers * (n_numbers + 1) // 2,)
    assert [name for name, _, _ in census.fields] == ["n_rows", "mean", "deviation", "gaps", "names"]
    assert {name: value for name, _, value in census.fields}["names"] == ["x0", "x1", *["y"] * target]
    assert "params.spread" in [name for name, _, _ in start.fields]
    assert dict((n, shape) for n, shape, _ in path.fields)["members.params.weights"] == (20, 2)
    assert {n: shape for n, shape, _ in score.fields} == {"gain": (10,), "error": (10,), "n_rows": ()}
    assert "at_center" in [name for name, _, _ in look.fields]
    assert step.size == sum(value.nbytes for _, _, value in step.fields)
    assert step.refused == ""


def test_a_rehearsal_says_what_the_floor_would_hold_back(tmp_path):
    *_, step = rehearse("north", write_site(tmp_path, "north", floor=1000.0), 2)
    assert "the floor is 1000" in step.refused
