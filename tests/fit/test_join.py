"""One more site against a frozen center: it ends where the rounds of the fit would have left it."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from fedgrem.algorithms.fedgrem import FedGrEM
from fedgrem.algorithms.frozen import FrozenCenter
from fedgrem.data.federation import Federation, Site
from fedgrem.engines.inprocess import InProcess
from fedgrem.fit.conversation import Agreed, converse
from fedgrem.fit.fit import run
from fedgrem.fit.join import as_one_site, join
from fedgrem.fit.spec import FitSpec, StartPlan
from fedgrem.kernels.log_ratio import shrink_weights
from fedgrem.types import Params
from tests.conformance.families import BY_NAME, unpadded

STEPS = FedGrEM(center="huber", pool_weights=False)
NAMES = ("gaussian-identity", "gaussian-diag", "regression-unit", "regression-component", "poisson")
CASES = [BY_NAME[name] for name in NAMES]


def sites(case):
    """Four sites about one center, and one far from it."""
    data = case.federation(0, (80, 120, 100, 90), drift=0.1)
    rows, target = case.rows(2, 110, case.theta + np.eye(2))
    return Federation((*data.sites, Site("far", rows, target, np.ones(110))), data.columns)


@cache
def whole_fit(case):
    data = sites(case)
    given = Params(np.full((5, 2), 0.5), np.tile(case.theta, (5, 1, 1)))
    spec = FitSpec(
        case.family, STEPS, 2, penalty=1.0, fallback=False, look=False, standard_errors=False, tol=1e-7,
        start=StartPlan(n_init=4), given=given,
    )  # fmt: skip
    return data, spec, run(spec, InProcess(data, spec))


def joined(spec, site, columns, center, penalty, noise_penalty, weights_penalty=0.0):
    """One site against a center, as the rounds of a fit would have it."""
    frozen = FrozenCenter(STEPS, center, penalty, noise_penalty, weights_penalty)
    one = as_one_site(spec, frozen, spec.tol)
    with np.errstate(all="ignore"):
        phase = join(one, site.name, center, Agreed(None, False))
        found, cost = converse(phase, InProcess(Federation((site,), columns), one))
    return found, cost


def center_of(result):
    weights = np.median(result.weights, axis=0)
    return Params(weights / weights.sum(), result.center, result.center_noise)


def of_noise(penalty, result):
    """lambda of the noise."""
    return 0.0 if result.noise is None else penalty * np.sqrt(result.noise.shape[-1] + np.log(5))


@pytest.mark.parametrize("case", CASES, ids=repr)
def test_a_site_of_the_fit_gets_its_own_parameters_back(case):
    data, spec, fit = whole_fit(case)
    assert fit.converged
    assert (fit.distance > 0).any()
    assert (fit.distance == 0).any()
    penalty = float(fit.history["penalty"][-1])
    for k, site in enumerate(data.sites):
        found, _ = joined(spec, site, data.columns, center_of(fit), penalty, of_noise(1.0, fit))
        np.testing.assert_allclose(found.theta[0], fit.theta[k], atol=1e-4, err_msg=site.name)
        np.testing.assert_allclose(found.weights[0], fit.weights[k], atol=1e-4)
        np.testing.assert_allclose(found.distance[0], fit.distance[k], atol=1e-4)
        np.testing.assert_array_equal(found.distance[0] == 0, fit.distance[k] == 0)
        np.testing.assert_allclose(found.influence.threshold[0], fit.influence.threshold[k], rtol=1e-3)
        if fit.noise is not None:
            np.testing.assert_allclose(found.noise[0], fit.noise[k], atol=1e-4)


@pytest.mark.parametrize("weights_penalty", [0.5, 8.0, np.inf])
def test_weights_are_pulled_as_in_the_rounds(weights_penalty):
    case = CASES[0]
    data, spec, fit = whole_fit(case)
    center, site = center_of(fit), data.sites[0]
    own, _ = joined(spec, site, data.columns, center, np.inf, np.inf)
    found, _ = joined(spec, site, data.columns, center, np.inf, np.inf, weights_penalty)
    if weights_penalty > 1.0:
        np.testing.assert_allclose(found.weights[0], center.weights, rtol=1e-12)
        return
    # The fixed point: what the rows have under these weights, shrunk, is these weights.
    posterior, _ = case.family.row_scores(unpadded(site), Params(found.weights, found.theta, found.noise))
    told, n_rows = posterior[0].mean(axis=1)[None], np.array([[float(len(site.rows))]])
    again = shrink_weights(told, center.weights, np.array([[weights_penalty]]), n_rows)
    np.testing.assert_allclose(found.weights, again, atol=1e-5)
    assert abs(found.weights[0] - center.weights).max() < abs(own.weights[0] - center.weights).max()


@pytest.mark.parametrize("case", CASES, ids=repr)
def test_an_infinite_penalty_puts_it_on_the_center(case):
    data, spec, fit = whole_fit(case)
    center = center_of(fit)
    found, _ = joined(spec, data.sites[-1], data.columns, center, np.inf, np.inf)
    np.testing.assert_array_equal(found.theta[0], center.theta)
    np.testing.assert_array_equal(found.distance, 0.0)
    if center.noise is not None:
        np.testing.assert_allclose(found.noise[0], center.noise, atol=1e-12)
    # Its weights are still its own: those that its rows have under the center.
    posterior, _ = case.family.row_scores(unpadded(data.sites[-1]), Params(found.weights, found.theta, found.noise))
    np.testing.assert_allclose(found.weights[0], posterior[0].mean(axis=1), atol=1e-5)


@pytest.mark.parametrize("case", CASES, ids=repr)
def test_without_a_penalty_it_has_its_own_fit(case):
    data, spec, fit = whole_fit(case)
    site = data.sites[-1]
    found, _ = joined(spec, site, data.columns, center_of(fit), 0.0, 0.0)
    alone_spec = replace(spec, penalty=0.0, given=None, start=replace(spec.start, joint_starts=0))
    alone = run(alone_spec, InProcess(Federation((site,), data.columns), alone_spec))
    order = np.argsort(alone.theta[0, :, 0])
    back = np.argsort(np.argsort(found.theta[0, :, 0]))
    np.testing.assert_allclose(found.theta[0], alone.theta[0][order][back], atol=1e-4)
    np.testing.assert_allclose(found.weights[0], alone.weights[0][order][back], atol=1e-4)
    # Its components have the labels of the center.
    far = np.linalg.norm(found.theta[0][:, None] - fit.center, axis=-1)
    assert far.argmin(axis=1).tolist() == [0, 1]


def test_the_center_does_not_move_whatever_joins():
    case = CASES[1]
    data, spec, fit = whole_fit(case)
    center = center_of(fit)
    kept = [leaf.copy() for leaf in center]
    for penalty in (0.0, 1.0, np.inf):
        found, _ = joined(spec, data.sites[-1], data.columns, center, penalty, penalty)
        np.testing.assert_array_equal(found.center, center.theta)
        for leaf, before in zip(center, kept, strict=True):
            np.testing.assert_array_equal(leaf, before)


def test_a_larger_penalty_keeps_it_closer():
    case = CASES[0]
    data, spec, fit = whole_fit(case)
    far = [
        joined(spec, data.sites[-1], data.columns, center_of(fit), penalty, 0.0)[0].distance.max()
        for penalty in (0.0, 1.0, 3.0, 30.0)
    ]
    assert far[0] > far[1] > far[2] > far[3] == 0.0


def test_it_is_looked_at_from_the_center_and_costs_as_many_messages_as_said():
    case = CASES[0]
    data, spec, fit = whole_fit(case)
    found, cost = joined(spec, data.sites[-1], data.columns, center_of(fit), 1.0, 0.0)
    assert found.site_names == ("far",)
    assert found.unsettled == ()
    assert found.look["log_likelihood"][0] > found.look["at_center"][0]
    assert {name: cost.exchanges[name] for name in ("start", "score", "look")} == {"start": 1, "score": 2, "look": 1}
