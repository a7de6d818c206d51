import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.exceptions import NotFittedError
from tests.estimators.test_verdicts import CENTERS, federation, fit

from fedgrem import FederatedGaussianMixture, FederatedMixture, FederatedRegressionMixture, FedGrEM
from fedgrem.errors import InputError
from fedgrem.models import load_model, save_model
from fedgrem.plots import plot_likelihood
from fedgrem.report import summarize


def newcomer(n=60, shift=0.0, seed=5):
    generator = np.random.default_rng(seed)
    return CENTERS[generator.integers(2, size=n)] + generator.normal(size=(n, 2)) + shift


@pytest.fixture(scope="module")
def base():
    return fit(federation())


@pytest.fixture
def model(base, tmp_path):
    return load_model(save_model(base, tmp_path / "model"))  # a copy that holds no rows


def test_a_site_of_the_fit_gets_its_fitted_answer_again():
    rows = federation()
    model = fit(rows, penalty=0.3)
    assert not model.at_center_.all()
    for k, name in enumerate(["north", "south", "east", "inland", "coast"]):
        model.fit_site(rows[name], name=f"{name} again")
        np.testing.assert_allclose(model.means_[-1], model.means_[k], atol=2e-4)
        np.testing.assert_allclose(model.weights_[-1], model.weights_[k], atol=1e-4)
        np.testing.assert_allclose(model.covariances_[-1], model.covariances_[k], rtol=0.05, atol=0.02)
        assert model.site_verdict_[-1] == model.site_verdict_[k]


def test_the_others_stay_as_they_are_and_the_new_site_is_used(model, base, tmp_path):
    rows = newcomer()
    assert model.fit_site(rows, name="new") is model
    assert model.site_names_.tolist() == [*base.site_names_.tolist(), "new"]
    for name in ("weights_", "means_", "covariances_", "site_distance_", "n_rows_", "vanished_", "site_verdict_"):
        np.testing.assert_array_equal(getattr(model, name)[:-1], getattr(base, name))
    np.testing.assert_array_equal(model.center_, base.center_)
    again = load_model(save_model(model, tmp_path / "more"))
    np.testing.assert_array_equal(again.predict(rows, sites="new"), model.predict(rows, sites="new"))
    assert again.site_verdict_[-1] == "at the center"
    assert summarize(again).sites[-1].verdict == "at the center"
    plot_likelihood(again)


def test_a_far_site_that_joins_is_suspect_and_keeps_the_centers_labels(model):
    model.fit_site(newcomer(n=200, shift=3.0), name="far")
    assert model.site_verdict_[-1] == "suspect"
    nearest = np.linalg.norm(model.means_[-1][:, None] - model.center_, axis=-1).argmin(axis=1)
    assert nearest.tolist() == [0, 1]
    assert model.site_evidence_["in_fit"].tolist() == [True] * 6 + [False]


def test_an_infinite_pull_leaves_a_new_site_at_the_center():
    model = fit(federation(hostile=False), covariance_type="identity", penalty=np.inf)
    model.fit_site(newcomer(shift=0.5), name="new")
    np.testing.assert_array_equal(model.means_[-1], model.center_)


def test_where_weights_are_pooled_those_of_a_new_site_are_too():
    options = {"penalty": 2.0, "fallback": None, "standard_errors": False, "tol": 1e-8, "random_state": 0}
    rows = federation(hostile=False)
    found = {}
    for pooled in (True, False):
        model = FederatedGaussianMixture(2, algorithm=FedGrEM(pool_weights=pooled), **options).fit(rows)
        model.fit_site(next(iter(rows.values())), name="again")
        found[pooled] = model
        np.testing.assert_allclose(model.weights_[-1], model.weights_[0], atol=1e-3)
    spread = {pooled: np.ptp(model.weights_, axis=0).max() for pooled, model in found.items()}
    assert spread[True] < 0.5 * spread[False]
    assert found[True].n_parameters_ < found[False].n_parameters_


def test_a_regression_in_its_own_units_takes_one_more_site():
    generator = np.random.default_rng(1)
    rows = {f"site-{k}": 50.0 + 10.0 * generator.normal(size=(80, 2)) for k in range(4)}
    y = {name: 300.0 + x @ [1.0, -1.0] + 5.0 * generator.normal(size=80) for name, x in rows.items()}
    model = FederatedRegressionMixture(
        1, noise="shared", n_init=1, penalty=2.0, standard_errors=False, random_state=0
    ).fit(rows, y)
    model.fit_site(rows["site-2"], y["site-2"], name="new")
    np.testing.assert_allclose(model.coef_[-1], model.coef_[2], rtol=1e-3)
    np.testing.assert_allclose(model.intercept_[-1], model.intercept_[2], rtol=1e-3)
    np.testing.assert_allclose(model.noise_[-1], model.noise_[2], rtol=1e-2)
    assert model.site_verdict_[-1] == model.site_verdict_[2]
    with pytest.raises(InputError, match="site 'more' has no responses; pass them as y"):
        model.fit_site(rows["site-2"], name="more")


def test_a_custom_mixture_takes_one_more_site():
    generator = np.random.default_rng(0)
    rows = {f"site-{k}": generator.poisson(3.0, size=(50, 1)).astype(float) for k in range(4)}
    model = FederatedMixture(
        lambda row, theta: jnp.sum(row * theta - jnp.exp(theta)), lambda key, rows: jnp.log(rows.mean(axis=0) + 0.5),
        n_init=1, random_state=0,
    ).fit(rows)  # fmt: skip
    model.fit_site(rows["site-1"], name="new")
    np.testing.assert_allclose(model.params_[-1], model.params_[1], atol=1e-4)


@pytest.mark.parametrize(
    ("rows", "name", "message"),
    [
        (newcomer(), "north", "site 'north' is already in the model"),
        (newcomer(), "", "name must be a non-empty string"),
        (np.full((9, 2), np.nan), "new", "site 'new' contains NaN"),
        ({"a": newcomer(), "b": newcomer()}, "new", "takes the rows of one site as one table; got 2"),
    ],
    ids=["duplicate", "empty", "nan", "several"],
)
def test_bad_newcomers_are_refused_by_name(model, rows, name, message):
    with pytest.raises(InputError, match=message):
        model.fit_site(rows, name=name)
    assert len(model.site_names_) == len(model.weights_) == 6


def test_other_columns_are_refused(model):
    with pytest.raises(ValueError, match="X has 3 features, but FederatedGaussianMixture is expecting 2"):
        model.fit_site(np.zeros((9, 3)), name="new")


def test_a_model_without_a_center_takes_nobody():
    model = fit(federation(), covariance_type="identity", algorithm="local-em", penalty="auto")
    with pytest.raises(InputError, match="Local-EM fitted every site alone, and has no center"):
        model.fit_site(newcomer(), name="new")
    with pytest.raises(NotFittedError):
        FederatedGaussianMixture().fit_site(newcomer(), name="new")
