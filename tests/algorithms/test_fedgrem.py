"""FedGrEM at the ends of its penalty, its weights at the center, and its robustness."""

from functools import partial

import jax.numpy as jnp
import numpy as np
import pytest
from fedgrem.algorithms.plan import Plan
from fedgrem.algorithms.rounds import run
from fedgrem.algorithms.search import find_starts
from fedgrem.algorithms.start import StartPlan
from fedgrem.kernels.precision import precision

from fedgrem.algorithms.base import WEIGHT_CAP, Algorithm, capped_rows
from fedgrem.algorithms.fedgrem import FAST_ROUNDS, LEAST_STEP_SCALE, FedGrEM
from fedgrem.data.federation import Federation, Site
from fedgrem.data.simulate import simulate
from fedgrem.engines import InProcess
from fedgrem.families import Gaussian, LinearRegression
from fedgrem.types import Central, Params, Upload
from tests.conformance.engines import compiled
from tests.conformance.families import FAMILIES

START = StartPlan(n_components=2)
SIZES = (12, 40, 23)


def fit(case, data, weights, theta, *, rounds=6, tol=0.0, **options):
    algorithm = FedGrEM(case.family, **options)
    given = Params(jnp.asarray(weights), jnp.asarray(theta))
    plan = Plan(start=START, max_rounds=rounds, tol=tol, given=given, align=False)
    return run(algorithm, InProcess(algorithm, data, START), plan)


def central(algorithm, theta, penalty=1.0, n_rows=None):
    n_sites, n_components, _ = theta.shape
    weights = jnp.full((n_sites, n_components), 1.0 / n_components)
    begun = algorithm.central_start(Params(weights, theta), jnp.ones(n_sites) if n_rows is None else n_rows)
    return begun._replace(center=theta[0], penalty=jnp.asarray(penalty))


def upload(theta, n_rows, scale=None):
    n_sites, n_components, _ = theta.shape
    weights = jnp.full((n_sites, n_components), 1.0 / n_components)
    scale = jnp.ones((n_sites, n_components)) if scale is None else scale
    return Upload(Params(weights, theta), scale, jnp.asarray(n_rows), jnp.zeros(n_sites))


def test_it_keeps_the_protocol():
    assert isinstance(FedGrEM(Gaussian()), Algorithm)


def test_penalty_recursion_is_decay_times_last_plus_c_root_q_plus_log_k():
    theta = jnp.asarray(np.random.default_rng(0).normal(size=(4, 2, 3)))
    algorithm = FedGrEM(Gaussian(), penalty=1.5, penalty_decay=0.25)
    after, _, _ = algorithm.central_step(central(algorithm, theta, penalty=8.0), upload(theta, [9.0] * 4))
    assert float(after.penalty) == pytest.approx(0.25 * 8.0 + 1.5 * np.sqrt(3 + np.log(4)), rel=1e-14)


def test_lambda_starts_at_one():
    params = Params(jnp.full((3, 2), 0.5), jnp.zeros((3, 2, 4)))
    assert float(FedGrEM(Gaussian()).central_start(params, jnp.ones(3)).penalty) == 1.0


@pytest.mark.parametrize("case", FAMILIES[:2], ids=repr)
def test_infinite_penalty_is_the_weighted_mean_of_the_moved_parameters(case):
    data, (weights, theta) = case.federation(1, SIZES), case.near(1, 3)
    result = fit(case, data, weights, theta, rounds=1, penalty=np.inf)
    algorithm = FedGrEM(case.family)
    moved, scale = [], []
    for k, site in enumerate(data.sites):
        own = jnp.asarray(weights[k]), jnp.asarray(theta[k])
        sent = algorithm.broadcast(Central(Params(*own), own[1], None, own[0], None))
        reply = compiled("local_step", START)(algorithm, site.as_data(), sent)
        moved.append(np.asarray(reply.params.theta))
        scale.append(np.asarray(reply.step_scale))
    mass = (np.array(SIZES)[:, None] / np.array(scale))[..., None]
    mean = (mass * np.array(moved)).sum(axis=0) / mass.sum(axis=0)
    np.testing.assert_allclose(result.center, mean, rtol=1e-12)
    np.testing.assert_array_equal(result.theta, np.broadcast_to(result.center, result.theta.shape))


def test_infinite_penalty_stays_finite_and_common_over_many_rounds():
    case = FAMILIES[0]
    result = fit(case, case.federation(2, SIZES), *case.near(2, 3), rounds=50, penalty=np.inf)
    assert np.all(np.isfinite(result.theta))
    np.testing.assert_array_equal(result.theta, np.broadcast_to(result.center, result.theta.shape))


@pytest.mark.parametrize("case", FAMILIES[:2], ids=repr)
def test_without_penalty_every_site_is_fitted_as_if_alone(case):
    data, (weights, theta) = case.federation(3, SIZES), case.near(3, 3)
    together = fit(case, data, weights, theta, penalty=0.0, penalty_start=0.0)
    for k, site in enumerate(data.sites):
        # Padded to the same size, so that one compiled program serves all three.
        rows = np.concatenate([site.rows, np.zeros((40 - len(site.rows), 2))])
        target = None if site.target is None else np.append(site.target, np.zeros(40 - len(site.rows)))
        padded = Site(site.name, rows, target, np.append(np.ones(len(site.rows)), np.zeros(40 - len(site.rows))))
        one = Federation((padded,), data.columns)
        alone = fit(case, one, weights[k : k + 1], theta[k : k + 1], penalty=0.0, penalty_start=0.0)
        np.testing.assert_allclose(together.theta[k], alone.theta[0], rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(together.weights[k], alone.weights[0], rtol=1e-10, atol=1e-12)


def test_zero_penalty_settles_where_the_sites_would_alone_though_lambda_starts_at_one():
    case = FAMILIES[0]
    data, (weights, theta) = case.federation(4, SIZES), case.near(4, 3)
    together = fit(case, data, weights, theta, rounds=200, penalty=0.0)
    alone = fit(case, data, weights, theta, rounds=200, penalty=0.0, penalty_start=0.0)
    np.testing.assert_allclose(together.theta, alone.theta, atol=1e-8)


def test_a_vanishing_penalty_leaves_no_nan_behind_however_many_rounds():
    # lambda = 0.1^t runs through the smallest numbers there are, at about round 308.
    case = FAMILIES[0]
    result = fit(case, case.federation(5, SIZES), *case.near(5, 3), rounds=400, penalty=0.0)
    for name, kept in result.history.items():
        assert np.all(np.isfinite(kept)), name
    assert np.all(np.isfinite(result.center))


def test_the_center_of_a_vanishing_penalty_does_not_jump():
    case = FAMILIES[0]
    result = fit(case, case.federation(5, SIZES), *case.near(5, 3), rounds=400, penalty=0.0)
    assert result.history["center_movement"][100:].max() < 1e-6


def test_threshold_falls_with_the_root_of_a_sites_rows_and_weight_grows_with_them():
    # Two sites either side, far apart: each moves by its own threshold lambda / sqrt(n).
    theta = jnp.array([[[-50.0]], [[50.0]], [[0.0]]])
    algorithm = FedGrEM(Gaussian(), penalty_decay=0.0, penalty=1.0)
    after, _, _ = algorithm.central_step(central(algorithm, theta), upload(theta, [4.0, 16.0, 9.0]))
    moved = np.abs(np.asarray(after.params.theta - theta)).ravel()
    np.testing.assert_allclose(moved[:2] * [2.0, 4.0], float(after.penalty), rtol=1e-12)


def test_a_site_that_reports_a_million_rows_weighs_ten_medians():
    np.testing.assert_allclose(
        capped_rows(jnp.array([100.0, 90.0, 110.0, 1e6])), [100.0, 90.0, 110.0, WEIGHT_CAP * 105.0]
    )


@pytest.mark.parametrize("claimed", [1e3, 1e6, 1e12])
def test_a_site_that_claims_many_rows_cannot_drag_the_center_away(claimed):
    honest = np.random.default_rng(6).normal(scale=0.05, size=(20, 1, 2))
    theta = jnp.asarray(np.concatenate([honest, np.full((1, 1, 2), 1e3)]))
    algorithm = FedGrEM(Gaussian())
    n_rows = jnp.asarray([100.0] * 20 + [claimed])
    after, _, _ = algorithm.central_step(central(algorithm, theta, n_rows=n_rows), upload(theta, n_rows))
    # Influence: capped weight times threshold, over the weight of the honest sites.
    force = WEIGHT_CAP * 100.0 * float(after.penalty) / np.sqrt(claimed) / (20 * 100.0)
    assert np.linalg.norm(after.center - honest.mean(axis=0)) <= force * (1 + 1e-6)


@pytest.mark.parametrize("scale", [1e-12, 0.0])
def test_a_tiny_reported_step_scale_is_taken_as_the_least_one(scale):
    theta = jnp.asarray(np.random.default_rng(7).normal(size=(5, 1, 2)))
    algorithm = FedGrEM(Gaussian())
    claimed, least = (jnp.ones((5, 1)).at[0, 0].set(s) for s in (scale, LEAST_STEP_SCALE))
    tiny, _, _ = algorithm.central_step(central(algorithm, theta), upload(theta, [9.0] * 5, claimed))
    floor, _, _ = algorithm.central_step(central(algorithm, theta), upload(theta, [9.0] * 5, least))
    np.testing.assert_array_equal(tiny.center, floor.center)


@pytest.mark.parametrize("factor", [1e-2, 1.0, 1e2])
def test_regression_rounds_settle_whatever_the_scale_of_the_covariates(factor):
    case = FAMILIES[1]
    data = case.federation(8, SIZES)
    scaled = Federation.from_sites(
        data.names, [factor * site.rows for site in data.sites], [site.target for site in data.sites]
    )
    weights, theta = case.near(8, 3)
    result = fit(case, scaled, weights, theta / factor, rounds=300, tol=1e-7)
    assert np.all(np.isfinite(result.theta))
    assert result.history["movement"][-1].max() < result.history["movement"][0].max()


def test_the_solver_certificate_is_in_the_history():
    case = FAMILIES[0]
    result = fit(case, case.federation(9, SIZES), *case.near(9, 3), rounds=5)
    assert result.history["solver_gap"].shape == (5,)
    assert np.all(result.history["solver_gap"] < 1e-8)
    assert np.all(result.history["solver_iterations"] >= 0)


HURRY = {"local_steps": 10, "memory": 5}


@pytest.fixture(scope="module", params=["gmm", "mor"])
def paper(request):
    """The paper's simulation with its hostile site, starts found once."""
    made = simulate(request.param, h=0.0, seed=2)
    targets = None if made.targets is None else list(made.targets.values())
    data = Federation.from_sites(list(made.rows), list(made.rows.values()), targets)
    family = Gaussian() if request.param == "gmm" else LinearRegression()
    start = StartPlan(n_components=5)
    plan = Plan(start=start, max_rounds=2000, tol=1e-10, seed=2, start_penalty=7.8)
    algorithm = FedGrEM(family)
    with precision("float64"):
        given = find_starts(InProcess(algorithm, data, start), plan, family).params
    return made, data, family, plan._replace(given=given, align=False)


def test_few_rounds_lead_to_the_fixed_point_of_many(paper):
    made, data, family, plan = paper
    results = [
        run(FedGrEM(family, **options), InProcess(FedGrEM(family, **options), data, plan.start), plan)
        for options in ({}, HURRY)
    ]
    plain, fast = results
    honest = made.honest
    np.testing.assert_allclose(fast.theta[honest], plain.theta[honest], atol=1e-6)
    np.testing.assert_allclose(fast.weights[honest], plain.weights[honest], atol=1e-6)
    np.testing.assert_array_equal(fast.distance[honest] == 0.0, plain.distance[honest] == 0.0)
    assert fast.n_rounds < plain.n_rounds / 2


def test_hurrying_sites_are_told_no_more_than_the_center_and_its_pull():
    case = FAMILIES[0]
    algorithm = FedGrEM(case.family, **HURRY)
    weights, theta = case.near(1, 3)
    held = algorithm.central_start(Params(jnp.asarray(weights), jnp.asarray(theta)), jnp.asarray([12.0, 40.0, 23.0]))
    sent = algorithm.broadcast(held)
    shapes = {name: np.shape(leaf) for name, leaf in sent.extra._asdict().items() if leaf is not None}
    assert shapes == {"center": theta.shape, "penalty": (3,), "steps": (3,)}


def test_what_has_not_settled_in_the_fast_rounds_goes_on_plainly():
    case = FAMILIES[0]
    data, (weights, theta) = case.federation(1, SIZES), case.near(1, 3)
    algorithm = FedGrEM(case.family, **HURRY)
    held = algorithm.central_start(Params(jnp.asarray(weights), jnp.asarray(theta)), jnp.asarray(SIZES, dtype=float))
    late = held._replace(extra=held.extra._replace(played=jnp.asarray(FAST_ROUNDS)))
    assert np.all(np.asarray(algorithm.broadcast(held).extra.steps) == 10)
    assert np.all(np.asarray(algorithm.broadcast(late).extra.steps) == 1)
    ask = partial(_ask_sites, algorithm, data)
    plainly = FedGrEM(case.family)
    expected, _, _ = plainly.central_step(held, _ask_sites(plainly, data, plainly.broadcast(held)))
    after, _, _ = algorithm.central_step(late, ask(algorithm.broadcast(late)))
    np.testing.assert_allclose(after.params.theta, expected.params.theta, rtol=1e-12)


def _ask_sites(algorithm, data, sent):
    engine = InProcess(algorithm, data, START)
    return engine.ask("local_step", sent)
