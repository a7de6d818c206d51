"""Tables and sentences about a fitted model on the screen: the text of a summary, in colours."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedgrem.report.summary import MOST_SITES, Summary, text_of

STYLES = {
    r"(?m)\A.*$|^(Centers|Sites)$": "bold",
    r"(?m)^(typical weight .*|\.\.\. .*|Standard errors: .*)$": "dim",
    r"(?m)(?<=, )settled\.$": "green",
    r"(?m)(?<=, )(NOT settled|settled;).*$": "yellow",
    r"(?m)(?<=  )at the center(?=  )|^\d+ \*.*$": "green",
    r"(?<=  )(similar|own answer|not judged)(?=  )": "cyan",
    r"(?<=  )suspect(?=  )|[\d,]+ of [\d,]+ sites\s(is|are)\ssuspect:[\s\S]*?(?=\.\sOf\shonest)": "bold red",
}
"""What is stressed in a text, and how."""


def plain_table(title: str, headers: Sequence[str], *, left: int = 1) -> Table:
    """A table without boxes; the first ``left`` columns are text, the others numbers."""
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for place, header in enumerate(headers):
        table.add_column(
            header, justify="left" if place < left else "right", no_wrap=place >= left, overflow="ellipsis"
        )
    return table


def print_summary(summary: Summary, *, most_sites: int = MOST_SITES) -> None:
    """Print on stdout, as wide as the terminal is."""
    print_text(text_of(summary, Console().width, most_sites))


def print_text(text: str) -> None:
    """Print finished lines on stdout, coloured where the terminal has colours."""
    coloured = Text(text)
    for pattern, style in STYLES.items():
        coloured.highlight_regex(pattern, style)
    Console(highlight=False).print(coloured, soft_wrap=True)
