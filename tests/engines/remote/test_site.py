import json
import re
from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from fedgrem import FederatedRegressionMixture, FederatedTableMixture
from fedgrem.algorithms.fedgrem import FedGrEM
from fedgrem.algorithms.pooled import PooledEM
from fedgrem.algorithms.registry import ALGORITHMS
from fedgrem.algorithms.state import Toward
from fedgrem.data.columns import Column
from fedgrem.data.units import Census, UnitsPlan
from fedgrem.engines.remote.declaration import CENSUS, HELLO, STEP, Declaration, Order, Units
from fedgrem.engines.remote.rehearsal import rehearse
from fedgrem.engines.remote.result import Finished
from fedgrem.engines.remote.site import (
    REASONS,
    SETTINGS,
    DeclinedError,
    Settings,
    SiteAtWork,
    read_settings,
    write_settings,
)
from fedgrem.engines.remote.wire import encode
from fedgrem.errors import InputError
from fedgrem.estimators.network import adopt, spec_for
from fedgrem.estimators.notes import ColumnWarning
from fedgrem.families.covariance import STRUCTURES, Full
from fedgrem.families.gaussian import Gaussian
from fedgrem.families.generalized import RESPONSES, GeneralizedRegression
from fedgrem.families.poisson import Poisson
from fedgrem.families.regression import LinearRegression
from fedgrem.families.table import Table
from fedgrem.fit.conversation import Replies
from fedgrem.fit.fit import run
from fedgrem.fit.penalty import ESTIMATED, PENALTIES, WEIGHTS_PENALTIES
from fedgrem.fit.spec import FitSpec, read_spec
from fedgrem.fit.tasks import AT_HOME, TASKS
from fedgrem.types import Broadcast, Params, map_arrays, named_arrays
from tests.engines.remote.studies import fields, rows_of, spec_of, write_site

SPEC = spec_of()
PARAMS = Params(np.array([0.5, 0.5]), np.array([[-3.0, -3.0], [3.0, 3.0]]))
POOLING = (np.full(2, 0.5), np.array(0.0))
ALIKE = (None, np.zeros(2), np.ones(2))
SENT = Broadcast(PARAMS, Toward(PARAMS.theta, np.array(1.0), None, np.array(1), np.array(0), None, *POOLING, *ALIKE))


def order(sent=SENT, units=None):
    return encode(Order(sent, units, np.asarray(False)))


def answer(site, task, sent):
    """What the site answers to an order."""
    return site.work(task, site.read(task, sent)).reply


def declined(site, task=CENSUS, order=encode(HELLO)):  # noqa: B008  # it is not changed
    with pytest.raises(DeclinedError) as refusal:
        answer(site, task, order)
    assert refusal.value.code in REASONS
    return refusal.value.code, str(refusal.value)


def test_rows_are_read_when_they_are_first_needed_and_only_then(tmp_path):
    site = SiteAtWork("north", write_site(tmp_path, "north"), SPEC)
    rows, _ = rows_of("north")
    census = answer(site, CENSUS, encode(HELLO))
    assert float(census.n_rows) == len(rows)
    np.testing.assert_allclose(census.mean, rows.mean(axis=0))
    (tmp_path / "north.parquet").unlink()
    assert float(answer(site, STEP, order()).n_rows) == len(rows)


def test_rows_are_put_into_other_units_when_an_order_says_so(tmp_path):
    spec = spec_of(units=UnitsPlan(standardize=True))
    site = SiteAtWork("north", write_site(tmp_path, "north"), spec)
    told = [answer(site, STEP, order(units=Units(np.zeros(2), np.full(2, s)))) for s in (1.0, 9.0, 1.0)]
    assert told[0].log_likelihood == told[2].log_likelihood != told[1].log_likelihood


def test_a_file_that_is_gone_is_a_reason_and_its_path_stays_here(tmp_path):
    settings = write_site(tmp_path, "north")
    (tmp_path / "north.parquet").unlink()
    code, message = declined(SiteAtWork("north", settings, SPEC))
    assert code == "rows"
    assert "does not exist" in message
    assert str(tmp_path) not in REASONS[code]


def test_a_cell_that_is_no_number_is_quoted_here_and_not_in_the_reason(tmp_path):
    (tmp_path / "bad.csv").write_text("x0,x1\n1,secret-patient\n2,3\n")
    code, message = declined(SiteAtWork("north", Settings(str(tmp_path / "bad.csv"), ("x0", "x1")), SPEC))
    assert "secret-patient" in message
    assert "secret-patient" not in REASONS[code]


def test_a_site_of_one_row_takes_part_if_its_floor_lets_it(tmp_path):
    pl.DataFrame({"x0": [1.0], "x1": [2.0]}).write_csv(tmp_path / "one.csv")
    settings = Settings(str(tmp_path / "one.csv"), ("x0", "x1"), floor=1.0)
    assert float(answer(SiteAtWork("north", settings, SPEC), CENSUS, encode(HELLO)).n_rows) == 1.0
    assert declined(SiteAtWork("north", settings._replace(floor=2.0), SPEC))[0] == "floor"


def test_missing_cells_are_refused_unless_the_spec_allows_them(tmp_path):
    (tmp_path / "gaps.csv").write_text("x0,x1\n1,\n2,3\n4,5\n")
    settings = Settings(str(tmp_path / "gaps.csv"), ("x0", "x1"), floor=1.0)
    assert declined(SiteAtWork("north", settings, SPEC))[0] == "rows"
    assert bool(answer(SiteAtWork("north", settings, spec_of(missing=True)), CENSUS, encode(HELLO)).gaps)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (spec_of(columns=("x1", "x0")), "names the columns x1, x0, and the site x0, x1"),
        (spec_of(family=LinearRegression()), "needs a --target column, and the site has set none"),
    ],
)
def test_a_spec_for_other_columns_is_declined(tmp_path, spec, message):
    code, told = declined(SiteAtWork("north", write_site(tmp_path, "north"), spec))
    assert code == "columns"
    assert message in told


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (FitSpec(Gaussian(), PooledEM(), 2), "pools the rows of all sites"),
        (spec_of(given=Params(np.ones((3, 2)), np.ones((3, 2, 2)))), "starts cannot be given"),
    ],
)
def test_a_spec_that_is_not_for_a_network_is_declined(tmp_path, spec, message):
    code, told = declined(SiteAtWork("north", write_site(tmp_path, "north"), spec))
    assert code == "order"
    assert message in told


@pytest.mark.parametrize(
    ("task", "sent", "message"),
    [
        ("send_rows", order(), "there is no task 'send_rows'"),
        ("score", order(PARAMS), "there is no task 'score' in this fit; the tasks are census, start, compare"),
        (STEP, encode(HELLO), "lacks mail.params.weights"),
        (STEP, order(SENT._replace(params=PARAMS._replace(weights=np.ones(3)))), r"weights of shape \(3,\), expected"),
        (STEP, order() | fields(mail__extra__steps=1.5), "mail.extra.steps of type float64, expected int64"),
        (CENSUS, encode(HELLO) | fields(more=np.ones(1)), "also holds more"),
        ("start", {"mail.noise": 3}, "lacks"),
        ("compare", {"mail.params.weights": {"shape": "x"}}, "lacks"),
        ("start", 7, "the message is a int"),
    ],
)
def test_an_order_that_does_not_fit_the_spec_is_declined(tmp_path, task, sent, message):
    code, told = declined(SiteAtWork("north", write_site(tmp_path, "north"), SPEC), task, sent)
    assert code == "order"
    assert re.search(message, told)


def test_units_must_be_finite_and_positive(tmp_path):
    site = SiteAtWork("north", write_site(tmp_path, "north"), spec_of(units=UnitsPlan(standardize=True)))
    for scale in (0.0, np.inf):
        sent = order(units=Units(np.zeros(2), np.array([1.0, scale])))
        assert declined(site, STEP, sent) == ("order", "the order's units are not finite and positive.")


def test_responses_of_another_kind_are_refused_here_and_not_shown_in_the_reason(tmp_path):
    spec = spec_of(family=GeneralizedRegression("count"))
    code, message = declined(SiteAtWork("north", write_site(tmp_path, "north", target=True), spec))
    assert code == "rows"
    assert "needs whole numbers from 0 on" in message


FAMILIES = [Gaussian(structure()) for structure in STRUCTURES.values()]
FAMILIES += [LinearRegression(), LinearRegression("shared"), Poisson(), *map(GeneralizedRegression, RESPONSES)]
MIXED = (
    Column("age", "continuous"),
    Column("sex", "binary", ("f", "m")),
    Column("cp", "categorical", ("1", "2", "3")),
    Column("visits", "count"),
)
FAMILIES += [Table(MIXED), Table(MIXED, Full(), None)]
NOT_POOLED = [kind for kind in ALGORITHMS.values() if not kind.traits.pools_rows]


@pytest.mark.parametrize("family", FAMILIES, ids=repr)
def test_every_task_is_declared_and_no_shape_depends_on_rows_or_columns_alone(family):
    spec = FitSpec(family, FedGrEM(), 3, score=True, some=4)
    declared = Declaration(spec, 4)
    skipped = {"size", "held_down"} if family.joint_starts else {"size", "held_down", "joint_start"}
    # Playing it asserts that the size of the made-up sites does not matter.
    for task in {CENSUS, *TASKS} - AT_HOME - skipped:
        assert all(named_arrays(form.reply) for form in declared.forms(task))
    assert {form.reply.params.weights.shape for form in declared.forms(STEP)} == {(3,)}
    assert [form.reply.params.weights.shape for form in declared.forms("birth", n_components=4)] == [(5,)]
    noisy = family.noise_shape(3, 4) is not None
    assert len(declared.forms("start")) == 1 + noisy, "once more in common units"
    gains = [form.reply.gain.shape for task in ("path_score", "weights_score") for form in declared.forms(task)]
    penalties = ESTIMATED if family.unit_errors else PENALTIES
    assert gains == [(len(penalties),), (len(WEIGHTS_PENALTIES),)]


@pytest.mark.parametrize("algorithm", NOT_POOLED)
def test_every_algorithm_is_declared(algorithm):
    declared = Declaration(FitSpec(Gaussian(), algorithm(), 3), 2)
    names = [name for name, _ in named_arrays(declared.forms(STEP)[0].reply)]
    assert names[:5] == ["params.weights", "params.theta", "step_scale", "n_rows", "log_likelihood"]


def test_a_reply_whose_shape_depends_on_the_rows_cannot_be_declared(monkeypatch):
    monkeypatch.setitem(TASKS, "look", lambda spec, stack, mail: PARAMS._replace(theta=stack.rows))
    with pytest.raises(AssertionError, match="the reply to look depends on the number of rows"):
        Declaration(spec_of(tol=0.125), 2).forms("look")


def test_settings_come_back_and_a_damaged_file_is_named(tmp_path):
    settings = Settings("/data/rows.csv", ("a", "b"), "y", None, 5.0, 1000)
    write_settings(settings, tmp_path)
    assert read_settings(tmp_path) == settings
    (tmp_path / SETTINGS).write_text(json.dumps({"data": 1}))
    with pytest.raises(InputError, match=r"fedgrem.json cannot be read"):
        read_settings(tmp_path)
    with pytest.raises(InputError, match=r"fedgrem.json is missing; start the site with"):
        read_settings(tmp_path / "elsewhere")


def write_covariates(folder, name, seed):
    """Ages and kinds of pain, one of which a site lacks, and what follows from them."""
    generator = np.random.default_rng(seed)
    kinds = np.array(["mild", "none", "severe"][: 2 if name == "b" else 3])
    pain, age, slope = generator.choice(kinds, 80), generator.normal(60.0, 9.0, 80), generator.choice([-1.0, 1.0], 80)
    y = slope * (age - 60.0) + 8.0 * (pain == "none") + generator.normal(size=80)
    frame = pl.DataFrame({"age": age, "pain": pain, "y": y})
    frame.write_csv(folder / f"{name}.csv")
    return frame, Settings(str(folder / f"{name}.csv"), ("age", "pain"), "y", words=True)


def test_covariates_of_words_are_expanded_by_the_levels_of_the_spec_as_in_process(tmp_path):
    words = (Column("pain", "categorical", ("mild", "none", "severe")),)
    model, over = (FederatedRegressionMixture(2, n_init=2, penalty=2.0, random_state=0) for _ in range(2))
    spec = read_spec(spec_for(model, ["age", "pain"], words=words).to_json())
    frames, sites = {}, []
    for seed, name in enumerate("abc"):
        frames[name], settings = write_covariates(tmp_path, name, seed)
        sites.append(SiteAtWork(name, settings, spec))
    model.fit({n: f.select("age", "pain") for n, f in frames.items()}, {n: f["y"] for n, f in frames.items()})
    about = {"words": [column.as_plain() for column in words]}
    adopt(over, Finished(run(spec, Sites(sites)), about), list(spec.fitted_columns(("age", "pain"))))
    np.testing.assert_array_equal(over.notes_, model.notes_)
    assert "Coefficients of pain are against its level mild." in over.notes_.tolist()
    assert over.feature_names_in_.tolist() == ["age", "pain=none", "pain=severe"]
    np.testing.assert_allclose(over.coef_, model.coef_, rtol=1e-8)
    some = {name: frame.select("age", "pain") for name, frame in frames.items()}
    for mine, theirs in zip(over.predict(some).values(), model.predict(some).values(), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-8)


def test_levels_of_words_that_were_not_agreed_on_are_a_reason_and_stay_here(tmp_path):
    _, settings = write_covariates(tmp_path, "a", 0)
    model = FederatedRegressionMixture(2, penalty=2.0)
    spec = spec_for(model, ["age", "pain"], words=(Column("pain", "binary", ("mild", "none")),))
    code, message = declined(SiteAtWork("a", settings, spec))
    assert code == "rows"
    assert "'severe' in column 'pain'" in message
    assert "severe" not in REASONS[code]
    plain = spec_for(model, ["age", "pain"])
    assert "pain" in declined(SiteAtWork("a", settings, plain))[1]
    with pytest.raises(InputError, match="levels of words are for covariates of a regression"):
        spec_for(model, words=(Column("pain", "binary", ("mild", "none")),))
    other = replace(spec, words=(Column("cp", "binary", ("1", "2")),))
    code, message = declined(SiteAtWork("a", settings, other))
    assert (code, message) == ("columns", "the fit has levels of 'cp', which is no column of the site.")


@pytest.mark.parametrize("target", [False, True])
def test_a_rehearsal_shows_every_kind_of_message(tmp_path, target):
    messages, refused = rehearse("north", write_site(tmp_path, "north", target=target), 2)
    census, start, *joint, _compare, path, score, pooling, step, fit, look, information = messages
    assert refused == ""
    assert "entropy" in [name for name, _, _ in fit.fields]
    assert "weights" in pooling.title
    assert len(joint) == target
    n_numbers = 2 * (1 + (3 if target else 2))  # with an intercept
    assert {n: shape for n, shape, _ in information.fields}["packed"] == (n_numbers * (n_numbers + 1) // 2,)
    assert [name for name, _, _ in census.fields] == ["n_rows", "mean", "deviation", "seen", "gaps", "names"]
    assert {name: value for name, _, value in census.fields}["names"] == ["x0", "x1", *["y"] * target]
    assert "params.noise" in [name for name, _, _ in start.fields]
    count = len(PENALTIES if target else ESTIMATED)
    assert {n: shape for n, shape, _ in path.fields}["fits.params.weights"] == (2, count, 2)
    assert {n: shape for n, shape, _ in score.fields} == {"gain": (count,), "error": (count,), "n_rows": ()}
    assert "at_center" in [name for name, _, _ in look.fields]
    assert step.size == sum(value.nbytes for _, _, value in step.fields)
    assert step.held_back == []


def test_a_rehearsal_says_of_which_components_nothing_is_said(tmp_path):
    rows = np.concatenate([np.random.default_rng(0).normal(size=(44, 2)), [[50.0, 50.0]] * 3])
    pl.DataFrame(rows, schema=["x0", "x1"]).write_csv(tmp_path / "few.csv")
    messages, _ = rehearse("north", Settings(str(tmp_path / "few.csv"), ("x0", "x1")), 2)
    step = next(message for message in messages if message.title == "Every round")
    assert len(step.held_back) == 1


def test_a_rehearsal_of_more_components_than_the_rows_are_enough_for_ends_with_the_reason(tmp_path):
    messages, refused = rehearse("north", write_site(tmp_path, "north", floor=1000.0), 2)
    assert messages == []
    assert (
        refused == "the site has 47 rows: with a floor of 1000 these are enough for 0 component(s), and the fit has 2."
    )


class Sites:
    """An engine that asks sites at work one after the other."""

    def __init__(self, sites):
        self.site_names, self._sites = tuple(site.name for site in sites), sites

    def ask(self, ask):
        replies = []
        for k, site in enumerate(self._sites):
            mail = map_arrays(lambda leaf, k=k: np.asarray(leaf[k]), ask.mail)
            reply = answer(site, ask.task, encode(Order(mail, ask.agreed.units, np.asarray(ask.agreed.gaps))))
            replies.append(Census(*reply[:-1]) if ask.task == CENSUS else reply)
        return Replies(np.ones(len(replies), dtype=bool), map_arrays(lambda *leaves: np.stack(leaves), *replies))


def write_words(folder, name, seed):
    """A table of words, codes, counts and empty cells; a site lacks a level, and another a column."""
    generator = np.random.default_rng(seed)
    group = generator.integers(2, size=60)
    table = {
        "age": (50.0 + 15.0 * (2 * group - 1) + generator.normal(size=60)).tolist(),
        "sex": np.where(generator.random(60) < 0.2 + 0.6 * group, "m", "f").tolist(),
        "cp": (1 + generator.integers(2 if name == "b" else 3, size=60)).tolist(),
        "visits": [None] * 60 if name == "c" else generator.poisson(1.0 + 6.0 * group).tolist(),
    }
    table["age"][3] = table["sex"][5] = table["cp"][7] = None
    frame = pl.DataFrame(table, schema_overrides={"visits": pl.Int64})
    frame.write_csv(folder / f"{name}.csv")
    return frame, Settings(str(folder / f"{name}.csv"), tuple(table), words=True)


def test_a_table_is_fitted_over_the_wire_by_the_types_of_the_spec_as_in_process(tmp_path):
    declared = {"age": "continuous", "sex": ["f", "m"], "cp": ["1", "2", "3"], "visits": "count"}
    model = FederatedTableMixture(2, columns=declared, n_init=2, penalty=2.0, random_state=0)
    spec = read_spec(spec_for(model, list(declared)).to_json())
    frames, sites = {}, []
    for seed, name in enumerate("abc"):
        frames[name], settings = write_words(tmp_path, name, seed)
        sites.append(SiteAtWork(name, settings, spec))
    result = run(spec, Sites(sites))
    with pytest.warns(ColumnWarning, match="visits is missing in all 60 rows of site 'c'"):
        model.fit(frames)
    over = FederatedTableMixture(2, columns=declared, n_init=2, penalty=2.0, random_state=0)
    with pytest.warns(ColumnWarning, match="visits is missing in all 60 rows of site 'c'"):
        adopt(over, Finished(result, {}), list(declared))
    np.testing.assert_allclose(over.means_, model.means_, rtol=1e-8)
    assert over.columns_ == model.columns_
    np.testing.assert_allclose(over.predict_proba(frames)["a"], model.predict_proba(frames)["a"], atol=1e-8)


def test_a_value_that_the_spec_does_not_know_is_a_reason_and_stays_here(tmp_path):
    _, settings = write_words(tmp_path, "a", 0)
    known = Table((*MIXED[:1], Column("sex", "binary", ("w", "m")), *MIXED[2:]))
    site = SiteAtWork("a", settings, FitSpec(known, FedGrEM(), 2, missing=True))
    code, told = declined(site)
    assert code == "rows"
    assert "'f' in column 'sex', whose levels are w, m" in told
