"""What the columns of a table are, and cells as numbers."""

import numpy as np
import pandas as pd
import polars as pl
import pytest

from fedgrem.data.columns import Column, columns_from_plain, declared_columns, encode, encode_like, read_columns, word
from fedgrem.errors import InputError, InputTypeError

FRAME = pd.DataFrame(
    {
        "age": [61.5, 47.0, 58.2, None],
        "smokes": [True, False, None, True],
        "grade": pd.Categorical(["low", "high", None, "low"], categories=["low", "mid", "high"], ordered=True),
        "cp": [1, 2, 4, 3],
        "visits": pd.array([0, None, 7, 2], dtype="Int64"),
        "pain": ["often", None, "never", "often"],
    }
)


def kinds(columns):
    return {column.name: (column.kind, *column.levels) for column in columns}


def test_types_are_read_from_dtypes_and_values():
    found = kinds(read_columns(FRAME, {"visits": "count"}))
    assert found == {
        "age": ("continuous",),
        "smokes": ("binary", "no", "yes"),
        "grade": ("binary", "low", "high"),  # in the order that they were declared in, of those that were met
        "cp": ("categorical", "1", "2", "3", "4"),
        "visits": ("count",),
        "pain": ("binary", "never", "often"),
    }


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([0, 1, 1, 0], "binary"),
        ([1.0, 2.0, np.nan, 1.0], "binary"),
        ([0, 1, 2, 3, 4, 0], "categorical"),
        ([0, 3, 5, 9, 12, 50, 4], "count"),
        ([0, 3, 5, 9, 12, 51, 4], "continuous"),
        ([2, 3, 5, 9, 12, 50, 4], "continuous"),  # no zero and no one
        ([-1, 0, 3, 5, 9, 12, 4], "continuous"),
        ([0.5, 1.0], "continuous"),
        ([np.nan, np.inf, 1.0], "continuous"),
    ],
)
def test_numbers_are_what_their_values_say(values, expected):
    (column,) = read_columns(np.array(values, dtype=float)[:, None])
    assert (column.name, column.kind) == ("x0", expected)


def test_levels_are_the_union_over_sites_and_a_site_may_lack_some():
    sites = {
        "a": pd.DataFrame({"cp": [1, 2]}),
        "b": pd.DataFrame({"cp": [4.0, None]}),
        "c": pd.DataFrame({"cp": ["2", "10"]}),
    }
    (column,) = read_columns(sites)
    assert column == Column("cp", "categorical", ("1", "2", "4", "10"))
    np.testing.assert_array_equal(encode(sites["b"], [column]), [[2.0], [np.nan]])
    assert {name: rows["cp"].tolist() for name, rows in encode_like({k: sites[k] for k in "ac"}, [column]).items()} == {
        "a": [0.0, 1.0],
        "c": [1.0, 3.0],
    }


def test_polars_enums_and_nulls_are_read_alike():
    frame = pl.DataFrame(
        {"e": pl.Series(["lo", "hi", None], dtype=pl.Enum(["lo", "mid", "hi"])), "x": [0.5, None, 3.0]}
    )
    columns = read_columns(frame, {"e": ["lo", "mid", "hi"]})
    np.testing.assert_array_equal(encode(frame, columns), [[0.0, 0.5], [2.0, np.nan], [np.nan, 3.0]])
    assert isinstance(encode_like(frame, columns), pl.DataFrame)


def test_columns_in_another_order_are_put_in_order_by_name_and_the_site_column_is_kept():
    columns = read_columns(FRAME[["age", "cp"]])
    turned = FRAME[["cp", "age"]].assign(site=["a", "a", "b", "b"])
    found = encode_like(turned, columns, "site")
    assert list(found.columns) == ["age", "cp", "site"]
    np.testing.assert_array_equal(encode(turned, columns), encode(FRAME, columns))


def test_levels_are_words_whatever_they_are_written_in():
    assert [word(v) for v in (4, 4.0, np.int8(4), True, pd.NA if False else None)] == ["4", "4", "4", "yes", None]
    column = Column("smokes", "binary", ("no", "yes"))
    np.testing.assert_array_equal(
        encode(pd.DataFrame({"smokes": [True, "no", None]}), [column])[:, 0], [1.0, 0.0, np.nan]
    )


@pytest.mark.parametrize(
    ("values", "wanted", "message"),
    [
        ([1, 2], "ordinal", "'ordinal' is no type; a type is one of continuous"),
        (["a", "b"], "continuous", "'x' is to be continuous, but holds words such as 'a'"),
        (["a", "b", "c"], "binary", "'x' is to be binary, but has the values a, b, c"),
        (["a", "a"], "auto", r"'x' is constant \(a\) at every site"),
        ([f"name {j}" for j in range(60)], "auto", "'x' has 60 different values such as 'name 0'"),
        ([1, 2], ["1", "1"], "names a level twice"),
        ([1, 2], ["1"], "categorical with 1 level"),
    ],
)
def test_what_a_column_cannot_be_is_said(values, wanted, message):
    with pytest.raises(InputError, match=message):
        read_columns(pd.DataFrame({"x": values}), {"x": wanted})


def test_wrong_words_about_columns_are_answered_with_the_nearest_right_ones():
    with pytest.raises(InputError, match=r"'aeg', which is no column; did you mean 'age'\?"):
        read_columns(FRAME, {"aeg": "continuous"})
    with pytest.raises(InputError, match="columns must be 'auto' or a dict of names to types, got 'mixed'"):
        read_columns(FRAME, "mixed")
    with pytest.raises(InputTypeError, match="got int"):
        read_columns(FRAME, 3)
    with pytest.raises(InputTypeError, match=r"columns\['cp'\] must be a type .* or a list of levels, got 3"):
        read_columns(FRAME, {"cp": 3})
    columns = read_columns(FRAME[["age", "pain"]])
    with pytest.raises(
        InputError, match=r"has 'offen' in column 'pain', whose levels are never, often; did you mean 'often'\?"
    ):
        encode(pd.DataFrame({"age": [1.0], "pain": ["offen"]}), columns)
    with pytest.raises(InputError, match=r"has no column 'pain'; did you mean 'Pain'\?"):
        encode(pd.DataFrame({"age": [1.0], "Pain": ["often"]}), columns)
    with pytest.raises(InputError, match="has 'old' in column 'age', which is continuous"):
        encode(pd.DataFrame({"age": ["old"], "pain": ["often"]}), columns)
    with pytest.raises(InputError, match=r"has -1 in column 'n', which holds counts; .*columns=\{'n': 'continuous'\}"):
        encode(pd.DataFrame({"n": [2.0, -1.0]}), [Column("n", "count")])


def test_over_a_network_every_column_is_declared():
    found = declared_columns(["age", "cp"], {"cp": ["1", "2", "3"], "age": "robust"})
    assert found == (Column("age", "robust"), Column("cp", "categorical", ("1", "2", "3")))
    with pytest.raises(
        InputError, match=r"column 'age' needs its type before rows are touched.*columns=\{'age': 'cont"
    ):
        declared_columns(["age"], "auto")
    with pytest.raises(InputError, match=r"column 'cp' needs its levels before rows are touched"):
        declared_columns(["cp"], {"cp": "categorical"})


@pytest.mark.parametrize(
    ("plain", "message"),
    [
        ("age", "not a list of"),
        ([["age", "continuous"]], r"is not \[name, type, levels\]"),
        ([["age", "ordinal", []]], "'age' is to be 'ordinal'"),
        ([["cp", "binary", ["a", "b", "c"]]], "'cp' is binary with 3 level"),
        ([["age", "count", ["a", "b"]]], "'age' is count and has no levels"),
        ([["a", "count", []], ["a", "count", []]], "two columns of a table have one name"),
    ],
)
def test_columns_of_a_message_are_checked(plain, message):
    with pytest.raises(InputError, match=message):
        columns_from_plain(plain)
    columns = read_columns(FRAME)
    assert columns_from_plain([column.as_plain() for column in columns]) == columns
