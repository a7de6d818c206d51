"""One fit whatever the container, repeatable, better than alone, and not dragged by a bad site."""

import jax.numpy as jnp
import numpy as np
import pandas as pd
import polars as pl
import pytest
from sklearn.base import clone

from fedgrem import FederatedGaussianMixture, FederatedMixture, FederatedRegressionMixture
from fedgrem.algorithms.registry import ALGORITHMS
from fedgrem.data.simulate import simulate
from fedgrem.errors import InputError
from fedgrem.kernels.scores import parameter_errors

ALONE = {"standard_errors": False, "random_state": 0}
PLAIN = ALONE | {"penalty": 2.0}
"""Where neither the choice of a penalty nor standard errors are what is tested."""


@pytest.fixture(scope="module")
def simulation():
    return simulate("gmm", h=0.5, seed=1)


@pytest.fixture(scope="module")
def model(simulation):
    return FederatedGaussianMixture(5, covariance_type="identity", random_state=0).fit(simulation.rows)


def worst_error(simulation, weights, theta):
    good = simulation.honest
    return parameter_errors(weights[good], theta[good], simulation.weights[good], simulation.theta[good])[1].max()


def test_attributes_have_the_shapes_promised(model):
    assert model.site_names_.shape == (10,)
    assert model.weights_.shape == model.at_center_.shape == model.site_distance_.shape == (10, 5)
    assert model.means_.shape == (10, 5, 10)
    assert model.center_.shape == (5, 10)
    assert model.converged_
    assert set(model.history_) == {
        "log_likelihood", "movement", "movement_in_errors", "center_movement", "penalty", "distance",
        "solver_iterations", "solver_gap",
    }  # fmt: skip
    assert all(len(values) == model.n_rounds_ for values in model.history_.values())
    assert model.history_["log_likelihood"].shape == (model.n_rounds_, 10)
    np.testing.assert_allclose(model.weights_.sum(axis=1), 1.0, rtol=1e-12)


def test_results_are_numpy_arrays_and_plain_values(model):
    values = [*model.fitted_values().values(), *model.history_.values()]
    assert {type(value).__module__.partition(".")[0] for value in values} <= {"numpy", "builtins"}


def test_at_the_center_means_exactly_at_it():
    model = FederatedGaussianMixture(5, covariance_type="identity", random_state=0).fit(simulate("gmm", seed=1).rows)
    assert model.at_center_[:9].all()
    np.testing.assert_array_equal(model.means_[model.at_center_], np.tile(model.center_, (10, 1, 1))[model.at_center_])


def test_the_center_is_solved_to_tolerance_in_every_round(model):
    assert model.history_["solver_gap"].max() < 1e-8


def test_lambda_follows_the_recursion(model):
    step = model.penalty_ * np.sqrt(10 + np.log(10))
    expected = [0.1 + step]
    for _ in range(model.n_rounds_ - 1):
        expected.append(0.1 * expected[-1] + step)
    np.testing.assert_allclose(model.history_["penalty"], expected, rtol=1e-12)


def test_a_fit_stops_where_standard_errors_leave_more_open(model, simulation):
    options = {"covariance_type": "identity", "random_state": 0, "standard_errors": False}
    settled = FederatedGaussianMixture(5, tol=1e-9, **options).fit(simulation.rows)
    assert model.n_rounds_ < settled.n_rounds_
    assert model.history_["movement_in_errors"][-1].max() < 0.003
    assert np.max(np.abs(model.means_ - settled.means_)[simulation.honest] / model.means_se_[simulation.honest]) < 0.05


def test_the_same_seed_gives_the_same_fit_to_the_last_bit(model, simulation):
    again = FederatedGaussianMixture(5, covariance_type="identity", random_state=0).fit(simulation.rows)
    np.testing.assert_array_equal(again.means_, model.means_)
    np.testing.assert_array_equal(again.history_["movement"], model.history_["movement"])


@pytest.mark.parametrize("container", ["labels", "shuffled labels", "list", "pandas", "polars"])
def test_every_container_gives_the_same_fit(container, model, simulation):
    rows, labels = np.concatenate(list(simulation.rows.values())), np.repeat(list(simulation.rows), 150)
    estimator = FederatedGaussianMixture(5, covariance_type="identity", random_state=0)
    if container == "labels":
        estimator.fit(rows, sites=labels)
    elif container == "shuffled labels":
        order = np.random.default_rng(0).permutation(len(rows))
        estimator.fit(rows[order], sites=labels[order])
    elif container == "list":
        estimator.fit(list(simulation.rows.values()), sites=list(simulation.rows))
    else:
        frame = pd.DataFrame(rows, columns=[f"c{j}" for j in range(10)]).assign(hospital=labels)
        estimator.fit(frame if container == "pandas" else pl.from_pandas(frame), sites="hospital")
    np.testing.assert_array_equal(estimator.means_, model.means_)
    assert estimator.site_names_.tolist() == list(simulation.rows)


def test_predictions_come_back_as_the_rows_came(model, simulation):
    rows, labels = np.concatenate(list(simulation.rows.values())), np.repeat(list(simulation.rows), 150)
    flat = model.predict(rows, sites=labels)
    by_site = model.predict(simulation.rows)
    assert flat.shape == (1500,)
    np.testing.assert_array_equal(np.concatenate(list(by_site.values())), flat)
    listed = model.predict_proba(list(simulation.rows.values()), sites=list(simulation.rows))
    np.testing.assert_allclose(listed[3].sum(axis=1), 1.0, rtol=1e-12)
    np.testing.assert_array_equal(model.predict(simulation.rows["site-02"], sites="site-02"), by_site["site-02"])


def test_rows_of_weight_two_count_as_two_rows(simulation):
    few = {name: rows[:60] for name, rows in list(simulation.rows.items())[:3]}
    twice = {name: np.concatenate([rows, rows]) for name, rows in few.items()}
    options = {"n_components": 3, "covariance_type": "identity", "random_state": 0, "max_rounds": 30, "tol": 0.0}
    options |= PLAIN  # a penalty chosen on held-out rows would depend on which they are
    weighted = FederatedGaussianMixture(**options).fit(few, sample_weight={name: np.full(60, 2.0) for name in few})
    repeated = FederatedGaussianMixture(**options).fit(twice)
    np.testing.assert_allclose(weighted.means_, repeated.means_, rtol=1e-9, atol=1e-9)


def test_given_starts_take_exactly_the_rounds_asked_for(simulation):
    start = np.nan_to_num(simulation.theta, nan=1.0)
    fitted = FederatedGaussianMixture(
        5, covariance_type="identity", means_init=start, align=False, tol=0.0, max_rounds=3
    ).fit(simulation.rows)
    assert fitted.n_rounds_ == 3
    assert not fitted.converged_


def test_no_penalty_equals_gradient_em_at_each_site_from_the_same_start(simulation):
    start = np.nan_to_num(simulation.theta, nan=1.0) + np.random.default_rng(0).normal(size=simulation.theta.shape)
    options = {"means_init": start, "align": False, "tol": 0.0, "max_rounds": 25}
    free = FederatedGaussianMixture(5, covariance_type="identity", penalty=0.0, **options).fit(simulation.rows)
    alone = FederatedGaussianMixture(5, covariance_type="identity", algorithm="local-grem", **options).fit(
        simulation.rows
    )
    np.testing.assert_allclose(free.means_, alone.means_, rtol=1e-10, atol=1e-12)


def test_an_infinite_penalty_gives_every_site_the_same_components(simulation):
    fitted = FederatedGaussianMixture(
        5, covariance_type="identity", penalty=np.inf, random_state=0, max_rounds=50, tol=1e-3
    ).fit(simulation.rows)
    assert fitted.at_center_.all()


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize(("h", "bound"), [(0.0, 0.75), (1.0, 0.95)])
def test_federating_beats_fitting_alone_where_sites_are_alike(h, bound, seed):
    data = simulate("gmm", h=h, seed=seed)
    together = FederatedGaussianMixture(5, covariance_type="identity", random_state=0).fit(data.rows)
    alone = FederatedGaussianMixture(5, covariance_type="identity", algorithm="local-em", **ALONE).fit(data.rows)
    ratio = worst_error(data, together.weights_, together.means_) / worst_error(data, alone.weights_, alone.means_)
    assert ratio < bound


def test_three_hostile_sites_of_ten_do_not_drag_the_rest():
    data = simulate("gmm", h=0.0, n_outliers=3, seed=4)
    together = FederatedGaussianMixture(5, covariance_type="identity", random_state=0).fit(data.rows)
    averaged = FederatedGaussianMixture(5, covariance_type="identity", algorithm="fedem", **ALONE).fit(data.rows)
    ours = worst_error(data, together.weights_, together.means_)
    assert ours < 1.2
    assert ours < 0.7 * worst_error(data, averaged.weights_, averaged.means_)
    assert not together.at_center_[~data.honest].any(axis=1).all()


def test_regressions_are_found_where_a_site_alone_would_fail():
    data = simulate("mor", h=0.0, seed=2)
    fitted = FederatedRegressionMixture(5, noise="unit", random_state=0).fit(data.rows, data.targets)
    assert worst_error(data, fitted.weights_, fitted.coef_) < 0.7
    component = fitted.predict_component(data.rows, data.targets)["site-01"]
    assert component.shape == (150,)
    assert np.isfinite(fitted.score_samples(data.rows, data.targets)["site-01"]).all()
    drawn, labels = fitted.sample(data.rows["site-01"], site="site-01")
    assert drawn.shape == labels.shape == (150,)


def test_covariates_on_any_scale_give_the_same_predictions():
    data = simulate("mor", h=0.0, n_sites=3, n_outliers=0, centers=np.array([[2.0, -1.0], [-2.0, 3.0]]), seed=0)
    options = {"n_components": 2, "penalty": 0.0, "random_state": 0}
    plain = FederatedRegressionMixture(**options).fit(data.rows, data.targets)
    scaled_rows = {name: 1e3 * rows for name, rows in data.rows.items()}
    scaled = FederatedRegressionMixture(**options).fit(scaled_rows, data.targets)
    np.testing.assert_allclose(scaled.predict(scaled_rows)["site-01"], plain.predict(data.rows)["site-01"], atol=1e-3)


def test_float32_rows_give_the_fit_of_the_same_numbers_in_float64(simulation):
    single = {name: rows.astype(np.float32) for name, rows in simulation.rows.items()}
    few = FederatedGaussianMixture(3, n_init=1, **PLAIN).fit(single)  # a warning would be an error
    double = clone(few).fit({name: rows.astype(float) for name, rows in single.items()})
    assert few.means_.dtype == np.float64
    np.testing.assert_array_equal(few.means_, double.means_)


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_every_algorithm_fits_through_the_same_estimator(name):
    data = simulate("gmm", h=0.5, n_sites=3, n_rows=60, seed=0)
    fitted = FederatedGaussianMixture(3, algorithm=name, n_init=2, max_rounds=20, tol=0.0, **ALONE).fit(data.rows)
    assert fitted.means_.shape == (3, 3, 10)
    assert np.isfinite(fitted.means_).all()
    np.testing.assert_allclose(fitted.weights_.sum(axis=1), 1.0, rtol=1e-9)


def test_samples_come_from_the_mixture(model):
    rows, labels = model.sample(4000, site="site-01")
    share = np.bincount(labels, minlength=5) / 4000
    np.testing.assert_allclose(share, model.weights_[0], atol=0.03)
    np.testing.assert_allclose(rows[labels == 0].mean(axis=0), model.means_[0, 0], atol=0.25)


def test_a_custom_mixture_samples_with_the_users_function():
    def density(row, log_rate):
        return jnp.sum(row * log_rate - jnp.exp(log_rate))

    def start(key, rows):
        return jnp.log(rows.mean(axis=0) + 0.5)

    generator = np.random.default_rng(0)
    rates = np.array([[1.0, 9.0], [9.0, 1.0]])
    rows = {name: generator.poisson(rates[generator.integers(2, size=80)]) for name in ("north", "south", "east")}
    fitted = FederatedMixture(density, start, n_components=2, **PLAIN).fit(rows)
    with pytest.raises(InputError, match="give draw_row="):
        fitted.sample(3)
    fitted.set_params(draw_row=lambda generator, log_rate: generator.poisson(np.exp(log_rate)))
    drawn, labels = fitted.sample(500, site="north")
    assert drawn.shape == (500, 2)
    np.testing.assert_allclose(drawn[labels == 0].mean(axis=0), np.exp(fitted.params_[0, 0]), rtol=0.25)
