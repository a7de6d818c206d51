"""Numbers and names as people read them, and plain text in tables and paragraphs of a given width."""

import textwrap
from collections.abc import Sequence
from unicodedata import combining, east_asian_width

import numpy as np
from numpy.typing import ArrayLike

from fedgrem.algorithms.registry import ALGORITHMS
from fedgrem.types import Array


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


def decimals_for(values: ArrayLike) -> int:
    """Digits after the point that show differences among these values: three significant ones of their range.

    Examples
    --------
    >>> decimals_for([12.0, 95.0]), decimals_for([0.011, 0.045]), decimals_for([1200.0, 5400.0])
    (1, 4, 0)
    """
    array = np.asarray(values, dtype=float)
    array = array[np.isfinite(array)]
    size = float(np.ptp(array) or np.abs(array).max()) if len(array) else 0.0
    return int(np.clip(2 - np.floor(np.log10(size)), 0, 6)) if size > 0 else 0


def fixed(value: float, decimals: int) -> str:
    """With this number of digits after the point, a true minus sign, and thousands apart; very large ones as powers.

    Examples
    --------
    >>> fixed(1234.56, 1), fixed(-0.04, 1), fixed(3.2e9, 0)
    ('1,234.6', '0.0', '3.2e+09')
    """
    if not np.isfinite(value):
        return "—" if np.isnan(value) else "∞"
    text = f"{value:,.{decimals}f}" if abs(value) < 1e7 else f"{value:.3g}"
    return text.lstrip("-") if not text.strip("-0.") else text.replace("-", "\N{MINUS SIGN}", 1)


def number(value: float) -> str:
    """One number on its own, to three significant digits.

    Examples
    --------
    >>> number(0.0), number(0.01234), number(12.3), number(12345.6)
    ('0', '0.0123', '12.3', '12,346')
    """
    return "0" if value == 0 else fixed(value, decimals_for([0.0, value]))


def signed(value: float, decimals: int) -> str:
    """With its sign, as a difference is written.

    Examples
    --------
    >>> signed(0.5, 2), signed(0.001, 2)
    ('+0.50', '0.00')
    """
    text = fixed(value, decimals)
    return text if value <= 0 or not text.strip("0.,") else f"+{text}"


def largest(values: ArrayLike, n: int) -> list[int]:
    """Places of the n largest values, in their own order.

    Examples
    --------
    >>> largest([3.0, 1.0, 2.0, 3.0], 2)
    [0, 3]
    """
    return sorted(int(place) for place in np.argsort(-np.asarray(values), kind="stable")[:n])


def most_telling(center: ArrayLike, units: ArrayLike, n: int) -> list[int]:
    """Places of the n parameters in which the components differ most, whatever units the columns are in.

    Parameters
    ----------
    center : (R, q)
    units : (q,) what makes the parameters comparable, see :func:`~fedgrem.report.attributes.parameter_units`.

    Examples
    --------
    >>> most_telling([[0.0, 0.0], [900.0, 5.0]], [1000.0, 1.0], 1)
    [1]
    """
    return largest(np.ptp(np.asarray(center, dtype=float) / np.asarray(units), axis=0), n)


def contrast(center: Array) -> Array:
    """Where each component lies among all, parameter by parameter: from -1, the farthest below the middle, to 1.

    Parameters
    ----------
    center : (R, q)

    Examples
    --------
    >>> contrast(np.array([[0.0, 5.0], [1.0, 5.0], [2.0, 5.0]])).tolist()
    [[-1.0, 0.0], [0.0, 0.0], [1.0, 0.0]]
    """
    away = center - (center.max(axis=0) + center.min(axis=0)) / 2.0
    largest = np.abs(away).max(axis=0)
    return np.asarray(away / np.where(largest > 1e-12 * (1.0 + np.abs(center).max(axis=0)), largest, np.inf))
