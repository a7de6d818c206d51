"""The accounting of differential privacy, the noise, and what somebody who attacks a sum can find out."""

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.stats import kstest, norm

from fedgrem.kernels.privacy import bounded, delta_of, epsilon_of, mu_of, noisy_sum, secure_normals

EPSILONS = st.floats(0.05, 30.0)
DELTAS = st.sampled_from([1e-9, 1e-6, 1e-5, 1e-3])


# -- accounting


@given(EPSILONS, DELTAS)
def test_epsilon_and_mu_are_each_others_way_back(epsilon, delta):
    mu = mu_of(epsilon, delta)
    assert epsilon_of(mu, delta) == pytest.approx(epsilon, rel=1e-6)
    assert delta_of(mu, epsilon) == pytest.approx(delta, rel=1e-5)


def test_no_budget_is_no_noise_and_nothing_spent_is_nothing_told():
    assert mu_of(np.inf, 1e-6) == np.inf == epsilon_of(np.inf, 1e-6)
    assert epsilon_of(0.0, 1e-6) == 0.0 == delta_of(0.0, 0.0)


@pytest.mark.parametrize("epsilon", [1.0, 8.0])
@pytest.mark.parametrize("shares", [(0.03, 0.09, 0.07, 0.07, 0.185, 0.185, 0.185, 0.185)])
def test_a_composed_budget_is_what_dp_accounting_says_it_is(epsilon, shares):
    mu = mu_of(epsilon, 1e-6)
    assert sum(shares) == pytest.approx(1.0)
    exact, bound = PLDAccountant(value_discretization_interval=1e-3), RdpAccountant()
    for share in shares:
        event = GaussianDpEvent(1.0 / (mu * np.sqrt(share)))
        exact.compose(event)
        bound.compose(event)
    assert exact.get_epsilon(1e-6) == pytest.approx(epsilon, rel=2e-3)
    assert epsilon <= bound.get_epsilon(1e-6) < 1.2 * epsilon


# -- sums


@given(arrays(float, (5, 3), elements=st.floats(allow_nan=True, allow_infinity=True)))
def test_no_row_is_longer_than_one_whatever_it_was_made_to_be(vectors):
    with np.errstate(all="ignore"):
        length = np.linalg.norm(bounded(vectors), axis=1)
    assert (length <= 1.0 + 1e-9).all()


def test_a_row_changes_a_sum_by_no_more_than_its_length():
    rows = np.random.default_rng(0).normal(size=(20, 4)) * np.array([[0.1], [5.0]] * 10)
    whole, _ = noisy_sum([rows], 1.0, np.zeros)
    for k in range(20):
        without, _ = noisy_sum([np.delete(rows, k, axis=0)], 1.0, np.zeros)
        assert np.linalg.norm(whole - without) <= 1.0 + 1e-6


def test_the_noise_is_as_large_as_the_budget_says_and_lies_on_a_grid_with_the_sum():
    rows = np.full((100, 2), 0.3)
    found = np.array([noisy_sum([rows], 0.5)[0] for _ in range(4000)])
    np.testing.assert_allclose(found.mean(axis=0), 30.0, atol=0.15)
    np.testing.assert_allclose(found.std(axis=0), 2.0, rtol=0.05)
    steps = found / 2.0**-25
    np.testing.assert_array_equal(steps, np.rint(steps))
    assert noisy_sum([rows], 0.5)[1] == pytest.approx(2.0, rel=1e-3)


def test_blocks_of_rows_add_up():
    rows = np.random.default_rng(1).normal(size=(50, 3))
    parts = noisy_sum([rows[:7], rows[7:]], np.inf)[0]
    np.testing.assert_allclose(parts, noisy_sum([rows], np.inf)[0], rtol=1e-12)


def test_the_noise_of_the_operating_system_is_normal_and_never_the_same():
    drawn = secure_normals(20_000)
    assert kstest(drawn, "norm").pvalue > 1e-4
    assert not np.array_equal(secure_normals(5), secure_normals(5))


# -- an attack


@pytest.mark.parametrize("epsilon", [0.5, 2.0])
def test_who_knows_all_other_rows_cannot_tell_whether_one_is_there_better_than_epsilon_allows(epsilon):
    generator = np.random.default_rng(2)
    rows = generator.normal(size=(30, 5))
    mu, delta, trials = mu_of(epsilon, 1e-5), 1e-5, 4000
    known = noisy_sum([rows[1:]], np.inf)[0]
    target = bounded(rows[:1])[0]
    told = [
        np.array([(noisy_sum([some], mu, generator.standard_normal)[0] - known) @ target for _ in range(trials)])
        for some in (rows, rows[1:])
    ]
    cut = 0.5 * target @ target  # the best test there is
    advantage = float(np.mean(told[0] > cut) - np.mean(told[1] > cut))
    allowed = (np.exp(epsilon) - 1.0 + 2.0 * delta) / (np.exp(epsilon) + 1.0)
    error = 3.0 / np.sqrt(trials)
    assert advantage < allowed + error
    assert advantage == pytest.approx(2.0 * norm.cdf(0.5 * mu * np.linalg.norm(target)) - 1.0, abs=error)
