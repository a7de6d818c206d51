"""Unbiased random compressors: few coordinates, or few levels."""

from math import gcd

import numpy as np

from fedgrem.types import Array


def sparsify(place: float, values: Array, keep: float) -> Array:
    """Rand-k: a random share ``keep`` of the coordinates, scaled up so that the mean is right; the others are 0.

    The coordinates stand in a ring in a scattered order, and those after a random ``place`` in [0, 1) of it are kept:
    every one with the same probability, exactly so many of them, and nothing is sorted.

    Examples
    --------
    >>> sparsify(0.3, np.ones(4), 0.5).sum().item()
    4.0
    """
    size = values.size
    count = int(np.clip(np.ceil(keep * size), 1, size))
    ring = np.arange(size) * _scattering(size) % size
    drawn = ((ring + int(place * size)) % size < count).reshape(values.shape)
    return np.where(drawn, values * (size / count), 0.0)


def _scattering(size: int) -> int:
    """A step near the golden section of a ring, by which all its places are met once: neighbours get far apart."""
    step = max(1, round(0.6180339887498949 * size))
    while gcd(step, size) > 1:
        step += 1
    return step


def quantize(uniforms: Array, values: Array, levels: int) -> Array:
    """Round every coordinate at random to a multiple of ``norm / levels``, up or down so that the mean is right.

    Norms are along the last axis; ``uniforms`` are in [0, 1), one per coordinate.

    Examples
    --------
    >>> quantize(np.array([0.5, 0.9]), np.array([3.0, 4.0]), 1).tolist()
    [5.0, 0.0]
    """
    norm = np.sqrt(np.sum(values * values, axis=-1, keepdims=True))
    unit = np.where(norm > 0, norm, 1.0) / levels
    exact = np.abs(values) / unit
    below = np.floor(exact)
    return np.asarray(np.sign(values) * (below + (uniforms < exact - below)) * unit)


def variance_factor(size: int, keep: float, levels: int) -> float:
    r"""Bound on :math:`1 + \omega` of sparsifying, then quantizing: :math:`E\|Q(v)\|^2 \le (1 + \omega)\|v\|^2`."""
    quantizer = 1.0 + min(size / levels**2, size**0.5 / levels) if levels else 1.0
    return quantizer / keep
