"""Counts: closed forms, and a column of zeros."""

import numpy as np
import pytest
from scipy import stats

from fedgrem.data.federation import Site, stack_sites
from fedgrem.families.poisson import LEAST_RATE, Poisson
from fedgrem.types import Params
from tests.conformance.families import POISSON, unpadded


def test_the_exact_step_is_the_log_of_the_weighted_mean_count():
    stack, params = POISSON.stack(0, 50), POISSON.params()
    posterior, _ = Poisson().row_scores(stack, params)
    found = Poisson().maximize(stack, params, Poisson().expect(stack, params))[0]
    expected = [np.log(np.average(stack.rows[0], axis=0, weights=m)) for m in posterior[0]]
    np.testing.assert_allclose(found, expected, rtol=1e-10)


def test_a_column_of_zeros_has_the_least_rate():
    stack = unpadded(Site("a", np.array([[0.0, 3.0], [0.0, 5.0]]), None, np.ones(2)))
    params = Params(np.ones((1, 1)), np.zeros((1, 1, 2)))
    found = Poisson().maximize(stack, params, Poisson().expect(stack, params))
    np.testing.assert_allclose(found[0, 0], np.log([LEAST_RATE, 4.0]))


def test_a_step_from_next_to_no_rate_does_not_overflow():
    stack, params = POISSON.stack(1, 20), Params(np.full((1, 2), 0.5), np.full((1, 2, 2), -30.0))
    before = Poisson().expect(stack, params)
    moved = Poisson().ascend(stack, params, before, 0.95).theta
    after = Poisson().expect(stack, params._replace(theta=moved))
    assert after.log_likelihood[0] > before.log_likelihood[0]


def test_starts_are_finite_and_half_way_to_the_mean():
    rows = np.array([[0.0, 4.0], [100.0, 4.0]])
    stack = unpadded(Site("a", rows, None, np.ones(2)))
    drawn = np.exp(Poisson().draw(stack, 0, "start", 1, 2, None)[0, 0])
    np.testing.assert_allclose(np.sort(drawn, axis=0), [[25.0, 4.0], [75.0, 4.0]], rtol=1e-4)


def test_a_missing_cell_says_nothing_of_its_column():
    rows = np.array([[1.0, 4.0], [3.0, np.nan], [np.nan, 2.0], [0.0, 6.0]])
    stack = stack_sites([Site("a", rows, None, np.ones(4))], gaps=True)
    family, params = Poisson(), Params(np.ones((1, 1)), np.log([[[2.0, 3.0]]]))
    sums = family.expect(stack, params)
    expected = sum(stats.poisson.logpmf(x, rate).sum() for x, rate in (([1, 3, 0], 2.0), ([4, 2, 6], 3.0)))
    assert sums.log_likelihood[0] == pytest.approx(expected)
    np.testing.assert_allclose(np.exp(family.maximize(stack, params, sums))[0, 0], [4.0 / 3.0, 4.0])
    told = np.diagonal(family.information(stack, params)[0])[1:]
    np.testing.assert_allclose(told, [6.0, 9.0])
