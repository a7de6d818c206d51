"""Checks of constructor arguments, made in ``fit``: who, what was got, what was expected."""

from numbers import Integral, Real
from typing import Any

import numpy as np
from sklearn.utils import check_random_state

from fedgrem.errors import InputError, InputTypeError, ShapeError
from fedgrem.types import Array


def check_count(name: str, value: Any, *, least: int) -> int:
    """An integer of at least ``least``."""
    if not isinstance(value, Integral) or isinstance(value, bool):
        raise InputTypeError(f"{name} must be an integer >= {least}, got {value!r} of type {type(value).__name__}.")
    if value < least:
        raise InputError(f"{name} must be >= {least}, got {value!r}.")
    return int(value)


def check_number(name: str, value: Any, *, least: float, most: float = np.inf, below: bool = False) -> float:
    """A number in [least, most], or [least, most) with ``below``; infinity only where ``most`` is infinite."""
    if not isinstance(value, Real) or isinstance(value, bool):
        raise InputTypeError(f"{name} must be a number, got {value!r} of type {type(value).__name__}.")
    number = float(value)
    if not least <= number <= most or (below and number == most):
        close = ")" if below else "]"
        raise InputError(f"{name} must be in [{least:g}, {most:g}{close}, got {value!r}.")
    return number


def check_choice(name: str, value: Any, choices: tuple[str, ...]) -> Any:
    """One of a few words."""
    if not isinstance(value, str) or value not in choices:
        listed = ", ".join(repr(choice) for choice in choices)
        raise InputError(f"{name} must be one of {listed}; got {value!r}.")
    return value


def check_switch(name: str, value: Any) -> None:
    """True, False or "auto"."""
    if not (isinstance(value, bool | np.bool_) or value == "auto"):
        raise InputError(f"{name} must be True, False or 'auto', got {value!r}.")


def check_bool(name: str, value: Any) -> None:
    """True or False."""
    if not isinstance(value, bool | np.bool_):
        raise InputTypeError(f"{name} must be True or False, got {value!r}.")


def seed_of(random_state: Any) -> int:
    """An integer of scikit-learn's ``random_state``."""
    if isinstance(random_state, int | np.integer):
        return int(random_state)
    return int(check_random_state(random_state).randint(np.iinfo(np.int32).max))


def check_start(
    weights: Any, theta: Any, names: tuple[str, str], shape: tuple[int, int, int]
) -> tuple[Array, Array] | None:
    """Starts given by the user, ``(K, R)`` and ``(K, R, q)``; both or neither, unless the weights are even."""
    if theta is None:
        if weights is not None:
            raise InputError(f"{names[0]} was given without {names[1]}; give both, or only {names[1]}.")
        return None
    theta = _as_array(names[1], theta, shape)
    if weights is None:
        return np.full(shape[:2], 1.0 / shape[1]), theta
    weights = _as_array(names[0], weights, shape[:2])
    if np.any(weights < 0) or not np.allclose(weights.sum(axis=1), 1.0, atol=1e-6):
        raise InputError(f"{names[0]} must be >= 0 and sum to 1 at every site; got sums {weights.sum(axis=1)}.")
    return weights, theta


def _as_array(name: str, value: Any, shape: tuple[int, ...]) -> Array:
    array = np.array(value, dtype=float)
    if array.shape != shape:
        meaning = "(sites, components, parameters)" if len(shape) == 3 else "(sites, components)"
        raise ShapeError(f"{name} has shape {array.shape}, expected {shape}, which is {meaning}.")
    if not np.all(np.isfinite(array)):
        raise InputError(f"{name} contains NaN or infinity; give finite starts.")
    return array
