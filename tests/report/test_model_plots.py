"""The plots behind the page of a fit: each returns the Axes it drew on."""

import sys

import numpy as np
import pytest

from fedgrem import FederatedGaussianMixture, FederatedRegressionMixture
from fedgrem.plots import plot_centers, plot_gain, plot_likelihood, plot_rows, plot_sites, plot_thresholds
from fedgrem.report.attributes import suspect_beyond
from fedgrem.report.gain import Gains, SiteGain
from fedgrem.report.page import picture
from tests.report.models import made_up

pytest.importorskip("matplotlib")

PLOTS = [plot_centers, plot_likelihood, plot_thresholds]


@pytest.mark.parametrize("plot", PLOTS)
@pytest.mark.parametrize(("n_sites", "n_features", "n_components"), [(1, 1, 1), (2, 2, 2), (5, 3, 2), (45, 50, 14)])
def test_every_plot_draws_any_model_on_new_or_given_axes(plot, n_sites, n_features, n_components, tmp_path):
    model = made_up(n_sites, n_features, n_components)
    ax = plot(model)
    ax.figure.savefig(tmp_path / "plot.png")
    assert plot(model, ax.figure.add_subplot()) is not ax
    assert "matplotlib.pyplot" not in sys.modules


def test_the_bar_of_a_site_ends_where_it_would_be_suspect():
    model = made_up()
    bars = plot_thresholds(model).patches[: len(model.site_names_)]
    assert sorted(bar.get_width() for bar in bars) == pytest.approx(sorted(suspect_beyond(model)))


@pytest.mark.parametrize("penalty", [0.0, np.inf])
def test_no_pull_and_an_endless_one_can_be_drawn(penalty, tmp_path):
    model = made_up()
    model.site_threshold_[:] = penalty
    plot_thresholds(model).figure.savefig(tmp_path / "plot.png")


def test_centers_are_written_in_their_own_units():
    model = made_up(3, 2, 2)
    written = {text.get_text() for text in plot_centers(model).texts}
    assert f"{model.center_[0, 0]:.2f}".replace("-", "\N{MINUS SIGN}") in written


def test_the_parameters_in_the_map_do_not_depend_on_units():
    model = made_up(3, 41, 2)
    model.center_[:, 0] = 0.0, 1000.0
    assert "x0" in [label.get_text() for label in plot_centers(model).get_yticklabels()]
    model.covariance_type = "tied"
    model.center_covariances_ = np.diag([1e12, *np.ones(40)])[None]
    shown = [label.get_text() for label in plot_centers(model).get_yticklabels()]
    assert shown == [f"x{j}" for j in range(1, 41)]


def test_losses_have_their_own_mark():
    gains = Gains(
        [SiteGain(f"s{k}", 8, 2, 0.0, 0.0, gain, 0.1) for k, gain in enumerate((1.0, 0.1, -1.0))], [], [], 0.2, True
    )
    ax = plot_gain(gains, suspect=frozenset({"s1"}))
    assert [label.get_text() for label in ax.get_yticklabels()] == ["s1", "s2", "s0"]
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["unclear", "loses", "gains"]


def test_rows_are_sampled_and_those_of_suspect_sites_out_of_sight_are_counted():
    generator = np.random.default_rng(0)
    rows = {name: generator.normal(size=(50, 3)) for name in ("a", "b", "c", "d")}
    rows["far"] = generator.normal(size=(50, 3)) + 40.0
    model = FederatedGaussianMixture(1, covariance_type="identity", n_init=1, penalty=2.0, random_state=0).fit(rows)
    ax = plot_rows(model, rows, n_rows=100)
    assert ax.get_title(loc="left") == "100 of 250 rows"
    assert any("out of sight" in text.get_text() for text in ax.texts)
    assert plot_rows(model, rows, n_rows=100).collections[0].get_offsets().tolist() == (
        ax.collections[0].get_offsets().tolist()
    )


def test_rows_of_a_regression_have_no_centers_among_them(tmp_path):
    generator = np.random.default_rng(0)
    rows = {name: generator.normal(size=(30, 1)) for name in ("a", "b")}
    y = {name: 2.0 * x[:, 0] + generator.normal(size=30) for name, x in rows.items()}
    model = FederatedRegressionMixture(1, noise="unit", n_init=1, penalty=2.0, random_state=0).fit(rows, y)
    plot_rows(model, rows, y).figure.savefig(tmp_path / "plot.png")


def test_columns_of_unlike_units_do_not_flatten_the_sites():
    model = made_up(4, 2, 2)
    model.center_ = model.center_ * [1.0, 1e5]
    model.means_ = model.means_ * [1.0, 1e5]
    assert plot_sites(model).get_aspect() == "auto"
    assert plot_sites(made_up(4, 2, 2)).get_aspect() == 1.0


def test_a_drawing_that_grows_too_large_becomes_a_picture(monkeypatch):
    figure = plot_centers(made_up()).figure
    assert picture(figure, "a <map>").startswith('<svg role="img" aria-label="a &lt;map&gt;"')
    monkeypatch.setattr("fedgrem.report.page.MOST_DRAWING", 1000)
    assert picture(figure, "a map").startswith('<img alt="a map" src="data:image/png;base64,')
