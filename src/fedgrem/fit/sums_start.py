"""What a fit of sums begins with: who takes part, common units, and a start that all sites have."""

from typing import Any, NamedTuple

import numpy as np

from fedgrem.data.federation import Units
from fedgrem.errors import InputError, PausedError
from fedgrem.families.base import LEAST_SHARE
from fedgrem.fit.conversation import Ask, Phase, Progress
from fedgrem.fit.spec import FitSpec
from fedgrem.fit.starts import breed, pool_of, steady_penalty
from fedgrem.fit.sums_answer import link, unpacked
from fedgrem.fit.sums_messages import (
    Common,
    Guess,
    GuessSums,
    Middle,
    MiddleSums,
    SumOrder,
    SumReply,
)
from fedgrem.fit.sums_site import KEYS
from fedgrem.kernels.center import WEIGHT_CAP
from fedgrem.kernels.randomness import generator_for
from fedgrem.types import Array, Params, map_arrays, pick

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


def common_units(spec: FitSpec, circle: Circle) -> Phase[Summary]:
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


def find_start(spec: FitSpec, circle: Circle, summary: Summary) -> Phase[Params]:
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
