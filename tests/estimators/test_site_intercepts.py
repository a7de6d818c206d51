"""Regressions with intercepts of every site's own: the slopes are those of a within estimator."""

import numpy as np
import pytest
from sklearn.base import clone

from fedgrem import FederatedRegressionMixture
from fedgrem.errors import InputError
from fedgrem.models import load_model, save_model
from fedgrem.report import summarize

SLOPES = np.array([2.0, -1.0])


def schools(n_groups=1, n_sites=30, seed=0):
    """Sites whose level goes with the mean of their first column, and a site of one row."""
    generator = np.random.default_rng(seed)
    rows, target = {}, {}
    for k in range(n_sites):
        n = 1 if k == 0 else int(generator.integers(2, 40 * n_groups))
        mean = generator.normal()
        x = np.column_stack([mean + generator.normal(size=n), generator.normal(size=n)])
        slopes = np.where(generator.integers(n_groups, size=n)[:, None] == 1, [-3.0, 1.5], SLOPES)
        rows[f"s{k}"] = x
        target[f"s{k}"] = 50.0 + 8.0 * mean + (x * slopes).sum(axis=1) + generator.normal(size=n)
    return rows, target


def with_dummies(rows, target):
    """Least squares with an intercept for every site: slopes and their standard errors."""
    x = np.concatenate([own - own.mean(axis=0) for own in rows.values()])
    y = np.concatenate([own - own.mean() for own in target.values()])
    slopes = np.linalg.lstsq(x, y, rcond=None)[0]
    variance = np.sum((y - x @ slopes) ** 2) / (len(y) - len(rows) - 2)
    return slopes, np.sqrt(variance * np.diagonal(np.linalg.inv(x.T @ x)))


@pytest.fixture(scope="module")
def fitted():
    rows, target = schools()
    return rows, target, FederatedRegressionMixture(1, intercept="site", random_state=0).fit(rows, target)


def test_one_component_is_least_squares_with_an_intercept_for_every_site(fitted):
    rows, target, model = fitted
    slopes, errors = with_dummies(rows, target)
    assert np.all(np.abs(model.center_[0] - slopes) < 0.3 * errors)
    np.testing.assert_allclose(model.center_se_[0], errors, rtol=0.1)
    assert np.isnan(model.center_intercept_se_).all()
    apart = clone(model).set_params(intercept="component").fit(rows, target)
    assert np.abs(apart.center_[0, 0] - slopes[0]) > 1.2 * errors[0]  # levels leak into the slope


def test_many_small_sites_do_not_explain_their_noise_away():
    generator = np.random.default_rng(4)
    rows = {f"s{k}": generator.normal(size=(12, 3)) for k in range(80)}
    target = {name: own @ [1.0, -1.0, 0.5] + 2.0 * generator.normal(size=12) for name, own in rows.items()}
    for intercept in ("component", "site"):
        model = FederatedRegressionMixture(1, intercept=intercept, random_state=0).fit(rows, target)
        assert model.at_center_.mean() > 0.95
        # A site's own coefficients would take 4 of its 12 rows, and leave 0.82 of the noise.
        assert model.center_noise_[0] == pytest.approx(2.0, rel=0.09)


def test_rows_are_predicted_about_their_own_sites_level(fitted):
    rows, target, model = fitted
    predicted = model.predict(rows)
    for name, own in target.items():
        assert predicted[name].mean() == pytest.approx(own.mean(), abs=0.1)
    assert model.n_rows_.tolist() == [len(own) for own in target.values()]
    with pytest.warns(UserWarning, match="common center"):
        middle = model.predict(np.zeros((1, 2)), sites="elsewhere")[0]
    assert middle == pytest.approx(np.median(model.intercept_), abs=2.0)
    assert model.score(rows, {name: own for name, own in target.items()}) > 0.9


def test_what_is_added_to_all_rows_of_a_site_changes_no_slope(fitted):
    rows, target, model = fitted
    moved = {name: own + 7.0 * k for k, (name, own) in enumerate(rows.items())}
    raised = {name: own - 100.0 * k for k, (name, own) in enumerate(target.items())}
    again = clone(model).fit(moved, raised)
    np.testing.assert_allclose(again.coef_, model.coef_, atol=1e-6)
    np.testing.assert_allclose(again.predict(moved)["s5"], model.predict(rows)["s5"] - 500.0, atol=1e-6)


def test_two_components_are_found_though_sites_differ_in_level(tmp_path):
    rows, target = schools(n_groups=2)
    model = FederatedRegressionMixture(2, intercept="site", random_state=0).fit(rows, target)
    order = np.argsort(-model.center_[:, 0])
    np.testing.assert_allclose(model.center_[order], [SLOPES, [-3.0, 1.5]], atol=0.2)
    again = load_model(save_model(model, tmp_path / "model"))
    np.testing.assert_array_equal(again.score_samples(rows, target)["s3"], model.score_samples(rows, target)["s3"])
    assert np.isfinite(model.score_samples(rows, target)["s0"]).all()
    assert summarize(again).n_components == 2


def test_a_column_that_varies_between_sites_only_is_refused(fitted):
    _, target, model = fitted
    rows = {name: np.column_stack([np.full(len(own), k), own]) for k, (name, own) in enumerate(target.items())}
    with pytest.raises(InputError, match=r"column 'number 0' does not vary within any site.*intercept='component'"):
        clone(model).fit(rows, target)


def test_what_site_intercepts_cannot_do_yet_is_said(fitted):
    rows, target, model = fitted
    with pytest.raises(InputError, match="cannot join a fit with intercept='site' yet"):
        model.fit_site(rows["s3"], target["s3"], name="new")
    with pytest.raises(InputError, match="coef_init does not go with intercept='site'"):
        clone(model).set_params(coef_init=np.zeros((30, 1, 2))).fit(rows, target)
    with pytest.raises(InputError, match="intercept must be one of 'component', 'site'; got 'none'"):
        clone(model).set_params(intercept="none").fit(rows, target)
