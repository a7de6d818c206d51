"""float64 without a global flag: the package enters JAX's 64-bit mode in a scope at its own boundary."""

from contextlib import AbstractContextManager
from typing import Literal, TypeAlias

import jax
import numpy as np

Precision: TypeAlias = Literal["float64", "float32"]


def precision(name: Precision) -> AbstractContextManager[None]:
    """The scope in which arrays of this precision are made and computed with.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> with precision("float64"):
    ...     str(jnp.ones(1).dtype)
    'float64'
    >>> str(jnp.ones(1).dtype)
    'float32'
    """
    scope: AbstractContextManager[None] = jax.enable_x64(name == "float64")
    return scope


def numpy_dtype(name: Precision) -> type:
    """The NumPy type of this precision."""
    return np.float64 if name == "float64" else np.float32
