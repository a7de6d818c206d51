"""Plain text: counts and lists of names, and tables and paragraphs so many letters wide."""

import textwrap
from collections.abc import Sequence
from unicodedata import combining, east_asian_width

from fedgrem.algorithms.registry import ALGORITHMS


def name_of(algorithm: str) -> str:
    """An algorithm as the papers write it; one that is not known as it is.

    Examples
    --------
    >>> name_of("fedgrem"), name_of("mine")
    ('FedGrEM', 'mine')
    """
    return ALGORITHMS[algorithm].traits.title if algorithm in ALGORITHMS else algorithm


def capital(text: str) -> str:
    """Beginning with a large letter."""
    return text[:1].upper() + text[1:]


def count(n: int, what: str) -> str:
    """A number of things.

    Examples
    --------
    >>> count(1, "site"), count(2000, "row")
    ('1 site', '2,000 rows')
    """
    return f"{n:,} {what}" + ("" if n == 1 else "s")


def listed(names: Sequence[str], most: int = 8) -> str:
    """Names in a row, the first few.

    Examples
    --------
    >>> listed(["a", "b", "c"], most=2)
    'a, b and 1 more'
    """
    return ", ".join(names[:most]) + (f" and {len(names) - most:,} more" if len(names) > most else "")


def text_table(headers: Sequence[str], rows: Sequence[Sequence[str]], *, left: int = 1) -> str:
    """Columns side by side, the first ``left`` of them to the left and the others to the right.

    Examples
    --------
    >>> print(text_table(["site", "rows"], [["north", "40"], ["所沢", "8"]]))
    site   rows
    north    40
    所沢      8
    """
    lines = [headers, *rows]
    widths = [max(map(n_cells, column)) for column in zip(*lines, strict=True)]

    def padded(place: int, text: str) -> str:
        gap = " " * (widths[place] - n_cells(text))
        return text + gap if place < left else gap + text

    return "\n".join("  ".join(padded(*cell) for cell in enumerate(line)).rstrip() for line in lines)


def paragraph(text: str, width: int) -> str:
    """Sentences in lines of this width; one word that is longer stays whole."""
    return textwrap.fill(text, width, break_long_words=False, break_on_hyphens=False)


def short(name: str, width: int = 24) -> str:
    r"""A name cut to this width, without what a terminal would not print.

    Examples
    --------
    >>> short("a long name", 6), short("bell\a")
    ('a lon…', 'bell?')
    """
    name = "".join(letter if letter.isprintable() else "?" for letter in name)
    if n_cells(name) <= width:
        return name
    while n_cells(name) >= width:
        name = name[:-1]
    return f"{name}…"


def n_cells(text: str) -> int:
    """Places that a text takes up in a terminal, where letters of East Asia are twice as wide as others."""
    return sum(0 if combining(letter) else 1 + (east_asian_width(letter) in "WF") for letter in text)
