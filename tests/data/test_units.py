"""Federated standardization."""

import numpy as np

from fedgrem.data.federation import Federation
from fedgrem.data.units import UnitsPlan, common_units, take_census

GENERATOR = np.random.default_rng(0)


def federation(*tables, targets=None, weights=None):
    return Federation.from_sites([f"site-{k}" for k in range(len(tables))], list(tables), targets, weights)


def units_of(data):
    told = [take_census(site) for site in data.sites]
    return common_units(np.stack([one.mean for one in told]), np.stack([one.deviation for one in told]))


def test_a_summary_is_the_weighted_mean_and_deviation():
    rows, weight = GENERATOR.normal(loc=1e6, size=(30, 2)), GENERATOR.integers(1, 4, size=30).astype(float)
    summary = take_census(federation(rows, weights=[weight]).sites[0])
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


def test_rows_about_their_sites_means_know_as_much_as_one_row_fewer():
    rows, target = GENERATOR.normal(3.0, 2.0, size=(12, 2)), GENERATOR.normal(size=12)
    weight = GENERATOR.integers(1, 4, size=12).astype(float)
    one = np.array([[5.0, 5.0]])
    data = federation(rows, one, targets=[target, np.ones(1)], weights=[weight, np.ones(1)])
    many, single = data.within_sites().sites
    about = rows - np.average(rows, axis=0, weights=weight)
    np.testing.assert_allclose((many.row_weight * many.rows.T) @ many.rows, (weight * about.T) @ about)
    assert many.row_weight.sum() == weight.sum() - 1.0
    np.testing.assert_allclose(many.row_weight @ many.target, 0.0, atol=1e-12)
    assert np.all(single.rows == 0.0)
    assert 0.0 < single.row_weight.sum() < 0.1
    plan = UnitsPlan(standardize=True, intercept=True, within=True)
    units = plan.units(*(np.ones((2, 3)) for _ in range(2)))
    assert units.location.tolist() == [0.0] * 3
    np.testing.assert_allclose(plan.apply(data, units).sites[0].rows[:, :2], many.rows)


def test_rows_in_units_have_unit_deviation_and_an_intercept_on_demand():
    data = federation(GENERATOR.normal(3.0, 9.0, size=(50, 2)), targets=[GENERATOR.normal(-4.0, 0.1, size=50)])
    scaled = data.in_units(units_of(data), intercept=True)
    rows, target = scaled.sites[0].rows, scaled.sites[0].target
    np.testing.assert_allclose(rows[:, :2].std(axis=0), 1.0)
    np.testing.assert_allclose(rows[:, :2].mean(axis=0), 0.0, atol=1e-12)
    np.testing.assert_array_equal(rows[:, 2], 1.0)
    np.testing.assert_allclose([target.mean(), target.std()], [0.0, 1.0], atol=1e-12)
    assert scaled.columns == ("x0", "x1", "intercept")


def test_a_census_is_over_the_cells_that_are_there_the_response_last():
    rows = np.array([[1.0, np.nan], [3.0, np.nan], [np.nan, np.nan]])
    data = Federation.from_sites(["a"], [rows], [np.array([2.0, 4.0, 6.0])], missing_allowed=True)
    census = take_census(data.sites[0])
    np.testing.assert_array_equal(census.mean, [2.0, np.nan, 4.0])
    np.testing.assert_allclose(census.deviation, [1.0, np.nan, np.sqrt(8.0 / 3.0)])
    assert (float(census.n_rows), bool(census.gaps)) == (3.0, True)
    assert not take_census(federation(np.eye(2)).sites[0]).gaps


def test_float32_rows_have_a_census_without_warnings():
    rows = (1e4 + GENERATOR.normal(size=(50, 2))).astype(np.float32)
    census = take_census(federation(rows).sites[0])
    np.testing.assert_allclose(census.mean, rows.astype(float).mean(axis=0), rtol=1e-6)
    np.testing.assert_allclose(census.deviation, rows.astype(float).std(axis=0), rtol=1e-3)


def test_rows_of_weight_zero_are_in_no_census():
    rows = np.array([[1e9], [1.0], [3.0]])
    census = take_census(federation(rows, weights=[np.array([0.0, 1.0, 1.0])]).sites[0])
    np.testing.assert_allclose((census.mean, census.deviation), [[2.0], [1.0]])


def test_a_plan_that_leaves_rows_as_they_are_has_no_units():
    data = federation(GENERATOR.normal(size=(5, 2)))
    plan = UnitsPlan(standardize=False)
    assert plan.units(np.zeros((1, 2)), np.ones((1, 2))) is None
    assert plan.apply(data, None) is data


def test_a_plan_that_must_not_move_columns_scales_them_only():
    units = UnitsPlan(standardize=True, move=False).units(np.array([[5.0]]), np.array([[2.0]]))
    assert (units.location.tolist(), units.scale.tolist()) == ([0.0], [2.0])


def test_an_intercept_alone_leaves_the_columns_in_their_units():
    data = federation(GENERATOR.normal(size=(5, 2)))
    plan = UnitsPlan(standardize=False, intercept=True)
    rows = plan.apply(data, plan.units(np.zeros((1, 2)), np.ones((1, 2)))).sites[0].rows
    np.testing.assert_array_equal(rows[:, :2], data.sites[0].rows)
    np.testing.assert_array_equal(rows[:, 2], 1.0)
