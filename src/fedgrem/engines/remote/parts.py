"""An order about some of its components, and an answer to it that is about all of them again."""

from typing import Any

import numpy as np

from fedgrem.algorithms.state import Toward
from fedgrem.errors import FedGrEMError
from fedgrem.fit.births import Bases, Prices
from fedgrem.fit.spec import FitSpec
from fedgrem.fit.tasks import Information, PathRequest, ScoreRequest, StartRequest
from fedgrem.kernels.triangle import symmetric
from fedgrem.types import Array, Broadcast, Params, map_arrays

NOBODY = 1e-6
"""The weight that a site reports of a component below its floor, if that is less than half a row."""


class BelowFloorError(FedGrEMError):
    """What was asked cannot be answered from enough rows."""


def of_some(params: Params, keep: Array) -> Params:
    """Mixtures ``(..., R)`` of some of their components; the weights of the others are shared out.

    Examples
    --------
    >>> params = Params(np.array([0.2, 0.6, 0.2]), np.array([[9.0], [1.0], [2.0]]))
    >>> of_some(params, np.array([False, True, True])).weights.round(3).tolist()
    [0.75, 0.25]
    """
    if keep.all():
        return params
    noise = params.noise
    if noise is not None and noise.shape[-2] == len(keep):
        noise = noise[..., keep, :]
    return Params(_shared_out(params.weights[..., keep]), params.theta[..., keep, :], noise)


def _shared_out(weights: Array) -> Array:
    total = weights.sum(axis=-1, keepdims=True)
    even = np.full(weights.shape, 1.0 / weights.shape[-1])
    return np.where(total > 0, weights / np.where(total > 0, total, 1.0), even)


def without(mail: Any, few: Array) -> Any:
    """An order about the other components only."""
    if not few.any():
        return mail
    keep = ~few
    if isinstance(mail, Params):
        return of_some(mail, keep)
    if isinstance(mail, PathRequest | ScoreRequest):
        return mail._replace(fits=without(mail.fits, few))
    if isinstance(mail, StartRequest):
        noise = mail.noise
        return mail if noise is None or noise.shape[-2] != len(few) else mail._replace(noise=noise[..., keep, :])
    if isinstance(mail, Broadcast):
        return mail._replace(params=of_some(mail.params, keep), extra=_extra_without(mail.extra, keep))
    kept = mail._replace(params=of_some(mail.params, keep))
    if isinstance(mail, Bases):
        return kept._replace(between=mail.between[..., keep])
    return kept._replace(price=mail.price[..., keep]) if isinstance(mail, Prices) else kept


def _extra_without(extra: Any, keep: Array) -> Any:
    if not len(extra):
        return extra
    if not isinstance(extra, Toward):
        raise BelowFloorError("a component holds fewer rows than the floor, and this algorithm does not do without it.")
    noise, weights = extra.noise, extra.weights
    first, between, trust = (
        None if leaf is None else leaf[..., keep] for leaf in (extra.first_weights, extra.between, extra.trust)
    )
    return extra._replace(
        center=extra.center[..., keep, :],
        noise=noise if noise is None or noise.shape[-2] != len(keep) else noise[..., keep, :],
        first_weights=first,
        between=between,
        trust=trust,
        weights=None if weights is None else _shared_out(weights[..., keep]),
    )


def completed(spec: FitSpec, reply: Any, sent: Params | None, few: Array) -> Any:
    """The answer with what was sent in the places of the components that were left out."""
    if isinstance(reply, Information):
        assert sent is not None
        return _uninformed(reply, sent, few)
    part = getattr(reply, "fits", reply)
    params = getattr(part, "params", None)
    if params is None:
        return reply
    if sent is None:
        sites, largest = np.arange(len(params.weights)), params.weights.argmax(axis=-1)
        instead = map_arrays(lambda leaf: leaf[sites, np.minimum(largest, leaf.shape[1] - 1)][:, None], params)
    elif sent.weights.ndim > params.weights.ndim:  # of several candidates the one that was chosen
        sites = np.arange(len(reply.choice))
        instead = map_arrays(lambda leaf: leaf[sites, np.minimum(reply.choice, leaf.shape[1] - 1)], sent)
    else:
        instead = sent
    n_rows = part.n_rows.reshape(*part.n_rows.shape, *(1,) * (params.weights.ndim - part.n_rows.ndim))
    nobody = np.minimum(NOBODY, 0.5 / np.maximum(n_rows, 1.0)) * np.ones(len(few))
    if sent is not None:
        nobody = np.where(instead.weights > 0, nobody, 0.0)  # what a site lacks, it goes on to lack
    told = params.weights * (1.0 - nobody[..., few].sum(axis=-1, keepdims=True))
    weights = put(nobody[..., None], told[..., None], few)[..., 0]
    shape = spec.family.noise_shape(2, 1)
    noise = params.noise
    if noise is not None and shape is not None and shape[0] > 1:
        noise = put(instead.noise, noise, few)
    part = part._replace(params=Params(weights, put(instead.theta, params.theta, few), noise))
    if hasattr(part, "step_scale"):
        part = part._replace(step_scale=put(np.ones(1), part.step_scale[..., None], few)[..., 0])
    return reply._replace(fits=part) if hasattr(reply, "fits") else part


def put(instead: Any, found: Array, few: Array) -> Array:
    """What was found for some components, ``(..., R', q)``, and something else for the others, ``(..., R, q)``."""
    whole = np.array(np.broadcast_to(instead, (*found.shape[:-2], len(few), found.shape[-1])))
    whole[..., ~few, :] = found
    return whole


def _uninformed(reply: Information, sent: Params, few: Array) -> Information:
    """Information that says nothing of some components."""
    keep, size = ~few, sent.theta.shape[-1]
    whole = np.zeros((len(reply.packed), *(len(few) * (1 + size),) * 2))
    places = np.flatnonzero(np.concatenate([keep, np.repeat(keep, size)]))
    whole[np.ix_(np.arange(len(whole)), places, places)] = symmetric(reply.packed)
    i, j = np.tril_indices(whole.shape[-1])
    weights = put(np.zeros(1), reply.params.weights[..., None], few)[..., 0]
    return reply._replace(params=Params(weights, sent.theta), packed=whole[:, i, j])
