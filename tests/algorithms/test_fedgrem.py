"""FedGrEM at the ends of its penalty, its weights at the center, its robustness, and who takes part."""

from dataclasses import replace

import numpy as np
import pytest
from sklearn.base import clone

from fedgrem.algorithms.base import Pull
from fedgrem.algorithms.center_rules import CENTER_RULES, Alternating, Huber, Redescending
from fedgrem.algorithms.fedgrem import LONG_ROUNDS, FedGrEM
from fedgrem.algorithms.registry import ALGORITHMS, as_algorithm
from fedgrem.algorithms.state import LEAST_STEP_SCALE
from fedgrem.data.federation import Federation
from fedgrem.data.simulate import simulate
from fedgrem.engines.inprocess import InProcess
from fedgrem.errors import InputError, InputTypeError
from fedgrem.families.gaussian import Gaussian
from fedgrem.families.regression import LinearRegression
from fedgrem.fit.conversation import converse, with_agreement
from fedgrem.fit.fit import run
from fedgrem.fit.spec import FitSpec, StartPlan
from fedgrem.fit.starts import find_starts
from fedgrem.fit.units import common_units
from fedgrem.kernels.center import WEIGHT_CAP
from fedgrem.types import Params, Upload, map_arrays
from tests.conformance.engines import fit
from tests.conformance.families import BY_NAME, GAUSSIAN, POISSON, REGRESSION

SIZES = (12, 40, 23)
ONE_STEP = {"local_steps": 1, "memory": 0, "penalty_rows": "site", "pool_weights": False, "center": Huber()}
FAMILY = Gaussian()


def pull(n_sites, penalty=1.0, pulled=None, **more):
    here = np.ones(n_sites, dtype=bool) if pulled is None else pulled
    return Pull(np.asarray(penalty), np.asarray(penalty), here, **more)


def begun(algorithm, theta, n_rows=None, penalty=1.0, weights=None, **more):
    n_sites, n_components, _ = theta.shape
    weights = np.full((n_sites, n_components), 1.0 / n_components) if weights is None else weights
    n_rows = np.full(n_sites, 9.0) if n_rows is None else np.asarray(n_rows, dtype=float)
    return algorithm.begin(FAMILY, Params(weights, theta), n_rows, pull(n_sites, penalty, **more))


def upload(theta, scale=None, weights=None):
    n_sites, n_components, _ = theta.shape
    weights = np.full((n_sites, n_components), 1.0 / n_components) if weights is None else weights
    scale = np.ones((n_sites, n_components)) if scale is None else scale
    return Upload(Params(weights, theta), scale, np.ones(n_sites), np.zeros(n_sites))


def step(algorithm, central, theta, present=None, **more):
    here = np.ones(len(theta), dtype=bool) if present is None else present
    return algorithm.central_step(FAMILY, central, upload(theta, **more), here)


# -- the penalty


def test_lambda_starts_at_one_and_is_decay_times_last_plus_c_root_q_plus_log_k():
    theta = np.random.default_rng(0).normal(size=(4, 2, 3))
    algorithm = FedGrEM(penalty_decay=0.25)
    central = begun(algorithm, theta, penalty=1.5)
    assert float(central.extra.penalty) == 1.0
    grown = 1.5 * np.sqrt(3 + np.log(4))
    for expected in (0.25 + grown, 0.25 * (0.25 + grown) + grown):
        central, influence = step(algorithm, central, theta)
        assert float(influence.penalty) == float(central.extra.penalty) == pytest.approx(expected, rel=1e-14)


@pytest.mark.parametrize("case", [GAUSSIAN, REGRESSION, POISSON], ids=repr)
def test_infinite_penalty_is_the_weighted_mean_of_the_moved_parameters(case):
    data, (weights, theta) = case.federation(1, SIZES), case.near(1, 3)
    algorithm = FedGrEM(**ONE_STEP)
    result = fit(case, data, algorithm, (weights, theta), rounds=1, penalty=np.inf)
    moved, scale = [], []
    for k, (stack, _) in enumerate(Federation((site,), data.columns).stacked()[0] for site in data.sites):
        central = algorithm.begin(case.family, Params(weights[k : k + 1], theta[k : k + 1]), stack.n_rows, pull(1))
        reply = algorithm.local_step(case.family, stack, algorithm.broadcast(case.family, central), 0)
        moved.append(reply.params.theta[0])
        scale.append(reply.step_scale[0])
    mass = (np.array(SIZES)[:, None] / np.array(scale))[..., None]
    mean = (mass * np.array(moved)).sum(axis=0) / mass.sum(axis=0)
    np.testing.assert_allclose(result.center, mean, rtol=1e-12)
    np.testing.assert_array_equal(result.theta, np.broadcast_to(result.center, result.theta.shape))


@pytest.mark.parametrize("name", ["gaussian-identity", "gaussian-full", "regression-shared"])
def test_infinite_penalty_stays_finite_and_common_over_many_rounds(name):
    case = BY_NAME[name]
    result = fit(case, case.federation(2, SIZES), FedGrEM(), case.near(2, 3), rounds=50, penalty=np.inf)
    assert np.isfinite(result.theta).all()
    np.testing.assert_array_equal(result.theta, np.broadcast_to(result.center, result.theta.shape))
    np.testing.assert_array_equal(result.distance, 0.0)


@pytest.mark.parametrize("case", [GAUSSIAN, REGRESSION, BY_NAME["gaussian-tied"]], ids=repr)
def test_without_penalty_every_site_is_fitted_as_if_alone(case):
    data, (weights, theta) = case.federation(3, SIZES), case.near(3, 3)
    algorithm = FedGrEM(memory=0)  # a single site is its own center, which extrapolation would lead
    together = fit(case, data, algorithm, (weights, theta), penalty=0.0)
    for k, site in enumerate(data.sites):
        one = Federation((site,), data.columns)
        alone = fit(case, one, algorithm, (weights[k : k + 1], theta[k : k + 1]), penalty=0.0)
        np.testing.assert_allclose(together.theta[k], alone.theta[0], rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(together.weights[k], alone.weights[0], rtol=1e-10, atol=1e-12)
    np.testing.assert_array_equal(together.history["penalty"], 0.0)
    assert all(np.isfinite(kept).all() for kept in together.history.values())


def test_threshold_falls_with_the_root_of_a_sites_rows_and_is_told():
    # Two sites either side, far apart: each moves by its own threshold lambda / sqrt(n).
    theta = np.array([[[-50.0]], [[50.0]], [[0.0]]])
    algorithm = FedGrEM(penalty_decay=0.0, **ONE_STEP)
    after, influence = step(algorithm, begun(algorithm, theta, [4.0, 16.0, 9.0]), theta)
    moved = np.abs(after.params.theta - theta).ravel()
    np.testing.assert_allclose(moved[:2] * [2.0, 4.0], float(influence.penalty), rtol=1e-12)
    np.testing.assert_allclose(influence.threshold.ravel() * algorithm.step_size, influence.penalty / [2.0, 4.0, 3.0])


def test_rare_components_are_pulled_as_if_their_rows_were_all_there_is():
    theta = np.random.default_rng(0).normal(size=(5, 2, 3))
    weights = np.tile([0.1, 0.9], (5, 1))
    algorithm = FedGrEM(center=Huber(), memory=0, penalty_rows="component")
    central = begun(algorithm, theta, np.full(5, 100.0), penalty=0.5, weights=weights)
    after, _ = step(algorithm, central, theta, weights=weights)
    plain = FedGrEM(**ONE_STEP)
    for r, held in enumerate((20.0, 180.0)):  # twice the share of the rows: the same as one component of so many
        one = theta[:, r : r + 1]
        expected, _ = step(plain, begun(plain, one, np.full(5, held), penalty=0.5), one)
        np.testing.assert_allclose(after.params.theta[:, r], expected.params.theta[:, 0], atol=1e-9)


# -- robustness


@pytest.mark.parametrize("rule", [Huber(), Redescending()])
@pytest.mark.parametrize("claimed", [1e3, 1e6, 1e12])
def test_a_site_that_claims_many_rows_cannot_drag_the_center_away(claimed, rule):
    honest = np.random.default_rng(6).normal(scale=0.05, size=(20, 1, 2))
    theta = np.concatenate([honest, np.full((1, 1, 2), 1e3)])
    algorithm = FedGrEM(**ONE_STEP | {"center": rule})
    central = begun(algorithm, theta, [100.0] * 20 + [claimed])
    after, influence = step(algorithm, central, theta)
    # Influence: capped weight times threshold, over the weight of the honest sites.
    force = WEIGHT_CAP * 100.0 * float(influence.penalty) / np.sqrt(claimed) / (20 * 100.0)
    limit = force if rule == Huber() else 0.0
    assert np.linalg.norm(after.center - honest.mean(axis=0)) <= limit * (1 + 1e-6) + 1e-9


def test_far_sites_do_not_move_the_center_however_large_the_penalty():
    generator = np.random.default_rng(0)
    theta = np.concatenate([generator.normal(size=(9, 1, 2)), 60.0 + np.zeros((1, 1, 2))])
    for penalty in (2.0, 50.0):
        algorithm = FedGrEM(memory=0)
        central = begun(algorithm, theta, penalty=penalty)
        with_all, influence = step(algorithm, central, theta)
        honest = begun(algorithm, theta[:9], penalty=penalty)._replace(center=central.center)
        without, _ = step(algorithm, honest, theta[:9])
        # lambda knows the number of sites, hence not equal to the last digit where it matters who is at the center
        np.testing.assert_allclose(with_all.center, without.center, atol=0.05)
        assert influence.weight[-1, 0] == 0.0


@pytest.mark.parametrize("scale", [1e-12, 0.0, -3.0])
def test_a_tiny_reported_step_scale_is_taken_as_the_least_one(scale):
    theta = np.random.default_rng(7).normal(size=(5, 1, 2))
    algorithm = FedGrEM()
    centers = []
    for claimed in (scale, LEAST_STEP_SCALE):
        told = np.ones((5, 1))
        told[0] = claimed
        centers.append(step(algorithm, begun(algorithm, theta), theta, scale=told)[0].center)
    np.testing.assert_array_equal(*centers)


@pytest.mark.parametrize("rule", CENTER_RULES)
def test_a_site_that_keeps_its_own_fit_is_neither_pulled_nor_heard(rule):
    theta = np.random.default_rng(8).normal(size=(6, 1, 2))
    odd = theta.copy()
    odd[2] += 3.0
    pulled = np.arange(6) != 2
    algorithm = FedGrEM(center=rule, memory=0)
    found = []
    for told in (theta, odd):
        central = begun(algorithm, theta, pulled=pulled)
        after, influence = step(algorithm, central, told)
        np.testing.assert_allclose(after.params.theta[2], told[2], atol=1e-12)
        assert influence.weight[2, 0] == influence.threshold[2, 0] == 0.0
        found.append(after.center)
    if rule == "huber":
        np.testing.assert_allclose(*found, atol=1e-12)


@pytest.mark.parametrize("factor", [1e-2, 1.0, 1e2])
def test_regression_rounds_settle_whatever_the_scale_of_the_covariates(factor):
    data, (weights, theta) = REGRESSION.federation(8, SIZES), REGRESSION.near(8, 3)
    scaled = Federation.from_sites(data.names, [factor * s.rows for s in data.sites], [s.target for s in data.sites])
    result = fit(REGRESSION, scaled, FedGrEM(), (weights, theta / factor), rounds=200, tol=1e-7)
    assert np.isfinite(result.theta).all()
    assert result.history["movement"][-1].max() < result.history["movement"][0].max()


def test_the_solver_certificate_is_in_the_history():
    result = fit(GAUSSIAN, GAUSSIAN.federation(9, SIZES), FedGrEM(), GAUSSIAN.near(9, 3), rounds=5)
    assert result.history["solver_gap"].shape == (5,)
    assert np.all(result.history["solver_gap"] < 1e-8)


# -- few rounds


@pytest.fixture(scope="module", params=["gmm", "mor"])
def paper(request):
    """The paper's simulation with its hostile site, starts found once."""
    made = simulate(request.param, h=0.0, seed=2)
    targets = None if made.targets is None else list(made.targets.values())
    data = Federation.from_sites(list(made.rows), list(made.rows.values()), targets)
    family = Gaussian() if request.param == "gmm" else LinearRegression()
    spec = FitSpec(family, FedGrEM(), 5, 2.0, fallback=False, seed=2, look=False, standard_errors=False, tol=1e-9,
                   max_rounds=1500)  # fmt: skip
    engine = InProcess(data, spec)
    (agreed, _), _ = converse(common_units(spec, data.names), engine)
    starts, _ = converse(with_agreement(find_starts(spec, data.names), agreed), engine)
    return made, data, replace(spec, given=starts.params, start=StartPlan(alignment="none"))


def test_few_rounds_lead_to_the_fixed_point_of_many(paper):
    made, data, spec = paper
    plain, fast = (
        run(replace(spec, algorithm=algorithm), InProcess(data, spec))
        for algorithm in (FedGrEM(center=Huber(), local_steps=1, memory=0), FedGrEM(center=Huber()))
    )
    honest = made.honest
    np.testing.assert_allclose(fast.theta[honest], plain.theta[honest], atol=1e-5)
    np.testing.assert_allclose(fast.weights[honest], plain.weights[honest], atol=1e-5)
    np.testing.assert_array_equal(fast.distance[honest] == 0.0, plain.distance[honest] == 0.0)
    assert fast.n_rounds < plain.n_rounds / 2


def test_hurrying_sites_are_told_no_more_than_the_center_and_its_pull():
    algorithm = FedGrEM(pool_weights=False)
    theta = np.zeros((3, 2, 2))
    sent = algorithm.broadcast(FAMILY, begun(algorithm, theta))
    shapes = {name: np.shape(leaf) for name, leaf in sent.extra._asdict().items() if leaf is not None}
    assert shapes == {"center": (3, 2, 2), "penalty": (3,), "steps": (3,), "round": (3,)}


def test_what_has_not_settled_in_the_fast_rounds_goes_on_plainly():
    data, (weights, theta) = GAUSSIAN.federation(1, SIZES), GAUSSIAN.near(1, 3)
    fast, plain = FedGrEM(pool_weights=False), FedGrEM(local_steps=1, memory=0, pool_weights=False)
    central = begun(fast, theta, SIZES, weights=weights)
    late = central._replace(extra=central.extra._replace(played=np.asarray(LONG_ROUNDS)))
    assert fast.broadcast(FAMILY, central).extra.steps.tolist() == [10] * 3
    assert fast.broadcast(FAMILY, late).extra.steps.tolist() == [1] * 3
    after = []
    for algorithm, held in ((fast, late), (plain, begun(plain, theta, SIZES, weights=weights))):
        replies = [
            algorithm.local_step(FAMILY, stack, _part(algorithm.broadcast(FAMILY, held), places), 0)
            for stack, places in data.stacked()
        ]
        order = np.argsort(np.concatenate([places for _, places in data.stacked()]))
        moved, shares, scale = (
            np.concatenate(leaves)[order]
            for leaves in zip(*((r.params.theta, r.params.weights, r.step_scale) for r in replies), strict=True)
        )
        after.append(step(algorithm, held, moved, scale=scale, weights=shares)[0])
    np.testing.assert_allclose(after[0].params.theta, after[1].params.theta, rtol=1e-12)


def _part(sent, places):
    return map_arrays(lambda leaf: leaf[places], sent)


# -- who takes part


def test_absent_sites_have_no_say_and_keep_their_parameters_or_their_place_on_the_center():
    generator = np.random.default_rng(3)
    theta = generator.normal(size=(5, 1, 2))
    algorithm = FedGrEM(memory=0)
    central = begun(algorithm, theta)
    central = central._replace(params=central.params._replace(theta=np.where(
        np.arange(5)[:, None, None] == 1, central.center, central.params.theta)))  # fmt: skip
    present = np.array([True, False, True, False, True])
    told = theta.copy()
    told[~present] = np.nan
    after, influence = step(algorithm, central, told, present)
    assert np.isfinite(after.center).all()
    np.testing.assert_array_equal(after.params.theta[3], central.params.theta[3])
    np.testing.assert_array_equal(after.params.theta[1], after.center)  # it sat there, and stays there
    np.testing.assert_array_equal(influence.weight[~present], 0.0)
    other = theta.copy()
    other[~present] = 1e9
    np.testing.assert_array_equal(step(algorithm, central, other, present)[0].center, after.center)


@pytest.mark.parametrize("rule", CENTER_RULES)
def test_the_center_with_absent_sites_is_that_of_those_present(rule):
    generator = np.random.default_rng(4)
    theta = generator.normal(size=(6, 2, 2))
    present = np.arange(6) < 4
    algorithm = FedGrEM(center=rule, memory=0, penalty_decay=0.0)
    central = begun(algorithm, theta, penalty=1.0)
    told = np.where(present[:, None, None], theta, np.nan)
    after, _ = step(algorithm, central, told, present)
    # lambda knows the number of sites: that of four is made to be that of six.
    few = begun(algorithm, theta[:4], penalty=np.sqrt((2 + np.log(6)) / (2 + np.log(4))))
    expected, _ = step(algorithm, few._replace(center=central.center), theta[:4])
    np.testing.assert_allclose(after.center, expected.center, atol=1e-9)


def test_sampled_sites_are_drawn_by_name_anew_each_round_and_everyone_plays_the_first():
    algorithm, names = FedGrEM(sites=0.5), tuple("abcdefgh")
    assert algorithm.invited(0, 0, names).all()
    drawn = np.array([algorithm.invited(0, number, names) for number in range(1, 60)])
    assert set(drawn.sum(axis=1)) == {4}
    assert np.all(drawn.mean(axis=0) > 0.3)
    turned = np.array([algorithm.invited(0, number, names[::-1]) for number in range(1, 60)])
    np.testing.assert_array_equal(turned[:, ::-1], drawn)
    assert not np.array_equal(drawn[0], algorithm.invited(1, 1, names))
    assert FedGrEM(sites=0.01).invited(0, 1, names).sum() == 2
    assert FedGrEM().invited(0, 5, names).all()


@pytest.fixture(scope="module")
def alike():
    data, start = GAUSSIAN.federation(21, (100, 90, 110, 95, 105, 100), drift=0.1), GAUSSIAN.near(21, 6)
    return data, start, fit(GAUSSIAN, data, FedGrEM(), start, rounds=60, tol=1e-6)


@pytest.mark.parametrize("options", [{"batch": 0.5}, {"sites": 0.5}, {"batch": 0.5, "sites": 0.5}], ids=str)
def test_mini_batches_and_sampled_sites_lead_close_to_the_full_fit_and_repeat_exactly(alike, options):
    data, start, full = alike
    one, again, other = (
        fit(GAUSSIAN, data, FedGrEM(local_steps=3, **options), start, rounds=12, seed=seed) for seed in (0, 0, 1)
    )
    np.testing.assert_array_equal(one.theta, again.theta)
    np.testing.assert_array_equal(one.weights, again.weights)
    assert not np.array_equal(one.center, other.center)
    # A mean of 300 rows has a standard error of 0.06, and a weight of 100 rows one of 0.05.
    np.testing.assert_allclose(one.center, full.center, atol=0.02)
    np.testing.assert_allclose(one.weights, full.weights, atol=0.02)


def test_a_batch_of_all_rows_is_the_full_fit():
    data, start = GAUSSIAN.federation(22, SIZES), GAUSSIAN.near(22, 3)
    np.testing.assert_array_equal(
        fit(GAUSSIAN, data, FedGrEM(batch=1.0, sites=1.0), start).theta, fit(GAUSSIAN, data, FedGrEM(), start).theta
    )


# -- as an object


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_is_a_value_that_scikit_learn_can_clone(name):
    algorithm = ALGORITHMS[name]()
    assert set(algorithm.get_params()) == {f for f in algorithm.__dataclass_fields__ if f not in ("name", "traits")}
    assert clone(algorithm) == algorithm == as_algorithm(name)
    assert hash(algorithm) == hash(ALGORITHMS[name]())
    assert as_algorithm(algorithm) is algorithm


def test_the_paper_is_a_setting_that_can_be_changed():
    algorithm = FedGrEM.paper(step_size=0.4)
    assert (algorithm.step_size, algorithm.center, algorithm.local_steps) == (0.4, Alternating(2), 1)
    assert (algorithm.step_weights, algorithm.memory, algorithm.pool_weights) == ("initial", 0, False)


def test_what_is_no_algorithm_is_refused():
    with pytest.raises(InputError, match=r"algorithm must be one of 'fedgrem', .*; got 'fedavg'"):
        as_algorithm("fedavg")
    with pytest.raises(InputTypeError, match=r"algorithm must be a name or an object .* got 3 of type int"):
        as_algorithm(3)


def test_a_site_that_is_fitted_alone_has_no_say_in_an_alternating_sweep():
    theta, ones = np.array([0.0, 2.0, 100.0])[:, None, None], np.ones((3, 1))
    threshold = np.array([[5.0], [5.0], [0.0]])
    found = Alternating(2)(theta, ones, threshold, ones, theta[0], np.ones(3, dtype=bool))
    assert found.center.tolist() == [[1.0]]
    assert found.shrunk.ravel().tolist() == [1.0, 1.0, 100.0]
    together = Alternating(2)(theta, ones, 0.0 * threshold, ones, theta[0], np.ones(3, dtype=bool))
    np.testing.assert_allclose(together.center, 34.0)
