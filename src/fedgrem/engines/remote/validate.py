"""What the center believes: every reply is checked before it is used, and the complaint names the site."""

from typing import Any

import numpy as np

from fedgrem.data.federation import LARGEST
from fedgrem.engines.remote.declaration import CENSUS, check_shapes
from fedgrem.engines.remote.sums import NamedKeys, check_key
from fedgrem.engines.remote.wire import Fields, decode
from fedgrem.errors import MessageError
from fedgrem.types import Array, named_arrays

START_TASKS = ("start", "compare", "joint_start")
SIMPLEX_SLACK = 1e-6
SIZE_SLACK = 1e-6
"""Relative: the same weights may be added up in another order by another program."""


def check_reply(
    site: str, task: str, reply: Fields, declared: Any, *, exchange: tuple[int, int], n_rows: float | None, gaps: bool
) -> Any:
    """The reply as arrays, or a :class:`~fedgrem.errors.MessageError` that says what is wrong with it.

    Parameters
    ----------
    declared : the structure, shapes and types of this reply.
    exchange : the number that came back, and the number that was sent.
    n_rows : what the site said of its size before; None if it has not.
    gaps : whether a site may have no cell of a column.
    """
    who = f"site {site!r}"
    if exchange[0] != exchange[1]:
        raise MessageError(f"{who} answered exchange {exchange[0]}, expected {exchange[1]}; an old answer is not used.")
    try:
        message = decode(reply, declared)
    except MessageError as error:
        raise MessageError(f"{who}: {error}") from error
    check_shapes(who, message, declared)
    for name, leaf in named_arrays(message):
        _check_finite(who, task, name, leaf, gaps)
    if isinstance(message, NamedKeys):
        check_key(who, message.key)
    size = float(getattr(message, "n_rows", 1.0))  # a private or a masked answer says nothing of it
    if not size > 0:
        raise MessageError(f"{who} says that it has {size:g} rows, expected more than 0.")
    if n_rows is not None and abs(size - n_rows) > SIZE_SLACK * n_rows:
        raise MessageError(f"{who} now says that it has {size:g} rows, and said {n_rows:g} before.")
    if task == CENSUS and np.any(message.deviation < 0):
        raise MessageError(f"{who} sent a negative standard deviation.")
    params = getattr(getattr(message, "fits", message), "params", message)
    weights = getattr(params, "weights", None)
    if weights is not None:
        _check_simplex(who, np.asarray(weights))
    return message


def _check_finite(who: str, task: str, name: str, leaf: Array, gaps: bool) -> None:
    if leaf.dtype.kind != "f" or (gaps and task == CENSUS and name in ("mean", "deviation")):
        return
    # Of a start that fits no row at all, a site says so with minus infinity.
    hopeless = np.isneginf(leaf) if task in START_TASKS and name == "log_likelihood" else np.zeros(leaf.shape, bool)
    bad = ~(np.isfinite(leaf) | hopeless)
    if bad.any():
        raise MessageError(f"{who} sent NaN or infinity in {int(bad.sum())} of {leaf.size} number(s) of {name}.")
    # Rows beyond that are refused at every site: nothing that is computed from them can be larger than their squares.
    largest = np.abs(leaf[np.isfinite(leaf)]).max(initial=0.0)
    squares = name.endswith("log_likelihood") or "packed" in name or task in ("birth", "hold")
    most = LARGEST**2 if squares else LARGEST
    if largest > most:
        raise MessageError(
            f"{who} sent {largest:.3g} in {name}, expected at most {most:g}: no honest site can be there."
        )


def _check_simplex(who: str, weights: Array) -> None:
    total = weights.sum(axis=-1)
    if np.any(weights < -SIMPLEX_SLACK) or np.any(np.abs(total - 1.0) > SIMPLEX_SLACK):
        worst = float(total.flat[int(np.argmax(np.abs(total - 1.0)))])
        raise MessageError(
            f"{who} sent weights that are not on the simplex: the least is {weights.min():.3g} and a sum is "
            f"{worst:.6g}, expected none below 0 and sums of 1."
        )
