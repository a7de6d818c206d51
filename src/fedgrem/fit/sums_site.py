"""What a site does where the center is only to see sums over sites: its tasks, and how an answer is masked.

A site still remembers nothing but its rows and a secret. Its parameters travel with the messages, sealed for itself.
Masks and seals hang on the whole conversation so far: a center that asks again with other words gets other masks, and
a site that is shown another past finds no seal that opens.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from fedgrem.algorithms.base import for_all
from fedgrem.algorithms.fedgrem import FedGrEM
from fedgrem.algorithms.state import Toward, bounded_scale, reseeded
from fedgrem.data.stack import Stack
from fedgrem.data.units import Census
from fedgrem.errors import InputError
from fedgrem.fit.spec import FitSpec
from fedgrem.fit.tasks import MOST_PER_ROW, TASKS, Candidates, PathRequest, ScoreRequest
from fedgrem.kernels.center import row_norm, shrink
from fedgrem.kernels.passes import ClippedSums, clipped
from fedgrem.types import Array, Broadcast, Params, Upload, map_arrays, named_arrays

NEAR_GUESS = 0.5
"""Noise units beyond which a site's displacement from a guess is clipped."""
MOST_NOISE = 0.5
"""To how much a displacement of the noise from that of a guess is clipped, in coordinates about it."""


# -- messages


class Common(NamedTuple):
    """What all sites are sent alike, and can know to be sent alike: their masks hang on it."""

    keys: Array
    """(K, 32) the sites' public keys."""
    here: Array
    """(K,) who is to be in the sum."""
    chain: Array
    """(32,) a hash of the conversation so far."""
    content: Any
    """What the task is given."""


class SumOrder(NamedTuple):
    """What a site is sent."""

    common: Common
    place: Array
    """() which of the sites it is."""
    sealed: Array | None
    """(b,) what it sealed for itself when it last answered."""


class SumReply(NamedTuple):
    """What it answers."""

    masked: Array
    """(m,) whole numbers modulo 2^64: noise, but for their sum over all sites that are here."""
    sealed: Array | None
    """(b,) what it wants to be sent with the next order."""


class KeyReply(NamedTuple):
    """The first answer."""

    key: Array
    """(32,) a public key, made for this fit."""
    width: Array
    """() columns of its rows, the response among them."""


class Frame(NamedTuple):
    """In which units a center is sought, and how strongly sites are pulled."""

    units: Array | None
    """(..., C, s) the common noise, in units of which component parameters are told."""
    reference: Array | None
    """(..., C, s) about which noises are told."""
    penalty: Array
    """(...) lambda."""
    noise_penalty: Array
    """(...)"""
    cap: Array
    """() rows for which a site counts at the most."""
    parts: Array
    """() 0 for all rows; else fits ``(2, ...)`` see the rows outside one of two of so many parts."""


class Point(NamedTuple):
    """A center within a frame."""

    theta: Array
    """(..., R, q)"""
    noise: Array | None
    """(..., C, s)"""


class Middle(NamedTuple):
    """Where the middle of the sites' summaries is sought: of a column's mean and log deviation, and of the log rows."""

    center: Array
    """(3, p)"""
    limit: Array
    """(3, p) beyond which a site's distance from it is clipped."""


class MiddleSums(NamedTuple):
    """What the sites say of it, in units of the limit."""

    n_sites: Array
    """(3, p) that have cells of a column."""
    first: Array
    second: Array
    n_rows: Array
    gaps: Array


class Guess(NamedTuple):
    """Joint starts."""

    params: Params
    """(M, R), (M, R, q)"""
    penalty: Array
    """()"""
    cap: Array


class GuessSums(NamedTuple):
    """Where the sites' rows would move them, and how they like them."""

    say: Array
    """()"""
    mass: Array
    """(M, R)"""
    slope: Array
    """(M, R, q)"""
    weights: Array
    """(M, R)"""
    noise: Array | None
    """(M, C, s)"""
    score: Array
    """(M,)"""


class Begin(NamedTuple):
    """The common start."""

    params: Params


class Round(NamedTuple):
    """The end of a round, and the next one."""

    frame: Frame
    """Of the round that ends."""
    found: Point
    """Its center."""
    next_frame: Frame
    start: Point
    """The same center in the next frame, where the next search begins."""
    number: Array
    """() of the next round, from 0."""
    steps: Array
    """() local steps."""
    total_rows: Array
    """() of all sites."""


class Pass(NamedTuple):
    """One more pass of the search for the center."""

    frame: Frame
    at: Point


class End(NamedTuple):
    """The last center."""

    frame: Frame
    found: Point


class PassSums(NamedTuple):
    """What a site adds to a pass."""

    theta: ClippedSums
    noise: ClippedSums | None


class RoundSums(NamedTuple):
    """What a site adds in a round."""

    first: PassSums
    unsettled: Array
    """() 1 if the site still moves."""
    log_likelihood: Array


class EndSums(NamedTuple):
    """What is said of the sites together at the end."""

    say: Array
    """()"""
    weights: Array
    """(R,) times say."""
    at_center: Array
    """(R,) how many sites sit on the center of a component."""
    log_likelihood: Array


class GainSums(NamedTuple):
    """What the sites gain on held-out rows by every penalty, and how these gains vary together."""

    n_sites: Array
    """()"""
    gain: Array
    """(M,)"""
    products: Array
    """(M, M)"""


class Held(NamedTuple):
    """What a site seals for itself."""

    here: Array
    """(K,) 1 for who was in the last sum: who has left does not come back."""
    before: Params
    """Before its last local steps, ``(..., R)``."""
    after: Params
    """After them."""
    step_scale: Array
    """(..., R)"""


# -- the work


Perform: TypeAlias = Callable[[FitSpec, Stack, str, Any], Any]
"""How a site does an ordinary task on its rows: a guarded one leaves out components of few rows."""


def plainly(spec: FitSpec, stack: Stack, task: str, mail: Any) -> Any:
    """Do an ordinary task with all rows."""
    return TASKS[task](spec, stack, mail)


@dataclass(frozen=True)
class Work:
    """A task: what it does for c sites, and whether it needs what they sealed."""

    do: Callable[[FitSpec, Any, Any, Any, Perform], tuple[Any, Held | None]]
    remembers: bool = True


def middle(spec: FitSpec, census: Census, held: None, content: Middle, perform: Perform) -> tuple[MiddleSums, None]:
    """Clipped distances of this site's column means, log deviations and log rows from where their middle is sought."""
    deviation = np.where(census.deviation > 0, census.deviation, np.nan)
    log_rows = np.broadcast_to(np.log(census.n_rows)[:, None], deviation.shape)
    value = np.stack([census.mean, np.log(deviation), log_rows], axis=1)
    there = np.isfinite(value)
    away = np.where(there, np.clip((value - content.center) / content.limit, -1.0, 1.0), 0.0)
    return MiddleSums(there * 1.0, away, away * away, census.n_rows, census.gaps * 1.0), None


def guess(spec: FitSpec, stack: Stack, held: None, content: Guess, perform: Perform) -> tuple[GuessSums, None]:
    """A few EM iterations from every joint start, and by how much the site's rows would move it."""
    family, count = spec.family, len(stack)
    sent: Params = map_arrays(lambda leaf: for_all(leaf, count), content.params)
    reply = perform(spec, stack, "joint_start", Candidates(sent, np.full(count, content.penalty)))
    here, n_rows = content.params, stack.n_rows
    say = np.minimum(n_rows, content.cap)
    start = family.to_noise(here.theta, here.noise)
    theta = family.to_noise(reply.params.theta, None if here.noise is None else here.noise[None])
    theta = np.where(np.isfinite(theta), theta, start)
    part = clipped(theta, np.broadcast_to(say[:, None, None], theta.shape[:-1]), np.asarray(NEAR_GUESS), start)
    noise = None
    if reply.params.noise is not None and here.noise is not None:
        away = np.nan_to_num(family.relative_noise(reply.params.noise, here.noise[None], stack.rows.shape[-1]))
        noise = say[:, None, None, None] * shortened(away, MOST_NOISE)
    value = np.nan_to_num(reply.log_likelihood / n_rows[:, None], nan=-1e6, neginf=-1e6)
    lead = np.clip(value - np.median(value, axis=1, keepdims=True), -MOST_PER_ROW, MOST_PER_ROW)
    weights = say[:, None, None] * np.nan_to_num(reply.params.weights)
    return GuessSums(say, part.mass, part.slope, weights, noise, say[:, None] * lead), None


def shortened(x: Array, most: float) -> Array:
    """Vectors along the last axis, clipped to a length."""
    length = row_norm(x)[..., None]
    return np.asarray(x * np.minimum(1.0, most / np.where(length > 0, length, 1.0)))


def begin(spec: FitSpec, stack: Stack, held: None, content: Begin, perform: Perform) -> tuple[Array, Held]:
    """Take up the common start."""
    params: Params = map_arrays(lambda leaf: for_all(leaf, len(stack)).copy(), content.params)
    return np.ones((len(stack), 1)), Held(np.zeros((len(stack), 0)), params, params, np.ones_like(params.weights))


def round_(spec: FitSpec, stack: Stack, held: Held, content: Round, perform: Perform) -> tuple[RoundSums, Held]:
    """Shrink to the center that was found, take local steps, and say how these pull on it."""
    frame = content.next_frame
    params = shrunk(spec, stack, held, content.frame, content.found)
    unsettled = moves(spec, stack, held, params, content)
    center = absolute(spec, frame, content.start, stack.rows.shape[-1])
    count = len(stack)
    toward = Toward(
        for_all(center.theta, count), for_all(frame.penalty, count),
        None if center.noise is None else for_all(center.noise, count),
        np.full(count, int(content.steps)), np.full(count, int(content.number)), None,
    )  # fmt: skip
    sent = Broadcast(params, toward)
    upload: Upload
    if int(frame.parts):
        upload = perform(spec, stack, "path_step", PathRequest(np.full(count, int(frame.parts)), sent)).fits
    else:
        upload = perform(spec, stack, "step", sent)
    now = Held(held.here, params, upload.params, upload.step_scale)
    reached = upload.log_likelihood.reshape(count, -1).sum(axis=1)
    return RoundSums(parts_of(spec, stack, now, frame, content.start), unsettled, reached), now


def pass_(spec: FitSpec, stack: Stack, held: Held, content: Pass, perform: Perform) -> tuple[PassSums, Held]:
    """Say how the site pulls on another center."""
    return parts_of(spec, stack, held, content.frame, content.at), held


def end(spec: FitSpec, stack: Stack, held: Held, content: End, perform: Perform) -> tuple[EndSums, Held]:
    """Shrink to the last center, and keep that."""
    params = shrunk(spec, stack, held, content.frame, content.found)
    center = absolute(spec, content.frame, content.found, stack.rows.shape[-1])
    there = (params.theta == center.theta).all(axis=-1)
    sums = spec.family.expect(stack, params)
    say = np.minimum(stack.n_rows, content.frame.cap)
    told = EndSums(say, say[:, None] * params.weights, there * 1.0, sums.log_likelihood)
    return told, held._replace(before=params, after=params)


def gain(spec: FitSpec, stack: Stack, held: Held, content: End, perform: Perform) -> tuple[GainSums, Held]:
    """What the site's held-out rows say of every penalty."""
    params = shrunk(spec, stack, held, content.frame, content.found)
    asked = ScoreRequest(np.full(len(stack), int(content.frame.parts)), params)
    found = perform(spec, stack, "path_score", asked).gain
    found = np.clip(np.nan_to_num(found, nan=-MOST_PER_ROW), -MOST_PER_ROW, MOST_PER_ROW)
    return GainSums(np.ones(len(stack)), found, found[:, :, None] * found[:, None, :]), held


# -- what these share


def absolute(spec: FitSpec, frame: Frame, point: Point, width: int) -> Params:
    """A center in the units of the fit, ``(..., R, q)``, ``(..., C, s)``; without weights."""
    units = None if frame.units is None else spec.family.open(None, frame.units, point.theta.shape[-1])
    noise = None
    if point.noise is not None and frame.reference is not None:
        noise = spec.family.absolute_noise(point.noise, frame.reference, width)
    return Params(np.zeros(0), spec.family.unwhiten(point.theta, units), noise)


class Pull(NamedTuple):
    """What pulls on the center."""

    value: Array
    weight: Array
    threshold: Array


def _rows(stack: Stack, frame: Frame, axes: int) -> Array:
    """(c, 1, ...) rows that a fit sees."""
    parts = int(frame.parts)
    return (stack.n_rows * (1.0 - 1.0 / parts if parts else 1.0)).reshape(-1, *(1,) * axes)


def pulls(spec: FitSpec, stack: Stack, held: Held, frame: Frame) -> tuple[Pull, Pull | None]:
    """Estimates in a frame, what they count for and how far they are shrunk: as FedGrEM's central step has it."""
    algorithm: Any = spec.algorithm
    family, after = spec.family, held.after
    units = None if frame.units is None else family.open(None, frame.units[None], after.theta.shape[-1])
    n_rows = _rows(stack, frame, after.weights.ndim - 1)
    counted, share = np.minimum(n_rows, frame.cap), algorithm.share(after.weights)
    scale = bounded_scale(held.step_scale)
    within = frame.penalty[..., None] / np.sqrt(n_rows * share)
    theta = Pull(family.whiten(after.theta, units), counted * share / scale, within * scale)
    if after.noise is None or frame.reference is None:
        return theta, None
    away = family.relative_noise(after.noise, frame.reference[None], after.theta.shape[-1])
    share = share if away.shape[-2] > 1 else np.ones(away.shape[:-1])
    within = frame.noise_penalty[..., None] / np.sqrt(n_rows * share)
    return theta, Pull(away, counted * share, within)


def parts_of(spec: FitSpec, stack: Stack, held: Held, frame: Frame, at: Point) -> PassSums:
    """What the sites add to a pass."""
    theta, noise = pulls(spec, stack, held, frame)
    return PassSums(clipped(*theta, at.theta), None if noise is None or at.noise is None else clipped(*noise, at.noise))


def shrunk(spec: FitSpec, stack: Stack, held: Held, frame: Frame, found: Point) -> Params:
    """The sites' parameters, shrunk to a center."""
    theta, noise = pulls(spec, stack, held, frame)
    family, width = spec.family, held.after.theta.shape[-1]
    center = absolute(spec, frame, found, width)
    units = None if frame.units is None else family.open(None, frame.units[None], width)

    def onto(pull: Pull, target: Array, back: Callable[[Array], Array], there: Array) -> Array:
        moved = shrink(pull.value, target, np.broadcast_to(pull.threshold, pull.value.shape[:-1]))
        return np.where((moved == target).all(axis=-1, keepdims=True), there, back(moved))

    params = held.after._replace(theta=onto(theta, found.theta, lambda t: family.unwhiten(t, units), center.theta))
    if noise is not None and found.noise is not None and center.noise is not None and frame.reference is not None:
        chart = frame.reference[None]
        own = onto(noise, found.noise, lambda a: family.absolute_noise(a, chart, width), center.noise)
        rows = _rows(stack, frame, 0)
        params = reseeded(params._replace(noise=own), center.theta, center.noise, rows)
    return params


def moves(spec: FitSpec, stack: Stack, held: Held, params: Params, content: Round) -> Array:
    """(c,) 1 for sites that have moved in the last round, relatively and in about their standard errors."""
    family, before = spec.family, held.before
    width = params.theta.shape[-1]
    rows = _rows(stack, content.frame, params.weights.ndim - 1)
    units = None if content.frame.units is None else family.open(None, content.frame.units[None], width)
    moved = params.theta - before.theta
    relative = row_norm(moved) / (1.0 + row_norm(before.theta))
    weights = np.abs(params.weights - before.weights)
    far = np.maximum(relative, weights)
    there = (params.theta == absolute(spec, content.frame, content.found, width).theta).all(axis=-1)
    known = np.maximum(params.weights * np.where(there, content.total_rows, rows), 1.0)
    spread = np.sqrt(np.maximum(params.weights * (1.0 - params.weights), 1.0 / rows) / rows)
    errors = np.maximum(row_norm(family.whiten(moved, units)) * np.sqrt(known), weights / spread)
    if params.noise is not None and before.noise is not None:
        noise = np.abs(params.noise - before.noise).max(axis=-1).max(axis=-1)[..., None]
        far, errors = np.maximum(far, noise), np.maximum(errors, noise * np.sqrt(2.0 * rows))
    axes = tuple(range(1, far.ndim))
    far, errors = far.max(axis=axes), errors.max(axis=axes)
    return np.where((far < spec.tol) | (errors < settled_errors(spec)), 0.0, 1.0)


def settled_errors(spec: FitSpec) -> float:
    """Standard errors by which a settled site may move in a round."""
    return min(0.003, 3000.0 * spec.tol)


WORK: dict[str, Work] = {
    "sum_middle": Work(middle, remembers=False),
    "sum_guess": Work(guess, remembers=False),
    "sum_begin": Work(begin, remembers=False),
    "sum_round": Work(round_),
    "sum_pass": Work(pass_),
    "sum_gain": Work(gain),
    "sum_end": Work(end),
}
KEYS = "sum_keys"
SUM_TASKS = (KEYS, *WORK)
OF_CENSUS = "sum_middle"
"""The task that is about the rows as they are, before units are agreed on."""


# -- an answer, and its mask


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


def check_spec(spec: FitSpec, what: str, remedy: str) -> None:
    """Refuse what cannot be found from sums, ``what`` they are made by; ``remedy`` is how to do without."""
    from fedgrem.algorithms.center_rules import EmpiricalBayes, Huber

    algorithm: Any = spec.algorithm
    if not isinstance(algorithm, FedGrEM) or type(algorithm.center_rule) not in (Huber, EmpiricalBayes):
        raise InputError(
            f"{what} find Huber's center, FedGrEM(center='huber'); other algorithms and center rules need to see "
            f"single sites. Leave out algorithm, or {remedy}."
        )
    if algorithm.batch < 1.0 or algorithm.sites < 1.0 or algorithm.step_weights != "current":
        raise InputError(f"{what} take all rows of all sites in every round; leave out batch, sites, step_weights.")
    if spec.units.within:
        raise InputError(f"{what} do not go with intercept='site' yet; leave it out, or {remedy}.")
    if spec.penalty == 0:
        raise InputError("with penalty=0 sites share nothing, and there is nothing to sum; give a penalty above 0.")
    if spec.family.name not in ("gaussian", "regression"):
        raise InputError(
            f"{what} begin at a common start, which is known for Gaussians and regressions and not for "
            f"{spec.family.name!r}; {remedy}."
        )
