import builtins
import sys

import numpy as np
import pytest

from fedgrem.errors import InputError, MissingExtraError
from fedgrem.plots import (
    MOST_ROWS,
    demo_figure,
    overview_figure,
    plot_convergence,
    plot_distances,
    plot_errors,
    plot_sites,
    plot_weights,
)
from tests.report.models import made_up

PLOTS = [plot_sites, plot_distances, plot_convergence, plot_weights]


@pytest.fixture(scope="module")
def model():
    return made_up()


@pytest.mark.parametrize("plot", PLOTS)
def test_every_plot_draws_on_new_axes_without_pyplot(model, plot, tmp_path):
    ax = plot(model)
    ax.figure.savefig(tmp_path / "plot.png")
    assert (tmp_path / "plot.png").stat().st_size > 1000
    assert "matplotlib.pyplot" not in sys.modules


@pytest.mark.parametrize("plot", PLOTS)
def test_every_plot_draws_on_given_axes(model, plot):
    given = plot_sites(model).figure.add_subplot()
    assert plot(model, given) is given


@pytest.mark.parametrize(("n_features", "n_components"), [(1, 2), (2, 1), (3, 1), (4, 2), (2, 10), (20, 30)])
def test_sites_can_be_drawn_in_any_dimension(n_features, n_components, tmp_path):
    overview_figure(made_up(4, n_features, n_components)).savefig(tmp_path / "overview.png")


def test_the_axes_say_what_they_are(model):
    assert "principal direction 1 of the centers" in plot_sites(model).get_xlabel()
    assert plot_sites(made_up(3, 2)).get_xlabel() == "x0"


def test_the_suspect_site_is_named_in_the_legend(model):
    texts = [text.get_text() for text in plot_sites(model).get_legend().get_texts()]
    assert "suspect site: site-4" in texts


def test_a_long_legend_does_not_squeeze_the_sites(tmp_path):
    model = made_up(n_sites=12)
    model.site_verdict_[:] = "similar"
    model.site_verdict_[-5:] = "suspect"
    model.site_names_ = np.array([f"hospital-of-a-long-name-{k}" for k in range(12)])
    ax = plot_sites(model)
    ax.figure.savefig(tmp_path / "plot.png")
    assert ax.get_window_extent().width > 0.6 * ax.figure.bbox.width


def test_a_zero_distance_is_marked_in_the_heat_map(model):
    ax = plot_distances(model)
    assert len(ax.collections[0].get_offsets()) == int(model.at_center_.sum()) > 0
    assert ax.get_yticklabels()[0].get_text() == "site-4"


def test_many_sites_are_cut_to_the_oddest_and_the_title_says_so():
    many = made_up(MOST_ROWS + 5)
    for plot in (plot_distances, plot_weights):
        ax = plot(many)
        assert len(ax.get_yticklabels()) == MOST_ROWS
        assert "the 40 sites farthest out, of 45" in ax.get_title(loc="left")


def test_a_demo_figure_has_two_panels(model):
    errors = {"alone": np.array([1.0, 2.0, 1.5, 1.0, np.nan]), "together": np.array([0.5, 1.0, 0.5, 1.2, np.nan])}
    figure = demo_figure(model, errors, "title")
    left, right = figure.axes
    assert left.get_xlabel()
    assert [label.get_text() for label in right.get_yticklabels()] == [f"site-{k}" for k in range(5)]


def test_errors_of_two_fits_are_asked_for():
    with pytest.raises(InputError, match="errors holds 1 fits, expected 2"):
        plot_errors({"alone": np.ones(2)}, ["a", "b"])


def test_without_matplotlib_the_pip_command_is_given(model, monkeypatch):
    real = builtins.__import__

    def without_matplotlib(name, *args, **kwargs):
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without_matplotlib)
    with pytest.raises(MissingExtraError, match=r"pip install 'fedgrem\[plots\]'"):
        plot_sites(model)
