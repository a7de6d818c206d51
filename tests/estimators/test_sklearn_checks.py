"""scikit-learn's own checks, on every estimator with ``sites=None`` (one site)."""

import jax.numpy as jnp
import pytest
from sklearn.utils.estimator_checks import estimator_checks_generator

from fedgrem import FederatedGaussianMixture, FederatedMixture, FederatedRegressionMixture, FederatedTableMixture


def laplace(row, theta):
    return -jnp.sum(jnp.sqrt(1.0 + (row - theta) ** 2))


def near_rows(key, rows):
    return rows.mean(axis=0)


ESTIMATORS = [
    FederatedGaussianMixture(max_rounds=50, n_init=2, standard_errors=False),
    FederatedRegressionMixture(max_rounds=50, n_init=2, standard_errors=False),
    FederatedTableMixture(max_rounds=50, n_init=2, standard_errors=False),
    FederatedMixture(laplace, near_rows, max_rounds=20, n_init=2, standard_errors=False),
]


def named_checks():
    """Every check of every estimator; the names carry no function address, so that test workers agree on them."""
    for place, estimator in enumerate(ESTIMATORS):
        for instance, check in estimator_checks_generator(estimator):
            function = getattr(check, "func", check)
            options = "-".join(f"{k}={v}" for k, v in getattr(check, "keywords", {}).items())
            yield pytest.param(instance, check, id=f"{type(estimator).__name__}-{place}-{function.__name__}-{options}")


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")
@pytest.mark.parametrize(("estimator", "check"), list(named_checks()))
def test_the_estimator_passes_scikit_learns_checks(estimator, check):
    check(estimator)
