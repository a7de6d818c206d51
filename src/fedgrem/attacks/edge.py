"""Attacks that look for the weak spot of whatever center rule is in use, by asking the rule itself."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from fedgrem.algorithms.center_rules import Redescending
from fedgrem.algorithms.centered import Centered, CenterRule
from fedgrem.attacks.base import Crowd, ParamsAttack, Scene, all_alike, find
from fedgrem.attacks.estimates import common_direction
from fedgrem.fit.starts import steady_penalty
from fedgrem.kernels.center import capped_rows, row_norm
from fedgrem.types import Array, Params

FARTHEST = 16.0
"""Times the usual honest distance beyond which no weak spot is looked for."""


class Probe(NamedTuple):
    """The center's problem as the adversary sees it, with all bad sites at one place along a common direction."""

    ask: Callable[[Array], Centered]
    """What the rule makes of liars at these distances ``(..., R)``, in units of the usual one."""
    honest: Array
    """(..., R, q) where the honest mean is, in units of the noise."""
    place: Callable[[Array], Array]
    """Distances ``(..., R)`` as parameters ``(..., R, q)``."""


def probe(others: Crowd, scene: Scene) -> Probe:
    """Rebuild that problem from what the sites were sent and have answered."""
    family, algorithm, n_sites = scene.spec.family, scene.spec.algorithm, len(scene.bad)
    rule: CenterRule = getattr(algorithm, "rule", Redescending())
    if scene.spec.estimates_pull:
        rule = getattr(algorithm, "center_rule", rule)
    toward = find(scene.ask.mail, "extra")
    center, penalty, noise = (find(toward, name) for name in ("center", "penalty", "noise"))
    common = others.middle.noise if noise is None else noise[0]
    honest = family.to_noise(others.theta, common)
    mean = honest.mean(axis=0)
    usual = np.sqrt(((honest - mean) ** 2).sum(axis=-1).mean(axis=0))
    direction = common_direction(mean, scene)
    lead = (-1, *(1,) * (mean.ndim - 1))
    weights = others.middle.weights
    share = algorithm.share(weights) if hasattr(algorithm, "share") else np.ones_like(weights)
    held = scene.n_rows.reshape(lead) * share
    weight = capped_rows(scene.n_rows).reshape(lead) * share
    if penalty is None or center is None or center[0].shape != mean.shape:
        # Before the rounds nothing is shrunk yet, and what is trusted is what the rounds would begin with.
        start, strength = mean, np.asarray(steady_penalty(scene.spec, n_sites, mean.shape[-1]))
    else:
        start, strength = family.to_noise(center[0], common), penalty[~scene.bad].max(axis=0)
    threshold = np.broadcast_to(strength[..., None] / np.sqrt(held), held.shape)
    # A rule that finds by itself how strongly to pull is told of rows, others of rows relative to an even share.
    known = held / mean.shape[-2] if scene.spec.estimates_pull else held
    theta = np.empty((n_sites, *mean.shape))
    theta[~scene.bad] = mean
    theta[np.flatnonzero(~scene.bad)[: len(honest)]] = honest
    everyone = np.ones(n_sites, dtype=bool)

    def along(distance: Array) -> Array:
        return np.asarray(mean + (distance * usual)[..., None] * direction)

    def ask(distance: Array) -> Centered:
        theta[scene.bad] = along(distance)
        return rule(theta, weight, threshold, known, start, everyone)

    return Probe(ask, mean, lambda distance: family.from_noise(along(distance), common))


@dataclass(frozen=True)
class EdgeOfTrust(ParamsAttack):
    """Just inside the distance at which the center trusts a site as much as the middle honest one, all together.

    The distance is found by bisection on the trust that the center rule says it gives; a rule that trusts everyone
    equally has no edge, and liars then go as far as is looked. With ``scatter``, they do not all say the same, but
    differ by as many honest standard deviations, always in the same way.
    """

    steps: int = 10
    scatter: float = 0.0

    def lie(self, params: Params, others: Crowd, scene: Scene) -> Params:
        seen = probe(others, scene)
        low, high = np.zeros(seen.honest.shape[:-1]), np.full(seen.honest.shape[:-1], FARTHEST)
        for step in range(self.steps):
            middle = high if step == 0 else 0.5 * (low + high)
            trust = np.broadcast_to(seen.ask(middle).trust, (len(scene.bad), *middle.shape))
            full = trust[scene.bad].min(axis=0) >= 0.99 * np.median(trust[~scene.bad], axis=0)
            low, high = np.where(full, middle, low), np.where(full, high, middle)
        told = all_alike(params, others.middle._replace(theta=seen.place(low)))
        if not self.scatter:
            return told
        theta = told.theta.copy()
        for k, generator in scene.each("scatter").items():
            own = generator.normal(size=theta.shape[-2:])
            theta[k] += self.scatter * others.deviation * own
        return told._replace(theta=theta)


@dataclass(frozen=True)
class WorstShift(ParamsAttack):
    """At the distance from which all bad sites together move the center most, whatever the rule is."""

    steps: int = 12

    def lie(self, params: Params, others: Crowd, scene: Scene) -> Params:
        seen = probe(others, scene)
        best, most = np.zeros(seen.honest.shape[:-1]), np.full(seen.honest.shape[:-1], -np.inf)
        for distance in np.geomspace(0.5, FARTHEST, self.steps):
            tried = np.full(best.shape, distance)
            moved = np.nan_to_num(row_norm(seen.ask(tried).center - seen.honest), nan=-np.inf)
            best, most = np.where(moved > most, tried, best), np.maximum(moved, most)
        return all_alike(params, others.middle._replace(theta=seen.place(best)))
