"""NamedTuples of arrays to named bytes and back: little-endian, no pickle, and nothing that was not declared."""

from hashlib import sha256
from typing import Any, TypeAlias

import numpy as np

from fedgrem.errors import MessageError
from fedgrem.types import Array, map_arrays, named_arrays

Fields: TypeAlias = dict[str, dict[str, Any]]
"""``"params.theta" -> {"shape": [5, 3], "dtype": "<f8", "bytes": b"..."}``: what travels."""

DTYPES = ("<f8", "<f4", "<i8", "<i4", "<u4", "|u1", "|b1")
MOST_AXES = 8


def encode(message: Any) -> Fields:
    """The arrays of a message by name; a field that is None is left out.

    Examples
    --------
    >>> from fedgrem.types import Params
    >>> list(encode(Params(np.ones(2), np.ones((2, 3)))))
    ['weights', 'theta']
    """
    return {name: pack(np.asarray(leaf)) for name, leaf in named_arrays(message)}


def decode(fields: Any, like: Any) -> Any:
    """A message with the structure of ``like``, whose leaves are read for their names only.

    Whatever is missing, unexpected or malformed is refused by name.
    """
    if not isinstance(fields, dict):
        raise MessageError(f"the message is a {type(fields).__name__}, expected named arrays.")
    names = [name for name, _ in named_arrays(like)]
    missing = [name for name in names if name not in fields]
    extra = [printable(str(name)) for name in fields if name not in names]
    if missing or extra:
        told = [f"lacks {', '.join(missing)}"] * bool(missing) + [f"also holds {', '.join(extra[:5])}"] * bool(extra)
        raise MessageError(f"the message {' and '.join(told)}; expected exactly {', '.join(names) or 'nothing'}.")
    leaves = iter([unpack(name, fields[name]) for name in names])
    return map_arrays(lambda _: next(leaves), like)


def printable(text: str, most: int = 60) -> str:
    r"""The beginning of a text from elsewhere, as it may be shown: no control characters.

    Examples
    --------
    >>> printable("age\x1b[2J")
    'age?[2J'
    """
    return "".join(mark if mark.isprintable() else "?" for mark in text[:most])


def size(fields: Fields) -> int:
    """Bytes of the arrays."""
    return sum(len(field["bytes"]) for field in fields.values())


def digest_of(message: Any) -> str:
    """A hash of the names and numbers of a message, or of a task and its message."""
    found = sha256()
    if isinstance(message, tuple) and message and isinstance(message[0], str):
        found.update(message[0].encode())
        message = message[1]
    for name, leaf in named_arrays(message):
        array = np.ascontiguousarray(leaf)
        found.update(f"{name} {array.dtype.str} {array.shape} ".encode() + array.tobytes())
    return found.hexdigest()


def pack(array: Array) -> dict[str, Any]:
    """One array as it travels."""
    little = np.ascontiguousarray(array).astype(array.dtype.newbyteorder("<"), copy=False)
    if little.dtype.str not in DTYPES:
        raise MessageError(f"arrays of type {array.dtype} do not travel; the types are {', '.join(DTYPES)}.")
    return {"shape": list(array.shape), "dtype": little.dtype.str, "bytes": little.tobytes()}


def unpack(name: str, field: Any) -> Array:
    """One array as it came; whatever is malformed is refused."""
    if not isinstance(field, dict) or set(field) != {"shape", "dtype", "bytes"}:
        raise MessageError(f"{name} is not an array of shape, dtype and bytes.")
    shape, dtype, raw = field["shape"], field["dtype"], field["bytes"]
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise MessageError(f"{name} has the type {str(dtype)[:20]!r}, expected one of {', '.join(DTYPES)}.")
    if (
        not isinstance(shape, list | tuple)
        or len(shape) > MOST_AXES
        or not all(type(n) is int and 0 <= n < 2**31 for n in shape)
    ):
        raise MessageError(f"{name} has no valid shape.")
    expected = int(np.prod(shape, dtype=object)) * np.dtype(dtype).itemsize
    if not isinstance(raw, bytes) or len(raw) != expected:
        got = len(raw) if isinstance(raw, bytes) else type(raw).__name__
        raise MessageError(f"{name} has {got} bytes, expected {expected} for shape {tuple(shape)} and type {dtype}.")
    array: Array = np.frombuffer(raw, dtype=dtype).reshape(shape).astype(np.dtype(dtype).newbyteorder("="))
    return array
