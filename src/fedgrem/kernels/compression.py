"""Unbiased random compressors: few coordinates, or few levels."""

import jax
import jax.numpy as jnp

from fedgrem.types import Array


def sparsify(key: Array, values: Array, keep: Array | float) -> Array:
    """Rand-k: a random share ``keep`` of the coordinates, scaled up so that the mean is right; the others are 0.

    Examples
    --------
    >>> sparsify(jax.random.PRNGKey(0), jnp.ones(4), 0.5).sum().item()
    4.0
    """
    size = values.size
    count = jnp.clip(jnp.ceil(keep * size), 1, size).astype(int)
    lots = jax.random.bits(key, (size,))
    drawn = (lots <= jnp.sort(lots)[count - 1]).reshape(values.shape)
    return jnp.where(drawn, values * (size / count), 0.0).astype(values.dtype)


def quantize(key: Array, values: Array, levels: int) -> Array:
    """Round every coordinate at random to a multiple of ``norm / levels``, up or down so that the mean is right.

    Examples
    --------
    >>> quantize(jax.random.PRNGKey(0), jnp.array([3.0, 4.0]), 1).tolist() in [[0, 0], [5, 0], [0, 5], [5, 5]]
    True
    """
    norm = jnp.sqrt(jnp.sum(values * values))
    unit = jnp.where(norm > 0, norm, 1.0) / levels
    exact = jnp.abs(values) / unit
    below = jnp.floor(exact)
    up = jax.random.uniform(key, values.shape, dtype=jnp.float32) < exact - below
    return jnp.sign(values) * (below + up) * unit


def variance_factor(size: int, keep: Array | float, levels: int) -> Array | float:
    r"""Bound on :math:`1 + \omega` of sparsifying, then quantizing: :math:`E\|Q(v)\|^2 \le (1 + \omega)\|v\|^2`."""
    quantizer = 1.0 + min(size / levels**2, size**0.5 / levels) if levels else 1.0
    return quantizer / keep
