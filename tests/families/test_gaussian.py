"""Gaussian components: closed forms."""

import numpy as np
import pytest

from fedgrem.data.federation import Site, stack_sites
from fedgrem.families.gaussian import Gaussian
from fedgrem.types import Params
from tests.conformance.families import GAUSSIAN, GAUSSIANS


def posterior_and_sums(case, stack, params):
    posterior, _ = case.family.row_scores(stack, params)
    return posterior[0], case.family.expect(stack, params)


@pytest.mark.parametrize("case", GAUSSIANS, ids=repr)
def test_the_exact_step_is_the_weighted_mean_and_so_is_a_full_gradient_step(case):
    stack, params = case.stack(0, 20), case.params()
    posterior, sums = posterior_and_sums(case, stack, params)
    expected = [np.average(stack.rows[0], axis=0, weights=m) for m in posterior]
    np.testing.assert_allclose(case.family.maximize(stack, params, sums)[0], expected, rtol=1e-10)
    moved = case.family.ascend(stack, params, sums, 1.0)
    np.testing.assert_allclose(moved.theta[0], expected, rtol=1e-10, atol=1e-12)
    np.testing.assert_array_equal(moved.step_scale, 1.0)


@pytest.mark.parametrize("case", GAUSSIANS, ids=repr)
def test_em_never_lowers_the_log_likelihood(case):
    case = case.with_family(reg_covar=0.0)
    stack, params, values = case.stack(1, 300), case.params(shift=0.8), []
    for _ in range(15):
        sums = case.family.expect(stack, params)
        theta = case.family.maximize(stack, params, sums)
        noise = case.family.noise_step(sums, theta, params.noise)
        params = Params(sums.held / 300.0, theta, noise)
        values.append(float(sums.log_likelihood[0]))
    # Where components borrow a few rows of each other's variance, the last digits may be lost.
    assert np.all(np.diff(values) > (-1e-8 if case.family.covariance.shared else -0.05))


def test_starts_are_rows_of_the_site():
    site = GAUSSIAN.site(4, 20)
    stack = stack_sites([site, GAUSSIAN.site(5, 24, name="other")], gaps=False)
    drawn = Gaussian().draw(stack, 0, "start", 4, 5, None)
    assert drawn.shape == (2, 4, 5, 2)
    distance = np.abs(drawn[0][:, :, None] - site.rows).max(axis=-1).min(axis=-1)
    np.testing.assert_allclose(distance, 0.0, atol=1e-12)
    assert all(len({tuple(row) for row in one.round(9)}) == 5 for one in drawn[0])


def test_starts_in_units_of_a_noise_are_rows_too():
    case = GAUSSIANS[3]
    stack = case.stack(6, 30)
    drawn = case.family.draw(stack, 0, "start", 3, 4, case.some_noise()[None])
    distance = np.abs(drawn[0][:, :, None] - stack.rows[0]).max(axis=-1).min(axis=-1)
    np.testing.assert_allclose(distance, 0.0, atol=1e-12)


def test_starts_depend_on_seed_purpose_and_the_name_of_the_site_only():
    rows = GAUSSIAN.rows(7, 40)[0]

    def drawn(seed, purpose, names):
        stack = stack_sites([Site(name, rows, None, np.ones(40)) for name in names], gaps=False)
        return Gaussian().draw(stack, seed, purpose, 2, 3, None)

    both = drawn(0, "start", ("a", "b"))
    np.testing.assert_array_equal(drawn(0, "start", ("b", "a"))[::-1], both)
    np.testing.assert_array_equal(drawn(0, "start", ("a",)), both[:1])
    for other in (drawn(1, "start", ("a",)), drawn(0, "again", ("a",)), both[1:]):
        assert not np.array_equal(other, both[:1])


def test_the_first_noise_is_that_of_the_rows_about_their_nearest_component():
    case = GAUSSIANS[3]
    stack = case.stack(8, 200)
    found = case.family.covariance.matrices(case.family.first_noise(stack, case.theta[None, None]), 2)[0, 0, 0]
    rows = stack.rows[0]
    nearest = np.linalg.norm(rows[:, None] - case.theta, axis=-1).argmin(axis=1)
    away = rows - np.stack([rows[nearest == r].mean(axis=0) for r in range(2)])[nearest]
    np.testing.assert_allclose(found, away.T @ away / 200.0 + 1e-6 * np.eye(2), rtol=1e-8)
