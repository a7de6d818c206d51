"""The criteria by which a number of components is chosen: counts, sums, and who has a say in them."""

import numpy as np
import pytest

from fedgrem.algorithms.fedgrem import FedGrEM
from fedgrem.algorithms.pooled import PooledEM
from fedgrem.data.federation import Federation, Site
from fedgrem.engines.inprocess import InProcess
from fedgrem.families.gaussian import Gaussian
from fedgrem.fit.fit import run
from fedgrem.fit.selection import (
    Tally,
    best_number,
    criteria,
    degrees_of_freedom,
    leads,
    least_number,
    next_number,
    robust_total,
    tally,
)
from fedgrem.fit.spec import FitSpec
from fedgrem.fit.tasks import score
from fedgrem.types import FitResult, Influence, Params
from tests.conformance.families import unpadded

LOG = np.log


def result(distance, noise=None, threshold=0.0, n_rows=(100.0, 50.0, 50.0), **changes):
    """A fit of 2 components in 3 dimensions at 3 sites."""
    distance = np.asarray(distance, dtype=float)
    n_sites, n_components = distance.shape
    none = np.zeros(())
    influence = Influence(np.ones(distance.shape), np.broadcast_to(threshold, distance.shape), none, none, none)
    values = {
        "site_names": tuple("abc"[:n_sites]), "weights": np.full((n_sites, n_components), 0.5),
        "theta": np.zeros((n_sites, n_components, 3)), "center": np.zeros((n_components, 3)),
        "noise": noise, "center_noise": None if noise is None else np.zeros(noise.shape[1:]),
        "distance": distance, "n_rows": np.array(n_rows[:n_sites]), "n_rounds": 7, "converged": True, "unsettled": (),
        "history": {}, "influence": influence, "start_choice": np.zeros(n_sites),
        "cost": {"start_exchanges": 2, "rounds": 7, "score_exchanges": 1}, "path": {},
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
    counted = tally(result([[0.0, 1.0], [0.0, 1e-9], [0.0, 1e9]], threshold=[[1.0], [1.4], [1.4]]))
    np.testing.assert_allclose(counted.own, [1.0 + 1.0 + 2.0 / 2.0, 1.0 + 1.0, 1.0 + 3.0], atol=1e-6)


def test_covariances_are_counted_like_means():
    noise = np.zeros((3, 1, 6))  # one matrix of 6 numbers for both components
    noise[2] = 0.3
    counted = tally(result(np.zeros((3, 2)), noise))
    assert counted.own.tolist() == [1.0, 1.0, 1.0 + 6.0]
    assert counted.shared == 2 * 3 + 6
    np.testing.assert_allclose(counted.shared_cost, 0.5 * (2 * 3 * LOG(200) + 6 * LOG(150)))


def test_weights_that_are_the_common_ones_are_counted_once():
    weights = np.array([[0.3, 0.7], [0.3, 0.7], [0.5, 0.5]])
    apart, together = (
        tally(result(np.zeros((3, 2)))._replace(weights=weights, common_weights=common))
        for common in (None, weights[0])
    )
    assert apart.own.tolist() == [1.0, 1.0, 1.0]
    assert together.own.tolist() == [0.0, 0.0, 1.0]
    assert together.shared == apart.shared + 1
    np.testing.assert_allclose(together.shared_cost - apart.shared_cost, 0.5 * LOG(150))


def test_of_two_fits_the_one_with_the_better_bic_leads_by_more_than_rounding():
    one = result([[0.0, 0.0], [0.0, 0.0], [0.0, 0.0]], log_likelihood=np.full(3, -9.0))
    assert not leads(one, one, pooled=False)
    assert not leads(one._replace(log_likelihood=np.full(3, -8.99)), one, pooled=False)
    assert leads(one._replace(log_likelihood=np.full(3, -8.0)), one, pooled=False)
    apart = result([[0.0, 1.0], [0.0, 1.0], [0.0, 1.0]], log_likelihood=np.full(3, -8.0))
    assert not leads(apart, one, pooled=False)  # three parameters a site more


def test_pooled_rows_are_one_site():
    counted = tally(
        result(np.ones((3, 2)), log_likelihood=np.full(3, -9.0)),
        pooled=True,
        log_volume=np.array([200.0, 100.0, 100.0]),
    )
    assert (counted.own.tolist(), counted.shared) == ([1.0], 6)
    assert (counted.n_rows.tolist(), counted.log_likelihood.tolist()) == ([200.0], [-9.0 - 2.0 * 200.0])


def test_bic_of_one_site_is_the_textbooks():
    curve = criteria([tally(result([[0.0, 0.0]], entropy=np.array([2.0])))])
    np.testing.assert_allclose(curve["bic"], -2.0 * -3.0 + (1 + 2 * 3) * LOG(100))
    np.testing.assert_allclose(curve["icl"], curve["bic"] + 2.0 * 2.0)
    assert curve["n_parameters"].tolist() == [7]


def test_all_free_parameters_are_the_sites_and_once_the_centers():
    fit = result([[0.0, 0.0], [0.0, 1.0], [0.0, 2.0]], np.zeros((3, 2, 1)))
    counted = tally(fit)
    assert degrees_of_freedom(fit) == counted.own.sum() + counted.shared == 3 * 1 + 2 * 3 + 2 * 3 + 2
    assert degrees_of_freedom(fit, pooled=True) == 1 + 2 * 3 + 2
    assert criteria([counted])["n_parameters"].tolist() == [degrees_of_freedom(fit)]


def test_a_site_scores_its_rows_and_padding_counts_for_nothing():
    site = Site("a", np.array([[0.0], [0.0], [50.0]]), None, np.array([1.0, 2.0, 0.0]))
    family = Gaussian()
    found = score(FitSpec(family, FedGrEM(), 2), unpadded(site), Params(np.full((1, 2), 0.5), np.zeros((1, 2, 1))))
    np.testing.assert_allclose(np.ravel(found), [3.0, -1.5 * LOG(2 * np.pi), 3.0 * LOG(2.0)], rtol=1e-12)


# -- counted on fits


def federation():
    """Sites with a rare and a frequent component; the last has a frequent one of its own."""
    generator = np.random.default_rng(0)
    rows = []
    for k in range(5):
        rare = np.arange(120) % 6 == 0
        middle = np.where(rare[:, None], [-4.0, 0.0], [4.0, 1.5 * (k == 4)])
        rows.append(middle + generator.normal(size=(120, 2)))
    return Federation.from_sites([f"site-{k}" for k in range(5)], rows)


def fitted(algorithm, penalty=1.0):
    data = federation()
    given = Params(np.tile([1 / 6, 5 / 6], (5, 1)), np.tile([[-4.0, 0.0], [4.0, 0.0]], (5, 1, 1)))
    spec = FitSpec(
        Gaussian(), algorithm, 2, penalty, fallback=False, look=False, score=True, standard_errors=False, tol=1e-10,
        given=given,
    )  # fmt: skip
    return data, run(spec, InProcess(data, spec))


@pytest.mark.parametrize("step_size", [0.95, 0.5])
@pytest.mark.parametrize("rows", ["site", "component"])
def test_degrees_of_freedom_go_by_the_thresholds_that_were_used(rows, step_size):
    data, fit = fitted(FedGrEM(penalty_rows=rows, step_size=step_size, pool_weights=False))
    off = fit.distance > 0
    assert off[4, 1]
    assert not off[:, 0].all()
    held = fit.n_rows[:, None] * (np.ones((5, 2)) if rows == "site" else 2.0 * fit.weights)
    threshold = fit.history["penalty"][-1] / np.sqrt(held) / step_size
    np.testing.assert_allclose(fit.influence.threshold, threshold, rtol=1e-6)
    # What a component is off the center, and what it would be off without the pull: its rows' own mean, with their
    # posteriors as they are.
    ((stack, _),) = data.stacked()
    sums = Gaussian().expect(stack, Params(fit.weights, fit.theta))
    free = np.linalg.norm(Gaussian().solve(sums, fit.theta) - fit.center, axis=-1)
    np.testing.assert_allclose((fit.distance + threshold)[off], free[off], rtol=1e-5)
    assert np.all(free[~off] <= threshold[~off] * (1 + 1e-5))
    own = 1.0 + np.where(off, 1.0 + fit.distance / free, 0.0).sum(axis=1)
    np.testing.assert_allclose(tally(fit).own, own, rtol=1e-5)


def test_a_rare_component_is_pulled_by_its_own_rows_and_costs_accordingly():
    found = {rows: fitted(FedGrEM(penalty_rows=rows, pool_weights=False), 3.0)[1] for rows in ("site", "component")}
    site, component = (found[rows].influence.threshold for rows in ("site", "component"))
    np.testing.assert_allclose(site[:, 0], site[:, 1])
    assert np.all(component[:, 0] > 1.5 * site[:, 0])  # a third of an even share
    assert np.all(component[:, 1] < site[:, 1])
    # The site that keeps its frequent component is shrunk less, and has more of it to itself.
    assert all(np.all(fit.distance[:, 0] == 0.0) for fit in found.values())
    assert found["component"].distance[4, 1] > found["site"].distance[4, 1] > 0
    assert tally(found["component"]).own[4] > tally(found["site"]).own[4]


def test_a_fit_of_every_site_alone_costs_as_much_as_the_sites_do():
    _, fit = fitted(FedGrEM(pool_weights=False), penalty=0.0)
    assert np.all(fit.influence.threshold == 0.0)
    counted = tally(fit)
    assert (counted.own.tolist(), counted.shared) == ([5.0] * 5, 0)


def test_a_fit_with_one_center_has_the_criteria_of_pooled_rows_but_for_the_weights():
    _, together = fitted(FedGrEM(center="huber", pool_weights=False), penalty=np.inf)
    _, pooled = fitted(PooledEM())
    assert np.all(together.distance == 0.0)
    one, other = tally(together), tally(pooled, pooled=True)
    assert one.shared == other.shared == 4
    assert one.shared_cost == pytest.approx(other.shared_cost)
    assert one.own.tolist() == [1.0] * 5
    assert other.own.tolist() == [1.0]
    # Weights of every site's own can only fit better.
    assert 0 <= one.log_likelihood.sum() - other.log_likelihood.sum() < 5


# -- who has a say


def made_up(n_components, value, n_rows, **changes):
    """A fit at the center in everything, of one parameter per component."""
    n_sites = len(value)
    values = {
        "site_names": tuple(f"s{k}" for k in range(n_sites)), "n_rows": np.asarray(n_rows, dtype=float),
        "log_likelihood": np.asarray(value, dtype=float), "entropy": np.zeros(n_sites),
        "own": np.full(n_sites, n_components - 1.0), "shared": n_components, "shared_cost": 3.0 * n_components,
        "settled": True, "rounds": 5, "exchanges": 8,
    } | changes  # fmt: skip
    cost = 0.5 * values["own"] * LOG(np.maximum(values["n_rows"], 1.0))
    return Tally(n_components, **{"own_cost": cost} | values)


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


def test_counts_of_parameters_never_fall_and_the_larger_fit_keeps_its_own():
    counts = {1: 10.0, 2: 60.0, 3: 30.0, 4: 44.0}
    curve = criteria([
        made_up(n, [-400.0] * 4, [150.0] * 4, own=np.full(4, own), shared=n) for n, own in counts.items()
    ])  # fmt: skip
    assert curve["n_parameters"].tolist() == [41.0, 123.0, 123.0, 180.0]


def test_a_number_of_components_costs_at_least_a_component_at_the_center_less_than_the_next():
    value = [-400.0] * 4
    more = made_up(3, value, [150.0] * 4, own=np.full(4, 2.0), shared=9, shared_cost=30.0, component=3)
    fewer = made_up(2, value, [150.0] * 4, own=np.full(4, 9.0), shared=0, shared_cost=0.0, component=3)
    curve = criteria([fewer, more])
    np.testing.assert_allclose(np.diff(curve["bic"]), 4 * LOG(150) + 3 * LOG(600))
    assert curve["n_parameters"].tolist() == [4 * 1 + 6, 4 * 2 + 9]


def test_sites_that_are_alike_pay_for_what_integrating_out_their_parameters_costs():
    none, distance, between = np.zeros(()), np.full((3, 2), 1.0), np.array([0.1, 0.0])
    n_rows, x = np.array([100.0, 50.0, 50.0]), np.array([5.0, 2.5, 2.5])[:, None] * [1.0, 0.0]
    influence = Influence(
        np.ones((3, 2)), np.stack([distance[:, 0] / x[:, 0], np.zeros(3)], axis=1), none, none, none, between
    )
    counted = tally(result(distance, influence=influence))
    first = 1.5 * (np.log1p(x[:, 0]) + x[:, 0] / (1 + x[:, 0]))
    # The second component of all three is too far out for one of sites that do not differ, and their own.
    np.testing.assert_allclose(counted.own_cost, 0.5 * LOG(n_rows) * (1 + 3) + first)
    np.testing.assert_allclose(counted.shared_cost, 1.5 * LOG((n_rows / (1 + x[:, 0])).sum()))


def test_what_a_hostile_site_has_of_its_own_does_not_change_what_others_pay():
    own = {2: np.full(9, 1.0), 3: np.append(np.full(8, 2.0), 300.0), 4: np.full(9, 3.0)}
    curve = criteria([made_up(n, np.full(9, HONEST[n]), np.full(9, 150.0), own=o) for n, o in own.items()])
    plain = criteria([made_up(n, np.full(9, HONEST[n]), np.full(9, 150.0)) for n in own])
    np.testing.assert_allclose(curve["bic"], plain["bic"])


def test_a_clear_lead_in_likelihood_is_not_given_up_for_a_smaller_number():
    curve = {"n_components": np.arange(1, 3), "bic": np.array([50.0, 0.0]), "error": np.array([60.0, 0.0])}
    dear = curve | {"log_likelihood": np.array([-400.0, 0.0]), "n_parameters": np.array([10, 150])}
    flat = curve | {"log_likelihood": np.array([-60.0, 0.0]), "n_parameters": np.array([10, 30])}
    assert (best_number(dear, "bic"), best_number(flat, "bic")) == (2, 1)


def test_errors_are_those_of_the_differences_from_the_best():
    generator = np.random.default_rng(0)
    base, lead = generator.normal(size=8) * 50.0, np.array([1.0, 4.0, 2.0, 3.0, 5.0, -60.0, 2.5, 90.0])
    tallies = [made_up(1, base - 100.0 - lead, [150.0] * 8), made_up(2, base, [150.0] * 8)]
    found = criteria(tallies)["error"]
    kept = np.clip(lead, *np.sort(lead)[[3, 4]])  # three of eight at either end are winsorized
    np.testing.assert_allclose(found, [2.0 * 8 * kept.std(ddof=1) / np.sqrt(8) / 0.25, 0.0], atol=1e-9)
    assert np.isnan(criteria([made_up(1, [-9.0], [4.0])])["error"]).all()


@pytest.mark.parametrize(("flat", "wanted"), [(True, 3), (False, 4)])
def test_of_numbers_that_are_not_clearly_worse_the_smallest_is_chosen(flat, wanted):
    unsure = np.linspace(-20.0, 20.0, 10) if flat else np.zeros(10)
    tallies = [made_up(n, HONEST[n] + (n == 4) * (unsure + 4.0), np.full(10, 150.0)) for n in (1, 2, 3, 4)]
    curve = criteria(tallies)
    assert least_number(curve, "bic") == 4
    assert best_number(curve, "bic") == wanted


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
