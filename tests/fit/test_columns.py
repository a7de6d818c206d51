"""Few informative columns among many: they are found by all sites together, and the fit is about them."""

from itertools import permutations

import numpy as np
import pytest

from fedgrem import FederatedGaussianMixture, FederatedRegressionMixture, FedGrEM, load_model, save_model
from fedgrem.engines.inprocess import InProcess
from fedgrem.errors import InputError
from fedgrem.kernels.columns import column_scores, combined, leading, least_score, threshold_differences
from fedgrem.studies.sparse import CENTERS, chime, draw, play, sparse_discriminant


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
    with pytest.raises(InputError, match="is for FederatedGaussianMixture"):
        FederatedRegressionMixture(2, algorithm=FedGrEM(center="sparse")).fit(
            rows, {name: own[:, 0] for name, own in rows.items()}
        )


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


def test_no_reply_about_columns_depends_on_the_number_of_rows():
    from fedgrem.data.federation import Federation
    from fedgrem.families.covariance import Diagonal
    from fedgrem.families.gaussian import Gaussian
    from fedgrem.fit.conversation import Agreed, Ask
    from fedgrem.fit.spec import FitSpec
    from fedgrem.fit.tasks import Directions, Found
    from fedgrem.types import Params

    spec = FitSpec(Gaussian(Diagonal()), FedGrEM(center="sparse"), 2)
    shapes = []
    for n in (20, 70):
        here = InProcess(Federation.from_sites(["a"], [np.random.default_rng(0).normal(size=(n, 30))]), spec)
        told = here.ask(Ask("variation", Directions(np.eye(30, 4)[None]), agreed=Agreed(None, False))).mail
        params = Params(np.full((1, 2), 0.5), np.zeros((1, 2, 3)), np.zeros((1, 2, 3)))
        also = here.ask(Ask("contrast", Found(params, np.array([[3, 5, 7]])), agreed=Agreed(None, False))).mail
        shapes.append([leaf.shape for leaf in (*told, *also)])
    assert shapes[0] == shapes[1] == [(1, 30, 4), (1,), (1, 2), (1, 2, 30), (1,)]


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
