"""The page of a fit: what it says is what the model holds, and it needs nothing from elsewhere."""

import re
import sys
from datetime import datetime
from html.parser import HTMLParser

import numpy as np
import polars as pl
import pytest

from fedgrem import FedEM, FederatedGaussianMixture, FederatedMixture, FederatedRegressionMixture
from fedgrem.errors import InputError, MissingExtraError, ShapeError
from fedgrem.plots import plot_rows
from fedgrem.report.attributes import sharing
from fedgrem.report.gain import Gains, SiteGain, given_rows
from fedgrem.report.model import Origin, drawing, model_page, write_model_report
from fedgrem.report.page import environment
from fedgrem.report.summary import summarize
from fedgrem.report.text import decimals_for, fixed
from fedgrem.report.words import agreement
from tests.report.models import made_up

pytest.importorskip("matplotlib")
pytest.importorskip("jinja2")

GAINS = Gains(
    [SiteGain("site-0", 80, 20, -3.0, -3.5, 0.5, 0.1), SiteGain("site-4", 80, 20, -4.0, -3.0, -1.0, 0.2)],
    ["site-1"], ["elsewhere"], 0.2, True,
)  # fmt: skip


class Tags(HTMLParser):
    """Complains about a tag that is closed without having been opened, or the other way round."""

    def __init__(self):
        super().__init__()
        self.open = []

    def handle_starttag(self, tag, attrs):
        if tag not in ("meta", "link", "img", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


@pytest.fixture
def _no_figures(monkeypatch):
    """Figures are most of the work, and not what a test of words is about."""
    monkeypatch.setattr("fedgrem.report.model.drawing", lambda *_: "<svg></svg>")


def page_of(model, *arguments):
    text = model_page(model, summarize(model), *arguments)
    parser = Tags()
    parser.feed(text)
    assert parser.open == []
    assert not re.search(r"https?:|<script|@import|url\((?!#)", text)
    return text


@pytest.mark.parametrize(
    ("cls", "n_sites", "n_features", "n_components"),
    [
        (FederatedGaussianMixture, 1, 1, 1),
        (FederatedRegressionMixture, 2, 1, 2),
        (FederatedMixture, 3, 2, 1),
        (FederatedGaussianMixture, 5, 3, 9),
    ],
)
def test_any_fit_has_a_page_that_asks_nothing_of_the_network(cls, n_sites, n_features, n_components):
    text = page_of(made_up(n_sites, n_features, n_components, cls=cls))
    assert "<svg" in text
    assert all(f"site-{k}" in text for k in range(n_sites))


def test_many_sites_are_folded_and_the_page_stays_small():
    model = made_up(200, 16, 10, n_rounds=100)
    text = page_of(model)
    assert len(text) < 2_500_000
    assert "and 170 more" in text
    order = [text.index(f'title="site-{k}"') for k in (199, 0)]
    assert order == sorted(order)


@pytest.mark.usefixtures("_no_figures")
def test_thousands_of_sites_are_counted():
    text = page_of(made_up(1000, 2, 2))
    assert "and 970 more" in text
    assert "and 470 more sites, not listed" in text


@pytest.mark.usefixtures("_no_figures")
def test_many_parameters_are_cut_to_those_that_tell_most():
    assert "and 60 more parameters, in which the centers differ less" in page_of(made_up(3, 100, 2))


@pytest.mark.usefixtures("_no_figures")
def test_every_site_has_one_verdict_and_they_add_up():
    model = made_up(5, 3, 2)
    text = page_of(model)
    counted = [int(n) for n in re.findall(r"<b>(\d+) of 5 sites</b>", text)]
    assert sum(counted) == 5
    assert "<b>1 of 5 sites</b> is suspect: site-4 (30.0 from the center, where 1.00 would be usual)" in text


@pytest.mark.usefixtures("_no_figures")
def test_weights_distances_and_centers_are_those_of_the_model():
    model = made_up(4, 2, 2)
    text = page_of(model)
    for column in model.center_.T:
        assert all(f">{fixed(value, decimals_for(column))}</td>" in text for value in column)
    for weight in model.weights_.ravel():
        assert f"{weight:.1%}" in text
    assert re.search(rf'class="far">{model.site_distance_[-1, 0]:.0f}', text)


@pytest.mark.usefixtures("_no_figures")
def test_the_component_named_for_a_site_is_its_farthest():
    model = made_up(6, 3, 4)
    text = page_of(model)
    for name, distance in zip(model.site_names_, model.site_distance_, strict=True):
        told = re.search(rf"<summary><b>{name}</b>.*?farthest out in component (\d+)", text)
        assert told is None if not distance.any() else int(told[1]) == distance.argmax()


@pytest.mark.usefixtures("_no_figures")
def test_columns_are_called_by_their_names_and_names_cannot_break_the_page():
    model = made_up(3, 2, 2)
    model.feature_names_in_ = np.array(["glucose", "<script>alert(1)</script>"], dtype=object)
    model.site_names_ = np.array(["a & b", '"quoted"', "<b>north"])
    text = page_of(model)
    assert "glucose" in text
    assert "&lt;script&gt;alert(1)" in text
    assert "&lt;b&gt;north" in text


@pytest.mark.usefixtures("_no_figures")
def test_without_rows_the_page_says_what_it_would_need():
    text = page_of(made_up(), None, "", Origin("my/model", "0.1.0", datetime(2024, 5, 6, 7, 8)))
    assert "a model holds no rows" in text
    assert "fedgrem report my/model --data data.csv" in text
    assert "saved on 6 May 2024, 07:08 by fedgrem 0.1.0" in text
    assert "This page holds no rows" in text


@pytest.mark.usefixtures("_no_figures")
def test_gains_are_shown_and_losses_are_marked():
    text = page_of(made_up(), GAINS)
    assert re.search(r'site-4.*?<td class="loss">\N{MINUS SIGN}1.000.*?class="mark in no">loses', text)
    assert re.search(r'site-0</td><td>\+0.500.*?class="mark in yes">gains', text)
    assert "1 of 2 sites clearly gained, 1 clearly lost (site-4)" in text
    assert "too few rows to hold any back: 1 site (site-1)" in text
    assert "not in the model: 1 site (elsewhere)" in text


@pytest.mark.usefixtures("_no_figures")
def test_a_fit_that_did_not_settle_says_so():
    model = made_up()
    model.converged_, model.unsettled_sites_ = False, np.array(["site-2"])
    text = page_of(model)
    assert "The fit had not settled after 8 rounds. Still moving: site-2." in text


@pytest.mark.usefixtures("_no_figures")
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"algorithm": "local-em"}, "fitted at each site alone; there is nothing to compare"),
        ({"penalty": 0.0}, "Every site has an answer of its own"),
        ({"penalty": np.inf}, "All sites share the components, by construction"),
        ({"algorithm": "fedem"}, "All sites share the components, by construction"),
        ({"algorithm": "pooled-em"}, "All rows were taken together"),
    ],
)
def test_the_words_are_those_of_the_method(options, said):
    assert said in page_of(made_up(**options))


@pytest.mark.usefixtures("_no_figures")
@pytest.mark.parametrize("n_covariances", [1, 2])
def test_the_spread_within_components_stands_beside_the_centers(n_covariances):
    model = made_up(3, 2, 2, covariance_type="tied" if n_covariances == 1 else "full")
    model.center_ = np.array([[0.0, 0.0], [4.0, 5.0]])
    model.center_covariances_ = np.broadcast_to(np.diag([0.25, 9.0]), (n_covariances, 2, 2))
    model.covariances_ = np.broadcast_to(model.center_covariances_, (3, n_covariances, 2, 2))
    text = page_of(model)
    assert text.count("± 0.50</small>") == n_covariances
    assert text.count("± 3.00</small>") == n_covariances
    assert ("<th>spread within</th>" in text) == (n_covariances == 1)


@pytest.mark.usefixtures("_no_figures")
def test_pointing_at_a_center_tells_how_well_it_is_known():
    model = made_up(3, 2, 2)
    model.center_ = np.array([[1.0, 2.0], [3.0, 4.0]])
    model.center_se_ = np.array([[0.1, np.nan], [0.1, 0.2]])
    text = page_of(model)
    assert 'title="standard error 0.100, 95% interval 0.804 to 1.196">1.00</td>' in text
    assert text.count("95% interval") == 3


@pytest.mark.usefixtures("_no_figures")
def test_intercept_and_noise_of_a_regression_are_shown_where_it_has_them():
    model = made_up(3, 2, 2, cls=FederatedRegressionMixture, noise="shared")
    model.center_intercept_, model.center_noise_ = np.array([1.5, 2.5]), np.array([7.5, 7.5])
    text = page_of(model)
    assert "intercept</td><td>1.50</td><td>2.50" in text
    assert "noise</td><td>7.50</td><td>7.50" in text


def lines_of(*, slopes=(0.0, 0.0), level=0.0, location=(0.0, 0.0, 0.0), scale=(1.0, 1.0, 1.0), **options):
    """Four sites with lines in two columns: all on the center, except the last in its second component."""
    model = made_up(4, 2, 2, cls=FederatedRegressionMixture, **{"noise": "shared"} | options)
    model.coef_ = np.repeat(model.center_[None], 4, axis=0)
    model.intercept_, model.center_intercept_ = np.full((4, 2), 7.0), np.full(2, 7.0)
    model.noise_, model.center_noise_ = np.full((4, 2), 3.0), np.full(2, 3.0)
    model.location_, model.scale_ = np.array(location), np.array(scale)
    model.coef_[-1, 1] += slopes
    model.intercept_[-1, 1] += level
    model.site_distance_ = np.zeros((4, 2))
    model.site_distance_[-1, 1] = 5.0
    model.at_center_ = model.site_distance_ == 0.0
    return model


@pytest.mark.usefixtures("_no_figures")
def test_a_site_that_differs_in_level_only_is_told_so():
    text = page_of(lines_of(slopes=(0.01, 0.0), level=5.0, location=(10.0, 0.0, 50.0)))
    assert "farthest out in component 1, where intercept at typical columns is 5.10 above the center" in text
    assert re.search(r'intercept at typical columns</td><td class="z">•</td><td class="p5">\+5.10</td>', text)


@pytest.mark.usefixtures("_no_figures")
def test_an_intercept_that_only_follows_a_slope_is_not_what_differs():
    text = page_of(lines_of(slopes=(2.0, 0.0), level=-120.0, location=(60.0, 0.0, 50.0)))
    assert "farthest out in component 1, where x0 is 2.00 above the center" in text


@pytest.mark.usefixtures("_no_figures")
def test_lines_that_were_not_standardized_are_compared_where_they_are():
    model = lines_of(slopes=(2.0, 0.0), level=-120.0, noise="unit", fit_intercept=True)
    assert "farthest out in component 1, where intercept is 120 below the center" in page_of(model)


@pytest.mark.usefixtures("_no_figures")
def test_the_column_named_for_a_regression_does_not_depend_on_units():
    text = page_of(lines_of(slopes=(1.0, 0.1), scale=(0.01, 10.0, 4.0)))
    assert "farthest out in component 1, where x1 is 0.100 above the center" in text


@pytest.mark.usefixtures("_no_figures")
@pytest.mark.parametrize(("noise", "which"), [("shared", ""), ("component", ", component 1")])
def test_a_site_with_a_noise_of_its_own_is_told_so(noise, which):
    model = lines_of(slopes=(1.0, 0.0), noise=noise)
    assert "times the common one" not in page_of(model)
    model.noise_[-1, slice(None) if noise == "shared" else 1] = 7.5
    assert f"1.00 above the center; noise 2.5 times the common one{which}</summary>" in page_of(model)


@pytest.mark.usefixtures("_no_figures")
@pytest.mark.parametrize(("n_covariances", "which"), [(1, ""), (2, ", component 1")])
def test_a_site_with_a_spread_of_its_own_is_told_so_even_at_the_center(n_covariances, which):
    model = made_up(4, 2, 2, covariance_type="tied" if n_covariances == 1 else "full")
    model.weights_[:] = 0.5
    model.center_covariances_ = np.repeat(np.diag([1.0, 100.0])[None], n_covariances, axis=0)
    model.covariances_ = np.repeat(model.center_covariances_[None], 4, axis=0)
    model.covariances_[-1, -1, 1, 1] *= 3.1**2
    model.covariances_[0, -1, 0, 0] *= 0.4**2
    model.covariances_[0, -1, 1, 1] *= 1.2**2  # too little to be worth a word
    text = page_of(model)
    assert f"the center; spread 3.1 times the common one in x1{which}</summary>" in text
    told = f"at the center in every component; spread 0.40 times the common one in x0{which}</summary>"
    assert re.search(rf"<summary><b>site-0</b>[^\n]*?{told}", text)
    assert text.count("times the common one") == 2
    assert text.count(">3.1 \N{MULTIPLICATION SIGN}</td>") == 3 - n_covariances


@pytest.mark.usefixtures("_no_figures")
def test_a_spread_that_may_be_chance_is_not_told():
    model = made_up(4, 2, 2, covariance_type="tied")
    model.covariances_ = np.full((4, 1, 2, 2), 1.5**2 * np.eye(2))
    assert page_of(model).count("times the common one") == 4
    model.n_rows_[:] = 10.0
    assert "times the common one" not in page_of(model)


@pytest.mark.usefixtures("_no_figures")
def test_components_without_rows_are_listed_and_not_taken_for_agreement():
    model = made_up(5, 3, 3)
    assert "next to no rows" not in page_of(model)
    model.vanished_[0, [0, 2]] = model.vanished_[-1, 1] = True
    text = page_of(model)
    assert "site-0 has next to no rows of components 0 and 2; what stands there is the center&#39;s." in text
    assert "site-4 has next to no rows of component 1; what stands there rests on next to nothing." in text
    assert text.count(">◦</td>") == 2


@pytest.mark.usefixtures("_no_figures")
def test_many_sites_without_rows_of_a_component_are_counted():
    model = made_up(40, 2, 2)
    model.site_distance_[:] = 0.0
    model.vanished_ = np.arange(2) == np.ones((40, 1))
    text = page_of(model)
    assert "site-0 has next to no rows of component 1, site-1 of component 1, site-2" in text
    assert "site-29 of component 1, and 10 more sites of some; what stands there is the center&#39;s." in text


@pytest.mark.usefixtures("_no_figures")
def test_the_columns_that_are_shown_do_not_depend_on_units():
    model = made_up(3, 41, 2)
    model.center_[:, 0] = 0.0, 1000.0
    assert re.search(r'<td class="name">x0</td><td class="n\d">0</td>', page_of(model))
    model.covariance_type = "tied"
    model.center_covariances_ = np.diag([1e12, *np.ones(40)])[None]
    assert not re.search(r'<td class="name">x0</td><td class="n\d">0</td>', page_of(model))


def test_rows_of_other_columns_are_refused_with_a_remedy():
    model = made_up(3, 2, 2)
    model.feature_names_in_ = np.array(["a", "b"], dtype=object)
    table = pl.DataFrame({"b": [1.0], "a": [2.0], "site": ["site-0"]})
    remedy = r"fitted on a, b; take these, in this order: X\[list\(model.feature_names_in_\)\]\."
    with pytest.raises(InputError, match=remedy):
        given_rows(model, table, sites="site")
    with pytest.raises(InputError, match=r"fitted on a, b; the rows lack a: add every fitted column, under its name\."):
        given_rows(model, table.drop("a"), sites="site")
    with pytest.raises(ShapeError, match=r"shape \(4, 3\), expected \(n, 2\); give the columns of the fit"):
        given_rows(model, np.zeros((4, 3)), sites=["site-0"] * 4)


def test_a_large_page_with_gains_and_rows_stays_below_five_megabytes():
    model = made_up(44, 16, 10, n_rounds=300)
    sites = np.repeat(model.site_names_, 100)
    rows = np.random.default_rng(0).normal(size=(4400, 16))
    gains = Gains([SiteGain(str(name), 80, 20, -3.0, -3.5, 0.5, 0.1) for name in model.site_names_], [], [], 0.2, True)
    drawn = drawing(lambda ax: plot_rows(model, rows, sites=sites, n_rows=4400, ax=ax), 4.6, "rows")
    assert 100_000 < len(page_of(model, gains, drawn).encode()) < 5_000_000


def test_a_page_with_rows_warns_and_one_without_draws_none(tmp_path):
    generator = np.random.default_rng(0)
    rows = {name: generator.normal(size=(40, 2)) for name in ("north", "south", "east")}
    model = FederatedGaussianMixture(1, covariance_type="identity", n_init=1, penalty=2.0, random_state=0).fit(rows)
    text = model.report(tmp_path / "page.html", rows, show_rows=30).read_text(encoding="utf-8")
    assert "Rows are private" in text
    assert "A sample of rows" in text
    assert "What each site gained" in text
    assert "A sample of rows" not in model.report(tmp_path / "page.html").read_text(encoding="utf-8")


def test_rows_can_only_be_shown_if_they_are_given(tmp_path):
    with pytest.raises(InputError, match="show_rows draws rows, but none were given"):
        write_model_report(made_up(), tmp_path / "page.html", show_rows=10)
    with pytest.raises(InputError, match="show_rows must be >= 0, got -1"):
        write_model_report(made_up(), tmp_path / "page.html", show_rows=-1)


def test_a_model_that_is_not_fitted_is_refused(tmp_path):
    with pytest.raises(InputError, match="is not fitted; call fit first"):
        FederatedGaussianMixture().report(tmp_path / "page.html")


def test_a_site_with_its_own_fit_is_not_said_to_share_the_components():
    model = made_up(3, penalty=np.inf)
    model.local_only_ = np.array([False, False, True])
    (line,) = agreement(summarize(model))
    assert str(line).startswith("All sites but 1, with a fit of its own, share the components")
    model.local_only_[:] = False
    (line,) = agreement(summarize(model))
    assert str(line).startswith("All sites share the components")


def test_an_algorithm_may_be_an_object():
    summary = summarize(made_up(algorithm=FedEM(averaging="plain")))
    assert (summary.method, summary.algorithm, summary.sharing) == ("FedEM", "fedem", "shared")
    assert sharing(made_up(penalty=0.0)) == "alone"


def test_without_jinja2_the_extra_that_brings_it_is_named(tmp_path, monkeypatch):
    environment.cache_clear()
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'fedgrem\[report\]'"):
        made_up().report(tmp_path / "page.html")
    assert not list(tmp_path.iterdir())
