"""``fedgrem report`` in the shell: the page it writes, and what it refuses."""

import re

import numpy as np
import polars as pl
import pytest

from fedgrem.cli import main
from tests.told import assert_one_error

pytest.importorskip("matplotlib")
pytest.importorskip("jinja2")

NAMES = ("north", "south", "east", "west")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two groups at four sites, with a response; one table, one file per site, and a model of each."""
    folder = tmp_path_factory.mktemp("data")
    generator = np.random.default_rng(0)
    tables = []
    for name in NAMES:
        group = generator.integers(2, size=40)
        rows = np.column_stack([8.0 * group - 4.0, np.zeros(40)]) + generator.normal(size=(40, 2))
        table = pl.DataFrame({"a": rows[:, 0], "b": rows[:, 1], "y": 3.0 * rows[:, 1] + generator.normal(size=40)})
        table.select("a", "b").write_csv(folder / f"{name}.csv")
        tables.append(table.with_columns(hospital=pl.lit(name)))
    pl.concat(tables).write_csv(folder / "data.csv")
    fit = ["fit", folder / "data.csv", "-s", "hospital", "--n-init", 1, "--penalty", 2]
    assert run(*fit, "-r", 2, "--columns", "a,b", "-o", folder / "model") == 0
    assert run(*fit, "-r", 1, "--columns", "b", "--target", "y", "-o", folder / "lines") == 0
    return folder


def run(*arguments):
    """The exit code of a command."""
    with pytest.raises(SystemExit) as stop:
        main([str(argument) for argument in arguments])
    return stop.value.code or 0


def test_help_has_an_example(capsys):
    assert run("report", "--help") == 0
    assert "fedgrem report model/ --data data.csv" in capsys.readouterr().out


def test_the_page_is_put_beside_the_model(folder, capsys):
    assert run("report", folder / "model") == 0
    assert f"Page: {folder / 'model' / 'report.html'}" in capsys.readouterr().out.replace("\n", "")
    text = (folder / "model" / "report.html").read_text(encoding="utf-8")
    assert "Gaussian mixture over 4 sites" in text
    assert re.search(r"saved on \d+ \w+ \d{4}", text)
    assert f"fedgrem report {folder / 'model'} --data data.csv" in text


def test_data_tell_the_gain_and_rows_are_drawn_if_asked_for(folder, tmp_path):
    page = tmp_path / "page.html"
    assert run("report", folder / "model", "--data", folder / "data.csv", "--show-rows", 50, "--out", page) == 0
    text = page.read_text(encoding="utf-8")
    assert "gain ± s.e." in text
    assert "Rows are private" in text


def test_several_files_may_follow_one_option(folder, tmp_path):
    page = tmp_path / "page.html"
    assert (
        run(
            "fit",
            *(folder / f"{name}.csv" for name in NAMES),
            "-r",
            2,
            "--n-init",
            1,
            "--penalty",
            2,
            "-o",
            tmp_path / "m",
        )
        == 0
    )
    assert run("report", tmp_path / "m", "-o", page, "--data", *(folder / f"{name}.csv" for name in NAMES)) == 0
    assert "gain ± s.e." in page.read_text(encoding="utf-8")


def test_a_regression_finds_its_response(folder, tmp_path):
    page = tmp_path / "page.html"
    assert run("report", folder / "lines", "--data", folder / "data.csv", "--out", page) == 0
    assert "Mixture of linear regressions over 4 sites" in page.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "holds no complete model"),
        (["model", "--out", "page.pdf"], "a page is saved as .html"),
        (["model", "--out", "no-folder/page.html"], "there is no folder no-folder"),
        (["model", "--show-rows", "5"], "--show-rows draws rows, but none were given; give them with --data"),
        (["model", "--data", "absent.csv"], "absent.csv does not exist"),
        (["model", "--data", "data.csv", "--site", "clinic"], "no site column 'clinic'"),
        (["lines", "--data", "data.csv", "--target", "z"], "there is no column 'z'"),
        (["model", "--data", "north.csv", "--site", "a"], "lacks the fitted column"),
    ],
)
def test_bad_data_exits_with_1_and_one_line_on_stderr(folder, monkeypatch, capsys, arguments, message):
    monkeypatch.chdir(folder)
    assert run("report", *arguments) == 1
    assert_one_error(capsys.readouterr().err, message)
