"""Federation: every complaint names the site, what was got, and what to do; padding keeps the rows."""

import numpy as np
import pytest

from fedgrem.data.federation import LARGEST, Federation, stack_sites
from fedgrem.data.stack import padded_size
from fedgrem.errors import InputError, ShapeError

TWO = np.zeros((4, 2))


def with_entry(value, row=1, column=1):
    rows = TWO.copy()
    rows[row, column] = value
    return rows


def test_names_and_columns_are_kept_in_order():
    data = Federation.from_sites(["b", "a"], [TWO, TWO], columns=["age", "bmi"])
    assert data.names == ("b", "a")
    assert data.columns == ("age", "bmi")
    assert data.n_features == 2
    np.testing.assert_array_equal(data.sites[0].row_weight, np.ones(4))


def test_columns_without_names_are_numbered():
    assert Federation.from_sites(["a"], [TWO]).columns == ("x0", "x1")


def test_one_name_per_site_is_required():
    with pytest.raises(ShapeError, match=r"got 1 site names for 2 sites; give one name per site"):
        Federation.from_sites(["a"], [TWO, TWO])


def test_no_sites_are_refused():
    with pytest.raises(InputError, match=r"got no sites; give at least one site with rows"):
        Federation.from_sites([], [])


def test_an_empty_name_is_refused_by_its_number():
    with pytest.raises(InputError, match=r"site number 1 has no name; give every site a non-empty name"):
        Federation.from_sites(["a", ""], [TWO, TWO])


def test_a_name_that_occurs_twice_is_refused():
    with pytest.raises(InputError, match=r"site name 'a' occurs more than once"):
        Federation.from_sites(["a", "b", "a"], [TWO, TWO, TWO])


def test_a_site_with_other_columns_is_refused():
    with pytest.raises(ShapeError, match=r"site 'b' has rows of shape \(4, 3\), expected \(n, 2\) as at site 'a'"):
        Federation.from_sites(["a", "b"], [TWO, np.zeros((4, 3))])


def test_column_names_that_do_not_fit_the_rows_are_refused():
    with pytest.raises(ShapeError, match=r"site 'a' has rows of shape \(4, 2\), expected \(n, 3\)"):
        Federation.from_sites(["a"], [TWO], columns=["x", "y", "z"])


def test_one_dimensional_rows_are_refused_at_a_later_site():
    with pytest.raises(ShapeError, match=r"site 'b' has rows of shape \(4,\), expected \(n, 2\)"):
        Federation.from_sites(["a", "b"], [TWO, np.zeros(4)])


def test_one_dimensional_rows_are_refused_at_the_first_site_without_asking_for_no_columns():
    with pytest.raises(ShapeError, match=r"site 'a' has rows of shape \(4,\), expected \(n, (p|[1-9])"):
        Federation.from_sites(["a", "b"], [np.zeros(4), TWO])


def test_rows_without_features_are_refused():
    with pytest.raises(InputError, match=r"site 'a' has 0 feature\(s\) \(shape=\(4, 0\)\) while a minimum of 1 is req"):
        Federation.from_sites(["a"], [np.zeros((4, 0))])


def test_a_site_without_rows_is_refused():
    with pytest.raises(InputError, match=r"site 'b' has no rows; leave it out, or give it some"):
        Federation.from_sites(["a", "b"], [TWO, np.zeros((0, 2))])


def test_missing_cells_are_refused_with_how_many_and_where():
    rows = with_entry(np.nan)
    rows[3] = np.inf, -np.inf
    with pytest.raises(
        InputError, match=r"site 'a' contains NaN \(1\) or infinity \(2\) in 2 row\(s\), in column\(s\) u, v"
    ):
        Federation.from_sites(["a"], [rows], columns=["u", "v"])


def test_a_long_list_of_bad_columns_is_cut():
    with pytest.raises(InputError, match=r"in column\(s\) x0, x1, x2, x3, x4, \.\.\.; drop or impute"):
        Federation.from_sites(["a"], [np.full((2, 7), np.nan)])


def test_missing_targets_are_refused_as_column_y():
    target = np.array([0.0, np.nan, 0.0, 0.0])
    with pytest.raises(
        InputError, match=r"site 'a' contains NaN \(1\) or infinity \(0\) in 1 row\(s\), in column\(s\) y;"
    ):
        Federation.from_sites(["a"], [TWO], [target])


@pytest.mark.parametrize("shape", [(3,), (4, 1)])
def test_a_target_of_another_length_is_refused(shape):
    with pytest.raises(ShapeError, match=r"site 'a' has a target of shape \(.*\), expected \(4,\), one value per row"):
        Federation.from_sites(["a"], [TWO], [np.zeros(shape)])


def test_sample_weights_of_another_length_are_refused():
    with pytest.raises(ShapeError, match=r"site 'a' has sample weights of shape \(3,\), expected \(4,\), one per row"):
        Federation.from_sites(["a"], [TWO], row_weights=[np.ones(3)])


@pytest.mark.parametrize("bad", [-1.0, np.nan, np.inf])
def test_sample_weights_that_are_no_weights_are_refused(bad):
    with pytest.raises(
        InputError, match=r"site 'a' has negative, NaN or infinite sample weights; weights must be >= 0"
    ):
        Federation.from_sites(["a"], [TWO], row_weights=[np.array([1.0, 1.0, bad, 1.0])])


@pytest.mark.parametrize(
    "extra", [{"targets": [np.zeros(4)]}, {"row_weights": [np.ones(4)]}], ids=["targets", "weights"]
)
def test_targets_and_weights_for_some_sites_only_are_refused(extra):
    with pytest.raises(InputError):
        Federation.from_sites(["a", "b"], [TWO, TWO], **extra)


# -- stacks


def stacked(rows, target=None, weight=None, *, gaps=False):
    site = Federation.from_sites(
        ["a"], [rows], None if target is None else [target], None if weight is None else [weight], missing_allowed=gaps
    ).sites[0]
    return stack_sites([site], gaps=gaps)


def test_a_site_is_padded_with_rows_of_weight_zero_that_repeat_a_real_one():
    generator = np.random.default_rng(0)
    rows, target = generator.normal(size=(5, 2)), generator.normal(size=5)
    stack = stacked(rows, target)
    np.testing.assert_array_equal(stack.weight, [[1, 1, 1, 1, 1, 0, 0, 0]])
    order = np.argsort(rows[:, 0])
    np.testing.assert_array_equal(stack.rows[0, :5], rows[order])
    np.testing.assert_array_equal(stack.target[0, :5], target[order])
    np.testing.assert_array_equal(stack.rows[0, 5:], stack.rows[0, [0, 0, 0]])
    assert stack.n_rows.tolist() == [5.0]


@pytest.mark.parametrize("n_values", [2, 5, 1000])
def test_rows_keep_their_target_and_weight_whatever_order_they_came_in(n_values):
    generator = np.random.default_rng(1)
    rows = generator.integers(0, n_values, size=(16, 2)).astype(float)
    target, weight = np.arange(16.0), np.arange(1.0, 17.0)
    order = generator.permutation(16)
    plain, shuffled = stacked(rows, target, weight), stacked(rows[order], target[order], weight[order])
    for name in ("rows", "target", "weight"):
        np.testing.assert_array_equal(getattr(shuffled, name), getattr(plain, name))
    found = {(*row, y, v) for row, y, v in zip(plain.rows[0], plain.target[0], plain.weight[0], strict=True)}
    assert found == {(*row, y, v) for row, y, v in zip(rows, target, weight, strict=True)}


@pytest.mark.parametrize("n_values", [1, 3, 40, 10_000])
@pytest.mark.parametrize("missing", [0.0, 0.3])
def test_rows_are_in_the_order_of_all_their_columns_and_the_target(n_values, missing):
    generator = np.random.default_rng(2)
    rows = generator.integers(0, n_values, size=(60, 3)).astype(float)
    rows[generator.random(rows.shape) < missing] = np.nan
    target, weight = generator.integers(0, 2, size=60).astype(float), np.arange(1.0, 61.0)
    order = np.lexsort((target, *rows.T[::-1]))  # rows that are alike stay in the order they came in
    np.testing.assert_array_equal(stacked(rows, target, weight, gaps=missing > 0).weight[0, :60], weight[order])


def test_the_middle_of_its_column_stands_for_a_missing_cell_and_is_marked():
    stack = stacked(np.array([[1.0, np.nan], [3.0, 8.0], [np.nan, 4.0]]), gaps=True)
    np.testing.assert_array_equal(stack.rows[0, :3], [[1.0, 6.0], [3.0, 8.0], [2.0, 4.0]])
    np.testing.assert_array_equal(stack.observed[0, :3], [[True, False], [True, True], [False, True]])
    np.testing.assert_array_equal(stack.observed[0, 3:], np.tile([True, False], (5, 1)))


def test_stacking_lists_every_site_once_by_padded_size_and_keeps_its_rows():
    sizes = [3, 205, 11, 90, 4, 201]
    data = Federation.from_sites(list("abcdef"), [np.full((n, 2), float(n)) for n in sizes])
    stacks = data.stacked()
    assert [places.tolist() for _, places in stacks] == [[0, 4], [2], [3], [1, 5]]
    for stack, places in stacks:
        assert stack.names == tuple("abcdef"[k] for k in places)
        assert stack.n_rows.tolist() == [sizes[k] for k in places]
        assert stack.observed is None


def test_sites_are_padded_little_and_to_a_size_that_depends_on_them_alone():
    for n in (*range(1, 200), 1000, 12_345, 1_000_001):
        assert n <= padded_size(n) < max(n + 8, 1.07 * n)
        assert padded_size(padded_size(n)) == padded_size(n)


def test_gaps_are_looked_for_unless_it_is_said_whether_there_are_any():
    data = Federation.from_sites(["a", "b"], [np.eye(2), np.array([[np.nan, 1.0]])], missing_allowed=True)
    assert all(stack.observed is not None for stack, _ in data.stacked())
    assert all(stack.observed is not None for stack, _ in Federation.from_sites(["a"], [np.eye(2)]).stacked(gaps=True))


# -- kinds of numbers


def test_float32_rows_raise_no_warnings():
    generator = np.random.default_rng(3)
    rows = generator.normal(size=(20, 2)).astype(np.float32)
    data = Federation.from_sites(["a"], [rows], [rows[:, 0]])
    data.check_columns(constant_allowed=False)
    stack, _ = data.stacked()[0]
    assert stack.rows.dtype == np.float64


def test_whole_numbers_are_rows_too():
    data = Federation.from_sites(["a"], [np.arange(12).reshape(6, 2)])
    data.check_columns(constant_allowed=False)
    assert data.stacked()[0][0].rows.dtype == np.float64


def test_values_whose_squares_are_infinite_are_refused():
    with pytest.raises(
        InputError, match=r"site 'a' holds values as large as 1e\+101, in column\(s\) x1; beyond 1e\+100"
    ):
        Federation.from_sites(["a"], [with_entry(10.0 * LARGEST)])


def test_a_column_that_varies_by_next_to_nothing_is_refused():
    with pytest.raises(InputError, match=r"column 'x1' varies by no more than 1e-150 over all sites"):
        Federation.from_sites(
            ["a"], [with_entry(1e-150) + np.array([[1.0, 0.0]]) * np.arange(4.0)[:, None]]
        ).check_columns(constant_allowed=False)


def test_missing_cells_are_allowed_where_that_is_said_and_infinity_never():
    Federation.from_sites(["a"], [with_entry(np.nan)], missing_allowed=True)
    with pytest.raises(InputError, match=r"NaN \(0\) or infinity \(1\)"):
        Federation.from_sites(["a"], [with_entry(np.inf)], missing_allowed=True)


def test_a_column_without_a_single_cell_is_refused():
    rows = np.arange(8.0).reshape(4, 2)
    rows[:, 1] = np.nan
    with pytest.raises(InputError, match=r"column 'x1' is missing in every row of every site; drop it"):
        Federation.from_sites(["a"], [rows], missing_allowed=True).check_columns(constant_allowed=False)


def test_a_column_that_is_constant_everywhere_is_refused_by_name():
    data = Federation.from_sites(["a", "b"], [np.ones((2, 2)), np.array([[1.0, 5.0]])], columns=["one", "some"])
    with pytest.raises(InputError, match=r"column 'one' is constant \(1\) at every site and carries no information"):
        data.check_columns(constant_allowed=False)
    data.check_columns(constant_allowed=True)


def test_a_column_of_zeros_is_refused_even_where_an_intercept_may_be_meant():
    with pytest.raises(InputError, match=r"column 'x0' is constant \(0\) at every site"):
        Federation.from_sites(["a"], [TWO]).check_columns(constant_allowed=True)


def test_pooled_rows_hold_the_rows_targets_and_weights_of_all_sites():
    rows, targets, weights = [TWO, TWO + 1.0], [np.arange(4.0), np.arange(4.0, 8.0)], [np.ones(4), np.full(4, 2.0)]
    pot = Federation.from_sites(["b", "a"], rows, targets, weights).merged()
    assert pot.names == ("a",)
    np.testing.assert_array_equal(pot.sites[0].rows, np.concatenate(rows))
    np.testing.assert_array_equal(pot.sites[0].target, np.arange(8.0))
    np.testing.assert_array_equal(pot.sites[0].row_weight, [1.0] * 4 + [2.0] * 4)
