"""What every family owes, over the table FAMILIES: gradient, curvature, ascent, padding, weights."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fedgrem.families import Custom, Family, Gaussian, LinearRegression
from fedgrem.families.base import (
    LEAST_SHARE,
    ascend,
    curvature_by_autodiff,
    largest_eigenvalue_bound,
    q_gradient_by_autodiff,
    q_value,
)
from fedgrem.kernels.responsibilities import posterior
from fedgrem.types import SiteData
from tests.conformance.families import CUSTOM, FAMILIES, SHIPPED

N = 24


def some_mass(seed, n=N, n_components=2):
    return np.random.default_rng(seed).dirichlet(np.ones(n_components), size=n).T


def scaled(data, factor):
    return data._replace(columns=factor * data.columns, rows_first=None)


value = jax.jit(q_value, static_argnums=0)
step = jax.jit(ascend, static_argnums=0)
gradient_of = jax.jit(lambda family, *rest: family.q_gradient(*rest), static_argnums=0)
by_autodiff = jax.jit(q_gradient_by_autodiff, static_argnums=0)


def finite_differences(function, theta, width=1e-5):
    """Central differences of a function (R, q) -> (R,) whose component r depends on theta_r alone."""
    columns = []
    for j in range(theta.shape[1]):
        shift = np.zeros_like(theta)
        shift[:, j] = width
        columns.append((np.asarray(function(theta + shift)) - np.asarray(function(theta - shift))) / (2 * width))
    return np.stack(columns, axis=1)


@pytest.mark.parametrize("case", FAMILIES, ids=repr)
def test_every_family_keeps_the_protocol(case):
    assert isinstance(case.family, Family)
    assert hash(case.family) == hash(case.family)
    assert case.family.n_parameters(case.rows(0, 3)[0].shape[1]) == case.theta.shape[1]


@pytest.mark.parametrize("case", FAMILIES, ids=repr)
def test_log_density_is_scipys(case):
    data = case.site_data(1, 6)
    x, theta = data.columns.T, case.theta
    expected = {
        "gaussian": lambda t: stats.norm.logpdf(x, t).sum(axis=1),
        "regression": lambda t: stats.norm.logpdf(data.target, x @ t),
        "poisson": lambda t: stats.poisson.logpmf(x, np.exp(t)).sum(axis=1),
        "bernoulli": lambda t: stats.bernoulli.logpmf(x, 1 / (1 + np.exp(-t))).sum(axis=1),
        "log-normal": lambda t: stats.lognorm.logpdf(x, 1.0, scale=np.exp(t)).sum(axis=1),
    }[case.name]
    np.testing.assert_allclose(case.family.log_density(data, theta), np.stack([expected(t) for t in theta]), rtol=1e-10)


@pytest.mark.parametrize("case", FAMILIES, ids=repr)
def test_gradient_agrees_with_finite_differences(case):
    data, mass = case.site_data(2, N), some_mass(2)
    theta = case.theta + 0.3
    expected = finite_differences(lambda t: value(case.family, data, t, mass), theta)
    np.testing.assert_allclose(gradient_of(case.family, data, theta, mass), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("case", FAMILIES, ids=repr)
def test_gradient_agrees_with_autodiff(case):
    data, mass = case.site_data(3, N), some_mass(3)
    theta = case.theta - 0.2
    np.testing.assert_allclose(
        gradient_of(case.family, data, theta, mass), by_autodiff(case.family, data, theta, mass), rtol=1e-11, atol=1e-11
    )


@pytest.mark.parametrize("case", FAMILIES, ids=repr)
def test_curvature_bounds_the_largest_eigenvalue_of_the_hessian_and_not_by_much(case):
    data, mass = case.site_data(4, N), some_mass(4)
    theta = case.theta + 0.1
    hessian = np.stack([_hessian(case, data, theta, mass, r) for r in range(len(theta))])
    largest = np.linalg.eigvalsh(hessian)[:, -1]
    bound = np.asarray(case.family.curvature(data, theta, mass))
    assert np.all(bound >= largest * (1 - 1e-6))
    assert np.all(bound <= largest * theta.shape[1] ** (1 / 16) * (1 + 1e-6))


def _hessian(case, data, theta, mass, r):
    """Minus the Hessian of Q in component r, by differences of the gradient."""
    width, columns = 1e-5, []
    for j in range(theta.shape[1]):
        shift = np.zeros_like(theta)
        shift[r, j] = width
        above, below = (np.asarray(gradient_of(case.family, data, t, mass))[r] for t in (theta + shift, theta - shift))
        columns.append(-(above - below) / (2 * width))
    matrix = np.stack(columns)
    return 0.5 * (matrix + matrix.T)


@pytest.mark.parametrize("case", SHIPPED, ids=repr)
def test_curvature_by_autodiff_agrees_with_the_hand_written_bound(case):
    data, mass = case.site_data(5, N), some_mass(5)
    by_hand = np.asarray(case.family.curvature(data, case.theta, mass))
    bound = np.asarray(curvature_by_autodiff(case.family, data, case.theta, mass))
    # The Gaussian's is exact, while autodiff goes through the bound for symmetric matrices.
    assert np.all(bound >= by_hand * (1 - 1e-12))
    assert np.all(bound <= by_hand * case.theta.shape[1] ** (1 / 16) * (1 + 1e-12))


@given(
    st.integers(0, 10_000), st.sampled_from([1, 2, 5]), st.sampled_from([1e-60, 1e-3, 1.0, 1e3, 1e60]), st.booleans()
)
def test_eigenvalue_bound_is_above_the_spectral_norm_by_at_most_the_16th_root_of_q(seed, q, scale, low_rank):
    generator = np.random.default_rng(seed)
    factor = generator.normal(size=(3, q, 1 if low_rank else q))
    sign = generator.choice([-1.0, 1.0], size=(3, 1, factor.shape[2]))
    matrix = scale * (factor * sign) @ np.swapaxes(factor, 1, 2)
    norm = np.abs(np.linalg.eigvalsh(matrix)).max(axis=1)
    bound = np.asarray(largest_eigenvalue_bound(jnp.asarray(matrix)))
    assert np.all(bound >= norm * (1 - 1e-10))
    assert np.all(bound <= norm * q ** (1 / 16) * (1 + 1e-10))


def test_eigenvalue_bound_of_nothing_is_zero():
    assert float(largest_eigenvalue_bound(jnp.zeros((3, 3)))) == 0.0


@pytest.mark.parametrize("factor", [1e-3, 1e-1, 1.0, 1e1, 1e3])
@pytest.mark.parametrize("case", [c for c in FAMILIES if c.name in ("gaussian", "regression")], ids=repr)
def test_ascent_never_lowers_q_whatever_the_scale_of_the_covariates(case, factor):
    data = scaled(case.site_data(6, N), factor)
    for seed in range(10):
        generator = np.random.default_rng(seed)
        theta, mass = generator.normal(scale=3.0, size=case.theta.shape), some_mass(seed)
        before = np.asarray(value(case.family, data, theta, mass))
        moved = step(case.family, data, theta, mass, step_size=0.95)
        after = np.asarray(value(case.family, data, moved.theta, mass))
        assert np.all(after >= before - 1e-12 * np.abs(before))
        assert np.all((moved.step_scale > 0) & (moved.step_scale <= 1))


@pytest.mark.parametrize("case", CUSTOM, ids=repr)
def test_ascent_never_lowers_q_of_a_custom_density_wherever_it_starts(case):
    data = case.site_data(7, N)
    for seed in range(20):
        generator = np.random.default_rng(seed)
        theta, mass = generator.normal(scale=4.0, size=case.theta.shape), some_mass(seed)
        before = np.asarray(value(case.family, data, theta, mass))
        moved = step(case.family, data, theta, mass, step_size=0.95)
        after = np.asarray(value(case.family, data, moved.theta, mass))
        assert np.all(np.isfinite(moved.theta))
        assert np.all(after >= before - 1e-12 * np.abs(before))
        assert np.all(after > before)


def test_ascent_of_a_custom_density_survives_a_step_into_infinity():
    # Log rates of -30: the curvature there is next to nothing, so an unchecked step would overflow the rate.
    (poisson,) = (case for case in CUSTOM if case.name == "poisson")
    data, mass, theta = poisson.site_data(8, N), some_mass(8), np.full((2, 2), -30.0)
    moved = step(poisson.family, data, theta, mass, step_size=0.95)
    assert np.all(np.asarray(value(poisson.family, data, moved.theta, mass)) > value(poisson.family, data, theta, mass))


def test_custom_ascent_does_not_move_a_component_without_mass():
    (poisson,) = (case for case in CUSTOM if case.name == "poisson")
    data, mass = poisson.site_data(9, N), np.stack([np.ones(N), np.zeros(N)])
    moved = step(poisson.family, data, poisson.theta, mass, step_size=0.95)
    np.testing.assert_array_equal(moved.theta[1], poisson.theta[1])


@pytest.mark.parametrize("case", FAMILIES, ids=repr)
def test_step_is_step_size_times_scale_over_the_weight_of_this_e_step(case):
    data, mass = case.site_data(10, N), some_mass(10)
    gradient = np.asarray(gradient_of(case.family, data, case.theta, mass)) / N
    moved = step(case.family, data, case.theta, mass, step_size=0.7)
    length = 0.7 * np.asarray(moved.step_scale) / mass.mean(axis=1)
    np.testing.assert_allclose(moved.theta, case.theta + length[:, None] * gradient, rtol=1e-12)


def test_a_rare_component_is_stepped_as_if_it_held_its_least_share():
    case = FAMILIES[0]
    data = case.site_data(11, N)
    mass = np.stack([np.full(N, 1.0 - 1e-3), np.full(N, 1e-3)])
    gradient = np.asarray(gradient_of(case.family, data, case.theta, mass)) / N
    moved = step(case.family, data, case.theta, mass, step_size=1.0)
    np.testing.assert_allclose(moved.theta[1], case.theta[1] + gradient[1] / (LEAST_SHARE / 2), rtol=1e-12)


@pytest.mark.parametrize("case", FAMILIES, ids=repr)
def test_first_weights_give_the_papers_step_whatever_the_curvature(case):
    data, mass = case.site_data(12, N), some_mass(12)
    first = np.array([0.3, 0.7])
    gradient = np.asarray(gradient_of(case.family, data, case.theta, mass)) / N
    moved = step(case.family, data, case.theta, mass, step_size=0.7, first_weights=first)
    np.testing.assert_allclose(moved.theta, case.theta + (0.7 / first)[:, None] * gradient, rtol=1e-12)
    np.testing.assert_array_equal(moved.step_scale, np.ones(2))


@partial(jax.jit, static_argnums=0)
def everything(case, data):
    """Everything a family computes from a site's rows."""
    family, theta = case.family, jnp.asarray(case.theta + 0.1)
    mass, log_likelihood = posterior(family.log_density(data, theta), jnp.array([0.4, 0.6]), data.row_weight)
    moved = ascend(family, data, theta, mass, step_size=0.95)
    return {
        "log_likelihood": log_likelihood,
        "held": mass.sum(axis=1),
        "q_value": q_value(family, data, theta, mass),
        "q_gradient": family.q_gradient(data, theta, mass),
        "curvature": family.curvature(data, theta, mass),
        "moved": moved.theta,
        "step_scale": moved.step_scale,
        "exact_step": family.exact_step(data, theta, mass),
        "start": family.draw_start(jax.random.PRNGKey(0), data, 2),
    }


@pytest.mark.parametrize("case", FAMILIES, ids=repr)
def test_padding_changes_nothing(case):
    expected, actual = everything(case, case.site_data(13, 13)), everything(case, case.site_data(13, 13, n_padded=N))
    for name, wanted in expected.items():
        np.testing.assert_allclose(actual[name], wanted, rtol=1e-9, atol=1e-9, err_msg=name)


@pytest.mark.parametrize("case", FAMILIES, ids=repr)
def test_a_row_of_integer_weight_is_that_many_rows(case):
    weight = np.random.default_rng(14).permutation([0, 0, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 4])
    heavy = case.site_data(14, 13, weight=weight.astype(float))
    # Sorting by value keeps equal rows together, as it does in the weighted site.
    times = heavy.row_weight.astype(int)
    repeated = SiteData(np.repeat(heavy.columns, times, axis=1), np.repeat(heavy.target, times), np.ones(times.sum()))
    expected, actual = everything(case, repeated), everything(case, heavy)
    for name, wanted in expected.items():
        np.testing.assert_allclose(actual[name], wanted, rtol=1e-9, atol=1e-9, err_msg=name)


@pytest.mark.parametrize("case", CUSTOM, ids=repr)
def test_exact_step_of_a_custom_density_raises_q_of_every_component(case):
    data, mass = case.site_data(15, N), some_mass(15)
    moved = jax.jit(case.family.exact_step)(data, case.theta, mass)
    assert np.all(np.asarray(value(case.family, data, moved, mass)) > value(case.family, data, case.theta, mass))


def test_families_with_equal_settings_are_equal_so_that_programs_are_shared():
    assert Gaussian() == Gaussian()
    assert LinearRegression(ridge=0.1) == LinearRegression(ridge=0.1) != LinearRegression()
    assert Custom(np.sum, np.mean) == Custom(np.sum, np.mean) != Custom(np.sum, np.mean, start_rows=2)
