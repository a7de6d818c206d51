"""Sites of about one size, stacked: what a task works on, in blocks of rows that stay in the processor's cache.

A site over a network is a stack of one. Whatever is derived from rows (features, halves) is computed once per stack.
"""

import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from itertools import pairwise
from math import prod
from typing import Any, NamedTuple

import numpy as np

from fedgrem.kernels.randomness import generator_for
from fedgrem.types import Array

CACHE = 400_000
"""Numbers (rows times fits times components) whose posteriors are found together."""
_local = threading.local()


def scratch(name: str, shape: tuple[int, ...]) -> Array:
    """An array of this thread's own of a shape, not cleared: fresh temporaries of this size cost page faults."""
    kept: dict[str, Array] = _local.__dict__.setdefault("kept", {})
    size = prod(shape)
    if name not in kept or kept[name].size < size:
        kept[name] = np.empty(size)
    return kept[name][:size].reshape(shape)


def padded_size(n_rows: int) -> int:
    """Rows that a site is padded to: the next of sixteen sizes between a power of two and the next.

    Sites of one padded size are stacked. As it depends on the site alone, so does every sum over its rows, to the bit.

    Examples
    --------
    >>> [padded_size(n) for n in (3, 150, 200, 10_001)]
    [8, 152, 200, 10240]
    """
    grain = max(8, 1 << max(0, n_rows.bit_length() - 5))
    return -(-n_rows // grain) * grain


class Block(NamedTuple):
    """Some rows of all sites of a stack."""

    features: Array
    """(c, n, t)"""
    weight: Array
    """(c, n) sample weights; 0 for padding."""
    place: slice
    """Which rows these are."""


class Stack:
    """The rows of c sites, padded to n with rows of weight 0.

    Parameters
    ----------
    names : of the sites.
    rows : (c, n, p), each site's in an order that depends on their values only.
    target : (c, n) responses of a regression, or None.
    weight : (c, n) sample weights; a row of weight 0 is padding and counts for nothing.
    observed : (c, n, p) False where a cell is missing; None if none is.
    """

    def __init__(
        self, names: Sequence[str], rows: Array, target: Array | None, weight: Array, observed: Array | None = None
    ) -> None:
        self.names, self.rows, self.target, self.weight, self.observed = tuple(names), rows, target, weight, observed
        self._whole: tuple[Stack, Any] | None = None
        self._derived: dict[Hashable, Any] = {}
        self._lock = threading.RLock()

    def __len__(self) -> int:
        return len(self.names)

    @property
    def size(self) -> int:
        """Rows of the padded sites."""
        return int(self.weight.shape[1])

    @property
    def n_rows(self) -> Array:
        """(c,) the total row weight."""
        found: Array = self.derive("n_rows", lambda stack: stack.weight.sum(axis=1))
        return found

    def derive(self, key: Hashable, make: Callable[["Stack"], Any]) -> Any:
        """What ``make`` finds of every site, computed once: arrays ``(c, ...)``, stacks, or tuples of them."""
        if key in self._derived:
            return self._derived[key]
        with self._lock:
            if key not in self._derived:
                if self._whole is None:
                    self._derived[key] = make(self)
                else:
                    whole, index = self._whole
                    self._derived[key] = _cut(whole.derive(key, make), index)
            return self._derived[key]

    def select(self, index: Any) -> "Stack":
        """Some of the sites, by a slice, whose part is kept, or an array of places."""
        if not isinstance(index, slice):
            return self._select(index)
        key = ("part", index.start, index.stop)
        with self._lock:
            if key not in self._derived:
                self._derived[key] = self._select(index)
            part: Stack = self._derived[key]
            return part

    def _select(self, index: Any) -> "Stack":
        target = None if self.target is None else self.target[index]
        observed = None if self.observed is None else self.observed[index]
        names = self.names[index] if isinstance(index, slice) else [self.names[k] for k in index]
        part = Stack(names, self.rows[index], target, self.weight[index], observed)
        part._whole = (self, index)
        return part

    def chunks(self, numbers: int, at_least: int = 1) -> Iterator[slice]:
        """Places of the sites whose rows are met together, for ``numbers`` posteriors per row."""
        together = max(1, min(CACHE // max(1, self.size * numbers), -(-len(self) // at_least)))
        count = -(-len(self) // together)
        edges = np.linspace(0, len(self), count + 1).astype(int).tolist()
        return (slice(a, b) for a, b in pairwise(edges))

    def total(self, features: Array, function: Callable[[Block], tuple[Array, ...]], numbers: int) -> tuple[Array, ...]:
        """The sum of ``function(block)`` over blocks of rows, for ``numbers`` posteriors per row of a site.

        Blocks depend on the size of a site and on the fits only, never on other sites or threads.
        """
        n = self.size
        count = max(1, round(n * numbers / CACHE)) if n > 256 else 1
        if count == 1:
            return function(Block(features, self.weight, slice(0, n)))
        edges = np.linspace(0, n, count + 1).astype(int).tolist()
        found: list[Array] = []
        for a, b in pairwise(edges):
            told = function(Block(features[:, a:b], self.weight[:, a:b], slice(a, b)))
            found = [old + new for old, new in zip(found, told, strict=True)] if found else list(told)
        return tuple(found)

    # -- random parts

    def uniforms(self, seed: int, purpose: str, shape: tuple[int, ...], *more: object) -> Array:
        """(c, *shape) numbers in [0, 1), each site's derived from the seed, its name and the purpose."""
        return np.stack([generator_for(seed, name, purpose, *more).random(shape) for name in self.names])

    def halves(self, seed: int, parts: int) -> tuple["Stack", "Stack"]:
        """Rows outside and inside the first of ``parts`` random parts of every site, and likewise of the second.

        Both are stacks of 2c: the two halves of the first site, then those of the next.
        """
        with self._lock:
            key = ("halves", seed, parts)
            if key not in self._derived:
                self._derived[key] = self._halves(seed, parts)
            found: tuple[Stack, Stack] = self._derived[key]
            return found

    def _halves(self, seed: int, parts: int) -> tuple["Stack", "Stack"]:
        twice = self._select(np.repeat(np.arange(len(self)), 2))
        inside = []
        for name, weight in zip(self.names, self.weight, strict=True):
            part = generator_for(seed, name, "parts").permutation(int((weight > 0).sum())) % parts
            inside += [part == 0, part == 1]
        # As many rows as any site of this padded size may have there: the shape of a site's work is its own.
        outer, inner = self.size - self.size // parts, -(-self.size // parts)
        return twice._kept([~here for here in inside], outer), twice._kept(inside, inner)

    def batch(self, seed: int, number: int, share: float) -> "Stack":
        """A random part of every site's rows, weighing as much as all of them; another one for every ``number``."""
        kept = []
        for name, weight in zip(self.names, self.weight, strict=True):
            used = int((weight > 0).sum())
            chosen = np.zeros(used, dtype=bool)
            count = max(1, round(share * used))
            chosen[generator_for(seed, name, "batch", number).permutation(used)[:count]] = True
            kept.append(chosen)
        part = self._kept(kept, max(1, round(share * self.size)))
        scale = self.n_rows / np.maximum(part.weight.sum(axis=1), np.finfo(float).tiny)
        return Stack(part.names, part.rows, part.target, part.weight * scale[:, None], part.observed)

    def _kept(self, chosen: list[Array], size: int) -> "Stack":
        """Some rows of every site, ``chosen`` among those that are not padding, padded to ``size``."""
        places = [np.flatnonzero(w > 0)[c] for w, c in zip(self.weight, chosen, strict=True)]
        size = max(size, *(len(p) for p in places))
        index = np.zeros((len(self), size), dtype=int)
        weight = np.zeros((len(self), size))
        for k, place in enumerate(places):
            index[k, : len(place)] = place
            index[k, len(place) :] = place[0] if len(place) else 0
            weight[k, : len(place)] = self.weight[k, place]
        sites = np.arange(len(self))[:, None]
        target = None if self.target is None else self.target[sites, index]
        observed = None if self.observed is None else self.observed[sites, index]
        return Stack(self.names, self.rows[sites, index], target, weight, observed)


def _cut(value: Any, index: Any) -> Any:
    if isinstance(value, Stack):
        return value.select(index)
    if isinstance(value, tuple):
        return tuple(_cut(part, index) for part in value)
    return value[index]
