"""The examples, and the code in the documents, run and print what they should."""

import re
import runpy
import shlex
from pathlib import Path

import pytest

from fedgrem.cli import main

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("gaussian_sites.py", "suspect: site-10"),
        ("regression_sites.py", r"response = [01]\.\d -0\.[12]\d \* dose, give or take 1\.\d"),
        ("poisson_sites.py", r"cardiology 1\.\d, orthopedics [78]\.\d"),
    ],
)
def test_example_prints_what_it_should(script, expected, capsys):
    if "import jax" in (ROOT / "examples" / script).read_text(encoding="utf-8"):
        pytest.importorskip("jax", reason="a density of one's own needs the extra own-density")
    runpy.run_path(str(ROOT / "examples" / script), run_name="__main__")
    assert re.search(expected, capsys.readouterr().out)


@pytest.mark.parametrize(
    "document", ["README.md", *(f"docs/{page}.md" for page in ("extending", "regressions", "tables", "attacks"))]
)
def test_the_python_in_a_document_runs(document, tmp_path, monkeypatch):
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / document).read_text(encoding="utf-8"), flags=re.DOTALL)
    assert blocks
    if "import jax" in "".join(blocks):
        pytest.importorskip("jax", reason="a density of one's own needs the extra own-density")
    monkeypatch.chdir(tmp_path)
    exec(compile("\n".join(blocks), document, "exec"), {"__name__": "document"})


def test_the_shell_commands_of_the_readme_work_in_order(tmp_path, monkeypatch):
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    commands = re.findall(
        r"^fedgrem (.*)$", "\n".join(re.findall(r"```sh\n(.*?)```", text, flags=re.DOTALL)), flags=re.M
    )
    assert len(commands) >= 5
    monkeypatch.chdir(tmp_path)
    for command in commands:
        if command == "sites demo":  # processes of its own, tested with the commands of a network
            continue
        with pytest.raises(SystemExit) as stop:
            main(shlex.split(command))
        assert not stop.value.code, command
    for name in ("demo.csv", "fedgrem-demo.png", "groups.csv", "model/model.json", "report.html"):
        assert (tmp_path / name).stat().st_size > 0
