"""A site's answer in a fit of sums: what it holds is sealed for itself, and what it says opens in a sum only."""

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from fedgrem.data.stack import Stack
from fedgrem.data.units import Census
from fedgrem.errors import InputError
from fedgrem.fit.spec import FitSpec
from fedgrem.fit.sums_messages import (
    Common,
    Held,
    KeyReply,
    Pass,
    Point,
    SumOrder,
    SumReply,
)
from fedgrem.fit.sums_site import WORK, Perform, plainly
from fedgrem.types import Array, Params, map_arrays, named_arrays


def link(task: str, common: Common) -> bytes:
    """The next hash of the conversation."""
    found = hashlib.sha256(task.encode())
    for name, leaf in named_arrays(common):
        array = np.ascontiguousarray(leaf)
        found.update(f"{name} {array.dtype.str} {array.shape} ".encode() + array.tobytes())
    return found.digest()


def key_reply(secret: bytes, width: int) -> KeyReply:
    """The public key of a site, and how many columns it has."""
    from fedgrem.kernels.masks import public_key

    return KeyReply(np.frombuffer(public_key(secret), dtype=np.uint8), np.asarray(width))


def check_order(order: SumOrder, secret: bytes, name: str) -> None:
    """Refuse an order whose answer would show more than a sum over three sites, this one among them."""
    from fedgrem.kernels.masks import FEWEST, public_key

    keys, here, place = order.common.keys, order.common.here, int(order.place)
    if not 0 <= place < len(keys) or not here[place] or keys[place].tobytes() != public_key(secret):
        raise InputError(f"the order is not for {name!r}: its own public key is not in its place.")
    if here.sum() < FEWEST or len({key.tobytes() for key in keys[here]}) < here.sum():
        raise InputError(
            f"the order asks {name!r} for a sum over {int(here.sum())} sites; at least {FEWEST} it must be."
        )


def answer(
    spec: FitSpec, task: str, rows: Stack | Census, orders: Sequence[SumOrder], names: Sequence[str],
    secrets: Sequence[bytes], perform: Perform = plainly, agreed: bytes = b"",
) -> tuple[list[SumReply], Held | None]:  # fmt: skip
    """The masked answers of some sites to one task, and what they hold after it, which nobody else can read.

    Masks and seals also hang on what was ``agreed`` besides: two answers in two units must not have the same mask.
    """
    from fedgrem.kernels.masks import derive, mask, seal, to_whole, unseal

    work, common = WORK[task], orders[0].common
    for order, secret, name in zip(orders, secrets, names, strict=True):
        check_order(order, secret, name)
    held = None
    if work.remembers:
        like = held_like(common)
        texts = []
        for order, secret, name in zip(orders, secrets, names, strict=True):
            if order.sealed is None:
                raise InputError(f"the order for {name!r} lacks what the site sealed for itself.")
            texts.append(unseal(derive(secret, b"seal", common.chain.tobytes(), agreed), order.sealed.tobytes()))
        held = unpack(np.stack([np.frombuffer(text) for text in texts]), like)
        if np.any(common.here > held.here):
            raise InputError("a site that has left the fit is to be in a sum again; a lost site stays out.")
    numbers, now = work.do(spec, rows, held, common.content, perform)
    flat = packed(numbers)
    if now is not None:
        now = now._replace(here=np.repeat(common.here[None] * 1.0, len(names), axis=0))
    digest, keys = link(task, common), [key.tobytes() for key in common.keys]
    told = []
    for k, (order, secret, name) in enumerate(zip(orders, secrets, names, strict=True)):
        whole = to_whole(flat[k], len(keys), name)
        hidden = whole + mask(secret, int(order.place), keys, common.here, digest + agreed, len(whole))
        sealed = None
        if now is not None:
            text = packed(map_arrays(lambda leaf, k=k: leaf[k : k + 1], now))[0].tobytes()
            sealed = np.frombuffer(seal(derive(secret, b"seal", digest, agreed), text), dtype=np.uint8)
        told.append(SumReply(hidden.view(np.int64), sealed))
    return told, now


def held_like(common: Common) -> Held:
    """Zeros of the shapes of what one site holds, from what all are sent."""
    found: Any = common.content
    point: Point = found.at if isinstance(found, Pass) else found.found
    params = Params(np.zeros(point.theta.shape[:-1]), point.theta, point.noise)
    return Held(np.zeros(common.here.shape), params, params, params.weights)


def packed(message: Any) -> Array:
    """All numbers of c sites, ``(c, m)``."""
    return np.concatenate([leaf.reshape(len(leaf), -1) for _, leaf in named_arrays(message)], axis=1)


def unpack(flat: Array, like: Any) -> Any:
    """The messages of c sites, of the shapes of ``like``, from their numbers ``(c, m)``."""
    place = 0

    def take(leaf: Array) -> Array:
        nonlocal place
        place += leaf.size
        return flat[:, place - leaf.size : place].reshape(len(flat), *leaf.shape)

    return map_arrays(take, like)


def unpacked(flat: Array, like: Any) -> Any:
    """One message of the shapes of ``like`` from its numbers ``(m,)``."""
    return map_arrays(lambda leaf: leaf[0], unpack(flat[None], like))
