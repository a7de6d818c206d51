"""What every family owes, over the table FAMILIES: densities, sums, gradient, curvature, ascent, padding, weights."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import logsumexp

from fedgrem.data import stack as stacks
from fedgrem.data.federation import Site, stack_sites
from fedgrem.families.base import LEAST_SHARE, largest_eigenvalue_bound, posterior, weights_of
from fedgrem.families.gaussian import Gaussian
from fedgrem.families.registry import FAMILIES as REGISTERED
from fedgrem.families.regression import LinearRegression
from fedgrem.kernels.center import shrink
from fedgrem.types import Params, Sums
from tests.conformance.families import FAMILIES, GAUSSIAN, GENERALIZED, NOISY, PLAIN, POISSON, REGRESSION, unpadded

N = 24
everyone = pytest.mark.parametrize("case", FAMILIES, ids=repr)


def q_value(case, stack, theta, noise, mass):
    """(R,) Q of every component for posteriors (R, n)."""
    target = None if stack.target is None else stack.target[0]
    return (mass * case.log_density(case.family, stack.rows[0], target, theta, noise)).sum(axis=1)


def some_mass(seed, n=N):
    return np.random.default_rng(seed).dirichlet(np.ones(2), size=n).T


def sums_of(case, stack, mass, theta=None):
    """Sums for given posteriors (R, n), where they depend on theta at that, or the components' own."""
    found = mass[None] @ case.family.features_of(stack)
    if case in GENERALIZED:
        params = Params(np.full((1, 2), 0.5), case.theta[None] if theta is None else theta[None])
        terms = case.family.terms(stack, params, None)
        found = np.concatenate([found, *(term.sums(mass[None], slice(0, stack.size)) for term in terms)], axis=-1)
    return Sums(found, case.family.rest_of(stack), np.zeros(1))


def test_every_registered_family_is_in_the_table():
    assert {case.family.name for case in FAMILIES} == set(REGISTERED)


@everyone
def test_every_family_says_what_it_is(case):
    family = case.family
    assert replace(family) == family
    assert hash(replace(family)) == hash(family)  # what is derived from rows is kept by family
    assert family.n_parameters(case.rows(0, 3)[0].shape[1]) == case.theta.shape[1]
    assert family.features_of(case.stack(0, 5))[..., 0].tolist() == [[1.0] * 5]


# -- the E-step


@everyone
@pytest.mark.parametrize("away", [0.0, 300.0])
def test_row_scores_are_scipys_log_likelihoods_and_posteriors(case, away):
    stack, params = case.stack(1, 12), case.params(1)
    if away and case.family.has_target and not case.discrete:
        params = params._replace(theta=params.theta * 10.0)
        stack = unpadded(Site("a", stack.rows[0], stack.target[0] * 10.0, np.ones(12)))
    elif away and not case.discrete:  # counts have no far origin
        params = params._replace(theta=params.theta + away)
        stack = unpadded(Site("a", stack.rows[0] + away, None, np.ones(12)))
    joint = case.joint(stack, params)
    shares, value = case.family.row_scores(stack, params)
    np.testing.assert_allclose(value[0], logsumexp(joint, axis=0), rtol=1e-9, atol=1e-8)
    np.testing.assert_allclose(shares[0], np.exp(joint - logsumexp(joint, axis=0)), rtol=1e-6, atol=1e-8)


@everyone
def test_an_e_step_is_the_sum_over_weighted_rows_of_the_row_scores(case):
    weight = np.random.default_rng(2).permutation(np.repeat([0.0, 0.5, 1.0, 3.0], 5))
    stack, params = case.stack(2, 20, weight), case.params(2)
    sums = case.family.expect(stack, params)
    shares, value = case.family.row_scores(stack, params)
    mass = shares[0] * stack.weight[0]
    expected = mass @ case.family.features_of(stack)[0]
    np.testing.assert_allclose(sums.features[0, :, : expected.shape[1]], expected, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(sums.held[0], mass.sum(axis=1), rtol=1e-12)
    np.testing.assert_allclose(sums.log_likelihood[0], stack.weight[0] @ value[0], rtol=1e-11)
    np.testing.assert_allclose(weights_of(sums)[0], mass.sum(axis=1) / mass.sum(), rtol=1e-12)


@everyone
def test_fits_side_by_side_are_those_of_each_alone(case):
    stack = case.stack(3, 15)
    several = [case.params(seed, shift) for seed, shift in ((0, 0.1), (1, -0.4), (2, 0.9))]
    together = Params(*(None if leaf[0] is None else np.stack(leaf, axis=1) for leaf in zip(*several, strict=True)))
    sums = case.family.expect(stack, together)
    theta = case.family.maximize(stack, together, sums)
    noise = case.family.noise_step(sums, theta, together.noise)
    for b, params in enumerate(several):
        one = case.family.expect(stack, params)
        np.testing.assert_allclose(sums.features[:, b], one.features, rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(sums.log_likelihood[:, b], one.log_likelihood, rtol=1e-12)
        own = case.family.maximize(stack, params, one)
        np.testing.assert_allclose(theta[:, b], own, rtol=1e-9, atol=1e-9)
        if noise is not None:
            np.testing.assert_allclose(noise[:, b], case.family.noise_step(one, own, params.noise), atol=1e-9)
        shares, value = case.family.row_scores(stack, together)
        alone = case.family.row_scores(stack, params)
        np.testing.assert_allclose(shares[:, b], alone[0], rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(value[:, b], alone[1], rtol=1e-11)


@given(st.integers(0, 10_000), st.sampled_from([1.0, 100.0, 1e5]))
def test_posteriors_agree_with_scipy_on_every_scale(seed, scale):
    generator = np.random.default_rng(seed)
    eta, features = -scale * generator.exponential(size=(1, 3, 2)), generator.exponential(size=(1, 8, 2))
    share, total, peak = posterior(eta, features, 3)
    joint = eta[0] @ features[0].T
    np.testing.assert_allclose((share / total[:, :, None])[0, 0], np.exp(joint - logsumexp(joint, axis=0)),
                               rtol=1e-7, atol=1e-12)  # fmt: skip
    np.testing.assert_allclose((peak + np.log(total))[0, 0], logsumexp(joint, axis=0), rtol=1e-12)


def test_rows_a_hundred_thousand_nats_away_still_get_a_posterior():
    stack = unpadded(Site("a", np.array([[450.0], [450.5]]), None, np.ones(2)))
    shares, value = Gaussian().row_scores(stack, Params(np.full((1, 2), 0.5), np.zeros((1, 2, 1))))
    np.testing.assert_array_equal(shares, 0.5)
    assert np.isfinite(value).all()


def test_a_row_that_nothing_explains_belongs_to_all_alike_and_says_so():
    stack = unpadded(Site("a", np.array([[0.0], [1.0]]), None, np.ones(2)))
    with np.errstate(all="ignore"):
        shares, value = POISSON.family.row_scores(stack, Params(np.full((1, 2), 0.5), np.full((1, 2, 1), 800.0)))
    np.testing.assert_array_equal(shares, 0.5)
    assert not np.isfinite(value).any()


@pytest.mark.parametrize("case", PLAIN, ids=repr)
def test_a_component_of_weight_zero_holds_nothing_and_changes_nothing(case):
    stack, theta = case.stack(4, 15), np.concatenate([case.theta, case.theta[:1]])[None]
    with_it = case.family.expect(stack, Params(np.array([[0.4, 0.6, 0.0]]), theta))
    without = case.family.expect(stack, Params(np.array([[0.4, 0.6]]), theta[:, :2]))
    np.testing.assert_allclose(with_it.features[0, :2], without.features[0], rtol=1e-12, atol=1e-12)
    assert with_it.held[0, 2] < 1e-250


# -- the gradient and what bounds it


@pytest.mark.parametrize("case", [c for c in FAMILIES if not (c.discrete and c.family.name == "table")], ids=repr)
def test_the_gradient_of_q_agrees_with_finite_differences(case):
    stack, mass, noise = case.stack(5, N), some_mass(5), case.some_noise()
    theta = case.theta + 0.3
    width, columns = 1e-5, []
    for shift in width * np.eye(theta.shape[1]):
        above, below = (q_value(case, stack, theta + s, noise, mass) for s in (shift, -shift))
        columns.append((above - below) / (2.0 * width))
    slope = np.stack(columns, axis=1)
    gradient = case.family.gradient(sums_of(case, stack, mass, theta))(theta[None])
    expected = (case.covariances(noise) @ slope[..., None])[..., 0]  # it is in the metric of the noise
    np.testing.assert_allclose(gradient[0], expected, rtol=1e-6, atol=1e-5)


@everyone
def test_the_curvature_bounds_that_of_q_and_not_by_much(case):
    stack, mass = case.stack(6, N), some_mass(6)
    theta, width = case.theta + 0.1, 1e-4
    sums = sums_of(case, stack, mass, theta)
    bound = case.family.curvature(sums, theta[None])
    bound = sums.held if bound is None else bound
    hessian = np.empty((2, 2, 2))
    for j, shift in enumerate(width * np.eye(2)):
        above, below = (case.family.gradient(sums)(theta[None] + s)[0] for s in (shift, -shift))
        hessian[:, j] = -(above - below) / (2.0 * width)
    largest = np.linalg.eigvalsh(0.5 * (hessian + hessian.swapaxes(1, 2)))[:, -1]
    assert np.all(bound[0] >= largest * (1 - 1e-6))
    if case is not POISSON and case not in GENERALIZED:  # whose bound also holds all the way of a step
        assert np.all(bound[0] <= largest * 2 ** (1 / 16) * (1 + 1e-6))


@given(
    st.integers(0, 10_000), st.sampled_from([1, 2, 5]), st.sampled_from([1e-60, 1e-3, 1.0, 1e3, 1e60]), st.booleans()
)
def test_eigenvalue_bound_is_above_the_spectral_norm_by_at_most_the_16th_root_of_q(seed, q, scale, low_rank):
    generator = np.random.default_rng(seed)
    factor = generator.normal(size=(3, q, 1 if low_rank else q))
    sign = generator.choice([-1.0, 1.0], size=(3, 1, factor.shape[2]))
    matrix = scale * (factor * sign) @ np.swapaxes(factor, 1, 2)
    norm = np.abs(np.linalg.eigvalsh(matrix)).max(axis=1)
    bound = largest_eigenvalue_bound(matrix)
    assert np.all(bound >= norm * (1 - 1e-10))
    assert np.all(bound <= norm * q ** (1 / 16) * (1 + 1e-10))


def test_eigenvalue_bound_of_nothing_is_zero():
    assert float(largest_eigenvalue_bound(np.zeros((3, 3)))) == 0.0


# -- the M-step


@pytest.mark.parametrize("factor", [1e-3, 1.0, 1e3])
@pytest.mark.parametrize("case", [GAUSSIAN, REGRESSION, POISSON, *GENERALIZED], ids=repr)
def test_ascent_never_lowers_q_whatever_the_scale_of_the_rows(case, factor):
    plain = case.site(7, N)
    rows = np.round(factor * plain.rows) if case is POISSON else factor * plain.rows
    stack = unpadded(Site("a", rows, plain.target, plain.row_weight))
    for seed in range(10):
        generator = np.random.default_rng(seed)
        theta, mass = generator.normal(scale=3.0, size=case.theta.shape), some_mass(seed)
        theta = theta / max(factor, 1.0) if case in GENERALIZED else theta  # or SciPy's densities overflow
        before = q_value(case, stack, theta, None, mass)
        params = Params(mass.mean(axis=1)[None], theta[None])
        moved = case.family.ascend(stack, params, sums_of(case, stack, mass, theta), 0.95)
        after = q_value(case, stack, moved.theta[0], None, mass)
        assert np.all(after >= before - 1e-12 * np.abs(before))
        assert np.all((moved.step_scale > 0) & (moved.step_scale <= 1))


@everyone
def test_a_step_is_step_size_times_scale_over_the_weight_of_this_e_step(case):
    stack, params = case.stack(8, N), case.params(8)
    sums = case.family.expect(stack, params)
    gradient = case.family.gradient(sums)(params.theta)
    moved = case.family.ascend(stack, params, sums, 0.7)
    length = 0.7 * moved.step_scale / weights_of(sums)
    np.testing.assert_allclose(moved.theta, params.theta + length[..., None] * gradient / N, rtol=1e-12)


def test_pulled_steps_on_one_q_reach_its_penalized_maximum():
    stack, params = REGRESSION.stack(8, N), REGRESSION.params(8)
    family, sums = REGRESSION.family, REGRESSION.family.expect(stack, params)
    reached = []

    def pull(theta, scale):
        return shrink(theta, np.zeros(2), 0.1 * scale)

    for steps in (1, 400):
        many = type("Many", (LinearRegression,), {"steps_of_q": steps})(family.noise)
        reached.append(pull(*many.ascend(stack, params, sums, 1.0, None, pull)))
    one = family.ascend(stack, params, sums, 1.0)
    np.testing.assert_allclose(reached[0], shrink(one.theta, np.zeros(2), 0.1 * one.step_scale), rtol=1e-12)
    # There the gradient is what the penalty takes: tau times the rows held, along the way from the center.
    held, theta = sums.held[..., None], reached[1]
    expected = 0.1 * held * theta / np.linalg.norm(theta, axis=-1, keepdims=True)
    np.testing.assert_allclose(family.gradient(sums)(theta), expected, rtol=1e-6)


@everyone
def test_a_rare_component_is_stepped_as_if_it_held_its_least_share(case):
    stack, mass = case.stack(9, N), np.stack([np.full(N, 1.0 - 1e-3), np.full(N, 1e-3)])
    params, least = case.params(), LEAST_SHARE / 2 * N
    sums = sums_of(case, stack, mass, params.theta[0])
    gradient, curvature = case.family.gradient(sums)(params.theta), case.family.curvature(sums, params.theta)
    length = least if curvature is None else max(curvature[0, 1], least)
    expected = params.theta[0, 1] + gradient[0, 1] / length
    moved = case.family.ascend(stack, params, sums, 1.0)
    np.testing.assert_allclose(moved.theta[0, 1], expected, rtol=1e-12)


@everyone
@pytest.mark.parametrize("rare", [0.3, 1e-3, 1e-9])
def test_first_weights_give_the_papers_step_without_a_floor_whatever_the_curvature(case, rare):
    stack, params, first = case.stack(10, N), case.params(), np.array([[rare, 1.0 - rare]])
    sums = case.family.expect(stack, params)
    gradient = case.family.gradient(sums)(params.theta)
    moved = case.family.ascend(stack, params, sums, 0.7, first)
    np.testing.assert_allclose(moved.theta, params.theta + (0.7 / first)[..., None] * gradient / N, rtol=1e-12)
    np.testing.assert_array_equal(moved.step_scale, 1.0)


@pytest.mark.parametrize("case", PLAIN, ids=repr)
def test_a_component_of_weight_zero_at_the_start_stays_where_it_is(case):
    stack, first = case.stack(11, N), np.array([[0.0, 1.0]])
    params = Params(first, case.theta[None])
    moved = case.family.ascend(stack, params, case.family.expect(stack, params), 0.95, first)
    np.testing.assert_array_equal(moved.theta[0, 0], case.theta[0])


@pytest.mark.parametrize("case", [case for case in FAMILIES if case not in GENERALIZED], ids=repr)
def test_the_gradient_vanishes_at_the_exact_step(case):
    family = case.family
    if case.family.has_target:
        family = LinearRegression(family.noise, ridge=0.0)
    stack, params = case.stack(12, 40), case.params()
    sums = family.expect(stack, params)
    best = family.maximize(stack, params, sums)
    gradient = family.gradient(sums)(best)
    np.testing.assert_allclose(gradient, 0.0, atol=1e-9)


@everyone
def test_a_component_that_holds_nothing_has_a_finite_step(case):
    stack = case.stack(13, 20)
    params = case.params()
    sums = sums_of(case, stack, np.stack([np.ones(20), np.zeros(20)]), params.theta[0])
    best = case.family.maximize(stack, params, sums)
    moved = case.family.ascend(stack, params, sums, 1.0).theta
    noise = case.family.noise_step(sums, best, params.noise)
    assert np.isfinite(best).all()
    np.testing.assert_array_equal(moved[0, 1], params.theta[0, 1])
    assert noise is None or np.isfinite(noise).all()
    if not case.family.has_target:
        np.testing.assert_array_equal(best[0, 1], params.theta[0, 1])


# -- rows


def everything(case, stack):
    """Everything a family computes from the rows of a stack of sites with the same parameters."""
    family, one = case.family, case.params()
    params = Params(*(None if leaf is None else np.repeat(leaf, len(stack), axis=0) for leaf in one))
    sums = family.expect(stack, params)
    moved = family.ascend(stack, params, sums, 0.95)
    theta = family.maximize(stack, params, sums)
    noise = family.noise_step(sums, theta, params.noise)
    drawn = family.draw(stack, 5, "start", 3, 2, params.noise)
    first = family.first_noise(stack, drawn)
    found = {
        "features": sums.features,
        "log_likelihood": sums.log_likelihood,
        "moved": moved.theta,
        "step_scale": moved.step_scale,
        "theta": theta,
        "drawn": drawn,
        "information": family.information(stack, params),
    }
    return found | ({} if noise is None else {"noise": noise, "first": first})


def assert_same(actual, expected, rtol=1e-9):
    for name, wanted in expected.items():
        np.testing.assert_allclose(actual[name], wanted, rtol=rtol, atol=rtol, err_msg=name)


@everyone
def test_padding_and_neighbours_change_nothing(case):
    sites = [case.site(seed, n, name=f"s{seed}") for seed, n in ((14, 13), (15, 22), (16, 31))]
    together = everything(case, stack_sites(sites, gaps=False))
    for k, site in enumerate(sites):
        alone = everything(case, unpadded(site))
        assert_same({name: leaf[k : k + 1] for name, leaf in together.items()}, alone)


@everyone
def test_a_row_of_integer_weight_is_that_many_rows(case):
    # Distinct weights: two equally heavy rows that are each other's nearest tie exactly, and rounding would decide.
    site = case.site(17, 8, np.random.default_rng(17).permutation(8))
    times = site.row_weight.astype(int)
    target = None if site.target is None else np.repeat(site.target, times)
    repeated = Site(site.name, np.repeat(site.rows, times, axis=0), target, np.ones(times.sum()))
    heavy, plain = (everything(case, unpadded(one)) for one in (site, repeated))
    assert_same(heavy, plain)


@everyone
def test_rows_in_another_order_are_the_same_rows_to_the_bit(case):
    site = case.site(18, 30, np.arange(1.0, 31.0))
    order = np.random.default_rng(0).permutation(30)
    target = None if site.target is None else site.target[order]
    turned = Site(site.name, site.rows[order], target, site.row_weight[order])
    if not case.discrete:  # equal rows with unequal weights may change places, which changes nothing but rounding
        expected, actual = (everything(case, unpadded(one)) for one in (site, turned))
        assert_same(actual, expected, rtol=0)


@everyone
def test_rows_met_in_blocks_are_the_same_rows(case, monkeypatch):
    stack, params = case.stack(19, 700), case.params()
    whole = case.family.expect(stack, params)
    matrix = case.family.information(stack, params)
    monkeypatch.setattr(stacks, "CACHE", 300)
    blocks = []
    stack.total(case.family.features_of(stack), lambda block: blocks.append(block.place) or (np.zeros(1),), 2)
    assert len(blocks) > 3
    assert [b.start for b in blocks[1:]] == [b.stop for b in blocks[:-1]]
    assert (blocks[0].start, blocks[-1].stop) == (0, 700)
    parts = case.family.expect(stack, params)
    np.testing.assert_allclose(parts.features, whole.features, rtol=1e-11, atol=1e-9)
    np.testing.assert_allclose(parts.log_likelihood, whole.log_likelihood, rtol=1e-12)
    np.testing.assert_allclose(case.family.information(stack, params), matrix, rtol=1e-9, atol=1e-7)


# -- the noise as units


@pytest.mark.parametrize("case", NOISY, ids=repr)
def test_noise_units_are_a_way_there_and_back(case):
    theta, noise = np.random.default_rng(0).normal(size=(5, *case.theta.shape)), case.some_noise()
    white = case.family.to_noise(theta, noise)
    np.testing.assert_allclose(case.family.from_noise(white, noise), theta, atol=1e-12)
    length = np.einsum("krp,rpq,krq->kr", theta, np.linalg.inv(case.covariances(noise)), theta)
    np.testing.assert_allclose((white**2).sum(axis=-1), length, rtol=1e-9)


@pytest.mark.parametrize("case", PLAIN, ids=repr)
def test_where_the_noise_is_known_parameters_are_in_its_units(case):
    assert case.family.to_noise(case.theta, None) is case.theta
    assert case.family.from_noise(case.theta, None) is case.theta
    assert case.family.noise_step(None, None, None) is None
