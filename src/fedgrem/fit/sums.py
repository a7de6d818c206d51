"""A fit in which the center sees nothing but sums over at least three sites.

The paper's central problem, by passes of sums of clipped displacements (Huber's location): the center tells where it
is, each site adds its own displacement clipped to its threshold, and at the end shrinks itself. Starts are common to
all sites, and found by sums too, as are units, the penalty and when to stop. What a site found stays with the site.
"""

import numpy as np

from fedgrem.algorithms.base import full_penalty
from fedgrem.algorithms.fedgrem import FIRST_PENALTY, LONG_ROUNDS
from fedgrem.algorithms.state import bounded_scale
from fedgrem.data.stack import Stack
from fedgrem.fit.conversation import Agreed, Phase, Progress, with_agreement
from fedgrem.fit.penalty import ALIKE, PENALTIES, ROUNDS
from fedgrem.fit.rounds import Near, tolerated_stragglers
from fedgrem.fit.spec import FitSpec
from fedgrem.fit.sums_messages import (
    Begin,
    End,
    EndSums,
    Frame,
    GainSums,
    Held,
    Pass,
    PassSums,
    Point,
    Round,
    RoundSums,
)
from fedgrem.fit.sums_site import absolute, check_spec, pulls, settled_errors
from fedgrem.fit.sums_start import Circle, Summary, common_units, find_start
from fedgrem.kernels.center import row_norm
from fedgrem.kernels.passes import Search, advance, sums_like
from fedgrem.kernels.passes import begin as begin_search
from fedgrem.types import Array, Central, FitResult, Influence, Params, map_arrays

MOST_PASSES = 5
"""Of the search for a center in a round, the first of which comes with the sites' local steps."""


def secure_fit(spec: FitSpec, circle: Circle) -> Phase[FitResult]:
    """The center's side, whoever adds up. Of single sites the result says nothing: NaN."""
    check_spec(spec, circle.what, circle.remedy)
    yield from circle.meet()
    summary = yield from common_units(spec, circle)
    agreed = Agreed(summary.units, summary.gaps)
    result = yield from with_agreement(_in_units(spec, circle, summary), agreed)
    if summary.units is None:
        return result
    return result._replace(location=summary.units.location, scale=summary.units.scale)


# -- rounds


class Player:
    """Rounds of one or of many fits side by side, ``(...)``, from a start that all sites have."""

    def __init__(
        self, spec: FitSpec, circle: Circle, summary: Summary, start: Params, penalty: Array, noise_penalty: Array,
        parts: int = 0,
    ) -> None:  # fmt: skip
        self.spec, self.circle, self.summary, self.start = spec, circle, summary, start
        self.constants, self.parts = (penalty, noise_penalty), parts
        self.played, self._lambda = 0, np.full(penalty.shape, FIRST_PENALTY)
        self.center = start
        self.frame, self.found = self._frame(start)
        self.gap, self.passes, self.settled = np.inf, 0, False
        self.unsettled, self.log_likelihood = float(len(circle.names)), float("nan")
        self.movement, self.before = float("nan"), start

    def _frame(self, center: Params) -> tuple[Frame, Point]:
        family, size = self.spec.family, center.theta.shape[-1]
        reference = self.start.noise
        units = None if center.noise is None else family.open(None, center.noise, size)
        noise, count = None, len(self.circle.names)
        noise_penalty = np.zeros(self._lambda.shape)
        if center.noise is not None and reference is not None:
            noise = family.relative_noise(center.noise, reference, size)
            noise_penalty = full_penalty(self.constants[1], noise.shape[-1], count)
        frame = Frame(
            center.noise, reference, self._lambda, noise_penalty, self.summary.cap, np.asarray(self.parts)
        )  # fmt: skip
        return frame, Point(family.whiten(center.theta, units), noise)

    def begin(self) -> Phase[None]:
        """Hand out the start."""
        yield from self.circle.add("sum_begin", Begin(self.start), np.zeros(1))

    def round(self, steps: int, told: Progress) -> Phase[None]:
        """Local steps, and passes until the center is found."""
        spec, size = self.spec, self.start.theta.shape[-1]
        decay = spec.algorithm.penalty_decay
        self._lambda = decay * self._lambda + full_penalty(self.constants[0], size, len(self.circle.names))
        frame, at = self._frame(self.center)
        content = Round(
            self.frame, self.found, frame, at, np.asarray(self.played), np.asarray(steps),
            np.asarray(self.summary.n_rows),
        )  # fmt: skip
        noise_like = None if at.noise is None else sums_like(at.noise.shape[:-1], at.noise.shape[-1])
        like = PassSums(sums_like(at.theta.shape[:-1], size), noise_like)
        nothing = np.zeros(())
        told_sums: RoundSums = yield from self.circle.add("sum_round", content, RoundSums(like, nothing, nothing), told)
        sums, self.passes = told_sums.first, 1
        self.unsettled, self.log_likelihood = float(told_sums.unsettled), float(told_sums.log_likelihood)
        theta, noise = begin_search(at.theta), None if at.noise is None else begin_search(at.noise)
        while True:
            rounding = self.circle.rounding
            theta = advance(theta, sums.theta, rounding=rounding)
            noise = None if noise is None or sums.noise is None else advance(noise, sums.noise, rounding=rounding)
            done = theta.done.all() and (noise is None or noise.done.all())
            point = Point(theta.center, None if noise is None else noise.center)
            if done or self.passes >= MOST_PASSES:
                break
            sums = yield from self.circle.add("sum_pass", Pass(frame, point), like)
            self.passes += 1
        self._take(frame, point, theta, sums)

    def _take(self, frame: Frame, point: Point, theta: Search, sums: PassSums) -> None:
        center = absolute(self.spec, frame, point, self.start.theta.shape[-1])
        self.before, self.center = self.center, Params(self.start.weights, center.theta, center.noise)
        self.frame, self.found, self.played = frame, point, self.played + 1
        self.gap = float(np.max(theta.gap))
        family = self.spec.family
        moved = self.center.theta - self.before.theta
        self.movement = float(np.max(row_norm(moved) / (1.0 + row_norm(self.before.theta))))
        units = None if frame.units is None else family.open(None, frame.units, moved.shape[-1])
        errors = row_norm(family.whiten(moved, units)) * np.sqrt(np.maximum(sums.theta.total, 1.0) / moved.shape[-2])
        self.settled = self.movement < self.spec.tol or float(np.max(errors)) < settled_errors(self.spec)


def _in_units(spec: FitSpec, circle: Circle, summary: Summary) -> Phase[FitResult]:
    start = yield from find_start(spec, circle, summary)
    penalty = spec.penalty
    path: dict[str, Array] = {}
    if penalty is None:
        penalty, path = yield from _choose_penalty(spec, circle, summary, start)
    fixed = spec.algorithm.noise_penalty
    noise_penalty = penalty if fixed is None else fixed
    player = Player(spec, circle, summary, start, np.asarray(float(penalty)), np.asarray(float(noise_penalty)))
    yield from player.begin()
    history: list[tuple[float, ...]] = []
    since, stopped = 0, False
    while player.played < spec.max_rounds and not stopped:
        steps = spec.algorithm.local_steps if player.played < LONG_ROUNDS else 1  # type: ignore[attr-defined]
        center_settled = player.settled
        yield from player.round(steps, Progress("rounds", player.played + 1, spec.max_rounds, player.movement))
        history.append((player.log_likelihood, player.movement, player.passes, player.gap, float(player._lambda)))
        # Whether sites have moved is said a round later, with the next message.
        moving = round(player.unsettled)
        since = (since or player.played) if center_settled and moving <= tolerated_stragglers(len(circle.names)) else 0
        stopped = (center_settled and moving == 0) or (since > 0 and player.played >= 1.5 * since + 10)
    blank = np.zeros(())
    n_components = spec.n_components
    sums: EndSums = yield from circle.add(
        "sum_end",
        End(player.frame, player.found),
        EndSums(blank, np.zeros(n_components), np.zeros(n_components), blank),
    )
    return _result(spec, circle, player, sums, history, stopped, path)


def _result(
    spec: FitSpec, circle: Circle, player: Player, sums: EndSums, history: list[tuple[float, ...]], stopped: bool,
    path: dict[str, Array],
) -> FitResult:  # fmt: skip
    names, center = circle.names, player.center
    n_sites, n_components = len(names), spec.n_components
    unknown, of_sites = np.full((n_sites, n_components), np.nan), np.full(n_sites, np.nan)
    weights = sums.weights / sums.weights.sum()
    columns = np.array(history).T
    each = np.full((len(history), n_sites), np.nan)
    frame = player.frame
    return FitResult(
        site_names=names,
        weights=unknown,
        theta=np.full((n_sites, *center.theta.shape), np.nan),
        center=center.theta,
        noise=None if center.noise is None else np.full((n_sites, *center.noise.shape), np.nan),
        center_noise=center.noise,
        distance=unknown,
        n_rows=of_sites,
        n_rounds=player.played,
        converged=stopped,
        unsettled=(),
        history={
            "log_likelihood": each,
            "movement": each,
            "total_log_likelihood": columns[0],
            "center_movement": columns[1],
            "passes": columns[2],
            "solver_gap": columns[3],
            "penalty": columns[4],
        },
        influence=Influence(unknown, unknown, frame.penalty, np.asarray(player.passes), np.asarray(player.gap)),
        start_choice=np.zeros(n_sites, dtype=int),
        path=path,
        common_weights=weights,
    )


def with_own_answers(
    spec: FitSpec, result: FitResult, stacks: list[tuple[Stack, Array]], own: list[Held], most_rows: float
) -> FitResult:
    """A result with what sites found for themselves, for whoever holds their rows: all of them, or one."""
    params: Params = map_arrays(lambda *leaves: np.stack(leaves), *(held.after for held in own))
    n_rows, noise = np.full(len(own), np.nan), result.center_noise
    for stack, places in stacks:
        n_rows[places] = stack.n_rows
    cap = np.asarray(most_rows * np.nanmedian(n_rows))
    frame = Frame(noise, noise, result.influence.penalty, np.zeros(()), cap, np.zeros((), int))
    threshold, weight = (np.full(params.weights.shape, np.nan) for _ in range(2))
    for stack, places in stacks:
        held: Held = map_arrays(lambda *leaves: np.stack(leaves), *(own[k] for k in places))
        pull = pulls(spec, stack, held, frame)[0]
        scale = bounded_scale(held.step_scale)
        threshold[places] = pull.threshold / scale / spec.algorithm.step_size  # type: ignore[attr-defined]
        weight[places] = pull.weight * scale
    central = Central(params, result.center, n_rows, noise)
    influence = result.influence._replace(weight=weight, threshold=threshold)
    return result._replace(
        weights=params.weights, theta=params.theta, noise=params.noise, n_rows=n_rows,
        distance=Near.of(spec.family, central).distance, influence=influence,
    )  # fmt: skip


# -- the penalty


def _choose_penalty(
    spec: FitSpec, circle: Circle, summary: Summary, start: Params
) -> Phase[tuple[float, dict[str, Array]]]:
    """The largest penalty within a standard error of the best on held-out rows, by summed gains."""
    count = len(PENALTIES)
    parts = 2 if summary.n_rows / summary.n_sites >= 20.0 * spec.n_components else 4
    along = np.broadcast_to(np.array(PENALTIES), (2, count))
    fits: Params = map_arrays(lambda leaf: np.broadcast_to(leaf, (2, count, *leaf.shape)).copy(), start)
    fixed = spec.algorithm.noise_penalty
    noise = along if fixed is None else np.full((2, count), float(fixed))
    player = Player(spec, circle, summary, fits, along, noise, parts)
    yield from player.begin()
    for number in range(1, ROUNDS + 1):
        told = Progress("penalties", number, ROUNDS, player.movement)
        yield from player.round(spec.family.path_steps, told)
    like = GainSums(np.zeros(()), np.zeros(count), np.zeros((count, count)))
    sums: GainSums = yield from circle.add("sum_gain", End(player.frame, player.found), like)
    mean = sums.gain / sums.n_sites
    finite = np.isfinite(PENALTIES)
    best = int(np.argmax(np.where(finite, mean, -np.inf)))
    products = sums.products / sums.n_sites
    variance = products[best, best] - 2.0 * products[best] + np.diag(products) - (mean[best] - mean) ** 2
    error = np.sqrt(np.maximum(variance, 0.0) / np.maximum(sums.n_sites - 1.0, 1.0))
    place = int(np.flatnonzero(finite & (mean[best] - mean <= error + ALIKE))[-1])
    penalty = float(PENALTIES[place])
    chosen = np.asarray(penalty)
    path = {
        "penalty": chosen, "noise_penalty": chosen if fixed is None else np.asarray(float(fixed)),
        "penalties": np.array(PENALTIES), "gain": mean, "error": error,
        "site_gain": np.full((len(circle.names), count), np.nan),
        "site_error": np.full((len(circle.names), count), np.nan),
        "noise_penalties": np.zeros(0), "noise_gain": np.zeros(0), "noise_error": np.zeros(0),
        "weights_penalty": np.zeros(()),
    }  # fmt: skip
    return penalty, path
