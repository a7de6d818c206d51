"""Federated standardization."""

import numpy as np

from fedgrem.data.federation import Federation
from fedgrem.data.units import common_units, summarize_site

GENERATOR = np.random.default_rng(0)


def federation(*tables, targets=None, weights=None):
    return Federation.from_sites([f"site-{k}" for k in range(len(tables))], list(tables), targets, weights)


def units_of(data):
    return common_units([summarize_site(site) for site in data.sites])


def test_a_summary_is_the_weighted_mean_and_deviation():
    rows, weight = GENERATOR.normal(loc=1e6, size=(30, 2)), GENERATOR.integers(1, 4, size=30).astype(float)
    summary = summarize_site(federation(rows, weights=[weight]).sites[0])
    repeated = np.repeat(rows, weight.astype(int), axis=0)
    np.testing.assert_allclose(summary.mean, repeated.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(summary.deviation, repeated.std(axis=0), rtol=1e-6)


def test_a_minority_of_bad_sites_cannot_move_the_units_far():
    good = [GENERATOR.normal(loc=5.0, scale=2.0, size=(200, 1)) for _ in range(5)]
    units = units_of(federation(*good, np.full((3, 1), 1e12), GENERATOR.normal(scale=1e9, size=(9, 1))))
    assert abs(units.location[0] - 5.0) < 1.0
    assert abs(units.scale[0] - 2.0) < 0.5


def test_a_column_that_is_constant_at_most_sites_keeps_a_scale():
    flat, varying = np.ones((5, 1)), np.array([[0.0], [2.0]])
    assert units_of(federation(flat, flat, varying)).scale[0] == 1.0
    assert units_of(federation(flat, 3.0 * flat, flat)).scale[0] == 2.0


def test_one_bad_site_cannot_set_the_scale_of_a_column_that_is_constant_at_the_others():
    flat = [np.full((5, 1), level) for level in (1.0, 2.0, 4.0, 5.0, 3.0)]
    apart = units_of(federation(*flat, np.full((5, 1), 1e12)))
    assert 0.5 <= apart.scale[0] <= 3.0
    noisy = units_of(federation(*flat, 1e12 * GENERATOR.normal(size=(5, 1))))
    assert 0.5 <= noisy.scale[0] <= 3.0


def test_rows_in_units_have_unit_deviation_and_an_intercept_on_demand():
    data = federation(GENERATOR.normal(3.0, 9.0, size=(50, 2)), targets=[GENERATOR.normal(-4.0, 0.1, size=50)])
    scaled = data.in_units(units_of(data), intercept=True)
    rows, target = scaled.sites[0].rows, scaled.sites[0].target
    np.testing.assert_allclose(rows[:, :2].std(axis=0), 1.0)
    np.testing.assert_allclose(rows[:, :2].mean(axis=0), 0.0, atol=1e-12)
    np.testing.assert_array_equal(rows[:, 2], 1.0)
    np.testing.assert_allclose([target.mean(), target.std()], [0.0, 1.0], atol=1e-12)
    assert scaled.columns == ("x0", "x1", "intercept")
