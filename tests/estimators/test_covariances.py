"""Estimated covariances and noise, at the estimators: units, robustness, singular data."""

import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import multivariate_normal
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import adjusted_rand_score

from fedgrem import FederatedGaussianMixture, FederatedRegressionMixture, FedGrEM
from fedgrem.errors import FedGrEMError

SHAPE = np.array([[1.0, 0.0], [0.9, 0.4]])
CENTERS = np.array([[0.0, 0.0], [0.0, 3.0], [6.0, 0.0]])
ALONE = {"n_init": 3, "standard_errors": False, "random_state": 0, "tol": 1e-5}
FAST = ALONE | {"penalty": 2.0}


def sites(n_sites=6, n=120, seed=0, hostile=0):
    """Correlated groups; hostile sites are wide noise."""
    generator = np.random.default_rng(seed)
    rows, labels = {}, {}
    for k in range(n_sites):
        label = generator.integers(3, size=n)
        noise = generator.normal(size=(n, 2))
        rows[f"s{k}"] = 50.0 * noise if k < hostile else CENTERS[label] + noise @ SHAPE.T
        labels[f"s{k}"] = label
    return rows, labels


@pytest.fixture(scope="module")
def fitted():
    rows, _ = sites()
    return FederatedGaussianMixture(3, **FAST).fit(rows)


def test_the_default_finds_groups_that_unit_covariances_cannot(fitted):
    rows, labels = sites()
    found = fitted.predict(rows)
    assert np.mean([adjusted_rand_score(labels[name], found[name]) for name in rows]) > 0.9
    assert fitted.covariances_.shape == (6, 1, 2, 2)
    np.testing.assert_allclose(fitted.center_covariances_[0], SHAPE @ SHAPE.T, atol=0.15)


def test_scores_are_those_of_the_reported_mixture(fitted):
    rows, _ = sites()
    density = sum(
        fitted.weights_[0, r] * multivariate_normal(fitted.means_[0, r], fitted.covariances_[0, 0]).pdf(rows["s0"])
        for r in range(3)
    )
    np.testing.assert_allclose(fitted.score_samples(rows)["s0"], np.log(density), rtol=1e-8)


def test_the_history_is_in_the_units_of_the_rows(fitted):
    rows, _ = sites()
    total = fitted.score_samples(rows)["s0"].sum()
    assert fitted.history_["log_likelihood"][-1][0] == pytest.approx(total, rel=1e-3)


def test_samples_have_the_reported_moments(fitted):
    drawn, label = fitted.sample(40_000, site="s0")
    mine = drawn[label == 1]
    np.testing.assert_allclose(mine.mean(axis=0), fitted.means_[0, 1], atol=0.05)
    np.testing.assert_allclose(np.cov(mine.T), fitted.covariances_[0, 0], atol=0.05)


@pytest.mark.parametrize("covariance", ["tied", "spherical", "diag", "full"])
def test_the_units_of_the_columns_do_not_matter(covariance):
    rows, _ = sites(n_sites=3, n=60)
    units, shift = np.array([1000.0, 0.001]), np.array([1e5, -7.0])
    model = FederatedGaussianMixture(3, covariance_type=covariance, **FAST)
    plain, scaled = model.fit(rows).predict(rows), None
    means = model.means_
    other = {name: table * units + shift for name, table in rows.items()}
    scaled = model.fit(other).predict(other)
    for name in rows:
        np.testing.assert_array_equal(plain[name], scaled[name])
    np.testing.assert_allclose((model.means_ - shift) / units, means, rtol=1e-5, atol=1e-5)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_a_hostile_site_cannot_inflate_the_covariance_of_the_others():
    rows, _ = sites(hostile=2)
    robust = FederatedGaussianMixture(3, **FAST).fit(rows)
    averaged = FederatedGaussianMixture(3, algorithm="fedem", **ALONE).fit(rows)
    size = np.linalg.det(SHAPE @ SHAPE.T)
    assert np.linalg.det(robust.covariances_[2:, 0]).max() < 3.0 * size
    assert np.linalg.det(averaged.covariances_[2:, 0]).min() > 30.0 * size


def test_an_infinite_penalty_gives_one_covariance_and_no_penalty_gives_each_site_its_own():
    rows, _ = sites(n_sites=3, n=60)
    one = FederatedGaussianMixture(3, algorithm=FedGrEM(noise_penalty=np.inf), **FAST).fit(rows)
    np.testing.assert_allclose(one.covariances_ - one.center_covariances_, 0.0, atol=1e-9)
    own = FederatedGaussianMixture(3, algorithm=FedGrEM(noise_penalty=0.0), **FAST).fit(rows)
    assert np.ptp(own.covariances_[:, 0, 0, 0]) > 0.01


@pytest.mark.filterwarnings("ignore::fedgrem.estimators.notes.ColumnWarning")
@pytest.mark.parametrize("covariance", ["tied", "diag", "full"])
def test_singular_columns_get_a_regularized_fit(covariance):
    rows, _ = sites(n_sites=3, n=40)
    twice = {
        name: np.column_stack([table, table[:, 0], np.ones(40) * k]) for k, (name, table) in enumerate(rows.items())
    }
    model = FederatedGaussianMixture(3, covariance_type=covariance, **FAST).fit(twice)
    assert np.isfinite(model.means_).all()
    assert np.isfinite(model.score(twice))


@pytest.mark.filterwarnings("ignore::fedgrem.estimators.notes.ColumnWarning")
def test_with_all_defaults_singular_columns_in_other_units_give_the_same_groups():
    rows, labels = sites(n_sites=3, n=60)
    twice = {
        name: np.column_stack([table, table[:, 0], np.ones(60) * k]) for k, (name, table) in enumerate(rows.items())
    }
    model = FederatedGaussianMixture(3, random_state=0).fit(twice)
    found = model.predict(twice)
    assert np.mean([adjusted_rand_score(labels[name], found[name]) for name in rows]) > 0.8
    other = {name: table * np.array([1000.0, 1.0, 0.001, 1.0]) + 5.0 for name, table in twice.items()}
    scaled = FederatedGaussianMixture(3, random_state=0).fit(other).predict(other)
    for name in rows:
        assert adjusted_rand_score(found[name], scaled[name]) > 0.95


@pytest.mark.parametrize("covariance", ["tied", "full"])
def test_fewer_rows_than_columns_get_a_regularized_fit(covariance):
    generator = np.random.default_rng(3)
    rows = {name: generator.normal(size=(8, 12)) for name in ("a", "b", "c")}
    model = FederatedGaussianMixture(2, covariance_type=covariance, **FAST).fit(rows)
    assert np.isfinite(model.means_).all()
    assert np.isfinite(model.covariances_).all()


@pytest.mark.parametrize("covariance", ["full", "diag"])
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")  # one group, three components
def test_a_component_with_one_row_does_not_collapse(covariance):
    generator = np.random.default_rng(5)
    rows = {name: generator.normal(size=(60, 2)) for name in ("a", "b", "c")}
    rows["a"][0] = 100.0
    model = FederatedGaussianMixture(3, covariance_type=covariance, **FAST | {"max_rounds": 200}).fit(rows)
    variances = np.diagonal(model.covariances_, axis1=2, axis2=3)
    assert variances.min() > 1e-3
    assert model.vanished_.shape == (3, 3)
    # It keeps its row: a component that begins again for want of a millionth of a row would do so for ever.
    lone = int(np.abs(model.means_[0, :, 0]).argmax())
    assert model.means_[0, lone, 0] > 80.0
    assert not model.vanished_[0, lone]
    assert model.history_["movement"][-10:].max() < 0.1


@given(
    st.integers(0, 2**32 - 1),
    st.sampled_from(["tied", "full"]),
    st.sampled_from([1e-8, 1.0, 1e8]),
    st.booleans(),
)
@settings(max_examples=10, deadline=None)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.filterwarnings("ignore::fedgrem.estimators.notes.ColumnWarning")
def test_odd_tables_fit_or_get_an_error_of_ours(seed, covariance, scale, repeated):
    generator = np.random.default_rng(seed)
    rows = {name: scale * generator.standard_cauchy(size=(12, 2)) for name in ("a", "b")}
    if repeated:
        rows["a"][:] = rows["a"][0]
    model = FederatedGaussianMixture(2, covariance_type=covariance, **FAST | {"n_init": 1, "max_rounds": 20})
    try:
        model.fit(rows)
    except FedGrEMError:
        return
    assert np.isfinite(model.means_).all()
    assert np.isfinite(model.covariances_).all()


def test_the_papers_setting_is_one_argument_away():
    rows, _ = sites(n_sites=3, n=60)
    model = FederatedGaussianMixture(3, covariance_type="identity", **FAST).fit(rows)
    np.testing.assert_array_equal(model.covariances_, np.broadcast_to(np.eye(2), (3, 1, 2, 2)))
    np.testing.assert_array_equal(model.center_covariances_, np.eye(2)[None])
    np.testing.assert_array_equal([model.location_, model.scale_], [[0.0, 0.0], [1.0, 1.0]])


# -- regressions


def regressions(scale_x=1.0, scale_y=1.0, seed=0):
    generator = np.random.default_rng(seed)
    coef, level = np.array([[3.0, -2.0], [-3.0, 1.0]]), np.array([10.0, -10.0])
    rows, targets = {}, {}
    for k in range(4):
        x, label = generator.normal(size=(100, 2)), generator.integers(2, size=100)
        y = (x * coef[label]).sum(axis=1) + level[label] + 0.5 * generator.normal(size=100)
        rows[f"s{k}"], targets[f"s{k}"] = scale_x * x + 40.0 * scale_x, scale_y * y
    return rows, targets, coef, level


@pytest.mark.parametrize("noise", ["shared", "component"])
def test_intercept_and_noise_are_found_in_the_units_of_the_rows(noise):
    rows, targets, coef, level = regressions(scale_x=10.0, scale_y=0.1)
    model = FederatedRegressionMixture(2, noise=noise, **FAST).fit(rows, targets)
    order = np.argsort(-model.center_[:, 0])
    np.testing.assert_allclose(model.coef_[0][order], 0.01 * coef, atol=0.002)
    np.testing.assert_allclose(model.intercept_[0][order], 0.1 * (level - 40.0 * coef.sum(axis=1)), atol=0.8)
    np.testing.assert_allclose(model.noise_, 0.05, rtol=0.25)
    assert model.score(rows, targets) == pytest.approx(FederatedRegressionMixture(2, noise=noise, **FAST).fit(
        *regressions()[:2]).score(*regressions()[:2]), abs=1e-6)  # fmt: skip
    drawn, label = model.sample(rows["s0"], site="s0")
    residual = drawn - (rows["s0"] * model.coef_[0][label]).sum(axis=1) - model.intercept_[0][label]
    assert residual.std() == pytest.approx(0.05, rel=0.3)


def test_a_covariate_given_twice_gets_a_regularized_fit():
    rows, targets, _, _ = regressions()
    twice = {name: np.column_stack([table, table[:, 0]]) for name, table in rows.items()}
    once, model = (FederatedRegressionMixture(2, noise="shared", **FAST).fit(x, targets) for x in (rows, twice))
    assert np.isfinite(model.coef_).all()
    together = model.center_[:, 0] + model.center_[:, 2]
    np.testing.assert_allclose(np.sort(together), np.sort(once.center_[:, 0]), atol=0.1)
    assert model.score(twice, targets) == pytest.approx(once.score(rows, targets), abs=0.02)


def test_fewer_rows_than_covariates_get_a_regularized_fit():
    generator = np.random.default_rng(4)
    rows = {name: generator.normal(size=(8, 12)) for name in ("a", "b", "c")}
    targets = {name: generator.normal(size=8) for name in rows}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model = FederatedRegressionMixture(2, noise="shared", **FAST | {"max_rounds": 50}).fit(rows, targets)
    assert np.isfinite(model.coef_).all()
    assert np.all(model.noise_ > 0)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_a_hostile_site_cannot_inflate_the_noise_of_the_others():
    rows, targets, _, _ = regressions()
    targets["s0"] = targets["s0"] + 100.0 * np.random.default_rng(1).normal(size=100)
    model = FederatedRegressionMixture(2, noise="shared", **FAST).fit(rows, targets)
    assert model.noise_[1:].max() < 0.8
    assert model.noise_[0].min() > 20.0


def test_without_an_intercept_nothing_is_centered():
    rows, targets, _, _ = regressions()
    model = FederatedRegressionMixture(2, noise="shared", fit_intercept=False, **FAST).fit(rows, targets)
    np.testing.assert_array_equal(model.intercept_, 0.0)
    np.testing.assert_array_equal(model.location_, 0.0)


def test_the_papers_regressions_are_one_argument_away():
    rows, targets, _, _ = regressions()
    model = FederatedRegressionMixture(2, noise="unit", **FAST).fit(rows, targets)
    np.testing.assert_array_equal(model.intercept_, 0.0)
    np.testing.assert_array_equal(model.noise_, 1.0)
    np.testing.assert_array_equal([model.location_, model.scale_], [[0.0] * 3, [1.0] * 3])


def test_superfluous_components_settle_although_the_likelihood_is_flat():
    generator = np.random.default_rng(1)
    rows = {f"s{k}": generator.normal(size=(200, 3)) for k in range(6)}  # one group, and three components for it
    model = FederatedGaussianMixture(3, covariance_type="diag", standard_errors=False, random_state=1).fit(rows)
    assert model.converged_
    assert model.n_rounds_ < 500
