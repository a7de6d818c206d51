"""A user's own density: only the density and a start are asked for."""

from importlib import util

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.scipy.special import gammaln
from scipy.special import softmax

from fedgrem.data.federation import Site, stack_sites
from fedgrem.errors import MissingExtraError
from fedgrem.families.base import weights_of
from fedgrem.families.gaussian import Gaussian
from fedgrem.families.own import OwnDensity
from fedgrem.types import Params
from tests.conformance.families import GAUSSIAN, POISSON, WEIGHTS, unpadded
from tests.families.test_information import assert_close, hessian


def gaussian_row(row, theta):
    return -0.5 * jnp.sum((row - theta) ** 2) - 0.5 * row.shape[0] * jnp.log(2.0 * jnp.pi)


def poisson_row(row, theta):
    return jnp.sum(row * theta - jnp.exp(theta) - gammaln(row + 1.0))


def first_row(key, rows):
    return rows[0]


def lowest(key, rows):
    return rows.min(axis=0)


def log_mean(key, rows):
    return jnp.log(rows.mean(axis=0) + 0.5) + 0.1 * jax.random.normal(key, (rows.shape[1],), dtype=rows.dtype)


OURS = {GAUSSIAN: OwnDensity(gaussian_row, first_row), POISSON: OwnDensity(poisson_row, log_mean)}
both = pytest.mark.parametrize(("case", "own"), OURS.items(), ids=["gaussian", "poisson"])


@both
def test_its_e_step_is_that_of_the_family_we_ship(case, own):
    stack, params = case.stack(0, 20, np.linspace(0.0, 2.0, 20)), case.params()
    ours, theirs = case.family.expect(stack, params), own.expect(stack, params)
    np.testing.assert_allclose(theirs.held, ours.held, rtol=1e-11)
    np.testing.assert_allclose(theirs.log_likelihood, ours.log_likelihood, rtol=1e-12)
    np.testing.assert_allclose(theirs.features[..., 1:-2], case.family.gradient(ours)(params.theta), atol=1e-9)
    for mine, shipped in zip(own.row_scores(stack, params), case.family.row_scores(stack, params), strict=True):
        np.testing.assert_allclose(mine, shipped, rtol=1e-9, atol=1e-12)


@both
def test_its_information_is_minus_the_second_derivative(case, own):
    stack, params = case.stack(1, 60), case.params()

    def value(x):
        mixture = Params(softmax(x[:2])[None], x[2:].reshape(1, 2, 2))
        return case.log_likelihood(stack, mixture)

    expected = -hessian(value, np.concatenate([np.log(WEIGHTS), params.theta.ravel()]))
    assert_close(own.information(stack, params)[0], expected, 1e-5)


@both
def test_steps_raise_the_log_likelihood_wherever_they_start(case, own):
    stack = case.stack(2, 24)
    for seed in range(4):
        theta = np.random.default_rng(seed).normal(scale=2.0, size=(1, 2, 2))
        params = Params(WEIGHTS[None], theta)
        sums = own.expect(stack, params)
        for moved in (own.ascend(stack, params, sums, 0.95).theta, own.maximize(stack, params, sums)):
            after = own.expect(stack, Params(weights_of(sums), moved))
            assert after.log_likelihood[0] > sums.log_likelihood[0]


def test_a_gaussian_written_by_the_user_steps_in_our_direction():
    own, stack, params = OURS[GAUSSIAN], GAUSSIAN.stack(3, 20), GAUSSIAN.params()
    ours = Gaussian().ascend(stack, params, Gaussian().expect(stack, params), 0.5)
    theirs = own.ascend(stack, params, own.expect(stack, params), 0.5)
    scale = theirs.step_scale[..., None]
    np.testing.assert_allclose(theirs.theta - params.theta, scale * (ours.theta - params.theta), rtol=1e-9)
    assert np.all(theirs.step_scale >= 2**-0.5 * (1 - 1e-12))  # its curvature is bounded by the Frobenius norm
    paper = own.ascend(stack, params, own.expect(stack, params), 0.5, np.array([[0.001, 0.999]]))
    plain = Gaussian().ascend(stack, params, Gaussian().expect(stack, params), 0.5, np.array([[0.001, 0.999]]))
    np.testing.assert_allclose(paper.theta, plain.theta, rtol=1e-9)


def test_a_step_from_next_to_no_rate_does_not_overflow():
    own, stack = OURS[POISSON], POISSON.stack(4, 24)
    params = Params(WEIGHTS[None], np.full((1, 2, 2), -30.0))
    before = own.expect(stack, params)
    moved = own.ascend(stack, params, before, 0.95).theta
    assert own.expect(stack, params._replace(theta=moved)).log_likelihood[0] > before.log_likelihood[0]


def test_a_component_without_mass_does_not_move():
    own, stack = OURS[POISSON], POISSON.stack(5, 24)
    params = Params(np.array([[1.0, 0.0]]), POISSON.theta[None])
    moved = own.ascend(stack, params, own.expect(stack, params), 0.95)
    np.testing.assert_allclose(moved.theta[0, 1], POISSON.theta[1], atol=1e-12)


@both
def test_padding_and_neighbours_change_nothing(case, own):
    sites = [case.site(seed, n, name=f"s{seed}") for seed, n in ((6, 13), (7, 19))]
    stack = stack_sites(sites, gaps=False)
    params = Params(*(None if leaf is None else np.repeat(leaf, 2, axis=0) for leaf in case.params()))
    together = own.expect(stack, params), own.draw(stack, 0, "start", 2, 2, None)
    for k, site in enumerate(sites):
        one = unpadded(site)
        np.testing.assert_allclose(own.expect(one, case.params()).features[0], together[0].features[k], rtol=1e-9)
        np.testing.assert_array_equal(own.draw(one, 0, "start", 2, 2, None)[0], together[1][k])


def test_parameters_are_as_many_as_the_start_returns():
    own = OwnDensity(gaussian_row, lambda key, rows: jnp.stack([rows.mean(), rows.std()]))
    assert own.n_parameters(7) == 2


def test_every_component_starts_from_rows_of_its_own_and_never_from_padding():
    own = OwnDensity(gaussian_row, lowest, start_rows=3)
    rows = GAUSSIAN.rows(8, 20)[0] + 100.0
    weight = np.ones(20)
    rows[:5], weight[:5] = 0.0, 0.0
    theta = own.draw(unpadded(Site("a", rows, None, weight)), 1, "start", 1, 6, None)[0, 0]
    assert theta.shape == (6, 2)
    assert np.all(theta > 50.0)
    assert len({tuple(row) for row in theta}) > 1


def test_no_global_flag_of_jax_is_touched():
    own, stack = OURS[GAUSSIAN], GAUSSIAN.stack(9, 10)
    assert own.expect(stack, GAUSSIAN.params()).features.dtype == np.float64
    assert not jax.config.jax_enable_x64


def test_without_jax_it_says_what_to_install(monkeypatch):
    real = util.find_spec
    monkeypatch.setattr("fedgrem.families.own.find_spec", lambda name: None if name == "jax" else real(name))
    with pytest.raises(MissingExtraError, match=r"pip install 'fedgrem\[own-density\]'"):
        OURS[GAUSSIAN].expect(GAUSSIAN.stack(0, 5), GAUSSIAN.params())
