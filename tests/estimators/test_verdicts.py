import numpy as np
import pytest

from fedgrem import FederatedGaussianMixture, FederatedRegressionMixture
from fedgrem.models import load_model, save_model

CENTERS = np.array([[0.0, 0.0], [6.0, 6.0]])

PLAIN = {"n_init": 2, "penalty": 2.0, "standard_errors": False, "random_state": 0}
"""The verdicts of a fit with a chosen penalty are in the tests of that choice."""


def federation(hostile=True, scale=1.0):
    generator = np.random.default_rng(0)
    names = ["north", "south", "east", "inland", "coast"]
    rows = {name: CENTERS[generator.integers(2, size=60)] + generator.normal(size=(60, 2)) for name in names}
    if hostile:
        rows["west"] = generator.normal(size=(60, 2)) * 2.0 + [9.0, -9.0]
    return {name: scale * x for name, x in rows.items()}


def fit(rows, **options):
    return FederatedGaussianMixture(2, **PLAIN | options).fit(rows)


@pytest.fixture(scope="module")
def fitted():
    return fit(federation())


@pytest.mark.parametrize(
    "options",
    [
        {"penalty": 0.0},
        {"penalty": 2.0},
        {"penalty": np.inf},
        {"algorithm": "local-em", "penalty": "auto"},
        {"algorithm": "fedem", "penalty": "auto"},
    ],
    ids=str,
)
def test_the_hostile_site_is_suspect_whatever_pulls_the_sites(options):
    model = fit(federation(), covariance_type="identity", **options)
    assert model.site_names_[model.site_verdict_ == "suspect"].tolist() == ["west"]


def test_without_a_hostile_site_all_are_at_the_center():
    model = fit(federation(hostile=False))
    assert model.site_verdict_.tolist() == ["at the center"] * 5


def test_units_do_not_matter(fitted):
    scaled = fit(federation(scale=1000.0))
    assert scaled.site_verdict_.tolist() == fitted.site_verdict_.tolist()
    for name in ("distance", "p_value", "leave_one_out"):
        np.testing.assert_allclose(scaled.site_evidence_[name], fitted.site_evidence_[name], rtol=1e-3, atol=1e-6)
    shift = fitted.site_evidence_["log_likelihood"] - scaled.site_evidence_["log_likelihood"]
    np.testing.assert_allclose(shift, 2.0 * np.log(1000.0), atol=1e-6)


@pytest.mark.parametrize("options", [{"algorithm": "pooled-em", "penalty": "auto"}])
def test_without_a_center_nobody_is_judged(options):
    model = fit(federation(), covariance_type="identity", **options)
    assert set(model.site_verdict_) == {"not judged"}
    assert model.site_evidence_ == {}


def test_a_saved_model_keeps_its_verdicts(fitted, tmp_path):
    again = load_model(save_model(fitted, tmp_path / "model"))
    assert again.site_verdict_.tolist() == fitted.site_verdict_.tolist()
    for name, kept in fitted.site_evidence_.items():
        np.testing.assert_array_equal(again.site_evidence_[name], kept)


def test_a_regression_names_the_site_with_other_coefficients():
    generator = np.random.default_rng(1)
    rows = {f"site-{k}": generator.normal(size=(80, 2)) for k in range(6)}
    slope = {name: [1.0, -1.0] if name != "site-5" else [4.0, 4.0] for name in rows}
    y = {name: x @ slope[name] + generator.normal(size=80) for name, x in rows.items()}
    model = FederatedRegressionMixture(1, **PLAIN).fit(rows, y)
    assert model.site_names_[model.site_verdict_ == "suspect"].tolist() == ["site-5"]
