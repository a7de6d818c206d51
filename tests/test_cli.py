import csv
import io
import json
import re
import subprocess
import sys
import warnings
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest

from fedgrem import FederatedGaussianMixture, FederatedRegressionMixture, __version__, load_model
from fedgrem.cli import main
from fedgrem.cli.screen import print_model, warnings_as_notices
from fedgrem.report.summary import summary_text
from tests.report.models import made_up
from tests.told import assert_one_error

NAMES = ("north", "south", "east", "west")

QUICK = ["--n-init", 2, "--penalty", 2]
"""For fits of which something else is looked at than how they choose their penalty."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two groups at four sites, the last one elsewhere: one table, one file per site, and a regression."""
    folder = tmp_path_factory.mktemp("data")
    generator = np.random.default_rng(0)
    tables = {}
    for name in NAMES:
        group = generator.integers(2, size=40)
        rows = np.column_stack([8.0 * group - 4.0, np.zeros(40)]) + generator.normal(size=(40, 2))
        rows += 30.0 if name == "west" else 0.0
        slope = np.where(group, 5.0, -5.0)
        table = pl.DataFrame({"patient": [f"{name}-{i}" for i in range(40)], "a": rows[:, 0], "b": rows[:, 1]})
        tables[name] = table.with_columns(y=pl.Series(slope * rows[:, 1] + generator.normal(size=40)), w=pl.lit(1.0))
        tables[name].select("a", "b").write_csv(folder / f"{name}.csv")
    everything = pl.concat([table.with_columns(hospital=pl.lit(name)) for name, table in tables.items()])
    everything.write_csv(folder / "data.csv")
    everything.write_parquet(folder / "data.parquet")
    return folder


@pytest.fixture(scope="module")
def model(folder):
    path = folder / "model"
    arguments = ["fit", folder / "data.csv", "--site", "hospital", "--components", "2", "--columns", "a,b"]
    assert run(*arguments, "--out", path, "--n-init", "2") == 0
    return path


def run(*arguments):
    """The exit code of a command."""
    with pytest.raises(SystemExit) as stop:
        main([str(argument) for argument in arguments])
    return stop.value.code or 0


def test_version_is_printed(capsys):
    assert run("--version") == 0
    assert capsys.readouterr().out == f"fedgrem {__version__}\n"


@pytest.mark.parametrize("command", ["demo", "fit", "select", "show", "predict", "add-site"])
def test_every_command_has_help_with_an_example(command, capsys):
    assert run(command, "--help") == 0
    assert f"fedgrem {command}" in capsys.readouterr().out


def test_help_imports_nothing_heavy():
    code = (
        "import sys\nfrom fedgrem.cli import main\n"
        "try:\n    main(['--help'])\nexcept SystemExit:\n    pass\n"
        "heavy = {'jax', 'sklearn', 'polars', 'matplotlib', 'numpy', 'scipy'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("arguments", [["fit"], ["fit", "x.csv", "--components", "none", "-o", "m"], ["nonsense"]])
def test_wrong_usage_exits_with_2(arguments):
    assert run(*arguments) == 2


def test_fit_saves_a_model_and_says_what_it_found(folder, tmp_path, capsys):
    arguments = ["fit", folder / "data.parquet", "-s", "hospital", "-r", 2, "--drop", "patient,y,w", *QUICK]
    assert run(*arguments, "-o", tmp_path / "m") == 0
    out = capsys.readouterr().out
    assert "Gaussian mixture: 2 components over 4 sites, 160 rows" in out
    assert "1 of 4 sites is suspect: west" in out
    assert (tmp_path / "m" / "model.json").exists()


def test_fit_does_not_overwrite_unless_forced(folder, model, capsys):
    arguments = ["fit", folder / "data.csv", "-s", "hospital", "-r", 2, "--columns", "a,b", *QUICK, "-o", model]
    assert run(*arguments) == 1
    assert re.search(r"exists and is not empty; give another folder, or --force", capsys.readouterr().err)
    assert run(*arguments, "--force") == 0


def test_several_files_are_sites_and_predict_knows_them_by_name(folder, tmp_path, capsys):
    files = [folder / f"{name}.csv" for name in NAMES]
    assert run("fit", *files, "-r", 2, "-o", tmp_path / "m", *QUICK) == 0
    capsys.readouterr()
    assert run("predict", tmp_path / "m", files[1]) == 0
    captured = capsys.readouterr()
    rows = list(csv.DictReader(io.StringIO(captured.out)))
    assert {row["site"] for row in rows} == {"south"}
    assert captured.err == ""


def test_predict_keeps_an_id_and_finds_the_groups(folder, model, tmp_path):
    out = tmp_path / "groups.csv"
    assert run("predict", model, folder / "data.csv", "--id", "patient", "--out", out) == 0
    found, data = pl.read_csv(out), pl.read_csv(folder / "data.csv")
    assert found.columns == ["row", "patient", "site", "component", "probability"]
    assert found["patient"].to_list() == data["patient"].to_list()
    high = data.filter(pl.col("hospital") != "west")["a"] > 0
    component = found.filter(pl.col("site") != "west")["component"]
    assert component.filter(high).n_unique() == component.filter(~high).n_unique() == 1


def test_a_site_that_was_not_fitted_is_judged_by_the_center_with_a_note(model, tmp_path, capsys):
    (tmp_path / "new.csv").write_text("hospital,a,b\nelsewhere,4,0\n")
    assert run("predict", model, tmp_path / "new.csv") == 0
    captured = capsys.readouterr()
    assert "elsewhere" in captured.out
    assert "note: site(s) elsewhere were not fitted" in captured.err


def test_a_regression_predicts_the_response_and_with_it_the_component(folder, tmp_path, capsys):
    arguments = [
        "fit",
        folder / "data.csv",
        "-s",
        "hospital",
        "-r",
        2,
        "--target",
        "y",
        "--columns",
        "b",
        "--penalty",
        2,
    ]
    assert run(*arguments, "--weight", "w", "-o", tmp_path / "m", "--n-init", 2, "--max-rounds", 300) == 0
    assert "Mixture of linear regressions" in capsys.readouterr().out
    assert run("predict", tmp_path / "m", folder / "data.csv") == 0
    assert capsys.readouterr().out.startswith("row,site,component,probability,expected\n")
    pl.read_csv(folder / "data.csv").drop("y").write_csv(tmp_path / "blind.csv")
    assert run("predict", tmp_path / "m", tmp_path / "blind.csv") == 0
    assert capsys.readouterr().out.startswith("row,site,expected\n")


def test_answers_of_yes_or_no_are_explained_by_words_and_numbers(tmp_path, capsys):
    generator = np.random.default_rng(2)
    pain, age = generator.choice(["mild", "none"], size=200), generator.normal(60.0, 10.0, size=200)
    died = (generator.random(200) < 1.0 / (1.0 + np.exp(-0.1 * (age - 60.0) - 2.0 * (pain == "mild")))).astype(int)
    hospital = [name for name in NAMES for _ in range(50)]
    pl.DataFrame({"hospital": hospital, "pain": pain, "age": age, "died": died}).write_csv(tmp_path / "rows.csv")
    fit = ["fit", tmp_path / "rows.csv", "-s", "hospital", "-r", 1, "--target", "died", "--response", "binary"]
    assert run(*fit, "-o", tmp_path / "m", *QUICK) == 0
    told = capsys.readouterr().out
    assert told.startswith("Mixture of logistic regressions: 1 component over 4 sites, 200 rows")
    assert "pain=none" in told
    assert run("predict", tmp_path / "m", tmp_path / "rows.csv") == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert all(0.0 < float(row["expected"]) < 1.0 for row in rows)
    assert run("report", tmp_path / "m", "--data", tmp_path / "rows.csv") == 0
    assert "log odds of a 1" in (tmp_path / "m" / "report.html").read_text(encoding="utf-8")
    assert run(*fit[:-4], "--response", "binary", "-o", tmp_path / "no") == 1
    assert "--response binary is for regressions" in " ".join(capsys.readouterr().err.split())


def test_the_command_line_and_the_class_give_one_answer_by_default(folder, tmp_path):
    data = pl.read_csv(folder / "data.csv")
    fit = ["fit", folder / "data.csv", "--site", "hospital", "--components", 2]
    assert run(*fit, "--columns", "b", "--target", "y", "--out", tmp_path / "lines") == 0
    lines = FederatedRegressionMixture(2, random_state=0).fit(data.select("b"), data["y"], sites=data["hospital"])
    assert run(*fit, "--columns", "a,b", "--out", tmp_path / "groups") == 0
    groups = FederatedGaussianMixture(2, random_state=0).fit(data.select("a", "b"), sites=data["hospital"])
    for folder_name, model in (("lines", lines), ("groups", groups)):
        loaded = load_model(tmp_path / folder_name)
        assert repr(loaded.get_params()) == repr(model.get_params())
        for name, value in model.fitted_values().items():
            np.testing.assert_equal(getattr(loaded, name), value, err_msg=name)


def test_show_prints_what_the_summary_of_a_model_says(model, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    assert run("show", model) == 0
    assert capsys.readouterr().out == load_model(model).summary() + "\n"


def test_show_gives_tables_or_json(model, capsys):
    assert run("show", model) == 0
    out = capsys.readouterr().out
    assert "Centers" in out
    assert re.search(r"west\s+suspect", out)
    assert run("show", model, "--json") == 0
    plain = json.loads(capsys.readouterr().out)
    assert plain["n_sites"] == 4
    assert plain["parameters"] == ["a", "b"]
    assert [site["name"] for site in plain["sites"] if site["verdict"] == "suspect"] == ["west"]


def test_show_names_components_of_which_a_site_has_no_rows(tmp_path, monkeypatch, capsys):
    fitted = made_up(4, 2, 3)
    fitted.vanished_ = np.arange(4)[:, None] == [[0, 9, 0]]
    monkeypatch.setattr("fedgrem.cli.files.load", lambda _: SimpleNamespace(model=fitted))
    assert run("show", tmp_path) == 0
    told = "site-0 has next to no rows of components 0 and 2; what stands there is the center's."
    assert told in " ".join(capsys.readouterr().out.split())
    assert run("show", tmp_path, "--json") == 0
    plain = json.loads(capsys.readouterr().out)
    assert [site["vanished"] for site in plain["sites"]] == [[0, 2], [], [], []]
    fitted.vanished_[:] = False
    assert run("show", tmp_path) == 0
    assert "next to no rows" not in capsys.readouterr().out


def test_the_parameters_that_are_shown_do_not_depend_on_units():
    fitted = made_up(3, 21, 2, covariance_type="tied")
    fitted.center_[:, 0] = 0.0, 1000.0
    fitted.center_covariances_ = np.diag([1e12, *np.ones(20)])[None]
    shown = re.findall(r"^x\d+", summary_text(fitted), flags=re.MULTILINE)
    assert shown == [f"x{j}" for j in range(1, 21)]


def test_show_tells_intercepts_and_where_the_sites_it_leaves_out_are(tmp_path, monkeypatch, capsys):
    fitted = made_up(21, 2, 2, cls=FederatedRegressionMixture, noise="shared")
    fitted.center_intercept_ = np.array([1.5, -2.5])
    monkeypatch.setattr("fedgrem.cli.files.load", lambda _: SimpleNamespace(model=fitted))
    assert run("show", tmp_path) == 0
    out = capsys.readouterr().out
    assert re.search(r"(?m)^intercept +1\.50 +-2\.50$", out)
    assert "See every site with --all" in out
    assert run("show", tmp_path, "--all") == 0
    assert "See every site with --all" not in capsys.readouterr().out


def test_one_more_site_joins_a_saved_model(folder, model, tmp_path, capsys):
    arguments = ["add-site", model, folder / "north.csv", "--name", "new"]
    assert run(*arguments, "--out", tmp_path / "more") == 0
    assert "Site new: at the center." in capsys.readouterr().out
    assert run("show", tmp_path / "more", "--json") == 0
    plain = json.loads(capsys.readouterr().out)
    assert plain["sites"][-1]["name"] == "new"
    assert run("add-site", model, folder / "north.csv", "--name", "west") == 1
    assert_one_error(capsys.readouterr().err, "site 'west' is already in the model")


def test_select_compares_and_says_which_number_it_chose(folder, tmp_path, capsys):
    asked = ["select", folder / "data.csv", "--site", "hospital", "--components", "2:2", "--columns", "a,b"]
    assert run(*asked, "--out", tmp_path / "model") == 0
    assert re.search(r"How many components: 2, by BIC.*\n.*BIC +ICL.*\n2 \*", capsys.readouterr().out)
    assert run("show", tmp_path / "model", "--json") == 0
    shown = json.loads(capsys.readouterr().out)["selection"]
    assert run(*asked, "--criterion", "icl", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told == shown | {"criterion": "icl"}
    assert (told["chosen"], told["n_components"]) == (2, [2])


@pytest.mark.parametrize("text", ["0", "5:2", "2:x", "2.5", "-1", "1,0", ""])
def test_what_is_no_number_of_components_is_wrong_usage(text, capsys):
    assert run("select", "x.csv", f"--components={text}") == 2
    assert "is no number of components" in " ".join(capsys.readouterr().err.split())


def test_show_draws_a_plot(model, tmp_path):
    assert run("show", model, "--plot", tmp_path / "overview.png") == 0
    assert (tmp_path / "overview.png").stat().st_size > 10_000


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["fit", "absent.csv", "-s", "s", "-r", 2, "-o", "m"], "absent.csv does not exist"),
        (
            ["fit", "data.csv", "-s", "clinic", "-r", 2, "-o", "m"],
            "no site column 'clinic'; the columns are patient, a",
        ),
        (["fit", "data.csv", "-r", 2, "-o", "m"], "no site column was named; name it with --site"),
        (["fit", "data.csv", "-s", "hospital", "-r", 2, "-o", "m"], r"not numeric: 'patient'"),
        (["fit", "data.csv", "-s", "hospital", "-r", 2, "-o", "m", "--target", "hospital"], "different columns"),
        (["fit", "data.csv", "-s", "hospital", "-r", 2, "-o", "m", "--target", "z"], "no column 'z'"),
        (["fit", "data.csv", "-s", "hospital", "-r", 99, "--columns", "a", "-o", "m"], "fewer than the 99 components"),
        (["fit", "data.csv", "-s", "hospital", "-r", 2, "-o", "data.csv"], "data.csv is a file; give a folder"),
        (["fit", "north.csv", "north.csv", "-r", 1, "-o", "m"], "would both be site 'north'"),
        (["show", "nowhere"], "holds no complete model"),
        (["show", "model", "--plot", "x.docx"], "can be saved as .png, .pdf or .svg"),
        (["predict", "model", "north.csv", "-s", "hospital"], "no site column 'hospital'"),
        (["predict", "model", "data.csv", "--id", "z"], "no column 'z'"),
        (["demo", "--out", "demo.txt"], "can be saved as .png, .pdf or .svg"),
        (["demo", "--out", "no-folder/demo.png"], "there is no folder no-folder"),
    ],
)
def test_bad_data_exits_with_1_and_one_line_on_stderr(folder, model, monkeypatch, capsys, arguments, message):
    monkeypatch.chdir(folder)
    assert run(*arguments) == 1
    assert_one_error(capsys.readouterr().err, message)


def test_a_gap_in_the_rows_to_predict_is_named(model, tmp_path, capsys):
    (tmp_path / "gap.csv").write_text("hospital,a,b\nnorth,4,0\nnorth,NA,0\n")
    assert run("predict", model, tmp_path / "gap.csv") == 1
    assert "column 'a' has 1 missing, NaN or infinite value(s), the first in row 1" in capsys.readouterr().err


def test_a_lacking_column_is_named(model, tmp_path, capsys):
    (tmp_path / "less.csv").write_text("hospital,a\nnorth,4\n")
    assert run("predict", model, tmp_path / "less.csv") == 1
    assert "lacks the fitted column(s) b; its columns are a." in capsys.readouterr().err


def test_a_damaged_source_is_a_model_error(model, tmp_path, capsys):
    for file in model.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "source.json").write_text("{}")
    assert run("show", tmp_path) == 1
    assert "source.json cannot be read" in capsys.readouterr().err


def test_what_belongs_to_the_other_kind_of_mixture_is_refused(folder, tmp_path, capsys):
    arguments = ["fit", folder / "data.csv", "-s", "hospital", "-r", 2, "-o", tmp_path / "m", *QUICK]
    assert run(*arguments, "--target", "b", "--covariance", "full") == 1
    assert_one_error(capsys.readouterr().err, "--covariance full is for Gaussian components")
    assert run(*arguments, "--columns", "a,b", "--noise", "component") == 1
    assert_one_error(capsys.readouterr().err, "--noise component is for regressions")
    assert not (tmp_path / "m").exists()


def test_the_noise_of_regressions_can_be_each_components_own(folder, tmp_path):
    arguments = ["fit", folder / "data.csv", "-s", "hospital", "-r", 2, "--columns", "a", "--target", "b", *QUICK]
    assert run(*arguments, "--noise", "component", "-o", tmp_path / "m") == 0
    assert load_model(tmp_path / "m").noise == "component"


def test_a_fit_that_did_not_settle_says_so(folder, tmp_path, capsys):
    arguments = ["fit", folder / "data.csv", "-s", "hospital", "-r", 2, "--columns", "a,b", *QUICK]
    assert run(*arguments, "--max-rounds", 1, "--tol", 1e-14, "-o", tmp_path / "m") == 0
    captured = capsys.readouterr()
    assert "NOT settled" in captured.out
    assert "note: not settled after 1 rounds" in captured.err


def test_demo_compares_with_fitting_alone_and_writes_plot_and_rows(tmp_path, capsys):
    assert run("demo", "--out", tmp_path / "demo.png", "--data", tmp_path / "demo.csv") == 0
    out = capsys.readouterr().out
    assert "site-10 (hostile)" in out
    assert re.search(r"FedGrEM lowers the largest error from", out)
    assert (tmp_path / "demo.png").stat().st_size > 10_000
    assert pl.read_csv(tmp_path / "demo.csv").shape == (1500, 11)


def test_colours_change_nothing_but_the_looks(monkeypatch, capsys):
    fitted = made_up(5, 2, 2)
    monkeypatch.setenv("COLUMNS", "80")
    print_model(fitted)
    assert capsys.readouterr().out == summary_text(fitted, 80) + "\n"
    monkeypatch.setenv("FORCE_COLOR", "1")
    print_model(fitted)
    coloured = capsys.readouterr().out
    assert "\x1b[1;31msuspect\x1b[0m" in coloured
    assert re.sub(r"\x1b\[[\d;]*m", "", coloured) == summary_text(fitted, 80) + "\n"


def test_only_the_packages_own_warnings_are_shown(capsys):
    with warnings_as_notices():
        warnings.warn("inner workings", RuntimeWarning, stacklevel=1)
    assert capsys.readouterr().err == ""


def test_empty_cells_are_refused_or_filled_in(tmp_path, capsys):
    generator = np.random.default_rng(0)
    lines = ["site,a,b"]
    for k in range(2):
        for i in range(40):
            a, b = generator.normal(size=2) + (i % 2) * 6.0
            lines.append(f"s{k},{a:.4f}," + ("" if i % 8 == 0 else f"{b:.4f}"))
    table = tmp_path / "gaps.csv"
    table.write_text("\n".join(lines) + "\n")
    options = ["--site", "site", "--components", "2", "--penalty", "2", "--out", str(tmp_path / "model")]
    with pytest.raises(SystemExit):
        main(["fit", str(table), *options])
    assert "missing='em'" in capsys.readouterr().err
    with pytest.raises(SystemExit) as done:
        main(["fit", str(table), *options, "--missing", "em"])
    assert done.value.code in (0, None)
    with pytest.raises(SystemExit) as done:
        main(["predict", str(tmp_path / "model"), str(table), "--out", str(tmp_path / "groups.csv")])
    assert done.value.code in (0, None)
    assert len((tmp_path / "groups.csv").read_text().splitlines()) == 81


@pytest.fixture(scope="module")
def mixed(tmp_path_factory):
    """Numbers, words, codes and empty cells."""
    folder = tmp_path_factory.mktemp("mixed")
    generator = np.random.default_rng(1)
    group = generator.integers(2, size=160)
    frame = pl.DataFrame(
        {
            "hospital": [name for name in NAMES for _ in range(40)],
            "age": 50.0 + 15.0 * (2 * group - 1) + generator.normal(size=160),
            "sex": np.where(generator.random(160) < 0.2 + 0.6 * group, "male", "female"),
            "cp": 1 + generator.integers(4, size=160),
        }
    )
    gaps = generator.random(160) < 0.1
    frame.with_columns(sex=pl.Series([None if g else s for g, s in zip(gaps, frame["sex"], strict=True)])).write_csv(
        folder / "mixed.csv"
    )
    return folder


def test_a_table_of_mixed_columns_is_fitted_shown_and_predicted(mixed, capsys):
    data = mixed / "mixed.csv"
    assert (
        run("fit", data, "-s", "hospital", "-r", 2, "--table", "--types", "cp=1|2|3|4", "-o", mixed / "m", *QUICK) == 0
    )
    assert load_model(mixed / "m").columns_ == {"age": "continuous", "sex": "binary", "cp": "categorical"}
    assert "sex = male" in capsys.readouterr().out
    assert run("show", mixed / "m") == 0
    assert "sex = male: " in " ".join(capsys.readouterr().out.split())
    assert run("predict", mixed / "m", data) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert len(rows) == 160


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--types", "cp=count"], "--types says what the columns of a table are; give --table too"),
        (["--table", "--types", "cp"], "--types has 'cp', expected COLUMN=TYPE or COLUMN=LEVEL|LEVEL"),
        (["--table", "--covariance", "identity"], "--covariance identity does not go with --table"),
        (["--table", "--noise", "unit"], "--noise unit is for regressions; with --table, use --covariance"),
        (["--table", "--target", "age"], "--table is for rows without a response"),
        ([], "columns that are not numeric: 'sex' (String, such as"),
    ],
)
def test_what_does_not_go_with_a_table_is_said(mixed, arguments, message, capsys):
    assert run("fit", mixed / "mixed.csv", "-s", "hospital", "-r", 2, "-o", mixed / "no", *arguments) == 1
    assert message in " ".join(capsys.readouterr().err.split())


def test_plan_answers_in_sentences_and_refuses_what_cannot_be(capsys):
    arguments = "plan", "--sites", 5, "--rows", 60, "--columns", 2, "--components", 2, "--separation", 6
    assert run(*arguments, "--similarity", 0, "--target", 0.2) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "Federating pays: the largest error of a component goes from" in out
    assert "A site alone would need about" in out
    assert "For a largest error of 0.20: about" in out
    assert "bad sites yes 0 of 5 sites are bad" in out
    assert run("plan", "--sites", 5, "--bad", 3) == 1
    assert_one_error(capsys.readouterr().err, "3 of 5 sites are bad; no method can tell")
