"""Whether sites' starts get the same labels: the paper's stepwise search, over random orders, and the package's."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from fedgrem.kernels.matching import align_by_assignment, align_stepwise
from fedgrem.theory.checks import stepwise_needs
from fedgrem.types import Array

N_SITES, N_BAD, R, Q = 10, 3, 4, 4
ORDERS = 20
"""Random orders of sites over which stepwise searches are compared."""
TRIALS = 20
"""Draws of starts in a cell."""


class Starts(NamedTuple):
    """Starts of all sites, in labels of their own."""

    theta: Array
    """(K, R, q); bad sites come first, where they do most harm to a search in the order given."""
    number: Array
    """(K, R) the true component that each is."""
    good: Array
    """(K,)"""


def draw(relative: float, generator: np.random.Generator) -> Starts:
    """Starts of which the separation is ``relative`` to what the theorem of the stepwise search asks for.

    Half of what it asks for is for sites that differ, half for starts that are off. Bad sites have points anywhere
    among the centers.
    """
    centers = generator.normal(size=(R, Q))
    apart = np.linalg.norm(centers[:, None] - centers, axis=-1)
    centers /= apart[~np.eye(R, dtype=bool)].min()
    unit = 1.0 / stepwise_needs(0.25, 1.0 / 12.0, N_BAD, N_SITES - N_BAD) / relative
    h, error = 0.25 * unit, unit / 12.0
    theta = centers + _directions(h, generator) + _directions(error, generator)
    good = np.arange(N_SITES) >= N_BAD
    theta[:N_BAD] = centers.mean(axis=0) + centers.std() * generator.normal(size=(N_BAD, R, Q))
    shuffled = np.stack([generator.permutation(R) for _ in range(N_SITES)])
    return Starts(np.take_along_axis(theta, shuffled[..., None], axis=1), shuffled, good)


def _directions(length: float, generator: np.random.Generator) -> Array:
    away = generator.normal(size=(N_SITES, R, Q))
    return np.asarray(length * away / np.linalg.norm(away, axis=-1, keepdims=True))


def right(starts: Starts, order: Array) -> bool:
    """Whether all good sites got the same labels."""
    number = np.take_along_axis(starts.number, order, axis=1)[starts.good]
    return bool((number == number[0]).all())


def in_random_order(theta: Array, generator: np.random.Generator) -> Array:
    """The stepwise search with sites in a random order."""
    sequence = generator.permutation(len(theta))
    order = np.empty(theta.shape[:2], dtype=int)
    order[sequence] = align_stepwise(theta[sequence])
    return order


def recurring(theta: Array, generator: np.random.Generator) -> Array:
    """The labels that recur over random orders: those that agree best with the other orders', pair of sites by pair.

    The paper suggests to take recurring patterns and leaves open how. Labels have a meaning between two sites only:
    which components of the one go with which of the other.
    """
    orders = np.stack([in_random_order(theta, generator) for _ in range(ORDERS)])
    places = np.argsort(orders, axis=2)
    # between[b, k, l, s]: the component of site k that goes with component s of site l
    between = np.stack([order[:, place] for order, place in zip(orders, places, strict=True)])
    same = (between[:, None] == between[None]).all(axis=-1).sum(axis=(2, 3))
    return np.asarray(orders[int(same.sum(axis=1).argmax())])


ALIGNERS: dict[str, Callable[[Array, np.random.Generator], Array]] = {
    "ours": align_by_assignment,
    "recurring": recurring,
    "random order": in_random_order,
    "order given": lambda theta, generator: align_stepwise(theta),
}
"""Name -> function of starts ``(K, R, q)``; "order given" has the bad sites first."""


def share_right(name: str, relative: float, seed: int) -> float:
    """In what part of the draws all good sites get the same labels."""
    generator = np.random.default_rng([seed, round(1000 * relative)])
    found = []
    for _ in range(TRIALS):
        starts = draw(relative, generator)
        found.append(right(starts, ALIGNERS[name](starts.theta, np.random.default_rng(seed))))
    return float(np.mean(found))
