"""Tables of mixed columns from the user's side: types, gaps, columns that tell nothing, words."""

import warnings

import numpy as np
import pandas as pd
import polars as pl
import pytest
from sklearn.metrics import adjusted_rand_score

from fedgrem import FederatedGaussianMixture, FederatedTableMixture, load_model, save_model
from fedgrem.data.columns import read_columns
from fedgrem.engines.remote.declaration import check_over_network
from fedgrem.errors import InputError
from fedgrem.estimators.fitted import UnknownSiteWarning
from fedgrem.estimators.network import spec_for
from fedgrem.estimators.notes import ColumnWarning
from fedgrem.fit.spec import read_spec

SITES = np.repeat(["north", "south", "east", "west"], [150, 80, 100, 120])
KINDS = {"age": "continuous", "chol": "continuous", "smokes": "binary", "cp": "categorical", "visits": "count"}
FAST = {"n_init": 3, "random_state": 0}


def table(seed=0, missing=0.05, odd=False):
    """Three groups at four sites; with ``odd``, chol is 0 at "south" and visits are missing at "east"."""
    generator = np.random.default_rng(seed)
    n = len(SITES)
    group = generator.integers(3, size=n)
    frame = pd.DataFrame(
        {
            "age": generator.normal(np.array([40.0, 55.0, 75.0])[group], 6.0),
            "chol": generator.normal(np.array([200.0, 290.0, 230.0])[group], 25.0),
            "smokes": generator.random(n) < np.array([0.1, 0.9, 0.4])[group],
            "cp": np.array(["none", "mild", "severe"])[
                [generator.choice(3, p=np.eye(3)[g] * 0.7 + 0.1) for g in group]
            ],
            "visits": generator.poisson(np.array([1.0, 3.0, 9.0])[group]),
        }
    )
    frame = frame.astype({"smokes": object, "cp": object, "visits": float})
    if odd:
        frame.loc[SITES == "south", "chol"] = 0.0
    frame = frame.mask(generator.random(frame.shape) < missing)
    if odd:
        frame.loc[SITES == "east", "visits"] = np.nan
    return frame, group


def fitted(frame, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ColumnWarning)
        return FederatedTableMixture(3, **FAST | options).fit(frame, sites=SITES)


@pytest.fixture(scope="module")
def odd():
    frame, group = table(odd=True)
    return fitted(frame), frame, group


def test_types_are_found_and_groups_recovered_with_cells_and_whole_columns_missing(odd):
    model, frame, group = odd
    assert model.columns_ == KINDS
    assert model.levels_["cp"].tolist() == ["mild", "none", "severe"]
    assert adjusted_rand_score(group, model.predict(frame, sites=SITES)) > 0.85
    assert set(model.site_verdict_) == {"at the center"}
    assert model.means_.shape == (4, 3, 7)
    assert model.mean_names == ("age", "chol", "smokes = yes", "cp = mild", "cp = none", "cp = severe", "visits")
    np.testing.assert_allclose(model.means_[..., 3:6].sum(axis=-1), 1.0)


@pytest.mark.parametrize("options", [{"penalty": 0.0}, {"covariance_type": "full", "penalty": 2.0}, {"penalty": 2.0}])
def test_a_column_that_tells_nothing_at_a_site_has_the_centers_values_and_is_said(options):
    frame, _ = table(odd=True)
    with pytest.warns(ColumnWarning) as told:
        model = FederatedTableMixture(3, **FAST | options).fit(frame, sites=SITES)
    text = str(told[0].message)
    assert "visits is missing in all 100 rows of site 'east'" in text
    assert "chol is 0 in all recorded cells of the 80 rows of site 'south', and tells nothing there" in text
    assert told[0].filename == __file__
    assert "chol is 0 in all recorded cells" in " ".join(model.summary().split())
    east, south = (list(model.site_names_).index(name) for name in ("east", "south"))
    np.testing.assert_allclose(model.means_[east, :, 6], model.center_[:, 6])
    np.testing.assert_allclose(model.means_[south, :, 1], model.center_[:, 1])
    assert np.isnan(model.means_se_[east, :, 6]).all()
    assert not model.seen_[south, 1]
    assert model.constant_[south, 1] == 0.0
    by_site = [model.score_samples(frame[SITES == s], sites=s).mean() for s in ("north", "south", "east", "west")]
    assert np.ptp(by_site) < 8.0  # no site is a hundred nats from the others


def test_rows_of_a_site_are_judged_without_the_column_that_was_constant_there(odd):
    model, frame, _ = odd
    mine = frame[SITES == "south"]
    without = mine.assign(chol=np.nan)
    np.testing.assert_array_equal(model.predict_proba(mine, sites="south"), model.predict_proba(without, sites="south"))
    told = mine.assign(chol=290.0)
    assert np.abs(model.predict_proba(told, sites="south") - model.predict_proba(mine, sites="south")).max() > 0.01


def test_predict_gives_a_series_with_the_index_of_a_pandas_frame(odd):
    model, frame, _ = odd
    some = frame.iloc[::7].set_index(pd.Index([f"row {i}" for i in range(len(frame.iloc[::7]))]))
    found = model.predict(some, sites=SITES[::7])
    assert isinstance(found, pd.Series)
    assert found.index.equals(some.index)
    turned = model.predict(some[list(reversed(some.columns))], sites=SITES[::7])
    pd.testing.assert_series_equal(found, turned)
    native = pl.DataFrame({n: [None if pd.isna(v) else v for v in some[n]] for n in some.columns})
    np.testing.assert_array_equal(model.predict(native, sites=SITES[::7]), found.to_numpy())
    by_site = {name: frame[SITES == name] for name in ("west", "east")}
    answers = model.predict(by_site)
    assert answers["west"].index.equals(by_site["west"].index)


def test_a_misspelt_site_is_an_error_with_the_nearest_name(odd):
    model, frame, _ = odd
    with pytest.raises(InputError, match=r"site 'Nort' was not fitted, but 'north' was"):
        model.predict(frame, sites="Nort")
    with pytest.warns(UnknownSiteWarning, match="moon were not fitted"):
        model.predict(frame, sites="moon")


def test_a_saved_table_is_the_same_model(odd, tmp_path):
    model, frame, _ = odd
    again = load_model(save_model(model, tmp_path / "model"))
    assert again.columns_ == model.columns_
    np.testing.assert_array_equal(again.predict_proba(frame, sites=SITES), model.predict_proba(frame, sites=SITES))
    assert again.summary() == model.summary()
    named = fitted(frame, columns={"cp": ["none", "mild", "severe"], "visits": "continuous"}, max_rounds=2, tol=1.0)
    again = load_model(save_model(named, tmp_path / "named"))
    assert again.get_params()["columns"] == {"cp": ["none", "mild", "severe"], "visits": "continuous"}


def test_profiles_speak_of_levels_by_their_names(odd):
    model, _, _ = odd
    told = model.profile()
    assert len(told) == 3
    oldest = told[int(np.argmax(model.center_[:, 0]))]
    assert any(line.startswith("visits: ") and "elsewhere" in line for line in oldest)
    assert any("cp = severe: " in line and "% against " in line for line in oldest)
    text = " ".join(model.summary().split())
    assert "cp = severe: " in text


def test_the_page_of_a_table_has_its_words(odd, tmp_path):
    pytest.importorskip("jinja2", reason="the report is an extra")
    model, _, _ = odd
    page = model.report(tmp_path / "page.html").read_text(encoding="utf-8")
    assert "cp = severe" in page
    assert "chol is 0 in all recorded cells" in page


def test_samples_come_in_the_words_of_the_table(odd):
    model, _, _ = odd
    rows, labels = model.sample(4000, site="north")
    assert rows.shape == (4000, 5)
    assert set(rows[:, 2]) == {"no", "yes"}
    assert {type(v) for v in rows[:, 4]} == {int}
    north = list(model.site_names_).index("north")
    r = int(np.argmax(model.weights_[north]))
    mine = rows[labels == r]
    assert np.mean(mine[:, 0]) == pytest.approx(model.means_[north, r, 0], abs=1.0)
    assert np.mean(mine[:, 3] == "mild") == pytest.approx(model.means_[north, r, 3], abs=0.05)
    frame = pd.DataFrame(rows, columns=list(KINDS))
    assert np.mean(model.predict(frame, sites="north") == labels) > 0.85


@pytest.mark.parametrize(
    "options",
    [
        {"covariance_type": "full"},
        {"covariance_type": "tied"},
        {"columns": {"chol": "robust"}},
        {"columns": {"chol": "robust"}, "degrees": "auto"},
    ],
)
def test_options_give_the_same_groups(options):
    frame, group = table(1)
    model = fitted(frame, penalty=2.0, **options)
    assert adjusted_rand_score(group, model.predict(frame, sites=SITES)) > 0.85
    assert np.isfinite(model.score(frame, sites=SITES))
    if "columns" in options:
        assert model.degrees_.shape == model.scales_.shape
        rows, _ = model.sample(2000)
        assert np.std(rows[:, 1].astype(float)) == pytest.approx(np.nanstd(frame["chol"]), rel=0.6)
    else:
        spread = np.sqrt(np.diagonal(model.center_covariances_, axis1=-2, axis2=-1))
        np.testing.assert_allclose(spread, np.broadcast_to([6.0, 25.0], spread.shape), rtol=0.3)


def test_a_robust_column_does_not_follow_rows_far_out():
    frame, _ = table(2, missing=0.0)
    frame.loc[::23, "chol"] = 5000.0
    plain, robust = (fitted(frame, penalty=2.0, columns={"chol": kind}) for kind in ("continuous", "robust"))
    assert robust.center_[:, 1].max() < 320.0
    assert plain.center_[:, 1].max() > 1000.0


def test_one_more_site_joins_with_its_own_gaps(odd):
    import copy

    model, _, _ = odd
    joined = copy.deepcopy(model)
    new = table(5)[0][SITES == "north"].assign(chol=0.0)
    joined.fit_site(new, name="harbor")
    assert joined.site_verdict_[-1] == "at the center"
    assert joined.constant_[-1, 1] == 0.0
    np.testing.assert_allclose(joined.means_[-1, :, 1], joined.center_[:, 1])
    assert len(joined.predict(new, sites="harbor")) == len(new)


def test_a_start_is_given_in_means(odd):
    model, frame, _ = odd
    again = fitted(frame, penalty=2.0, means_init=model.means_, weights_init=model.weights_, align=False)
    assert adjusted_rand_score(model.predict(frame, sites=SITES), again.predict(frame, sites=SITES)) > 0.9


def test_numbers_of_components_are_compared():
    frame, _ = table(3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = FederatedTableMixture([2, 3, 4], **FAST).fit(frame, sites=SITES)
    assert model.n_components_ == 3


def test_arrays_and_one_site_will_do():
    frame, _ = table(4, missing=0.0)
    values = frame.drop(columns="cp").astype(float).to_numpy()
    model = FederatedTableMixture(3, **FAST).fit(values)
    assert list(model.columns_.values()) == ["continuous", "continuous", "binary", "count"]
    assert isinstance(model.predict(values), np.ndarray)
    numbers = values[:, :2]
    own = FederatedTableMixture(3, covariance_type="tied", **FAST).fit(numbers)
    theirs = FederatedGaussianMixture(3, covariance_type="tied", **FAST).fit(numbers)
    assert own.score(numbers) == pytest.approx(theirs.score(numbers), abs=0.02)


def test_a_table_travels_as_json_with_its_types():
    declared = {"age": "continuous", "cp": ["none", "mild", "severe"], "visits": "count"}
    model = FederatedTableMixture(3, columns=declared, covariance_type="full", **FAST)
    spec = spec_for(model, ["age", "cp", "visits"])
    check_over_network(spec)
    assert read_spec(spec.to_json()) == spec
    assert [column.kind for column in spec.family.types] == ["continuous", "categorical", "count"]
    assert spec.units.scaled == (0,)
    with pytest.raises(InputError, match="column 'smokes' needs its type"):
        spec_for(model, ["age", "smokes"])


def test_bad_options_are_refused():
    frame, _ = table()
    with pytest.raises(InputError, match="covariance_type must be one of 'diag', 'tied', 'full'"):
        FederatedTableMixture(2, covariance_type="identity").fit(frame, sites=SITES)
    with pytest.raises(InputError, match="degrees must be in"):
        FederatedTableMixture(2, degrees=0.5).fit(frame, sites=SITES)
    with pytest.raises(InputError, match="FedGMM does not run on tables, whose cells may be missing"):
        FederatedTableMixture(2, algorithm="fedgmm").fit(frame, sites=SITES)
    with pytest.raises(InputError, match=r"'chool', which is no column; did you mean 'chol'"):
        FederatedTableMixture(2, columns={"chool": "robust"}).fit(frame, sites=SITES)
    with pytest.raises(InputError, match="infinity"):
        FederatedTableMixture(2).fit(frame.assign(age=np.inf), sites=SITES)


def test_a_level_that_only_one_site_has_is_a_level_everywhere():
    frame, _ = table(6, missing=0.0)
    frame.loc[(SITES == "west") & (frame["cp"] == "mild"), "cp"] = "moderate"
    model = fitted(frame, penalty=2.0)
    assert model.levels_["cp"].tolist() == ["mild", "moderate", "none", "severe"]
    assert np.isfinite(model.score_samples(frame, sites=SITES)).all()
    assert read_columns(frame)[3].levels == ("mild", "moderate", "none", "severe")
