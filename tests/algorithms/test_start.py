"""Starts: planted mixtures are found, labels agree across sites, and EM says what it has reached."""

import jax.numpy as jnp
import numpy as np
import pytest
from fedgrem.algorithms.plan import Plan
from fedgrem.algorithms.rounds import run
from fedgrem.algorithms.start import Prior, StartPlan, _thinned, em

from fedgrem.algorithms.fedgrem import FedGrEM
from fedgrem.data.federation import Federation
from fedgrem.engines import InProcess
from fedgrem.families.base import expect
from fedgrem.families.gaussian import Gaussian
from fedgrem.kernels.scores import parameter_errors
from fedgrem.types import Params
from tests.conformance.families import FAMILIES


@pytest.mark.parametrize("case", [c for c in FAMILIES if c.name != "log-normal"], ids=repr)
@pytest.mark.parametrize("alignment", ["assignment", "stepwise", "exhaustive"])
def test_planted_components_are_found_with_the_same_labels_at_every_site(case, alignment):
    start = StartPlan(n_components=2, n_init=4, short=10, long=20, alignment=alignment)
    algorithm = FedGrEM(case.family)
    data = case.federation(20, (150, 120, 180), drift=0.05)
    result = run(algorithm, InProcess(algorithm, data, start), Plan(start=start, max_rounds=30, tol=0.0))
    labels = np.linalg.norm(result.theta[0][:, None] - case.theta, axis=-1).argmin(axis=1)
    np.testing.assert_array_equal(np.sort(labels), [0, 1])
    truth = case.theta[labels]
    assert np.linalg.norm(result.theta - truth, axis=-1).max() < 0.3 * np.linalg.norm(case.theta[0] - case.theta[1])
    _, error = parameter_errors(result.weights, result.theta, np.full((3, 2), 0.5), np.stack([truth] * 3))
    np.testing.assert_allclose(error, np.linalg.norm(result.theta - truth, axis=-1).max(axis=1))


def test_restarts_that_look_at_some_rows_see_all_of_the_range_and_no_padding():
    data = FAMILIES[0].federation(0, (100,)).sites[0].as_data(104)
    some = _thinned(data, 25)
    np.testing.assert_array_equal(some.columns, data.columns[:, ::4])
    np.testing.assert_array_equal(some.rows, some.columns.T)
    assert some.row_weight.sum() == 25
    np.testing.assert_array_equal(_thinned(data, 200).columns, data.columns)


@pytest.mark.parametrize("iterations", [0, 3])
def test_em_reports_the_objective_of_the_parameters_it_returns(iterations):
    generator = np.random.default_rng(5)
    data = Federation.from_sites(["a"], [generator.normal(size=(30, 2))]).sites[0].as_data()
    family, start = Gaussian(), Params(jnp.array([0.4, 0.6]), jnp.array([[-1.0, 0.0], [1.0, 0.5]]))
    params, value = em(family, data, start, iterations)
    np.testing.assert_allclose(value, expect(family, data, params)[1], rtol=1e-12)
    assert np.array_equal(params.theta, start.theta) == (iterations == 0)
    prior = Prior(jnp.zeros((2, 2)), jnp.asarray(0.5))
    params, value = em(family, data, start, iterations, prior)
    distance = np.minimum(np.linalg.norm(params.theta, axis=1), 3.0 * 0.5 / np.sqrt(30))
    expected = expect(family, data, params)[1] - 0.5 * np.sqrt(30) * params.weights @ distance
    np.testing.assert_allclose(value, expected, rtol=1e-12)


def test_a_site_that_has_lost_a_component_takes_it_from_the_others():
    case = FAMILIES[0]
    data = case.federation(21, (100, 100, 100, 100), drift=0.0)
    lonely = case.draw(np.random.default_rng(0), np.repeat(case.theta[:1], 100, axis=0))[0]
    sites = (*data.sites[:3], type(data.sites[3])("site-3", lonely, None, np.ones(100)))
    data = type(data)(sites, data.columns)
    start = StartPlan(n_components=2, n_init=4, short=10, long=20)
    algorithm = FedGrEM(case.family)
    plan = Plan(start=start, max_rounds=100, tol=1e-6, start_penalty=2.0 * np.sqrt(2 + np.log(4)))
    result = run(algorithm, InProcess(algorithm, data, start), plan)
    label = np.linalg.norm(result.center - case.theta[0], axis=1).argmin()
    assert result.weights[3, label] > 0.9
    assert np.linalg.norm(result.theta[3, label] - case.theta[0]) < 0.5
