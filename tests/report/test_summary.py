import json
import re
import sys

import numpy as np
import pytest
from sklearn.base import clone

from fedgrem import FederatedGaussianMixture, FederatedRegressionMixture, FedGrEM
from fedgrem.attacks import ATTACKS, attack_rows
from fedgrem.data.simulate import simulate
from fedgrem.errors import InputError
from fedgrem.report import html_summary, summarize, summary_text
from fedgrem.report.attributes import parameter_names, parameter_units, suspect_beyond
from tests.report.models import made_up


def federation(shift, n_rows=(40, 40, 40, 40)):
    generator = np.random.default_rng(0)
    rows = {f"site-{k}": generator.normal(size=(n, 2)) for k, n in enumerate(n_rows)}
    rows["last"] = generator.normal(size=(40, 2)) + shift
    return rows


def fit(rows, **options):
    return FederatedGaussianMixture(1, **{"n_init": 1, "random_state": 0, "penalty": 2.0} | options).fit(rows)


def test_a_site_far_from_the_others_is_suspect_and_they_are_not():
    summary = summarize(fit(federation(20.0)))
    assert [site.name for site in summary.sites if site.suspect] == ["last"]
    assert summary.oddest_first[0].name == "last"


def test_no_site_is_suspect_where_all_are_alike():
    summary = summarize(fit(federation(0.0)))
    assert not any(site.suspect for site in summary.sites)
    assert all(site.n_at_center == 1 and site.farthest == 0.0 for site in summary.sites)


def test_two_sites_that_differ_do_not_say_which_one_is_suspect():
    rows = federation(20.0)
    summary = summarize(fit({name: rows[name] for name in ("site-0", "last")}))
    assert not any(site.suspect for site in summary.sites)


def test_sites_that_move_together_are_named_together():
    drawn = simulate("gmm", n_outliers=0, seed=1)
    bad = ["site-08", "site-09", "site-10"]
    rows, _ = attack_rows(drawn.rows, ATTACKS["common-shift"].attack, bad=bad)
    text = flat(summary_text(FederatedGaussianMixture(5, random_state=0).fit(rows)))
    assert "site-09 (stands apart from the others together with site-08 and site-10)" in text


def test_sites_with_the_same_rows_are_named_and_not_judged():
    rows = dict(simulate("gmm", n_outliers=0, seed=1).rows)
    rows["site-03"] = rows["site-07"]
    model = FederatedGaussianMixture(5, random_state=0).fit(rows)
    assert (
        "2 of 10 sites say nearly the same, closer than rows of their own would let them: site-03 and site-07."
        in flat(summary_text(model))
    )
    assert model.site_names_[model.site_verdict_ == "not judged"].tolist() == ["site-03", "site-07"]
    assert not any(site.suspect for site in summarize(model).sites)


def test_so_many_unlike_the_others_that_it_is_not_they_who_are_odd():
    model = made_up(n_sites=8)
    model.site_verdict_[3:] = "not judged"
    model.site_evidence_["p_value"][3:] = 1e-9
    assert "5 of 8 sites are unlike the others, by more than chance: as these are so many" in flat(summary_text(model))


def flat(text):
    return " ".join(text.split())


def test_a_small_site_may_be_farther_out():
    model = fit(federation(0.0, n_rows=(4, 40, 40, 40)))
    beyond = dict(zip(model.site_names_, suspect_beyond(model), strict=True))
    assert beyond["site-0"] > beyond["site-1"]


@pytest.mark.parametrize("penalty", [0.0, np.inf])
def test_extreme_penalties_leave_plain_json(penalty):
    plain = summarize(fit(federation(3.0), penalty=penalty)).as_plain()
    again = json.loads(json.dumps(plain, allow_nan=False))
    assert again["n_sites"] == 5
    assert float(again["penalty"]) == penalty


def test_rare_components_are_pulled_farther_and_a_site_fitted_alone_is_not_pulled():
    rows = {f"s{k}": values for k, values in enumerate(federation(0.0, n_rows=(90, 90, 90)).values())}
    rows["s0"][:60] += 9.0
    rows["s1"][:15] += 9.0
    rows["s2"][:45] += 9.0
    rows["far"] = 30.0 + 9.0 * (np.arange(90) < 45)[:, None] + np.random.default_rng(1).normal(size=(90, 2))
    options = {"n_init": 3, "random_state": 0, "penalty": 2.0}
    model = FederatedGaussianMixture(2, fallback="local", covariance_type="identity", **options).fit(rows)
    at_last = float(model.history_["penalty"][-1])
    expected = at_last / np.sqrt(model.n_rows_[:, None] * np.maximum(2 * model.weights_, 0.05)) / 0.95
    expected[model.local_only_] = 0.0
    assert model.local_only_[list(model.site_names_).index("far")]
    np.testing.assert_allclose(model.site_threshold_, expected, rtol=1e-6)
    by_site = clone(model).set_params(fallback=None, algorithm=FedGrEM(penalty_rows="site")).fit(rows)
    at_last = float(by_site.history_["penalty"][-1])
    rows_of = np.repeat(by_site.n_rows_[:, None], 2, axis=1)
    np.testing.assert_allclose(by_site.site_threshold_, at_last / np.sqrt(rows_of) / 0.95, rtol=1e-6)


def test_components_of_which_a_site_holds_no_rows_are_listed_by_site():
    model = made_up(n_sites=3, n_components=3)
    assert [site["vanished"] for site in summarize(model).as_plain()["sites"]] == [[], [], []]
    model.vanished_ = np.array([[True, False, True], [False, False, False], [False, True, False]])
    assert [site["vanished"] for site in summarize(model).as_plain()["sites"]] == [[0, 2], [], [1]]


def test_parameters_are_compared_by_the_spread_within_or_by_the_scales_of_the_fit():
    assert parameter_units(made_up(3, 2, 2)).tolist() == [1.0, 1.0]
    model = made_up(3, 2, 2, covariance_type="diag")
    model.center_covariances_ = np.array([np.diag([1.0, 100.0]), np.diag([9.0, 100.0])])
    assert summarize(model).as_plain()["parameter_units"] == [2.0, 10.0]
    lines = made_up(3, 2, 2, cls=FederatedRegressionMixture)
    lines.scale_ = np.array([2.0, 8.0, 4.0])  # the response last
    assert parameter_units(lines).tolist() == [2.0, 0.5]


def test_parameters_without_names_are_numbered():
    assert parameter_names(fit(federation(0.0))) == ["x0", "x1"]


def test_a_model_that_is_not_fitted_is_refused():
    with pytest.raises(InputError, match="this FederatedGaussianMixture is not fitted; call fit first"):
        summarize(FederatedGaussianMixture())


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize(("n_sites", "n_components", "n_features"), [(2, 1, 1), (10, 5, 10), (300, 30, 100)])
def test_a_text_fits_its_width_and_says_what_it_leaves_out(width, n_sites, n_components, n_features):
    model = made_up(n_sites, n_features, n_components)
    model.site_names_[-1] = "west"
    text = summary_text(model, width)
    assert max(map(len, text.splitlines())) <= width
    assert re.search(r"(?m)^west +suspect +100 ", text)
    text = " ".join(text.split())
    assert ("the 20 sites farthest from the center are shown, of 300." in text) == (n_sites == 300)
    assert ("the 20 parameters in which the centers differ most are shown" in text) == (n_features == 100)


def test_a_text_tells_the_number_of_components_the_centers_the_sites_and_the_verdicts():
    model = made_up(5, 2, 2)
    model.selection_ = {name: np.array([2]) for name in ("n_components", "n_parameters", "rounds", "settled")}
    model.selection_ |= {name: np.array([1.5]) for name in ("log_likelihood", "bic", "icl", "error")}
    text = summary_text(model)
    parts = ["How many components: 2, by BIC", "Gaussian mixture: 2 components over 5 sites, 500 rows", "Centers",
             "Sites", "1 of 5 sites is suspect: site-4 (30.0 from the center"]  # fmt: skip
    places = [text.index(part) for part in parts]
    assert places == sorted(places)


def test_a_text_and_json_tell_the_intercepts_and_noise_of_a_regression():
    assert "intercept" not in summary_text(made_up(3, 2, 2, cls=FederatedRegressionMixture))
    model = made_up(3, 2, 2, cls=FederatedRegressionMixture, noise="shared")
    model.center_intercept_, model.center_noise_ = np.array([1.5, -2.5]), np.array([7.5, 7.5])
    text = summary_text(model)
    assert re.search(r"(?m)^intercept +1\.50 +-2\.50$", text)
    assert re.search(r"(?m)^noise +7\.50 +7\.50$", text)
    plain = summarize(model).as_plain()
    assert (plain["center_intercept"], plain["center_noise"]) == ([1.5, -2.5], [7.5, 7.5])


def test_columns_of_like_beginnings_all_have_their_line():
    model = made_up(3, 2, 2)
    model.feature_names_in_ = np.array([f"{'very ' * 8}{end}" for end in "ab"], dtype=object)
    assert summary_text(model).count("very very very very ver…") == 2


def test_a_fragment_for_notebooks_has_every_verdict_and_needs_neither_templates_nor_plots(monkeypatch):
    model = made_up(4, 2, 2)
    model.site_names_ = np.array(["a & b", '"quoted"', "c", "<b>north"])
    for package in ("jinja2", "matplotlib"):
        monkeypatch.setitem(sys.modules, package, None)
    fragment = html_summary(model)
    assert "<td>&lt;b&gt;north</td><td>suspect</td><td>100</td>" in fragment
    assert "<td>a &amp; b</td><td>at the center</td>" in fragment
    assert fragment.count("<tr>") == 5


def test_where_nothing_pulls_there_is_no_center_to_show():
    model = made_up(4, 2, 2)
    assert "Centers" in summary_text(model)
    model.penalty_ = 0.0
    text = " ".join(summary_text(model).split())
    assert "Centers" not in text
    assert "No center is shown: with a penalty of 0 every site was fitted alone" in text
