"""A fit in which the center sees nothing but sums over at least three sites.

The paper's central problem, by passes of sums of clipped displacements (Huber's location): the center tells where it
is, each site adds its own displacement clipped to its threshold, and at the end shrinks itself. Starts are common to
all sites, and found by sums too, as are units, the penalty and when to stop. What a site found stays with the site.
"""

from typing import Any, NamedTuple

import numpy as np

from fedgrem.algorithms.base import full_penalty
from fedgrem.algorithms.fedgrem import FIRST_PENALTY, LONG_ROUNDS
from fedgrem.algorithms.state import bounded_scale
from fedgrem.data.federation import Units
from fedgrem.data.stack import Stack
from fedgrem.errors import InputError, PausedError
from fedgrem.families.base import LEAST_SHARE
from fedgrem.fit.conversation import Agreed, Ask, Phase, Progress, with_agreement
from fedgrem.fit.penalty import ALIKE, PENALTIES, ROUNDS
from fedgrem.fit.rounds import Near, tolerated_stragglers
from fedgrem.fit.spec import FitSpec
from fedgrem.fit.starts import breed, pool_of, steady_penalty
from fedgrem.fit.sums_site import (
    KEYS,
    Begin,
    Common,
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
    SumOrder,
    SumReply,
    absolute,
    check_spec,
    link,
    pulls,
    settled_errors,
    unpacked,
)
from fedgrem.kernels.center import WEIGHT_CAP, row_norm
from fedgrem.kernels.passes import Search, advance, sums_like
from fedgrem.kernels.passes import begin as begin_search
from fedgrem.kernels.randomness import generator_for
from fedgrem.types import Array, Central, FitResult, Influence, Params, map_arrays, pick

MOST_PASSES = 5
"""Of the search for a center in a round, the first of which comes with the sites' local steps."""
WIDEST = 2.0**40
"""The largest number that a mean of a column may be."""
MIDDLE_PASSES = 60
"""In which units are found; fewer unless a site is in other units than the rest."""
GUESSES, GENERATIONS, GENERATION = 16, 5, 4
"""Joint starts, times that poor ones give way to variants of good ones, and messages in between."""


class Circle:
    """The sites of a fit whose numbers only open together: who is here, and what was said so far."""

    what, remedy = "secure sums", "leave out secure_sums"
    """What messages call a fit of this kind, and how they say to do without."""
    most_rows = WEIGHT_CAP
    """For how many times the rows of the middle site one counts at the most."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names, self.here = names, np.ones(len(names), dtype=bool)
        self.passes = self.width = 0
        self.rounding = len(names) * 2.0**-32
        """How far a sum may be off."""
        self._keys = np.zeros((len(names), 32), dtype=np.uint8)
        self._chain = bytes(32)
        self._sealed: Array | None = None

    def meet(self) -> Phase[None]:
        """Ask everyone for a public key."""
        from fedgrem.kernels.masks import FEWEST

        if len(self.names) < FEWEST:
            raise InputError(f"secure sums are over at least {FEWEST} sites, and there are {len(self.names)}.")
        replies = yield Ask(KEYS, (), Progress("keys", 0, 0, float("nan")))
        self._lose(replies.present)
        widths = replies.mail.width[self.here].astype(int)
        self.width = int(widths[0])
        if np.any(widths != self.width):
            told = ", ".join(f"{name!r} {w}" for name, w in zip(np.array(self.names)[self.here], widths, strict=True))
            raise InputError(f"the sites have different numbers of columns: {told}; give all sites the same columns.")
        self._keys = np.where(self.here[:, None], replies.mail.key, 0).astype(np.uint8)

    def add(self, task: str, content: Any, like: Any, told: Progress | None = None) -> Phase[Any]:
        """The sum over the sites of what they answer, of the shapes of ``like``.

        Masks only cancel if everyone answers who was to be in the sum. Where a site does not, it is out of the fit, and
        the others answer once more without its masks.
        """
        while True:
            common = Common(self._keys, self.here, np.frombuffer(self._chain, dtype=np.uint8), content)
            order = SumOrder(self._to_all(common), np.arange(len(self.names)), self._sealed)
            replies = yield Ask(task, order, told, to=None if self.here.all() else self.here, optional=True)
            self.passes += 1
            if (replies.present | ~self.here).all():
                break
            self._lose(replies.present)
        reply: SumReply = replies.mail
        self._chain, self._sealed = link(task, common), reply.sealed
        from fedgrem.kernels.masks import opened_sum

        return unpacked(opened_sum(reply.masked[self.here].astype(np.int64, copy=False)), like)

    def _to_all(self, common: Common) -> Common:
        count = len(self.names)
        sent: Common = map_arrays(lambda leaf: np.broadcast_to(leaf, (count, *np.shape(leaf))), common)
        return sent

    def _lose(self, present: Array) -> None:
        from fedgrem.kernels.masks import FEWEST

        self.here = self.here & present
        if self.here.sum() < FEWEST:
            raise PausedError(
                f"{int(self.here.sum())} site(s) are left, and a sum over fewer than {FEWEST} would show single sites; "
                "begin again with more sites, or without secure_sums."
            )


def secure_fit(spec: FitSpec, circle: Circle) -> Phase[FitResult]:
    """The center's side, whoever adds up. Of single sites the result says nothing: NaN."""
    check_spec(spec, circle.what, circle.remedy)
    yield from circle.meet()
    summary = yield from _common_units(spec, circle)
    agreed = Agreed(summary.units, summary.gaps)
    result = yield from with_agreement(_in_units(spec, circle, summary), agreed)
    if summary.units is None:
        return result
    return result._replace(location=summary.units.location, scale=summary.units.scale)


# -- units


class Summary(NamedTuple):
    """What is known of the rows together."""

    units: Units | None
    location: Array
    """(p,) of every column in the units of the fit, the response last."""
    scale: Array
    n_rows: float
    size: float
    """Rows of the middle site: what one claims does not move it far."""
    cap: Array
    """Rows for which a site counts at the most."""
    gaps: bool
    n_sites: int


def _common_units(spec: FitSpec, circle: Circle) -> Phase[Summary]:
    """The middle of the sites' column means, deviations and sizes: Huber's location; its limit follows their spread."""
    shape = (3, circle.width)
    center, limit = np.zeros(shape), np.broadcast_to([[WIDEST], [100.0], [100.0]], shape).copy()
    like = MiddleSums(np.zeros(shape), np.zeros(shape), np.zeros(shape), np.zeros(()), np.zeros(()))
    while True:
        found: MiddleSums = yield from circle.add(
            "sum_middle", Middle(center, limit), like, Progress("units", 0, 0, float("nan"))
        )
        count = np.maximum(found.n_sites, 1.0)
        step = found.first / count
        spread = np.sqrt(np.maximum(found.second / count - step * step, 0.0))
        center = center + limit * step
        # Clipped at 1.5 deviations, a Gaussian deviation is 0.88 of what it is.
        factor = np.clip(1.5 / 0.88 * spread, 1e-6, 1.0)
        limit = np.maximum(limit * factor, 1e-9 * (1.0 + np.abs(center)))
        settled = np.all((np.abs(step) < 0.02) & ((factor > 0.7) | (limit < 1e-6)))
        wanted = not (spec.units.as_it_is and spec.given is not None)  # else rows stay as they are, and starts too
        if settled or not wanted or circle.passes > MIDDLE_PASSES:
            break
    location = np.where(found.n_sites[0] > 0, center[0], 0.0)
    scale = np.where(found.n_sites[1] > 0, np.exp(center[1]), 1.0)
    units = spec.units.units(location[None], scale[None])
    constant = bool((found.n_sites[1] < circle.here.sum()).any() and spec.units.scaled is not None)
    here = location, scale
    if units is not None:
        here = (location - units.location) / units.scale, scale / units.scale
    n_sites = int(circle.here.sum())
    gaps = bool(found.gaps > 0.5) or constant
    size = float(np.exp(center[2, 0]))
    return Summary(units, *here, float(found.n_rows), size, np.asarray(circle.most_rows * size), gaps, n_sites)


# -- starts


def _find_start(spec: FitSpec, circle: Circle, summary: Summary) -> Phase[Params]:
    """The best of several joint starts, ``(R,), (R, q), (C, s)``: random ones, which the sites improve together."""
    if spec.given is not None:
        first: Params = map_arrays(lambda leaf: leaf[0], spec.given)
        if any(np.any(leaf != leaf[:1]) for leaf in spec.given if leaf is not None):
            raise InputError(f"with {circle.what} sites begin alike; give all sites the same start.")
        return first
    family, generator = spec.family, generator_for(spec.seed, "", "starts of sums")
    guesses = _random_guesses(spec, summary, GUESSES, generator)
    n_sites, size = len(circle.names), guesses.theta.shape[-1]
    penalty = np.asarray(min(steady_penalty(spec, n_sites, size), 100.0))
    lead = guesses.weights.shape
    like = GuessSums(
        np.zeros(()), np.zeros(lead), guesses.theta, np.zeros(lead), guesses.noise, np.zeros(lead[0])
    )  # fmt: skip
    scores = np.zeros(lead[0])
    for left in reversed(range(GENERATIONS)):
        for _ in range(GENERATION):
            told = Progress("joint starts", 0, spec.max_rounds, float("nan"))
            sums: GuessSums = yield from circle.add("sum_guess", Guess(guesses, penalty, summary.cap), like, told)
            theta = family.to_noise(guesses.theta, guesses.noise)
            moved = theta + sums.slope / np.maximum(sums.mass, 1e-9)[..., None]
            weights = np.maximum(sums.weights / sums.say, LEAST_SHARE / spec.n_components)
            noise = guesses.noise
            theta = family.from_noise(moved, noise)
            if noise is not None and sums.noise is not None:
                noise = family.absolute_noise(sums.noise / sums.say, noise, size)
            guesses = Params(weights / weights.sum(axis=-1, keepdims=True), theta, noise)
        scores = sums.score
        if left:
            pool = map_arrays(lambda leaf: leaf, guesses)
            guesses = breed(guesses, scores, pool_of(pool), GUESSES, generator)
    return pick(guesses, int(np.argmax(scores)))


def _random_guesses(spec: FitSpec, summary: Summary, count: int, generator: np.random.Generator) -> Params:
    """Components drawn where the rows are known to be, in units of their columns."""
    family, n_components = spec.family, spec.n_components
    location, scale = summary.location, summary.scale
    if family.has_target:
        scale, location = scale[-1] / scale[:-1], np.zeros(len(scale) - 1)
        if spec.units.intercept:
            location, scale = np.append(location, summary.location[-1]), np.append(scale, summary.scale[-1])
    drawn = generator.normal(size=(count, n_components, len(location)))
    theta = location + scale * drawn
    shape = family.noise_shape(n_components, theta.shape[-1])
    even = np.full((count, n_components), 1.0 / n_components)
    return Params(even, theta, None if shape is None else np.zeros((count, *shape)))


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
    start = yield from _find_start(spec, circle, summary)
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
