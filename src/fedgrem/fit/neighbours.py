"""A fit from sums that the sites find among themselves: every site runs the center's side, and nobody is the center.

The conversation is that of :mod:`fedgrem.fit.sums`. What differs is who adds up: neighbours in a graph, by gossip,
until all of them have the same sums to the bit. So all of them ask the same next question, and none has to be sent.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from fedgrem.algorithms.fedgrem import LEAST_PART
from fedgrem.algorithms.state import LEAST_STEP_SCALE
from fedgrem.errors import InputError, PausedError
from fedgrem.fit.conversation import Ask, Phase, Progress
from fedgrem.fit.sums import Circle
from fedgrem.fit.sums_site import (
    KEYS,
    MOST_NOISE,
    NEAR_GUESS,
    Begin,
    End,
    EndSums,
    Frame,
    GainSums,
    Guess,
    GuessSums,
    Middle,
    MiddleSums,
    Pass,
    PassSums,
    Round,
    RoundSums,
    unpack,
    unpacked,
)
from fedgrem.fit.tasks import MOST_PER_ROW
from fedgrem.kernels.center import MOST_ROWS, row_norm
from fedgrem.kernels.gossip import SLACK
from fedgrem.kernels.passes import ClippedSums
from fedgrem.types import Array, map_arrays

FEWEST = 3
"""Sites: with two there is one link, and nothing that a server would do."""


class Heard(NamedTuple):
    """What every site knows after a sum."""

    sums: Array
    """(K, m) the same for all that are here."""
    rounding: Array
    """(K,) how far they may be off."""


class Neighbours(Circle):
    """The sites of a fit that add up among themselves."""

    what, remedy = "fits without a server", "leave out engine"
    most_rows = MOST_ROWS  # nobody sees what a site claims but its neighbours, who can only hold it to this

    def meet(self) -> Phase[None]:
        """See that all have the same columns."""
        replies = yield Ask(KEYS, (), Progress("neighbours", 0, 0, float("nan")))
        if len(self.names) < FEWEST:
            raise InputError(f"{self.what} are for at least {FEWEST} sites, and there are {len(self.names)}.")
        self.here, self.width = replies.present, int(replies.mail.width[0])

    def add(self, task: str, content: Any, like: Any, told: Progress | None = None) -> Phase[Any]:
        """The sum over the sites that are here of what they answer, of the shapes of ``like``.

        A site that is lost on the way is no longer here: the neighbours have then added up without it.
        """
        replies = yield Ask(task, content, told, to=None if self.here.all() else self.here, optional=True)
        self.passes += 1
        self.here = replies.present
        if self.here.sum() < FEWEST:
            raise PausedError(
                f"{int(self.here.sum())} site(s) are left, and {self.what} are for at least {FEWEST}; begin again with "
                "more sites."
            )
        heard: Heard = replies.mail
        first = int(np.argmax(self.here))
        self.rounding = float(heard.rounding[first])
        return unpacked(heard.sums[first], like)


# -- what an honest site may send


def limits(task: str, content: Any, like: Any) -> Any:
    """What no number of an honest site exceeds, in an answer of the shapes of ``like``; infinity if unknown.

    A displacement times its weight is at most lambda times the root of the rows, so that all can check that a neighbour
    has clipped its own.
    """
    unknown = map_arrays(lambda leaf: np.full(np.shape(leaf), np.inf), like)
    found = _LIMITS[task](content, unknown)
    return map_arrays(lambda leaf, most: np.broadcast_to(most, np.shape(leaf)), like, found)


def honest(task: str, content: Any, like: Any) -> Callable[[Array], Array] | None:
    """Whether numbers ``(E, m)`` fit together as an honest site's do.

    Displacements are no longer than it says, and its components have no more rows together than count.
    """
    if task not in ("sum_round", "sum_pass"):
        return None
    frame: Frame = content.next_frame if task == "sum_round" else content.frame

    def check(numbers: Array) -> Array:
        message = unpack(numbers, like)
        sums: PassSums = message.first if task == "sum_round" else message
        found = np.ones(len(numbers), dtype=bool)
        for part, penalty in zip(sums, (frame.penalty, frame.noise_penalty), strict=True):
            if part is not None:
                short = row_norm(part.slope) <= part.strength * (1.0 + SLACK) + np.finfo(float).tiny
                fits = short & (part.mass <= part.total * (1.0 + SLACK)) & (part.mass >= 0)
                rows = frame.cap * part.strength.shape[-1] * (1.0 + LEAST_PART)
                few = (part.strength**2).sum(axis=-1) <= penalty**2 * rows * (1.0 + SLACK)
                found &= (fits & few[..., None]).reshape(len(numbers), -1).all(axis=1)
        return found

    return check


def _of_middle(content: Middle, like: MiddleSums) -> MiddleSums:
    one = np.ones(())
    return like._replace(n_sites=one, first=one, second=one, gaps=one)


def _of_guess(content: Guess, like: GuessSums) -> GuessSums:
    cap = content.cap
    noise = None if like.noise is None else cap * MOST_NOISE
    return GuessSums(cap, cap, cap * NEAR_GUESS, cap, noise, cap * MOST_PER_ROW)


def _of_begin(content: Begin, like: Array) -> Array:
    return np.ones(())


def _of_parts(frame: Frame, like: PassSums) -> PassSums:
    n_components = like.theta.total.shape[-1]

    def most(penalty: Array, like: ClippedSums) -> ClippedSums:
        strength = (penalty * np.sqrt(frame.cap * n_components))[..., None]
        mass = np.asarray(frame.cap * n_components / LEAST_STEP_SCALE)
        return ClippedSums(mass, mass, strength[..., None], strength, mass)

    return PassSums(
        most(frame.penalty, like.theta), None if like.noise is None else most(frame.noise_penalty, like.noise)
    )


def _of_round(content: Round, like: RoundSums) -> RoundSums:
    return like._replace(first=_of_parts(content.next_frame, like.first), unsettled=np.ones(()))


def _of_pass(content: Pass, like: PassSums) -> PassSums:
    return _of_parts(content.frame, like)


def _of_gain(content: End, like: GainSums) -> GainSums:
    most = np.asarray(MOST_PER_ROW)
    return GainSums(np.ones(()), most, most * most)


def _of_end(content: End, like: EndSums) -> EndSums:
    return like._replace(say=content.frame.cap, weights=content.frame.cap, at_center=np.ones(()))


_LIMITS: dict[str, Callable[[Any, Any], Any]] = {
    "sum_middle": _of_middle,
    "sum_guess": _of_guess,
    "sum_begin": _of_begin,
    "sum_round": _of_round,
    "sum_pass": _of_pass,
    "sum_gain": _of_gain,
    "sum_end": _of_end,
}
