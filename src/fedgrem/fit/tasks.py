"""What the center can ask of a site, by name: the same table for every engine.

A task is a function of the spec, a stack of sites and their mail, everything with one entry per site first. It answers
from the rows and what it was sent, and remembers nothing. No shape of a reply depends on the number of rows.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from scipy.special import entr

from fedgrem.data.stack import Stack
from fedgrem.families.base import weights_of
from fedgrem.fit.births import birth, hold
from fedgrem.fit.em import Prior, em, first_best, take
from fedgrem.fit.spec import FitSpec
from fedgrem.types import Array, Broadcast, Params, Sums, Upload, map_arrays

LOOK_STEPS = 20
"""Gradient steps from the center: enough to say where the rows pull, too few to fit the noise of a rare component."""
LOOK_STEP_SIZE = 0.95
TRACK_STEPS = 4
"""EM iterations on every joint start between two messages."""
MOST_SQUARE = 4.0
"""Of a response, in units of its variance, in the search for columns: single rows must not lead it."""
MOST_PER_ROW = 5.0
"""Of log-likelihood that one row can speak for or against a penalty: a row far from everything must not decide."""


# -- before round 1


class StartRequest(NamedTuple):
    """What a site is sent to find a start."""

    again: Array
    """() 0 the first time, 1 in common units."""
    noise: Array | None
    """(C, s) how large the noise is, which EM then holds; None the first time."""


class Candidates(NamedTuple):
    """Starts that a site is to improve on its own rows."""

    params: Params
    """(M, R), (M, R, q)"""
    penalty: Array
    """() lambda: what a distance from the common start costs."""


class StartReply(NamedTuple):
    """What a site answers: a start, or all M joint starts, improved."""

    params: Params
    """The best start this site found, judged on its own rows; where joint starts are improved, all M of them."""
    n_rows: Array
    """() the total row weight."""
    log_likelihood: Array
    """() of that start; (M,) where joint starts are improved."""
    choice: Array
    """() which candidate won, 0 being the site's own; (M,) zeros where nothing is chosen."""


def size(spec: FitSpec, stack: Stack, given: Params) -> StartReply:
    """The site's size and, where the noise is estimated, a first guess of it, for a fit from given values."""
    noise = given.noise
    if noise is None:
        first = spec.family.first_noise(stack, given.theta[:, None])
        noise = None if first is None else first[:, 0]
    nothing = np.zeros(len(stack))
    return StartReply(given._replace(noise=noise), stack.n_rows, nothing, nothing.astype(int))


def start(spec: FitSpec, stack: Stack, request: StartRequest) -> StartReply:
    """Several short EM runs from random starts; the best goes on for longer.

    If the center says how large the noise is, starts are drawn in its units and EM holds it.
    """
    family, plan, n_components = spec.family, spec.start, spec.n_components
    held = request.noise is not None
    few = stack if plan.restart_rows is None else _thinned(stack, plan.restart_rows)
    purpose = "start" if int(request.again[0]) == 0 else "start in common units"
    theta = family.draw(few, spec.seed, purpose, plan.n_init, n_components, request.noise)
    if request.noise is None:
        noise = family.first_noise(few, theta)
    else:
        noise = np.repeat(request.noise[:, None], theta.shape[1], axis=1)
    even = np.full(theta.shape[:-1], 1.0 / n_components)
    runs = em(family, few, Params(even, theta, noise), plan.short, hold_noise=held)
    best = take(runs.params, first_best(runs.value))
    one: Params = map_arrays(lambda leaf: leaf[:, None], best)
    end = em(family, stack, one, plan.long, hold_noise=held)
    return _chosen(spec, stack, end.params, end.sums, np.zeros(len(stack), dtype=int), own_noise=held)


def _thinned(stack: Stack, most: int) -> Stack:
    """Every ``stride``-th row, so that about ``most`` are left: rows are in order of their values, so all are met."""

    def make(whole: Stack) -> Stack:
        stride = max(1, whole.size // most)
        target = None if whole.target is None else whole.target[:, ::stride]
        observed = None if whole.observed is None else whole.observed[:, ::stride]
        return Stack(whole.names, whole.rows[:, ::stride], target, whole.weight[:, ::stride], observed)

    found: Stack = stack.derive(("thinned", most), make)
    return found


def compare(spec: FitSpec, stack: Stack, sent: Candidates) -> StartReply:
    """EM from every candidate, pulled towards the common start; the one that fits these rows best is kept.

    Candidate 0 is this site's own start, candidate 1 the common one. Without the pull, a site that has few or no rows
    of a component would rather split another one in two.
    """
    common: Params = map_arrays(lambda leaf: leaf[:, 1:2], sent.params)
    noise = common.noise
    tried = sent.params
    if noise is not None:
        tried = tried._replace(noise=np.repeat(noise, tried.weights.shape[1], axis=1))
    prior = Prior(common.theta, sent.penalty, noise, spec.family.doubt(stack))
    runs = em(spec.family, stack, tried, spec.start.long, prior, hold_noise=True)
    best = first_best(runs.value)
    return _chosen(spec, stack, runs.params, runs.sums, best, own_noise=True)


def joint_start(spec: FitSpec, stack: Stack, sent: Candidates) -> StartReply:
    """A few EM iterations from every candidate, each pulled towards where it came from; the last M-step is free.

    The pull keeps labels and lets a site fill what it has few rows of; the free step says where its rows would go.
    """
    family = spec.family
    prior = Prior(sent.params.theta, sent.penalty, sent.params.noise)
    runs = em(family, stack, sent.params, TRACK_STEPS, prior)
    theta = family.maximize(stack, runs.params, runs.sums)
    noise = family.noise_step(runs.sums, theta, runs.params.noise)
    params = Params(weights_of(runs.sums), theta, noise)
    return StartReply(params, stack.n_rows, runs.value, np.zeros(runs.value.shape, dtype=int))


def _chosen(spec: FitSpec, stack: Stack, params: Params, sums: Sums, best: Array, *, own_noise: bool) -> StartReply:
    """One fit of each site; with ``own_noise``, with the noise that its rows have about it."""
    sites, one = np.arange(len(best)), take(params, best)
    if own_noise and one.noise is not None:
        rest = np.broadcast_to(sums.rest, (*sums.log_likelihood.shape, sums.rest.shape[-1]))
        mine = Sums(sums.features[sites, best], rest[sites, best], sums.log_likelihood[sites, best])
        one = one._replace(noise=spec.family.noise_step(mine, one.theta, one.noise))
    return StartReply(one, stack.n_rows, sums.log_likelihood[sites, best], best)


# -- the choice of the penalty


class PathRequest(NamedTuple):
    """What a site is sent in a round of the path."""

    parts: Array
    """() in how many parts its rows are cut."""
    fits: Broadcast
    """(2, M, ...) to each fit what the algorithm itself would send: without the first part of the rows, or without the
    second, for each of M penalties."""


class PathReply(NamedTuple):
    """What it answers."""

    fits: Upload
    """(2, M, ...)"""
    n_rows: Array
    """() the total row weight."""


class ScoreRequest(NamedTuple):
    """What a site is sent to judge the fits."""

    parts: Array
    """() as in the rounds."""
    fits: Params
    """(2, M, ...)"""


class ScoreReply(NamedTuple):
    """What it answers: held-out log-likelihoods, and no more of them than one number per penalty."""

    gain: Array
    """(M,) mean log-likelihood per row, less that of the first penalty."""
    error: Array
    """(M,) its standard error, from the differences of single rows."""
    n_rows: Array
    """()"""


def path_step(spec: FitSpec, stack: Stack, request: PathRequest) -> PathReply:
    """The algorithm's own local step for every fit of the path, each on the rows that it may see."""
    seen, _ = stack.halves(spec.seed, int(request.parts[0]))
    reply: Upload = spec.algorithm.local_step(spec.family, seen, halves_first(request.fits), spec.seed)
    fits: Upload = map_arrays(lambda leaf: leaf.reshape(len(stack), 2, *leaf.shape[1:]), reply)
    return PathReply(fits, stack.n_rows)


def halves_first(fits: Any) -> Any:
    """What is sent to the fits of c sites, ``(c, 2, M, ...)``, as that to 2c of them, ``(2c, M, ...)``."""

    def flat(leaf: Array) -> Array:
        return np.repeat(leaf, 2) if leaf.ndim == 1 else leaf.reshape(-1, *leaf.shape[2:])

    return map_arrays(flat, fits)


def path_score(spec: FitSpec, stack: Stack, request: ScoreRequest) -> ScoreReply:
    """Every row judged by the fits that have not seen it: what each penalty gains over the first, per row."""
    _, unseen = stack.halves(spec.seed, int(request.parts[0]))
    _, per_row = spec.family.row_scores(unseen, halves_first(request.fits))
    # Against the middle of the path, and bounded: alone, a site of few rows may fit so badly that all looks equal.
    away = per_row - per_row[:, [per_row.shape[1] // 2]]
    away = np.clip(np.nan_to_num(away, nan=-MOST_PER_ROW), -MOST_PER_ROW, MOST_PER_ROW)
    away -= away[:, :1].copy()
    weight = unseen.weight[:, None]

    def over_halves(found: Array) -> Array:
        return np.asarray(found.reshape(len(stack), 2, -1).sum(axis=1))

    count = np.maximum(over_halves(unseen.n_rows), np.finfo(float).tiny)
    gain = over_halves((weight * away).sum(axis=-1)) / count
    square = over_halves((weight * away * away).sum(axis=-1)) / count
    variance = np.maximum(square - gain * gain, 0.0)
    return ScoreReply(gain, np.sqrt(variance / np.maximum(count - 1.0, 1.0)), stack.n_rows)


# -- rounds, and after them


def step(spec: FitSpec, stack: Stack, sent: Broadcast) -> Upload:
    """One round of the algorithm at this site."""
    return spec.algorithm.local_step(spec.family, stack, sent, spec.seed)


class Score(NamedTuple):
    """What a site says of a finished fit."""

    n_rows: Array
    """() the total row weight."""
    log_likelihood: Array
    """() of the site's parameters, on its own rows."""
    entropy: Array
    """() of the rows' components given the rows, in nats: 0 where every row surely belongs to one."""


def score(spec: FitSpec, stack: Stack, params: Params) -> Score:
    """How well a mixture explains the sites' rows, and how sure it is of their components."""
    posterior, per_row = spec.family.row_scores(stack, params)
    used = stack.weight > 0
    value, unsure = (np.where(used, v, 0.0) for v in (per_row, entr(posterior).sum(axis=1)))
    return Score(stack.n_rows, (stack.weight * value).sum(axis=1), (stack.weight * unsure).sum(axis=1))


class HeldDown(NamedTuple):
    """What a site says of rows that are bounded."""

    n_rows: Array
    """() the total row weight."""
    held_down: Array
    """() the share of it that does not count."""


def held_down(spec: FitSpec, stack: Stack, params: Params) -> HeldDown:
    """What share of the sites' rows does not count, because they are of no component."""
    sums = spec.family.expect(stack, params, scored=False)
    return HeldDown(stack.n_rows, np.clip(1.0 - sums.held.sum(axis=-1) / stack.n_rows, 0.0, 1.0))


class Look(NamedTuple):
    """What a site answers to a look from the center. No shape depends on the number of rows."""

    params: Params
    """Where its rows lead from the center, with nothing that pulls back."""
    n_rows: Array
    """() the total row weight."""
    log_likelihood: Array
    """() of these parameters."""
    at_center: Array
    """() of the center's components, with the weights that suit this site best."""

    def found(self) -> dict[str, Array]:
        """By name, as a result keeps it."""
        return {"theta": self.params.theta, "log_likelihood": self.log_likelihood, "at_center": self.at_center}


def look(spec: FitSpec, stack: Stack, center: Params) -> Look:
    """Gradient EM from the center on the sites' rows: of the weights alone, then of everything.

    Twice the difference of the two log-likelihoods is about chi-squared where a site is at the center, whatever the
    units of the rows, the size of the site and the overlap of the components.
    """
    family, told, now = spec.family, [], center
    for free in (False, True):
        now = center
        scale = family.open(stack, center.noise, stack.rows.shape[-1])
        for _ in range(LOOK_STEPS):
            sums = family.expect(stack, now, scale, scored=False)
            if not free:
                now = now._replace(weights=weights_of(sums))
                continue
            theta = family.ascend(stack, now, sums, LOOK_STEP_SIZE).theta
            now = Params(weights_of(sums), theta, family.noise_step(sums, theta, now.noise))
            scale = family.open(stack, now.noise, stack.rows.shape[-1])
        told.append(family.expect(stack, now, scale).log_likelihood)
    return Look(now, stack.n_rows, told[1], told[0])


class Information(NamedTuple):
    """What a site answers when it is sent its final parameters. No shape depends on its rows."""

    params: Params
    """As they were sent, but for the weights: those that the site's rows have under them."""
    packed: Array
    """(d (d + 1) / 2,) the lower triangle of the information in R log weights and R q component parameters; zeros where
    the site cannot tell."""
    n_rows: Array
    """() the total row weight."""


def information(spec: FitSpec, stack: Stack, params: Params) -> Information:
    """The observed information in the sites' rows about their weights and component parameters."""
    matrix = spec.family.information(stack, params)
    i, j = np.tril_indices(matrix.shape[-1])
    packed = matrix[:, i, j]
    packed = np.where(np.isfinite(packed).all(axis=1, keepdims=True), packed, 0.0)
    held = weights_of(spec.family.expect(stack, params, scored=False))
    return Information(Params(held, params.theta), packed, stack.n_rows)


# -- which columns of many tell components apart


class Directions(NamedTuple):
    """What a site is sent."""

    axes: Array
    """(p, d) orthonormal."""


class Found(NamedTuple):
    """What a site is sent after a fit."""

    params: Params
    """(R,), (R, q), of the columns that the fit was about."""
    columns: Array
    """(q,) which these are."""


class Contrast(NamedTuple):
    """What it answers: posterior sums of all columns."""

    held: Array
    """(R,) rows."""
    away: Array
    """(R, p) sums of the rows about their mean; of a regression, of their products with residuals, both in units of
    their standard deviations."""
    known: Array | None
    """(R, R) of a regression, sums of the products of two components' residuals: what is known of a coefficient."""
    gram: Array | None
    """(q, q) of a regression, sums of the products of what the fit was about."""
    n_rows: Array
    """() the total row weight."""


class Variation(NamedTuple):
    """What it answers: sums over its rows."""

    product: Array
    """(p, d) the columns' covariances without their variances, times the axes; of a regression, how correlations of the
    columns vary with the square of the response, times the axes."""
    own: Array | None
    """(2, p) correlations of every column with the response, and of its square with that of the response; None without
    a response."""
    n_rows: Array
    """() the total row weight."""


def variation(spec: FitSpec, stack: Stack, sent: Directions) -> Variation:
    """How the columns of the sites vary together along the axes, in the units of the fit, or with the response."""
    rows, square = _about_means(stack, sent.axes.shape[-2])
    share = stack.weight / stack.n_rows[:, None]
    if stack.target is None:
        product = rows.swapaxes(-1, -2) @ (share[..., None] * (rows @ sent.axes)) - square[..., None] * sent.axes
        return Variation(product, None, stack.n_rows)
    rows = rows / _root(square)[:, None]
    response = _standard(stack.target, share)
    size = _standard(np.minimum(np.square(response), MOST_SQUARE), share)
    size, response = share * size, share * response
    product = rows.swapaxes(-1, -2) @ (size[..., None] * (rows @ sent.axes))
    own = np.stack([(response[:, None] @ rows)[:, 0], (size[:, None] @ (rows * rows))[:, 0]], axis=1)
    return Variation(product, own, stack.n_rows)


def contrast(spec: FitSpec, stack: Stack, sent: Found) -> Contrast:
    """How all columns differ between the components of a fit that was about some of them."""
    columns, width = sent.columns[0], stack.rows.shape[-1] - spec.units.intercept
    used = np.append(columns, width) if spec.units.intercept else columns
    part = Stack(stack.names, stack.rows[..., used], stack.target, stack.weight)
    posterior, _ = spec.family.row_scores(part, sent.params)
    mass = posterior * stack.weight[:, None]
    held = mass.sum(axis=-1)
    rows, square = _about_means(stack, width)
    if stack.target is None:
        return Contrast(held, mass @ rows, None, None, stack.n_rows)
    residual = stack.target[:, None] - sent.params.theta @ part.rows.swapaxes(-1, -2)
    residual /= _root((mass * residual**2).sum(axis=-1, keepdims=True) / np.maximum(held, 1.0)[..., None])
    away = mass * residual
    known = away @ (posterior * residual).swapaxes(-1, -2)
    gram = (part.rows * stack.weight[..., None]).swapaxes(-1, -2) @ part.rows
    return Contrast(held, away @ (rows / _root(square)[:, None]), known, gram, stack.n_rows)


def _standard(values: Array, share: Array) -> Array:
    """Numbers ``(c, n)`` of the rows with mean 0 and variance 1 at every site."""
    about = values - (share * values).sum(axis=1, keepdims=True)
    return np.asarray(about / _root((share * about**2).sum(axis=1, keepdims=True)))


def _root(square: Array) -> Array:
    """Of variances; 1 where nothing varies."""
    return np.asarray(np.sqrt(np.where(square > 0, square, 1.0)))


def _about_means(stack: Stack, width: int) -> tuple[Array, Array]:
    """The first columns of the rows about their site's mean ``(c, n, p)``, and their variances ``(c, p)``."""

    def make(whole: Stack) -> tuple[Array, Array]:
        share = whole.weight / whole.n_rows[:, None]
        rows = whole.rows[..., :width]
        rows = rows - share[:, None] @ rows
        return rows, (share[:, None] @ (rows * rows))[:, 0]

    found: tuple[Array, Array] = stack.derive(("about means", width), make)
    return found


TASKS: dict[str, Callable[[FitSpec, Stack, Any], Any]] = {
    "size": size,
    "start": start,
    "compare": compare,
    "joint_start": joint_start,
    "path_step": path_step,
    "path_score": path_score,
    "weights_score": path_score,
    "step": step,
    "birth": birth,
    "hold": hold,
    "score": score,
    "held_down": held_down,
    "look": look,
    "information": information,
    "variation": variation,
    "contrast": contrast,
}
"""name -> function of the spec, the stacked rows and the mail."""
AT_HOME = frozenset({"variation", "contrast"})
"""Those of a sparse fit, which is several fits; not played over a network yet."""
AFTER_BIRTHS = ("birth", "hold", "step", "score", "held_down", "look", "information")
"""Those that may be about another number of components than the fit began with."""
