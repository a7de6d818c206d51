"""Unbiased random compressors: few coordinates, or few levels."""

from math import gcd

import jax.numpy as jnp
import numpy as np

from fedgrem.kernels.randomness import uniforms
from fedgrem.types import Array


def sparsify(key: Array, values: Array, keep: Array | float) -> Array:
    """Rand-k: a random share ``keep`` of the coordinates, scaled up so that the mean is right; the others are 0.

    The coordinates stand in a ring in a scattered order, and those after a random place in it are kept: every one with
    the same probability, exactly so many of them, and nothing is sorted.

    Examples
    --------
    >>> sparsify(jnp.array([1, 2], dtype=jnp.uint32), jnp.ones(4), 0.5).sum().item()
    4.0
    """
    size = values.size
    count = jnp.clip(jnp.ceil(keep * size), 1, size).astype(int)
    first = jnp.floor(uniforms(key, (1,), jnp.float32)[0] * size).astype(int)
    ring = np.arange(size) * _scattering(size) % size
    place = (jnp.asarray(ring) + first) % size
    drawn = (place < count).reshape(values.shape)
    return jnp.where(drawn, values * (size / count), 0.0).astype(values.dtype)


def _scattering(size: int) -> int:
    """A step near the golden section of a ring, by which all its places are met once: neighbours get far apart."""
    step = max(1, round(0.6180339887498949 * size))
    while gcd(step, size) > 1:
        step += 1
    return step


def quantize(key: Array, values: Array, levels: int) -> Array:
    """Round every coordinate at random to a multiple of ``norm / levels``, up or down so that the mean is right.

    Examples
    --------
    >>> key = jnp.array([1, 2], dtype=jnp.uint32)
    >>> quantize(key, jnp.array([3.0, 4.0]), 1).tolist() in [[0, 0], [5, 0], [0, 5], [5, 5]]
    True
    """
    norm = jnp.sqrt(jnp.sum(values * values))
    unit = jnp.where(norm > 0, norm, 1.0) / levels
    exact = jnp.abs(values) / unit
    below = jnp.floor(exact)
    up = uniforms(key, values.shape, jnp.float32) < exact - below
    return jnp.sign(values) * (below + up) * unit


def variance_factor(size: int, keep: Array | float, levels: int) -> Array | float:
    r"""Bound on :math:`1 + \omega` of sparsifying, then quantizing: :math:`E\|Q(v)\|^2 \le (1 + \omega)\|v\|^2`."""
    quantizer = 1.0 + min(size / levels**2, size**0.5 / levels) if levels else 1.0
    return quantizer / keep
