"""Missing cells: refused by default, or filled by EM."""

import numpy as np
import pytest
from scipy.stats import multivariate_normal
from sklearn.metrics import adjusted_rand_score
from tests.estimators.test_covariances import sites

from fedgrem import FederatedGaussianMixture
from fedgrem.errors import InputError
from fedgrem.estimators.notes import ColumnWarning

FAST = {"n_init": 3, "penalty": 2.0, "standard_errors": False, "random_state": 0, "tol": 1e-5}


def with_gaps(rows, share=0.2, seed=1):
    """The same rows with cells missing at random, at most one in a row."""
    generator = np.random.default_rng(seed)
    found = {}
    for name, table in rows.items():
        found[name] = table.copy()
        hit = np.flatnonzero(generator.random(len(table)) < share)
        found[name][hit, generator.integers(table.shape[1], size=len(hit))] = np.nan
    return found


def test_gaps_are_refused_by_default_with_their_number_and_place():
    rows = with_gaps(sites(n_sites=2, n=60)[0])
    n = int(np.isnan(rows["s0"]).any(axis=1).sum())
    with pytest.raises(InputError, match=rf"site 's0' contains NaN \({n}\).* in {n} row\(s\), in column.*missing='em'"):
        FederatedGaussianMixture(2).fit(rows)


def test_em_finds_the_groups_and_their_covariance_despite_the_gaps():
    rows, labels = sites()
    broken = with_gaps(rows)
    model = FederatedGaussianMixture(3, missing="em", **FAST).fit(broken)
    found = model.predict(broken)
    assert np.mean([adjusted_rand_score(labels[name], found[name]) for name in rows]) > 0.75
    whole = FederatedGaussianMixture(3, **FAST).fit(rows)
    np.testing.assert_allclose(model.center_covariances_, whole.center_covariances_, atol=0.12)
    order = [np.argmin(np.linalg.norm(model.center_ - center, axis=1)) for center in whole.center_]
    np.testing.assert_allclose(model.center_[order], whole.center_, atol=0.3)


def test_the_score_of_a_row_is_the_density_of_what_is_seen_of_it():
    rows = with_gaps(sites(n_sites=3, n=60)[0])
    model = FederatedGaussianMixture(2, missing="em", **FAST | {"max_rounds": 5, "tol": 0.0, "n_init": 1}).fit(rows)
    row = np.array([[0.7, np.nan]])
    density = sum(
        model.weights_[0, r] * multivariate_normal(model.means_[0, r, 0], model.covariances_[0, 0, 0, 0]).pdf(0.7)
        for r in range(2)
    )
    np.testing.assert_allclose(model.score_samples(row, sites="s0"), np.log(density), rtol=1e-8)


@pytest.mark.parametrize("covariance", ["tied", "identity", "diag", "full"])
def test_without_gaps_em_for_gaps_is_em(covariance):
    """One gap in a row of weight 0 changes nothing: the formulas for gaps and those without agree."""
    rows = sites(n_sites=3, n=40)[0]
    padded = {name: np.vstack([table, [np.nan, 0.0]]) for name, table in rows.items()}
    weight = {name: np.append(np.ones(40), 0.0) for name in rows}
    start = np.tile(np.array([[0.0, 0.0], [4.0, 1.0]]), (3, 1, 1))
    options = {"covariance_type": covariance, "means_init": start, "align": False, "tol": 0.0, "max_rounds": 4}
    options |= {"penalty": 2.0, "standard_errors": False}
    plain = FederatedGaussianMixture(2, **options).fit(rows)
    filled = FederatedGaussianMixture(2, missing="em", **options).fit(padded, sample_weight=weight)
    np.testing.assert_allclose(filled.means_, plain.means_, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(filled.weights_, plain.weights_, rtol=1e-9, atol=1e-9)


def test_local_em_with_gaps_never_lowers_the_likelihood():
    rows = with_gaps(sites(n_sites=2, n=60)[0], share=0.5)
    model = FederatedGaussianMixture(
        2, algorithm="local-em", missing="em", max_rounds=25, tol=0.0, n_init=1, random_state=0
    )
    value = model.fit(rows).history_["log_likelihood"]
    assert np.all(np.diff(value, axis=0) > -1e-4 * np.abs(value[:-1]))


@pytest.mark.parametrize("covariance", ["tied", "identity"])
def test_gaps_do_not_draw_starts_to_zero(covariance):
    """Rows with gaps begin at the middle of their column, wherever that is, and so find their group."""
    rows, labels = sites(n_sites=3, n=60)
    far = with_gaps({name: table + 1000.0 for name, table in rows.items()})
    model = FederatedGaussianMixture(3, covariance_type=covariance, missing="em", **FAST).fit(far)
    assert np.abs(model.center_ - 1000.0).max() < 12.0
    if covariance == "tied":
        found = model.predict(far)
        assert np.mean([adjusted_rand_score(labels[name], found[name]) for name in rows]) > 0.7


def test_a_site_without_a_single_cell_of_a_column_takes_part_with_the_others():
    rows, _ = sites(n_sites=3, n=60)
    rows["s2"][:, 1] = np.nan
    with pytest.warns(ColumnWarning, match="x1 is missing in all 60 rows of site 's2'"):
        model = FederatedGaussianMixture(3, missing="em", **FAST).fit(rows)
    assert np.isfinite(model.means_).all()
    assert np.isfinite(model.score(rows))
    whole = FederatedGaussianMixture(3, **FAST).fit(sites(n_sites=3, n=60)[0])
    order = [np.argmin(np.linalg.norm(model.center_ - center, axis=1)) for center in whole.center_]
    np.testing.assert_allclose(model.center_[order], whole.center_, atol=0.6)


def test_gaps_in_rows_to_predict_are_named_by_site_and_column():
    rows, _ = sites(n_sites=3, n=60)
    model = FederatedGaussianMixture(3, **FAST).fit(rows)
    rows["s1"][3, 1] = np.nan
    with pytest.raises(InputError, match=r"site 's1' contains NaN \(1\).* in 1 row\(s\), in column\(s\) x1; drop"):
        model.predict(rows)


def test_infinity_is_refused_and_a_column_nobody_recorded():
    rows = sites(n_sites=2, n=30)[0]
    rows["s1"][0, 0] = np.inf
    with pytest.raises(InputError, match="infinity"):
        FederatedGaussianMixture(2, missing="em").fit(rows)
    rows["s1"][0, 0] = 0.0
    for table in rows.values():
        table[:, 1] = np.nan
    with pytest.raises(InputError, match="column 'x1' is missing in every row"):
        FederatedGaussianMixture(2, missing="em").fit(rows)
    with pytest.raises(InputError, match="missing='em' does not go with FedGMM"):
        FederatedGaussianMixture(2, missing="em", algorithm="fedgmm").fit(rows)


def test_log_likelihoods_of_the_fit_are_those_of_what_is_seen_in_the_columns_own_units():
    rows = {name: x * [10.0, 0.1] for name, x in gappy_sites().items()}
    model = FederatedGaussianMixture(
        [1, 2, 3], missing="em", penalty=0.0, fallback=None, tol=1e-8, max_rounds=400, random_state=0
    ).fit(rows)
    of_sites = [model.score_samples(x, sites=name).sum() for name, x in rows.items()]
    np.testing.assert_allclose(model.history_["log_likelihood"][-1], of_sites, rtol=1e-4)
    told = model.site_evidence_["log_likelihood"] * model.n_rows_
    assert np.all(np.abs(told - of_sites) < 1.0)  # a look is a few more steps
    one = FederatedGaussianMixture(1, missing="em", penalty=0.0, fallback=None, random_state=0).fit(rows)
    total = sum(one.score_samples(x, sites=name).sum() for name, x in rows.items())
    np.testing.assert_allclose(model.selection_["log_likelihood"][0], total, rtol=1e-3)


def gappy_sites():
    """Two sites of two groups; the second lacks a third of its first column."""
    generator = np.random.default_rng(3)
    found = {}
    for name, share in (("whole", 0.0), ("gappy", 0.33)):
        x = np.where(generator.random((90, 1)) < 0.5, 3.0, -3.0) + generator.normal(size=(90, 2))
        x[generator.random(90) < share, 0] = np.nan
        found[name] = x
    return found
