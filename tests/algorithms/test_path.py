"""The choice of the penalty: halves, scores, the pick, and what a fit does with it."""

from copy import deepcopy

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fedgrem.algorithms.path import (
    MOST_PER_ROW,
    PENALTIES,
    TOGETHER,
    TWO,
    ScoreRequest,
    _begin_together,
    _part_of_row,
    _Trip,
    hurried,
    path_score,
    pick,
)
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import multivariate_normal

from fedgrem import FederatedGaussianMixture
from fedgrem.algorithms.fedgrem import FedGrEM
from fedgrem.data.federation import Federation
from fedgrem.data.simulate import simulate
from fedgrem.errors import InputError
from fedgrem.families.gaussian import Gaussian
from fedgrem.families.regression import LinearRegression
from fedgrem.kernels.center import trust
from fedgrem.types import Params, SiteData, Upload

KEY = jnp.array([3, 4], dtype=jnp.uint32)
PAPER = {"n_components": 5, "covariance": "identity", "random_state": 0}


def site(rows, padding=0):
    whole = Federation.from_sites(["a"], [rows]).sites[0].as_data()
    return SiteData(*(np.pad(leaf, [(0, 0)] * (leaf.ndim - 1) + [(0, padding)]) for leaf in whole[:3]))


@pytest.fixture(scope="module")
def alike():
    return simulate("gmm", h=0.0, seed=1)


@pytest.fixture(scope="module")
def chosen(alike):
    return FederatedGaussianMixture(**PAPER).fit(alike.rows)


# -- at a site


@given(n=st.integers(1, 40), padding=st.integers(0, 9), parts=st.sampled_from([2, 4]))
def test_parts_are_as_equal_as_can_be_and_padding_does_not_move_a_row(n, padding, parts):
    rows = np.random.default_rng(n).normal(size=(n, 2))
    cut = ScoreRequest(KEY, parts, None)
    plain, padded = (np.asarray(jax.jit(_part_of_row)(cut, site(rows, more))) for more in (0, padding))
    np.testing.assert_array_equal(plain, padded[:n])
    sizes = np.bincount(plain, minlength=parts)
    assert len(sizes) == parts
    assert sizes.max() - sizes.min() <= 1


@pytest.mark.parametrize("parts", [2, 4])
def test_a_score_is_the_log_likelihood_by_the_fit_that_has_not_seen_the_row(parts):
    rows = np.random.default_rng(0).normal(size=(11, 2))
    theta = np.random.default_rng(1).normal(size=(4, 2, 2))  # two penalties by two fits, two components each
    weights = np.array([[0.3, 0.7], [0.5, 0.5], [0.9, 0.1], [0.2, 0.8]])
    request = ScoreRequest(KEY, jnp.asarray(parts), Params(jnp.asarray(weights), jnp.asarray(theta)))
    part = np.asarray(_part_of_row(request, site(rows)))
    reply = path_score(Gaussian(), site(rows, padding=3), request)
    rows = np.asarray(site(rows).columns).T  # as the site keeps them: sorted

    def log_likelihood(member):
        density = np.stack([multivariate_normal(mean, np.eye(2)).pdf(rows) for mean in theta[member]])
        return np.log(weights[member] @ density)

    unseen = [np.where(part == 0, log_likelihood(2 * m), log_likelihood(2 * m + 1)) for m in range(2)]
    away = np.clip((unseen[1] - unseen[0])[part < 2], -MOST_PER_ROW, MOST_PER_ROW)
    np.testing.assert_allclose(reply.gain, [0.0, away.mean()], atol=1e-12)
    np.testing.assert_allclose(reply.error, [0.0, away.std() / np.sqrt(len(away) - 1)], atol=1e-12)
    assert float(reply.n_rows) == 11


def test_one_row_cannot_speak_for_more_than_its_bound():
    far = np.concatenate([np.zeros((9, 1)), [[1e4]]])
    near_it = jnp.array([[0.0], [0.0], [1e4], [1e4]])[:, None]
    request = ScoreRequest(KEY, jnp.asarray(2), Params(jnp.ones((4, 1)), near_it))
    gain = float(path_score(Gaussian(), site(far), request).gain[1])
    assert gain == pytest.approx((MOST_PER_ROW - 9 * MOST_PER_ROW) / 10)


# -- the pick


def test_the_largest_penalty_within_a_standard_error_is_picked_and_infinity_is_not():
    rise = np.array([0.0, 0.2, 0.3, 0.3, 0.3])
    noise = 0.01 * np.random.default_rng(0).normal(size=(8, 5))
    assert pick(rise + noise, (0, 1, 2, 4, np.inf))[0] == 3
    assert pick(rise + noise - np.array([0, 0, 0, 0.2, 0.2]), (0, 1, 2, 4, np.inf))[0] == 2


@given(worst=st.floats(-1e6, 1e6), place=st.integers(0, 4), hostile=st.integers(0, 2))
def test_a_minority_of_sites_cannot_steer_the_pick(worst, place, hostile):
    gain = np.array([0.0, 0.2, 0.4, 0.1, -0.3]) + 0.01 * np.random.default_rng(2).normal(size=(10, 5))
    gain[:hostile, place] = worst
    assert pick(gain, (0, 1, 2, 4, np.inf))[0] == 2


def test_what_is_not_a_number_counts_against_a_penalty():
    gain = np.tile([0.0, 0.2, 0.4], (6, 1)) + 0.01 * np.random.default_rng(2).normal(size=(6, 3))
    gain[:, 2] = np.nan
    assert pick(gain, (0.0, 1.0, 2.0))[0] == 1


# -- the center


def test_sites_begin_where_a_strong_pull_led_them_unless_their_held_out_rows_object():
    penalties = (0.0, TOGETHER, 4.0, np.inf)
    starts = Params(np.full((3, 2), 0.5), np.zeros((3, 2, 1)), np.zeros((3, 1, 1)))
    fits = Params(*(np.stack([leaf + m for m in range(len(penalties) * TWO)]) for leaf in starts))
    gain = np.zeros((3, len(penalties)))
    gain[:, 1] = 0.2, -0.1, np.nan
    begin = _begin_together(starts, _Trip(gain, gain, fits, 1, 1), penalties)
    for start, leaf, fit in zip(starts, begin, fits, strict=True):
        np.testing.assert_array_equal(leaf[0], fit[TWO][0])
        np.testing.assert_array_equal(leaf[1:], start[1:])


def test_regressions_take_more_steps_on_the_path_than_means_whatever_the_fit_takes():
    steps = [hurried(FedGrEM(family, local_steps=1)).local_steps for family in (Gaussian(), LinearRegression())]
    assert steps[1] >= 2 * steps[0] > 2


def test_far_sites_do_not_move_the_center_however_large_the_penalty():
    generator = np.random.default_rng(0)
    theta = jnp.asarray(np.concatenate([generator.normal(size=(9, 1, 2)), 60.0 + np.zeros((1, 1, 2))]))
    weights = jnp.ones((10, 1))
    for penalty in (2.0, 50.0):
        algorithm = FedGrEM(Gaussian(), penalty=penalty, center_solver="redescending")
        begun = algorithm.central_start(Params(weights, theta), jnp.full(10, 9.0))
        honest = FedGrEM(Gaussian(), penalty=penalty).central_start(Params(weights[:9], theta[:9]), jnp.full(9, 9.0))
        honest = honest._replace(center=begun.center)
        alone = replies(theta[:9])
        with_all, _, _ = algorithm.central_step(begun, replies(theta))
        without, _, _ = algorithm.central_step(honest, alone)
        # lambda knows the number of sites, hence not equal to the last digit where it matters who is at the center
        np.testing.assert_allclose(with_all.center, without.center, atol=0.05)
    assert np.asarray(trust(theta, jnp.ones((10, 1)), begun.center))[-1] == 0.0


def replies(theta):
    ones = jnp.ones(theta.shape[:2])
    return Upload(Params(ones, theta), ones, jnp.full(len(theta), 9.0), jnp.zeros(len(theta)))


def test_rare_components_are_pulled_as_if_their_rows_were_all_there_is():
    theta = jnp.asarray(np.random.default_rng(0).normal(size=(5, 2, 3)))
    weights = jnp.tile(jnp.array([0.1, 0.9]), (5, 1))
    uploads = replies(theta)._replace(params=Params(weights, theta), n_rows=jnp.full(5, 100.0))
    algorithm = FedGrEM(Gaussian(), penalty=0.5, penalty_rows="component")
    after, _, _ = algorithm.central_step(algorithm.central_start(Params(weights, theta), uploads.n_rows), uploads)
    for r, held in enumerate((20.0, 180.0)):  # twice the share of the rows: the same as one component of so many
        one = replies(theta[:, r : r + 1])._replace(n_rows=jnp.full(5, held))
        plain = FedGrEM(Gaussian(), penalty=0.5)
        expected, _, _ = plain.central_step(plain.central_start(one.params, one.n_rows), one)
        np.testing.assert_allclose(after.params.theta[:, r], expected.params.theta[:, 0], atol=1e-9)


# -- the fit


def test_alike_sites_are_pulled_strongly_and_beat_the_papers_penalty(alike, chosen):
    honest = alike.honest
    assert chosen.penalty_ >= 1.4
    assert chosen.penalty_path_["penalties"].tolist() == list(PENALTIES)
    assert np.all(chosen.site_gain_[honest] > 0)
    assert np.sum(chosen.site_gain_[honest] > 2 * chosen.site_gain_se_[honest]) >= 7
    fixed = FederatedGaussianMixture(**PAPER, penalty=2.0).fit(alike.rows)

    def error(model):
        away = np.linalg.norm(model.means_[honest][:, :, None] - alike.theta[honest][:, None], axis=-1)
        return away.min(axis=2).max()

    assert error(chosen) < 0.8 * error(fixed)
    assert chosen.cost_["penalty_exchanges"] == 9
    assert "penalty_exchanges" not in fixed.cost_
    assert fixed.penalty_ == 2.0


def test_a_fit_with_a_chosen_penalty_judges_its_sites_and_takes_one_more(alike, chosen):
    assert chosen.site_verdict_[-1] == "suspect"
    assert "suspect" not in chosen.site_verdict_[:-1]
    more = deepcopy(chosen).fit_site(alike.rows["site-01"], name="again")
    assert more.site_verdict_[-1] == chosen.site_verdict_[0]
    np.testing.assert_allclose(more.means_[-1], chosen.means_[0], atol=0.05)
    assert len(more.site_gain_) == len(more.fitted_alone_) == len(more.means_se_) == 11
    assert np.isnan(more.site_gain_[-1])


def test_sites_that_have_nothing_in_common_are_hardly_pulled():
    generator = np.random.default_rng(0)
    rows = {f"s{k}": 12 * generator.normal(size=(2, 1, 3)) + generator.normal(size=(2, 60, 3)) for k in range(5)}
    model = FederatedGaussianMixture(2, covariance="identity", random_state=0)
    model.fit({name: both.reshape(-1, 3) for name, both in rows.items()})
    assert model.penalty_ <= 0.7


def test_a_site_that_loses_clearly_is_given_its_own_fit_back(alike):
    generator = np.random.default_rng(5)
    rows = {name: alike.rows[name] for name in list(alike.rows)[:6]}
    rows["odd"] = np.tile(alike.theta[0] + 0.9, (40, 1)) + generator.normal(size=(200, 10))
    options = PAPER | {"penalty": 4.0}
    pulled = FederatedGaussianMixture(**options).fit(rows)
    released = FederatedGaussianMixture(**options, fallback="local").fit(rows)
    alone = FederatedGaussianMixture(**options | {"penalty": 0.0}).fit(rows)
    assert released.fitted_alone_.tolist() == [False] * 6 + [True]
    assert released.penalty_path_["penalties"].tolist() == [0.0, 4.0]
    np.testing.assert_allclose(np.sort(released.means_[6], axis=0), np.sort(alone.means_[6], axis=0), atol=1e-3)
    assert np.abs(pulled.means_[6] - released.means_[6]).max() > 0.3
    assert not hasattr(pulled, "fitted_alone_")


def test_one_site_has_nothing_to_choose():
    rows = np.random.default_rng(0).normal(size=(30, 2))
    model = FederatedGaussianMixture(1, random_state=0).fit(rows)
    assert model.penalty_ == 2.0
    assert not hasattr(model, "penalty_path_")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"fallback": "none"}, r"fallback must be one of 'auto', 'local'; got 'none'"),
        ({"penalty_rows": "all"}, r"penalty_rows must be one of 'auto', 'component', 'site'; got 'all'"),
        ({"penalty": -1.0}, r"penalty must be in \[0, inf\], got -1.0"),
    ],
)
def test_bad_options_are_refused(options, words):
    with pytest.raises(InputError, match=words):
        FederatedGaussianMixture(2, **options).fit(np.zeros((9, 2)))
