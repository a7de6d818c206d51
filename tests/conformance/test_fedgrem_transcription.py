"""FedGrEM against the loop-by-loop transcription beside this file, from the same start."""

from functools import cache

import numpy as np
import pytest

from fedgrem.algorithms.center_rules import Alternating, Huber
from fedgrem.algorithms.fedgrem import FedGrEM
from tests.conformance import numpy_fedgrem
from tests.conformance.engines import fit
from tests.conformance.families import GAUSSIAN, REGRESSION

# The last site is more than ten times the median: its weight at the center is capped.
SIZES = {GAUSSIAN: [9, 14, 11, 20, 150], REGRESSION: [12, 17, 15, 25, 190]}
TRANSCRIBED = {GAUSSIAN: numpy_fedgrem.GAUSSIAN, REGRESSION: numpy_fedgrem.REGRESSION}
PLAIN = {"local_steps": 1, "memory": 0, "penalty_rows": "site", "pool_weights": False}
"""One step a round, no extrapolation, all rows of a site, and every site its own weights: as the paper has it."""
OPTIONS = {
    "exact center": (FedGrEM(center=Huber(), **PLAIN), {}),
    "weak penalty": (FedGrEM(center=Huber(), **PLAIN), {"penalty": 0.3}),
    "two sweeps": (FedGrEM(center=Alternating(2), **PLAIN), {"center_solver": "alternating"}),
    "five sweeps": (
        FedGrEM(center=Alternating(5), **PLAIN),
        {"center_solver": "alternating", "center_sweeps": 5, "penalty": 0.3},
    ),
}
PAPER = {"step_weights": "initial", "center_solver": "alternating"}


@cache
def example(case, seed=1, rare=None):
    """Sites, and a start in which, if ``rare`` is given, one component of every site has this weight."""
    data, (weights, theta) = case.federation(seed, SIZES[case], drift=0.6), case.near(seed + 1, 5)
    if rare is not None:
        first = np.random.default_rng(seed).integers(2, size=5)
        weights = np.where(np.arange(2) == first[:, None], rare, 1.0 - rare)
    return data, (weights, theta)


def plain_rows(data):
    return [(site.rows, np.zeros(len(site.rows)) if site.target is None else site.target) for site in data.sites]


def check(case, algorithm, options, rounds, seed=1, rare=None, accuracy=1e-10):
    data, start = example(case, seed, rare)
    weights, theta, center, penalty, log_likelihood = numpy_fedgrem.fedgrem(
        TRANSCRIBED[case], plain_rows(data), *start, rounds=rounds, **options
    )
    result = fit(case, data, algorithm, start, rounds=rounds, penalty=options.get("penalty", 2.0))
    assert result.n_rounds == rounds
    np.testing.assert_allclose(result.weights, weights, rtol=accuracy, atol=accuracy)
    np.testing.assert_allclose(result.theta, theta, rtol=accuracy, atol=accuracy)
    np.testing.assert_allclose(result.center, center, rtol=accuracy, atol=accuracy)
    np.testing.assert_allclose(result.history["penalty"][-1], penalty, rtol=1e-12)
    np.testing.assert_allclose(result.history["log_likelihood"], log_likelihood, rtol=1e-9)


@pytest.mark.parametrize("rare", [None, 0.001])
@pytest.mark.parametrize("seed", range(1, 6))
def test_the_papers_gaussians_are_algorithm_1_to_the_letter(seed, rare):
    check(GAUSSIAN, FedGrEM.paper(), PAPER, 8, seed, rare)


@pytest.mark.parametrize("rare", [None, 0.001])
@pytest.mark.parametrize("seed", range(1, 6))
def test_the_papers_regressions_are_algorithm_1_to_the_letter(seed, rare):
    check(REGRESSION, FedGrEM.paper(step_size=0.4), PAPER | {"step_size": 0.4}, 4, seed, rare)


def test_the_paper_for_many_rounds():
    check(GAUSSIAN, FedGrEM.paper(), PAPER, 40)


@pytest.mark.parametrize("case", [GAUSSIAN, REGRESSION], ids=repr)
@pytest.mark.parametrize("option", OPTIONS)
def test_every_center_and_step_scale_is_the_transcription(case, option):
    algorithm, options = OPTIONS[option]
    check(case, algorithm, options, 5, accuracy=1e-8)


def test_the_regression_steps_of_this_data_are_scaled():
    # Otherwise the claim above about step scales would be empty.
    data, (weights, theta) = example(REGRESSION)
    _, _, scales, _ = numpy_fedgrem.local_step(
        numpy_fedgrem.REGRESSION, *plain_rows(data)[0], weights[0], theta[0], step_size=0.95
    )
    assert scales.min() < 0.9


def test_the_largest_site_of_this_data_is_capped():
    for sizes in SIZES.values():
        assert max(sizes) > numpy_fedgrem.WEIGHT_CAP * np.median(sizes)


def test_an_infinite_number_of_sweeps_is_the_exact_center():
    data, start = example(GAUSSIAN)
    exact, swept = (
        fit(GAUSSIAN, data, FedGrEM(center=rule, **PLAIN), start, rounds=5) for rule in (Huber(), Alternating(500))
    )
    np.testing.assert_allclose(swept.theta, exact.theta, atol=1e-8)
