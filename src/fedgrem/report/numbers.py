"""Numbers as people read them: enough digits to tell things apart and no more, and of many the most telling."""

import numpy as np
from numpy.typing import ArrayLike

from fedgrem.types import Array


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
    """With so many digits after the point, a true minus sign, and thousands apart; very large ones as powers.

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
