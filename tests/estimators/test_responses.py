"""Logistic and Poisson regressions, and covariates of words."""

import numpy as np
import pandas as pd
import polars as pl
import pytest
from scipy.special import expit
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression, PoissonRegressor

from fedgrem import FederatedRegressionMixture
from fedgrem.errors import InputError
from fedgrem.models import load_model, save_model

COEF = {"binary": np.array([[4.0, -2.0], [-3.0, 0.5]]), "count": np.array([[1.0, -0.5], [-0.7, 0.3]])}


def drawn(response, eta, generator):
    return (generator.random(len(eta)) < expit(eta)).astype(float) if response == "binary" else generator.poisson(
        np.exp(eta)
    ).astype(float)  # fmt: skip


def federation(response, n_sites=6, n=250, seed=0):
    generator = np.random.default_rng(seed)
    rows, target = {}, {}
    for k in range(n_sites):
        x, z = 1.5 * generator.normal(size=(n, 2)), generator.integers(2, size=n)
        rows[f"s{k}"] = x
        target[f"s{k}"] = drawn(response, (x * COEF[response][z]).sum(axis=1) + np.array([0.5, -0.5])[z], generator)
    return rows, target


@pytest.fixture(scope="module", params=["binary", "count"])
def fitted(request):
    rows, target = federation(request.param, n=500)  # fewer yes/no answers leave coefficients open
    return rows, target, FederatedRegressionMixture(2, response=request.param, random_state=0).fit(rows, target)


@pytest.mark.parametrize("response", ["binary", "count"])
def test_one_component_of_one_site_is_the_regression_of_scikit_learn(response):
    generator = np.random.default_rng(1)
    x = generator.normal(size=(300, 3)) * [1.0, 10.0, 0.1] + [0.0, 50.0, 2.0]
    eta = 0.4 + (x - [0.0, 50.0, 2.0]) @ [1.0, -0.08, 5.0]
    y = drawn(response, eta, generator)
    model = FederatedRegressionMixture(1, response=response, standard_errors=True, tol=1e-10).fit(x, y)
    white = (x - x.mean(axis=0)) / x.std(axis=0)  # of which scikit-learn's solvers reach the last digits
    other = {
        "binary": lambda: LogisticRegression(C=np.inf, tol=1e-12, max_iter=1000),
        "count": lambda: PoissonRegressor(alpha=0.0, tol=1e-12, max_iter=1000, solver="newton-cholesky"),
    }[response]().fit(white, y)
    np.testing.assert_allclose(model.coef_[0, 0], other.coef_.ravel() / x.std(axis=0), rtol=1e-6)
    expected = other.predict_proba(white)[:, 1] if response == "binary" else other.predict(white)
    np.testing.assert_allclose(model.predict(x), expected, rtol=1e-6)
    curved = expected * (1.0 - expected) if response == "binary" else expected
    whole = np.column_stack([x, np.ones(len(x))])
    errors = np.sqrt(np.diagonal(np.linalg.inv((whole.T * curved) @ whole)))
    np.testing.assert_allclose([*model.coef_se_[0, 0], model.intercept_se_[0, 0]], errors, rtol=1e-6)


def test_groups_are_found_and_their_coefficients_within_their_errors(fitted):
    _, _, model = fitted
    truth = COEF[model.response]
    order = np.argsort(-model.center_[:, 0])
    assert np.all(np.abs(model.center_[order] - truth) < 4.0 * model.center_se_[order])
    assert model.at_center_.mean() > 0.7
    assert model.converged_
    low, high = model.intervals()["center"]
    assert np.all(low < high)


def test_scores_are_shares_of_the_deviance_and_likelihoods_those_of_the_mixture(fitted):
    rows, target, model = fitted
    assert 0.01 < model.score(rows, target) < 1.0
    mean = model.predict(rows)["s1"]
    lines = rows["s1"] @ model.coef_[1].T + model.intercept_[1]
    each = expit(lines) if model.response == "binary" else np.exp(lines)
    np.testing.assert_allclose(mean, each @ model.weights_[1], rtol=1e-10)
    if model.response == "binary":  # a mixture of answers of yes or no is one of these
        chance = np.where(target["s1"] == 1.0, mean, 1.0 - mean)
        np.testing.assert_allclose(model.score_samples(rows, target)["s1"], np.log(chance), atol=1e-9)
    else:
        one = clone(model).set_params(n_components=1).fit(rows, target)
        assert model.bic(rows, target) < one.bic(rows, target)


def test_draws_are_responses_of_the_kind_and_saved_models_draw_the_same(fitted, tmp_path):
    rows, target, model = fitted
    x = np.tile([1.0, 0.5], (4000, 1))
    y, labels = model.sample(x, site="s2")
    assert set(np.unique(y)) <= {0.0, 1.0} if model.response == "binary" else np.all(y % 1 == 0)
    assert y.mean() == pytest.approx(model.predict(x[:1], sites="s2")[0], rel=0.1)
    assert labels.mean() == pytest.approx(model.weights_[2, 1], abs=0.05)
    again = load_model(save_model(model, tmp_path / "model"))
    np.testing.assert_array_equal(again.sample(x, site="s2")[0], y)
    np.testing.assert_array_equal(again.score_samples(rows, target)["s0"], model.score_samples(rows, target)["s0"])


def test_one_more_site_joins_by_the_center(fitted):
    _, _, model = fitted
    new_rows, new_target = federation(model.response, 1, seed=9)
    joined = load_model_of(model).fit_site(new_rows["s0"], new_target["s0"], name="new")
    assert joined.site_verdict_[-1] in ("at the center", "similar")


def load_model_of(model):
    again = clone(model)
    for name, value in model.fitted_values().items():
        setattr(again, name, value)
    return again


def test_a_covariate_that_tells_yes_from_no_without_error_leaves_coefficients_finite():
    generator = np.random.default_rng(3)
    x = generator.normal(size=(80, 2))
    model = FederatedRegressionMixture(1, response="binary").fit(x, (x[:, 0] > 0).astype(float))
    assert np.isfinite(model.coef_).all()
    assert model.score(x, (x[:, 0] > 0).astype(float)) > 0.99


@pytest.mark.parametrize(
    ("response", "value", "words"),
    [
        ("binary", 2.0, r"site 's1' has a response of 2, and response='binary' needs 0 or 1"),
        ("count", -1.0, r"site 's1' has a response of -1, and response='count' needs whole numbers"),
        ("count", 1.5, r"site 's1' has a response of 1.5, and response='count' needs whole numbers"),
    ],
)
def test_responses_of_another_kind_are_refused_by_site(response, value, words):
    rows, target = federation(response, 2, 30)
    target["s1"][3] = value
    with pytest.raises(InputError, match=words):
        FederatedRegressionMixture(1, response=response).fit(rows, target)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"response": "normal"}, "response must be one of 'gaussian', 'binary', 'count'; got 'normal'"),
        ({"response": "binary", "noise": "component"}, "response='binary' has no noise of its own"),
        ({"response": "count", "intercept": "site"}, "intercept='site' takes sites about their means"),
        ({"response": "count", "secure_sums": True}, "secure_sums does not go with response='count'"),
    ],
)
def test_options_of_numbers_are_refused_for_other_responses(options, words):
    rows, target = federation("binary", 2, 30)
    with pytest.raises(InputError, match=words):
        FederatedRegressionMixture(1, **options).fit(rows, target)


# -- covariates of words


def patients(seed=0, n=240):
    generator = np.random.default_rng(seed)
    pain = generator.choice(["none", "mild", "severe"], size=n)
    frame = pd.DataFrame(
        {
            "age": generator.normal(50.0, 9.0, size=n),
            "pain": pain,
            "cp": pd.Categorical(generator.integers(1, 4, size=n)),
        }
    )
    effect = pd.Series(pain).map({"mild": 0.0, "none": -2.0, "severe": 3.0}) + 1.5 * (frame["cp"] == 3)
    y = 0.1 * frame["age"].to_numpy() + effect.to_numpy() + 0.3 * generator.normal(size=n)
    return frame, y, np.repeat(["east", "north", "west"], n // 3)


def test_words_are_expanded_by_level_and_named():
    frame, y, sites = patients()
    model = FederatedRegressionMixture(1, random_state=0).fit(frame, y, sites=sites)
    names = ["age", "pain=none", "pain=severe", "cp=2", "cp=3"]
    assert model.feature_names_in_.tolist() == names
    np.testing.assert_allclose(model.center_[0], [0.1, -2.0, 3.0, 0.0, 1.5], atol=0.15)
    assert model.source_columns == ["age", "pain", "cp"]
    text = model.summary()
    assert all(name in text for name in names)
    assert "Coefficients of pain are against its level mild." in model.notes_


def test_rows_to_predict_may_come_in_another_order_of_columns_and_levels():
    frame, y, sites = patients()
    model = FederatedRegressionMixture(1, random_state=0).fit(frame, y, sites=sites)
    found = model.predict(frame, sites=sites)
    assert found.index.equals(frame.index)
    some = frame.loc[frame["pain"] == "severe", ["cp", "pain", "age"]]
    place = (frame["pain"] == "severe").to_numpy()
    np.testing.assert_allclose(model.predict(some, sites=sites[place]), found[place], rtol=1e-12)
    in_polars = pl.from_pandas(frame.assign(cp=frame["cp"].astype(int).astype(str)))
    np.testing.assert_allclose(model.predict(in_polars, sites=sites), found, rtol=1e-12)
    with pytest.raises(InputError, match=r"has 'sever' in column 'pain'.*did you mean 'severe'"):
        model.predict(frame.replace({"pain": {"severe": "sever"}}), sites=sites)


def test_frames_by_site_share_their_levels():
    frame, y, sites = patients()
    parts = {site: frame[sites == site] for site in np.unique(sites)}
    # A level that one site lacks is a column of zeros there.
    keep = (parts["east"]["pain"] != "severe").to_numpy()
    parts["east"], answers = parts["east"][keep], {site: y[sites == site] for site in np.unique(sites)}
    answers["east"] = answers["east"][keep]
    model = FederatedRegressionMixture(1, random_state=0).fit(parts, answers)
    np.testing.assert_allclose(model.center_[0], [0.1, -2.0, 3.0, 0.0, 1.5], atol=0.15)
    assert "pain=severe is 0 in all" in " ".join(model.notes_)


def test_a_missing_word_is_named_by_its_column():
    frame, y, sites = patients()
    frame.loc[4, "pain"] = None
    with pytest.raises(InputError, match="pain=none"):
        FederatedRegressionMixture(1).fit(frame, y, sites=sites)
