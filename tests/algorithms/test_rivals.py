"""The systems FedGrEM is compared with: each agrees with its formulas, on every family it runs on."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fedgrem.algorithms.plan import Plan
from fedgrem.algorithms.rounds import run
from fedgrem.algorithms.start import StartPlan

from fedgrem.algorithms.base import Algorithm
from fedgrem.algorithms.fedem_sa import FedEMSA
from fedgrem.algorithms.fedgmm import FedGMMDensity, FedGMMJoint
from fedgrem.algorithms.local import LocalEM
from fedgrem.algorithms.pooled import InOnePot
from fedgrem.algorithms.registry import ALGORITHMS, build_algorithm
from fedgrem.data.federation import Federation
from fedgrem.data.simulate import simulate
from fedgrem.engines import InProcess
from fedgrem.errors import InputError
from fedgrem.families import Gaussian, LinearRegression
from fedgrem.families.base import ExponentialFamily
from fedgrem.kernels.compression import quantize, sparsify, variance_factor
from fedgrem.kernels.scores import parameter_errors
from fedgrem.types import Params, SiteData
from tests.conformance import numpy_rivals
from tests.conformance.engines import FakeWire, SiteBySite
from tests.conformance.families import CUSTOM, SHIPPED

START = StartPlan(n_components=2, n_init=2, short=5, long=10)
SIZES = (12, 40, 23)
FORMULAS = {"gaussian": numpy_rivals.GAUSSIAN, "regression": numpy_rivals.REGRESSION}
POOLED = {"pooled-em", "pooled-grem"}
FEDERATED = sorted(set(ALGORITHMS) - POOLED)


def fit(algorithm, data, start, *, rounds=6, tol=0.0, engine=InProcess):
    given = Params(*(jnp.asarray(leaf) for leaf in start))
    plan = Plan(start=START, max_rounds=rounds, tol=tol, given=given, align=False)
    return run(algorithm, engine(algorithm, data, START), plan)


def example(case, seed=1, sizes=SIZES):
    return case.federation(seed, sizes), case.near(seed, len(sizes))


def plain_rows(data):
    return [(site.rows, np.zeros(len(site.rows)) if site.target is None else site.target) for site in data.sites]


# -- agreement with the formulas


@pytest.mark.parametrize(
    ("name", "options", "formula"),
    [
        ("local-em", {}, numpy_rivals.local_em),
        ("local-grem", {"step_size": 0.8}, numpy_rivals.local_grem),
        ("fedem", {}, numpy_rivals.fedem),
        ("fedem", {"averaging": "plain"}, numpy_rivals.fedem),
        ("tgmm", {}, numpy_rivals.tgmm),
        ("tgmm", {"transfer": 1.5}, numpy_rivals.tgmm),
    ],
)
@pytest.mark.parametrize("case", SHIPPED, ids=repr)
def test_it_agrees_with_a_plain_transcription_of_its_formulas(case, name, options, formula):
    data, start = example(case)
    actual = fit(build_algorithm(name, case.family, **options), data, start, rounds=8)
    weights, theta = formula(FORMULAS[case.name], plain_rows(data), *start, rounds=8, **options)
    np.testing.assert_allclose(actual.weights, weights, rtol=0, atol=1e-8)
    np.testing.assert_allclose(actual.theta, theta, rtol=0, atol=1e-8)


@pytest.mark.parametrize("case", SHIPPED, ids=repr)
def test_stochastic_approximation_with_nothing_random_is_em_with_shared_components(case):
    data, start = example(case)
    plain = FedEMSA(case.family, approximation_step=1.0, keep=1.0, levels=0, participation=1.0)
    actual = fit(plain, data, start, rounds=8)
    weights, theta = numpy_rivals.shared_em(FORMULAS[case.name], plain_rows(data), *start, rounds=8)
    np.testing.assert_allclose(actual.weights, weights, rtol=0, atol=1e-8)
    np.testing.assert_allclose(actual.theta, theta, rtol=0, atol=1e-8)


def test_joint_mixture_with_one_covariate_component_is_em_with_shared_regressions():
    case = SHIPPED[1]
    data, start = example(case)
    actual = fit(FedGMMJoint(case.family, covariate_components=1), data, start, rounds=8)
    weights, theta = numpy_rivals.shared_em(numpy_rivals.REGRESSION, plain_rows(data), *start, rounds=8)
    np.testing.assert_allclose(actual.weights, weights, rtol=0, atol=1e-8)
    np.testing.assert_allclose(actual.theta, theta, rtol=0, atol=1e-8)


def test_joint_mixture_averaged_by_rows_is_fedem_where_covariates_say_nothing():
    case = SHIPPED[1]
    data, start = example(case)
    joint = fit(FedGMMJoint(case.family, covariate_components=1, averaging="rows"), data, start, rounds=5)
    fedem = fit(build_algorithm("fedem", case.family), data, start, rounds=5)
    np.testing.assert_allclose(joint.theta, fedem.theta, rtol=0, atol=1e-8)


@pytest.mark.parametrize("case", SHIPPED, ids=repr)
@pytest.mark.parametrize("name", sorted(POOLED))
def test_pooled_is_the_fit_of_one_site_with_all_rows(case, name):
    data, start = example(case)
    alone = build_algorithm(name.replace("pooled", "local"), case.family)
    middle = tuple(np.median(leaf, axis=0)[None] for leaf in start)
    middle = (middle[0] / middle[0].sum(), middle[1])
    merged = Federation.from_sites(
        ["all"],
        [np.concatenate([site.rows for site in data.sites])],
        [np.concatenate([site.target for site in data.sites])] if case.family.has_target else None,
    )
    expected = fit(alone, merged, middle)
    actual = fit(build_algorithm(name, case.family), data, start)
    for k in range(len(SIZES)):
        np.testing.assert_allclose(actual.theta[k], expected.theta[0], rtol=0, atol=1e-12)
        np.testing.assert_allclose(actual.weights[k], expected.weights[0], rtol=0, atol=1e-12)
    assert actual.n_rows.tolist() == list(SIZES)


def test_pooled_searches_its_start_on_all_rows_whatever_the_order_of_the_sites():
    case = SHIPPED[0]
    data = case.federation(3, SIZES, ("b", "c", "a"))
    turned = Federation(data.sites[::-1], data.columns)
    algorithm, plan = build_algorithm("pooled-em", case.family), Plan(start=START, max_rounds=20)
    one, other = (run(algorithm, InProcess(algorithm, which, START), plan) for which in (data, turned))
    np.testing.assert_array_equal(one.theta[0], other.theta[0])
    assert np.ptp(one.theta, axis=0).max() == 0.0


# -- what every system owes


@pytest.mark.parametrize("case", SHIPPED, ids=repr)
@pytest.mark.parametrize("name", FEDERATED)
def test_every_engine_gives_the_in_process_answer(name, case):
    data, start = example(case, 2)
    algorithm = build_algorithm(name, case.family)
    # Those with messages of their own also go over the wire.
    engine = FakeWire if algorithm.central_start(Params(*map(jnp.asarray, start)), jnp.ones(3)).extra else SiteBySite
    expected = fit(algorithm, data, start, rounds=4)
    actual = fit(algorithm, data, start, rounds=4, engine=engine)
    assert np.all(np.isfinite(expected.theta))
    assert np.all(np.isfinite(expected.weights))
    for field in ("weights", "theta", "center", "n_rows"):
        np.testing.assert_allclose(getattr(actual, field), getattr(expected, field), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("case", SHIPPED, ids=repr)
@pytest.mark.parametrize("name", FEDERATED)
def test_what_a_site_sends_and_gets_does_not_depend_on_its_rows(name, case):
    algorithm = build_algorithm(name, case.family)
    n_components, q = case.theta.shape
    start = Params(jnp.full((3, n_components), 1.0 / n_components), jnp.zeros((3, n_components, q)))
    sent = jax.eval_shape(lambda: algorithm.broadcast(algorithm.central_start(start, jnp.ones(3))))
    one = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), sent)
    shapes = []
    for n in (7, 70):
        data = SiteData(*(jax.ShapeDtypeStruct(shape, float) for shape in ((q, n), (n,), (n,))))
        shapes.append(jax.tree.map(lambda leaf: leaf.shape, jax.eval_shape(algorithm.local_step, data, one)))
    assert shapes[0] == shapes[1]


@pytest.mark.parametrize("case", SHIPPED, ids=repr)
@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_it_keeps_the_protocol_and_settles(name, case):
    data, start = example(case, 4, (60, 50, 80))
    algorithm = build_algorithm(name, case.family)
    assert isinstance(algorithm, Algorithm)
    result = fit(algorithm, data, start, rounds=600, tol=1e-6)
    assert result.converged
    np.testing.assert_allclose(result.weights.sum(axis=1), 1.0, atol=1e-9)
    assert parameter_errors(result.weights, result.theta, result.weights, np.stack([case.theta] * 3))[1].max() < 1.5


@pytest.mark.parametrize("name", sorted(set(ALGORITHMS) - {"fedgmm", "fedem-sa"}))
def test_it_runs_on_a_family_with_nothing_but_a_density(name):
    data, start = example(CUSTOM[0])
    assert np.all(np.isfinite(fit(build_algorithm(name, CUSTOM[0].family), data, start, rounds=2).theta))


@pytest.mark.parametrize("name", ["fedgmm", "fedem-sa"])
def test_it_says_so_where_a_family_lacks_what_it_needs(name):
    with pytest.raises(InputError, match=f"algorithm '{name}' does not run on Custom components.*use 'fedem'"):
        build_algorithm(name, CUSTOM[0].family)


def test_options_an_algorithm_does_not_know_are_left_out():
    assert build_algorithm("fedem", Gaussian(), averaging="plain", penalty=3.0).averaging == "plain"
    assert build_algorithm("fedgmm", LinearRegression(), covariate_components=2, x=1).covariate_components == 2


def test_padding_and_row_weights_count_as_rows():
    case = SHIPPED[0]
    data, start = example(case)
    twice = Federation(
        tuple(type(s)(s.name, np.concatenate([s.rows, s.rows]), None, np.ones(2 * len(s.rows))) for s in data.sites),
        data.columns,
    )
    heavy = Federation(
        tuple(type(s)(s.name, s.rows, None, np.full(len(s.rows), 2.0)) for s in data.sites), data.columns
    )
    for name in ("fedgmm", "fedem-sa", "pooled-em"):
        algorithm = build_algorithm(name, case.family)
        np.testing.assert_allclose(fit(algorithm, twice, start).theta, fit(algorithm, heavy, start).theta, atol=1e-10)


# -- FedGMM


@pytest.mark.parametrize("case", SHIPPED, ids=repr)
def test_the_log_likelihood_of_fedgmm_never_falls(case):
    data, start = example(case, 5, (60, 50, 80))
    algorithm = build_algorithm("fedgmm", case.family, averaging="mass")  # exact EM; averaging by rows is not
    history = fit(algorithm, data, start, rounds=60).history["log_likelihood"]
    total = history.sum(axis=1)[1:]
    assert np.all(np.diff(total) > -1e-5)
    assert total[-1] > total[0]


def test_fedgmm_estimates_covariances_and_finds_the_groups_of_the_covariates():
    generator = np.random.default_rng(0)
    stretch = np.array([3.0, 0.5])
    rows = [np.concatenate([generator.normal(size=(80, 2)) * stretch + s for s in ((0, 4), (0, -4))]) for _ in range(3)]
    data = Federation.from_sites(["a", "b", "c"], rows)
    start = np.full((3, 2), 0.5), np.tile(np.array([[1.0, 3.0], [1.0, -3.0]]), (3, 1, 1))
    algorithm = FedGMMDensity(Gaussian())
    given = Params(*(jnp.asarray(leaf) for leaf in start))
    engine = InProcess(algorithm, data, START)
    central = algorithm.central_start(given, jnp.asarray([160.0] * 3))
    for _ in range(30):
        uploads = engine.ask("local_step", algorithm.broadcast(central))
        central, _, _ = algorithm.central_step(central, uploads)
    variances = np.diagonal(np.asarray(central.extra.covariance), axis1=1, axis2=2)
    np.testing.assert_allclose(variances, np.stack([stretch**2] * 2), rtol=0.25)
    np.testing.assert_allclose(central.center, [[0.0, 4.0], [0.0, -4.0]], atol=0.6)


def test_covariate_components_find_the_groups_of_the_covariates():
    generator = np.random.default_rng(1)
    sides = [np.repeat([-4.0, 4.0], 50) for _ in range(3)]
    rows = [generator.normal(size=(100, 2)) + np.stack([side, np.zeros(100)], axis=1) for side in sides]
    targets = [x @ [1.0, 2.0] + generator.normal(size=100) for x in rows]
    data = Federation.from_sites(["a", "b", "c"], rows, targets)
    algorithm = FedGMMJoint(LinearRegression(), covariate_components=2)
    engine = InProcess(algorithm, data, StartPlan(1))
    start = Params(jnp.ones((3, 1)), jnp.zeros((3, 1, 2)))
    central = algorithm.central_start(start, jnp.asarray([100.0] * 3))
    for _ in range(20):
        central, _, _ = algorithm.central_step(central, engine.ask("local_step", algorithm.broadcast(central)))
    np.testing.assert_allclose(np.sort(central.extra.covariates.mean[:, 0]), [-4.0, 4.0], atol=0.3)
    np.testing.assert_allclose(central.center[0], [1.0, 2.0], atol=0.2)


@pytest.mark.parametrize("name", FEDERATED)
def test_equal_rows_and_empty_components_do_not_become_nan(name):
    rows = [np.ones((6, 2)), np.zeros((6, 2)), np.eye(2).repeat(3, axis=0)]
    data = Federation.from_sites(["a", "b", "c"], rows)
    start = np.full((3, 2), 0.5), np.tile(np.array([[0.0, 0.0], [500.0, 500.0]]), (3, 1, 1))
    result = fit(build_algorithm(name, Gaussian()), data, start, rounds=30)
    assert np.all(np.isfinite(result.theta))
    assert np.all(np.isfinite(result.weights))


# -- FedEM by stochastic approximation


@pytest.mark.parametrize("case", SHIPPED, ids=repr)
def test_compressed_and_partial_exchanges_lead_to_the_same_point(case):
    data, start = example(case, 6, (60, 50, 80))
    exact = fit(FedEMSA(case.family, approximation_step=1.0, keep=1.0, levels=0, participation=1.0), data, start,
                rounds=300)  # fmt: skip
    rough = FedEMSA(case.family, approximation_step=0.2, keep=0.3, levels=8, participation=0.5, seed=3)
    early, late = fit(rough, data, start, rounds=5), fit(rough, data, start, rounds=600)
    assert np.abs(early.theta - exact.theta).max() > 1e-4
    np.testing.assert_allclose(late.theta, exact.theta, atol=1e-4)
    np.testing.assert_allclose(late.weights, exact.weights, atol=1e-4)


def test_a_site_that_sits_out_sends_nothing_and_keeps_its_weights():
    case = SHIPPED[0]
    data, start = example(case)
    algorithm = FedEMSA(case.family, participation=0.5)
    engine = InProcess(algorithm, data, START)
    central = algorithm.central_start(Params(*(jnp.asarray(leaf) for leaf in start)), jnp.asarray(SIZES, dtype=float))
    absent = 0
    for played in range(12):
        uploads = engine.ask("local_step", algorithm.broadcast(central))
        silent = np.abs(np.asarray(uploads.extra.difference)).max(axis=(1, 2)) == 0
        same = np.all(np.asarray(uploads.params.weights == central.params.weights), axis=1)
        np.testing.assert_array_equal(silent, same)
        assert played > 0 or not silent.any()
        absent += silent.sum()
        central, _, _ = algorithm.central_step(central, uploads)
    assert 6 <= absent <= 27


@pytest.mark.parametrize(
    "compress",
    [lambda key, v: sparsify(key, v, 0.3), lambda key, v: quantize(key, v, 2)],
    ids=["sparsify", "quantize"],
)
def test_compressors_are_unbiased_and_keep_their_variance_bound(compress):
    values = jnp.asarray(np.random.default_rng(0).normal(size=(3, 4)))
    draws = jax.vmap(lambda key: compress(key, values))(jax.random.split(jax.random.PRNGKey(0), 20_000))
    np.testing.assert_allclose(draws.mean(axis=0), values, atol=0.05)
    bound = max(variance_factor(12, 0.3, 0) * 12 / 3.6 * 0.3, variance_factor(12, 1.0, 2))
    assert float((draws**2).sum(axis=(1, 2)).mean()) <= 1.02 * max(bound, 1 / 0.3) * float((values**2).sum())


@pytest.mark.parametrize("case", SHIPPED, ids=repr)
def test_the_exact_step_sees_rows_only_through_statistics_that_add_up(case):
    family = case.family
    assert isinstance(family, ExponentialFamily)
    data = case.site_data(8, 50)
    mass = jnp.asarray(np.random.default_rng(8).dirichlet(np.ones(2), size=50).T)
    parts = [
        family.sufficient_statistics(SiteData(*(leaf[..., half] for leaf in data[:3])), mass[:, half])
        for half in (slice(0, 20), slice(20, None))
    ]
    assert parts[0].shape == (2, family.n_statistics(case.theta.shape[1]))
    theta = jnp.asarray(case.theta)
    np.testing.assert_allclose(
        family.from_statistics(parts[0] + parts[1], theta), family.exact_step(data, theta, mass), atol=1e-10
    )


def test_noisy_statistics_of_a_regression_still_give_finite_coefficients():
    family, generator = LinearRegression(), np.random.default_rng(9)
    noise = jnp.asarray(generator.normal(size=(4, family.n_statistics(3))))
    assert np.all(np.isfinite(family.from_statistics(noise, jnp.zeros((4, 3)))))


# -- the picture of the paper


def test_local_em_in_the_paper_s_simulation_is_off_by_the_noise_of_thirty_rows():
    worst = []
    for seed in range(3):
        simulation = simulate("gmm", h=1.0, seed=seed)
        data = Federation.from_sites(list(simulation.rows), list(simulation.rows.values()))
        algorithm, plan = LocalEM(Gaussian()), Plan(start=StartPlan(5), start_penalty=7.8)
        result = run(algorithm, InProcess(algorithm, data, plan.start), plan)
        honest = simulation.honest
        errors = parameter_errors(
            result.weights[honest], result.theta[honest], simulation.weights[honest], simulation.theta[honest]
        )
        worst.append(errors[1].max())
    assert 1.0 < np.mean(worst) < 1.9


def test_only_the_pooled_ones_need_all_rows_in_one_place():
    marked = {name for name in ALGORITHMS if isinstance(build_algorithm(name, Gaussian()), InOnePot)}
    assert marked == POOLED
