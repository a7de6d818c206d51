"""Attacks on the parameters that sites send: the field's own, and those that only mixtures know."""

from dataclasses import dataclass

import numpy as np

from fedgrem.attacks.base import Crowd, ParamsAttack, Scene, all_alike, find, rewrite
from fedgrem.fit.conversation import Replies
from fedgrem.kernels.center import row_norm
from fedgrem.types import Array, Params, map_arrays


@dataclass(frozen=True)
class SignFlip(ParamsAttack):
    """Send the negative of one's component parameters, ``strength`` times."""

    strength: float = 1.0

    def lie(self, params: Params, others: Crowd, scene: Scene) -> Params:
        return params._replace(theta=-self.strength * params.theta)


@dataclass(frozen=True)
class Noise(ParamsAttack):
    """Add Gaussian noise, ``size`` times the honest standard deviation of every number, drawn anew every time."""

    size: float = 10.0

    def lie(self, params: Params, others: Crowd, scene: Scene) -> Params:
        for k, generator in scene.each("noise", scene.number).items():
            params.theta[k] += self.size * others.deviation * generator.normal(size=params.theta[k].shape)
        return params


@dataclass(frozen=True)
class ALIE(ParamsAttack):
    r"""A little is enough: all bad sites send :math:`\mu - z\sigma` of the honest, coordinate by coordinate."""

    z: float = 1.5

    def lie(self, params: Params, others: Crowd, scene: Scene) -> Params:
        return all_alike(params, others.middle._replace(theta=others.mean - self.z * others.deviation))


@dataclass(frozen=True)
class IPM(ParamsAttack):
    r"""Inner product manipulation: send the honest mean step backwards, :math:`c - \epsilon(\mu - c)`.

    The step is that from what the honest sites were sent; where nothing was sent yet, from zero. Without ``epsilon``,
    half as much again as it takes to turn a plain mean around: :math:`1.5` times honest sites over bad ones.
    """

    epsilon: float | None = None

    def lie(self, params: Params, others: Crowd, scene: Scene) -> Params:
        epsilon = 1.5 * len(others.theta) / max(1, int(scene.bad.sum())) if self.epsilon is None else self.epsilon
        sent = sent_to_honest(params, scene)
        if sent is None:
            sent, epsilon = np.zeros_like(others.mean), min(epsilon, 1.0)
        return all_alike(params, others.middle._replace(theta=sent - epsilon * (others.mean - sent)))


def sent_to_honest(params: Params, scene: Scene) -> Array | None:
    """The mean of the component parameters that honest sites were sent, ``(..., R, q)``; None if there were none."""
    sent = find(scene.ask.mail, "params") or find(scene.ask.mail, "fits")
    theta = find(sent, "theta") if isinstance(sent, tuple) else None
    if theta is None or theta.shape != params.theta.shape:
        return None
    return np.asarray(theta[~scene.bad].mean(axis=0))


@dataclass(frozen=True)
class MinMax(ParamsAttack):
    """As far from the honest mean as possible, and from no honest site farther than these are from each other."""

    def lie(self, params: Params, others: Crowd, scene: Scene) -> Params:
        toward = -others.deviation / np.maximum(others.distance, 1e-300)[..., None]
        away = others.mean - others.theta
        widest = np.max(row_norm(others.theta[:, None] - others.theta[None]), axis=(0, 1))
        # |away + g toward|^2 = widest^2 for every honest site; the least root binds.
        along = (away * toward).sum(axis=-1)
        room = np.maximum(widest**2 - (away**2).sum(axis=-1) + along**2, 0.0)
        length = np.maximum((np.sqrt(room) - along).min(axis=0), 0.0)
        return all_alike(params, others.middle._replace(theta=others.mean + length[..., None] * toward))


@dataclass(frozen=True)
class Mimic:
    """All bad sites send what one honest site sends: the one that is farthest out along the widest direction."""

    def __call__(self, replies: Replies, scene: Scene) -> Replies:
        honest = np.flatnonzero(scene.honest(replies))
        params = find(replies.mail, "params")
        if len(honest) < 2:
            return replies
        model = int(honest[0])
        if params is not None and scene.ask.task not in ("start",):
            flat = params.theta[honest].reshape(len(honest), -1)
            flat = flat - flat.mean(axis=0)
            # The left singular vector of the largest singular value holds the projections on the widest direction.
            model = int(honest[np.abs(np.linalg.svd(flat, full_matrices=False)[0][:, 0]).argmax()])

        # All but the number of rows, which a site has told before.
        mail = rewrite(replies.mail, "n_rows", lambda own: own, lambda leaf: np.broadcast_to(leaf[model], leaf.shape))
        return replies._replace(mail=mail)


@dataclass(frozen=True)
class PermutedLabels(ParamsAttack):
    """Relabel one's components anew in every message."""

    def lie(self, params: Params, others: Crowd, scene: Scene) -> Params:
        for k, generator in scene.each("labels", scene.number).items():
            order = generator.permutation(params.weights.shape[-1])
            params.weights[k], params.theta[k] = params.weights[k][..., order], params.theta[k][..., order, :]
            if params.noise is not None and params.noise.shape[-2] == len(order):
                params.noise[k] = params.noise[k][..., order, :]
        return params


@dataclass(frozen=True)
class Collapse(ParamsAttack):
    """Send the same component R times: the mean of all honest ones."""

    def lie(self, params: Params, others: Crowd, scene: Scene) -> Params:
        middle = others.middle
        return all_alike(params, middle._replace(theta=np.repeat(
            middle.theta.mean(axis=-2, keepdims=True), middle.theta.shape[-2], axis=-2
        )))  # fmt: skip


@dataclass(frozen=True)
class Shift(ParamsAttack):
    """All bad sites send the honest mean, moved by ``size`` times the usual honest distance in a common direction."""

    size: float = 2.0

    def lie(self, params: Params, others: Crowd, scene: Scene) -> Params:
        away = self.size * others.distance[..., None] * common_direction(others.mean, scene)
        return all_alike(params, others.middle._replace(theta=others.mean + away))


def common_direction(like: Array, scene: Scene) -> Array:
    """A unit vector for every component ``(..., R, q)``, the same in all exchanges and at all sites."""
    direction = scene.generator("direction").normal(size=like.shape[-2:])
    return np.broadcast_to(direction / row_norm(direction)[..., None], like.shape)


@dataclass(frozen=True)
class PoisonedComponents(ParamsAttack):
    """Mixtures that are nowhere near: every component drawn ``size`` honest widths away, the same at all bad sites."""

    size: float = 5.0

    def lie(self, params: Params, others: Crowd, scene: Scene) -> Params:
        middle = others.mean.mean(axis=-2, keepdims=True)
        width = np.sqrt(((others.mean - middle) ** 2).mean()) + np.sqrt((others.deviation**2).mean())
        drawn = scene.generator("poison").normal(size=others.mean.shape[-2:])
        return all_alike(params, others.middle._replace(theta=middle + self.size * width * drawn))


@dataclass(frozen=True)
class Constant(ParamsAttack):
    """Every component parameter is one value: 1e200, NaN, infinity."""

    value: float = 1e200

    def lie(self, params: Params, others: Crowd, scene: Scene) -> Params:
        return params._replace(theta=np.full_like(params.theta, self.value))


@dataclass(frozen=True)
class OneCell(ParamsAttack):
    """A single number of the message is this value, all others are honest."""

    value: float = 1e200

    def lie(self, params: Params, others: Crowd, scene: Scene) -> Params:
        params.theta[..., 0, 0] = self.value
        return params


@dataclass(frozen=True)
class PiledWeight(ParamsAttack):
    """Claim all rows for one component; the others keep ``rest`` of the weight among them."""

    component: int = 0
    rest: float = 0.01

    def lie(self, params: Params, others: Crowd, scene: Scene) -> Params:
        weights = np.full_like(params.weights, self.rest / max(1, params.weights.shape[-1] - 1))
        weights[..., self.component] = 1.0 - weights.sum(axis=-1) + weights[..., self.component]
        return params._replace(weights=weights)


@dataclass(frozen=True)
class Restless(ParamsAttack):
    """Never settle: every message is moved by ``size``, relative, in a direction of its own."""

    size: float = 0.02

    def lie(self, params: Params, others: Crowd, scene: Scene) -> Params:
        for k, generator in scene.each("restless", scene.number).items():
            step = generator.normal(size=params.theta[k].shape)
            length = self.size * (1.0 + row_norm(params.theta[k])) / row_norm(step)
            params.theta[k] += length[..., None] * step
        return params


@dataclass(frozen=True)
class Stale(ParamsAttack):
    """Send back what one was sent, as if there were nothing to learn from one's rows."""

    def lie(self, params: Params, others: Crowd, scene: Scene) -> Params:
        sent = find(scene.ask.mail, "fits") or scene.ask.mail
        sent = sent if isinstance(sent, Params) else find(sent, "params")
        if sent is None or sent.theta.shape != params.theta.shape:
            return params
        found: Params = map_arrays(lambda leaf, echo: leaf if echo is None else echo, params, sent)
        return found
