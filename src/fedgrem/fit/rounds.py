"""The rounds: local steps, a central step and bookkeeping, until the sites have settled."""

from typing import Any, NamedTuple

import numpy as np

from fedgrem.algorithms.base import keep_absent
from fedgrem.algorithms.center_rules import MOST_BAD
from fedgrem.families.base import Family
from fedgrem.fit.conversation import Ask, Phase, Progress, everyone
from fedgrem.fit.spec import FitSpec
from fedgrem.kernels.center import median, row_norm
from fedgrem.types import Array, Central, FitResult, Influence, Params, Upload, map_arrays

SETTLED_ERRORS = 0.003
"""A site also counts as settled when it moves by less than this many standard errors in a round, and less where a
tighter tolerance is asked for: its rows leave far more open than that."""


RESTLESS, RESTLESS_ROUNDS, SLOWER = 30.0, 8, 0.95
"""A site is restless that moves so many times as far as settled ones may, and as the middle one does, in so many
rounds one after the other, and in the later half of them by no less than that part of the first: what settles slows
down."""
LEAP = 1.0
"""Standard errors of a site that it does not move by, round after round, on its way to an answer."""


class RoundRecord(NamedTuple):
    """What the history keeps of one round."""

    log_likelihood: Array
    """(K,) of the parameters each site received, as it last said."""
    movement: Array
    """(K,) relative movement of each site's parameters since it answered before, when it last did; infinity before."""
    center_movement: Array
    """() relative movement of the center."""
    penalty: Array
    """() lambda."""
    distance: Array
    """(K,) largest distance over components of a site from the center, in units of the common noise."""
    solver_iterations: Array
    """() of the central problem."""
    movement_in_errors: Array
    """(K,) movement of each site's parameters in units of about their standard errors, when it was last heard."""
    solver_gap: Array
    """() gradient norm of the central problem at its solution, in units of the common noise: the certificate."""


class Near(NamedTuple):
    """Where the components of the sites are, and how many rows tell of them."""

    distance: Array
    """(K, ..., R) from the center, in units of the common noise; 0 for those on it."""
    held: Array
    """(K, ..., R) rows that a component holds."""
    common: Array
    """(..., R) rows that all hold that sit on the center."""
    units: Any
    """The common noise, opened; None where it is known."""

    @classmethod
    def of(cls, family: Family, central: Central) -> "Near":
        """From what the center holds."""
        weights, theta, _ = central.params
        units = None if central.noise is None else family.open(None, central.noise, theta.shape[-1])
        distance = row_norm(family.whiten(theta - central.center, units))
        held = np.maximum(weights * central.n_rows.reshape(-1, *(1,) * (weights.ndim - 1)), 1.0)
        return cls(distance, held, np.where(distance == 0.0, held, 0.0).sum(axis=0), units)


class Patience:
    """Takes a site that alone goes on moving at its last word, so that it cannot keep the others for ever.

    In the rounds that follow, the center hears what such a site said when patience with it ended. Where exactly so many
    rounds are to be played, it never does.
    """

    def __init__(self, n_sites: int, errors: float) -> None:
        self._errors = errors
        self._moved: list[Array] = []
        self._last: Upload | None = None
        self._ended = np.zeros(n_sites, dtype=bool)

    def heard(self, family: Family, central: Central, uploads: Upload, present: Array) -> Upload:
        """The replies ``(K, ...)`` of a round, with the last words of those with whom patience has ended."""
        last, self._last = self._last, uploads
        if last is None or not present.all() or self._errors == 0.0:
            return uploads
        held = np.maximum(central.params.weights * central.n_rows[:, None], 1.0)
        length = row_norm(family.to_noise(uploads.params.theta - last.params.theta, central.noise))
        moved = np.nan_to_num((length * np.sqrt(held)).max(axis=1))
        # Only where the others do not move likewise, who may all be on their way to where they belong; and only by
        # leaps unless they are settled: an odd site may be long on its way.
        middle = float(median(moved))
        alone = (moved > RESTLESS * max(self._errors, middle)) & ((middle < self._errors) | (moved > LEAP))
        self._moved = [*self._moved, np.where(alone, moved, 0.0)][-RESTLESS_ROUNDS:]
        first, later = np.array_split(self._moved, 2)
        ended = self._ended.copy()
        if len(self._moved) == RESTLESS_ROUNDS:
            ended |= np.all(self._moved, axis=0) & (later.mean(axis=0) >= SLOWER * first.mean(axis=0))
        if ended.mean() <= MOST_BAD:
            self._ended = ended

        def taken(new: Array, old: Array) -> Array:
            return np.where(self._ended.reshape(-1, *(1,) * (new.ndim - 1)), old, new)

        self._last = map_arrays(taken, uploads, last) if self._ended.any() else uploads
        return self._last


class Played(NamedTuple):
    """Where the rounds ended."""

    central: Central
    influence: Influence
    n_rounds: int
    stopped: bool
    settled: Array
    """(K,)"""
    history: dict[str, Array]


def play_rounds(spec: FitSpec, central: Central, names: tuple[str, ...]) -> Phase[Played]:
    """Play rounds until all sites and the center are settled, or all but some have been for half as long again.

    Of those that are not, up to a quarter is no matter; with more, as many as may be bad, the fit ends all the same,
    and has not converged.

    Where not all sites are asked in every round, each is judged by how far it has come since it last answered, and the
    center by how far since the last time that all had been asked.
    """
    family, algorithm, n_sites = spec.family, spec.algorithm, len(central.n_rows)
    errors = min(SETTLED_ERRORS, 3000.0 * spec.tol) if family.exponential else 0.0
    records: list[RoundRecord] = []
    unheard, never, none = np.full(n_sites, np.nan), np.full(n_sites, np.inf), np.zeros(())
    last = RoundRecord(unheard, never, none, none, np.zeros(n_sites), none, never, none)
    blank = np.zeros(central.params.weights.shape)
    influence = Influence(blank, blank, none, none, none)
    settled, since, stopped, movement = np.zeros(n_sites, dtype=bool), 0, False, float("nan")
    answered, begun, waiting, patience = central.params, central, everyone(n_sites), Patience(n_sites, errors)
    for played in range(1, spec.max_rounds + 1):
        asked = algorithm.invited(spec.seed, played - 1, names)
        told = Progress("rounds", played, spec.max_rounds, movement)
        mail = algorithm.broadcast(family, central)
        replies = yield Ask("step", mail, told, to=None if asked.all() else asked, optional=True)
        uploads: Upload = patience.heard(family, central, replies.mail, replies.present)
        after, influence = algorithm.central_step(family, central, uploads, replies.present)
        near = Near.of(family, after)
        last = _record(family, central, answered, after, uploads, influence, replies.present, last, near)
        records.append(last)
        answered, central, waiting = keep_absent(after.params, answered, replies.present), after, waiting & ~asked
        movement = float(median(last.movement))
        settled = (last.movement < spec.tol) | (last.movement_in_errors < errors)
        if waiting.any():
            continue
        center_settled = bool(
            _relative(begun.center, after.center).max() < spec.tol
            or _center_in_errors(family, begun, after, near) < errors
        )
        begun, waiting = after, everyone(n_sites)
        moving = int((~settled).sum())
        since = (since or played) if center_settled and moving <= MOST_BAD * n_sites else 0
        # Stragglers thus get at most 50% more rounds than the others needed, plus ten.
        ended = (center_settled and moving == 0) or (since > 0 and played >= 1.5 * since + 10)
        stopped = ended and moving <= tolerated_stragglers(n_sites)
        if ended:
            break
    history = {
        name: np.array([getattr(record, name) for record in records]).reshape(len(records), *np.shape(kept))
        for name, kept in last._asdict().items()
    }
    return Played(central, influence, len(records), stopped, settled, history)


def tolerated_stragglers(n_sites: int) -> int:
    """How many odd sites may still creep when the rest is settled: one in four, and one where there are 3."""
    return 0 if n_sites < 3 else max(1, n_sites // 4)


def _record(
    family: Family,
    before: Central,
    answered: Params,
    after: Central,
    uploads: Upload,
    influence: Influence,
    present: Array,
    last: RoundRecord,
    near: Near,
) -> RoundRecord:
    everyone_answered = bool(present.all())

    def heard(new: Array, old: Array) -> Array:
        """What is new of the sites that answered, and what was last known of the others."""
        return new if everyone_answered else np.where(present, new, old)

    movement, in_errors = movements(family, answered, after, near)
    return RoundRecord(
        log_likelihood=heard(uploads.log_likelihood, last.log_likelihood),
        movement=heard(movement, last.movement),
        center_movement=_relative(before.center, after.center).max(),
        penalty=np.asarray(influence.penalty),
        distance=near.distance.max(axis=1),
        solver_iterations=influence.iterations,
        movement_in_errors=heard(in_errors, last.movement_in_errors),
        solver_gap=influence.gap,
    )


def movements(family: Family, before: Params, after: Central, near: Near) -> tuple[Array, Array]:
    """How far the sites moved, ``(K, ...)``: relative to where they were, and in units of about their standard errors.

    Those of a parameter in units of the noise are about ``1 / sqrt(rows)``, of the rows that a component holds: at one
    site or, where components sit on the center, at all of these together.
    """
    params = after.params
    rows = after.n_rows.reshape(-1, *(1,) * (params.weights.ndim - 1))
    theta, weights = params.theta - before.theta, np.abs(params.weights - before.weights)
    relative = np.maximum(row_norm(theta) / (1.0 + row_norm(before.theta)), weights).max(axis=-1)
    known = np.sqrt(np.where(near.distance == 0.0, near.common, near.held))
    of_weights = np.sqrt(np.maximum(params.weights * (1.0 - params.weights), 1.0 / rows) / rows)
    in_errors = np.maximum(row_norm(family.whiten(theta, near.units)) * known, weights / of_weights).max(axis=-1)
    if params.noise is not None and before.noise is not None:
        noise = np.abs(params.noise - before.noise).max(axis=(-2, -1))
        relative = np.maximum(relative, noise)
        in_errors = np.maximum(in_errors, noise * np.sqrt(2.0 * rows[..., 0]))
    return relative, in_errors


def _center_in_errors(family: Family, before: Central, after: Central, near: Near) -> float:
    """Movement of the center in units of about its standard errors."""
    length = row_norm(family.whiten(after.center - before.center, near.units))
    return float((length * np.sqrt(np.maximum(near.common, median(near.held)))).max())


def _relative(before: Array, after: Array) -> Array:
    return np.asarray(row_norm(after - before) / (1.0 + row_norm(before)))


def result_of(family: Family, names: tuple[str, ...], played: Played, start_choice: Array, **more: Any) -> FitResult:
    """What the rounds found; ``more`` is what was found before or after them."""
    central = played.central
    return FitResult(
        site_names=names,
        weights=np.array(central.params.weights),
        theta=np.array(central.params.theta),
        center=np.array(central.center),
        noise=None if central.params.noise is None else np.array(central.params.noise),
        center_noise=None if central.noise is None else np.array(central.noise),
        distance=Near.of(family, central).distance,
        n_rows=np.array(central.n_rows),
        n_rounds=played.n_rounds,
        converged=played.stopped,
        unsettled=tuple(name for name, settled in zip(names, played.settled, strict=True) if not settled),
        influence=played.influence,
        start_choice=start_choice,
        **{"history": played.history} | more,
    )
