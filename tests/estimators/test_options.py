"""The options of the estimators: what they reach, what exists after every fit, and what a notebook shows."""

import re
import tracemalloc

import numpy as np
import pytest
from sklearn import config_context, set_config
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from tests.estimators.test_covariances import regressions, sites

from fedgrem import TGMM, FederatedGaussianMixture, FederatedRegressionMixture, FedGrEM
from fedgrem.algorithms.registry import ALGORITHMS
from fedgrem.data.simulate import simulate
from fedgrem.errors import InputError
from fedgrem.report import html_summary, summarize, summary_text
from fedgrem.report.attributes import sharing

QUICK = {"n_init": 1, "max_rounds": 20, "tol": 1e-2, "random_state": 0}
SHARED = {
    "site_names_", "n_features_in_", "weights_", "center_", "center_weights_", "weights_se_", "center_se_",
    "at_center_", "has_component_", "site_distance_", "site_threshold_", "between_site_variance_",
    "noise_between_site_variance_", "vanished_", "n_rows_", "rows_held_down_", "penalty_", "noise_penalty_",
    "weights_penalty_",
    "penalty_path_", "site_gain_", "site_gain_se_", "local_only_", "n_components_", "selection_", "n_parameters_",
    "site_verdict_", "site_evidence_", "n_rounds_", "converged_", "unsettled_sites_", "history_", "cost_", "notes_",
    "location_", "scale_",
}  # fmt: skip
OF_MEANS = SHARED | {"means_", "means_se_", "covariances_", "center_covariances_"}
OF_LINES = SHARED | {
    "levels_", "coef_", "coef_se_", "intercept_", "intercept_se_", "noise_",
    "center_intercept_", "center_intercept_se_", "center_noise_",
}  # fmt: skip


# -- options of the algorithm


@pytest.mark.parametrize("algorithm", ["fedgrem", FedGrEM(memory=3)], ids=["name", "object"])
def test_an_option_of_the_algorithm_can_be_set_through_the_estimator(algorithm):
    model = FederatedGaussianMixture(2, algorithm=algorithm).set_params(algorithm__step_size=0.5, penalty=1.0)
    kept = 5 if algorithm == "fedgrem" else 3
    assert model.algorithm == FedGrEM(step_size=0.5, memory=kept)
    assert model.get_params()["algorithm__step_size"] == 0.5
    assert clone(model).algorithm == model.algorithm


def test_algorithm_and_its_options_can_be_set_at_once():
    model = FederatedGaussianMixture(2).set_params(algorithm="tgmm", algorithm__transfer=0.1)
    assert model.algorithm == TGMM(transfer=0.1)


def test_an_option_that_an_algorithm_does_not_have_is_an_error():
    with pytest.raises(
        InputError, match="FedGrEM has no option speed; its options are center, step_size, step_weights"
    ):
        FederatedGaussianMixture().set_params(algorithm__speed=1)
    with pytest.raises(InputError, match="Local-EM has no option step_size; its options are none"):
        FederatedGaussianMixture(algorithm="local-em").set_params(algorithm__step_size=0.5)
    with pytest.raises(TypeError, match="speed"):
        FedGrEM(speed=1)
    with pytest.raises(ValueError, match="Invalid parameter 'step_size'"):
        FederatedGaussianMixture().set_params(step_size=0.5)


def test_a_grid_search_reaches_the_options_of_the_algorithm():
    rows = sites(n_sites=1, n=60)[0]["s0"]
    grid = {"algorithm__step_size": np.array([0.5, 0.9]), "algorithm__local_steps": np.array([1, 5])}
    found = GridSearchCV(FederatedGaussianMixture(3, algorithm=FedGrEM(), **QUICK), grid, cv=2).fit(rows)
    assert found.best_estimator_.algorithm.step_size in (0.5, 0.9)
    assert len(found.cv_results_["params"]) == 4


def test_a_grid_search_over_several_sites_passes_the_labels_on():
    rows, _ = sites(n_sites=3, n=40)
    table, labels = np.concatenate(list(rows.values())), np.repeat(list(rows), 40)
    order = np.random.default_rng(0).permutation(len(table))
    with config_context(enable_metadata_routing=True):
        model = FederatedGaussianMixture(3, **QUICK).set_fit_request(sites=True).set_score_request(sites=True)
        search = GridSearchCV(model, {"penalty": [0.0, 2.0]}, cv=2)
        search.fit(table[order], sites=labels[order])
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()
    assert search.best_estimator_.site_names_.tolist() == list(rows)


@pytest.mark.parametrize("rounds", [1, 7])
def test_the_paper_plays_exactly_the_rounds_asked_for_from_a_given_start(rounds):
    data = simulate("gmm", h=0.5, seed=3)
    start = np.nan_to_num(data.theta, nan=1.0)
    model = FederatedGaussianMixture(
        5, covariance_type="identity", penalty=2.0, algorithm=FedGrEM.paper(), weights_init=np.full((10, 5), 0.2),
        means_init=start, align=False, tol=0, max_rounds=rounds,
    ).fit(data.rows)  # fmt: skip
    assert model.n_rounds_ == model.cost_["rounds"] == rounds
    assert "penalty_exchanges" not in model.cost_
    again = clone(model).fit(data.rows)
    np.testing.assert_array_equal(again.means_, model.means_)


def test_a_name_takes_single_steps_where_all_rounds_are_played_and_an_object_its_own():
    data = simulate("gmm", h=0.5, n_sites=4, seed=3)
    options = {"means_init": np.nan_to_num(data.theta, nan=1.0), "align": False, "tol": 0, "max_rounds": 3}
    options |= {"covariance_type": "identity", "penalty": 2.0}
    named = FederatedGaussianMixture(5, **options).fit(data.rows)
    plain = FederatedGaussianMixture(5, algorithm=FedGrEM(local_steps=1, memory=0), **options).fit(data.rows)
    several = FederatedGaussianMixture(5, algorithm=FedGrEM(), **options).fit(data.rows)
    np.testing.assert_array_equal(named.means_, plain.means_)
    assert np.abs(named.means_ - several.means_).max() > 1e-3


# -- what exists after a fit


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_attributes_exist_after_every_fit_whatever_the_algorithm(algorithm):
    rows, _ = sites(n_sites=3, n=40)
    model = FederatedGaussianMixture(2, algorithm=algorithm, **QUICK | {"tol": 0.0, "max_rounds": 3}).fit(rows)
    assert set(model.fitted_values()) == OF_MEANS
    traits = ALGORITHMS[algorithm].traits
    shares = {"none": "alone", "all": "shared", "pulled": "pulled"}[traits.sharing]
    assert sharing(model) == shares
    if not traits.pulls:
        assert model.penalty_ == {"alone": 0.0, "shared": np.inf}[shares]
    assert summarize(model).method == traits.title
    assert model.site_threshold_.shape == model.weights_.shape


@pytest.mark.parametrize(
    "options",
    [
        {"covariance_type": "identity"},
        {"covariance_type": "diag", "standard_errors": False},
        {"covariance_type": "full", "penalty": 0.0},
        {"covariance_type": "spherical", "penalty": np.inf},
        {"penalty": 2.0, "fallback": "local"},
        {"fallback": None, "missing": "em"},
        {"n_components": [1, 2]},
    ],
    ids=str,
)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning", "ignore::UserWarning")
def test_attributes_of_gaussians_exist_whatever_the_options(options):
    rows, _ = sites(n_sites=3, n=40)
    model = FederatedGaussianMixture(**{"n_components": 2} | QUICK | options).fit(rows)
    assert set(model.fitted_values()) == OF_MEANS
    n_covariances = 1 if options.get("covariance_type", "tied") in ("tied", "identity") else 2
    assert model.covariances_.shape == (3, n_covariances, 2, 2)
    assert model.summary() == summary_text(model)


@pytest.mark.parametrize(
    "options",
    [{}, {"noise": "component"}, {"noise": "unit"}, {"fit_intercept": False}, {"noise": "unit", "fit_intercept": True}],
    ids=str,
)
def test_attributes_of_regressions_exist_whatever_the_options(options):
    rows, targets, _, _ = regressions()
    model = FederatedRegressionMixture(2, **QUICK | options).fit(rows, targets)
    assert set(model.fitted_values()) == OF_LINES
    assert model.intercept_.shape == model.noise_.shape == (4, 2)
    assert model.summary() == summary_text(model)


def test_the_penalty_of_the_weights_is_told_also_where_no_penalties_were_compared():
    rows, _ = sites(n_sites=3, n=40)
    options = {"penalty": 1.5, "fallback": None} | QUICK
    pooled = FederatedGaussianMixture(2, algorithm=FedGrEM(pool_weights=True), **options).fit(rows)
    apart = FederatedGaussianMixture(2, algorithm=FedGrEM(pool_weights=False), **options).fit(rows)
    assert (pooled.weights_penalty_, apart.weights_penalty_) == (1.5, 0.0)


def test_one_site_has_all_attributes_too():
    model = FederatedGaussianMixture(2, **QUICK).fit(sites(n_sites=1, n=60)[0]["s0"])
    assert set(model.fitted_values()) == OF_MEANS
    assert model.site_verdict_.tolist() == ["not judged"]
    assert "One site: there is nothing to compare it with." in model.summary()


def test_regressions_estimate_their_noise_and_an_intercept_by_default():
    rows, targets, _, level = regressions()
    rows = {name: x - 40.0 for name, x in rows.items()}
    model = FederatedRegressionMixture(2, n_init=2, random_state=0).fit(rows, targets)
    np.testing.assert_allclose(np.sort(model.center_intercept_), np.sort(level), atol=0.3)
    np.testing.assert_allclose(model.center_noise_, 0.5, rtol=0.2)


# -- criteria, progress, notebooks


def test_bic_and_aic_are_those_of_the_log_likelihood_and_the_free_parameters():
    rows = sites(n_sites=1, n=60)[0]["s0"]
    model = FederatedGaussianMixture(2, covariance_type="full", **QUICK).fit(rows)
    assert model.n_parameters_ == 1 + 2 * 2 + 2 * 3
    total = model.score_samples(rows).sum()
    assert model.bic(rows) == pytest.approx(-2.0 * total + 11 * np.log(60))
    assert model.aic(rows) == pytest.approx(-2.0 * total + 22)


def test_criteria_count_what_sites_share_once_and_prefer_the_true_number():
    rows, _ = sites(n_sites=4, n=80)
    together, apart = (
        FederatedGaussianMixture(3, penalty=c, n_init=3, random_state=0).fit(rows) for c in (np.inf, 0.0)
    )
    assert together.n_parameters_ == 4 * 2 + 3 * 2 + 3
    assert apart.n_parameters_ == 4 * (2 + 3 * 2 + 3)
    assert together.bic(rows) < apart.bic(rows)
    fewer = FederatedGaussianMixture(2, penalty=np.inf, n_init=3, random_state=0).fit(rows)
    assert together.bic(rows) < fewer.bic(rows)
    assert together.aic(rows) < fewer.aic(rows)


def test_criteria_of_a_regression_take_the_responses():
    rows, targets, _, _ = regressions()
    model = FederatedRegressionMixture(2, **QUICK).fit(rows, targets)
    total = sum(values.sum() for values in model.score_samples(rows, targets).values())
    assert model.bic(rows, targets) == pytest.approx(-2.0 * total + model.n_parameters_ * np.log(400))
    assert model.aic(rows, targets) == pytest.approx(-2.0 * total + model.n_parameters_ * 2.0)


def test_verbose_tells_what_the_sites_do_and_callers_are_told_too(capsys):
    stages = []
    model = FederatedGaussianMixture(2, verbose=1, **QUICK)
    model.fit(sites(n_sites=3, n=40)[0], on_progress=lambda progress: stages.append(progress.stage))
    captured = capsys.readouterr()
    told = captured.err.splitlines()
    assert captured.out == ""
    assert told[0] == "every site reports its size and its columns"
    assert "sites try penalties on a part of their rows" in told
    assert any(re.fullmatch(r"round 2, movement \d\.\de-\d\d", line) for line in told)
    assert told[-1] == "every site reports how well it knows its parameters"
    assert stages[-1] == "standard errors"
    model.set_params(verbose=0).fit(sites(n_sites=3, n=40)[0])
    assert capsys.readouterr().err == ""


def test_a_notebook_shows_the_diagram_before_a_fit_and_the_verdicts_after_it():
    model = FederatedGaussianMixture(2, **QUICK)
    assert "FederatedGaussianMixture" in model._repr_html_()
    assert "sk-" in model._repr_mimebundle_()["text/html"]
    model.fit(sites(n_sites=3, n=40)[0])
    assert model._repr_html_() == model._repr_mimebundle_()["text/html"] == html_summary(model)
    set_config(display="text")
    try:
        assert set(model._repr_mimebundle_()) == {"text/plain"}
    finally:
        set_config(display="diagram")


# -- pitfalls of the past


def test_a_site_on_the_center_has_distance_0_and_sensible_errors():
    generator = np.random.default_rng(3)
    rows = {}
    for name in ("Aachen", "Bonn", "Cologne", "Dortmund", "Essen"):
        n = int(generator.integers(80, 220))
        group = generator.integers(2, size=n)
        glucose = np.where(group, 140, 95) + 8 * generator.normal(size=n)
        rows[name] = np.column_stack([glucose, np.where(group, 31, 24) + 2 * generator.normal(size=n)])
    rows["Essen"][:, 0] /= 2.0
    model = FederatedGaussianMixture(2, random_state=0).fit(rows)
    away = model.site_distance_[model.site_distance_ > 0]
    assert away.min(initial=1.0) > 1e-3
    np.testing.assert_array_equal(model.at_center_, model.site_distance_ == 0.0)
    on_center = model.means_[model.at_center_]
    np.testing.assert_array_equal(on_center, np.tile(model.center_, (5, 1, 1))[model.at_center_])
    assert model.at_center_[:4].any()
    assert model.site_verdict_[-1] == "suspect"
    known = model.center_se_[np.isfinite(model.center_se_)]
    assert known.max() < 5.0
    assert np.nanmax(model.means_se_) < 20.0


def test_a_table_with_gaps_is_fitted_in_moderate_memory():
    generator = np.random.default_rng(0)
    rows = generator.normal(size=(920, 14)) + 4.0 * generator.integers(3, size=(920, 1))
    rows[generator.random(rows.shape) < 0.15] = np.nan
    labels = np.repeat(["a", "b", "c", "d"], 230)
    few = {"n_init": 1, "max_rounds": 2, "random_state": 0}  # the standard errors are what took memory
    tracemalloc.start()
    try:
        model = FederatedGaussianMixture(3, missing="em", penalty=2.0, tol=0, **few).fit(rows, sites=labels)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert np.isfinite(model.means_se_).all()
    assert peak < 300e6


def test_a_regression_has_no_criterion_without_responses():
    rows, targets, _, _ = regressions()
    model = FederatedRegressionMixture(2, **QUICK).fit(rows, targets)
    assert np.isfinite(model.bic(rows, targets))
    for criterion in (model.bic, model.aic):
        with pytest.raises(InputError, match="no likelihood without their responses; pass them as y"):
            criterion(rows)
