"""Gaussians of rows with missing cells, against conditional distributions written out row by row."""

import numpy as np
import pytest
from scipy.special import logsumexp, softmax
from scipy.stats import multivariate_normal

from fedgrem.data import stack as stacks
from fedgrem.data.federation import Site, stack_sites
from fedgrem.families import gaps
from fedgrem.families.covariance import STRUCTURES
from fedgrem.families.gaussian import Gaussian
from fedgrem.types import Params
from tests.conformance.families import GAUSSIANS, WEIGHTS, unpadded
from tests.families.test_information import assert_close, hessian

structures = pytest.mark.parametrize("case", GAUSSIANS, ids=repr)


def holed(case, seed, n, share=0.3, weight=None, name="a"):
    """A site with cells missing at random, no row without a cell."""
    generator = np.random.default_rng(seed)
    rows = case.rows(seed, n)[0]
    rows[generator.random(n) < share, 0] = np.nan
    rows[(generator.random(n) < share) & ~np.isnan(rows[:, 0]), 1] = np.nan
    return Site(name, rows, None, np.ones(n) if weight is None else weight)


def as_stack(*sites):
    return unpadded(sites[0], gaps=True) if len(sites) == 1 else stack_sites(list(sites), gaps=True)


def by_hand(case, stack, params):
    """Log densities (R, n), expected rows (R, n, p) and expected products (R, n, p, p), one row at a time."""
    noise = None if params.noise is None else params.noise[0]
    covariances = case.covariances(noise)
    n = stack.size
    density, first, second = np.zeros((2, n)), np.zeros((2, n, 2)), np.zeros((2, n, 2, 2))
    for r, i in np.ndindex(2, n):
        seen, x, mean, matrix = stack.observed[0, i], stack.rows[0, i], params.theta[0, r], covariances[r]
        density[r, i] = multivariate_normal(mean[seen], matrix[np.ix_(seen, seen)]).logpdf(x[seen])
        slope = matrix[:, seen] @ np.linalg.inv(matrix[np.ix_(seen, seen)])
        first[r, i] = mean + slope @ (x - mean)[seen]
        second[r, i] = np.outer(first[r, i], first[r, i]) + matrix - slope @ matrix[seen]
    return density + np.log(params.weights[0])[:, None], first, second


@structures
def test_the_e_step_sums_what_is_expected_of_every_row(case):
    stack, params = as_stack(holed(case, 0, 25, weight=np.linspace(0.0, 2.0, 25))), case.params()
    joint, first, second = by_hand(case, stack, params)
    value = logsumexp(joint, axis=0)
    mass = np.exp(joint - value) * stack.weight[0]
    sums = case.family.expect(stack, params)
    np.testing.assert_allclose(sums.log_likelihood[0], stack.weight[0] @ value, rtol=1e-10)
    np.testing.assert_allclose(sums.held[0], mass.sum(axis=1), rtol=1e-10)
    np.testing.assert_allclose(sums.features[0, :, 1:3], np.einsum("rn,rnp->rp", mass, first), rtol=1e-9)
    theta = case.family.maximize(stack, params, sums)
    noise = case.family.noise_step(sums, theta, params.noise)
    if noise is not None:
        whole = np.einsum("rn,rnpq->rpq", mass, second)
        about = whole - mass.sum(axis=1)[:, None, None] * theta[0][:, :, None] * theta[0][:, None]
        assert np.isfinite(noise).all()
        if case.family.covariance.shared:
            expected = about.sum(axis=0) / mass.sum() + 1e-6 * np.eye(2)
            np.testing.assert_allclose(case.family.covariance.matrices(noise, 2)[0, 0], expected, rtol=1e-7)
    posterior, by_row = case.family.row_scores(stack, params)
    np.testing.assert_allclose(by_row[0], value, rtol=1e-10)
    np.testing.assert_allclose(posterior[0] * stack.weight[0], mass, rtol=1e-8, atol=1e-12)


@structures
def test_where_nothing_is_missing_the_steps_are_those_without_gaps(case):
    site, params = case.site(1, 40), case.params()
    whole, holey = unpadded(site), as_stack(site)
    plain, through = (case.family.expect(stack, params) for stack in (whole, holey))
    np.testing.assert_allclose(through.features, plain.features, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(through.log_likelihood, plain.log_likelihood, rtol=1e-11)
    theta = case.family.maximize(whole, params, plain)
    if params.noise is not None:
        found, expected = (case.family.noise_step(sums, theta, params.noise) for sums in (through, plain))
        np.testing.assert_allclose(found, expected, atol=1e-8)


@structures
def test_em_never_lowers_the_log_likelihood_of_what_is_seen(case):
    case = case.with_family(reg_covar=0.0)
    stack, params, values = as_stack(holed(case, 2, 200)), case.params(shift=0.6), []
    for _ in range(12):
        sums = case.family.expect(stack, params)
        theta = case.family.maximize(stack, params, sums)
        params = Params(sums.held / 200.0, theta, case.family.noise_step(sums, theta, params.noise))
        values.append(float(sums.log_likelihood[0]))
    assert np.all(np.diff(values) > (-1e-8 if case.family.covariance.shared else -0.05))


@structures
def test_the_information_about_weights_and_means_is_minus_the_second_derivative(case):
    stack, params = as_stack(holed(case, 3, 80, weight=np.linspace(0.0, 2.0, 80))), case.params()

    def value(x):
        mixture = params._replace(weights=softmax(x[:2])[None], theta=x[2:].reshape(1, 2, 2))
        return float(case.family.expect(stack, mixture).log_likelihood[0])

    expected = -hessian(value, np.concatenate([np.log(WEIGHTS), params.theta.ravel()]), 1e-3)
    assert_close(case.family.information(stack, params)[0], expected, 1e-4)


def test_missing_cells_tell_nothing_and_the_others_what_they_told():
    case = GAUSSIANS[3]
    site, params = case.site(4, 90), case.params()
    rows = site.rows.copy()
    rows[::2, 1] = np.nan
    whole, partly = (
        case.family.information(as_stack(Site("a", r, None, np.ones(90))), params)[0] for r in (site.rows, rows)
    )
    assert partly[3, 3] < 0.8 * whole[3, 3]  # the second mean of the first component


@structures
def test_padding_neighbours_and_blocks_change_nothing(case, monkeypatch):
    sites = [holed(case, seed, n, name=f"s{seed}") for seed, n in ((5, 21), (6, 30), (7, 25))]
    stack, one = as_stack(*sites), case.params()
    params = Params(*(None if leaf is None else np.repeat(leaf, 3, axis=0) for leaf in one))

    def everything(stack, params):
        sums = case.family.expect(stack, params)
        drawn = case.family.draw(stack, 0, "start", 2, 2, params.noise)
        found = [sums.features, sums.log_likelihood, case.family.information(stack, params), drawn]
        return found if params.noise is None else [*found, case.family.first_noise(stack, drawn), sums.rest]

    together = everything(stack, params)
    alone = [everything(as_stack(site), one) for site in sites]
    monkeypatch.setattr(gaps, "AT_ONCE", 40)
    monkeypatch.setattr(stacks, "CACHE", 40)
    blocks = everything(stack, params)
    part = everything(stack.select(np.array([2, 0])), Params(*(None if p is None else p[:2] for p in params)))
    for i, leaf in enumerate(together):
        np.testing.assert_allclose(np.concatenate([own[i] for own in alone]), leaf, rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(blocks[i], leaf, rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(part[i], leaf[[2, 0]], rtol=1e-9, atol=1e-9)


@structures
@pytest.mark.parametrize("robust", [False, True])
def test_a_fit_among_others_is_the_one_by_itself(case, robust):
    case = case.with_family(robust_rows=robust)
    stack, alone = as_stack(holed(case, 9, 60)), [case.params(seed, 0.2 * seed) for seed in range(3)]
    params = Params(*(None if one[0] is None else np.stack(one, axis=1) for one in zip(*alone, strict=True)))
    together, scores = case.family.expect(stack, params), case.family.row_scores(stack, params)
    for b, one in enumerate(alone):
        expected = (*case.family.expect(stack, one), *case.family.row_scores(stack, one))
        for leaf, found in zip(expected, (*together, *scores), strict=True):
            np.testing.assert_allclose(found[:, b], leaf, rtol=1e-10, atol=1e-12)


def test_a_row_without_any_cell_says_nothing():
    family = Gaussian(STRUCTURES["tied"]())
    rows = np.random.default_rng(8).normal(size=(20, 2))
    blank = np.concatenate([rows, np.full((5, 2), np.nan)])
    params = Params(WEIGHTS[None], np.array([[[1.0, 0.0], [-1.0, 0.0]]]), np.zeros((1, 1, 3)))
    with_them, without = (family.expect(as_stack(Site("a", r, None, np.ones(len(r)))), params) for r in (blank, rows))
    np.testing.assert_allclose(with_them.log_likelihood, without.log_likelihood, rtol=1e-12)
    # They are expected to be like the components, in the shares of these.
    np.testing.assert_allclose(with_them.held - without.held, 5.0 * WEIGHTS[None], rtol=1e-9)
