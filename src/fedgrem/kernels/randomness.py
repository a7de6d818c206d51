"""Random numbers for starts, from a key of two 32-bit words.

A counter is mixed with the key by two rounds of a well-known integer finalizer (that of MurmurHash3). That is plenty
for drawing starts, is the same on every engine, and compiles in a fraction of the time of the cipher of ``jax.random``,
which was a good part of a first fit. A key is also a raw ``jax.random`` key, for a user's own ``draw_start``.
"""

import jax.numpy as jnp

from fedgrem.types import Array


def _mix(word: Array) -> Array:
    word = (word ^ (word >> 16)) * jnp.uint32(0x85EBCA6B)
    word = (word ^ (word >> 13)) * jnp.uint32(0xC2B2AE35)
    return word ^ (word >> 16)


def _bits(key: Array, counter: Array) -> Array:
    counter = counter.astype(jnp.uint32) * jnp.uint32(0x9E3779B9)
    return _mix(_mix(counter ^ key[0]) + key[1])


def fold_in(key: Array, number: Array | int) -> Array:
    """A key for one purpose out of many, ``(2,)``."""
    return _bits(key, 2 * jnp.asarray(number) + jnp.array([1, 2]) + 0x5EED)


def split_key(key: Array, n: int) -> Array:
    """``n`` keys, ``(n, 2)``."""
    return _bits(key, jnp.arange(2 * n) + 0x10000).reshape(n, 2)


def uniforms(key: Array, shape: tuple[int, ...], dtype: jnp.dtype | type) -> Array:
    """Numbers in [0, 1) with 24 random bits each, which every precision can hold.

    Examples
    --------
    >>> draws = uniforms(jnp.array([1, 2], dtype=jnp.uint32), (1000,), jnp.float32)
    >>> bool((draws >= 0).all() & (draws < 1).all() & (abs(draws.mean() - 0.5) < 0.03))
    True
    """
    size = 1
    for length in shape:
        size *= length
    return (_bits(key, jnp.arange(size)) >> 8).astype(dtype).reshape(shape) * (2.0**-24)
