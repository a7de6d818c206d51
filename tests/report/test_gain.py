"""What sites gain over fitting alone, on rows that neither fit has seen."""

import numpy as np
import polars as pl
import pytest

from fedgrem import FederatedGaussianMixture, FederatedRegressionMixture
from fedgrem.data.simulate import simulate
from fedgrem.errors import InputError, ShapeError
from fedgrem.report.gain import given_rows, measure_gain

PAPER = {"covariance_type": "identity", "penalty": 2.0, "standard_errors": False}
"""The quickest; what is tested here does not depend on it."""


@pytest.fixture(scope="module")
def similar():
    """Five like sites of few rows, and a hostile one."""
    simulation = simulate("gmm", h=0.0, n_sites=6, n_rows=50, seed=2)
    model = FederatedGaussianMixture(5, **PAPER, n_init=2, random_state=0).fit(simulation.rows)
    return simulation, model, measure_gain(model, simulation.rows)


def test_similar_sites_gain_and_the_hostile_one_is_shown(similar):
    simulation, _, gains = similar
    assert [site.name for site in gains.sites] == list(simulation.rows)
    honest = {name for name, ok in zip(simulation.rows, simulation.honest, strict=True) if ok}
    gain, error = gains.over(honest)
    assert gain > 2 * error > 0
    hostile = gains.sites[-1]
    assert hostile.name == "site-06"
    assert np.isfinite(hostile.gain)
    assert gains.settled


def test_a_gain_is_a_paired_difference_with_its_standard_error(similar):
    for site in similar[2].sites:
        assert site.n_fitted == 40
        assert site.n_held == 10
        assert site.gain == pytest.approx(site.together - site.alone)
        assert site.error > 0


def test_the_same_seed_gives_the_same_gains_and_leaves_the_model_as_it_was(similar):
    simulation, model, gains = similar
    before = model.means_.copy()
    assert measure_gain(model, simulation.rows) == gains
    np.testing.assert_array_equal(model.means_, before)


def test_the_worst_come_first_and_odd_ones_before_them(similar):
    order = [site.name for site in similar[2].worst_first(frozenset({"site-03"}))]
    assert order[0] == "site-03"
    gains = {site.name: site.gain for site in similar[2].sites}
    assert [gains[name] for name in order[1:]] == sorted(gains[name] for name in order[1:])


def two_groups(n_rows):
    generator = np.random.default_rng(0)
    names = [f"s{k}" for k, n in enumerate(n_rows) for _ in range(n)]
    group = generator.integers(2, size=len(names))
    return pl.DataFrame({"a": 8.0 * group + generator.normal(size=len(names)), "site": names})


def test_sites_too_small_to_hold_rows_back_still_take_part():
    frame = two_groups([30, 30, 5])
    model = FederatedGaussianMixture(2, **PAPER, n_init=1, random_state=0).fit(frame, sites="site")
    gains = measure_gain(model, frame, sites="site")
    assert [site.name for site in gains.sites] == ["s0", "s1"]
    assert gains.too_small == ["s2"]


def test_sites_that_were_not_fitted_are_left_out_by_name():
    frame = two_groups([30, 30, 30])
    model = FederatedGaussianMixture(2, **PAPER, n_init=1, random_state=0).fit(
        frame.filter(pl.col("site") != "s2"), sites="site"
    )
    assert measure_gain(model, frame, sites="site").unknown == ["s2"]


def test_starts_that_were_given_are_kept_only_for_the_sites_they_were_given_for():
    frame = two_groups([30, 30, 30])
    means = np.tile(np.array([[[0.0], [8.0]]]), (3, 1, 1))
    model = FederatedGaussianMixture(2, **PAPER, means_init=means, random_state=0).fit(frame, sites="site")
    assert len(measure_gain(model, frame, sites="site").sites) == 3
    assert len(measure_gain(model, frame.filter(pl.col("site") != "s1"), sites="site").sites) == 2


def test_a_regression_is_judged_by_its_responses():
    generator = np.random.default_rng(1)
    rows = {name: generator.normal(size=(40, 2)) for name in ("a", "b", "c")}
    y = {name: x @ [2.0, -1.0] + generator.normal(size=40) for name, x in rows.items()}
    model = FederatedRegressionMixture(
        1, noise="unit", n_init=1, penalty=2.0, standard_errors=False, random_state=0
    ).fit(rows, y)
    assert len(measure_gain(model, rows, y).sites) == 3
    with pytest.raises(InputError, match="a mixture of regressions is judged by its responses; give them as y="):
        measure_gain(model, rows)


def test_rows_of_other_sites_or_columns_are_refused():
    frame = two_groups([10, 10])
    model = FederatedGaussianMixture(1, **PAPER, n_init=1, random_state=0).fit(frame, sites="site")
    with pytest.raises(InputError, match="no row is of a fitted site: the rows are of all, the model of s0, s1"):
        given_rows(model, frame.select("a"))
    with pytest.raises(InputError, match="the rows have the columns b, the model was fitted on a"):
        given_rows(model, frame.rename({"a": "b"}), sites="site")
    with pytest.raises(ShapeError, match=r"the rows have shape \(4, 3\), expected \(n, 1\)"):
        given_rows(model, np.zeros((4, 3)), sites=["s0"] * 4)


def test_one_site_gives_no_gain():
    frame = two_groups([30, 30])
    model = FederatedGaussianMixture(1, **PAPER, n_init=1, random_state=0).fit(frame, sites="site")
    with pytest.raises(InputError, match="needs at least two sites with rows to fit and to hold back"):
        measure_gain(model, frame.filter(pl.col("site") == "s0"), sites="site")
