"""The field's robust means of K vectors: arrays ``(K, ..., q)`` in, ``(..., q)`` out, problems side by side.

None of them weighs the vectors. Those that are told how many are bad take the count as ``bad``.
"""

import numpy as np

from fedgrem.kernels.center import median, row_norm
from fedgrem.types import Array


def coordinate_median(points: Array) -> Array:
    """Of every coordinate by itself (Yin, Chen, Ramchandran and Bartlett 2018)."""
    return median(points)


def trimmed_mean(points: Array, bad: int) -> Array:
    """Of every coordinate by itself, without the ``bad`` largest and smallest (Yin et al. 2018).

    Examples
    --------
    >>> trimmed_mean(np.array([[1.0], [2.0], [99.0]]), 1).tolist()
    [2.0]
    """
    cut = min(bad, (len(points) - 1) // 2)
    return np.asarray(np.sort(points, axis=0)[cut : len(points) - cut].mean(axis=0))


def geometric_median(points: Array, *, tol: float = 1e-9, max_iterations: int = 200) -> Array:
    """The point of least total distance, by Weiszfeld's iteration (Pillutla, Kakade and Harchaoui 2022).

    Examples
    --------
    >>> geometric_median(np.array([[0.0, 0.0], [0.0, 0.0], [9.0, 1.0]])).round(6).tolist()
    [0.0, 0.0]
    """
    center = median(points)
    for _ in range(max_iterations):
        distance = row_norm(points - center)
        weight = 1.0 / np.maximum(distance, 1e-12 * (1.0 + median(distance)))
        moved = np.sum(weight[..., None] * points, axis=0) / weight.sum(axis=0)[..., None]
        done = row_norm(moved - center) <= tol * (1.0 + median(distance))
        center = moved
        if done.all():
            break
    return np.asarray(center)


def square_distances(points: Array) -> Array:
    """Of every two vectors, ``(K, K, ...)``."""
    away = points[:, None] - points[None]
    return np.asarray(np.vecdot(away, away))


def krum_scores(points: Array, bad: int) -> Array:
    """What every vector is away from its K - bad - 2 nearest others, squared and summed, ``(K, ...)``.

    Blanchard, El Mhamdi, Guerraoui and Stainer (2017).
    """
    near = max(1, len(points) - bad - 2)
    return np.asarray(np.sort(square_distances(points), axis=1)[:, 1 : near + 1].sum(axis=1))


def best_scored(scores: Array, count: int) -> Array:
    """Which of the vectors have the ``count`` lowest scores, ``(K, ...)``; ties go to the first."""
    rank = np.argsort(np.argsort(scores, axis=0, kind="stable"), axis=0, kind="stable")
    return np.asarray(rank < count)


def mean_of(points: Array, chosen: Array) -> Array:
    """The mean of the chosen vectors of every problem."""
    return np.asarray(np.where(chosen[..., None], points, 0.0).sum(axis=0) / chosen.sum(axis=0)[..., None])


def centered_clipping(points: Array, start: Array, *, steps: int = 5) -> Array:
    """From the last center, the mean of what each vector adds when it is cut to a radius (Karimireddy et al. 2021).

    The radius, for which the paper has no rule, is the median distance from the center at hand.
    """
    center = start
    for _ in range(steps):
        away = points - center
        distance = row_norm(away)
        radius = median(distance)
        cut = np.minimum(1.0, radius / np.where(distance > 0, distance, 1.0))
        center = center + np.mean(cut[..., None] * away, axis=0)
    return np.asarray(center)


def nearest_neighbor_mixing(points: Array, bad: int) -> Array:
    """Every vector replaced by the mean of its K - bad nearest ones, itself included, ``(K, ..., q)``.

    Allouah, Farhadkhani, Guerraoui, Gupta, Pinot and Stephan (2023).
    """
    near = max(1, len(points) - bad)
    distance = square_distances(points)
    chosen = best_scored(np.moveaxis(distance, 1, 0), near)  # (K others, K, ...)
    return np.asarray(np.einsum("jk...,j...q->k...q", chosen.astype(float), points) / near)
