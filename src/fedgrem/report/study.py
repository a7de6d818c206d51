"""A finished study on disk: tidy rows, figures, and one HTML page that needs nothing else."""

import csv
import io
import platform
import re
from html import escape
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fedgrem import __version__
from fedgrem.experiments.specs import Study
from fedgrem.report.study_plots import figures
from fedgrem.report.study_tables import Row, Table, name_of, tables
from fedgrem.report.study_words import Verdict, verdicts

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_COMPARISON = (
    "Mean over seeds of the log of the largest error over honest sites and components; the band is FedGrEM's, two "
    "standard errors either side. The upper axis gives h itself. "
)
CAPTIONS = {
    "gmm": _COMPARISON + "Left: mixture weights; right: component means.",
    "mor": _COMPARISON + "Left: mixture weights; right: regression coefficients.",
    "eta": "Mean error of θ against the step size constant, one line per h.",
    "theory": "Mean error of θ as one thing varies; log scales where a power is expected. Dotted: the expected slope, "
    "through FedGrEM's first point.",
    "sizes": "Error of θ where sites are unequal, and where they are many.",
}
SNR_NOTE = (
    "The horizontal axis uses the SNR of the paper's appendix: the least, over honest sites, of the largest distance "
    "between two components. The paper's text puts h = 2 at 35.92%, which is h over the distance of the two nearest "
    "centers, √31; on the appendix's definition it is {last:.1%}. The order of the points is the same either way."
)
STYLE = """
:root{color-scheme:light}*{box-sizing:border-box}
body{margin:0;background:#fff;color:#1d2329;font:16px/1.55 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
main{max-width:68rem;margin:0 auto;padding:2rem 1.25rem 4rem}
h1{font-size:1.75rem;line-height:1.2;margin:0 0 .25rem}h2{font-size:1.2rem;margin:2.5rem 0 .5rem}
.lead,figcaption,.note{color:#55606b}.lead{margin:0 0 1.5rem;max-width:46rem}figure{margin:1.5rem 0}
figcaption,.note{font-size:.875rem;max-width:50rem}.scroll{overflow-x:auto;margin:.5rem 0}
.picture svg{display:block;width:100%;height:auto;min-width:40rem}
table{border-collapse:collapse;font-size:.875rem;font-variant-numeric:tabular-nums}
th,td{padding:.3rem .7rem;text-align:right;white-space:pre;border-bottom:1px solid #e6e9ec}
th{border-bottom:2px solid #c3cad1;font-weight:600}
th:first-child,td:first-child{text-align:left;position:sticky;left:0;background:#fff}
td b{font-weight:700}ul.verdicts{list-style:none;padding:0;margin:0;max-width:56rem}
ul.verdicts li{padding:.55rem 0 .55rem 6.5rem;border-bottom:1px solid #eef0f2;position:relative}
.mark{position:absolute;left:0;font-size:.8rem;font-weight:600;padding:.1rem .5rem;border-radius:.25rem}
.yes{background:#e2f0ea;color:#00513a}.no{background:#fbe9df;color:#8a3b00}.open{background:#eef0f2}
dl{display:grid;grid-template-columns:max-content 1fr;gap:.25rem 1.25rem;font-size:.9rem;margin:0}
dt{color:#55606b}dd{margin:0;overflow-wrap:anywhere}code{font:.875em ui-monospace,Menlo,Consolas,monospace}
@media(max-width:40rem){main{padding:1.25rem .9rem 3rem}h1{font-size:1.4rem}ul.verdicts li{padding-left:0}
.mark{position:static;display:inline-block;margin-right:.5rem}dl{grid-template-columns:1fr;gap:0}dd{margin-bottom:.5rem}}
"""


class Run(NamedTuple):
    """How the rows came about."""

    command: str
    seconds: float
    """Wall-clock seconds of this run; an interrupted study has spent more."""
    workers: int
    resumed: int = 0
    """Cells that were there already."""


def write_report(study: Study, rows: list[Row], folder: Path, run: Run) -> list[Path]:
    """Write rows, figures and page; returns the paths, the page first."""
    written = write_rows(rows, folder)
    drawings = {}
    for name, figure in figures(study, rows).items():
        figure.savefig(folder / f"{name}.png")
        drawing = _svg(figure)
        (folder / f"{name}.svg").write_text(drawing, encoding="utf-8")
        drawings[name] = re.sub(r' xmlns(:xlink)?="[^"]*"', "", drawing)  # HTML knows them
        written = [folder / f"{name}.png", folder / f"{name}.svg", *written]
    page = folder / "index.html"
    page.write_text(html_page(study, rows, list(drawings.values()), run), encoding="utf-8")
    return [page, *written]


def write_rows(rows: list[Row], folder: Path) -> list[Path]:
    """One line per (setting, method, seed), as CSV and, where polars is installed, as Parquet."""
    path = folder / "rows.csv"
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]) if rows else [])
        writer.writeheader()
        writer.writerows(rows)
    if find_spec("polars") is None:
        return [path]
    import polars

    polars.DataFrame(rows).write_parquet(folder / "rows.parquet")
    return [path, folder / "rows.parquet"]


def html_page(study: Study, rows: list[Row], drawings: list[str], run: Run) -> str:
    """The page: figures first, then what they show, then tables, then how they came about."""
    n_seeds = len({row["seed"] for row in rows})
    paper = any(s.start == "paper" for s in study.settings)
    starts = (
        "All methods begin at the paper's kind of start: EM at each site alone with one tied covariance."
        if paper
        else "All methods begin at the same searched starts"
        + (" (pooled ones at one start of the same kind)." if any("pooled" in m.name for m in study.methods) else ".")
    )
    if any(s.start == "poor" for s in study.settings):
        starts += " Where rounds are counted, all begin at one poor start."
    lead = "A simulation study after Tian, Weng and Feng (ICML 2024), run with fedgrem. "
    lead += f"{len(study.settings)} settings, {len(study.methods)} methods, {n_seeds} seeds. {starts}"
    parts = [f"<h1>{escape(study.title)}</h1>", f'<p class="lead">{escape(lead)}</p>']
    for drawing in drawings:
        caption = escape(CAPTIONS[study.name])
        parts.append(f'<figure><div class="scroll picture">{drawing}</div><figcaption>{caption}</figcaption></figure>')
    parts += _verdict_list(verdicts(study, rows))
    if study.name in ("gmm", "mor"):
        last = study.settings[-1]
        snr = [row["snr"] for row in rows if row["setting"] == last.name]
        if last.x == 2.0 and snr:
            parts.append(f'<p class="note">{escape(SNR_NOTE.format(last=last.x / (sum(snr) / len(snr))))}</p>')
    for table in tables(study, rows):
        parts += _html_table(table)
    parts += ["<h2>How this came about</h2>", _facts(study, rows, run)]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f'<link rel="icon" href="data:,"><title>{escape(study.title)} · fedgrem</title><style>{STYLE}</style></head>'
        f"<body><main>\n{chr(10).join(parts)}\n</main></body></html>\n"
    )


def _verdict_list(found: list[Verdict]) -> list[str]:
    if not found:
        return []
    marks = {True: ("yes", "holds"), False: ("no", "differs"), None: ("open", "open")}
    items = []
    for verdict in found:
        kind, word = marks[verdict.holds]
        items.append(
            f'<li><span class="mark {kind}">{word}</span>{escape(verdict.claim)} '
            f"<em>Here:</em> {escape(verdict.finding)}</li>"
        )
    note = "Each line is a claim and what these rows say to it; the sentences are computed from the rows."
    return [
        "<h2>What is claimed, and what these rows say</h2>",
        f'<p class="note">{note}</p>',
        f'<ul class="verdicts">{"".join(items)}</ul>',
    ]


def _html_table(table: Table) -> list[str]:
    head = "".join(f"<th>{escape(header)}</th>" for header in table.headers)
    body = []
    for i, row in enumerate(table.rows):
        cells = (
            f"<td><b>{escape(cell)}</b></td>" if (i, j) in table.strong else f"<td>{escape(cell)}</td>"
            for j, cell in enumerate(row)
        )
        body.append(f"<tr>{''.join(cells)}</tr>")
    note = [f'<p class="note">{escape(table.note)}</p>'] if table.note else []
    markup = f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table>"
    return [f"<h2>{escape(table.title)}</h2>", f'<div class="scroll">{markup}</div>', *note]


def _facts(study: Study, rows: list[Row], run: Run) -> str:
    resumed = f" ({run.resumed} cells were there from an earlier run)" if run.resumed else ""
    facts: dict[str, Any] = {
        "command": f"<code>{escape(run.command)}</code>",
        "run time": f"{duration(run.seconds)}, worker processes: {run.workers}{resumed}",
        "versions": f"fedgrem {__version__}, jax {version('jax')}, numpy {version('numpy')}, "
        f"Python {platform.python_version()}",
        "methods": escape(", ".join(name_of(m.name) for m in study.methods)),
        "rows": f"{len(rows)}, in <code>rows.csv</code>",
        "data": "the paper's simulation: 10 sites, 150 rows each, 5 components in 10 dimensions and one outlier site, "
        "unless the setting says otherwise",
    }
    return "<dl>" + "".join(f"<dt>{key}</dt><dd>{value}</dd>" for key, value in facts.items()) + "</dl>"


def duration(seconds: float) -> str:
    """Seconds as people say them.

    Examples
    --------
    >>> duration(7.21), duration(754.0)
    ('7.2 s', '12 min 34 s')
    """
    if seconds < 60:
        return f"{seconds:.1f} s"
    return f"{int(seconds) // 60} min {int(seconds) % 60} s"


def _svg(figure: "Figure") -> str:
    """The drawing alone, letters as outlines: it looks the same everywhere and names no address."""
    from matplotlib import rc_context

    buffer = io.StringIO()
    nothing = {"Date": None, "Creator": None, "Format": None, "Type": None}
    with rc_context({"svg.hashsalt": "fedgrem"}):
        figure.savefig(buffer, format="svg", metadata=nothing)
    text = buffer.getvalue()
    return text[text.index("<svg") :]
