"""Errors up to relabelling, on numbers that can be checked by hand."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fedgrem.kernels.scores import misclustering_by_site, misclustering_rate, parameter_errors


def test_both_errors_are_taken_under_the_relabelling_that_fits_theta():
    weights, theta = np.array([[0.4, 0.6]]), np.array([[[9.0], [0.0]]])
    true_weights, true_theta = np.array([[0.5, 0.5]]), np.array([[[0.0], [8.0]]])
    weight_error, theta_error = parameter_errors(weights, theta, true_weights, true_theta)
    np.testing.assert_allclose(weight_error, [0.1])
    np.testing.assert_allclose(theta_error, [1.0])


def test_each_site_is_relabelled_on_its_own():
    theta = np.array([[[0.0], [5.0]], [[5.0], [0.0]]])
    weights = np.array([[0.3, 0.7], [0.7, 0.3]])
    truth = np.array([[[0.0], [5.0]], [[0.0], [5.0]]])
    weight_error, theta_error = parameter_errors(weights, theta, np.array([[0.3, 0.7]] * 2), truth)
    np.testing.assert_allclose(weight_error, [0.0, 0.0], atol=1e-15)
    np.testing.assert_allclose(theta_error, [0.0, 0.0], atol=1e-15)


def test_theta_error_is_the_largest_over_components_of_the_euclidean_distance():
    truth = np.array([[[0.0, 0.0], [10.0, 10.0]]])
    _, theta_error = parameter_errors(np.full((1, 2), 0.5), truth + np.array([3.0, 4.0]), np.full((1, 2), 0.5), truth)
    np.testing.assert_allclose(theta_error, [5.0])


def test_misclustering_counts_rows_off_the_best_relabelling():
    assert misclustering_rate(np.array(["a", "a", "b", "b"]), np.array([1, 1, 0, 1])) == 0.25


def test_misclustering_of_many_sites_is_that_of_each():
    generator = np.random.default_rng(0)
    site, labels, found = (generator.integers(n, size=200) for n in (5, 3, 4))
    alone = [misclustering_rate(labels[site == k], found[site == k]) for k in range(5)]
    np.testing.assert_allclose(misclustering_by_site(site, labels, found), alone)


def test_more_groups_found_than_there_are_leaves_the_surplus_wrong():
    assert misclustering_rate(np.array([0, 0, 0, 0]), np.array([0, 0, 1, 2])) == 0.5


@given(st.lists(st.integers(0, 3), min_size=1, max_size=30), st.permutations(range(4)))
def test_renaming_groups_is_no_error(labels, names):
    labels = np.array(labels)
    assert misclustering_rate(labels, np.array(names)[labels]) == 0.0
