import builtins

import polars as pl
import pytest

from fedgrem.data.files import check_no_gaps, check_numeric, choose_columns, read_sites, read_table
from fedgrem.errors import InputError, MissingExtraError


@pytest.fixture
def write(tmp_path):
    """Write a text file, and return its path."""

    def write(name, text):
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return write


def test_csv_and_parquet_give_the_same_rows_and_sites(write, tmp_path):
    path = write("data.csv", "hospital,a,b\nnorth,1,2.5\nsouth,3,4\n")
    pl.read_csv(path).write_parquet(tmp_path / "data.parquet")
    text, parquet = (read_sites([p], site="hospital") for p in (path, tmp_path / "data.parquet"))
    assert text.sites == parquet.sites == ["north", "south"]
    assert text.frame.equals(parquet.frame)
    assert text.frame.columns == ["a", "b"]


def test_several_files_are_one_site_each_named_after_the_file(write):
    table = read_sites([write("north.csv", "a,b\n1,2\n3,4\n"), write("south.tsv", "b\ta\n6\t5\n")])
    assert table.sites == ["north", "north", "south"]
    assert table.frame.rows() == [(1, 2), (3, 4), (5, 6)]
    assert table.row == [0, 1, 0]


def test_a_site_column_wins_over_file_names(write):
    files = [write("one.csv", "s,a\nx,1\n"), write("two.csv", "s,a\ny,2\n")]
    assert read_sites(files, site="s").sites == ["x", "y"]


@pytest.mark.parametrize(("cells", "expected"), [(("10", "9"), [10, 9]), (("007", "8"), ["007", "8"])])
def test_site_numbers_sort_as_numbers_but_leading_zeros_stay(write, cells, expected):
    text = "s,a\n" + "".join(f"{cell},1\n" for cell in cells)
    assert read_sites([write("d.csv", text)], site="s").sites == expected


def test_a_decimal_far_down_a_column_of_integers_is_read(write):
    path = write("d.csv", "a\n" + "1\n" * 2000 + "0.5\n")
    assert read_table(path)["a"][-1] == 0.5


def test_a_byte_order_mark_is_no_part_of_the_first_name(write):
    assert read_sites([write("d.csv", "\ufeffs,a\n007,1\n")], site="s").sites == ["007"]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("absent.csv", None, r"absent.csv does not exist; check the name"),
        ("data.xlsx", "x", r"extension '.xlsx'; fedgrem reads .csv, .tsv and .parquet"),
        ("empty.csv", "", r"empty.csv is empty; give a file with a header and rows"),
        ("header.csv", "a,b\n", r"header.csv has no rows"),
        ("bad.parquet", "no parquet", r"bad.parquet cannot be read .* is it a complete .parquet file"),
        ("ragged.csv", "a,b\n1,2,3\n", r"ragged.csv cannot be read"),
        ("semicolon.csv", "a;b\n1;2\n", r"separate its columns with a semicolon; save it with commas"),
        ("twice.csv", "a,a\n1,2\n", r"two columns named 'a'"),
    ],
)
def test_a_bad_file_is_named_with_a_remedy(write, tmp_path, name, text, message):
    path = tmp_path / name if text is None else write(name, text)
    with pytest.raises(InputError, match=message):
        read_table(path)


def test_text_that_is_not_utf8_is_refused(tmp_path):
    path = tmp_path / "latin.csv"
    path.write_bytes("städte,a\nKöln,1\n".encode("latin-1"))
    with pytest.raises(InputError, match=r"latin.csv cannot be read"):
        read_table(path)


def test_a_folder_is_refused(tmp_path):
    with pytest.raises(InputError, match="is a folder; give the files in it"):
        read_table(tmp_path)


def test_no_files_are_refused():
    with pytest.raises(InputError, match="got no files"):
        read_sites([])


def test_a_missing_site_column_lists_the_columns(write):
    with pytest.raises(InputError, match=r"no site column 'clinic'; the columns are hospital, a"):
        read_sites([write("d.csv", "hospital,a\nx,1\n")], site="clinic")


def test_a_row_without_a_site_is_found(write):
    with pytest.raises(InputError, match=r"site column 's' has 2 missing value\(s\) .* the first in row 1"):
        read_sites([write("d.csv", "s,a\nx,1\nNA,2\n,3\n")], site="s")


def test_files_with_different_columns_are_refused(write):
    with pytest.raises(InputError, match=r"south.csv lacks 'b', unlike .*north.csv"):
        read_sites([write("north.csv", "a,b\n1,2\n"), write("south.csv", "a\n1\n")])


def test_files_with_different_types_are_refused(write):
    with pytest.raises(InputError, match=r"column 'a' is numeric in .*north.csv, String in .*south.csv"):
        read_sites([write("north.csv", "a\n1\n"), write("south.csv", "a\nx\n")])


def test_a_column_that_is_empty_at_one_site_keeps_its_type(write):
    table = read_sites([write("north.csv", "a,b\n1,2\n"), write("south.csv", "a,b\nNA,3\n")])
    assert table.frame["a"].to_list() == [1, None]


def test_two_files_of_one_name_are_refused(write):
    with pytest.raises(InputError, match="would both be site 'x'"):
        read_sites([write("x.csv", "a\n1\n"), write("x.tsv", "a\n1\n")])


def test_columns_are_chosen_dropped_and_set_aside():
    frame = pl.DataFrame({"id": ["p"], "a": [1], "b": [2.0], "y": [3.0]})
    assert choose_columns(frame, drop=["id"], aside=["y"]) == ["a", "b"]
    assert choose_columns(frame, columns=["b"]) == ["b"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"drop": ["e"]}, r"not numeric: 'id' \(String, such as 'p'\); drop them"),
        ({"columns": ["c"]}, r"no column 'c'; the columns are id, a, e"),
        ({"columns": ["a"], "aside": ["a"]}, r"column 'a' is to be used and to be left out"),
        ({"drop": ["id", "a", "e"]}, r"no columns are left"),
        ({"columns": ["e"]}, r"column\(s\) 'e' hold no values at all"),
    ],
)
def test_columns_that_cannot_be_used_are_named(options, message):
    frame = pl.DataFrame({"id": ["p"], "a": [1], "e": [None]}, schema={"id": pl.String, "a": pl.Int64, "e": pl.String})
    with pytest.raises(InputError, match=message):
        choose_columns(frame, **options)


def test_booleans_count_as_numbers():
    check_numeric(pl.DataFrame({"a": [True, False]}), ["a"])


@pytest.mark.parametrize("bad", [None, float("nan"), float("inf")])
def test_gaps_are_found(bad):
    with pytest.raises(InputError, match=r"column 'a' has 1 missing, NaN or infinite value\(s\), the first in row 1"):
        check_no_gaps(pl.DataFrame({"a": [1.0, bad]}), ["a"])


def test_without_polars_the_pip_command_is_given(write, monkeypatch):
    real = builtins.__import__

    def without_polars(name, *args, **kwargs):
        if name == "polars":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    path = write("d.csv", "a\n1\n")
    monkeypatch.setattr(builtins, "__import__", without_polars)
    with pytest.raises(MissingExtraError, match=r"pip install 'fedgrem\[files\]'"):
        read_table(path)
