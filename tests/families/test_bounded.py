"""Rows of no component: they move nothing, and clean rows count as they did."""

import numpy as np
import pytest

from fedgrem.algorithms.fedgrem import FedGrEM
from fedgrem.data.federation import stack_sites
from fedgrem.data.stack import Stack
from fedgrem.data.units import UnitsPlan
from fedgrem.engines.inprocess import InProcess
from fedgrem.families.bounded import clean_share, consistency, reach
from fedgrem.families.copies import single_rows
from fedgrem.families.covariance import STRUCTURES
from fedgrem.families.gaussian import Gaussian
from fedgrem.families.own import OwnDensity
from fedgrem.families.seeding import far_places
from fedgrem.fit.em import em
from fedgrem.fit.spec import FitSpec, read_spec
from fedgrem.types import Params
from tests.conformance.engines import FakeWire, SiteBySite, assert_same_fit, fit
from tests.conformance.families import GAUSSIANS, POISSON, REGRESSIONS, unpadded

BOUNDED = [case.with_family(robust_rows=True) for case in (*GAUSSIANS, *REGRESSIONS, POISSON)]
bounded = pytest.mark.parametrize("case", BOUNDED, ids=repr)


def with_row(case, stack, size):
    """The same rows and one far from all components: ``size`` along the columns, or of the response."""
    rows, target, weight = stack.rows.copy(), stack.target, stack.weight
    if target is None:
        rows[0, 0] = size
    else:
        target = target.copy()
        target[0, 0] = size
    return Stack(stack.names, rows, target, weight)


def all_of(sums):
    return np.concatenate([sums.features.ravel(), sums.rest.ravel()])


@bounded
def test_a_row_far_from_all_components_moves_nothing_wherever_it_is(case):
    stack, params = case.stack(0, 60), case.params()
    near, far = (case.family.expect(with_row(case, stack, size), params) for size in (300.0, 30_000.0))
    np.testing.assert_allclose(all_of(near), all_of(far), rtol=1e-9, atol=1e-9)
    if not case.discrete:  # of counts, how likely the most likely one is depends on the count
        np.testing.assert_allclose(near.log_likelihood, far.log_likelihood, rtol=1e-9)
    plain = case.with_family(robust_rows=False).family.expect(with_row(case, stack, 30_000.0), params)
    assert np.abs(plain.features - far.features).max() > 1e4
    assert 58.0 < far.held.sum() < 59.5


@bounded
def test_clean_rows_count_nearly_as_they_did_and_posteriors_say_what_the_sums_say(case):
    noise = case.family.noise_shape(*case.theta.shape)
    stack = case.stack(1, 400)
    params = case.params(shift=0.0)._replace(noise=None if noise is None else np.zeros((1, *noise)))
    sums = case.family.expect(stack, params)
    posterior, per_row = case.family.row_scores(stack, params)
    np.testing.assert_allclose(sums.held, (posterior * stack.weight[:, None]).sum(axis=-1), rtol=1e-9)
    np.testing.assert_allclose(sums.log_likelihood, (stack.weight * per_row).sum(axis=1), rtol=1e-9)
    counted = posterior.sum(axis=1)
    assert (counted <= 1.0 + 1e-12).all()
    assert counted.mean() > 0.98
    _, plain = case.with_family(robust_rows=False).family.row_scores(stack, params)
    assert (per_row >= plain - 1e-9).all()


@bounded
def test_padding_and_labels_change_nothing(case):
    site, params = case.site(2, 37), case.params()
    whole, padded = unpadded(site), stack_sites([site, case.site(3, 40, name="other")], gaps=False)
    both = Params(*(None if leaf is None else np.repeat(leaf, 2, axis=0) for leaf in params))
    alone, first = case.family.expect(whole, params), case.family.expect(padded, both)
    np.testing.assert_allclose(first.features[0], alone.features[0], rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(first.rest[0], alone.rest[0], rtol=1e-9, atol=1e-9)
    turned = Params(*(None if leaf is None else leaf[:, ::-1] if leaf.shape[1] == 2 else leaf for leaf in params))
    relabelled = case.family.expect(whole, turned)
    np.testing.assert_allclose(relabelled.features[:, ::-1], alone.features, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(relabelled.log_likelihood, alone.log_likelihood, rtol=1e-9)


@pytest.mark.parametrize("kind", STRUCTURES)
def test_without_missing_cells_rows_with_patterns_of_them_are_bounded_alike(kind):
    case = next(c for c in BOUNDED if c.name == f"gaussian-{kind}")
    stack, params = with_row(case, case.stack(4, 50), 300.0), case.params()
    seen = Stack(stack.names, stack.rows, None, stack.weight, np.ones(stack.rows.shape, dtype=bool))
    plain, patterned = case.family.expect(stack, params), case.family.expect(seen, params)
    np.testing.assert_allclose(patterned.features, plain.features, rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(patterned.log_likelihood, plain.log_likelihood, rtol=1e-8)
    for found, expected in zip(
        case.family.row_scores(seen, params), case.family.row_scores(stack, params), strict=True
    ):
        np.testing.assert_allclose(found, expected, rtol=1e-8, atol=1e-8)


def test_what_is_seen_of_a_far_row_is_bounded_by_as_many_numbers():
    family, generator = Gaussian(STRUCTURES["diag"](), robust_rows=True), np.random.default_rng(0)
    rows, seen = generator.normal(size=(1, 40, 3)), generator.random((1, 40, 3)) < 0.7
    seen[0, 0] = [True, False, False]
    rows[0, 0, 0] = np.sqrt(reach(1))  # where a row of one number counts for a half, and one of three for nearly all
    stack = Stack(("a",), np.where(seen, rows, 0.0), None, np.ones((1, 40)), seen)
    posterior, _ = family.row_scores(stack, Params(np.ones((1, 1)), np.zeros((1, 1, 3)), np.zeros((1, 1, 3))))
    assert abs(posterior[0, 0, 0] - 0.5) < 1e-6


@pytest.mark.parametrize("size", [1, 3, 10])
@pytest.mark.parametrize("kind", ["spherical", "diag", "tied", "full"])
def test_covariances_of_clean_rows_are_not_too_small(kind, size):
    rows = np.random.default_rng(size).normal(size=(1, 20_000, size))
    stack = Stack(("a",), rows, None, np.ones((1, 20_000)))
    family = Gaussian(STRUCTURES[kind](), robust_rows=True)
    one = np.zeros((1, *family.noise_shape(1, size)))
    params = Params(np.ones((1, 1)), np.zeros((1, 1, size)), one)
    for _ in range(4):
        sums = family.expect(stack, params)
        params = params._replace(noise=family.noise_step(sums, params.theta, params.noise))
    found = family.covariance.matrices(params.noise[0], size)[0]
    np.testing.assert_allclose(np.trace(found) / size, rows.var(), rtol=0.006)


def test_a_noise_of_regressions_is_not_too_small_either():
    generator = np.random.default_rng(1)
    x = generator.normal(size=(1, 20_000, 2))
    y = x.sum(axis=-1) + 0.5 * generator.normal(size=(1, 20_000))
    stack = Stack(("a",), x, y, np.ones((1, 20_000)))
    family = REGRESSIONS[1].with_family(robust_rows=True).family
    params = Params(np.ones((1, 1)), np.ones((1, 1, 2)), np.zeros((1, 1, 1)))
    for _ in range(8):
        sums = family.expect(stack, params)
        params = params._replace(noise=family.noise_step(sums, params.theta, params.noise))
    assert abs(np.exp(params.noise.item()) - 0.5) < 0.006


def test_what_clean_rows_lose_is_little_in_any_dimension():
    for size in (1, 2, 10, 100):
        assert 0.0005 < clean_share(size) < 0.012
        assert 0.96 < consistency(size) < 1.0


def test_em_climbs():
    case = BOUNDED[0]
    stack, params, values = with_row(case, case.stack(5, 200), 40.0), case.params(shift=1.0), []
    for _ in range(15):
        sums = case.family.expect(stack, params)
        values.append(float(sums.log_likelihood[0]))
        params = Params(sums.held / sums.held.sum(), case.family.maximize(stack, params, sums))
    # The background between two components changes with posteriors, by next to nothing.
    assert np.all(np.diff(values) > -1e-4)


@pytest.mark.parametrize("kind", ["diag", "tied", "full"])
def test_a_tenth_of_far_rows_is_as_if_it_were_not_there(kind):
    case = next(c for c in BOUNDED if c.name == f"gaussian-{kind}")
    clean = case.stack(6, 180)
    rows = np.concatenate([clean.rows, clean.rows[:, :20] + [30.0, -20.0]], axis=1)
    found = []
    for stack in (clean, Stack(clean.names, rows, None, np.ones((1, 200)))):
        theta = case.family.draw(stack, 0, "start", 5, 2, None)
        start = Params(np.full((1, 5, 2), 0.5), theta, case.family.first_noise(stack, theta))
        runs = em(case.family, stack, start, 100)
        best = int(np.argmax(runs.value[0]))
        covariance = case.family.covariance.matrices(runs.params.noise[0, best], 2)
        order = np.argsort(runs.params.theta[0, best, :, 0])
        found.append((runs.params.theta[0, best][order], covariance.sum(axis=0)))
    for with_far, without in zip(*found, strict=True):
        np.testing.assert_allclose(with_far, without, atol=0.02)


def test_starts_do_not_go_to_far_rows_first():
    generator = np.random.default_rng(7)
    rows = np.append(generator.normal(size=(90, 2)), [[0.0, 500.0], [0.0, 500.0]], axis=0)
    rows[45:90, 0] += 9.0
    stack = Stack(("a",), rows[None], None, np.ones((1, len(rows))))
    plain, robust = (far_places(stack, rows[None], 0, "start", 20, 2, robust=robust) for robust in (False, True))
    assert (plain >= 90).any(axis=-1).mean() > 0.9
    assert (robust >= 90).any(axis=-1).mean() < 0.2


def test_rows_of_a_clump_are_copies_in_any_units_and_clean_ones_are_not():
    generator = np.random.default_rng(8)
    for size in (1, 2, 5, 10):
        rows = generator.normal(size=(1, 300, size))
        stack = Stack(("a",), rows, None, np.ones((1, 300)))
        assert single_rows(stack, rows).mean() > 0.995
    clump = rows.copy()
    clump[0, :30] = 2.0 + 0.05 * generator.normal(size=(30, 10))
    for units in (1.0, np.geomspace(1e-3, 1e3, 10)):
        single = single_rows(stack, clump * units)[0]
        assert not single[:30].any()
        assert single[30:].all()
    assert single_rows(stack, None).all()


def test_few_rows_and_rows_with_few_cells_are_not_judged():
    rows = np.zeros((1, 40, 4))
    rows[0, 10:] = np.random.default_rng(9).normal(size=(30, 4))
    seen = np.ones((1, 40, 4), dtype=bool)
    assert not single_rows(Stack(("a",), rows, None, np.ones((1, 40)), seen), rows)[0, :10].any()
    seen[0, :10, :2] = False
    assert single_rows(Stack(("a",), rows, None, np.ones((1, 40)), seen), rows)[0, :10].all()
    few = Stack(("a",), rows[:, 6:20], None, np.ones((1, 14)))
    assert single_rows(few, few.rows).all()


@pytest.mark.parametrize("case", [BOUNDED[0], BOUNDED[3], BOUNDED[6], BOUNDED[8]], ids=repr)
@pytest.mark.parametrize("engine", [SiteBySite, FakeWire])
def test_engines_agree(case, engine):
    data = case.federation(11, (30, 45, 61), ["north", "east", "south"])
    how = {"rounds": 3, "look": True, "standard_errors": True, "score": True}
    actual, expected = (fit(case, data, FedGrEM(), engine=one, **how) for one in (engine, InProcess))
    assert_same_fit(actual, expected)
    assert expected.held_down.shape == (3,)
    assert ((expected.held_down >= 0.0) & (expected.held_down < 0.2)).all()


def test_the_option_travels_with_the_spec():
    for case in BOUNDED:
        spec = FitSpec(case.family, FedGrEM(), 2, units=UnitsPlan(standardize=False))
        assert read_spec(spec.to_json()) == spec
        assert read_spec(spec.to_json()).family.robust_rows is True
    assert OwnDensity.robust_rows is False


def test_a_fit_of_plain_families_asks_nobody_about_rows_held_down():
    case = GAUSSIANS[0]
    result = fit(case, case.federation(0, (30, 30)), FedGrEM(), rounds=2)
    assert result.held_down is None
    assert "held_down_exchanges" not in result.cost
