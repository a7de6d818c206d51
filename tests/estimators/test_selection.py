"""``n_components`` as a range or "auto": the choice, the curve, and what is refused."""

import numpy as np
import pytest
from sklearn.base import clone

from fedgrem import FederatedGaussianMixture
from fedgrem.data.federation import Federation
from fedgrem.engines.inprocess import InProcess
from fedgrem.errors import InputError, InputTypeError
from fedgrem.estimators.selection import Search, SelectionWarning
from fedgrem.fit.fit import run
from fedgrem.fit.selection import Tally
from fedgrem.models import load_model, save_model
from fedgrem.plots import plot_selection
from fedgrem.report import summarize
from fedgrem.report.gain import measure_gain
from fedgrem.report.model import model_page


def two_groups(n_sites=4, n=30, hostile=1):
    """Two groups at every site but the last ones, whose rows are all over the place."""
    generator = np.random.default_rng(3)
    rows = {}
    for k in range(n_sites):
        spread = 9.0 if k >= n_sites - hostile else 1.0
        rows[f"site-{k}"] = spread * generator.normal(size=(n, 2)) + 7.0 * generator.integers(2, size=(n, 1))
    return rows


def tried(wanted, rows):
    """A search to its end, where 3 components are best."""
    search = Search(wanted, "bic", rows)
    while (number := search.next()) is not None:
        value = np.array([-100.0 * abs(number - 3)])
        search.tallies.append(Tally(number, ("big",), np.array([30.0]), value, *[np.zeros(1)] * 3, 0, 0.0, True, 5, 8))
    return search


def mixture(n_components, **options):
    options = {
        "covariance_type": "identity",
        "n_init": 2,
        "penalty": 2.0,
        "standard_errors": False,
        "random_state": 0,
    } | options
    return FederatedGaussianMixture(n_components, **options)


@pytest.fixture(scope="module")
def chosen():
    """A model that chose among 1, 2 and 3, and what it told meanwhile."""
    stages = []
    model = mixture(range(1, 4)).fit(two_groups(), on_progress=lambda progress: stages.append(progress.stage))
    return model, stages


def test_the_right_number_is_chosen_although_a_site_is_hostile(chosen):
    model, stages = chosen
    assert model.n_components_ == 2
    assert model.n_components == range(1, 4)  # fit does not touch parameters
    assert model.means_.shape == (4, 2, 2)
    assert {"1 component: rounds", "3 components: score", "rounds"} <= set(stages)
    # The hostile site, had it been asked alone, would have taken as many as it could get.
    assert np.all(np.diff(model.selection_["log_likelihood"]) > 0)


def test_the_curve_has_columns_of_equal_length_and_is_of_the_fits(chosen):
    model, _ = chosen
    curve = model.selection_
    assert list(curve) == ["n_components", "log_likelihood", "n_parameters", "bic", "icl", "error", "settled", "rounds"]
    assert {len(column) for column in curve.values()} == {3}
    assert curve["n_components"].tolist() == [1, 2, 3]
    assert np.all(curve["icl"] >= curve["bic"])
    assert model.cost_["selection_exchanges"] >= curve["rounds"].sum() + 3


def test_the_chosen_fit_is_the_fit_of_that_number(chosen):
    model, _ = chosen
    plain = mixture(2).fit(two_groups())
    assert plain.n_components_ == 2
    assert plain.selection_ == {}
    np.testing.assert_array_equal(plain.means_, model.means_)
    again = clone(model).set_params(n_components=2).fit(two_groups())
    np.testing.assert_array_equal(again.means_, model.means_)


@pytest.mark.parametrize("algorithm", ["fedgrem", "fedem"])
def test_candidates_are_fits_by_the_center_rule_of_the_one_that_is_chosen(algorithm):
    federation = Federation.from_sites(*zip(*two_groups(hostile=0).items(), strict=True))
    model = mixture(2, algorithm=algorithm, penalty="auto")
    compared, final = (model._spec(candidate=one) for one in (True, False))
    compared, final = (run(spec, InProcess(federation, spec)) for spec in (compared, final))
    np.testing.assert_allclose(compared.theta, final.theta, atol=0.01)
    np.testing.assert_allclose(compared.influence.threshold, final.influence.threshold, rtol=0.1)
    assert compared.path == {}


def test_bic_of_one_site_is_that_of_its_own_log_likelihood():
    rows = two_groups()["site-0"]
    model = mixture([2]).fit(rows)
    log_likelihood = model.score(rows) * 30
    np.testing.assert_allclose(model.selection_["log_likelihood"], log_likelihood, rtol=1e-6)
    np.testing.assert_allclose(model.selection_["bic"], -2 * log_likelihood + 5 * np.log(30), rtol=1e-6)


def test_the_choice_is_saved_shown_and_drawn(chosen, tmp_path):
    model, _ = chosen
    loaded = load_model(save_model(model, tmp_path / "model"))
    assert loaded.n_components == [1, 2, 3]
    assert loaded.n_components_ == 2
    for name, column in model.selection_.items():
        np.testing.assert_array_equal(loaded.selection_[name], column)
    summary = summarize(loaded)
    assert summary.as_plain()["selection"]["chosen"] == 2
    assert "<h2>How many components</h2>" in model_page(loaded, summary)
    ax = plot_selection(loaded)
    lines = {line.get_label(): line for line in ax.get_lines()}
    np.testing.assert_allclose(lines["BIC"].get_ydata(), model.selection_["bic"] - model.selection_["bic"].min())
    assert lines["chosen: 2"].get_xdata().tolist() == [2]


def test_what_is_held_back_is_judged_with_the_number_that_was_chosen(chosen, monkeypatch):
    model, _ = chosen

    def refuse(self, *rows, **options):
        raise InputError(f"asked for {self.n_components} components")

    monkeypatch.setattr(FederatedGaussianMixture, "fit", refuse)
    with pytest.raises(InputError, match="asked for 2 components"):
        measure_gain(model, two_groups())


def test_a_number_that_was_given_has_no_curve_to_draw():
    model = mixture(1).fit(two_groups())
    assert summarize(model).selection is None
    with pytest.raises(InputError, match="n_components=1 was given, so that there is no curve"):
        plot_selection(model)


def test_only_the_largest_site_limits_the_numbers():
    assert tried([1, 2, 3], {"big": 30, "tiny": 1}).best == 3
    search = tried([1, 2, 3], {"big": 1, "tiny": 1})
    assert search.best == 1
    with pytest.warns(SelectionWarning, match=r"2, 3 not tried, because the largest site, 'big', has only 1 row\(s\)"):
        search.warn()


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ([1, 2], "the choice, 2, is the largest tried; more may be better still"),
        (
            "auto",
            "more than that not tried, .* largest site, 'big', has only 2 row.*the choice, 2, is the largest tried",
        ),
        ([4, 5, 7], "the choice, 4, is the smallest tried; fewer may be better still"),
    ],
)
def test_a_choice_at_the_end_of_the_range_is_told(wanted, message):
    with pytest.warns(SelectionWarning, match=message):
        tried(wanted, {"big": 2 if wanted == "auto" else 30}).warn()


@pytest.mark.parametrize("wanted", [[1, 2, 3, 4], [3], "auto"])
def test_a_choice_within_the_range_is_not(wanted):
    search = tried(wanted, {"big": 30})
    assert search.best == 3
    search.warn()  # a warning would be an error


@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        ("many", InputError, r"n_components must be an integer >= 1, a range or list of them, or 'auto'; got 'many'"),
        ([], InputError, r"n_components is empty \(\[\]\); give at least one number"),
        (range(5, 2), InputError, r"n_components is empty \(range\(5, 2\)\)"),
        (0, InputError, "n_components must be >= 1, got 0"),
        ([0, 1], InputError, "every number in n_components must be >= 1, got 0"),
        (2.0, InputTypeError, "n_components must be an integer >= 1, got 2.0 of type float"),
        ([2, 2.5], InputTypeError, r"every number in n_components must be an integer >= 1, got 2.5 of type float"),
        (None, InputTypeError, "n_components must be an integer >= 1, got None"),
    ],
)
def test_what_is_no_number_of_components_is_refused(value, error, message):
    with pytest.raises(error, match=message):
        mixture(value).fit(two_groups())


def test_other_criteria_and_starts_are_refused():
    with pytest.raises(InputError, match="criterion must be one of 'bic', 'icl'; got 'aic'"):
        mixture("auto", criterion="aic").fit(two_groups())
    with pytest.raises(InputError, match="means_init cannot go with n_components='auto': starts are for one number"):
        mixture("auto", means_init=np.zeros((4, 2, 2))).fit(two_groups())
