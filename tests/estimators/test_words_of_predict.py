"""What predict makes of columns in another order and of misspelt sites."""

import numpy as np
import pandas as pd
import polars as pl
import pytest

from fedgrem import FederatedGaussianMixture
from fedgrem.errors import InputError
from fedgrem.estimators.fitted import UnknownSiteWarning


@pytest.fixture(scope="module")
def fitted():
    generator = np.random.default_rng(0)
    groups = generator.integers(2, size=160)
    table = pd.DataFrame({"a": 5.0 * groups + generator.normal(size=160), "b": generator.normal(size=160)})
    table["site"] = np.repeat(["North", "south", "site-1", "site-2"], 40)
    return table, FederatedGaussianMixture(2, random_state=0).fit(table, sites="site")


@pytest.mark.parametrize("make", [pd.DataFrame, pl.from_pandas], ids=["pandas", "polars"])
def test_columns_in_another_order_are_put_in_order_by_name(fitted, make):
    table, model = fitted
    turned = make(table[["b", "site", "a"]])
    np.testing.assert_array_equal(model.predict(turned, sites="site"), model.predict(make(table), sites="site"))
    np.testing.assert_array_equal(
        model.predict(make(table[["b", "a"]]), sites="south"), model.predict(make(table[["a", "b"]]), sites="south")
    )


def test_sites_by_name_may_have_their_columns_in_any_order(fitted):
    table, model = fitted
    apart = {name: own[["a", "b"]] for name, own in table.groupby("site")}
    turned = {name: own[["b", "a"]] if name == "south" else own for name, own in apart.items()}
    expected, found = model.predict(apart), model.predict(turned)
    assert all(found[name].equals(expected[name]) for name in apart)
    again = FederatedGaussianMixture(2, random_state=0).fit(turned)
    np.testing.assert_array_equal(again.means_, FederatedGaussianMixture(2, random_state=0).fit(apart).means_)


def test_columns_that_are_not_those_of_the_fit_are_still_refused(fitted):
    table, model = fitted
    with pytest.raises(ValueError, match="feature names"):
        model.predict(table[["b", "a"]].rename(columns={"a": "c"}), sites="south")


@pytest.mark.parametrize(("name", "meant"), [("nroth", "North"), ("Souht", "south"), ("site_1", "site-1")])
def test_a_misspelt_site_is_refused_with_the_nearest_name(fitted, name, meant):
    table, model = fitted
    with pytest.raises(InputError, match=f"site '{name}' was not fitted, but '{meant}' was"):
        model.predict(table[["a", "b"]], sites=name)


@pytest.mark.parametrize("name", ["site-3", "hillside"])
def test_a_new_site_has_the_common_center(fitted, name):
    table, model = fitted
    with pytest.warns(UnknownSiteWarning, match=f"{name} were not fitted"):
        model.predict(table[["a", "b"]], sites=name)
