"""Tables as they come: a fit that can be used, or an error of ours, never something from inside the library."""

import numpy as np
import pandas as pd
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgrem import FederatedGaussianMixture, FederatedRegressionMixture
from fedgrem.errors import FedGrEMError
from fedgrem.report import summarize

N = 24
SITES = ["north", "south"] * (N // 2)
QUICK = {"n_init": 1, "max_rounds": 5, "tol": 1.0, "penalty": 2.0, "standard_errors": False, "random_state": 0}


def spoilt(value, generator):
    column = generator.normal(size=N)
    column[generator.integers(N)] = value
    return column


COLUMNS = {
    "numbers": lambda g: g.normal(size=N),
    "whole numbers": lambda g: g.integers(-3, 4, size=N),
    "yes or no": lambda g: g.random(N) < 0.5,
    "heavy tails": lambda g: g.standard_cauchy(size=N),
    "zeros": lambda g: np.zeros(N),
    "one value": lambda g: np.full(N, 7.5),
    "a value for each site": lambda g: np.where(np.arange(N) % 2, 1.0, 2.0),
    "far from zero": lambda g: 1e9 + g.normal(size=N),
    "tiny": lambda g: 1e-200 * g.normal(size=N),
    "huge": lambda g: 1e90 * g.normal(size=N),
    "beyond squares": lambda g: 1e200 * g.normal(size=N),
    "one gap": lambda g: spoilt(np.nan, g),
    "all gaps": lambda g: np.full(N, np.nan),
    "an infinity": lambda g: spoilt(np.inf, g),
    "one far cell": lambda g: spoilt(1e12, g),
    "text": lambda g: [f"patient {i}" for i in range(N)],
    "dates": lambda g: pd.date_range("2020-01-01", periods=N).to_list(),
}


def table(kinds, library, seed):
    generator = np.random.default_rng(seed)
    columns = {f"c{j}": COLUMNS[kind](generator) for j, kind in enumerate(kinds)}
    return (pd if library == "pandas" else pl).DataFrame(columns | {"site": SITES})


@given(
    kinds=st.lists(st.sampled_from(sorted(COLUMNS)), min_size=2, max_size=2),
    library=st.sampled_from(["pandas", "polars"]),
    missing=st.sampled_from(["refuse", "em"]),
    seed=st.integers(0, 2**32 - 1),
)
@settings(max_examples=60)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.filterwarnings("ignore::fedgrem.estimators.notes.ColumnWarning")
def test_any_table_is_fitted_by_gaussians_or_refused(kinds, library, missing, seed):
    rows = table(kinds, library, seed)
    model = FederatedGaussianMixture(2, missing=missing, **QUICK)
    try:
        model.fit(rows, sites="site")
    except FedGrEMError:
        return
    assert np.isfinite(model.means_).all()
    assert np.isfinite(model.covariances_).all()
    share = model.predict_proba(rows, sites="site")
    np.testing.assert_allclose(share.sum(axis=1), 1.0, rtol=1e-6)
    assert len(summarize(model).sites) == 2


@given(
    kinds=st.lists(st.sampled_from(sorted(COLUMNS)), min_size=2, max_size=2),
    response=st.sampled_from(sorted(COLUMNS)),
    library=st.sampled_from(["pandas", "polars"]),
    seed=st.integers(0, 2**32 - 1),
)
@settings(max_examples=60)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.filterwarnings("ignore::fedgrem.estimators.notes.ColumnWarning")
def test_any_table_is_fitted_by_regressions_or_refused(kinds, response, library, seed):
    rows = table(kinds, library, seed)
    y = COLUMNS[response](np.random.default_rng([seed, 1]))
    model = FederatedRegressionMixture(2, noise="shared", **QUICK)
    try:
        model.fit(rows, y, sites="site")
    except FedGrEMError:
        return
    assert np.isfinite(model.coef_).all()
    assert np.isfinite(model.noise_).all()
    assert np.isfinite(model.predict(rows, sites="site")).all()


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_values_too_large_to_square_are_refused_by_site_and_column(library):
    rows = table(["numbers", "beyond squares"], library, 0)
    with pytest.raises(
        FedGrEMError, match=r"site 'north' holds values as large as \d.*e\+20\d, in column\(s\) c1; beyond"
    ):
        FederatedGaussianMixture(2, **QUICK).fit(rows, sites="site")
