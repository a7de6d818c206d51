"""Few informative columns among many: they are found by all sites together, and the fit is about them."""

from itertools import permutations

import numpy as np
import pytest

from fedgrem import (
    FederatedGaussianMixture,
    FederatedRegressionMixture,
    FederatedTableMixture,
    FedGrEM,
    load_model,
    save_model,
)
from fedgrem.data.federation import Federation
from fedgrem.engines.inprocess import InProcess
from fedgrem.errors import InputError
from fedgrem.families.covariance import Diagonal
from fedgrem.families.gaussian import Gaussian
from fedgrem.families.regression import LinearRegression
from fedgrem.fit.conversation import Agreed, Ask
from fedgrem.fit.spec import FitSpec
from fedgrem.fit.tasks import Directions, Found
from fedgrem.kernels.columns import (
    coefficient_scores,
    column_scores,
    combined,
    leading,
    least_score,
    slope_scores,
    threshold_differences,
)
from fedgrem.studies.chime import chime, sparse_discriminant
from fedgrem.studies.lasso import lasso_mixture
from fedgrem.studies.sparse import CENTERS, draw, play
from fedgrem.types import Params


def sparse(**options):
    return FederatedGaussianMixture(
        3, algorithm=FedGrEM(center="sparse"), random_state=0, **{"covariance_type": "diag"} | options
    )


@pytest.fixture(scope="module")
def many():
    drawn = draw(200, seed=0)
    return drawn, sparse().fit(drawn.rows)


def test_all_informative_columns_among_200_are_found_and_hardly_another(many):
    drawn, model = many
    assert set(drawn.informative) <= set(model.informative_columns_)
    assert len(model.informative_columns_) <= 12
    assert model.means_.shape == (10, 3, len(model.informative_columns_))
    assert model.cost_["columns_exchanges"] >= 11


def test_it_is_as_good_as_a_fit_to_the_true_columns_and_far_better_than_each_site_alone():
    drawn = draw(200, seed=1)
    found = {name: play(name, drawn) for name in ("sparse", "oracle", "federated oracle")}
    alone = play("alone", drawn, covariance="identity")
    assert found["sparse"]["error"] < 0.5 * found["oracle"]["error"]
    assert found["sparse"]["error"] < 1.1 * found["federated oracle"]["error"]
    assert found["sparse"]["misclustering"] < found["federated oracle"]["misclustering"] + 0.005
    assert alone["error"] > 5 * found["sparse"]["error"]
    assert alone["misclustering"] > 5 * found["sparse"]["misclustering"]


def test_a_hostile_site_does_not_hide_the_columns():
    drawn = draw(200, seed=2)
    rows = dict(drawn.rows)
    rows["site-10"] = rows["site-10"] @ np.linalg.qr(np.random.default_rng(0).normal(size=(200, 200)))[0] * 5.0
    model = sparse().fit(rows)
    assert set(drawn.informative) <= set(model.informative_columns_)
    assert model.site_verdict_[-1] == "suspect"


def test_a_saved_model_predicts_and_takes_one_more_site(many, tmp_path):
    drawn, model = many
    loaded = load_model(save_model(model, tmp_path / "model"))
    np.testing.assert_array_equal(model.predict(drawn.rows)["site-01"], loaded.predict(drawn.rows)["site-01"])
    late = draw(200, seed=0).rows["site-03"]
    loaded.fit_site(late, name="late")
    assert loaded.means_.shape == (11, 3, len(model.informative_columns_))
    assert loaded.site_verdict_[-1] in ("at the center", "similar")
    assert np.mean(loaded.predict(late, sites="late") == model.predict(late, sites="site-03")) > 0.97
    assert loaded.sample(5)[0].shape == (5, len(model.informative_columns_))


def test_the_summary_names_the_informative_columns(many):
    drawn, model = many
    text = model.summary()
    assert all(f"x{j}" in text for j in drawn.informative)
    assert f"{len(model.informative_columns_)} of 200 columns" in text


def test_where_no_column_tells_components_apart_a_warning_says_so():
    generator = np.random.default_rng(0)
    rows = {f"site-{k}": generator.normal(size=(40, 15)) for k in range(4)}
    with pytest.warns(UserWarning, match="no columns clearly vary together"):
        sparse(max_rounds=30, tol=1e-3).fit(rows)


def test_what_a_sparse_center_does_not_go_with_is_refused():
    rows = draw(20, n_sites=3, n_rows=30).rows
    with pytest.raises(InputError, match="covariance_type='full' does not"):
        sparse(covariance_type="full").fit(rows)
    with pytest.raises(InputError, match="give n_components as one number"):
        sparse().set_params(n_components="auto").fit(rows)
    with pytest.raises(InputError, match="in process as yet"):
        sparse().fit(rows, engine="flare-simulator")
    with pytest.raises(InputError, match="leave out means_init"):
        sparse(means_init=np.zeros((3, 3, 20))).fit(rows)
    target = {name: (own[:, 0] > 0).astype(float) for name, own in rows.items()}
    with pytest.raises(InputError, match="goes with numbers as responses, and not with response='binary'"):
        lines(response="binary").fit(rows, target)
    with pytest.raises(InputError, match="leave out coef_init"):
        lines(coef_init=np.zeros((3, 3, 20))).fit(rows, target)
    with pytest.raises(InputError, match="this is a FederatedTableMixture"):
        FederatedTableMixture(2, algorithm=FedGrEM(center="sparse")).fit(rows)


# -- regressions: more covariates than a site has rows


def lines(**options):
    return FederatedRegressionMixture(3, algorithm=FedGrEM(center="sparse"), random_state=0, **options)


@pytest.fixture(scope="module")
def wide():
    drawn = draw(200, model="mor", seed=0)
    return drawn, lines().fit(drawn.rows, drawn.targets)


@pytest.mark.parametrize("h", [0.0, 0.5])
def test_regressions_on_200_covariates_are_as_good_as_on_the_true_ones(h):
    drawn = draw(200, model="mor", h=h, seed=1)
    found = {name: play(name, drawn) for name in ("sparse", "federated oracle", "one site")}
    assert (found["sparse"]["true_columns"], found["sparse"]["false_columns"]) == (10, 0)
    assert found["sparse"]["error"] < 1.1 * found["federated oracle"]["error"]
    assert found["one site"]["error"] > 2.0 * found["sparse"]["error"]


def test_covariates_whose_coefficients_cancel_over_components_are_found(wide):
    drawn, model = wide
    columns = model.informative_columns_
    # Of all of them the mean coefficient is next to nothing: the response's own correlations do not tell.
    assert np.abs(CENTERS.mean(axis=0)).max() < 0.4
    np.testing.assert_array_equal(columns, drawn.informative)
    assert model.coef_.shape == (10, 3, 10)


def test_covariates_may_be_correlated_and_in_any_units():
    generator, rows, targets = np.random.default_rng(0), {}, {}
    coef = np.array([[2.0, 0.0, -1.0, 1.5], [-1.0, 2.0, 1.0, 1.5]])
    places = np.array([5, 40, 41, 90])
    for k in range(8):
        own = generator.normal(size=(80, 120))
        for j in range(1, 120):
            own[:, j] += 0.75 * own[:, j - 1]
        label = generator.integers(2, size=80)
        response = (own[:, places] * coef[label]).sum(axis=1) + 0.5 * generator.normal(size=80)
        rows[f"site-{k}"], targets[f"site-{k}"] = 100.0 + 5.0 * own, 7.0 - 3.0 * response
    model = FederatedRegressionMixture(2, algorithm=FedGrEM(center="sparse"), random_state=0).fit(rows, targets)
    np.testing.assert_array_equal(model.informative_columns_, places)
    order = np.argsort(-model.center_[:, 0])[::-1]
    np.testing.assert_allclose(model.center_[order], -0.6 * coef, atol=0.06)


def test_an_odd_site_does_not_hide_the_covariates():
    drawn = draw(200, model="mor", seed=3)
    generator = np.random.default_rng(0)
    rows, targets = dict(drawn.rows), dict(drawn.targets)
    rows["site-10"] = generator.normal(size=(100, 200))
    targets["site-10"] = 5.0 * rows["site-10"][:, :50].sum(axis=1)
    model = lines().fit(rows, targets)
    np.testing.assert_array_equal(model.informative_columns_, drawn.informative)


def test_a_saved_model_of_regressions_predicts_draws_and_takes_one_more_site(wide, tmp_path):
    drawn, model = wide
    loaded = load_model(save_model(model, tmp_path / "model"))
    late, response = drawn.rows["site-03"], drawn.targets["site-03"]
    np.testing.assert_array_equal(loaded.predict(late, sites="site-03"), model.predict(late, sites="site-03"))
    expected = late[:, drawn.informative] @ model.coef_[2].T + model.intercept_[2]
    np.testing.assert_allclose(model.predict(late, sites="site-03"), expected @ model.weights_[2], rtol=1e-9)
    loaded.fit_site(late, response, name="late")
    assert loaded.coef_.shape == (11, 3, 10)
    assert loaded.site_verdict_[-1] in ("at the center", "similar")
    assert loaded.sample(late)[0].shape == (100,)
    assert "10 of 200 columns, that have coefficients" in model.summary()


def test_where_the_response_depends_on_nothing_a_warning_says_so():
    generator = np.random.default_rng(0)
    rows = {f"site-{k}": generator.normal(size=(40, 60)) for k in range(4)}
    targets = {name: generator.normal(size=40) for name in rows}
    with pytest.warns(UserWarning, match="no columns clearly go with the response"):
        FederatedRegressionMixture(2, algorithm=FedGrEM(center="sparse"), max_rounds=30, tol=1e-3, random_state=0).fit(
            rows, targets
        )


def test_scores_of_covariates_that_matter_to_nothing_are_chi_squared():
    generator = np.random.default_rng(0)
    n, rows = 400, generator.normal(size=(400, 3000))
    share = generator.dirichlet([1.0, 1.0], size=n)
    residual = share * generator.normal(size=(n, 2))
    known = residual.T @ residual / n
    score = n * slope_scores(residual.T @ rows / n, known)
    assert score.mean() == pytest.approx(2.0, abs=0.1)
    assert score.var() == pytest.approx(4.0, abs=0.6)
    # Estimates of five correlated covariates, drawn by what is known of them.
    gram = np.cov(generator.normal(size=(5, 9)))
    root = np.linalg.cholesky(np.kron(np.linalg.inv(known), np.linalg.inv(gram)) / n)
    draws = (generator.normal(size=(4000, 10)) @ root.T).reshape(-1, 2, 5)
    scores = n * np.array([coefficient_scores(theta, known, gram) for theta in draws])
    np.testing.assert_allclose(scores.mean(axis=0), 2.0, atol=0.15)
    np.testing.assert_allclose(scores.var(axis=0), 4.0, atol=0.8)


def test_the_lasso_mixture_of_one_site_finds_lines_where_rows_are_many():
    generator = np.random.default_rng(0)
    rows, coef = generator.normal(size=(400, 20)), np.zeros((2, 20))
    coef[0, :3], coef[1, :3] = (2.0, -2.0, 1.0), (-2.0, 1.0, 2.0)
    label = generator.integers(2, size=400)
    target = (rows * coef[label]).sum(axis=1) + 0.5 * generator.normal(size=400)
    found = lasso_mixture(rows, target, 2, 0.5, 0)
    order = np.argsort(-found.coef[:, 0])
    np.testing.assert_allclose(found.coef[order], coef, atol=0.25)
    assert np.mean(found.coef == 0.0) > 0.6
    assert np.mean(order[found.labels] == label) > 0.9


# -- what it is made of


def test_scores_of_columns_without_differences_are_chi_squared():
    generator = np.random.default_rng(1)
    rows = np.array([100.0, 300.0, 50.0])
    center = 3.0 + generator.normal(size=(3, 4000)) / np.sqrt(rows)[:, None]
    score, level = column_scores(center, rows)
    assert score.mean() == pytest.approx(2.0, abs=0.1)
    assert score.var() == pytest.approx(4.0, abs=0.5)
    assert level.std() == pytest.approx(1.0 / np.sqrt(450.0), rel=0.05)
    assert (score > least_score(2, 4000)).sum() <= 2


def test_differences_below_the_threshold_vanish_and_clear_ones_stay():
    center = np.array([[0.0, 5.0, 1.0], [0.02, -5.0, 1.0], [-0.02, 0.0, 1.0]])
    found, informative = threshold_differences(center, np.full(3, 200.0))
    assert informative.tolist() == [False, True, False]
    np.testing.assert_array_equal(found[:, [0, 2]], np.tile([[0.0, 1.0]], (3, 1)))
    np.testing.assert_allclose(found[:, 1], center[:, 1], rtol=2e-3)


def test_what_a_minority_of_sites_sends_moves_little():
    told = np.random.default_rng(0).normal(size=(10, 50))
    honest = combined(told, np.ones(10))
    told[:2] = 1e9
    assert np.abs(combined(told, np.ones(10)) - honest).max() < 1.5


def test_leading_directions_are_the_eigenvectors_that_stand_out():
    axes = np.linalg.qr(np.random.default_rng(0).normal(size=(6, 6)))[0]
    matrix = axes @ np.diag([5.0, 3.0, 0.2, 0.1, 0.0, 0.0]) @ axes.T
    product, values = leading(matrix @ np.eye(6), np.eye(6), 1.0)
    np.testing.assert_allclose(values, [5.0, 3.0], atol=1e-9)
    np.testing.assert_allclose(np.abs(product.T @ axes[:, :2]), np.diag([5.0, 3.0]), atol=1e-9)


@pytest.mark.parametrize("family", [Gaussian(Diagonal()), LinearRegression()], ids=["gaussian", "regression"])
def test_no_reply_about_columns_depends_on_the_number_of_rows(family):
    spec = FitSpec(family, FedGrEM(center="sparse"), 2)
    shapes = []
    for n in (20, 70):
        rows = np.random.default_rng(0).normal(size=(n, 30))
        targets = [rows[:, 0]] if family.has_target else None
        here = InProcess(Federation.from_sites(["a"], [rows], targets), spec)
        told = here.ask(Ask("variation", Directions(np.eye(30, 4)[None]), agreed=Agreed(None, False))).mail
        noise = np.zeros((1, *family.noise_shape(2, 3))) if family.noise_shape(2, 3) else None
        params = Params(np.full((1, 2), 0.5), np.zeros((1, 2, 3)), noise)
        also = here.ask(Ask("contrast", Found(params, np.array([[3, 5, 7]])), agreed=Agreed(None, False))).mail
        shapes.append([leaf.shape for leaf in (*told, *also) if leaf is not None])
    more = ([(1, 2, 30)], [(1, 2, 2), (1, 3, 3)]) if family.has_target else ([], [])
    assert shapes[0] == shapes[1] == [(1, 30, 4), *more[0], (1,), (1, 2), (1, 2, 30), *more[1], (1,)]


def test_the_discriminants_of_the_one_site_method_solve_their_lasso():
    generator = np.random.default_rng(0)
    about, difference = generator.normal(size=(60, 8)) / np.sqrt(60), generator.normal(size=8)
    beta, penalty = np.zeros(8), 0.3
    for _ in range(20):
        beta = sparse_discriminant(about, np.zeros((1, 8)), 0.1, difference, penalty, beta)
    slope = (about.T @ about + 0.1 * np.eye(8)) @ beta - difference
    np.testing.assert_allclose(slope[beta != 0], -penalty * np.sign(beta[beta != 0]), atol=1e-3)
    assert np.all(np.abs(slope[beta == 0]) <= penalty + 1e-6)


def test_the_one_site_method_finds_components_where_columns_are_few():
    drawn = draw(20, n_rows=200, n_sites=1, seed=3)
    found = chime(drawn.rows["site-01"], len(CENTERS), 0.1, 0).labels
    true = drawn.labels["site-01"]
    agree = max(np.mean(np.array(order)[found] == true) for order in permutations(range(3)))
    assert agree > 0.9
