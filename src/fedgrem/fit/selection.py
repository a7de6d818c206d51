r"""How many components: BIC and ICL of fits with several numbers of them, from one number per site and fit.

A site has ``R - 1`` weights of its own, and the parameters of every component that it keeps off the center, as many as
its shrinkage leaves free; its own rows alone know these, so that each costs :math:`\tfrac12\log n_k`. The parameters of
the center are known from the rows of all sites that sit there, so that each costs :math:`\tfrac12\log` of their number,
once. This is Schwarz's expansion of the marginal likelihood for sites that are independent given the center.

Where the sites' parameters are estimated as :math:`N(c, \tau^2)`, in units of the noise, those of a component that
holds m rows are no free ones: integrated out, q of them cost

.. math:: \tfrac q2 \bigl(\log(1 + x) + \tfrac{x}{1 + x}\bigr), \quad x = m\tau^2,

nothing where sites do not differ, and those of the center :math:`\tfrac q2\log\sum_k n_k / (1 + x_k)`. A site that is
too far out to be one of the others pays for its own as above.

A fit with fewer components is one with more of which some are left out, so that its parameters are not said to cost
more than those of the next larger fit, less one component at the center of all: off the true number sites scatter about
centers that suit nobody, and the cost would fall again behind it. What a minority of odd sites has of its own does not
count in this comparison either.

What the sites say is combined robustly: between two neighbouring numbers of components, every site has a lead per row,
and the lead of the federation is a trimmed mean of these. A minority of sites can neither buy nor veto a component,
whatever they report. From the same leads comes a standard error of every difference from the best, and of
numbers that are not clearly worse the smallest is chosen.

What fewer sites have in common than that is sought afterwards: :mod:`fedgrem.fit.some`.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fedgrem.algorithms.base import middle_weights
from fedgrem.algorithms.center_rules import MOST_BAD
from fedgrem.kernels.center import capped_rows
from fedgrem.types import Array, FitResult, Influence, Params

CRITERIA = ("bic", "icl")
TRIMMED = MOST_BAD
"""Part of the sites that is left out at either end of every comparison; at least one where there are three."""
CLEAR = 0.1
"""Of log-likelihood: fits that differ by less are one fit, to the last digits that nobody reads."""
CERTAIN = 2.0
"""Standard errors, of log-likelihood, beyond which a lead is a clear one."""
LARGEST, PATIENCE = 20, 3
"""``"auto"`` goes up from 1 until the criterion has not improved for so many numbers, and at most to the largest."""


class Tally(NamedTuple):
    """What a criterion needs to know of one fit."""

    n_components: int
    site_names: tuple[str, ...]
    n_rows: Array
    """(K,)"""
    log_likelihood: Array
    """(K,) NaN where a site did not say."""
    entropy: Array
    """(K,) of the rows' components given the rows, in nats; NaN where a site did not say."""
    own: Array
    """(K,) free parameters that only the site's own rows know."""
    own_cost: Array
    """(K,) what these cost, in units of log-likelihood."""
    shared: int
    """Free parameters of the center."""
    shared_cost: float
    """What these cost, likewise."""
    settled: bool
    rounds: int
    exchanges: int
    """Messages to every site that the fit took."""
    component: int = 0
    """Parameters of one component at the center."""
    center: Params | None = None
    """(R,), (R, q), (C, s) middle weights and center, in the units of the fit: where the next larger may begin."""


def tally(result: FitResult, *, pooled: bool = False, log_volume: Array | float = 0.0) -> Tally:
    """Count the parameters of a fit that was scored.

    Parameters
    ----------
    result : of a fit with ``FitSpec.score``.
    pooled : whether every site was given the one answer to all rows, which is then one site's.
    log_volume : (K,) what the units of the fit add to the log-likelihood of a site's rows.
    """
    assert result.log_likelihood is not None
    assert result.entropy is not None
    n_rows, names = result.n_rows, result.site_names
    log_likelihood, entropy = result.log_likelihood, result.entropy
    counted = _count(result, pooled=pooled)
    if pooled:
        n_rows, names = n_rows.sum(keepdims=True), names[:1]
        log_likelihood, entropy = log_likelihood[:1], entropy[:1]
    volume = np.sum(log_volume) if pooled else log_volume
    exchanges = result.cost["start_exchanges"] + result.cost["rounds"] + result.cost["score_exchanges"]
    return Tally(
        n_components=result.theta.shape[1],
        site_names=names,
        n_rows=n_rows,
        log_likelihood=log_likelihood - volume,
        entropy=entropy,
        **counted._asdict(),
        settled=result.converged,
        rounds=result.n_rounds,
        exchanges=exchanges,
        component=sum(
            block.size for block in _blocks(result, result.n_rows) if block.cost.shape == result.weights.shape
        ),
        center=center_of(result),
    )


def center_of(result: FitResult) -> Params:
    """The middle weights and the center of a fit, in its units."""
    common = middle_weights(result.weights) if result.common_weights is None else result.common_weights
    return Params(common, result.center, result.center_noise)


def leads(new: FitResult, old: FitResult, *, pooled: bool) -> bool:
    """Whether a fit of as many components clearly has the better BIC."""
    n_rows, one = (new.n_rows.sum(keepdims=True), slice(0, 1)) if pooled else (new.n_rows, slice(None))
    net, cost = [], []
    for result in (old, new):
        assert result.log_likelihood is not None
        counted = _count(result, pooled=pooled)
        net.append(result.log_likelihood[one] - counted.own_cost)
        cost.append(counted.shared_cost)
    value = robust_total(np.stack(net), n_rows) - np.array(cost)
    return bool(value[1] > value[0] + CLEAR)


def degrees_of_freedom(result: FitResult, *, pooled: bool = False) -> float:
    """All free parameters of a fit: those of the sites, and those of the center once."""
    counted = _count(result, pooled=pooled)
    return float(counted.own.sum() + counted.shared)


class _Block(NamedTuple):
    """Some parameters of every component, or of all together: C blocks of ``size`` numbers."""

    size: int
    at_center: Array
    """(K, C)"""
    free: Array
    """(K, C) free parameters of a site's own."""
    known: Array
    """(K, C) the part of a site's rows that tells of the center."""
    cost: Array
    """(K, C) what a site's own cost, in units of log-likelihood."""


class _Counted(NamedTuple):
    """The parameters of a fit, as :class:`Tally` has them."""

    own: Array
    own_cost: Array
    shared: int
    shared_cost: float


def _blocks(result: FitResult, n_rows: Array) -> list[_Block]:
    """The components of every site and, where it is estimated, their noise."""
    n_components, n_parameters = result.theta.shape[1:]
    each = 0.5 * np.log(np.maximum(n_rows, 1.0))
    influence, rows = result.influence, result.weights * result.n_rows[:, None]
    has = np.ones(rows.shape, dtype=bool) if result.held is None else result.held
    free = _free(result.distance, n_parameters, influence)
    blocks = [_block(n_parameters, (result.distance == 0.0) & has, free, each, rows, influence.between, has)]
    if result.noise is not None and result.center_noise is not None:
        at_center = np.isclose(result.noise, result.center_noise, rtol=1e-9, atol=1e-12).all(axis=-1)
        size = result.noise.shape[-1]
        if at_center.shape[1] != n_components:
            rows, has = rows.sum(axis=1, keepdims=True), np.ones((len(rows), 1), dtype=bool)
        x = 0.0 * rows if influence.noise_between is None else rows * influence.noise_between
        # Off a center that all others agree on, it is the site's own.
        kept = np.where(x > 0, x / (1.0 + x), ~at_center & has)
        blocks.append(_block(size, at_center & has, size * kept, each, rows, influence.noise_between, has))
    return blocks


def cost_by_component(result: FitResult) -> tuple[Array, Array, Array]:
    """What is a site's own costs it, in units of log-likelihood.

    Of every component its parameters ``(K, R)`` and its noise ``(K, R)``, and the noise that all share, ``(K,)``.
    """
    theta, *noise = [block.cost for block in _blocks(result, result.n_rows)]
    none = np.zeros(theta.shape)
    if not noise or noise[0].shape[1] == theta.shape[1]:
        return theta, noise[0] if noise else none, none[:, 0]
    return theta, none, noise[0][:, 0]


def _count(result: FitResult, *, pooled: bool) -> _Counted:
    n_components = result.theta.shape[1]
    n_rows = result.n_rows.sum(keepdims=True) if pooled else result.n_rows
    each = 0.5 * np.log(np.maximum(n_rows, 1.0))
    blocks = _blocks(result, result.n_rows)
    if pooled:
        blocks = [
            _Block(
                b.size, *(leaf[:1] for leaf in (np.ones_like(b.at_center), 0 * b.free, 1.0 + 0 * b.free, 0 * b.free))
            )
            for b in blocks
        ]
    own = np.full(len(n_rows), n_components - 1.0)
    if result.held is not None and not pooled:
        own = result.held.sum(axis=1) - 1.0
    if result.common_weights is not None:
        there = np.asarray(np.isclose(result.weights, result.common_weights, rtol=1e-9, atol=1e-12).all(axis=1))
        own = np.where(there, 0.0, own)
        if there.any():
            none = np.zeros((len(n_rows), 1))
            blocks.append(_Block(n_components - 1, there[:, None], none, there[:, None] * 1.0, none))
    own_cost, shared, shared_cost, counted = own * each, 0, 0.0, capped_rows(n_rows)
    for block in blocks:
        own, own_cost = own + block.free.sum(axis=1), own_cost + block.cost.sum(axis=1)
        shared += block.size * int(block.at_center.any(axis=0).sum())
        known = counted @ block.known
        shared_cost += 0.5 * block.size * float(np.log(np.maximum(known, 1.0)).sum())
    return _Counted(own, own_cost, shared, shared_cost)


def _block(
    size: int, at_center: Array, free: Array, each: Array, held: Array, between: Array | None, has: Array
) -> _Block:
    """What a block of parameters costs a site of which each one costs that much on its own rows.

    With a between-site variance ``(C,)``, parameters that are estimated by it cost what integrating them out does.
    """
    if between is None:
        return _Block(size, at_center, free, at_center * 1.0, free * each[:, None])
    x = held * between
    # A site moves to the center by the part trust / (1 + x).
    trusted = has * np.clip((1.0 - free / size) * (1.0 + x), 0.0, 1.0)
    integrated = 0.5 * size * (np.log1p(x) + x / (1.0 + x))
    cost = trusted * integrated + (has - trusted) * size * each[:, None]
    return _Block(size, at_center, free, trusted / (1.0 + x), cost)


def _free(distance: Array, n_parameters: int, influence: Influence) -> Array:
    r"""Degrees of freedom of every site's components, ``(K, R)``: none at the center, fewer than q near it.

    A group that is shrunk from a distance d + tau to d has 1 + (q - 1) d / (d + tau) of them (Yuan and Lin, 2006): one
    that is barely off the center costs little more than one that is on it, and the choice does not hang on which it is.
    Where that is a part of its distance, given by the between-site variance, it has q d / (d + tau).
    """
    off = distance > 0
    kept = distance / np.where(off, distance + influence.threshold, 1.0)
    first = 0.0 if influence.between is not None else 1.0
    return np.where(off, first + (n_parameters - first) * kept, 0.0)


def criteria(tallies: Sequence[Tally], criterion: str = "bic") -> dict[str, Array]:
    """The curve: columns of equal length, by the number of components.

    ``bic`` and ``icl`` are to be as small as possible, and ``error`` is the standard error of what the criterion
    exceeds its least by, from the differences between sites; NaN with one site. With fewer than three sites
    ``log_likelihood`` is the sum over the sites; with more it is what the sum would be if every site were like those in
    the middle, lead by lead.
    """
    tallies = _nested(sorted(tallies, key=lambda one: one.n_components))
    names = [name for name in tallies[0].site_names if all(name in one.site_names for one in tallies)]

    def of_sites(values: list[Array]) -> Array:
        """(M, K) for the sites that took part in every fit."""
        return np.stack(
            [v[[one.site_names.index(name) for name in names]] for one, v in zip(tallies, values, strict=True)]
        )

    n_rows = of_sites([one.n_rows for one in tallies])
    value, unsure, own = (
        of_sites([getattr(one, name) for one in tallies]) for name in ("log_likelihood", "entropy", "own")
    )
    net = value - of_sites([one.own_cost for one in tallies])
    shared = np.array([one.shared_cost for one in tallies])
    bic, icl = (-2.0 * (robust_total(each, n_rows[0]) - shared) for each in (net, net - unsure))
    by_site, total = (net, bic) if criterion == "bic" else (net - unsure, icl)
    return {
        "n_components": np.array([one.n_components for one in tallies]),
        "log_likelihood": robust_total(value, n_rows[0]),
        "n_parameters": np.minimum.accumulate((own.sum(axis=1) + [one.shared for one in tallies])[::-1])[::-1],
        "bic": bic,
        "icl": icl,
        "error": 2.0 * _errors(by_site - by_site[int(np.argmin(total))], n_rows[0]),
        "settled": np.array([one.settled for one in tallies]),
        "rounds": np.array([one.rounds for one in tallies]),
    }


def _nested(tallies: list[Tally]) -> list[Tally]:
    """The tallies, smallest first, with costs of parameters that rise by a component at the center at the least."""
    kept = tallies[-1:]
    for one in reversed(tallies[:-1]):
        fewer = kept[0]
        for _ in range(fewer.n_components - one.n_components):
            fewer = _without_one(fewer)
        if _cost(one) > _cost(fewer) and one.site_names == fewer.site_names:
            counted = {name: getattr(fewer, name) for name in _Counted._fields}
            one = one._replace(**counted)
        kept.insert(0, one)
    return kept


def _without_one(one: Tally) -> Tally:
    """What is left of the parameters of a fit without a component that sits at the center at all sites."""
    if one.component == 0:
        return one
    each = 0.5 * np.log(np.maximum(one.n_rows, 1.0))
    rows = max(1.0, float(capped_rows(one.n_rows).sum()))
    return one._replace(
        own=np.maximum(one.own - 1.0, 0.0),
        own_cost=np.maximum(one.own_cost - each, 0.0),
        shared=max(one.shared - one.component, 0),
        shared_cost=max(one.shared_cost - 0.5 * one.component * np.log(rows), 0.0),
    )


def _cost(one: Tally) -> float:
    """What the parameters of a fit cost, were all sites like those in the middle."""
    return float(robust_total(one.own_cost[None], one.n_rows)[0] + one.shared_cost)


def _errors(lead: Array, n_rows: Array) -> Array:
    """(M,) standard errors of the robust totals of leads (M, K), from their winsorized variance per row."""
    weight = capped_rows(n_rows)
    with np.errstate(invalid="ignore", over="ignore"):
        per_row = lead / n_rows
    return np.array([weight.sum() * _trimmed_error(one, weight) for one in per_row])


def _trimmed_error(lead: Array, weight: Array) -> float:
    """Of the trimmed mean; NaN of fewer than two sites."""
    heard = np.flatnonzero(np.isfinite(lead))
    if len(heard) < 2:
        return np.nan
    order, cut = np.sort(lead[heard]), _cut(len(heard))
    tame = np.clip(lead[heard], order[cut], order[len(heard) - 1 - cut])
    share = weight[heard] / weight[heard].sum()
    about = tame - share @ tame
    kept = 1.0 - 2.0 * cut / len(heard)
    return float(np.sqrt(np.sum((share * about) ** 2) * len(heard) / (len(heard) - 1.0)) / kept)


def robust_total(value: Array, n_rows: Array) -> Array:
    """The sum over sites of ``value`` (M, K), for each of M fits in order, that a minority of sites cannot move far.

    The first is the number of rows times a trimmed mean per row, and each further one adds the trimmed mean of what the
    sites say that it leads the last by: were fits summed one by one, a few hostile sites would make one look as good as
    to its best sites and another as bad as to its worst. Sites that say nothing finite are not heard.

    Examples
    --------
    >>> robust_total(np.array([[-9.0, -7.0], [-8.0, -7.0]]), np.array([3.0, 3.0])).tolist()
    [-16.0, -15.0]
    >>> robust_total(np.array([[-9.0, -7.0, -8.0], [-8.0, -6.0, 1e9]]), np.array([3.0, 3.0, 3.0])).tolist()
    [-24.0, -21.0]
    """
    weight = capped_rows(n_rows)
    with np.errstate(invalid="ignore", over="ignore"):
        leads = np.diff(value, axis=0, prepend=0.0) / n_rows
    return np.asarray(np.cumsum([weight.sum() * _trimmed_mean(lead, weight) for lead in leads]))


def _trimmed_mean(lead: Array, weight: Array) -> float:
    """Over sites: without the largest and the smallest, the others by their rows."""
    heard = np.flatnonzero(np.isfinite(lead))
    if not len(heard):
        return -np.inf
    cut = _cut(len(heard))
    kept = heard[np.argsort(lead[heard], kind="stable")][cut : len(heard) - cut]
    return float(np.average(lead[kept], weights=weight[kept]))


def _cut(n_sites: int) -> int:
    """How many sites are left out at either end."""
    return max(1, int(TRIMMED * n_sites)) if n_sites > 2 else 0


def least_number(curve: dict[str, Array], criterion: str) -> int:
    """The number of components with the least criterion, the smaller of two alike."""
    return int(curve["n_components"][int(np.argmin(curve[criterion]))])


def best_number(curve: dict[str, Array], criterion: str) -> int:
    """The smallest number that is not clearly worse than the one of the least criterion.

    Its criterion exceeds the least by no more than a standard error of that difference, and the larger one's lead in
    log-likelihood is no clear one: less what so many parameters gain by chance, it is within two of them of nothing.
    The price of a parameter is high, and a component that is there may be hardly worth it.

    Examples
    --------
    >>> curve = {"n_components": np.arange(1, 4), "bic": np.array([9.0, 2.0, 1.0]), "error": np.array([3.0, 2.0, 0.0])}
    >>> curve |= {"log_likelihood": np.array([-9.0, -3.0, -1.0]), "n_parameters": np.array([1, 2, 3])}
    >>> least_number(curve, "bic"), best_number(curve, "bic")
    (3, 2)
    """
    best = int(np.argmin(curve[criterion]))
    error = np.nan_to_num(curve["error"])
    lead = curve["log_likelihood"][best] - curve["log_likelihood"]
    by_chance = curve["n_parameters"][best] - curve["n_parameters"]
    unclear = (lead - by_chance <= CERTAIN * error / 2.0) | (curve["n_components"] >= curve["n_components"][best])
    behind = curve[criterion] - curve[criterion][best]
    return int(curve["n_components"][int(np.argmax((behind <= error) & unclear))])


def next_number(tallies: Sequence[Tally], criterion: str, limit: int) -> int | None:
    """Which number of components ``"auto"`` tries next, or None when it has seen enough."""
    tried = len(tallies)
    if tried >= limit or (tried and tried - least_number(criteria(tallies, criterion), criterion) >= PATIENCE):
        return None
    return tried + 1
