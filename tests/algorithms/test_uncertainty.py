"""What a site knows of its parameters against derivatives, and what the center makes of it, whoever lies."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedgrem.algorithms.fedgrem import FedGrEM
from fedgrem.algorithms.information import ROWS_AT_ONCE, _by_autodiff, _profiled, local_information, unpack
from fedgrem.algorithms.start import em
from fedgrem.algorithms.uncertainty import uncertainty
from fedgrem.families import Custom, Gaussian, LinearRegression
from fedgrem.families.base import expect
from fedgrem.types import Params, SiteData

STEP = 1e-5


def site(seed=0, n=90, weights=None):
    """Two overlapping groups in two columns, and a response that turns round between them."""
    generator = np.random.default_rng(seed)
    group = generator.integers(2, size=n)
    rows = generator.normal(size=(n, 2)) + np.outer(group, [2.0, -1.0])
    target = (2.0 * group - 1.0) * rows.sum(axis=1) + generator.normal(size=n)
    weight = np.ones(n) if weights is None else weights
    return SiteData(jnp.asarray(rows.T), jnp.asarray(target), jnp.asarray(weight))


def start(family, data):
    theta = jnp.array([[-1.0, -1.0], [1.0, 1.0]] if family.has_target else [[0.0, 0.0], [2.0, -1.0]])
    return Params(jnp.array([0.4, 0.6]), theta, family.first_spread(data, theta))


def unit_density(row, theta):
    return -0.5 * jnp.sum((row - theta) ** 2)


def matrix_of(family, data, params):
    answer = local_information(family, data, params)
    return unpack(np.asarray(answer.packed), params.weights.size + params.theta.size)


@pytest.mark.parametrize(
    "family",
    [Gaussian(), LinearRegression(), Custom(unit_density, lambda key, rows: rows[0])],
    ids=["gaussian", "regression", "custom"],
)
def test_the_information_is_minus_the_second_derivative_of_the_log_likelihood(family):
    data = site(weights=np.linspace(0.0, 2.0, 90))
    params = start(family, data)
    point = np.concatenate([np.log(params.weights), params.theta.ravel()])

    def log_likelihood(x):
        mixture = Params(jax.nn.softmax(x[:2]), x[2:].reshape(2, 2))
        return expect(family, data, mixture)[1]

    slope = jax.jit(jax.grad(log_likelihood))
    steps = STEP * np.eye(len(point))
    expected = -np.stack([(slope(point + e) - slope(point - e)) / (2.0 * STEP) for e in steps])
    np.testing.assert_allclose(matrix_of(family, data, params), expected, atol=1e-4)


@pytest.mark.parametrize("family", [Gaussian("tied"), Gaussian("diag"), LinearRegression(noise="shared")], ids=repr)
def test_where_a_site_has_settled_scores_profile_the_noise_out_as_second_derivatives_do(family):
    data = site(n=ROWS_AT_ONCE + 88)  # in two parts
    params, _ = em(family, data, start(family, data), 500)
    expected = np.asarray(_profiled(_by_autodiff(family, data, params), 6))
    assert np.isfinite(expected).all()
    got, scale = matrix_of(family, data, params), np.sqrt(np.diagonal(expected))
    np.testing.assert_allclose(got / scale / scale[:, None], expected / scale / scale[:, None], atol=2e-3)
    known = np.asarray(_by_autodiff(family, data, params))[:6, :6]
    assert np.all(np.diagonal(known) >= 0.999 * np.diagonal(got))  # who does not know the noise knows less


def test_missing_cells_tell_nothing_and_the_others_what_they_told():
    family, data = Gaussian("tied"), site()
    params = start(family, data)
    seen = np.ones((2, 90))
    whole = matrix_of(family, data._replace(observed=jnp.asarray(seen)), params)
    exact = np.asarray(_profiled(_by_autodiff(family, data, params), 6))
    np.testing.assert_allclose(whole, exact, rtol=1e-6, atol=1e-6)
    seen[1, ::2] = 0.0
    partly = matrix_of(family, data._replace(observed=jnp.asarray(seen)), params)
    assert partly[3, 3] < 0.8 * whole[3, 3]  # the second mean of the first component


# -- the center


def at_the_center(n_sites=7, own=()):
    """Sites whose components sit on the center, but for some that keep their own, and what they say."""
    family = Gaussian()
    data = [site(seed, n=200) for seed in range(n_sites)]
    center = jnp.array([[0.0, 0.0], [2.0, -1.0]])
    theta = jnp.stack([center + (4.0 if k in own else 0.0) for k in range(n_sites)])
    weights = jnp.full((n_sites, 2), 0.5)
    n_rows = jnp.full(n_sites, 200.0)
    algorithm = FedGrEM(family)
    central = algorithm.central_start(Params(weights, theta), n_rows)
    central = central._replace(center=center, penalty=jnp.asarray(4.0))
    told = [local_information(family, d, Params(w, t)).packed for d, w, t in zip(data, weights, theta, strict=True)]
    return algorithm, central, np.stack(told)


def test_sites_that_say_the_same_know_a_common_component_by_the_square_root_of_their_number_better():
    algorithm, central, told = at_the_center()
    one = algorithm.central_start(jax.tree.map(lambda leaf: leaf[:1], central.params), central.n_rows[:1])
    one = one._replace(center=central.center, penalty=central.penalty)
    alone = uncertainty(algorithm, one, told[:1])
    together = uncertainty(algorithm, central, np.repeat(told[:1], 7, axis=0))
    np.testing.assert_allclose(together.center_covariance, alone.center_covariance / 7.0, rtol=1e-8)
    # With its components better known, a site's weights are better known too, and not by as much.
    assert np.all(together.weights_variance < alone.weights_variance[0])
    assert np.all(together.weights_variance > alone.weights_variance[0] / 3.0)


def test_the_order_of_the_sites_does_not_matter():
    algorithm, central, told = at_the_center(own=(6,))
    order = np.array([6, 2, 0, 1, 5, 4, 3])
    turned = central._replace(params=jax.tree.map(lambda leaf: leaf[order], central.params))
    expected, got = uncertainty(algorithm, central, told), uncertainty(algorithm, turned, told[order])
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
    algorithm, central, told = at_the_center(own=own)
    honest = uncertainty(algorithm, central, told)
    spoiled = uncertainty(algorithm, central, np.concatenate([told[:-1], lie(told[-1])[None]]))
    variance = [np.einsum("...qq->...q", u.center_covariance) for u in (honest, spoiled)]
    assert np.all(variance[1] < 1.5 * variance[0])
    assert np.all(variance[1] > 0.5 * variance[0])
    np.testing.assert_allclose(spoiled.weights_variance[:-1], honest.weights_variance[:-1], rtol=0.2)
    assert np.isfinite(spoiled.theta_covariance[:-1]).all()


def test_a_site_far_away_costs_the_center_as_much_as_it_may_pull():
    algorithm, central, told = at_the_center(n_sites=7, own=(6,))
    without = jax.tree.map(lambda leaf: leaf[:6], central.params)
    less = algorithm.central_start(without, central.n_rows[:6])._replace(center=central.center, penalty=central.penalty)
    pulled, free = (uncertainty(algorithm, c, t).center_covariance for c, t in ((central, told), (less, told[:6])))
    towards, across = np.array([1.0, 1.0]), np.array([1.0, -1.0])
    grown = [direction @ pulled[0] @ direction / (direction @ free[0] @ direction) for direction in (towards, across)]
    assert grown[0] > 1.2 * grown[1] > 1.2


def test_of_a_component_that_vanished_nothing_is_said():
    algorithm, central, told = at_the_center(n_sites=3)
    weights = central.params.weights.at[1].set(jnp.array([1.0 - 1e-4, 1e-4]))
    found = uncertainty(algorithm, central._replace(params=central.params._replace(weights=weights)), told)
    assert np.isnan(found.theta_covariance[1, 1]).all()
    assert np.isnan(found.weights_variance[1, 1])
    assert np.isfinite(found.theta_covariance[1, 0]).all()
    assert np.isfinite(found.center_covariance).all()


def test_a_site_pulled_to_where_its_likelihood_curves_the_wrong_way_answers_the_squares_of_its_scores():
    family, data = LinearRegression(), site()
    params = start(family, data)._replace(theta=jnp.array([[-1.5, 1.0], [0.0, 0.1]]))
    assert np.linalg.eigvalsh(np.asarray(_by_autodiff(family, data, params))).min() < -1.0

    def row_log_likelihood(x, i):
        row = SiteData(data.columns[:, i, None], data.target[i, None], jnp.ones(1))
        return expect(family, row, Params(jax.nn.softmax(x[:2]), x[2:].reshape(2, 2)))[1]

    point = jnp.concatenate([jnp.log(params.weights), params.theta.ravel()])
    scores = jax.vmap(jax.grad(row_log_likelihood), in_axes=(None, 0))(point, jnp.arange(90))
    np.testing.assert_allclose(matrix_of(family, data, params), scores.T @ scores, atol=1e-8)
