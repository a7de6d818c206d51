"""What an attack is: a function that rewrites what bad sites answer, and knows everything while it does so."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from fedgrem.fit.conversation import Ask, Replies
from fedgrem.fit.spec import FitSpec
from fedgrem.kernels.matching import best_assignment, relabel
from fedgrem.kernels.randomness import generator_for
from fedgrem.types import Array, Params, map_arrays

START_TASKS = ("start", "compare", "joint_start")
UNLABELLED = ("start",)
"""Tasks in whose replies components have not been matched yet."""


class Scene(NamedTuple):
    """All that an omniscient adversary knows of one exchange besides the replies."""

    ask: Ask
    spec: FitSpec
    names: tuple[str, ...]
    bad: Array
    """(K,) whose replies it writes."""
    n_rows: Array
    """(K,) how many rows every site truly has."""
    number: int
    """Of the exchange, from 0."""
    seed: int

    def generator(self, purpose: str, *more: object) -> np.random.Generator:
        """Random numbers that all bad sites share."""
        return generator_for(self.seed, "", "attack", purpose, *more)

    def each(self, purpose: str, *more: object) -> dict[int, np.random.Generator]:
        """Random numbers of every bad site."""
        places = np.flatnonzero(self.bad).tolist()
        return {k: generator_for(self.seed, self.names[k], "attack", purpose, *more) for k in places}

    def honest(self, replies: Replies) -> Array:
        """(K,) who answered and is not bad."""
        return replies.present & ~self.bad


class MessageAttack(Protocol):
    """A value that rewrites replies. Whatever it does to the part of an honest site is ignored."""

    def __call__(self, replies: Replies, scene: Scene) -> Replies:
        """The replies of everyone, those of the bad sites rewritten."""
        ...


def among(honest: Replies, lies: Replies, bad: Array) -> Replies:
    """The honest replies with the bad sites' part of the lies."""

    def pick(told: Array, lie: Array) -> Array:
        return np.where(bad.reshape(-1, *(1,) * (told.ndim - 1)), lie, told)

    present = np.where(bad, lies.present & honest.present, honest.present)
    return Replies(present, map_arrays(pick, honest.mail, lies.mail))


def rewrite(message: Any, role: str, function: Callable[[Any], Any], others: Callable[[Any], Any] | None = None) -> Any:
    """A message with the fields of this name replaced, wherever in its tree they are; and ``others`` of all else.

    Examples
    --------
    >>> from fedgrem.types import Upload
    >>> upload = Upload(Params(np.ones(1), np.ones((1, 1))), np.ones(1), np.array(3.0), np.array(0.0))
    >>> float(rewrite(upload, "n_rows", lambda n: 10 * n).n_rows)
    30.0
    """
    if message is None or not isinstance(message, tuple):
        return message if message is None or others is None else others(message)
    names = getattr(message, "_fields", (None,) * len(message))
    parts = [
        function(part) if name == role and part is not None else rewrite(part, role, function, others)
        for name, part in zip(names, message, strict=True)
    ]
    return type(message)(*parts) if hasattr(message, "_fields") else tuple(parts)


def find(message: Any, role: str) -> Any:
    """The field of this name in the tree of a message, the outermost if there are several; None where there is none.

    Examples
    --------
    >>> find(Params(np.ones(1), np.full((1, 1), 4.0)), "theta").tolist()
    [[4.0]]
    """
    if not isinstance(message, tuple):
        return None
    own = getattr(message, role, None) if role in getattr(message, "_fields", ()) else None
    inner = (find(part, role) for part in message)
    return own if own is not None else next((found for found in inner if found is not None), None)


class Crowd(NamedTuple):
    """The honest estimates of an exchange, with the labels of the first honest site."""

    theta: Array
    """(H, ..., R, q)"""
    weights: Array
    """(H, ..., R)"""
    noise: Array | None

    @property
    def mean(self) -> Array:
        """Over the sites, ``(..., R, q)``."""
        return np.asarray(self.theta.mean(axis=0))

    @property
    def deviation(self) -> Array:
        """Standard deviations over the sites, ``(..., R, q)``."""
        return np.asarray(self.theta.std(axis=0))

    @property
    def distance(self) -> Array:
        """Root mean square distance from the mean, ``(..., R)``."""
        return np.asarray(np.sqrt((self.deviation**2).sum(axis=-1)))

    @property
    def middle(self) -> Params:
        """What a site in the middle would send: means, and the medians of what has no honest mean."""
        weights = self.weights.mean(axis=0)
        noise = None if self.noise is None else np.median(self.noise, axis=0)
        return Params(weights / weights.sum(axis=-1, keepdims=True), self.mean, noise)


def crowd(params: Params, honest: Array, task: str) -> Crowd:
    """The honest part of stacked parameters ``(K, ...)``; sites whose components are not matched yet are matched."""
    own: Params = map_arrays(lambda leaf: leaf[honest], params)
    if task in UNLABELLED and len(own.theta):
        order = np.stack([best_assignment(theta, own.theta[:1]) for theta in own.theta])
        count = order.shape[1]
        own = map_arrays(lambda leaf: relabel(leaf, order) if leaf.shape[1] == count else leaf, own)
    return Crowd(own.theta, own.weights, own.noise)


class ParamsAttack:
    """An attack on mixtures, whatever message they travel in."""

    def __call__(self, replies: Replies, scene: Scene) -> Replies:
        """Rewrite the parameters of every reply that has some."""
        honest = scene.honest(replies)
        if not honest.any():
            return replies

        def lie(params: Params) -> Params:
            told: Params = map_arrays(np.copy, params)
            return self.lie(told, crowd(params, honest, scene.ask.task), scene)

        return replies._replace(mail=rewrite(replies.mail, "params", lie))

    def lie(self, params: Params, others: Crowd, scene: Scene) -> Params:
        """Stacked parameters ``(K, ...)`` with those of the bad sites rewritten."""
        raise NotImplementedError


def all_alike(params: Params, lie: Params) -> Params:
    """Every site sends the same mixture ``(..., R), (..., R, q)``."""
    found: Params = map_arrays(lambda leaf, same: np.broadcast_to(same, leaf.shape), params, lie)
    return found


@dataclass(frozen=True)
class Together:
    """Several attacks at once, one after the other: the same sites do all of them."""

    attacks: tuple[MessageAttack, ...]

    def __init__(self, *attacks: MessageAttack) -> None:
        object.__setattr__(self, "attacks", attacks)

    def __call__(self, replies: Replies, scene: Scene) -> Replies:
        for attack in self.attacks:
            replies = among(replies, attack(replies, scene), scene.bad)
        return replies


@dataclass(frozen=True)
class Only:
    """An attack in some tasks only; the sites are honest in all others."""

    attack: MessageAttack
    tasks: tuple[str, ...]

    def __call__(self, replies: Replies, scene: Scene) -> Replies:
        return self.attack(replies, scene) if scene.ask.task in self.tasks else replies


@dataclass(frozen=True)
class Divided:
    """The bad sites divided among several attacks: each site does one, in turn."""

    attacks: tuple[MessageAttack, ...]

    def __init__(self, *attacks: MessageAttack) -> None:
        object.__setattr__(self, "attacks", attacks)

    def __call__(self, replies: Replies, scene: Scene) -> Replies:
        found, places = replies, np.flatnonzero(scene.bad)
        for number, attack in enumerate(self.attacks):
            mine = np.zeros_like(scene.bad)
            mine[places[number :: len(self.attacks)]] = True
            found = among(found, attack(replies, scene), mine)
        return found
