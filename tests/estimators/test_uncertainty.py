"""Standard errors and intervals as a user meets them: closed forms, units, weights of rows, coverage."""

import numpy as np
import pytest
from scipy.optimize import linear_sum_assignment

from fedgrem import FederatedGaussianMixture, FederatedRegressionMixture
from fedgrem.algorithms.registry import ALGORITHMS
from fedgrem.data.simulate import CENTERS, simulate
from fedgrem.errors import InputError
from fedgrem.models import load_model, save_model

QUICK = {"n_init": 2, "penalty": 2.0, "random_state": 0}


def rows_of(n_sites=3, n=60, seed=0):
    """Two groups far apart."""
    generator = np.random.default_rng(seed)
    rows = {}
    for k in range(n_sites):
        group = generator.random(n) < 0.3
        rows[f"site {k}"] = generator.normal(size=(n, 2)) * [1.0, 3.0] + np.where(group, 20.0, 0.0)[:, None]
    return rows


def test_one_component_at_one_site_has_the_errors_of_a_mean():
    rows = rows_of()["site 0"]
    model = FederatedGaussianMixture(1, covariance_type="full", **QUICK).fit(rows)
    np.testing.assert_allclose(model.means_se_[0, 0], rows.std(axis=0) / np.sqrt(len(rows)), rtol=1e-4)
    np.testing.assert_allclose(model.center_se_[0], model.means_se_[0, 0])
    np.testing.assert_allclose(model.weights_se_, 0.0, atol=1e-12)
    assert model.cost_["information_exchanges"] == 1


def test_one_regression_has_the_errors_of_least_squares_and_of_its_intercept():
    generator = np.random.default_rng(0)
    x = generator.normal(size=(80, 2)) * [1.0, 50.0] + [0.0, 1000.0]
    y = x @ [1.0, -0.1] + 7.0 + generator.normal(size=80)
    model = FederatedRegressionMixture(1, noise="shared", tol=1e-10, **QUICK).fit(x, y)
    design = np.column_stack([x, np.ones(80)])
    residual = y - design @ np.linalg.lstsq(design, y, rcond=None)[0]
    expected = np.sqrt(np.diag(np.linalg.inv(design.T @ design)) * np.mean(residual**2))
    got = [*model.coef_se_[0, 0], model.intercept_se_[0, 0]]
    np.testing.assert_allclose(got, expected, rtol=1e-3)
    assert set(model.intervals()) == {"weights", "coef", "intercept", "center", "center_intercept"}


def test_weights_of_groups_far_apart_have_the_errors_of_shares():
    model = FederatedGaussianMixture(2, **QUICK | {"penalty": 0.0}).fit(rows_of())
    expected = np.sqrt(model.weights_ * (1.0 - model.weights_) / 60.0)
    np.testing.assert_allclose(model.weights_se_, expected, rtol=1e-3)


def test_units_go_into_the_errors_and_a_row_of_weight_2_is_two_rows():
    rows = rows_of()
    model = FederatedGaussianMixture(2, **QUICK).fit(rows)
    scaled = FederatedGaussianMixture(2, **QUICK).fit({name: 1000.0 * x - 5.0 for name, x in rows.items()})
    for name in ("means_se_", "center_se_"):
        np.testing.assert_allclose(getattr(scaled, name), 1000.0 * getattr(model, name), rtol=1e-3)
    doubled = FederatedGaussianMixture(2, **QUICK).fit(rows, sample_weight={name: np.full(60, 2.0) for name in rows})
    np.testing.assert_allclose(doubled.weights_se_, model.weights_se_ / np.sqrt(2.0), rtol=1e-2)


def test_intervals_are_symmetric_within_bounds_and_refuse_what_they_cannot_tell():
    model = FederatedGaussianMixture(2, **QUICK).fit(rows_of())
    narrow, wide = model.intervals(0.5)["means"], model.intervals(0.9999999)
    np.testing.assert_allclose((narrow.high - narrow.low) / 2.0, 0.67449 * model.means_se_, rtol=1e-5)
    assert wide["weights"].low.min() >= 0.0
    assert wide["weights"].high.max() <= 1.0
    with pytest.raises(InputError, match=r"level must be in \[0, 1\), got 1.5"):
        model.intervals(1.5)
    with pytest.raises(InputError, match="level must be above 0"):
        model.intervals(0.0)
    without = FederatedGaussianMixture(2, standard_errors=False, **QUICK).fit(rows_of())
    assert without.means_se_ is None
    assert "information_exchanges" not in without.cost_
    with pytest.raises(InputError, match="fitted without standard errors; fit it again with standard_errors=True"):
        without.intervals()
    with pytest.raises(InputError, match="standard_errors must be True, False or 'auto', got 'yes'"):
        FederatedGaussianMixture(2, standard_errors="yes").fit(rows_of())


def test_a_saved_model_keeps_its_errors(tmp_path):
    model = FederatedGaussianMixture(2, **QUICK).fit(rows_of())
    again = load_model(save_model(model, tmp_path / "model"))
    np.testing.assert_array_equal(again.intervals()["center"].low, model.intervals()["center"].low)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_algorithm_says_what_makes_sense(algorithm):
    rows = {name: x / [1.0, 3.0] for name, x in rows_of().items()}
    options = QUICK if algorithm == "fedgrem" else {"n_init": 2, "random_state": 0}
    model = FederatedGaussianMixture(2, covariance_type="identity", algorithm=algorithm, **options).fit(rows)
    assert np.isfinite(model.means_se_).all()
    rows_held = model.weights_[..., None] * 60.0 * (3.0 if algorithm.startswith("pooled") else 1.0)
    alone = 1.0 / np.sqrt(rows_held)  # components far apart, of unit covariance
    if algorithm.startswith(("local", "tgmm")):
        assert np.isnan(model.center_se_).all()
    if algorithm.startswith(("local", "tgmm", "pooled")):
        np.testing.assert_allclose(model.means_se_, np.broadcast_to(alone, model.means_.shape), rtol=1e-3)
    else:
        common = 1.0 / np.sqrt((model.weights_ * 60.0).sum(axis=0))[:, None]
        np.testing.assert_allclose(model.center_se_, np.broadcast_to(common, (2, 2)), rtol=0.1)


def test_intervals_cover_the_truth_with_a_hostile_site_among_ten():
    inside = {"center": [], "means": [], "weights": []}
    for seed in range(3):
        simulation = simulate("gmm", n_rows=500, seed=seed)
        model = FederatedGaussianMixture(5, covariance_type="identity", n_init=3, random_state=0).fit(simulation.rows)
        _, order = linear_sum_assignment(np.linalg.norm(CENTERS[:, None] - model.center_, axis=-1))
        truth = {"center": CENTERS, "means": simulation.theta[:9], "weights": simulation.weights[:9]}
        for name, interval in model.intervals().items():
            low, high = (a[order] if name == "center" else a[:9][:, order] for a in interval)
            inside[name].append((low <= truth[name]) & (truth[name] <= high))
    coverage = {name: np.mean(found) for name, found in inside.items()}
    # 150 numbers of the center, 27 x 5 weights: four standard errors of a coverage of 0.95 are 0.07.
    assert 0.88 < coverage["center"] < 0.995
    assert 0.92 < coverage["means"] < 0.99
    assert 0.88 < coverage["weights"] < 0.995


def test_a_site_that_is_not_pulled_by_an_infinite_penalty_counts_for_nothing_at_the_center():
    rows = rows_of()
    rows["far"] = rows[next(iter(rows))] + 50.0
    options = QUICK | {
        "penalty": np.inf,
        "fallback": "local",
        "covariance_type": "identity",
    }
    model = FederatedGaussianMixture(2, **options).fit(rows)
    assert model.local_only_.tolist() == [False, False, False, True]
    assert np.isfinite(model.center_se_).all()
