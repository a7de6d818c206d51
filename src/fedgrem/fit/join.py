"""One more site later: the phase of the rounds with a frozen center."""

from dataclasses import replace
from typing import Any

import numpy as np

from fedgrem.algorithms.base import Pull, full_penalty
from fedgrem.fit.births import Prices
from fedgrem.fit.conversation import Agreed, Ask, Phase, everyone, with_agreement
from fedgrem.fit.em import LARGEST_PENALTY, Prior, objective
from fedgrem.fit.rounds import Played, play_rounds, result_of
from fedgrem.fit.spec import PAPERS_PENALTY, FitSpec
from fedgrem.fit.starts import align_to
from fedgrem.fit.tasks import StartRequest
from fedgrem.types import Array, FitResult, Params, map_arrays


def join(spec: FitSpec, name: str, center: Params, agreed: Agreed) -> Phase[FitResult]:
    r"""Fit one site against a center, ``(R,), (R, q), (C, s)``; ``spec.algorithm`` holds it frozen.

    From the site's own start, which is given the center's labels, and from the center; the better objective, the
    log-likelihood less :math:`\sqrt n \lambda \sum_r w_r \|\theta_r - c_r\|` (capped as for starts), wins.
    """
    return (yield from with_agreement(_join(spec, name, center), agreed))


def _join(spec: FitSpec, name: str, center: Params) -> Phase[FitResult]:
    family, algorithm = spec.family, spec.algorithm
    one: Params = map_arrays(lambda leaf: leaf[None], center)
    replies = yield Ask("start", StartRequest(np.zeros(1, dtype=int), one.noise))
    own = align_to(family, replies.mail.params, center)
    n_rows: Array = replies.mail.n_rows
    nothing = Pull(np.zeros(()), np.zeros(()), everyone(1))
    penalty = min(float(getattr(algorithm, "penalty", 0.0)), LARGEST_PENALTY)
    if getattr(algorithm, "between", None) is not None:
        penalty = float(full_penalty(PAPERS_PENALTY, one.theta.shape[-1], 1))  # only to tell which start did better
    prior = Prior(one.theta, np.array([penalty]), one.noise)
    ends: list[tuple[Played, float, float]] = []
    for start in (own, one):
        played = yield from play_rounds(spec, algorithm.begin(family, start, n_rows, nothing), (name,))
        scored = yield Ask("score", played.central.params)
        reached: Array = scored.mail.log_likelihood
        value = float(objective(family, played.central.params, reached, n_rows, prior)[0])
        ends.append((played, value, float(reached[0])))
    # The center's way wins ties: where both lead to one answer, it has the center's labels for certain.
    choice = 0 if ends[0][1] > ends[1][1] + 1e-7 * (1.0 + abs(ends[1][1])) else 1
    played, _, log_likelihood = ends[choice]
    held_down = None
    if family.robust_rows:
        counted = yield Ask("held_down", ends[choice][0].central.params)
        held_down = counted.mail.held_down
    looked = yield Ask("look", one)
    history = {"log_likelihood": np.array([[log_likelihood]]), "movement": played.history["movement"][-1:]}
    return result_of(
        family, (name,), played, np.array([choice]), history=history, look=looked.mail.found(), held_down=held_down
    )


def kept(params: Params, price: Array, agreed: Agreed) -> Phase[Array]:
    """Which components ``(1, R)`` are worth their price ``(R,)`` to the one site."""
    return (yield from with_agreement(_kept(params, price), agreed))


def _kept(params: Params, price: Array) -> Phase[Array]:
    replies = yield Ask("hold", Prices(params, price[None]))
    held: Array = replies.mail.weights[0] > 0
    return held


def as_one_site(spec: FitSpec, algorithm: Any, tol: float) -> FitSpec:
    """The spec of a fit for one more site of it."""
    return replace(spec, algorithm=algorithm, tol=tol, given=None, start=replace(spec.start, joint_starts=0))
