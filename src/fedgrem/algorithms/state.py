"""What FedGrEM's center remembers and says, and small steps of it that are of use elsewhere."""

from typing import NamedTuple

import numpy as np

from fedgrem.algorithms.base import Pull, on_center, vanished
from fedgrem.algorithms.extrapolation import Path
from fedgrem.types import Array, Central, Params

LEAST_STEP_SCALE = 0.02
"""A reported step scale below this is taken as this, so that no site can make itself arbitrarily heavy."""


class Told(NamedTuple):
    """What the center remembers of the sites where not all are asked in every round."""

    params: Params
    """(K, ...) as each site last sent them."""
    step_scale: Array
    """(K, ..., R) as each site last sent it."""
    known: Array
    """(K,) who has sent anything yet."""


class State(NamedTuple):
    """FedGrEM's own central state."""

    played: Array
    """() rounds so far."""
    penalty: Array
    """(...) lambda of the last round."""
    growth: Array
    """(...) what the recursion of lambda adds in every round."""
    of_weights: Array
    """(K, ...) lambda of the mixture weights."""
    counted: Array
    """(K,) rows that a site counts for at the center."""
    pull: Pull
    first_weights: Array | None
    """(K, ..., R) before round 1, by which the paper scales its steps; None where they are not used."""
    reference: Array | None
    """(..., C, s) the common noise of the starts, about which noises are shrunk; None if the noise is known."""
    path: Path | None = None
    """Of the center, to extrapolate; None if that is not done."""
    told: Told | None = None
    """What sites sent last; None where all are asked in every round."""
    between: Array | None = None
    """(..., R) the between-site variance in units of the noise; None where penalties decide."""
    trust: Array | None = None
    """(K, ..., R) how much each site is trusted; None likewise."""
    of_noise: tuple[Array, Array] | None = None
    """The same two of the noise."""
    lacking: Array | None = None
    """(K, R) which components a site lacks: it has no say in them; None where all sites have all."""
    doubt: Array | None = None
    """(..., R) how far a robust center contradicts that of penalties; None where these do not decide."""


class Toward(NamedTuple):
    """What a site is told besides its parameters: what pulls on it between its local steps."""

    center: Array
    """(R, q)"""
    penalty: Array
    """() lambda of the round, for this site."""
    noise: Array | None
    """(C, s) the common noise, in whose units distances count."""
    steps: Array
    """() how many local steps to take."""
    round: Array
    """() the number of the round, from which mini-batches are drawn."""
    first_weights: Array | None
    """(R,) as in :class:`State`."""
    weights: Array | None = None
    """(R,) the common weights; None unless weights may be pooled."""
    weights_penalty: Array | None = None
    """() lambda of the weights, for this site, 0 if they are its own; None unless weights may be pooled."""
    batch: Array | None = None
    """() share of the rows to use in a step; None where that is always 1."""
    between: Array | None = None
    """(R,) the between-site variance in units of the noise; None where the penalty alone decides."""
    trust: Array | None = None
    """(R,) in [0, 1], by which the pull on this site is multiplied; None where it is 1."""


def following(central: Central, center: Array, common: Array | None) -> Params:
    """What absent sites keep: their parameters, but those that sat on the center stay on it."""
    weights, theta, noise = central.params
    if noise is not None and central.noise is not None and common is not None:
        noise = np.where(on_center(noise, central.noise), common, noise)
    return Params(weights, np.where(on_center(theta, central.center), center, theta), noise)


def of_sites(penalty: Array, pulled: Array) -> Array:
    """(K, ...) the penalty of each site: none where it is not to be pulled, were it infinite for the others."""
    return np.where(pulled.reshape(-1, *(1,) * penalty.ndim), penalty, 0.0)


def along(of_sites: Array, weights: Array) -> Array:
    """What is known of sites (K,), ``(K, ..., 1)`` beside weights ``(K, ..., R)``."""
    return of_sites.reshape(-1, *(1,) * (weights.ndim - 1))


def bounded_scale(step_scale: Array) -> Array:
    """Scales of steps as they count at the center."""
    return np.asarray(np.minimum(np.maximum(step_scale, LEAST_STEP_SCALE), 1.0))


def reseeded(params: Params, center: Array, common: Array, n_rows: Array) -> Params:
    """Components of which a site holds less than one row begin again at the center, with the common noise."""
    assert params.noise is not None
    gone = vanished(params.weights, n_rows)[..., None]
    if not gone.any():
        return params
    # A noise that all components share is no component's own.
    noise = params.noise if common.shape[-2] == 1 else np.where(gone, common, params.noise)
    return params._replace(theta=np.where(gone, center, params.theta), noise=noise)
