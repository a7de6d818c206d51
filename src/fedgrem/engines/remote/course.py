"""The course of a fit as a site sees it: which task may come next, how often, in which units and about what.

A site cannot know what others answered, and so not whether a center's numbers are the honest ones. It knows what
kind of conversation the spec implies, from playing it on made-up rows, and holds the center to that: no task of another
fit, none out of turn, none more often than the fit needs, no other units than at the beginning. Where components are
sought that only some sites have, the rounds may come again a bounded number of times, with as many components as sites
were offered or fewer.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from fedgrem.data.units import Census, UnitsPlan
from fedgrem.engines.remote.declaration import CENSUS, STEP, Declaration, Order, components_in
from fedgrem.engines.remote.floor import PARTS, params_of
from fedgrem.engines.remote.sums import check_content
from fedgrem.engines.remote.wire import digest_of
from fedgrem.errors import MessageError
from fedgrem.fit.penalty import ROUNDS
from fedgrem.fit.some import PASSES
from fedgrem.fit.spec import COUNTS, FitSpec
from fedgrem.fit.sums_site import SumOrder
from fedgrem.fit.tasks import PathRequest, ScoreRequest
from fedgrem.types import named_arrays

BEGINNINGS = 10
"""Times that a fit may begin again before round 1, as it does when another site is lost there."""
FAR = 1000.0
"""Common units differ from a site's own by at most this factor: of what is farther off it is no part."""
FINISHED = ("score", "held_down", "information")
"""Tasks that are about the site's parameters at the end, and so about the same; a fit of two starts has two ends."""
SIMPLEX_SLACK = 1e-6


class Stage(NamedTuple):
    """A task, and how often it may be asked before the next one."""

    task: str
    most: int


class State(NamedTuple):
    """Where a fit is: numbers and hashes, which the log keeps."""

    place: int = -1
    """Of the stage."""
    asked: int = 0
    """How often it was asked."""
    beginnings: int = 0
    agreed: str = ""
    """Hash of the units."""
    finished: str = ""
    """Hashes of the parameters at every end."""
    last: str = ""
    """Hash of the last order."""
    components: int = 0
    """How many the last order was about that was about any."""


class Course:
    """What has been asked in one fit, and what may be asked next."""

    def __init__(self, spec: FitSpec, n_columns: int) -> None:
        played = Declaration(spec, n_columns).played()
        limits = {STEP: spec.max_rounds, "path_step": ROUNDS}
        stages = [Stage(task, max(count, limits.get(task, 0))) for task, count in played]
        self.stages = _with_passes(stages, scored=spec.score)
        tasks = [stage.task for stage in self.stages]
        self._births = tasks.index("birth") if "birth" in tasks else len(tasks)
        self._begins_with = spec.n_components
        # A private fit has no beginning that could be repeated: what is answered twice is paid for twice.
        self._rounds = tasks.index(STEP) if STEP in tasks else 0
        self._ends = max(1, sum(stage.task == "score" for stage in self.stages))
        self.state = State()
        self._taken: set[str] = set()

    def take(self, task: str, order: Order) -> bool:
        """Note an order, or refuse one that is out of turn; returns whether it was taken before.

        To say the same again tells nothing new, and a center whose journal is damaged has to ask again.
        """
        now, digest = self.state, digest_of((task, order))
        if digest == now.last:
            return True
        again = digest in self._taken
        try:
            place, count, beginnings = self._turn(task)
        except MessageError:
            if again:
                return True
            raise
        if again and place == now.place:
            count = now.asked
        agreed = "" if task == CENSUS else digest_of((order.units, order.gaps))
        if now.agreed and agreed != now.agreed and beginnings == now.beginnings:
            raise MessageError("the order has other units than those before it; they may not change in a fit.")
        finished = now.finished
        if task in FINISHED:
            end, ends = digest_of(order.mail), now.finished.split()
            if end not in ends and len(ends) == self._ends:
                raise MessageError(f"{task!r} is asked about other parameters than the end of this fit was before.")
            finished = " ".join(dict.fromkeys([*ends, end]))
        components = now.components if again else self._components(task, order, place)
        self.state = State(place, count, beginnings, agreed, finished, digest, components)
        self._taken.add(digest)
        return again

    def restore(self, state: Sequence[Any], digest: str) -> None:
        """Take over an order that was taken before, and where the fit was after it."""
        self.state = State(*state)
        self._taken.add(digest)

    def _components(self, task: str, order: Order, place: int) -> int:
        """How many components the fit is about with an order: it may be others where sites are offered some."""
        now, told = self.state, components_in(order)
        before = now.components or self._begins_with
        if told in (0, before):
            return now.components
        since = {stage.task for stage in self.stages[max(now.place + 1, self._births) : place + 1]}
        if "hold" not in since and not (STEP in since and told < before):
            raise MessageError(f"{task!r} is asked about {told} components, and this fit is about {before} by now.")
        return told

    def _turn(self, task: str) -> tuple[int, int, int]:
        """The stage, how often it has been asked with this, and how often the fit has begun."""
        tasks, (place, count, beginnings, *_) = [stage.task for stage in self.stages], self.state
        if task not in tasks:
            raise MessageError(f"{task[:40]!r} is no task of this fit; they are {', '.join(dict.fromkeys(tasks))}.")
        if place >= 0 and task == tasks[place] and count < self.stages[place].most:
            return place, count + 1, beginnings
        # Once there are rounds, a site that was away may have missed what came in between.
        last = len(tasks) if place >= self._rounds else min(place + 2, len(tasks))
        for following in range(place + 1, last):
            if tasks[following] == task:
                return following, 1, beginnings + (following == 0)
        if task in tasks[:2] and 0 <= place < self._rounds:
            if beginnings >= BEGINNINGS:
                raise MessageError(f"the fit has begun {BEGINNINGS} times.")
            return tasks.index(task), 1, beginnings + 1
        if place >= 0 and task == tasks[place]:
            raise MessageError(f"{task!r} was asked {count} time(s), which is all that this fit needs.")
        raise MessageError(
            f"it is not the turn of {task!r}; before it came {tasks[place]!r}."
            if place >= 0
            else f"a fit begins with {tasks[0]!r}, not with {task!r}."
        )


def _with_passes(stages: list[Stage], *, scored: bool) -> list[Stage]:
    """The course of a fit in which the rounds come again as often as components may be born."""
    tasks = [stage.task for stage in stages]
    if "birth" not in tasks:
        return stages
    first = tasks.index("birth")
    end = first + (4 if scored else 3)
    birth, hold, *rounds = stages[first:end]
    once = [birth, hold, hold, *rounds]  # what its own components are worth to a site, and what it is offered
    return [*stages[:first], *once * PASSES, *stages[end:]]


def check_values(task: str, order: Order, spec: FitSpec) -> None:
    """Refuse numbers that no fit sends, whatever their shapes."""
    mail = order.mail
    if isinstance(mail, SumOrder):
        check_content(mail, PARTS)
        return
    params = params_of(mail)
    if params is not None:
        total = np.asarray(params.weights).sum(axis=-1)
        if not (np.all(np.asarray(params.weights) >= 0) and np.all(np.abs(total - 1.0) <= SIMPLEX_SLACK)):
            raise MessageError("the order's weights are not on the simplex.")
        if not all(np.isfinite(leaf).all() for _, leaf in named_arrays(params)):
            raise MessageError("the order's parameters are not finite.")
    if isinstance(mail, PathRequest | ScoreRequest) and int(mail.parts) not in PARTS:
        raise MessageError(f"the order cuts the rows in {int(mail.parts)} parts, expected {PARTS[0]} or {PARTS[1]}.")
    extra = getattr(getattr(mail, "fits", mail), "extra", ())
    steps, batch = getattr(extra, "steps", None), getattr(extra, "batch", None)
    if steps is not None and not 1 <= int(steps) <= COUNTS["local_steps"]:
        raise MessageError(f"the order wants {int(steps)} local steps, expected 1 to {COUNTS['local_steps']}.")
    if batch is not None and not 0 < float(batch) <= 1:
        raise MessageError(f"the order wants {float(batch):g} of the rows, expected more than 0 and at most 1.")


def check_units(order: Order, plan: UnitsPlan, census: Census) -> None:
    """Refuse units that cannot be common to this site and others."""
    units = order.units
    if bool(census.gaps) and not bool(order.gaps):
        raise MessageError("the order says that no cell is missing at any site, and some are here.")
    if units is None:
        return
    if not plan.standardize and not (np.all(units.location == 0) and np.all(units.scale == 1)):
        raise MessageError("the order has units of its own, and the spec leaves columns as they are.")
    moves = plan.move and not plan.within
    if not moves and np.any(units.location != 0):
        raise MessageError("the order moves columns, and the spec leaves them where they are.")
    if not plan.standardize:
        return
    varies = census.deviation > 0
    mean, deviation = census.mean[varies], census.deviation[varies]
    location, scale = units.location[varies], units.scale[varies]
    far = np.abs(location - mean) > FAR * np.maximum(deviation, np.abs(mean)) if moves else np.zeros(1, dtype=bool)
    if far.any() or np.any(scale > FAR * deviation) or np.any(scale < deviation / FAR):
        raise MessageError(f"the order's units are more than {FAR:g} times off those of the site's own columns.")
