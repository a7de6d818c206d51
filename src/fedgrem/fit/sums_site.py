"""What a site does where the center is only to see sums over sites: its tasks.

A site still remembers nothing but its rows and a secret. Its parameters travel with the messages, sealed for itself.
Masks and seals hang on the whole conversation so far: a center that asks again with other words gets other masks, and
a site that is shown another past finds no seal that opens.
"""

from collections.abc import Callable
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
from fedgrem.fit.sums_messages import (
    Begin,
    End,
    EndSums,
    Frame,
    GainSums,
    Guess,
    GuessSums,
    Held,
    Middle,
    MiddleSums,
    Pass,
    PassSums,
    Point,
    Round,
    RoundSums,
)
from fedgrem.fit.tasks import MOST_PER_ROW, TASKS, Candidates, PathRequest, ScoreRequest
from fedgrem.kernels.center import row_norm, shrink
from fedgrem.kernels.passes import clipped
from fedgrem.types import Array, Broadcast, Params, Upload, map_arrays

NEAR_GUESS = 0.5
"""Noise units beyond which a site's displacement from a guess is clipped."""
MOST_NOISE = 0.5
"""To how much a displacement of the noise from that of a guess is clipped, in coordinates about it."""


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
