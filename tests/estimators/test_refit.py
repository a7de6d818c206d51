"""A second fit of one model: nothing of the first is left, and nothing is lost if it fails."""

import numpy as np
import pytest
from tests.estimators.test_covariances import FAST, sites

from fedgrem import FederatedGaussianMixture
from fedgrem.errors import InputError
from fedgrem.report import summarize

PATH = {"penalty_path_", "covariance_penalty_", "site_gain_", "site_gain_se_", "fitted_alone_"}


def test_what_only_an_estimated_covariance_has_is_gone_without_one():
    rows, _ = sites(n_sites=3, n=60)
    model = FederatedGaussianMixture(3, **FAST).fit(rows)
    assert hasattr(model, "covariances_")
    again = model.set_params(covariance="identity").fit(rows)
    fresh = FederatedGaussianMixture(3, covariance="identity", **FAST).fit(rows)
    assert set(again.fitted_values()) == set(fresh.fitted_values())
    assert not hasattr(again, "scale_")


def test_what_only_a_chosen_penalty_has_is_gone_with_a_given_one():
    rows, _ = sites(n_sites=4, n=60)
    model = FederatedGaussianMixture(3, **FAST | {"penalty": "auto"}).fit(rows)
    assert set(model.fitted_values()) > PATH
    del rows["s3"]
    model.set_params(penalty=2.0).fit(rows)
    assert not PATH & set(model.fitted_values())
    assert len(summarize(model).sites) == 3


def test_a_fit_that_is_refused_leaves_the_model_as_it_was():
    rows, _ = sites(n_sites=3, n=60)
    model = FederatedGaussianMixture(3, **FAST).fit(rows)
    means = model.means_
    rows["s1"][0, 0] = np.nan
    with pytest.raises(InputError, match="site 's1' contains NaN"):
        model.fit(rows)
    assert model.means_ is means
