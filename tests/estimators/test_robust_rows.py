"""Estimators told that some rows may be of no component."""

import numpy as np
import pytest

from fedgrem import FederatedGaussianMixture, FederatedRegressionMixture
from fedgrem.attacks.rows import PartOfRows, attack_rows
from fedgrem.data.simulate import simulate
from fedgrem.errors import InputError
from fedgrem.kernels.scores import parameter_errors
from fedgrem.report.summary import summarize, summary_text

DRAWN = simulate("gmm", h=0.5, seed=3)
FIVE = {"n_components": 5, "random_state": 0, "standard_errors": False, "verbose": 0}


def contaminated(kind, drawn=DRAWN):
    return attack_rows(drawn.rows, PartOfRows(kind), list(drawn.rows), targets=drawn.targets, seed=1)


def error(model, theta, drawn=DRAWN):
    parts = (model.weights_, theta, drawn.weights, drawn.theta)
    return parameter_errors(*(part[drawn.honest] for part in parts))[1].max()


@pytest.fixture(scope="module")
def plain():
    return FederatedGaussianMixture(**FIVE).fit(DRAWN.rows)


@pytest.fixture(scope="module")
def robust():
    return FederatedGaussianMixture(robust_rows=True, **FIVE).fit(contaminated("far")[0])


@pytest.mark.parametrize("kind", ["far", "clump", "heavy"])
def test_a_tenth_of_odd_rows_at_every_site_costs_next_to_nothing(plain, robust, kind):
    rows, _ = contaminated(kind)
    model = robust if kind == "far" else FederatedGaussianMixture(robust_rows=True, **FIVE).fit(rows)
    assert error(model, model.means_) < 1.2 * error(plain, plain.means_)
    assert (model.site_verdict_[:9] != "suspect").all()
    np.testing.assert_allclose(model.rows_held_down_[:9], 0.1, atol=0.025)
    deviations = np.sqrt(np.diagonal(model.center_covariances_[0]))
    np.testing.assert_allclose(deviations, np.sqrt(np.diagonal(plain.center_covariances_[0])), rtol=0.1)


def test_missing_cells_go_with_it(plain):
    rows, _ = contaminated("far")
    generator = np.random.default_rng(0)
    rows = {name: np.where(generator.random(one.shape) < 0.05, np.nan, one) for name, one in rows.items()}
    model = FederatedGaussianMixture(robust_rows=True, missing="em", **FIVE | {"n_init": 5}).fit(rows)
    assert error(model, model.means_) < 1.4 * error(plain, plain.means_)


def test_regressions_stand_far_responses():
    found = []
    for seed in range(3):
        drawn = simulate("mor", seed=seed, n_sites=6)
        rows, targets = contaminated("far", drawn)
        options = FIVE | {"fit_intercept": False, "random_state": seed}
        clean = FederatedRegressionMixture(**options).fit(drawn.rows, drawn.targets)
        model = FederatedRegressionMixture(robust_rows=True, **options).fit(rows, targets)
        found.append((error(clean, clean.coef_, drawn), error(model, model.coef_, drawn)))
        assert np.median(model.noise_) < 1.3
    usual, here = np.mean(found, axis=0)
    assert here < 1.2 * usual


def test_clean_rows_are_none_the_worse(plain):
    model = FederatedGaussianMixture(robust_rows=True, **FIVE).fit(DRAWN.rows)
    assert error(model, model.means_) < 1.02 * error(plain, plain.means_)
    assert (model.rows_held_down_[:9] < 0.03).all()


def test_auto_is_the_plain_fit_where_no_rows_stand_out_and_the_robust_one_where_some_do(robust):
    honest = {name: DRAWN.rows[name] for name in list(DRAWN.rows)[:9]}
    with_auto, without = (FederatedGaussianMixture(robust_rows=one, **FIVE).fit(honest) for one in ("auto", False))
    np.testing.assert_array_equal(with_auto.means_, without.means_)
    np.testing.assert_array_equal(with_auto.rows_held_down_, 0.0)
    assert with_auto.robust_rows == "auto"
    model = FederatedGaussianMixture(robust_rows="auto", **FIVE).fit(contaminated("far")[0])
    np.testing.assert_array_equal(model.means_, robust.means_)


def test_the_share_is_told(plain, robust):
    np.testing.assert_array_equal(plain.rows_held_down_, 0.0)
    assert "do not count" not in summary_text(plain)
    assert "Rows of no component do not count: 10" in summary_text(robust)
    told = [site.held_down for site in summarize(robust).sites]
    np.testing.assert_array_equal(told, robust.rows_held_down_)


def test_one_more_site_is_fitted_alike(robust):
    names = list(DRAWN.rows)
    model = FederatedGaussianMixture(robust_rows=True, **FIVE)
    rows, _ = contaminated("far")
    model.fit({name: rows[name] for name in names[:8]})
    model.fit_site(rows[names[8]], name="later")
    assert parameter_errors(model.weights_[8:], model.means_[8:], DRAWN.weights[8:9], DRAWN.theta[8:9])[1] < 1.5
    assert abs(model.rows_held_down_[8] - 0.1) < 0.03


def test_one_site_alone_is_robust_too():
    rows, _ = contaminated("clump")
    model = FederatedGaussianMixture(robust_rows=True, **FIVE).fit(rows["site-01"])
    assert abs(model.rows_held_down_[0] - 0.1) < 0.03


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"robust_rows": "yes"}, "robust_rows must be True, False or 'auto', got 'yes'"),
        ({"robust_rows": True, "algorithm": "fedgmm"}, "robust_rows does not go with FedGMM"),
        ({"robust_rows": "auto", "algorithm": "fedem-sa"}, "robust_rows does not go with FedEM-SA"),
        ({"robust_rows": True, "secure_sums": True}, "robust_rows does not go with secure_sums"),
    ],
)
def test_what_it_does_not_go_with_is_said(options, match):
    with pytest.raises(InputError, match=match):
        FederatedGaussianMixture(n_components=2, **options).fit(DRAWN.rows)


def test_responses_that_are_no_numbers_do_not_take_it():
    drawn = simulate("mor", seed=0, n_sites=3)
    model = FederatedRegressionMixture(2, response="binary", robust_rows=True)
    with pytest.raises(InputError, match="robust_rows does not go with response='binary'"):
        model.fit(drawn.rows, {name: (one > 0).astype(float) for name, one in drawn.targets.items()})


@pytest.mark.parametrize("algorithm", ["fedem", "local-em", "pooled-em", "tgmm"])
def test_other_algorithms_take_it(algorithm):
    rows, _ = contaminated("heavy")
    model = FederatedGaussianMixture(robust_rows=True, algorithm=algorithm, **FIVE | {"max_rounds": 200}).fit(rows)
    assert np.abs(model.means_).max() < 20.0
    assert (model.rows_held_down_ > 0.05).all()
