"""Tables and sentences about a fitted model, to be read at 80 columns."""

from collections.abc import Sequence

import numpy as np
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from fedgrem.algorithms.verdicts import FEWEST_SITES, NOT_JUDGED, SUSPECT, VERDICTS
from fedgrem.report.model_words import vanishing, why
from fedgrem.report.numbers import largest, most_telling
from fedgrem.report.summary import Summary

MOST_SITES = 20
MOST_PARAMETERS = 20
MOST_VANISHED = 5
"""Sites without rows of some component that are named."""
FEWEST_COLUMNS, COLUMN_WIDTH = 2, 7
VERDICT_STYLES = {"suspect": "bold red", "at the center": "green"}


def plain_table(title: str, headers: Sequence[str], *, left: int = 1) -> Table:
    """A table without boxes; the first ``left`` columns are text, the others numbers."""
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for place, header in enumerate(headers):
        table.add_column(
            header, justify="left" if place < left else "right", no_wrap=place >= left, overflow="ellipsis"
        )
    return table


def summary_view(summary: Summary, width: int, *, most_sites: int = MOST_SITES) -> RenderableType:
    """What was found: a headline, the centers, the sites and a verdict."""
    parts = [headline(summary), Text(), center_table(summary, width), Text(), site_table(summary, width, most_sites)]
    gone = vanishing(summary, MOST_VANISHED)
    return Group(*parts, *([Text(gone)] if gone else []), Text(), verdict(summary))


def headline(summary: Summary) -> Text:
    """Sites, components, rows, rounds; whether it settled."""
    text = Text(f"{_capital(summary.kind)}: {_count(summary.n_components, 'component')} over ", style="bold")
    text.append(f"{_count(len(summary.sites), 'site')}, {summary.n_rows:,.6g} rows")
    unsettled = [site.name for site in summary.sites if not site.settled]
    after = f"\n{_count(summary.n_rounds, 'round')} with penalty {summary.penalty:g}, "
    text.append(after, style="not bold")
    if summary.converged and not unsettled:
        text.append("settled.", style="green not bold")
    elif summary.converged:
        text.append(f"settled; still moving: {_names(unsettled)}.", style="yellow not bold")
    else:
        text.append(f"NOT settled, still moving: {_names(unsettled)}; raise --max-rounds or --tol.", style="yellow")
    return text


def center_table(summary: Summary, width: int) -> RenderableType:
    """Parameters down, components across; the largest components and the most telling parameters if there are many."""
    center, weights = np.array(summary.center), np.array(summary.center_weights)
    names = [_short(name, 24) for name in summary.parameters]
    space = width - max(map(len, [*names, "typical weight"])) - 2
    shown = largest(weights, max(FEWEST_COLUMNS, space // (COLUMN_WIDTH + 2)))
    kept = most_telling(center, summary.parameter_units or np.ones(len(names)), MOST_PARAMETERS)
    table = plain_table("Centers", ["component", *(str(r) for r in shown)])
    table.add_row("typical weight", *(f"{weights[r]:.2f}" for r in shown), style="dim")
    for j in kept:
        table.add_row(Text(names[j]), *(_number(center[r, j]) for r in shown))
    return _with_remark(
        table,
        _typical_error(summary),
        _more(len(center), len(shown), "component", "of the largest weight"),
        _more(len(names), len(kept), "parameter", "in which the centers differ most"),
    )


def _typical_error(summary: Summary) -> str:
    """How well the centers are known, in one line: the table has no room for more."""
    errors = [error for row in summary.center_errors or [] for error in row if error is not None]
    if not errors:
        return ""
    middle, most = _number(float(np.median(errors))), _number(max(errors))
    return f"Standard errors: {middle} in the middle, {most} at most; --json lists all."


def site_table(summary: Summary, width: int, most_sites: int = MOST_SITES) -> RenderableType:
    """One line per site, the oddest first: weights, how much of it sits at the center, how far out it is."""
    sites = summary.oddest_first[:most_sites]
    name_width = min(24, max([4, *(len(site.name) for site in sites)]))
    space = width - name_width - 46
    weights = np.array(summary.center_weights)
    shown = largest(weights, max(0, space // 5)) if space >= 10 else []
    table = plain_table("Sites", ["site", "", "rows", "at center", "farthest", *(f"w{r}" for r in shown)], left=2)
    table.columns[1].no_wrap = True
    for site in sites:
        table.add_row(
            Text(_short(site.name, name_width)),
            Text(site.verdict, style=VERDICT_STYLES.get(site.verdict, "cyan")),
            f"{site.n_rows:.6g}",
            f"{site.n_at_center}/{summary.n_components}",
            _number(site.farthest),
            *(_share(site.weights[r]) for r in shown),
        )
    return _with_remark(
        table,
        _more(len(summary.sites), len(sites), "site", "farthest from the center; --all or --json lists all"),
        _more(len(weights), len(shown), "weight", "of the largest components") if shown else "",
    )


def verdict(summary: Summary) -> Text:
    """Who agrees, who does not, and who is suspect, in sentences."""
    if len(summary.sites) == 1:
        return Text("One site: there is nothing to compare it with.")
    counts = [(word, sum(site.verdict == word for site in summary.sites)) for word in VERDICTS]
    told = "; ".join(f"{word}: {n}" for word, n in counts if n and word != SUSPECT)
    text = Text(_capital(f"{told}.\n") if told else "")
    if len(summary.sites) < FEWEST_SITES:
        text.append(f"With fewer than {FEWEST_SITES} sites nobody can say which one is suspect.")
        return text
    if any(site.verdict == NOT_JUDGED for site in summary.sites):
        text.append("There is no center to hold the sites against.")
        return text
    suspect = [site for site in summary.oddest_first if site.suspect]
    if not suspect:
        text.append("No site is suspect.")
        return text
    listed = ", ".join(f"{site.name} ({why(site)})" for site in suspect[:5])
    more = f" and {len(suspect) - 5} more" if len(suspect) > 5 else ""
    text.append(f"Suspect: {listed}{more}", style="bold red")
    text.append(f". Of honest sites about {summary.false_alarm:.0%} are called so.")
    return text


def print_summary(summary: Summary, *, most_sites: int = MOST_SITES) -> None:
    """Print on stdout, as wide as the terminal is."""
    console = Console(highlight=False)
    console.print(summary_view(summary, console.width, most_sites=most_sites))


def _with_remark(table: Table, *remarks: str) -> RenderableType:
    lines = [Text(remark, style="dim") for remark in remarks if remark]
    return Group(table, *lines)


def _more(total: int, shown: int, what: str, which: str) -> str:
    return f"... the {shown} {what}s {which} are shown, of {total}." if shown < total else ""


def _number(value: float) -> str:
    if value == 0.0:
        return "0"
    return f"{value:.2f}" if 0.005 <= abs(value) < 1000 else f"{value:.1e}"


def _share(value: float) -> str:
    return f"{value:.2f}".removeprefix("0") if value < 0.995 else "1"


def _count(n: int, what: str) -> str:
    return f"{n} {what}" if n == 1 else f"{n:,} {what}s"


def _names(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def _short(name: str, width: int) -> str:
    return name if len(name) <= width else name[: width - 1] + "…"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
