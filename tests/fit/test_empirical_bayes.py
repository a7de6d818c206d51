"""Sites shrunk as far as they are alike; an oracle knows the labels, who is honest and how alike they are."""

import numpy as np
import pytest
from scipy.optimize import linear_sum_assignment

from fedgrem import FederatedGaussianMixture, FedGrEM
from fedgrem.data.simulate import simulate
from fedgrem.plots import plot_penalty


def largest_error(found, true):
    square = ((found[:, :, None] - true[:, None]) ** 2).sum(axis=-1)
    return float(np.sqrt(square[:, *linear_sum_assignment(np.median(square, axis=0))]).max())


def oracle(truth, h):
    """Means of the labelled rows, shrunk to their common mean as the true similarity calls for."""
    names = [name for name, honest in zip(truth.rows, truth.honest, strict=True) if honest]
    _, n_components, size = truth.theta.shape
    between = h * h / size
    own = [[truth.rows[name][truth.labels[name] == r] for r in range(n_components)] for name in names]
    held = np.array([[len(rows) for rows in site] for site in own], dtype=float)
    means = np.array([[rows.mean(axis=0) if len(rows) else np.zeros(size) for rows in site] for site in own])
    weight = held / (1.0 + held * between)
    center = (weight[..., None] * means).sum(axis=0) / weight.sum(axis=0)[:, None]
    kept = (held * between / (1.0 + held * between))[..., None]
    return center + kept * (means - center)


@pytest.mark.parametrize("h", [0.0, 0.5, 1.0, 2.0])
def test_the_error_is_within_a_few_percent_of_the_oracles(h):
    ours, known = [], []
    for seed in range(4):
        truth = simulate("gmm", h=h, seed=seed)
        model = FederatedGaussianMixture(5, covariance_type="identity", random_state=seed, standard_errors=False)
        true = truth.theta[truth.honest]
        ours.append(largest_error(model.fit(truth.rows).means_[truth.honest], true))
        known.append(largest_error(oracle(truth, h), true))
        expected = h / np.sqrt(10.0)
        assert np.sqrt(model.between_site_variance_) == pytest.approx(expected, abs=0.05 + 0.3 * expected)
    assert np.mean(ours) < 1.06 * np.mean(known)


def test_alike_sites_sit_exactly_on_the_center_and_a_hostile_one_does_not_move():
    truth = simulate("gmm", h=0.0, seed=3)
    options = {"covariance_type": "identity", "random_state": 0, "standard_errors": False}
    model = FederatedGaussianMixture(5, **options).fit(truth.rows)
    assert model.at_center_[:9].all()
    alone = FederatedGaussianMixture(5, penalty=0.0, **options).fit(truth.rows)
    np.testing.assert_allclose(model.site_threshold_[9], 0.0, atol=1e-9)
    assert largest_error(model.means_[9:], alone.means_[9:]) < 0.5


def test_intervals_of_shrunk_sites_hold_the_truth():
    inside = []
    for seed in range(3):
        truth = simulate("gmm", h=1.0, seed=seed)
        model = FederatedGaussianMixture(5, covariance_type="identity", random_state=seed).fit(truth.rows)
        found, true = model.means_[truth.honest], truth.theta[truth.honest]
        square = ((found[:, :, None] - true[:, None]) ** 2).sum(axis=-1)
        i, j = linear_sum_assignment(np.median(square, axis=0))
        inside.append(np.abs(found[:, i] - true[:, j]) < 1.96 * model.means_se_[truth.honest][:, i])
        alone = FederatedGaussianMixture(5, covariance_type="identity", penalty=0.0, random_state=seed)
        assert np.nanmean(model.means_se_[:9]) < np.nanmean(alone.fit(truth.rows).means_se_[:9])
    assert 0.9 < np.mean(inside) < 0.98


def test_a_site_that_comes_later_is_shrunk_as_the_others_were():
    truth = simulate("gmm", h=1.0, seed=5)
    model = FederatedGaussianMixture(5, random_state=0).fit(truth.rows)
    joined = model.fit_site(truth.rows["site-02"], name="again")
    assert np.abs(joined.means_[-1] - joined.means_[1]).max() < 0.05
    far = model.fit_site(truth.rows["site-02"] + 30.0, name="far")
    assert far.site_verdict_[-1] == "suspect"


def test_a_given_penalty_is_a_threshold():
    truth = simulate("gmm", h=0.5, seed=1)
    fits = [
        FederatedGaussianMixture(5, penalty=2.0, fallback=None, random_state=0, algorithm=FedGrEM(center=center))
        for center in ("empirical-bayes", "redescending")
    ]
    ours, theirs = (model.fit(truth.rows) for model in fits)
    np.testing.assert_array_equal(ours.means_, theirs.means_)


@pytest.mark.parametrize(("covariance", "seed"), [("identity", 4), ("tied", 7), ("tied", 11)])
def test_a_fit_ends_also_at_the_border_of_sites_that_do_not_differ(covariance, seed):
    truth = simulate("gmm", h=0.0, seed=seed)
    model = FederatedGaussianMixture(5, covariance_type=covariance, random_state=0, standard_errors=False)
    assert model.fit(truth.rows).converged_
    assert model.n_rounds_ < 100


@pytest.mark.parametrize(("penalty", "label"), [("auto", "as alike\nas sites are"), (np.inf, "one for\nall")])
def test_the_picture_of_penalties_says_what_infinity_was(penalty, label):
    truth = simulate("gmm", h=0.5, n_sites=4, n_outliers=0, seed=1)
    model = FederatedGaussianMixture(5, penalty=penalty, fallback="local", random_state=0, standard_errors=False)
    assert plot_penalty(model.fit(truth.rows)).get_xticklabels()[-1].get_text() == label
