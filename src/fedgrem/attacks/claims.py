"""Lies about everything but the parameters: sizes, step scales, likelihoods, gains; and no answer at all."""

from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from fedgrem.attacks.base import Scene, find, rewrite
from fedgrem.fit.conversation import Replies
from fedgrem.fit.tasks import MOST_PER_ROW
from fedgrem.types import Array, map_arrays


@dataclass(frozen=True)
class FalseSize:
    """Claim ``factor`` times one's rows, or ``rows`` of them, and likelihoods to match; in every message."""

    factor: float = 10.0
    rows: float | None = None

    def __call__(self, replies: Replies, scene: Scene) -> Replies:
        true = find(replies.mail, "n_rows")
        if true is None:
            return replies
        factor = np.full(len(true), self.factor) if self.rows is None else self.rows / true

        def scaled(leaf: Array) -> Array:
            return np.asarray(leaf * factor.reshape(-1, *(1,) * (leaf.ndim - 1)))

        mail = replies.mail
        for role in ("n_rows", "log_likelihood", "at_center", "entropy", "packed"):
            mail = rewrite(mail, role, scaled)
        return replies._replace(mail=mail)


@dataclass(frozen=True)
class StepScale:
    """Report steps shorter than they are: a center that weighs by their inverse would weigh this site more."""

    value: float = 1e-9

    def __call__(self, replies: Replies, scene: Scene) -> Replies:
        return replies._replace(mail=rewrite(replies.mail, "step_scale", lambda s: np.full_like(s, self.value)))


@dataclass(frozen=True)
class LyingGains:
    """Held-out gains made up: that the strongest pull serves best, or that fitting alone does; surely."""

    favour: Literal["strong", "none"] = "strong"

    def __call__(self, replies: Replies, scene: Scene) -> Replies:
        if find(replies.mail, "gain") is None:
            return replies

        def gain(true: Array) -> Array:
            slope = np.linspace(0.0, MOST_PER_ROW, true.shape[-1])
            return np.broadcast_to(slope if self.favour == "strong" else -slope, true.shape)

        mail = rewrite(replies.mail, "gain", gain)
        return replies._replace(mail=rewrite(mail, "error", lambda error: np.full_like(error, 1e-3)))


@dataclass(frozen=True)
class LyingLikelihoods:
    """Log-likelihoods made up: the worst start is called the best one, and every fit ``lead`` per row too good."""

    lead: float = 100.0

    def __call__(self, replies: Replies, scene: Scene) -> Replies:
        n_rows = find(replies.mail, "n_rows")

        def turned(true: Array) -> Array:
            if true.ndim > 1:
                return np.asarray(true.min(axis=-1, keepdims=True) + true.max(axis=-1, keepdims=True) - true)
            return np.asarray(true + self.lead * n_rows)

        return replies._replace(mail=rewrite(replies.mail, "log_likelihood", turned))


@dataclass(frozen=True)
class LyingInformation:
    """Claim to know every parameter ``factor`` times as well as one does."""

    factor: float = 1e6

    def __call__(self, replies: Replies, scene: Scene) -> Replies:
        return replies._replace(mail=rewrite(replies.mail, "packed", lambda packed: self.factor * packed))


@dataclass(frozen=True)
class LyingCensus:
    """Report columns ``factor`` times as far out and as wide as they are, so that common units are wrong."""

    factor: float = 1e6

    def __call__(self, replies: Replies, scene: Scene) -> Replies:
        if scene.ask.task != "census":
            return replies
        mail = rewrite(replies.mail, "mean", lambda mean: self.factor * (1.0 + mean))
        return replies._replace(mail=rewrite(mail, "deviation", lambda deviation: self.factor * deviation))


@dataclass(frozen=True)
class Silent:
    """No answer where an answer may be missing: in rounds and after them; ``every`` second time, third, and so on.

    Before the rounds a site that is silent is no part of the fit, which harms nobody.
    """

    every: int = 1

    def __call__(self, replies: Replies, scene: Scene) -> Replies:
        if not scene.ask.optional or scene.number % self.every:
            return replies
        return replies._replace(present=np.zeros_like(replies.present))


@dataclass(frozen=True)
class Fuzz:
    """Any number of a reply replaced, with chance ``share``, by one of the worst there are."""

    share: float = 0.05
    values: tuple[float, ...] = field(default=(0.0, -1.0, 1e6, -1e6, 1e100, -1e200, 1e308, 1e-308, np.nan, np.inf))

    def __call__(self, replies: Replies, scene: Scene) -> Replies:
        generators = scene.each("fuzz", scene.number)

        def struck(leaf: Array) -> Array:
            found = leaf.copy()
            for k, generator in generators.items() if leaf.dtype.kind == "f" else ():
                hit = generator.random(leaf[k].shape) < self.share
                found[k] = np.where(hit, generator.choice(self.values, size=leaf[k].shape), leaf[k])
            return found

        return replies._replace(mail=map_arrays(struck, replies.mail))
