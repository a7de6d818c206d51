"""Components that only some sites have: exact zeros, centers of those that have them, and nobody else's business."""

from dataclasses import replace

import numpy as np
import pytest

from fedgrem import FederatedGaussianMixture, FederatedRegressionMixture
from fedgrem.algorithms.center_rules import Redescending
from fedgrem.algorithms.fedgrem import FedGrEM
from fedgrem.algorithms.holders import by_holders, weights_of_holders
from fedgrem.data.federation import Federation
from fedgrem.engines.inprocess import InProcess
from fedgrem.families.covariance import Full
from fedgrem.families.gaussian import Gaussian
from fedgrem.fit.births import Prices, hold
from fedgrem.fit.fit import run
from fedgrem.fit.spec import FitSpec
from fedgrem.models import load_model, save_model
from fedgrem.types import Params
from tests.conformance.engines import FakeWire, SiteBySite, assert_same_fit

MIDDLES = np.array([[-6.0, 0.0], [6.0, 0.0], [0.0, 9.0], [0.0, -9.0]])
NAMES = tuple(f"site-{k}" for k in range(6))
HAS = np.array([[1, 1, k in (1, 3, 4), k == 2] for k in range(6)], dtype=bool)
"""Two components of all, one of three sites, and one of a single one."""


def drawn(has=HAS, n_rows=120, seed=0):
    generator = np.random.default_rng(seed)
    rows = {}
    for name, there in zip(NAMES, has, strict=True):
        label = generator.choice(np.flatnonzero(there), size=n_rows)
        rows[name] = MIDDLES[label] + generator.normal(size=(n_rows, 2))
    return rows


def spec_of(family=None, **options):
    values = {"penalty": 1.0, "fallback": False, "seed": 1, "some": 10, "max_rounds": 60}
    return FitSpec(family or Gaussian(), options.pop("algorithm", FedGrEM()), 2, **values | options)


def fitted(rows, spec, engine=InProcess):
    data = Federation.from_sites(list(rows), list(rows.values()))
    return run(spec, engine(data, spec))


def by_middle(result):
    """The places of the components in the order of the true ones."""
    away = np.linalg.norm(MIDDLES[:, None] - result.center, axis=-1)
    assert sorted(away.argmin(axis=1)) == list(range(len(result.center)))
    return away.argmin(axis=1)


@pytest.fixture(scope="module")
def plain():
    return fitted(drawn(), spec_of())


@pytest.mark.parametrize(
    ("family", "options"),
    [
        (Gaussian(), {}),
        (Gaussian(), {"penalty": None}),
        (Gaussian(Full()), {"penalty": None}),
        (Gaussian(), {"algorithm": FedGrEM(center="huber", local_steps=1, memory=0)}),
    ],
    ids=["penalty", "estimated", "full", "huber"],
)
def test_every_site_has_its_components_and_exactly_zero_of_the_others(family, options):
    result = fitted(drawn(), spec_of(family, **options))
    order = by_middle(result)
    np.testing.assert_array_equal(result.held[:, order], HAS)
    np.testing.assert_array_equal(result.weights[:, order] > 0, HAS)
    np.testing.assert_allclose(result.weights.sum(axis=1), 1.0)
    np.testing.assert_allclose(result.center[order], MIDDLES, atol=0.45)
    lacking = ~result.held
    np.testing.assert_array_equal(result.theta[lacking], np.broadcast_to(result.center, result.theta.shape)[lacking])
    assert np.isnan(result.theta_covariance[lacking]).all()
    assert np.isfinite(result.theta_covariance[result.held]).all()
    assert (result.weights_variance[result.held] > 0).all()


def test_a_component_of_three_sites_has_a_center_and_one_of_a_single_site_is_its_own(plain):
    order, rows = by_middle(plain), drawn()
    third, fourth = order[2:]
    near = [r[np.linalg.norm(r - MIDDLES[2], axis=1) < 5] for name, r in rows.items() if HAS[NAMES.index(name), 2]]
    np.testing.assert_allclose(plain.center[third], np.concatenate(near).mean(axis=0), atol=0.1)
    own = rows["site-2"]
    own = own[np.linalg.norm(own - MIDDLES[3], axis=1) < 5]
    np.testing.assert_allclose(plain.theta[2, fourth], own.mean(axis=0), atol=0.02)  # nothing pulls on it
    np.testing.assert_array_equal(plain.center[fourth], plain.theta[2, fourth])


def test_where_all_sites_have_the_same_components_nothing_changes():
    rows = drawn(HAS & [True, True, False, False])
    some = fitted(rows, spec_of())
    assert some.held is None
    assert_same_fit(some, fitted(rows, spec_of(some=0)), rtol=0, atol=0)


@pytest.mark.parametrize("engine", [SiteBySite, FakeWire])
def test_every_engine_gives_the_in_process_answer(engine, plain):
    assert_same_fit(fitted(drawn(), spec_of(), engine), plain)


def test_the_order_of_the_sites_does_not_matter(plain):
    rows, order = drawn(), np.array([4, 2, 0, 5, 1, 3])
    other = fitted({NAMES[k]: rows[NAMES[k]] for k in order}, spec_of())
    mine, theirs = by_middle(plain), by_middle(other)
    np.testing.assert_allclose(other.center[theirs], plain.center[mine], atol=1e-4)
    np.testing.assert_allclose(other.weights[:, theirs], plain.weights[order][:, mine], atol=1e-4)


def test_components_may_be_numbered_as_they_like():
    rows = drawn()
    starts = [Params(np.full((6, 2), 0.5), np.tile(MIDDLES[order], (6, 1, 1))) for order in ([0, 1], [1, 0])]
    data = Federation.from_sites(list(rows), list(rows.values()))
    one, other = (run(spec_of(given=start), InProcess(data, spec_of(given=start))) for start in starts)
    np.testing.assert_allclose(other.weights[:, by_middle(other)], one.weights[:, by_middle(one)], atol=1e-6)


def test_a_component_that_most_sites_have_and_one_lacks_has_weight_zero_there():
    has = HAS & [True, True, False, False]
    has[5, 1] = False
    result = fitted(drawn(has), spec_of())
    order = np.argsort(result.center[:, 0])
    np.testing.assert_array_equal(result.held[:, order], has[:, :2])


def test_a_site_that_has_nothing_in_common_with_the_others_stays_suspect():
    rows = drawn(HAS & [True, True, True, False])
    rows["site-0"] = np.random.default_rng(5).normal(size=(120, 2)) + 30.0
    model = FederatedGaussianMixture(range(1, 6), covariance_type="identity", random_state=0).fit(rows)
    assert model.site_verdict_[0] == "suspect"
    assert not (model.site_verdict_[1:] == "suspect").any()
    assert model.n_components_ == 3
    assert sorted(model.has_component_[1:].sum(axis=0)) == [3, 5, 5]


def test_regressions_have_components_of_some_too():
    generator, slopes = np.random.default_rng(0), np.array([[3.0, 0.0], [-3.0, 0.0], [0.0, 4.0]])
    rows = {name: generator.normal(size=(150, 2)) for name in NAMES}
    label = {name: generator.choice(2 + HAS[k, 2], size=150) for k, name in enumerate(NAMES)}
    target = {n: (rows[n] * slopes[label[n]]).sum(axis=1) + 0.3 * generator.normal(size=150) for n in NAMES}
    model = FederatedRegressionMixture(range(1, 5), random_state=0).fit(rows, target)
    third = np.linalg.norm(model.center_ - slopes[2], axis=1).argmin()
    np.testing.assert_allclose(model.center_[third], slopes[2], atol=0.1)
    np.testing.assert_array_equal(model.has_component_[:, third], HAS[:, 2])


# -- what a model says of it


@pytest.fixture(scope="module")
def model():
    return FederatedGaussianMixture(range(1, 6), covariance_type="identity", random_state=0).fit(drawn())


def test_the_summary_shows_who_has_what(model):
    text = model.summary()
    assert "Which site has which component" in text
    lines = [line.split()[1:] for line in text.splitlines() if line.startswith("site-2")]
    weights, has = model.weights_[2], model.has_component_[2]
    told = [
        f"{w:.2f}".removeprefix("0") + "*" * int(model.has_component_.sum(axis=0)[r] == 1)
        for r, w in enumerate(weights)
    ]
    assert [word if there else "-" for word, there in zip(told, has, strict=True)] in lines
    told = " ".join(text.split())
    assert "is that of site-1, site-3 and site-4 alone" in told
    assert "is site-2's own, and has no center" in told


def test_rows_never_belong_to_what_a_site_lacks_however_far_they_are(model):
    fourth = int(np.flatnonzero(model.has_component_.sum(axis=0) == 1)[0])
    far = np.array([[0.0, -9.0], [0.0, -900.0]])
    assert (model.predict_proba(far, sites="site-0")[:, fourth] == 0).all()
    assert model.predict_proba(far, sites="site-2")[0, fourth] > 0.99
    assert np.isfinite(model.score_samples(far, sites="site-0")).all()
    assert fourth not in model.sample(500, site="site-0")[1]
    assert model.center_weights_[fourth] == 0.0


def test_a_later_site_has_what_its_rows_call_for(model, tmp_path):
    save_model(model, tmp_path / "model")
    later = load_model(tmp_path / "model")
    np.testing.assert_array_equal(later.has_component_, model.has_component_)
    third = int(np.flatnonzero(model.has_component_.sum(axis=0) == 3)[0])
    rows = drawn(seed=9)
    later.fit_site(rows["site-1"], name="with").fit_site(rows["site-0"], name="without")
    assert later.has_component_[-2:, third].tolist() == [True, False]
    assert (later.weights_[-2:] == 0).sum() == 3  # nobody else has what is site-2's own
    assert not (later.site_verdict_ == "suspect").any()


def test_the_page_marks_what_sites_lack(model, tmp_path):
    page = model.report(tmp_path / "page.html").read_text(encoding="utf-8")
    assert "the site does not have this component" in page
    assert "too few sites have this component for a center" in page


# -- the parts


def test_by_holders_is_the_rule_among_those_who_have_a_component():
    generator = np.random.default_rng(0)
    theta, ones, start = generator.normal(size=(6, 3, 2)), np.ones((6, 3)), np.zeros((3, 2))
    present, rule = np.ones(6, dtype=bool), Redescending()

    def of_some(sites, components, *estimates):
        return rule(*estimates)

    arguments = (theta, ones, 0.5 * ones, ones, start, present)
    nobody, whole = by_holders(np.zeros((6, 3), dtype=bool), of_some, *arguments), rule(*arguments)
    np.testing.assert_array_equal(nobody.shrunk, whole.shrunk)
    np.testing.assert_array_equal(nobody.center, whole.center)
    lacking = np.zeros((6, 3), dtype=bool)
    lacking[3:, 1], lacking[1:, 2] = True, True
    found = by_holders(lacking, of_some, *arguments)
    few = rule(theta[:3], ones[:3], 0.5 * ones[:3], ones[:3], start, present[:3])
    np.testing.assert_array_equal(found.center[1], few.center[1])
    np.testing.assert_array_equal(found.shrunk[3:, 1], np.broadcast_to(few.center[1], (3, 2)))
    np.testing.assert_array_equal(found.shrunk[0, 2], theta[0, 2])
    np.testing.assert_array_equal(found.center[2], theta[0, 2])
    np.testing.assert_array_equal(found.center[0], whole.center[0])


def test_what_is_not_worth_its_price_is_dropped_and_what_is_to_be_kept_stays():
    rows = np.array([[-4.0], [-4.1], [4.0], [4.1], [4.05]])
    data = Federation.from_sites(["a"], [rows])
    ((stack, _),) = data.stacked()
    params = Params(np.full((1, 3), 1 / 3), np.array([[[-4.0], [4.0], [4.2]]]))
    spec = spec_of()
    found = hold(spec, stack, Prices(params, np.full((1, 3), 1.0)))
    assert (found.weights[0] > 0).tolist() == [True, True, False]
    np.testing.assert_allclose(found.weights[0], [0.4, 0.6, 0.0], atol=1e-6)
    np.testing.assert_allclose(found.loss[0, 0], (8.0**2 + 8.1**2 - 0.0**2 - 0.1**2) / 2 + 5 * 0.0, rtol=0.1)
    kept = hold(spec, stack, Prices(params, np.array([[1.0, 1.0, -np.inf]])))
    assert (kept.weights[0] > 0).tolist() == [True, False, True]
    dear = hold(spec, stack, Prices(params, np.full((1, 3), 1e9)))
    assert (dear.weights[0] > 0).sum() == 1  # the last one explains its rows, whatever it costs


def test_common_weights_are_those_of_the_sites_that_have_a_component():
    weights = np.array([[0.6, 0.4, 0.0], [0.6, 0.4, 0.0], [0.6, 0.2, 0.2], [0.6, 0.0, 0.4]])
    np.testing.assert_allclose(weights_of_holders(weights), np.array([0.6, 0.3, 0.0]) / 0.9)


def test_a_spec_says_so():
    spec = spec_of()
    assert replace(spec, some=0) != spec
    assert '"some": 10' in spec.to_json()
