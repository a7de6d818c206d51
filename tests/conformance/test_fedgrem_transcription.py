"""FedGrEM against the loop-by-loop transcription beside this file, from the same start."""

from functools import cache

import jax.numpy as jnp
import numpy as np
import pytest

from fedgrem.algorithms.fedgrem import FedGrEM
from fedgrem.algorithms.plan import Plan
from fedgrem.algorithms.rounds import run
from fedgrem.algorithms.start import StartPlan
from fedgrem.engines import InProcess
from fedgrem.types import Params
from tests.conformance import numpy_fedgrem
from tests.conformance.families import FAMILIES

# The last site is more than ten times the median: its weight at the center is capped.
SIZES = {"gaussian": [9, 14, 11, 20, 150], "regression": [12, 17, 15, 25, 190]}
TRANSCRIBED = {"gaussian": numpy_fedgrem.GAUSSIAN, "regression": numpy_fedgrem.REGRESSION}
CASES = {case.name: case for case in FAMILIES}
OPTIONS = {
    "default": {},
    "weak-penalty": {"penalty": 0.3},
    "initial-weights": {"step_weights": "initial", "step_size": 0.4},
    "two-sweeps": {"center_solver": "alternating"},
    "five-sweeps": {"center_solver": "alternating", "center_sweeps": 5, "penalty": 0.3},
}


@cache
def expected(name, option, rounds):
    sites = [
        (site.rows, site.target if site.target is not None else np.zeros(len(site.rows))) for site in sites_of(name)
    ]
    return numpy_fedgrem.fedgrem(TRANSCRIBED[name], sites, *starts(name), rounds=rounds, **OPTIONS[option])


def federation(name):
    return CASES[name].federation(1, SIZES[name], drift=0.6)


def sites_of(name):
    return federation(name).sites


def starts(name):
    return CASES[name].near(2, len(SIZES[name]))


def fit(name, rounds, **options):
    start = StartPlan(n_components=2)
    algorithm = FedGrEM(CASES[name].family, **options)
    given = Params(*map(jnp.asarray, starts(name)))
    plan = Plan(start=start, max_rounds=rounds, tol=0.0, given=given, align=False)
    return run(algorithm, InProcess(algorithm, federation(name), start), plan)


@pytest.mark.parametrize("rounds", [1, 5, 30])
@pytest.mark.parametrize("option", OPTIONS)
def test_gaussian_fit_is_the_transcription(option, rounds):
    check("gaussian", option, rounds)


@pytest.mark.parametrize("rounds", [1, 5, 30])
@pytest.mark.parametrize("option", [o for o in OPTIONS if o != "initial-weights"])
def test_regression_fit_is_the_transcription_with_its_step_scale(option, rounds):
    check("regression", option, rounds)


def check(name, option, rounds):
    weights, theta, center, penalty, log_likelihood = expected(name, option, rounds)
    result = fit(name, rounds, **OPTIONS[option])
    assert result.n_rounds == rounds
    np.testing.assert_allclose(result.weights, weights, atol=1e-8)
    np.testing.assert_allclose(result.theta, theta, atol=1e-8)
    np.testing.assert_allclose(result.center, center, atol=1e-8)
    np.testing.assert_allclose(result.history["penalty"][-1], penalty, rtol=1e-12)
    np.testing.assert_allclose(result.history["log_likelihood"], log_likelihood, rtol=1e-9)


def test_the_regression_steps_of_this_data_are_scaled():
    # Otherwise the claim above about step scales would be empty.
    sites = [(site.rows, site.target) for site in sites_of("regression")]
    weights, theta = starts("regression")
    _, _, scales, _ = numpy_fedgrem.local_step(
        numpy_fedgrem.REGRESSION, *sites[0], weights[0], theta[0], step_size=0.95
    )
    assert scales.min() < 0.9


def test_the_largest_site_of_this_data_is_capped():
    for sizes in SIZES.values():
        assert max(sizes) > numpy_fedgrem.WEIGHT_CAP * np.median(sizes)
