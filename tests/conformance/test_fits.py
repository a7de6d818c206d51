"""Every family and every algorithm keep the same promises: engines agree; order, labels and rows do not matter."""

from functools import cache

import numpy as np
import pytest

from fedgrem.algorithms.center_rules import CENTER_RULES
from fedgrem.algorithms.fedgrem import FedGrEM
from fedgrem.algorithms.registry import ALGORITHMS
from fedgrem.data.federation import Federation, Site
from fedgrem.data.units import UnitsPlan
from fedgrem.errors import InputError
from fedgrem.fit import penalty, starts
from fedgrem.fit.fit import run
from fedgrem.fit.spec import StartPlan
from fedgrem.kernels.scores import parameter_errors
from tests.conformance.engines import FakeWire, SiteBySite, assert_same_fit, fit, spec_for
from tests.conformance.families import BY_NAME, FAMILIES, GAUSSIAN, GENERALIZED, POISSON, REGRESSION, TABLES

SIZES = (30, 45, 30, 61)
NAMES = ("north", "east", "south", "west")
WHOLE = {"penalty": None, "fallback": True, "look": True, "standard_errors": True, "score": True}
"""All phases of a fit."""
REFUSED = {("fedgmm", case.name) for case in (POISSON, *TABLES, *GENERALIZED)}
REFUSED |= {("fedem-sa", case.name) for case in GENERALIZED}
"""Algorithms that do not run on a family, and say so."""
PAIRS = [
    pytest.param(name, case, id=f"{name}-{case}")
    for name in ALGORITHMS
    for case in FAMILIES
    if (name, case.name) not in REFUSED
]
pairs = pytest.mark.parametrize(("name", "case"), PAIRS)
families = pytest.mark.parametrize("case", FAMILIES, ids=repr)


@pytest.fixture(autouse=True, scope="module")
def _short_fits():
    """Joint starts of one generation, and paths of a few rounds: the same messages, fewer of them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(starts, "GENERATIONS", 1)
        patch.setattr(starts, "GENERATION", 3)
        patch.setattr(penalty, "ROUNDS", 3)
        patch.setattr(penalty, "NOISE_ROUNDS", 2)
        yield


@cache
def sites(case, sizes=SIZES):
    return case.federation(11, sizes, NAMES)


@cache
def whole_fit(case):
    return fit(case, sites(case), FedGrEM(), rounds=3, **WHOLE)


@cache
def short_fit(name, case):
    return fit(case, sites(case), ALGORITHMS[name](), case.near(1, 4), rounds=4)


def reordered(data, order):
    return Federation(tuple(data.sites[k] for k in order), data.columns)


# -- every family, in all phases of a fit


@families
def test_every_engine_gives_the_in_process_answer(case):
    actual, expected = fit(case, sites(case), FedGrEM(), engine=FakeWire, rounds=3, **WHOLE), whole_fit(case)
    assert np.isfinite(expected.theta).all()
    assert expected.look is not None
    assert np.isfinite(expected.theta_covariance).any()
    assert_same_fit(actual, expected)
    assert actual.cost == expected.cost


@families
def test_the_order_of_the_sites_does_not_change_the_fit(case):
    order = [2, 0, 3, 1]
    actual, expected = fit(case, reordered(sites(case), order), FedGrEM(), rounds=3, **WHOLE), whole_fit(case)
    assert actual.site_names == tuple(NAMES[k] for k in order)
    # The first site keeps its labels, so that a common relabelling is all that may differ.
    labels = np.argmin([np.abs(expected.center - actual.center[r]).sum(axis=1) for r in range(2)], axis=1)
    np.testing.assert_allclose(actual.center, expected.center[labels], rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(actual.theta, expected.theta[order][:, labels], rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(actual.weights, expected.weights[order][:, labels], rtol=1e-6, atol=1e-7)
    assert actual.path["penalty"] == expected.path["penalty"]


@families
def test_rows_in_another_order_give_exactly_the_same_fit(case):
    shuffled = []
    for k, site in enumerate(sites(case).sites):
        order = np.random.default_rng(k).permutation(len(site.rows))
        target = None if site.target is None else site.target[order]
        shuffled.append(Site(site.name, site.rows[order], target, site.row_weight[order]))
    data = Federation(tuple(shuffled), sites(case).columns)
    found, expected = fit(case, data, FedGrEM(), rounds=3, **WHOLE), whole_fit(case)
    # The census is taken of the rows as they come: of sums in another order, the last digits may differ.
    np.testing.assert_allclose(found.column_mean, expected.column_mean, rtol=1e-12)
    found, expected = (one._replace(column_mean=None, column_deviation=None) for one in (found, expected))
    assert_same_fit(found, expected, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("case", "pooled"),
    [(GAUSSIAN, True), (BY_NAME["gaussian-full"], False), (BY_NAME["regression-shared"], False), (POISSON, False)],
    ids=repr,
)
def test_no_payload_of_a_whole_fit_depends_on_the_number_of_rows(case, pooled):
    seen = []
    for sizes in (SIZES, (61, 30, 52, 45)):  # the first site's messages are looked at
        spec = spec_for(case, FedGrEM(pool_weights=pooled), rounds=2, **WHOLE)
        engine = SiteBySite(sites(case, sizes), spec)
        run(spec, engine)
        seen.append({task: (sent, back) for task, sent, back in engine.payloads})
    assert seen[0] == seen[1]
    assert set(seen[0]) >= {"start", "compare", "path_step", "path_score", "step", "score", "look", "information"}


@pytest.mark.parametrize("case", [GAUSSIAN, REGRESSION, POISSON], ids=repr)
def test_relabelling_the_components_of_all_sites_relabels_the_fit(case):
    weights, theta = case.near(12, 4)
    plain = fit(case, sites(case), FedGrEM(), (weights, theta))
    swapped = fit(case, sites(case), FedGrEM(), (weights[:, ::-1], theta[:, ::-1]))
    np.testing.assert_allclose(swapped.theta[:, ::-1], plain.theta, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(swapped.weights[:, ::-1], plain.weights, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("alignment", ["assignment", "stepwise", "exhaustive"])
@pytest.mark.parametrize("case", [GAUSSIAN, BY_NAME["gaussian-full"]], ids=repr)
def test_each_site_may_number_its_components_as_it_likes(case, alignment):
    weights, theta = case.near(13, 4)
    mixed = weights.copy(), theta.copy()
    mixed[0][1], mixed[1][1] = weights[1, ::-1], theta[1, ::-1]
    plan = StartPlan(alignment=alignment)
    plain, other = (fit(case, sites(case), FedGrEM(), start, plan=plan) for start in ((weights, theta), mixed))
    assert_same_fit(other, plain, rtol=1e-9, atol=1e-9)


def test_the_same_seed_repeats_and_another_seed_does_not():
    plan = StartPlan(n_init=1, short=1, long=1)
    one, again, other = (
        fit(GAUSSIAN, sites(GAUSSIAN), FedGrEM(), rounds=1, plan=plan, seed=seed).theta for seed in (3, 3, 4)
    )
    np.testing.assert_array_equal(one, again)
    assert not np.allclose(one, other)


@pytest.mark.parametrize("case", [BY_NAME["gaussian-tied"], BY_NAME["regression-shared"]], ids=repr)
def test_units_of_the_columns_do_not_change_a_fit_in_common_units(case):
    data, factor = sites(case), np.array([1e-3, 1e4])
    other = [
        Site(s.name, s.rows * factor, None if s.target is None else 7.0 * s.target, s.row_weight) for s in data.sites
    ]
    plan = {"units": UnitsPlan(standardize=True, move=not case.family.has_target)}
    plain, scaled = (
        fit(case, which, FedGrEM(), rounds=4, **WHOLE | plan)
        for which in (data, Federation(tuple(other), data.columns))
    )
    np.testing.assert_allclose(scaled.theta, plain.theta, rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(scaled.scale[:2], plain.scale[:2] * factor, rtol=1e-9)


# -- every algorithm on every family


@pairs
def test_every_algorithm_on_every_family_gives_the_same_answer_site_by_site(name, case):
    if ALGORITHMS[name].traits.pools_rows:
        return  # only the in-process engine has all rows in one place
    expected = short_fit(name, case)
    assert np.isfinite(expected.theta).all()
    np.testing.assert_allclose(expected.weights.sum(axis=1), 1.0, atol=1e-9)
    # Those with messages of their own go over the wire.
    actual = fit(case, sites(case), ALGORITHMS[name](), case.near(1, 4), rounds=4, engine=FakeWire)
    assert_same_fit(actual, expected)


@pairs
def test_the_order_of_the_sites_does_not_matter_to_any_algorithm(name, case):
    order = [2, 0, 3, 1]
    weights, theta = case.near(1, 4)
    expected = short_fit(name, case)
    actual = fit(case, reordered(sites(case), order), ALGORITHMS[name](), (weights[order], theta[order]), rounds=4)
    np.testing.assert_allclose(actual.theta, expected.theta[order], rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(actual.weights, expected.weights[order], rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("case", [GAUSSIAN, REGRESSION], ids=repr)
def test_every_algorithm_settles_near_the_truth(name, case):
    data, start = case.federation(4, (60, 50, 80)), case.near(4, 3)
    result = fit(case, data, ALGORITHMS[name](), start, rounds=600, tol=1e-6)
    assert result.converged
    assert parameter_errors(result.weights, result.theta, result.weights, np.stack([case.theta] * 3))[1].max() < 1.5


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_plays_all_phases_from_its_own_starts(name):
    result = fit(GAUSSIAN, sites(GAUSSIAN), ALGORITHMS[name](), rounds=30, **WHOLE)
    assert np.isfinite(result.theta).all()
    assert np.isfinite(result.log_likelihood).all()
    assert (result.look is None) == ALGORITHMS[name].traits.pools_rows
    assert bool(result.path) == ALGORITHMS[name].traits.pulls
    assert np.isfinite(result.weights_variance).all()


@pytest.mark.parametrize("name", ALGORITHMS)
def test_equal_rows_and_empty_components_do_not_become_nan(name):
    rows = [np.ones((6, 2)), np.zeros((6, 2)), np.eye(2).repeat(3, axis=0)]
    start = np.full((3, 2), 0.5), np.tile(np.array([[0.0, 0.0], [500.0, 500.0]]), (3, 1, 1))
    for case in (GAUSSIAN, BY_NAME["gaussian-tied"], BY_NAME["gaussian-full"]):
        result = fit(case, Federation.from_sites(["a", "b", "c"], rows), ALGORITHMS[name](), start, rounds=20)
        assert np.isfinite(result.theta).all(), case
        assert np.isfinite(result.weights).all(), case


@pytest.mark.parametrize(("name", "family"), sorted(REFUSED))
def test_an_algorithm_that_does_not_run_on_a_family_says_so(name, family):
    case = BY_NAME[family]
    with pytest.raises(InputError, match=rf"'{name}' does not run on {case.family.name} components.*use\s+'fedem'"):
        fit(case, sites(case), ALGORITHMS[name](), case.near(1, 4))


@pytest.mark.parametrize("rule", CENTER_RULES)
@pytest.mark.parametrize("case", [GAUSSIAN, BY_NAME["gaussian-tied"]], ids=repr)
def test_every_center_rule_by_name_and_as_an_object_is_the_same(rule, case):
    named, made = (
        fit(case, sites(case), FedGrEM(center=center), case.near(2, 4)) for center in (rule, CENTER_RULES[rule]())
    )
    assert_same_fit(named, made, rtol=0, atol=0)
    assert np.isfinite(named.theta).all()
    over_the_wire = fit(case, sites(case), FedGrEM(center=rule), case.near(2, 4), engine=FakeWire)
    assert_same_fit(over_the_wire, named)
