"""The criteria by which a number of components is chosen: counts, sums, and who has a say in them."""

import jax.numpy as jnp
import numpy as np
import pytest

from fedgrem.algorithms.selection import (
    Tally,
    best_number,
    criteria,
    local_score,
    next_number,
    robust_total,
    tally,
)
from fedgrem.families import Gaussian
from fedgrem.types import FitResult, Params, SiteData

LOG = np.log


def result(distance, spread=None, n_rows=(100.0, 50.0, 50.0), **changes):
    """A fit of 2 components in 3 dimensions at 3 sites."""
    distance = np.asarray(distance, dtype=float)
    n_sites, n_components = distance.shape
    values = {
        "site_names": tuple("abc"[:n_sites]), "weights": np.full((n_sites, n_components), 0.5),
        "theta": np.zeros((n_sites, n_components, 3)), "center": np.zeros((n_components, 3)),
        "spread": spread, "center_spread": None if spread is None else np.zeros(spread.shape[1:]),
        "distance": distance, "n_rows": np.array(n_rows[:n_sites]), "n_rounds": 7, "converged": True, "unsettled": (),
        "history": {}, "start_choice": np.zeros(n_sites), "cost": {"start_exchanges": 2}, "path": {},
        "log_likelihood": np.arange(-3.0, n_sites - 3.0), "entropy": np.zeros(n_sites),
    }  # fmt: skip
    return FitResult(**values | changes)


def test_the_center_costs_its_parameters_once_and_a_site_off_it_pays_for_its_own():
    counted = tally(result([[0.0, 0.0], [0.0, 1.0], [0.0, 2.0]]))
    assert counted.own.tolist() == [1.0, 1.0 + 3.0, 1.0 + 3.0]  # R - 1 weights, and q = 3 where a site is off
    assert counted.shared == 6
    # Component 0 is known from all 200 rows, component 1 from the 100 of the first site.
    np.testing.assert_allclose(counted.shared_cost, 0.5 * 3 * (LOG(200) + LOG(100)))
    assert counted.exchanges == 2 + 7 + 1


def test_a_center_where_nobody_sits_is_not_paid_for():
    counted = tally(result([[1.0, 1.0], [2.0, 1.0], [1.0, 1.0]]))
    assert (counted.shared, counted.shared_cost) == (0, 0.0)
    assert counted.own.tolist() == [7.0, 7.0, 7.0]  # as three sites alone


def test_a_component_near_the_center_has_fewer_degrees_of_freedom():
    counted = tally(result([[0.0, 1.0], [0.0, 1e-9], [0.0, 1e9]], history={"penalty": np.array([99.0, 10.0])}))
    # The pull is 10 / sqrt(n): 1 at the first site.
    np.testing.assert_allclose(counted.own, [1.0 + 1.0 + 2.0 / 2.0, 1.0 + 1.0, 1.0 + 3.0], atol=1e-6)


def test_covariances_are_counted_like_means():
    spread = np.zeros((3, 1, 6))  # one matrix of 6 numbers for both components
    spread[2] = 0.3
    counted = tally(result(np.zeros((3, 2)), spread))
    assert counted.own.tolist() == [1.0, 1.0, 1.0 + 6.0]
    assert counted.shared == 2 * 3 + 6
    np.testing.assert_allclose(counted.shared_cost, 0.5 * (2 * 3 * LOG(200) + 6 * LOG(150)))


def test_one_pot_is_one_site():
    counted = tally(result(np.ones((3, 2)), log_likelihood=np.full(3, -9.0)), in_one_pot=True, log_scale=2.0)
    assert (counted.own.tolist(), counted.shared) == ([1.0], 6)
    assert (counted.n_rows.tolist(), counted.log_likelihood.tolist()) == ([200.0], [-9.0 - 2.0 * 200.0])


def test_bic_of_one_site_is_the_textbooks():
    curve = criteria([tally(result([[0.0, 0.0]], entropy=np.array([2.0])))])
    np.testing.assert_allclose(curve["bic"], -2.0 * -3.0 + (1 + 2 * 3) * LOG(100))
    np.testing.assert_allclose(curve["icl"], curve["bic"] + 2.0 * 2.0)
    assert curve["n_parameters"].tolist() == [7]


def test_a_site_scores_its_rows_and_padding_counts_for_nothing():
    rows = np.array([[0.0, 0.0, 50.0]])
    data = SiteData(jnp.asarray(rows), jnp.zeros(3), jnp.array([1.0, 2.0, 0.0]))
    score = local_score(Gaussian("identity"), data, Params(jnp.array([0.5, 0.5]), jnp.zeros((2, 1))))
    np.testing.assert_allclose(score, [3.0, -1.5 * LOG(2 * np.pi), 3.0 * LOG(2.0)], rtol=1e-12)


def made_up(n_components, value, n_rows, **changes):
    """A fit at the center in everything, of one parameter per component."""
    n_sites = len(value)
    values = {
        "site_names": tuple(f"s{k}" for k in range(n_sites)), "n_rows": np.asarray(n_rows, dtype=float),
        "log_likelihood": np.asarray(value, dtype=float), "entropy": np.zeros(n_sites),
        "own": np.full(n_sites, n_components - 1.0), "shared": n_components, "shared_cost": 3.0 * n_components,
        "settled": True, "rounds": 5, "exchanges": 8,
    }  # fmt: skip
    return Tally(n_components, **values | changes)


HONEST = {1: -600.0, 2: -500.0, 3: -400.0, 4: -398.0, 5: -396.0}
"""Log-likelihood of a site of 150 rows with three components, by their number."""


@pytest.mark.parametrize("n_hostile", [1, 3])
@pytest.mark.parametrize("lie", [1e6, -1e6, 1e300, np.inf, np.nan])
@pytest.mark.parametrize("wanted", [1, 2, 4, 5])
def test_hostile_sites_of_ten_do_not_change_the_choice_whatever_they_say(wanted, lie, n_hostile):
    tallies = []
    for number, value in HONEST.items():
        says = value + np.arange(10.0)
        says[:n_hostile] = lie if number == wanted else value
        tallies.append(made_up(number, says, np.full(10, 150.0)))
    curve = criteria(tallies)
    assert best_number(curve, "bic") == best_number(curve, "icl") == 3


def test_a_hostile_site_cannot_outweigh_the_others_by_its_size():
    tallies = [
        made_up(number, np.append(np.full(4, value), 1e9 * number), [150.0] * 4 + [1e12])
        for number, value in HONEST.items()
    ]
    assert best_number(criteria(tallies), "bic") == 3


def test_a_plain_sum_would_have_been_fooled():
    says = np.array([[value] * 9 + [200.0 * number] for number, value in HONEST.items()])
    assert np.argmax(says.sum(axis=1)) == 4
    assert np.diff(robust_total(says, np.full(10, 150.0))).round(6).tolist() == [1000.0, 1000.0, 20.0, 20.0]


def test_a_site_that_missed_a_fit_is_left_out_of_all():
    full, part = made_up(1, [-9.0, -9.0], [4.0, 4.0]), made_up(2, [-8.0], [4.0])
    curve = criteria([part, full])
    assert curve["n_components"].tolist() == [1, 2]
    assert curve["log_likelihood"].tolist() == [-9.0, -8.0]


def test_auto_goes_up_until_three_more_have_not_been_better():
    def tried(most):
        return [made_up(n, np.full(4, HONEST.get(n, -394.0)), np.full(4, 150.0)) for n in range(1, most + 1)]

    assert [next_number(tried(n), "bic", 20) for n in range(7)] == [1, 2, 3, 4, 5, 6, None]
    assert next_number(tried(2), "bic", limit=2) is None
