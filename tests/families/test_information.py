"""What rows tell of parameters: minus the second derivatives of the log-likelihood, the noise profiled out."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.special import softmax

from fedgrem.data.federation import Site
from fedgrem.families import information as module
from fedgrem.families.base import weights_of
from fedgrem.families.gaussian import Gaussian
from fedgrem.families.regression import LinearRegression
from fedgrem.families.table import Table
from fedgrem.types import Params
from tests.conformance.families import BY_NAME, FAMILIES, NOISY, PLAIN, REGRESSION, unpadded

WEIGHT = np.linspace(0.0, 2.0, 120)


def hessian(function, point, width=2e-4):
    """Second derivatives by central differences of values."""
    steps, size = width * np.eye(len(point)), len(point)
    found = np.empty((size, size))
    for i in range(size):
        for j in range(i, size):
            corners = [(1, 1), (1, -1), (-1, 1), (-1, -1)]
            values = [a * b * function(point + a * steps[i] + b * steps[j]) for a, b in corners]
            found[i, j] = found[j, i] = sum(values) / (4.0 * width**2)
    return found


def flat(params):
    parts = [np.log(params.weights[0]), params.theta[0].ravel()]
    return np.concatenate(parts + ([] if params.noise is None else [params.noise[0].ravel()]))


def numerical(case, stack, params):
    """Minus the second derivatives in log weights, theta and noise."""
    shape, noise = params.theta.shape, params.noise
    kept = shape[1] * (1 + shape[2])

    def value(x):
        moved = None if noise is None else x[kept:].reshape(noise.shape)
        mixture = Params(softmax(x[: shape[1]])[None], x[shape[1] : kept].reshape(shape), moved)
        return case.log_likelihood(stack, mixture)

    full = -hessian(value, flat(params))
    if noise is None:
        return full
    cross = full[:kept, kept:]
    return full[:kept, :kept] - cross @ np.linalg.solve(full[kept:, kept:], cross.T)


def settled(case, stack, iterations=600):
    """The maximum of the likelihood itself, by EM without what components borrow from each other."""
    params = case.params(shift=0.0)
    weight, rows, y = stack.weight[0], stack.rows[0], None if stack.target is None else stack.target[0]
    if isinstance(case.family, Table):
        family = replace(case.family, prior_rows=0.0, reg_covar=0.0)
        for _ in range(iterations):
            sums = family.expect(stack, params)
            theta = family.maximize(stack, params, sums)
            params = Params(weights_of(sums), theta, family.noise_step(sums, theta, params.noise))
        return params
    for _ in range(iterations):
        posterior, _ = case.family.row_scores(stack, params)
        mass = posterior[0] * weight
        held = mass.sum(axis=1)
        if case.family.has_target:
            theta = np.stack([np.linalg.solve((rows.T * m) @ rows, rows.T @ (m * y)) for m in mass])
            squares = (mass * (y - theta @ rows.T) ** 2).sum(axis=1)
            shared = params.noise.shape[1] == 1
            variance = squares.sum(keepdims=True) / held.sum() if shared else squares / held
            noise = 0.5 * np.log(variance)[:, None]
        else:
            theta = mass @ rows / held[:, None]
            away = rows - theta[:, None]
            scatter = np.einsum("rn,rnp,rnq->rpq", mass, away, away)
            shared = case.family.covariance.shared
            matrices = scatter.sum(axis=0)[None] / held.sum() if shared else scatter / held[:, None, None]
            noise = case.family.covariance.from_matrices(matrices)
        params = Params((held / held.sum())[None], theta[None], noise[None])
    return params


def assert_close(found, expected, accuracy):
    scale = np.sqrt(np.diagonal(expected))
    np.testing.assert_allclose(found / scale / scale[:, None], expected / scale / scale[:, None], atol=accuracy)


@pytest.mark.parametrize("case", PLAIN, ids=repr)
def test_the_information_is_minus_the_second_derivative_of_the_log_likelihood(case):
    stack, params = case.stack(0, 120, WEIGHT), case.params()
    assert_close(case.family.information(stack, params)[0], numerical(case, stack, params), 1e-5)


@pytest.mark.parametrize("case", NOISY, ids=repr)
def test_where_a_site_has_settled_the_noise_is_profiled_out_as_second_derivatives_do(case):
    stack = case.stack(1, 120, WEIGHT)
    params = settled(case, stack)
    found = case.family.information(stack, params)[0]
    assert_close(found, numerical(case, stack, params), 1e-4)


@pytest.mark.parametrize("case", NOISY, ids=repr)
def test_who_does_not_know_the_noise_knows_less(case, monkeypatch):
    stack = case.stack(1, 120, WEIGHT)
    params = settled(case, stack, 50)
    profiled = case.family.information(stack, params)[0]
    monkeypatch.setattr(module, "MOST_NOISE", 0)  # as if it were too large to profile out: taken as known
    known = case.family.information(stack, params)[0]
    assert np.linalg.eigvalsh(known - profiled).min() > -1e-8 * np.abs(known).max()
    assert np.all(np.diagonal(known) >= np.diagonal(profiled) * (1 - 1e-12))


@pytest.mark.parametrize("case", FAMILIES, ids=repr)
def test_the_constant_of_the_log_weights_is_never_known(case):
    matrix = case.family.information(case.stack(2, 120), case.params())[0]
    constant = np.concatenate([np.ones(2), np.zeros(4)])
    np.testing.assert_allclose(matrix @ constant, 0.0, atol=1e-9 * np.abs(matrix).max())
    np.testing.assert_array_equal(matrix, matrix.T)


def test_a_site_where_its_likelihood_curves_the_wrong_way_answers_the_squares_of_its_scores():
    stack = REGRESSION.stack(3, 90)
    params = Params(np.array([[0.4, 0.6]]), np.array([[[-1.5, 1.0], [0.0, 0.1]]]))
    assert np.linalg.eigvalsh(numerical(REGRESSION, stack, params)).min() < -1.0
    posterior, _ = LinearRegression().row_scores(stack, params)
    residual = stack.target[0] - params.theta[0] @ stack.rows[0].T
    of_theta = (posterior[0] * residual)[..., None] * stack.rows[0]
    scores = np.concatenate([(posterior[0] - params.weights[0][:, None]).T, *of_theta], axis=1)
    np.testing.assert_allclose(LinearRegression().information(stack, params)[0], scores.T @ scores, atol=1e-8)


def test_a_component_without_rows_leaves_the_matrix_finite():
    for case in FAMILIES:
        params = case.params()._replace(weights=np.array([[1.0, 0.0]]))
        assert np.isfinite(case.family.information(case.stack(4, 40), params)).all(), case


def test_a_large_table_is_met_in_blocks():
    generator = np.random.default_rng(5)
    case = BY_NAME["gaussian-tied"]
    family, n, p = Gaussian(case.family.covariance), 40_000, 12
    stack = unpadded(Site("a", generator.normal(size=(n, p)), None, np.ones(n)))
    theta = generator.normal(size=(1, 3, p))
    noise = family.first_noise(stack, theta[:, None])[:, 0]
    seen = []
    total = type(stack).total

    def watched(self, features, function, numbers):
        return total(self, features, lambda block: seen.append(block.weight.shape[1]) or function(block), numbers)

    stack.total = watched.__get__(stack)
    matrix = family.information(stack, Params(np.full((1, 3), 1 / 3), theta, noise))
    assert max(seen) < n / 2
    assert matrix.shape == (1, 39, 39)
