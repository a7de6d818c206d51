"""Where the error of a fit comes from: told from the fit alone, and near the truth."""

import numpy as np
import pytest
from sklearn.exceptions import NotFittedError

from fedgrem import FederatedGaussianMixture, FederatedRegressionMixture
from fedgrem.data.simulate import simulate
from fedgrem.errors import InputError
from fedgrem.kernels.scores import parameter_errors
from fedgrem.plots import plot_error_budget
from fedgrem.theory.budget import TERMS

OPTIONS = {"random_state": 0, "standard_errors": False}


def fitted(h, **options):
    rows = simulate("gmm", h=h, seed=1)
    return rows, FederatedGaussianMixture(5, **OPTIONS | options).fit(rows.rows)


def largest_error(rows, model):
    good = rows.honest
    return parameter_errors(model.weights_[good], model.means_[good], rows.weights[good], rows.theta[good])[1].max()


@pytest.mark.parametrize(("h", "covariance"), [(0.0, "tied"), (0.5, "identity"), (1.5, "full")])
def test_the_terms_add_up_to_about_the_error(h, covariance):
    rows, model = fitted(h, covariance_type=covariance)
    found = model.error_budget()
    assert found.total == pytest.approx(sum(getattr(found, name) for name in TERMS))
    assert min(found[:5]) >= 0.0
    assert found.total == pytest.approx(largest_error(rows, model), rel=0.35)
    assert found.total < found.alone


def test_what_differs_between_sites_is_heterogeneity():
    alike, unlike = (fitted(h, covariance_type="identity")[1].error_budget() for h in (0.0, 1.0))
    assert alike.heterogeneity < 0.1 * alike.total
    assert unlike.heterogeneity > 0.5 * unlike.total


def test_rounds_not_played_are_a_term():
    rows = simulate("gmm", h=0.0, seed=1).rows
    short = FederatedGaussianMixture(5, covariance_type="identity", max_rounds=1, tol=1e-9, n_init=1, **OPTIONS)
    with pytest.warns(UserWarning, match="not settled"):
        short.fit(rows)
    assert short.error_budget().iteration > fitted(0.0, covariance_type="identity")[1].error_budget().iteration


def test_regressions_have_one_too():
    rows = simulate("mor", h=1.5, seed=1)
    model = FederatedRegressionMixture(5, **OPTIONS).fit(rows.rows, rows.targets)
    found = model.error_budget()
    assert np.isfinite(found).all()
    assert found.heterogeneity > 0.0


def test_the_picture_names_every_part():
    ax = plot_error_budget(fitted(0.5, covariance_type="identity")[1].error_budget())
    said = [text.get_text() for text in ax.get_legend().get_texts()]
    assert [words.split(":")[0] for words in said] == [
        "rounds not played", "all rows together", "own weights", "sites that differ", "bad sites",
    ]  # fmt: skip
    assert ax.get_yticklabels()[1].get_text().startswith("each site alone: 1.")


def test_where_there_is_none_it_is_said_why():
    rows = simulate("gmm", seed=1).rows
    with pytest.raises(NotFittedError):
        FederatedGaussianMixture(2).error_budget()
    with pytest.raises(InputError, match="no error budget for this fit: its sites were not pulled"):
        FederatedGaussianMixture(2, algorithm="local-em", **OPTIONS).fit(rows).error_budget()
    with pytest.raises(InputError, match="it has one site"):
        FederatedGaussianMixture(2, **OPTIONS).fit(rows["site-01"]).error_budget()
