"""What the center makes of what the sites know of their parameters: standard errors, whoever lies.

That a site's information is right is for tests/families.
"""

import numpy as np
import pytest

from fedgrem.algorithms.fedem import FedEM
from fedgrem.algorithms.fedem_sa import FedEMSA
from fedgrem.algorithms.fedgrem import FedGrEM
from fedgrem.algorithms.local import LocalEM
from fedgrem.algorithms.pooled import PooledEM
from fedgrem.data.federation import Federation, Site
from fedgrem.engines.inprocess import InProcess
from fedgrem.families.covariance import Tied
from fedgrem.families.gaussian import Gaussian
from fedgrem.families.poisson import Poisson
from fedgrem.families.regression import LinearRegression
from fedgrem.fit.errors import uncertainty
from fedgrem.fit.fit import run
from fedgrem.fit.spec import FitSpec
from fedgrem.fit.tasks import information
from fedgrem.kernels.triangle import symmetric
from fedgrem.types import Central, Influence, Params, map_arrays
from tests.conformance.families import FAMILIES, unpadded

FAMILY = Gaussian()
SPEC = FitSpec(FAMILY, FedGrEM(), 2)


# -- what a site sends


@pytest.mark.parametrize("case", FAMILIES, ids=repr)
def test_a_site_sends_half_of_its_information_and_the_weights_its_rows_have(case):
    stack, params = case.stack(0, 60), case.params()
    answer = information(FitSpec(case.family, FedGrEM(), 2), stack, params)
    assert answer.packed.shape == (1, 6 * 7 // 2)
    np.testing.assert_allclose(symmetric(answer.packed), case.family.information(stack, params))
    posterior, _ = case.family.row_scores(stack, params)
    np.testing.assert_allclose(answer.params.weights[0], posterior[0].mean(axis=1), rtol=1e-9)
    assert answer.params.noise is None
    assert answer.n_rows.tolist() == [60.0]


def test_a_site_that_cannot_tell_says_nothing():
    params = Params(np.full((1, 2), 0.5), np.array([[[0.0, 0.0], [np.nan, 0.0]]]))
    with np.errstate(invalid="ignore"):
        assert not information(SPEC, unpadded(site()), params).packed.any()


def site(seed=0, n=90):
    """Two overlapping groups in two columns."""
    generator = np.random.default_rng(seed)
    group = generator.integers(2, size=n)
    return Site("a", generator.normal(size=(n, 2)) + np.outer(group, [2.0, -1.0]), None, np.ones(n))


# -- the center


def at_the_center(n_sites=7, own=()):
    """Sites whose components sit on the center, but for some that keep their own, and what they say."""
    center = np.array([[0.0, 0.0], [2.0, -1.0]])
    theta = np.stack([center + (4.0 if k in own else 0.0) for k in range(n_sites)])
    weights = np.full((n_sites, 2), 0.5)
    central = Central(Params(weights, theta), center, np.full(n_sites, 200.0))
    none = np.zeros(())
    influence = Influence(np.full((n_sites, 2), 200.0), np.full((n_sites, 2), 4.0 / np.sqrt(200.0)), none, none, none)
    told = [
        information(SPEC, unpadded(site(k, 200)), Params(weights[[k]], theta[[k]])).packed[0] for k in range(n_sites)
    ]
    return central, influence, np.stack(told)


def some(which, central, influence, told):
    """The same for some of the sites."""
    params = map_arrays(lambda leaf: leaf[which], central.params)
    of_sites = influence._replace(weight=influence.weight[which], threshold=influence.threshold[which])
    return central._replace(params=params, n_rows=central.n_rows[which]), of_sites, told[which]


def test_sites_that_say_the_same_know_a_common_component_by_the_square_root_of_their_number_better():
    central, influence, told = at_the_center()
    alone = uncertainty(FAMILY, *some([0], central, influence, told))
    together = uncertainty(FAMILY, central, influence, np.repeat(told[:1], 7, axis=0))
    np.testing.assert_allclose(together.center_covariance, alone.center_covariance / 7.0, rtol=1e-8)
    # With its components better known, a site's weights are better known too, and not by as much.
    assert np.all(together.weights_variance < alone.weights_variance[0])
    assert np.all(together.weights_variance > alone.weights_variance[0] / 3.0)


def test_one_site_alone_has_the_inverse_of_its_information():
    central, influence, told = some([0], *at_the_center(n_sites=1))
    for shares in (True, False):  # on a center of its own, or without any
        found = uncertainty(FAMILY, central, influence, told, shares=shares)
        matrix = symmetric(told)[0]
        matrix[:2, :2] += 100.0  # the constant of the log weights, which no weight depends on
        covariance = np.linalg.inv(matrix)
        np.testing.assert_allclose(found.theta_covariance[0, 0], covariance[2:4, 2:4], rtol=1e-8)
        np.testing.assert_allclose(found.theta_covariance[0, 1], covariance[4:, 4:], rtol=1e-8)
        slope = 0.25 * np.array([[1.0, -1.0], [-1.0, 1.0]])
        variance = np.diagonal(slope @ covariance[:2, :2] @ slope)
        np.testing.assert_allclose(found.weights_variance[0], variance, rtol=1e-8)


def test_the_order_of_the_sites_does_not_matter():
    everything = at_the_center(own=(6,))
    order = np.array([6, 2, 0, 1, 5, 4, 3])
    expected, got = uncertainty(FAMILY, *everything), uncertainty(FAMILY, *some(order, *everything))
    np.testing.assert_allclose(got.center_covariance, expected.center_covariance, rtol=1e-10)
    np.testing.assert_allclose(got.theta_covariance, expected.theta_covariance[order], rtol=1e-10)


@pytest.mark.parametrize("own", [(), (6,)], ids=["at the center", "its own"])
@pytest.mark.parametrize(
    "lie",
    [
        lambda m: np.nan * m,
        lambda m: np.inf * m,
        lambda m: 1e12 * m,
        lambda m: -m,
        lambda m: 0.0 * m,
        lambda m: m[::-1],
    ],
    ids=["nan", "infinite", "huge", "negative", "nothing", "mixed up"],
)
def test_a_lie_about_what_one_knows_does_not_change_what_the_others_know(lie, own):
    central, influence, told = at_the_center(own=own)
    honest = uncertainty(FAMILY, central, influence, told)
    with np.errstate(invalid="ignore"):
        lied = np.concatenate([told[:-1], lie(told[-1])[None]])
    spoiled = uncertainty(FAMILY, central, influence, lied)
    variance = [np.einsum("...qq->...q", u.center_covariance) for u in (honest, spoiled)]
    assert np.all(variance[1] < 1.5 * variance[0])
    assert np.all(variance[1] > 0.5 * variance[0])
    np.testing.assert_allclose(spoiled.weights_variance[:-1], honest.weights_variance[:-1], rtol=0.2)
    assert np.isfinite(spoiled.theta_covariance[:-1]).all()


@pytest.mark.parametrize("own", [(), (6,)], ids=["at the center", "its own"])
def test_no_lie_ends_a_fit(own):
    central, influence, told = at_the_center(own=own)
    honest = np.diagonal(uncertainty(FAMILY, central, influence, told).center_covariance, axis1=1, axis2=2)
    generator = np.random.default_rng(0)
    for _ in range(50):
        told[-1] = generator.normal(size=told.shape[1]) * 10.0 ** generator.uniform(-9.0, 9.0, size=told.shape[1])
        spoiled = uncertainty(FAMILY, central, influence, told)
        assert np.isfinite(spoiled.theta_covariance[:-1]).all()
        assert np.all(np.diagonal(spoiled.center_covariance, axis1=1, axis2=2) < 1.5 * honest)


def along(covariance, direction):
    return direction @ covariance @ direction


TOWARDS, ACROSS = np.array([1.0, 1.0]), np.array([1.0, -1.0])


def test_a_site_far_away_costs_the_center_as_much_as_it_may_pull():
    everything = at_the_center(own=(6,))
    pulled = uncertainty(FAMILY, *everything).center_covariance
    free = uncertainty(FAMILY, *some(np.arange(6), *everything)).center_covariance
    grown = [along(pulled[0], direction) / along(free[0], direction) for direction in (TOWARDS, ACROSS)]
    assert grown[0] > 1.2 * grown[1] > 1.2


def test_what_a_pull_costs_grows_with_the_square_of_the_threshold_that_was_used():
    central, influence, told = at_the_center(own=(6,))
    found = []
    for factor in (0.0, 1.0, 2.0):
        used = influence._replace(threshold=factor * influence.threshold)
        found.append(along(uncertainty(FAMILY, central, used, told).center_covariance[0], TOWARDS))
    # Along the pull, nothing of it turns when the center moves.
    assert found[2] - found[0] == pytest.approx(4.0 * (found[1] - found[0]), rel=0.05)


def test_a_site_without_a_say_neither_pulls_nor_tells():
    central, influence, told = at_the_center(own=(6,))
    weight = influence.weight.copy()
    weight[5:] = 0.0  # one that sits on the center, and one that does not
    found = uncertainty(FAMILY, central, influence._replace(weight=weight), told)
    expected = uncertainty(FAMILY, *some(np.arange(5), central, influence, told))
    np.testing.assert_allclose(found.center_covariance, expected.center_covariance, rtol=1e-10)
    # It keeps what it says of itself, and what it has of the center.
    assert np.isfinite(found.weights_variance).all()
    np.testing.assert_array_equal(found.theta_covariance[5], found.center_covariance)


def test_a_site_that_counts_for_more_than_it_knows_makes_the_center_worse():
    central, influence, told = at_the_center()
    even = uncertainty(FAMILY, central, influence, told).center_covariance
    weight = influence.weight.copy()
    weight[0] *= 20.0
    spoiled = uncertainty(FAMILY, central, influence._replace(weight=weight), told).center_covariance
    whole = uncertainty(FAMILY, central, influence._replace(weight=7.0 * influence.weight), told).center_covariance
    assert np.all(np.diagonal(spoiled, axis1=1, axis2=2) > 2.0 * np.diagonal(even, axis1=1, axis2=2))
    np.testing.assert_allclose(whole, even, rtol=1e-10)  # only the weights of sites beside each other matter


def test_of_a_component_that_vanished_nothing_is_said():
    central, influence, told = at_the_center(n_sites=3)
    weights = central.params.weights.copy()
    weights[1] = [1.0 - 1e-4, 1e-4]
    central = central._replace(params=central.params._replace(weights=weights))
    found = uncertainty(FAMILY, central, influence, told)
    assert np.isnan(found.theta_covariance[1, 1]).all()
    assert np.isnan(found.weights_variance[1, 1])
    assert np.isfinite(found.theta_covariance[1, 0]).all()
    assert np.isfinite(found.center_covariance).all()


def test_where_nothing_is_common_a_center_has_no_errors_and_sites_keep_theirs():
    central, influence, told = at_the_center(n_sites=3)
    nothing = influence._replace(weight=np.zeros((3, 2)), threshold=np.zeros((3, 2)))
    found = uncertainty(FAMILY, central, nothing, told, shares=False)
    assert np.isnan(found.center_covariance).all()
    alone = uncertainty(FAMILY, *some([1], central, nothing, told), shares=False)
    np.testing.assert_array_equal(found.theta_covariance[1], alone.theta_covariance[0])


def test_a_site_that_did_not_answer_has_what_it_shares_and_no_weights():
    central, influence, told = at_the_center()
    told[2] = np.nan
    found = uncertainty(FAMILY, central, influence, told)
    expected = uncertainty(FAMILY, *some(np.arange(7) != 2, central, influence, told))
    np.testing.assert_allclose(found.center_covariance, expected.center_covariance, rtol=1e-10)
    assert np.isnan(found.weights_variance[2]).all()
    np.testing.assert_array_equal(found.theta_covariance[2], found.center_covariance)


# -- fits whose standard errors have a closed form


SIZES = (40, 60, 50, 90)
COMMON = FedGrEM(center="huber", pool_weights=False)


def fitted(family, algorithm, rows, targets=None, n_components=1, theta=None):
    """A fit of components that all sites have in common, from about the truth."""
    data = Federation.from_sites([f"site-{k}" for k in range(len(rows))], rows, targets)
    n_sites, width = len(rows), data.n_features
    theta = np.zeros((n_components, width)) if theta is None else theta
    given = Params(np.full((n_sites, n_components), 1.0 / n_components), np.tile(theta, (n_sites, 1, 1)))
    spec = FitSpec(
        family, algorithm, n_components, penalty=np.inf, fallback=False, look=False, standard_errors=True, tol=1e-9,
        given=given,
    )  # fmt: skip
    return run(spec, InProcess(data, spec))


def test_the_center_of_sites_that_differ_is_known_as_a_mean_of_so_many_is():
    generator = np.random.default_rng(9)
    rows = [generator.normal(size=(400, 4)) + generator.normal(size=4) for _ in range(5)]
    data = Federation.from_sites([f"site-{k}" for k in range(5)], rows)
    spec = FitSpec(Gaussian(), FedGrEM(), 1, standard_errors=True, tol=1e-9)
    found = run(spec, InProcess(data, spec))
    variance = np.diagonal(found.center_covariance[0])
    assert found.path["penalty"] == np.inf
    np.testing.assert_allclose(variance, np.stack([x.mean(axis=0) for x in rows]).var(axis=0, ddof=1) / 5, rtol=0.1)


SHARING = [COMMON, FedEM(), FedEMSA(approximation_step=1.0), PooledEM()]


@pytest.mark.parametrize("algorithm", SHARING, ids=lambda one: one.name)
def test_the_mean_of_unit_gaussians_is_known_to_one_over_all_rows(algorithm):
    generator = np.random.default_rng(0)
    found = fitted(Gaussian(), algorithm, [generator.normal(size=(n, 2)) for n in SIZES])
    np.testing.assert_allclose(found.center_covariance[0], np.eye(2) / sum(SIZES), rtol=1e-8, atol=1e-12)
    np.testing.assert_allclose(found.theta_covariance[:, 0], np.tile(np.eye(2) / sum(SIZES), (4, 1, 1)), atol=1e-10)
    np.testing.assert_allclose(found.weights_variance, 0.0, atol=1e-12)


@pytest.mark.parametrize("algorithm", [COMMON, PooledEM()], ids=lambda one: one.name)
def test_the_mean_of_gaussians_is_known_to_their_covariance_over_all_rows(algorithm):
    generator = np.random.default_rng(1)
    mixing = np.array([[2.0, 0.5], [0.0, 0.3]])
    family = Gaussian(Tied(), reg_covar=0.0)
    found = fitted(family, algorithm, [generator.normal(size=(n, 2)) @ mixing for n in SIZES])
    matrix = family.covariance.matrices(found.center_noise, 2)[0]
    np.testing.assert_allclose(found.center_covariance[0], matrix / sum(SIZES), rtol=0.02)


@pytest.mark.parametrize("algorithm", [COMMON, PooledEM()], ids=lambda one: one.name)
def test_coefficients_of_one_regression_are_known_as_least_squares_know_them(algorithm):
    generator = np.random.default_rng(2)
    rows = [generator.normal(size=(n, 2)) @ np.array([[1.0, 0.4], [0.0, 2.0]]) for n in SIZES]
    targets = [x @ [1.0, -1.0] + generator.normal(size=len(x)) for x in rows]
    found = fitted(LinearRegression(), algorithm, rows, targets)
    whole = np.concatenate(rows)
    best = np.linalg.lstsq(whole, np.concatenate(targets), rcond=None)[0]
    np.testing.assert_allclose(found.center[0], best, atol=1e-5)
    np.testing.assert_allclose(found.center_covariance[0], np.linalg.inv(whole.T @ whole), rtol=1e-6)


@pytest.mark.parametrize("algorithm", [COMMON, PooledEM()], ids=lambda one: one.name)
def test_log_rates_are_known_to_one_over_all_counts(algorithm):
    generator = np.random.default_rng(3)
    rows = [generator.poisson([2.0, 7.0], size=(n, 2)).astype(float) for n in SIZES]
    found = fitted(Poisson(), algorithm, rows, theta=np.log([[2.0, 7.0]]))
    counts = np.concatenate(rows).sum(axis=0)
    np.testing.assert_allclose(found.center_covariance[0], np.diag(1.0 / counts), rtol=1e-4, atol=1e-12)


@pytest.mark.parametrize("algorithm", SHARING, ids=lambda one: one.name)
def test_groups_far_apart_are_known_as_if_their_rows_were_marked(algorithm):
    generator = np.random.default_rng(4)
    group = [np.arange(n) % every == 0 for n, every in zip(SIZES, (2, 3, 5, 6), strict=True)]
    rows = [np.outer(np.where(g, 15.0, -15.0), [1.0, 1.0]) + generator.normal(size=(len(g), 2)) for g in group]
    theta = np.array([[-15.0, -15.0], [15.0, 15.0]])
    found = fitted(Gaussian(), algorithm, rows, n_components=2, theta=theta)
    held = np.array([[np.sum(~g), np.sum(g)] for g in group])
    variance = 1.0 / held.sum(axis=0)
    if algorithm.name == "fedem":  # averages the sites' means by all their rows, whatever part of these a component has
        variance = ((np.array(SIZES)[:, None] / sum(SIZES)) ** 2 / held).sum(axis=0)
    np.testing.assert_allclose(found.center_covariance, variance[:, None, None] * np.eye(2), rtol=1e-6, atol=1e-9)
    share = found.weights[:, 0]
    rows_of = np.full(4, sum(SIZES)) if algorithm.traits.pools_rows else np.array(SIZES)
    np.testing.assert_allclose(found.weights_variance[:, 0], share * (1.0 - share) / rows_of, rtol=1e-6)


def test_overlapping_groups_on_one_center_are_known_as_well_as_in_pooled_rows():
    generator = np.random.default_rng(5)
    theta = np.array([[-1.5, 0.0], [1.5, 0.0]])
    rows = [theta[np.arange(n) % 2] + generator.normal(size=(n, 2)) for n in (150, 250, 200)]
    together, pooled = (fitted(Gaussian(), a, rows, n_components=2, theta=theta) for a in (COMMON, PooledEM()))
    variances = [np.diagonal(f.center_covariance, axis1=1, axis2=2) for f in (together, pooled)]
    # Weights of every site's own take a little from what is known of the means.
    assert np.all(variances[0] > 0.9 * variances[1])
    assert np.all(variances[0] < 1.3 * variances[1])


def test_sites_alone_have_the_errors_of_their_own_rows():
    generator = np.random.default_rng(6)
    found = fitted(Gaussian(), LocalEM(), [generator.normal(size=(n, 2)) for n in SIZES])
    expected = np.eye(2) / np.array(SIZES)[:, None, None]
    np.testing.assert_allclose(found.theta_covariance[:, 0], expected, rtol=1e-8, atol=1e-12)
    assert np.isnan(found.center_covariance).all()
