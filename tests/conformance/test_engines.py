"""Every engine gives the in-process answer; order, labels, padding and buckets do not change a fit; rows stay home."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedgrem.algorithms.fedgrem import FedGrEM
from fedgrem.algorithms.plan import Plan
from fedgrem.algorithms.rounds import run
from fedgrem.algorithms.start import StartPlan
from fedgrem.data import federation as federation_module
from fedgrem.data.federation import Federation
from fedgrem.engines import InProcess
from fedgrem.types import Broadcast, Params, SiteData
from tests.conformance.engines import FakeWire, SiteBySite
from tests.conformance.families import FAMILIES, WITH_NOISE

SIZES = (30, 45, 30)
NAMES = ("north", "east", "south")
START = StartPlan(n_components=2, n_init=3, short=5, long=10)


@cache
def three_sites(case):
    return case.federation(11, SIZES, NAMES)


@cache
def in_process(case, rounds=5):
    algorithm = FedGrEM(case.family)
    plan = Plan(start=START, max_rounds=rounds, tol=0.0, score=case is FAMILIES[0])
    return run(algorithm, InProcess(algorithm, three_sites(case), START), plan)


def assert_same_fit(actual, expected, *, rtol=1e-10, atol=1e-10):
    assert actual.site_names == expected.site_names
    assert actual.n_rounds == expected.n_rounds
    for field in ("weights", "theta", "center", "n_rows", "spread", "center_spread", "distance"):
        if getattr(expected, field) is None:
            assert getattr(actual, field) is None
            continue
        np.testing.assert_allclose(
            getattr(actual, field), getattr(expected, field), rtol=rtol, atol=atol, err_msg=field
        )


NOISY = {case.name: case for case in WITH_NOISE}
PAIRS = [
    *((case, FakeWire) for case in FAMILIES[:2]),
    # To a wire, one density of the user's own is like another.
    *(pytest.param(case, FakeWire, marks=[pytest.mark.slow] * (case.name != "bernoulli")) for case in FAMILIES[2:]),
    (FAMILIES[0], SiteBySite),  # a wire that changes nothing in between
    *(pytest.param(case, SiteBySite, marks=pytest.mark.slow) for case in FAMILIES[1:]),
    *((NOISY[name], FakeWire) for name in ("gaussian-tied", "regression-shared")),
    *(pytest.param(case, SiteBySite, marks=pytest.mark.slow) for case in WITH_NOISE),
]


@pytest.mark.parametrize(("case", "engine"), PAIRS)
def test_every_engine_gives_the_in_process_answer(case, engine):
    algorithm = FedGrEM(case.family)
    plan = Plan(start=START, max_rounds=5, tol=0.0, score=case is FAMILIES[0])
    actual = run(algorithm, engine(algorithm, three_sites(case), START), plan)
    expected = in_process(case)
    assert np.all(np.isfinite(expected.theta))
    assert_same_fit(actual, expected)
    np.testing.assert_array_equal(actual.start_choice, expected.start_choice)
    assert actual.cost == expected.cost
    if plan.score:
        said = (actual.log_likelihood, actual.entropy)
        np.testing.assert_allclose(said, (expected.log_likelihood, expected.entropy), rtol=1e-8, atol=1e-8)
    for name, kept in expected.history.items():
        np.testing.assert_allclose(actual.history[name], kept, rtol=1e-8, atol=1e-8, err_msg=name)


@pytest.mark.parametrize("case", FAMILIES[:3], ids=repr)
def test_the_order_of_the_sites_does_not_change_the_fit(case):
    data, algorithm = three_sites(case), FedGrEM(case.family)
    order = [2, 0, 1]
    moved = Federation(tuple(data.sites[k] for k in order), data.columns)
    actual = run(algorithm, InProcess(algorithm, moved, START), Plan(start=START, max_rounds=5, tol=0.0))
    expected = in_process(case)
    assert actual.site_names == tuple(NAMES[k] for k in order)
    # The first site keeps its labels, so that a common relabelling is all that may differ.
    labels = np.argmin([np.abs(expected.center - actual.center[r]).sum(axis=1) for r in range(2)], axis=1)
    np.testing.assert_allclose(actual.center, expected.center[labels], rtol=1e-7, atol=1e-8)
    np.testing.assert_allclose(actual.theta, expected.theta[order][:, labels], rtol=1e-7, atol=1e-8)
    np.testing.assert_allclose(actual.weights, expected.weights[order][:, labels], rtol=1e-7, atol=1e-8)


def fit_from(case, weights, theta, **plan):
    algorithm = FedGrEM(case.family)
    given = Params(jnp.asarray(weights), jnp.asarray(theta))
    full = Plan(start=START, max_rounds=5, tol=0.0, given=given, **plan)
    return run(algorithm, InProcess(algorithm, three_sites(case), START), full)


@pytest.mark.parametrize("case", FAMILIES[:2], ids=repr)
def test_relabelling_the_components_of_all_sites_relabels_the_fit(case):
    weights, theta = case.near(12, 3)
    plain = fit_from(case, weights, theta, align=False)
    swapped = fit_from(case, weights[:, ::-1], theta[:, ::-1], align=False)
    np.testing.assert_allclose(swapped.theta[:, ::-1], plain.theta, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(swapped.weights[:, ::-1], plain.weights, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("case", FAMILIES[:2], ids=repr)
def test_each_site_may_number_its_components_as_it_likes(case):
    weights, theta = case.near(13, 3)
    plain = fit_from(case, weights, theta)
    mixed_weights, mixed_theta = weights.copy(), theta.copy()
    mixed_weights[1], mixed_theta[1] = weights[1, ::-1], theta[1, ::-1]
    mixed = fit_from(case, mixed_weights, mixed_theta)
    assert_same_fit(mixed, plain, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("case", FAMILIES[:2], ids=repr)
def test_buckets_do_not_change_the_fit(case, monkeypatch):
    # The middle site gets a bucket of its own where buckets are free.
    data, algorithm = case.federation(14, (20, 300, 20)), FedGrEM(case.family)
    plan = Plan(start=START, max_rounds=5, tol=0.0)
    fits, counts = [], []
    for overhead in (0, 10**9):
        monkeypatch.setattr(federation_module, "BUCKET_OVERHEAD", overhead)
        counts.append(len(data.stacked()[0]))
        fits.append(run(algorithm, InProcess(algorithm, data, START), plan))
    assert counts == [2, 1]
    assert_same_fit(*fits)


@pytest.mark.parametrize("case", FAMILIES[:2], ids=repr)
def test_rows_in_another_order_give_exactly_the_same_fit(case):
    data, algorithm = three_sites(case), FedGrEM(case.family)
    sites = []
    for k, site in enumerate(data.sites):
        order = np.random.default_rng(k).permutation(len(site.rows))
        target = None if site.target is None else site.target[order]
        sites.append(type(site)(site.name, site.rows[order], target, site.row_weight[order]))
    shuffled = Federation(tuple(sites), data.columns)
    actual = run(algorithm, InProcess(algorithm, shuffled, START), Plan(start=START, max_rounds=5, tol=0.0))
    assert_same_fit(actual, in_process(case), rtol=0, atol=0)


def test_the_same_seed_repeats_and_another_seed_does_not():
    case = FAMILIES[0]
    algorithm = FedGrEM(case.family)
    short = StartPlan(n_components=2, n_init=1, short=1, long=1, exchanges=0)

    def fit(seed):
        plan = Plan(start=short, max_rounds=1, tol=0.0, seed=seed)
        return run(algorithm, InProcess(algorithm, three_sites(case), short), plan).theta

    np.testing.assert_array_equal(fit(3), fit(3))
    assert not np.allclose(fit(3), fit(4))


@pytest.mark.parametrize("case", FAMILIES[:2], ids=repr)
def test_no_payload_of_a_whole_fit_depends_on_the_number_of_rows(case):
    algorithm = FedGrEM(case.family)
    seen = []
    for sizes in (SIZES, (45, 30, 45)):  # the first site's messages are looked at
        engine = SiteBySite(algorithm, case.federation(15, sizes), START)
        run(algorithm, engine, Plan(start=START, max_rounds=2, tol=0.0, score=True))
        seen.append(engine.payloads)
    assert seen[0] == seen[1]
    assert {task for task, _, _ in seen[0]} >= {"local_start", "local_step", "local_score"}


@pytest.mark.parametrize("case", FAMILIES, ids=repr)
def test_the_shape_of_an_upload_is_that_of_the_model(case):
    n_components, q = case.theta.shape
    p = case.rows(0, 2)[0].shape[1]
    numbers = {}
    for n in (7, 70):
        data = SiteData(*(jax.ShapeDtypeStruct(shape, float) for shape in ((p, n), (n,), (n,))))
        params = Params(*(jax.ShapeDtypeStruct(shape, float) for shape in ((n_components,), (n_components, q))))
        upload = jax.eval_shape(FedGrEM(case.family).local_step, data, Broadcast(params, params.weights))
        numbers[n] = jax.tree.map(lambda leaf: leaf.shape, upload)
    assert numbers[7] == numbers[70]
    assert numbers[7].params == ((n_components,), (n_components, q), None)
    assert (numbers[7].step_scale, numbers[7].n_rows, numbers[7].log_likelihood) == ((n_components,), (), ())
