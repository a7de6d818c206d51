"""Sites of two rows are sites like any other: they take part, end at the center, and are not judged."""

import numpy as np
import pytest

from fedgrem import FederatedGaussianMixture, FederatedRegressionMixture

MIDDLES = np.array([[0.0, 0.0, 0.0], [4.0, 0.0, 0.0], [0.0, 5.0, 1.0]])
SLOPES = np.array([[2.0, 0.0, 0.0], [-2.0, 1.0, 0.0], [0.0, 0.0, 3.0]])
SIZES = np.concatenate([[1, 2, 2, 3], np.random.default_rng(0).integers(2, 71, 156)])


def schools(regression):
    generator = np.random.default_rng(1)
    rows, target = {}, {}
    for k, n in enumerate(SIZES):
        groups = generator.choice(3, size=n, p=[0.5, 0.3, 0.2])
        x = generator.normal(size=(n, 3))
        rows[f"school-{k:03d}"] = x if regression else MIDDLES[groups] + x
        target[f"school-{k:03d}"] = (x * SLOPES[groups]).sum(axis=1) + 0.5 * generator.normal(size=n)
    return rows, target


def nearest(found, truth):
    return np.linalg.norm(found[:, None] - truth, axis=-1).min(axis=0).max()


@pytest.mark.parametrize("covariance", ["full", "tied"])
def test_mixtures_of_160_sites_of_1_to_70_rows(covariance):
    rows, _ = schools(regression=False)
    model = FederatedGaussianMixture(3, covariance_type=covariance, standard_errors=True, random_state=0).fit(rows)
    assert model.converged_
    assert nearest(model.center_, MIDDLES) < 0.1
    check_small(model, rows)
    assert np.isnan(model.weights_se_[0]).all() == (SIZES[0] < 2)
    fit_one_more(model, np.zeros((1, 3)))


def test_regressions_over_160_sites_of_1_to_70_rows():
    rows, target = schools(regression=True)
    model = FederatedRegressionMixture(3, random_state=0).fit(rows, target)
    assert model.converged_
    assert nearest(model.center_, SLOPES) < 0.1
    check_small(model, rows)
    fit_one_more(model, np.zeros((1, 3)), np.zeros(1))


def check_small(model, rows):
    evidence, small = model.site_evidence_, SIZES < 6
    np.testing.assert_array_equal(model.site_verdict_ == "not judged", evidence["judged_from"] > model.n_rows_)
    assert set(model.site_verdict_[small]) == {"not judged"}
    assert np.mean(model.site_verdict_ == "suspect") <= 0.03
    assert model.at_center_[small].mean() > 0.9
    assert not model.local_only_[small].any()
    # Weights of few rows are the common ones, or next to them.
    assert np.abs(model.weights_[small] - model.center_weights_).max() < 0.1
    needed = int(evidence["judged_from"].max())
    assert f"not judged, with fewer than the {needed} rows that it takes" in " ".join(model.summary().split())


def fit_one_more(model, row, target=None):
    model.fit_site(row, target, name="school-new")
    assert model.site_verdict_[-1] == "not judged"
    assert np.isfinite(model.weights_[-1]).all()
    assert model.at_center_[-1].all()
