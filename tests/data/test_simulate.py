"""The paper's generators: its constants, and what it says about the rows."""

import numpy as np
import pytest

from fedgrem.data.simulate import CENTERS, simulate


def test_the_two_nearest_centers_are_the_root_of_31_apart():
    distance = np.linalg.norm(CENTERS[:, None] - CENTERS[None], axis=-1)
    assert distance[np.triu_indices(5, 1)].min() == pytest.approx(np.sqrt(31.0), rel=1e-15)


def test_h_over_that_distance_is_the_figures_last_tick():
    assert f"{2.0 / np.sqrt(31.0):.2%}" == "35.92%"


@pytest.mark.parametrize("model", ["gmm", "mor"])
@pytest.mark.parametrize("h", [0.0, 0.25, 2.0])
def test_every_component_of_an_honest_site_is_at_distance_h_from_its_center(model, h):
    simulation = simulate(model, h=h, n_rows=3, seed=1)
    distance = np.linalg.norm(simulation.theta[simulation.honest] - CENTERS, axis=-1)
    np.testing.assert_allclose(distance, h, atol=1e-12)


def test_weights_of_honest_sites_are_on_the_simplex_and_outliers_have_none():
    simulation = simulate("gmm", n_rows=3, n_outliers=2, seed=2)
    np.testing.assert_array_equal(simulation.honest, [True] * 8 + [False] * 2)
    np.testing.assert_allclose(simulation.weights[:8].sum(axis=1), 1.0)
    assert np.isnan(simulation.weights[8:]).all()
    assert np.isnan(simulation.theta[8:]).all()


def test_outlier_rows_of_the_gmm_have_mean_2_and_variance_3():
    simulation = simulate("gmm", n_sites=2, n_rows=[3, 20_000], seed=3)
    rows = simulation.rows["site-02"]
    # 2e5 independent numbers: the mean is off by 0.0039 on average, the variance by 0.0095.
    assert rows.mean() == pytest.approx(2.0, abs=0.02)
    assert rows.var() == pytest.approx(3.0, abs=0.05)
    np.testing.assert_array_equal(simulation.labels["site-02"], -1)


def test_outlier_responses_of_the_regressions_have_all_coefficients_3_and_unit_noise():
    simulation = simulate("mor", n_sites=2, n_rows=[3, 5000], seed=4)
    rows, target = simulation.rows["site-02"], simulation.targets["site-02"]
    coefficients, residual, _, _ = np.linalg.lstsq(rows, target, rcond=None)
    np.testing.assert_allclose(coefficients, 3.0, atol=0.06)
    assert residual[0] / 5000 == pytest.approx(1.0, abs=0.08)


def test_honest_rows_are_their_component_plus_unit_noise():
    simulation = simulate("gmm", h=1.0, n_sites=2, n_rows=[4000, 3], seed=5)
    noise = simulation.rows["site-01"] - simulation.theta[0][simulation.labels["site-01"]]
    assert noise.mean() == pytest.approx(0.0, abs=0.02)
    assert noise.var() == pytest.approx(1.0, abs=0.04)


def test_honest_responses_are_their_regression_plus_unit_noise():
    simulation = simulate("mor", h=1.0, n_sites=2, n_rows=[4000, 3], seed=6)
    slope = simulation.theta[0][simulation.labels["site-01"]]
    noise = simulation.targets["site-01"] - (simulation.rows["site-01"] * slope).sum(axis=1)
    assert noise.var() == pytest.approx(1.0, abs=0.1)
    assert simulation.rows["site-01"].var() == pytest.approx(1.0, abs=0.04)


def test_the_gmm_has_no_targets():
    assert simulate("gmm", n_rows=3).targets is None


@pytest.mark.parametrize("model", ["gmm", "mor"])
def test_the_same_seed_gives_the_same_rows_and_another_seed_does_not(model):
    first, again, other = (simulate(model, h=1.0, n_rows=5, seed=seed) for seed in (7, 7, 8))
    for name, rows in first.rows.items():
        np.testing.assert_array_equal(rows, again.rows[name])
        assert not np.any(rows == other.rows[name])


def test_sites_have_the_sizes_and_the_sortable_names_asked_for():
    simulation = simulate("gmm", n_sites=3, n_rows=[4, 5, 6])
    assert {name: rows.shape for name, rows in simulation.rows.items()} == {
        "site-01": (4, 10),
        "site-02": (5, 10),
        "site-03": (6, 10),
    }
    names = list(simulate("gmm", n_sites=101, n_rows=1).rows)
    assert names == sorted(names)


def test_a_list_of_sizes_of_the_wrong_length_is_refused():
    with pytest.raises(ValueError, match=r"n_rows names 2 sites, expected n_sites=3"):
        simulate("gmm", n_sites=3, n_rows=[4, 5])


def test_more_features_add_zeros_to_the_centers_and_ten_change_nothing():
    wide = simulate("gmm", h=0.0, n_sites=2, n_rows=3, n_features=12)
    np.testing.assert_array_equal(wide.theta[0], np.pad(CENTERS, ((0, 0), (0, 2))))
    plain, ten = simulate("gmm", h=1.0, n_rows=3, seed=1), simulate("gmm", h=1.0, n_rows=3, seed=1, n_features=10)
    for name, rows in plain.rows.items():
        np.testing.assert_array_equal(rows, ten.rows[name])


def test_fewer_features_than_the_centers_have_are_refused():
    with pytest.raises(ValueError, match="n_features is 9, expected at least the 10 of the centers"):
        simulate("gmm", n_features=9)
