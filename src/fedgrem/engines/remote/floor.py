"""The floor: no number of a site is about fewer rows than that.

A component that holds fewer of the site's rows is left out, and with it the rows that belong to it and others drawn by
chance, until as many rows are left out as the floor: what is left out cannot be found by subtraction either. Of that
component the site answers what it was sent, with next to no weight; in a start, where nothing was sent, it repeats its
largest one. A birth of a component that holds fewer is none, and who is asked which components it has lacks those.

Two answers can be subtracted, too: a cut through the rows that is moved a little between them would show the rows in
between. Components that cut rows sharply explain them badly, and of parameters that are far from its rows a site says
nothing: it answers what it was sent. An honest center sends such only where sites must all have one answer, to a site
unlike the others.
"""

from dataclasses import replace
from hashlib import sha256
from typing import Any, NamedTuple

import numpy as np

from fedgrem.algorithms.state import Toward
from fedgrem.data.stack import Stack
from fedgrem.errors import FedGrEMError
from fedgrem.fit.births import Bases, Birth, Prices, noise_by_component
from fedgrem.fit.spec import FitSpec
from fedgrem.fit.tasks import TASKS, Candidates, Information, PathRequest, ScoreRequest, StartRequest
from fedgrem.kernels.triangle import symmetric
from fedgrem.types import Array, Broadcast, Params, components_of, map_arrays

NOBODY = 1e-6
"""The weight that a site reports of a component below its floor, if that is less than half a row."""
GONE = 1e-200
"""The weight of a row that is left out: it still has its place where rows are cut in halves."""
FAR = 10.0
"""By how much less log-likelihood a row, and one more for every column, an order's parameters explain a site's rows
than its own answers did, where they are not those of a fit of these rows."""
REPEATED = ("step", "path_step", "joint_start")
"""Tasks that are asked again and again, about other parameters."""
BIRTHS = 3
"""Times that a further component is looked for where those that are found hold too few rows."""
PARTS = (2, 4)
"""In how many parts a center may have rows cut: of more, a part might be a single row."""


class BelowFloorError(FedGrEMError):
    """What was asked cannot be answered from enough rows."""


class Answer(NamedTuple):
    """A site's answer, and what it does not say."""

    reply: Any
    held_back: list[int]
    """Components of fewer rows than the floor, which are answered as they were sent."""
    far: bool = False
    """Whether something was answered as it was sent because it is far from these rows."""


def rows_alike(weight: Array) -> Array:
    r"""How many rows have a say of about the largest, :math:`\sum_i a_i^2 / \max_i a_i^2`, over the last axis.

    At most the effective number of rows, and at most one over the largest share: one row of weight 1000 among
    three hundred of weight 1 makes it 1, and so does one row among any number that hardly count.

    Examples
    --------
    >>> rows_alike(np.ones(30)).round(2).item(), rows_alike(np.array([1000.0] + [1.0] * 300)).round(2).item()
    (30.0, 1.0)
    """
    square = weight * weight
    most = square.max(axis=-1)
    return np.asarray(square.sum(axis=-1) / np.where(most > 0, most, 1.0))


def rows_held(spec: FitSpec, stack: Stack, params: Params) -> Array:
    """Rows that every component holds, ``(c, ..., R)``: counted, whatever they weigh, and with about an equal say."""
    posterior, _ = spec.family.row_scores(stack, params)
    weight = stack.weight.reshape(len(stack), *(1,) * (posterior.ndim - 2), -1)
    posterior = np.where(weight > 1e3 * GONE, np.nan_to_num(posterior), 0.0)
    return np.asarray(np.minimum(posterior.sum(axis=-1), rows_alike(posterior * weight)))


def explained(sent: dict[str, Any]) -> float:
    """The log-likelihood a row that a site has told, by the names of what it sent; minus infinity if it has not."""
    told, n_rows = sent.get("log_likelihood"), sent.get("n_rows")
    return -np.inf if told is None or not n_rows or np.ndim(told) else float(told) / float(n_rows)


def answer_above(spec: FitSpec, stack: Stack, task: str, mail: Any, floor: float, best: float = -np.inf) -> Answer:
    """Do a task on one site's rows, ``mail`` with an axis of one site first, so that its floor holds.

    ``best`` is the largest log-likelihood a row that the site has told in this fit.

    Rows are counted at what was sent and at what would be answered. Where an order is about several mixtures, a
    component is left out of all of them if it is of one; candidates for a start, whose labels need not agree, go one by
    one.
    """
    if floor <= 1:
        return Answer(TASKS[task](spec, stack, mail), [])
    if task == "joint_start":
        count = mail.params.weights.shape[1]
        every = (mail._replace(params=_place(mail.params, m)) for m in range(count))
        each = [_answer(spec, stack, task, one, floor, best=best) for one in every]
        reply = map_arrays(
            lambda *leaves: np.concatenate(leaves, axis=1), *(one.reply._replace(n_rows=()) for one in each)
        )
        held_back = sorted({r for one in each for r in one.held_back})
        return Answer(reply._replace(n_rows=stack.n_rows), held_back, any(one.far for one in each))
    if task == "held_down":
        few = TASKS[task](spec, stack, mail)
        return Answer(few._replace(held_down=np.where(few.held_down * few.n_rows < floor, 0.0, few.held_down)), [])
    if task == "compare":
        return _best_of(spec, stack, mail, floor)
    if task == "birth":
        return _born(spec, stack, mail, floor)
    if task == "hold":
        return _holding(spec, stack, mail, floor)
    return _answer(spec, stack, task, mail, floor, best=best)


def _best_of(spec: FitSpec, stack: Stack, mail: Candidates, floor: float) -> Answer:
    """The exchange of starts: the best of what every candidate leads to without the components of few rows."""
    count = mail.params.weights.shape[1]
    if not any(_few(spec, stack, _place(mail.params, m), floor, 1.0).any() for m in range(count)):
        return _answer(spec, stack, "compare", mail, floor)
    found: list[Answer] = []
    for m in range(count):
        pair = map_arrays(lambda leaf, m=m: leaf[:, [m, 1]], mail.params)  # the common start is what pulls
        try:
            one = _answer(spec, stack, "compare", mail._replace(params=pair), floor, _place(mail.params, m))
        except BelowFloorError:
            continue
        found.append(one._replace(reply=one.reply._replace(choice=np.where(one.reply.choice == 0, m, 1))))
    if not found:
        raise BelowFloorError(f"no start leaves a component that holds as many rows as the floor, {floor:g}.")
    return max(found, key=lambda one: float(one.reply.log_likelihood[0]))


def _born(spec: FitSpec, stack: Stack, mail: Bases, floor: float) -> Answer:
    """One more component of at least so many rows; where there is none, the base as it was sent, and no gain."""
    sent = mail.params
    few = _few(spec, stack, sent, floor, 1.0)
    out, emptied, tries = _belongs(spec, stack, sent, few), few.copy(), BIRTHS
    while True:
        here = _left(stack, out, floor)
        reply: Birth = TASKS["birth"](spec, here, _without(mail, few))
        fewer = _few(spec, here, reply.params, floor, 1.0)
        tries -= int(fewer[-1])
        if not tries or not (fewer & ~np.append(emptied[~few], False)).any():
            break
        out = out | _belongs(spec, stack, reply.params, fewer)
        emptied[~few] |= fewer[:-1]  # a component that the new one took the rows of is still one of the base
    # Where rows had to be left out first, what another component would do without is no further one.
    none = fewer[-1] or (tries < BIRTHS and emptied[~few].any())
    base = (reply.lead < 0).astype(int) if none else reply.base
    sites, last = np.arange(len(base)), [*range(sent.weights.shape[-1]), -1]
    chosen: Params = map_arrays(lambda leaf: leaf[sites, base], sent)
    added = components_of(chosen, np.array(last))
    added.weights[..., -1] = 0.0
    if not noise_by_component(spec.family, stack.rows.shape[-1]):
        added = added._replace(noise=chosen.noise)
    held_back = np.flatnonzero(emptied).tolist()
    if none:
        return Answer(reply._replace(params=added, base=base, gain=np.minimum(reply.gain, 0.0)), held_back)
    if emptied.any():
        reply = reply._replace(params=_kept(reply.params, ~np.append(emptied[~few], False)))
        reply = _completed(spec, reply, added, np.append(emptied, False))
    return Answer(reply, held_back)


def _holding(spec: FitSpec, stack: Stack, mail: Prices, floor: float) -> Answer:
    """The components that hold at least so many rows of those that the site has; it lacks the others."""
    few, out = np.zeros(mail.params.weights.shape[-1], dtype=bool), np.zeros(stack.size, dtype=bool)
    while True:
        here = _left(stack, out, floor)
        reply = TASKS["hold"](spec, here, _without(mail, few))
        found = _without(mail, few).params._replace(weights=reply.weights)
        has = reply.weights[0] > 0
        fewer = np.zeros(len(has), dtype=bool)
        fewer[has] = _few(spec, here, _kept(found, has), floor, 1.0)
        if not fewer.any():
            break
        out = out | _belongs(spec, stack, found, fewer)
        few[~few] = fewer
    weights, loss = (_put(np.zeros(1), leaf[..., None], few)[..., 0] for leaf in (reply.weights, reply.loss))
    return Answer(reply._replace(weights=weights, loss=loss), np.flatnonzero(few).tolist())


def _place(params: Params, place: int) -> Params:
    found: Params = map_arrays(lambda leaf: leaf[:, place : place + 1], params)
    return found


def _answer(
    spec: FitSpec,
    stack: Stack,
    task: str,
    mail: Any,
    floor: float,
    counted: Params | None = None,
    best: float = -np.inf,
) -> Answer:
    """The answer; rows are counted at what was sent, or at a part of it."""
    sent = params_of(mail)
    counted = sent if counted is None else counted
    count = spec.n_components if sent is None else sent.weights.shape[-1]
    few, out, here = np.zeros(count, dtype=bool), np.zeros(stack.size, dtype=bool), stack
    if counted is not None:
        few = _few(spec, _rows_of(spec, stack, mail), counted, floor, 1.0)
        out = _belongs(spec, stack, counted, few)
    while True:
        here = _left(stack, out, floor)
        part = spec if sent is not None else replace(spec, n_components=int((~few).sum()))
        reply = TASKS[task](part, here, _without(mail, few))
        found = getattr(getattr(reply, "fits", reply), "params", None)
        if found is None or isinstance(reply, Information):
            break
        fewer = _few(spec, _rows_of(spec, here, mail), found, floor, _share(mail))
        _check_extra(getattr(getattr(reply, "fits", reply), "extra", ()), fewer, stack, floor)
        if not fewer.any():
            break
        out = out | _belongs(spec, stack, found, fewer)
        more = few.copy()
        more[~few] = fewer
        # Labels of a start mean nothing yet: then it is one of fewer components.
        few = more if sent is not None else np.arange(len(few)) >= len(few) - more.sum()
    whole = _completed(spec, reply, sent, few) if few.any() else reply
    far = np.zeros(1, dtype=bool)
    if task in REPEATED and best > -np.inf:
        assert sent is not None
        least = best - FAR - stack.rows.shape[-1]
        far = _explains(spec, _rows_of(spec, stack, mail), sent) < least
        whole = _as_sent(whole, sent, far, least) if far.any() else whole
    # What a site lacks is not held back.
    there = few if sent is None else few & (sent.weights > 0).any(axis=tuple(range(sent.weights.ndim - 1)))
    return Answer(whole, np.flatnonzero(there).tolist(), bool(far.any()))


def _explains(spec: FitSpec, stack: Stack, params: Params) -> Array:
    """(1, ...) the mean log-likelihood of a row under each of these mixtures."""
    value = spec.family.row_scores(stack, params if len(stack) == 1 else map_arrays(lambda leaf: leaf[0], params))[1]
    weight = stack.weight.reshape(len(stack), *(1,) * (value.ndim - 2), -1)
    mean = (weight * np.nan_to_num(value, nan=-np.inf)).sum(axis=-1) / weight.sum(axis=-1)
    return np.asarray(mean if len(stack) == 1 else mean[None])


def _as_sent(reply: Any, sent: Params, far: Array, least: float) -> Any:
    """A reply that says nothing of some of the mixtures ``(1, ...)`` that were sent."""
    part = getattr(reply, "fits", reply)
    if len(getattr(part, "extra", ())):
        raise BelowFloorError("the parameters are far from these rows, and this algorithm sends sums of its own.")

    def kept(instead: Any, found: Array) -> Array:
        return np.where(far.reshape(*far.shape, *(1,) * (found.ndim - far.ndim)), instead, found)

    params = map_arrays(kept, sent, part.params)
    n_rows = part.n_rows.reshape(*part.n_rows.shape, *(1,) * (far.ndim - part.n_rows.ndim))
    part = part._replace(params=params, log_likelihood=kept(least * n_rows, part.log_likelihood))
    if hasattr(part, "step_scale"):
        part = part._replace(step_scale=kept(1.0, part.step_scale))
    return reply._replace(fits=part) if hasattr(reply, "fits") else part


def _belongs(spec: FitSpec, stack: Stack, params: Params, few: Array) -> Array:
    """(n,) which rows are more likely than not of these components, in the middle of the fits."""
    if not few.any():
        return np.zeros(stack.size, dtype=bool)
    lead = params.weights.ndim - 1
    flat = map_arrays(lambda leaf: leaf.reshape(1, -1, *leaf.shape[lead:]), params)
    posterior, _ = spec.family.row_scores(stack, flat)
    return np.asarray((stack.weight[0] > 0) & (np.nan_to_num(posterior[0])[:, few].sum(axis=1).mean(axis=0) > 0.5))


def _left(stack: Stack, out: Array, floor: float) -> Stack:
    """The other rows, weighing as much as all; with fewer rows to leave out than the floor, some more by chance.

    The same ones every time, in an order that hangs on the rows and so is known at the site only.
    """
    count = int(out.sum())
    if not count:
        return stack
    seed = int.from_bytes(sha256(stack.rows.tobytes()).digest()[:8], "big")
    others = np.random.default_rng(seed).permutation(np.flatnonzero((stack.weight[0] > 0) & ~out))
    gone = out.copy()
    gone[others[: max(0, int(np.ceil(floor)) - count)]] = True
    weight = np.where(gone, GONE * (stack.weight > 0), stack.weight)
    total = weight.sum(axis=1, keepdims=True)
    weight = weight * (stack.weight.sum(axis=1, keepdims=True) / np.where(total > 0, total, 1.0))
    return Stack(stack.names, stack.rows, stack.target, weight, stack.observed)


def params_of(mail: Any) -> Params | None:
    """The mixtures in an order; None where there are none yet."""
    if isinstance(mail, PathRequest | ScoreRequest):
        return params_of(mail.fits)
    found: Params | None = mail if isinstance(mail, Params) else getattr(mail, "params", None)
    return found


def _rows_of(spec: FitSpec, stack: Stack, mail: Any) -> Stack:
    """The rows that a task looks at: in the choice of the penalty a part of them each."""
    if not isinstance(mail, PathRequest | ScoreRequest):
        return stack
    seen, unseen = stack.halves(spec.seed, int(mail.parts[0]))
    return seen if isinstance(mail, PathRequest) else unseen


def _share(mail: Any) -> float:
    """Of the rows that a round uses: it may draw a mini-batch."""
    batch = getattr(getattr(mail, "extra", None), "batch", None)
    return 1.0 if batch is None else float(batch[0])


def _few(spec: FitSpec, stack: Stack, params: Params, floor: float, share: float) -> Array:
    """Which components ``(R,)`` hold fewer rows than the floor in any of the fits, those that do left out."""
    few = np.zeros(params.weights.shape[-1], dtype=bool)
    while not few.all():
        left = _kept(params, ~few)
        if len(stack) > 1:  # halves are sites of their own
            left = map_arrays(lambda leaf: leaf[0], left)
        held = share * rows_held(spec, stack, left)
        least = held.min(axis=tuple(range(held.ndim - 1)))
        if least.min() >= floor:
            return few
        # The rarest first: its rows may be enough for another one.
        few[np.flatnonzero(~few)[int(np.argmin(least))]] = True
    raise BelowFloorError(f"no component holds as many rows as the floor, {floor:g}.")


# -- fewer components, and all again


def _kept(params: Params, keep: Array) -> Params:
    """Mixtures ``(..., R)`` of some of their components; the weights of the others are shared out.

    Examples
    --------
    >>> params = Params(np.array([0.2, 0.6, 0.2]), np.array([[9.0], [1.0], [2.0]]))
    >>> _kept(params, np.array([False, True, True])).weights.round(3).tolist()
    [0.75, 0.25]
    """
    if keep.all():
        return params
    noise = params.noise
    if noise is not None and noise.shape[-2] == len(keep):
        noise = noise[..., keep, :]
    return Params(_shared_out(params.weights[..., keep]), params.theta[..., keep, :], noise)


def _shared_out(weights: Array) -> Array:
    total = weights.sum(axis=-1, keepdims=True)
    even = np.full(weights.shape, 1.0 / weights.shape[-1])
    return np.where(total > 0, weights / np.where(total > 0, total, 1.0), even)


def _without(mail: Any, few: Array) -> Any:
    """An order about the other components only."""
    if not few.any():
        return mail
    keep = ~few
    if isinstance(mail, Params):
        return _kept(mail, keep)
    if isinstance(mail, PathRequest | ScoreRequest):
        return mail._replace(fits=_without(mail.fits, few))
    if isinstance(mail, StartRequest):
        noise = mail.noise
        return mail if noise is None or noise.shape[-2] != len(few) else mail._replace(noise=noise[..., keep, :])
    if isinstance(mail, Broadcast):
        return mail._replace(params=_kept(mail.params, keep), extra=_extra_without(mail.extra, keep))
    kept = mail._replace(params=_kept(mail.params, keep))
    if isinstance(mail, Bases):
        return kept._replace(between=mail.between[..., keep])
    return kept._replace(price=mail.price[..., keep]) if isinstance(mail, Prices) else kept


def _extra_without(extra: Any, keep: Array) -> Any:
    if not len(extra):
        return extra
    if not isinstance(extra, Toward):
        raise BelowFloorError("a component holds fewer rows than the floor, and this algorithm does not do without it.")
    noise, weights = extra.noise, extra.weights
    first, between, trust = (
        None if leaf is None else leaf[..., keep] for leaf in (extra.first_weights, extra.between, extra.trust)
    )
    return extra._replace(
        center=extra.center[..., keep, :],
        noise=noise if noise is None or noise.shape[-2] != len(keep) else noise[..., keep, :],
        first_weights=first,
        between=between,
        trust=trust,
        weights=None if weights is None else _shared_out(weights[..., keep]),
    )


def _completed(spec: FitSpec, reply: Any, sent: Params | None, few: Array) -> Any:
    """The answer with what was sent in the places of the components that were left out."""
    if isinstance(reply, Information):
        assert sent is not None
        return _uninformed(reply, sent, few)
    part = getattr(reply, "fits", reply)
    params = getattr(part, "params", None)
    if params is None:
        return reply
    if sent is None:
        sites, largest = np.arange(len(params.weights)), params.weights.argmax(axis=-1)
        instead = map_arrays(lambda leaf: leaf[sites, np.minimum(largest, leaf.shape[1] - 1)][:, None], params)
    elif sent.weights.ndim > params.weights.ndim:  # of several candidates the one that was chosen
        sites = np.arange(len(reply.choice))
        instead = map_arrays(lambda leaf: leaf[sites, np.minimum(reply.choice, leaf.shape[1] - 1)], sent)
    else:
        instead = sent
    n_rows = part.n_rows.reshape(*part.n_rows.shape, *(1,) * (params.weights.ndim - part.n_rows.ndim))
    nobody = np.minimum(NOBODY, 0.5 / np.maximum(n_rows, 1.0)) * np.ones(len(few))
    if sent is not None:
        nobody = np.where(instead.weights > 0, nobody, 0.0)  # what a site lacks, it goes on to lack
    told = params.weights * (1.0 - nobody[..., few].sum(axis=-1, keepdims=True))
    weights = _put(nobody[..., None], told[..., None], few)[..., 0]
    shape = spec.family.noise_shape(2, 1)
    noise = params.noise
    if noise is not None and shape is not None and shape[0] > 1:
        noise = _put(instead.noise, noise, few)
    part = part._replace(params=Params(weights, _put(instead.theta, params.theta, few), noise))
    if hasattr(part, "step_scale"):
        part = part._replace(step_scale=_put(np.ones(1), part.step_scale[..., None], few)[..., 0])
    return reply._replace(fits=part) if hasattr(reply, "fits") else part


def _put(instead: Any, found: Array, few: Array) -> Array:
    """What was found for some components, ``(..., R', q)``, and something else for the others, ``(..., R, q)``."""
    whole = np.array(np.broadcast_to(instead, (*found.shape[:-2], len(few), found.shape[-1])))
    whole[..., ~few, :] = found
    return whole


def _uninformed(reply: Information, sent: Params, few: Array) -> Information:
    """Information that says nothing of some components."""
    keep, size = ~few, sent.theta.shape[-1]
    whole = np.zeros((len(reply.packed), *(len(few) * (1 + size),) * 2))
    places = np.flatnonzero(np.concatenate([keep, np.repeat(keep, size)]))
    whole[np.ix_(np.arange(len(whole)), places, places)] = symmetric(reply.packed)
    i, j = np.tril_indices(whole.shape[-1])
    weights = _put(np.zeros(1), reply.params.weights[..., None], few)[..., 0]
    return reply._replace(params=Params(weights, sent.theta), packed=whole[:, i, j])


def _check_extra(extra: Any, few: Array, stack: Stack, floor: float) -> None:
    """Refuse sums of an algorithm's own where a component is below the floor: nothing can be sent in their place."""
    if not len(extra):
        return
    if few.any():
        raise BelowFloorError(
            f"a component holds fewer rows than the floor, {floor:g}, and this algorithm sends sums of every component."
        )
    joint = getattr(extra, "joint", None)
    if joint is not None:
        held = float((joint.sum(axis=-1) * rows_alike(stack.weight)[:, None]).min())
        if held < floor:
            raise BelowFloorError(f"a group of covariates holds {held:.3g} rows, and the floor is {floor:g}.")
