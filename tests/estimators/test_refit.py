"""A second fit of one model: nothing of the first is left, and nothing is lost if it fails."""

import numpy as np
import pytest
from tests.estimators.test_covariances import FAST, sites

from fedgrem import FederatedGaussianMixture
from fedgrem.errors import InputError
from fedgrem.report import summarize


def test_a_second_fit_finds_what_a_fresh_one_would():
    rows, _ = sites(n_sites=3, n=60)
    model = FederatedGaussianMixture(3, **FAST).fit(rows)
    again = model.set_params(covariance_type="identity").fit(rows).fitted_values()
    fresh = FederatedGaussianMixture(3, covariance_type="identity", **FAST).fit(rows).fitted_values()
    assert again.keys() == fresh.keys()
    for name, value in fresh.items():
        np.testing.assert_equal(again[name], value, err_msg=name)


def test_nothing_is_left_of_a_chosen_penalty_where_one_is_given():
    rows, _ = sites(n_sites=4, n=60)
    model = FederatedGaussianMixture(3, **FAST | {"penalty": "auto"}).fit(rows)
    assert len(model.penalty_path_["penalties"]) == 2
    assert np.isfinite(model.between_site_variance_).all()
    assert np.isfinite(model.site_gain_).all()
    del rows["s3"]
    model.set_params(penalty=2.0).fit(rows)
    assert model.penalty_path_ == {}
    assert np.isnan(model.between_site_variance_).all()
    assert np.isnan(model.site_gain_).all()
    assert model.local_only_.tolist() == [False] * 3
    assert len(summarize(model).sites) == 3


def test_a_fit_that_is_refused_leaves_the_model_as_it_was():
    rows, _ = sites(n_sites=3, n=60)
    model = FederatedGaussianMixture(3, **FAST).fit(rows)
    means = model.means_
    rows["s1"][0, 0] = np.nan
    with pytest.raises(InputError, match="site 's1' contains NaN"):
        model.fit(rows)
    assert model.means_ is means
