"""Rule 6: bad input gets an error that says who, what was got, what was expected, and what to do."""

import jax.numpy as jnp
import numpy as np
import pandas as pd
import polars as pl
import pytest
from sklearn.exceptions import ConvergenceWarning, NotFittedError

from fedgrem import FedEMSA, FederatedGaussianMixture, FederatedMixture, FederatedRegressionMixture, FedGrEM
from fedgrem.errors import FedGrEMError, InputError, InputTypeError, ShapeError
from fedgrem.estimators.fitted import UnknownSiteWarning
from fedgrem.estimators.notes import ColumnWarning

GENERATOR = np.random.default_rng(0)

PLAIN = {"n_init": 1, "max_rounds": 20, "tol": 1.0, "penalty": 2.0, "standard_errors": False, "random_state": 0}


def two_sites(n=30, p=2):
    return {"north": GENERATOR.normal(size=(n, p)), "south": GENERATOR.normal(size=(n, p))}


def quick(n_components=2, **options):
    return FederatedGaussianMixture(n_components, **PLAIN | options)


def spoil(value, row=3, column=1):
    sites = two_sites()
    sites["south"][row, column] = value
    return sites


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite_are_refused_by_site_and_column(value):
    with pytest.raises(
        InputError, match=r"site 'south' contains NaN \(\d\) or infinity \(\d\) in 1 row.*column.* x1; drop"
    ):
        quick().fit(spoil(value))


def test_a_column_name_is_used_where_there_is_one():
    frame = pd.DataFrame(spoil(np.nan)["south"], columns=["age", "bmi"]).assign(hospital=["a", "b"] * 15)
    with pytest.raises(InputError, match=r"site 'b' contains NaN.*column.* bmi"):
        quick().fit(frame, sites="hospital")


def test_a_column_that_is_constant_everywhere_is_refused():
    sites = two_sites()
    for rows in sites.values():
        rows[:, 0] = 7.0
    with pytest.raises(InputError, match=r"column 'x0' is constant \(7\) at every site.*drop it"):
        quick().fit(sites)


def test_a_column_that_is_constant_at_one_site_only_is_fine_and_said():
    sites = two_sites()
    sites["north"][:, 0] = 0.5
    with pytest.warns(ColumnWarning, match=r"x0 is 0.5 in all 30 rows of site 'north', and tells nothing there"):
        model = quick().fit(sites)
    assert model.means_.shape == (2, 2, 2)
    assert "x0 is 0.5 in all 30 rows" in " ".join(model.summary().split())


def test_an_intercept_column_is_fine_in_a_regression_but_zeros_are_not():
    sites = two_sites()
    targets = {name: GENERATOR.normal(size=30) for name in sites}
    for rows in sites.values():
        rows[:, 0] = 1.0
    model = FederatedRegressionMixture(2, **PLAIN)
    assert model.fit(sites, targets).coef_.shape == (2, 2, 2)
    for rows in sites.values():
        rows[:, 0] = 0.0
    with pytest.raises(InputError, match=r"column 'x0' is constant \(0\)"):
        model.fit(sites, targets)


def test_an_empty_table_is_refused():
    with pytest.raises(ValueError, match="0 sample"):
        quick().fit(np.empty((0, 3)))
    with pytest.raises(ValueError, match=r"0 feature\(s\)"):
        quick().fit(np.empty((30, 0)))


def test_an_empty_site_is_refused_by_name():
    sites = two_sites()
    sites["east"] = np.empty((0, 2))
    with pytest.raises(InputError, match="site 'east' has no rows; leave it out"):
        quick().fit(sites)


@pytest.mark.parametrize("rows", [{"north": np.ones((30, 2))}, [np.ones((30, 2))]], ids=["dict", "list"])
def test_one_named_site_is_refused(rows):
    with pytest.raises(InputError, match=r"got only one site, .*a federation needs at least two.*sites=None"):
        quick().fit(rows)


def test_one_label_for_all_rows_is_refused_in_fit():
    with pytest.raises(InputError, match="got only one site, 'north'"):
        quick().fit(two_sites()["north"], sites=["north"] * 30)


def test_more_components_than_any_site_has_rows_are_refused():
    sites = {"tiny": GENERATOR.normal(size=(1, 2)), "small": GENERATOR.normal(size=(3, 2))}
    with pytest.raises(InputError, match=r"largest site, 'small', has 3 row.*fewer than the 4 components.*use fewer"):
        quick(n_components=4).fit(sites)


def test_duplicate_site_names_are_refused():
    with pytest.raises(InputError, match="site name 'a' occurs more than once"):
        quick().fit(list(two_sites().values()), sites=["a", "a"])
    with pytest.raises(InputError, match="site name '1' occurs more than once"):
        quick().fit({1: two_sites()["north"], "1": two_sites()["south"]})


@pytest.mark.parametrize("missing", [None, np.nan, ""])
def test_a_row_without_a_site_is_refused(missing):
    labels = ["north"] * 15 + ["south"] * 14 + [missing]
    with pytest.raises(InputError, match=r"1 row\(s\) have no site, the first is row 29; name the site"):
        quick().fit(two_sites()["north"], sites=labels)


def test_labels_of_mixed_types_are_refused():
    with pytest.raises(InputTypeError, match="site labels mix the types int, str"):
        quick().fit(two_sites()["north"], sites=[1] * 15 + ["a"] * 15)


def test_a_wrong_number_of_labels_is_refused():
    with pytest.raises(ShapeError, match="sites has 29 labels for 30 rows"):
        quick().fit(two_sites()["north"], sites=["a"] * 29)
    with pytest.raises(ShapeError, match=r"sites has shape \(30, 1\), expected \(30,\)"):
        quick().fit(two_sites()["north"], sites=np.ones((30, 1)))


def test_mismatched_columns_are_refused_by_site():
    sites = two_sites()
    sites["east"] = GENERATOR.normal(size=(30, 3))
    with pytest.raises(
        ShapeError, match=r"site 'east' has rows of shape \(30, 3\), expected \(n, 2\) as at site 'north'"
    ):
        quick().fit(sites)
    frames = {"a": pd.DataFrame(two_sites()["north"], columns=["u", "v"])}
    frames["b"] = frames["a"].rename(columns={"v": "w"})
    with pytest.raises(InputError, match=r"site 'b' has columns \['u', 'w'\], expected \['u', 'v'\] as at site 'a'"):
        quick().fit(frames)


@pytest.mark.parametrize("library", [pd, pl], ids=["pandas", "polars"])
def test_a_text_column_is_refused_by_name(library):
    frame = library.DataFrame({"age": [1.0, 2.0] * 5, "name": ["x", "y"] * 5, "hospital": ["a", "b"] * 5})
    with pytest.raises(InputError, match=r"columns that are not numeric: 'name' .*sites="):
        quick().fit(frame, sites="hospital")


def test_a_column_of_numbers_and_text_is_refused_by_name():
    frame = pd.DataFrame({"age": np.arange(30.0), "bmi": [1, "n/a", *range(28)], "site": ["a", "b"] * 15})
    with pytest.raises(InputError, match=r"columns that are not numeric: 'bmi' \(Object\)"):
        quick().fit(frame, sites="site")
    frame["bmi"] = pd.Series([None, *range(29)], dtype=object)
    with pytest.raises(InputError, match=r"site 'a' contains NaN \(1\).* bmi"):
        quick().fit(frame, sites="site")


def test_a_site_column_that_is_not_there_is_refused_with_the_columns_that_are():
    frame = pd.DataFrame({"age": [1.0, 2.0], "bmi": [3.0, 4.0]})
    with pytest.raises(InputError, match=r"sites='hospital' is not a column; the columns are \['age', 'bmi'\]"):
        quick().fit(frame, sites="hospital")
    with pytest.raises(InputTypeError, match="sites='hospital' names a column, but the rows are a ndarray"):
        quick().fit(two_sites()["north"], sites="hospital")


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"n_components": 0}, InputError, "n_components must be >= 1, got 0"),
        ({"n_components": 2.0}, InputTypeError, "n_components must be an integer >= 1, got 2.0 of type float"),
        ({"penalty": -1.0}, InputError, r"penalty must be in \[0, inf\], got -1.0"),
        ({"penalty": "2"}, InputTypeError, "penalty must be a number, got '2'"),
        ({"penalty": np.nan}, InputError, "penalty must be in"),
        (
            {"algorithm": FedGrEM(penalty_decay=1.0)},
            InputError,
            r"has penalty_decay=1.0, expected a number in \[0, 1\)",
        ),
        (
            {"algorithm": FedGrEM(step_size=2.5)},
            InputError,
            r"algorithm has step_size=2.5, expected a number in \(0, 2\)",
        ),
        ({"algorithm": FedGrEM(step_size="long")}, InputError, "has step_size='long', expected a number"),
        ({"algorithm": FedGrEM(batch=0.0)}, InputError, r"has batch=0.0, expected a number in \(0, 1\]"),
        ({"algorithm": FedGrEM(local_steps=0)}, InputError, "has local_steps=0, expected a number in"),
        (
            {"algorithm": FedGrEM(center="newton")},
            InputError,
            "has center='newton', expected one of empirical-bayes, sparse, redescending",
        ),
        (
            {"algorithm": FedGrEM(step_weights=None)},
            InputError,
            "step_weights='None', expected one of current, initial",
        ),
        ({"algorithm": FedEMSA(participation=2.0)}, InputError, "has participation=2.0, expected a number in"),
        ({"algorithm": FedGrEM}, InputTypeError, r"a name or an object such as FedGrEM\(step_size=0.5\), got <class"),
        (
            {"algorithm": "local-em", "penalty": 2.0},
            InputError,
            "penalty=2.0 is for algorithms that pull.*Local-EM does",
        ),
        ({"algorithm": "fedem", "fallback": "local"}, InputError, "fallback='local' is for algorithms that pull"),
        ({"fallback": "never"}, InputError, "fallback must be one of 'auto', 'local'; got 'never'"),
        ({"align": "by name"}, InputError, "align must be one of 'assignment', 'stepwise', 'exhaustive'"),
        ({"verbose": "yes"}, InputTypeError, "verbose must be 0 or 1, got 'yes'"),
        ({"covariance_type": "round"}, InputError, "covariance_type must be one of 'identity'"),
        ({"missing": "drop"}, InputError, "missing must be one of 'refuse', 'em'"),
        ({"tol": -1e-3}, InputError, "tol must be in"),
        ({"max_rounds": 0}, InputError, "max_rounds must be >= 1"),
        ({"n_init": True}, InputTypeError, "n_init must be an integer"),
        ({"algorithm": "fedavg"}, InputError, "algorithm must be one of 'fedgrem'.*got 'fedavg'"),
    ],
)
def test_bad_arguments_are_refused_in_fit_by_name(options, error, match):
    with pytest.raises(error, match=match):
        FederatedGaussianMixture(**options).fit(two_sites())


def test_starts_of_the_wrong_shape_are_refused():
    even, means = np.full((2, 2), 0.5), np.zeros((2, 2, 2))
    with pytest.raises(ShapeError, match=r"means_init has shape \(2, 2\), expected \(2, 2, 2\)"):
        quick(means_init=even).fit(two_sites())
    with pytest.raises(InputError, match="weights_init was given without means_init"):
        quick(weights_init=even).fit(two_sites())
    with pytest.raises(InputError, match="weights_init must be >= 0 and sum to 1 at every site"):
        quick(weights_init=2 * even, means_init=means).fit(two_sites())
    with pytest.raises(InputError, match="means_init contains NaN or infinity"):
        quick(means_init=means * np.nan).fit(two_sites())


def test_sample_weights_are_checked():
    rows = two_sites()["north"]
    with pytest.raises(InputError, match="site 'all' has negative, NaN or infinite sample weights"):
        quick().fit(rows, sample_weight=-np.ones(30))
    with pytest.raises(ShapeError, match=r"sample_weight has shape \(29,\), expected \(30,\)"):
        quick().fit(rows, sample_weight=np.ones(29))
    with pytest.raises(InputError, match="has only sample weights of zero"):
        quick().fit(rows, sample_weight=np.zeros(30))
    with pytest.raises(InputError, match=r"sample_weight names the sites \['north'\]"):
        quick().fit(two_sites(), sample_weight={"north": np.ones(30)})


def test_targets_are_checked_by_site():
    sites = two_sites()
    model = FederatedRegressionMixture(2, **PLAIN)
    with pytest.raises(ShapeError, match=r"y of site 'south' has shape \(29,\), expected \(30,\)"):
        model.fit(sites, {"north": np.ones(30), "south": np.ones(29)})
    targets = {"north": np.ones(30), "south": np.full(30, np.nan)}
    with pytest.raises(InputError, match=r"y contains NaN or infinity in 30 row\(s\), the first at site 'south'"):
        model.fit(sites, targets)


def test_a_custom_density_that_is_wrong_is_named_before_the_fit():
    def density(row, theta):
        return -jnp.sum((row - theta) ** 2)

    def start(key, rows):
        return rows.mean(axis=0)

    with pytest.raises(InputTypeError, match="log_density must be a function"):
        FederatedMixture().fit(two_sites())
    with pytest.raises(ShapeError, match=r"log_density returned shape \(2,\), expected a scalar"):
        FederatedMixture(lambda row, theta: row - theta, start).fit(two_sites())
    with pytest.raises(ShapeError, match=r"draw_start returned shape \(5, 2\)"):
        FederatedMixture(density, lambda key, rows: rows).fit(two_sites())
    with pytest.raises(InputError, match="log_density failed on inputs of shape"):
        FederatedMixture(lambda row, theta: row @ np.ones(7), start).fit(two_sites())


def test_every_error_is_one_of_the_package_and_a_value_or_type_error():
    for error in (InputError, ShapeError):
        assert issubclass(error, FedGrEMError)
        assert issubclass(error, ValueError)
    assert issubclass(InputTypeError, TypeError)


def test_predicting_before_fitting_is_refused():
    with pytest.raises(NotFittedError):
        quick().predict(two_sites()["north"])


def test_rows_of_a_site_that_was_not_fitted_are_judged_by_the_center_with_a_warning():
    model = quick().fit(two_sites())
    rows = two_sites()["north"]
    with pytest.warns(UnknownSiteWarning, match=r"site\(s\) west were not fitted; the common center is used"):
        from_center = model.predict_proba(rows, sites="west")
    with pytest.warns(UnknownSiteWarning, match="no sites were given, but the model was fitted on 2"):
        np.testing.assert_array_equal(model.predict_proba(rows), from_center)


def test_an_unsettled_fit_warns_with_a_remedy():
    with pytest.warns(ConvergenceWarning, match=r"not settled after 2 rounds: .*raise max_rounds or tol"):
        FederatedGaussianMixture(2, **PLAIN | {"max_rounds": 2, "tol": 1e-12}).fit(two_sites())


def test_sampling_from_an_unknown_site_is_refused():
    with pytest.raises(InputError, match=r"site 'west' was not fitted; the sites are \['north', 'south'\]"):
        quick().fit(two_sites()).sample(3, site="west")
