"""Covariance structures: the way to a noise and back, coordinates that know no units, and M-steps by definition."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgrem.families.covariance import STRUCTURES
from fedgrem.families.gaussian import Gaussian
from fedgrem.types import Params, Sums
from tests.conformance.families import BY_NAME, NOISY

KINDS = ("spherical", "diag", "tied", "full")
kinds = pytest.mark.parametrize("kind", KINDS)
THETA = np.array([[1.0, -2.0], [-1.0, 0.5]])


def covariances(seed, size=3, count=4):
    """Well-conditioned matrices, ``(count, p, p)``."""
    factor = np.random.default_rng(seed).normal(size=(count, size, size + 3))
    return factor @ factor.transpose(0, 2, 1) / size


def shaped(kind, matrices):
    """What a structure can say of them."""
    if kind == "spherical":
        return np.mean(np.diagonal(matrices, axis1=1, axis2=2), axis=1)[:, None, None] * np.eye(matrices.shape[-1])
    return matrices * np.eye(matrices.shape[-1]) if kind == "diag" else matrices


def test_every_structure_that_estimates_is_tested():
    assert set(KINDS) == set(STRUCTURES) - {"identity"}


@kinds
def test_a_covariance_survives_the_way_to_a_noise_and_back(kind):
    structure, matrices = STRUCTURES[kind](), covariances(1)
    noise = structure.from_matrices(matrices)
    assert noise.shape == (4, structure.size(3))
    np.testing.assert_allclose(structure.matrices(noise, 3), shaped(kind, matrices), rtol=1e-12, atol=1e-12)


@kinds
@given(st.integers(0, 2**32 - 1))
def test_any_numbers_are_a_covariance(kind, seed):
    structure = STRUCTURES[kind]()
    numbers = np.random.default_rng(seed).normal(scale=2.0, size=structure.size(3))
    assert np.linalg.eigvalsh(structure.matrices(numbers, 3)).min() > 0


@kinds
def test_an_opened_noise_is_what_every_step_needs_of_it(kind):
    structure, matrices = STRUCTURES[kind](), shaped(kind, covariances(2))
    scale = structure.open(structure.from_matrices(matrices), 3)
    np.testing.assert_allclose(scale.log_scale, 0.5 * np.linalg.slogdet(matrices)[1], rtol=1e-10)
    points = np.random.default_rng(0).normal(size=(5, 4, 3))
    white = structure.whiten(points, scale)
    expected = np.einsum("krp,rpq,krq->kr", points, np.linalg.inv(matrices), points)
    np.testing.assert_allclose((white**2).sum(axis=-1), expected, rtol=1e-9)
    np.testing.assert_allclose(structure.unwhiten(white, scale), points, atol=1e-10)


@kinds
def test_coordinates_about_a_reference_do_not_depend_on_units(kind):
    structure, matrices = STRUCTURES[kind](), covariances(3)
    units = np.full(3, 1e3) if kind == "spherical" else np.array([1e-3, 1.0, 1e3])
    own, other = (
        structure.relative(structure.from_matrices(m[:3]), structure.from_matrices(m[3]), 3)
        for m in (matrices, matrices * units[:, None] * units)
    )
    np.testing.assert_allclose(own, other, rtol=1e-9, atol=1e-9)


@kinds
def test_relative_coordinates_lead_back(kind):
    structure = STRUCTURES[kind]()
    noise = structure.from_matrices(covariances(4))
    away = structure.relative(noise, noise[0], 3)
    np.testing.assert_allclose(away[0], 0.0, atol=1e-12)
    np.testing.assert_allclose(structure.absolute(away, noise[0], 3), noise, atol=1e-10)


@kinds
def test_n_rows_know_every_coordinate_to_about_one_over_root_n(kind):
    n, generator, structure = 400, np.random.default_rng(5), STRUCTURES[kind]()
    matrix = covariances(6)[0] if kind in ("tied", "full") else 4.0 * np.eye(3)
    draws = generator.multivariate_normal(np.zeros(3), matrix, size=(300, n))
    estimates = np.einsum("dnp,dnq->dpq", draws, draws) / n
    away = structure.relative(structure.from_matrices(estimates), structure.from_matrices(matrix), 3)
    np.testing.assert_allclose(away.std(axis=0) * np.sqrt(n), 1.0, rtol=0.15)


@kinds
@pytest.mark.parametrize("far", [0.0, 1e3])
def test_covariances_are_the_weighted_moments_also_far_from_zero(kind, far):
    generator, family = np.random.default_rng(2), Gaussian(STRUCTURES[kind](), reg_covar=0.0)
    stack = BY_NAME["gaussian-full"].stack(5, 50)
    stack.rows[:] += far
    theta, mass = THETA + far, generator.dirichlet([1.0, 1.0], size=50).T
    sums = Sums(mass[None] @ family.features_of(stack), family.rest_of(stack), np.zeros(1))
    found = family.covariance.matrices(family.noise_step(sums, theta[None], None), 2)[0]
    away = stack.rows[0] - theta[:, None]
    scatter = np.einsum("rn,rnp,rnq->rpq", mass, away, away)
    held = mass.sum(axis=1)
    pooled = scatter.sum(axis=0) / held.sum()
    more = 4.0 if kind == "full" else 2.0  # rows of the pooled covariance that a component counts as its own
    own = (scatter + more * pooled) / (held + more)[:, None, None]
    expected = pooled[None] if kind == "tied" else shaped(kind, own)
    accuracy = 1e-5 if far else 1e-9
    np.testing.assert_allclose(found, expected, rtol=accuracy, atol=accuracy)


@pytest.mark.parametrize("case", NOISY, ids=repr)
def test_the_m_step_of_the_noise_raises_q(case):
    """Where nothing is borrowed it is the maximizer; where a few pooled rows are, it is near it."""
    stack, theta = case.stack(3, 400), case.theta[None]
    first = case.family.first_noise(stack, theta[:, None])[:, 0]
    params = Params(np.array([[0.5, 0.5]]), theta, first)
    sums = case.family.expect(stack, params)
    best = case.family.noise_step(sums, theta, first)
    posterior, _ = case.family.row_scores(stack, params)
    target = None if stack.target is None else stack.target[0]

    def q(noise):
        return float((posterior[0] * case.log_density(case.family, stack.rows[0], target, case.theta, noise)).sum())

    generator = np.random.default_rng(0)
    for size in (0.05, 0.2):
        for _ in range(10):
            other = best[0] + size * generator.normal(size=best[0].shape)
            assert q(best[0]) > q(other) - (0.0 if best.shape[1] == 1 else 1.0)


@pytest.mark.parametrize("case", NOISY, ids=repr)
def test_a_component_of_no_rows_and_a_singular_site_stay_finite(case):
    stack = case.stack(6, 20)
    for flat in (False, True):
        if flat:
            stack = case.stack(6, 20)
            stack.rows[:] = 1.0
            if stack.target is not None:
                stack.target[:] = 0.0
        mass = np.stack([np.ones(20), np.zeros(20)])
        sums = Sums(mass[None] @ case.family.features_of(stack), case.family.rest_of(stack), np.zeros(1))
        first = case.family.first_noise(stack, case.theta[None, None])
        after = case.family.noise_step(sums, case.theta[None], first[:, 0])
        assert np.isfinite(first).all()
        assert np.isfinite(after).all()


@pytest.mark.parametrize("case", NOISY, ids=repr)
def test_the_average_noise_is_that_of_the_average_variance(case):
    noise = np.stack([case.some_noise(seed) for seed in range(3)])
    share = np.array([0.2, 0.5, 0.3])
    expected = np.einsum("k,krpq->rpq", share, np.stack([case.covariances(one) for one in noise]))
    found = case.covariances(case.family.average_noise(noise, share))
    np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-12)
