"""A finished study on disk: tidy rows, figures, and one HTML page that needs nothing else."""

import csv
import platform
from html import escape
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from fedgrem import __version__
from fedgrem.report.names import name_of
from fedgrem.report.page import document, fact_list, inline, marked_list, svg, table_markup
from fedgrem.studies.pages.plots import figures
from fedgrem.studies.pages.real_page import REAL_CAPTIONS, contamination_words, real_facts, real_lead, real_notes
from fedgrem.studies.pages.stats import Row, Table, Verdict
from fedgrem.studies.pages.tables import tables
from fedgrem.studies.pages.words import verdicts
from fedgrem.studies.specs import REAL, Study

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
} | REAL_CAPTIONS
SIMULATED = (
    "the paper's simulation: 10 sites, 150 rows each, 5 components in 10 dimensions and one outlier site, unless the "
    "setting says otherwise"
)
STYLE = "td .beside{color:#6b7680}"
"""What stands below our own figure in a cell."""
SNR_NOTE = (
    "The horizontal axis uses the SNR of the paper's appendix: the least, over honest sites, of the largest distance "
    "between two components. The paper's text puts h = 2 at 35.92%, which is h over the distance of the two nearest "
    "centers, √31; on the appendix's definition it is {last:.1%}. The order of the points is the same either way."
)


class Run(NamedTuple):
    """How the rows came about."""

    command: str
    seconds: float
    """Wall-clock seconds of this run; an interrupted study has spent more."""
    workers: int
    resumed: int = 0
    """Cells that were there already."""
    note: str = ""
    """What else a reader must know, such as the embedding: a paragraph of the page."""


def write_report(study: Study, rows: list[Row], folder: Path, run: Run) -> list[Path]:
    """Write rows, figures and page; returns the paths, the page first."""
    written = write_rows(rows, folder)
    drawings = {}
    for name, figure in figures(study, rows).items():
        figure.savefig(folder / f"{name}.png")
        drawing = svg(figure)
        (folder / f"{name}.svg").write_text(drawing, encoding="utf-8")
        drawings[name] = inline(drawing)
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
    real = study.name in REAL
    parts = [f"<h1>{escape(study.title)}</h1>", f'<p class="lead">{escape(_lead(study, rows))}</p>']
    for drawing in drawings:
        caption = escape(CAPTIONS[study.name])
        parts.append(f'<figure><div class="scroll picture">{drawing}</div><figcaption>{caption}</figcaption></figure>')
    parts += real_notes(study, run.note) if real else _notes(run.note)
    parts += _verdict_list(verdicts(study, rows))
    parts += contamination_words(study) if real else _snr_words(study, rows)
    for table in tables(study, rows):
        parts += _html_table(table)
    parts += ["<h2>How this came about</h2>", _facts(study, rows, run)]
    return document(study.title, parts, STYLE)


def _lead(study: Study, rows: list[Row]) -> str:
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
    if study.name in REAL:
        return real_lead(study, n_seeds) + starts
    lead = "A simulation study after Tian, Weng and Feng (ICML 2024), run with fedgrem. "
    return lead + f"{len(study.settings)} settings, {len(study.methods)} methods, {n_seeds} seeds. {starts}"


def _notes(note: str) -> list[str]:
    return [f'<p class="note">{escape(note)}</p>'] if note else []


def _snr_words(study: Study, rows: list[Row]) -> list[str]:
    last = study.settings[-1]
    snr = [row["snr"] for row in rows if row["setting"] == last.name] if study.name in ("gmm", "mor") else []
    return _notes(SNR_NOTE.format(last=last.x / (sum(snr) / len(snr)))) if last.x == 2.0 and snr else []


def _verdict_list(found: list[Verdict]) -> list[str]:
    if not found:
        return []
    marks = {True: ("yes", "holds"), False: ("no", "differs"), None: ("open", "open")}
    lines = [
        (*marks[verdict.holds], f"{escape(verdict.claim)} <em>Here:</em> {escape(verdict.finding)}")
        for verdict in found
    ]
    note = "Each line is a claim and what these rows say to it; the sentences are computed from the rows."
    return [
        "<h2>What is claimed, and what these rows say</h2>",
        f'<p class="note">{note}</p>',
        marked_list(lines),
    ]


def _html_table(table: Table) -> list[str]:
    rows = [[_cell(cell, (i, j) in table.strong) for j, cell in enumerate(row)] for i, row in enumerate(table.rows)]
    note = [f'<p class="note">{escape(table.note)}</p>'] if table.note else []
    head = [f"<th>{escape(header)}</th>" for header in table.headers]
    return [f"<h2>{escape(table.title)}</h2>", table_markup(head, rows), *note]


def _cell(text: str, strong: bool) -> str:
    """The first line is ours, and stressed where it should be; what stands below it is paler."""
    first, *others = (escape(line) for line in text.split("\n"))
    below = "".join(f'\n<span class="beside">{line}</span>' for line in others)
    return f"<td>{f'<b>{first}</b>' if strong else first}{below}</td>"


def _facts(study: Study, rows: list[Row], run: Run) -> str:
    resumed = f" ({run.resumed} cells were there from an earlier run)" if run.resumed else ""
    facts = {
        "command": f"<code>{escape(run.command)}</code>",
        "run time": f"{duration(run.seconds)}, worker processes: {run.workers}{resumed}",
        "versions": f"fedgrem {__version__}, numpy {version('numpy')}, scipy {version('scipy')}, "
        f"Python {platform.python_version()}",
        "methods": escape(", ".join(name_of(m.name) for m in study.methods)),
        "rows": f"{len(rows)}, in <code>rows.csv</code>",
    }
    told = real_facts(study) if study.name in REAL else {"data": SIMULATED}
    return fact_list(facts | {name: escape(text) for name, text in told.items()})


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
