"""The search for starts: what happens between the center and the sites before round 1."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from fedgrem.algorithms.base import full_penalty
from fedgrem.algorithms.center_rules import FEWEST_MIXED, MOST_BAD, MOST_MIXED
from fedgrem.families.base import LEAST_SHARE, Family
from fedgrem.fit.conversation import Ask, Phase, Progress
from fedgrem.fit.em import LARGEST_PENALTY
from fedgrem.fit.few_rows import has_enough
from fedgrem.fit.spec import FitSpec
from fedgrem.fit.tasks import Candidates, StartReply, StartRequest
from fedgrem.kernels.center import capped_rows, row_norm, shrink_to_center
from fedgrem.kernels.matching import align_by_assignment, align_exhaustive, align_stepwise, best_assignment, relabel
from fedgrem.kernels.randomness import generator_for
from fedgrem.kernels.robust import nearest_neighbor_mixing
from fedgrem.types import Array, Params, map_arrays

NEAR = 0.1
"""A site farther from a guess than this part of the median distance pulls no harder: nearly a geometric median."""
TRIMMED = MOST_BAD
"""Part of the sites that is left out at either end when a joint start is scored."""
HOPELESS = -1e6
"""Stands for a score that is not a number."""
MORE_STARTS = 4
"""Times as many joint starts where rows may be of no component: many a component of a single site is then of such."""
GENERATIONS, GENERATION = 5, 6
"""Times that poor joint starts give way to variants of good ones, plus one; and messages of a generation."""


class Starts(NamedTuple):
    """Where every site begins, aligned."""

    params: Params
    """(K, R), (K, R, q)"""
    n_rows: Array
    """(K,)"""
    choice: Array
    """(K,) which candidate each site took in the exchange; 0 is its own."""
    log_likelihood: Array
    """(K,) of these starts on the sites' own rows; NaN where that was not asked."""
    joint: Params | None = None
    """One for all sites, (R,), (R, q), where it was sought."""

    def begin(self, pulled: Array) -> Params:
        """Where the rounds begin: those who are pulled (K,) at the joint start, if there is one.

        Alone, a site may be in an optimum of its own, from where even the right pull may not bring it back.
        """
        return self.params if self.joint is None else _filled(~pulled, _of(~pulled, self.params), self.joint)


def find_starts(spec: FitSpec, names: tuple[str, ...]) -> Phase[Starts]:
    """Ask every site for a start, align them, and let the sites improve on each other's."""
    family, n_sites, traits = spec.family, len(names), spec.algorithm.traits

    def tell(stage: str) -> Progress:
        return Progress(stage, 0, spec.max_rounds, float("nan"))

    if spec.given is not None:
        replies = yield Ask("size", spec.given, tell("sizes"))
        # Where rows are pooled all sites answer alike: what was given stays each site's own.
        params: Params = spec.given._replace(noise=replies.mail.params.noise)
        return Starts(align(spec, params), replies.mail.n_rows, np.zeros(n_sites, dtype=int), np.full(n_sites, np.nan))
    replies = yield Ask("start", StartRequest(np.zeros(n_sites, dtype=int), None), tell("starts"))
    found: StartReply = replies.mail
    if found.params.noise is not None and spec.n_components > 1:
        # Alone, a site may fit its noise to a poor partition; starting again in common units, it does so less often.
        enough = has_enough(family, found.params, found.n_rows)
        noise = np.broadcast_to(np.median(found.params.noise[enough], axis=(0, 1)), found.params.noise.shape)
        replies = yield Ask("start", StartRequest(np.ones(n_sites, dtype=int), noise), tell("starts"))
        found = replies.mail
    if n_sites == 1 or traits.pools_rows or traits.starts_alone:
        return Starts(align(spec, found.params), found.n_rows, np.zeros(n_sites, dtype=int), found.log_likelihood)
    enough = has_enough(family, found.params, found.n_rows)
    params = align(spec, _of(enough, found.params))
    common = middle_of(params)
    penalty = np.full(n_sites, min(steady_penalty(spec, n_sites, params.theta.shape[-1]), LARGEST_PENALTY))
    usual = family.joint_starts * (MORE_STARTS if family.robust_rows else 1)
    n_joint = usual if spec.start.joint_starts is None else spec.start.joint_starts
    joint = None
    # Without a penalty sites have nothing in common, and a joint start would be a start for nobody.
    if n_joint > 0 and spec.start_penalty > 0:
        # Who has too few rows for a guess has a say in how good the guesses are.
        guessing = tuple(name for name, able in zip(names, enough, strict=True) if able)
        common = yield from _joint_start(spec, guessing, params, penalty, n_joint, tell)
        params, joint = align_to(family, params, common), common
    params = _filled(enough, params, common)
    tried = map_arrays(lambda own, shared: np.stack([own, np.broadcast_to(shared, own.shape)], axis=1), params, common)
    replies = yield Ask("compare", Candidates(tried, penalty), tell("exchange"))
    chosen = align(spec, _of(enough, replies.mail.params))
    return Starts(
        _filled(enough, chosen, common), replies.mail.n_rows, np.where(enough, replies.mail.choice, 1),
        np.where(enough, replies.mail.log_likelihood, np.nan), joint,
    )  # fmt: skip


def _of(which: Array, params: Params) -> Params:
    """Some of the sites."""
    found: Params = map_arrays(lambda leaf: leaf[which], params)
    return found


def _filled(enough: Array, params: Params, common: Params) -> Params:
    """The starts of the sites that have rows enough for one, and the common one for the others."""

    def fill(own: Array, shared: Array) -> Array:
        found = np.repeat(shared[None], len(enough), axis=0)
        found[enough] = own
        return found

    found: Params = map_arrays(fill, params, common)
    return found


def grown(family: Family, smaller: Params, found: Params, n_sites: int) -> Params:
    """A start ``(K, R), (K, R, q)`` from the center of a fit of fewer components, ``(r,), (r, q), (C, s)``.

    What is missing is taken from ``found``, another fit of R components: those farthest from what is there already.
    """
    weights, theta, noise = smaller
    n_components = found.theta.shape[0]
    units = None if noise is None else np.median(noise, axis=0)[None]
    others = family.to_noise(found.theta, units)
    while len(theta) < n_components:
        away = row_norm(others[:, None] - family.to_noise(theta, units)).min(axis=1)
        place, size = int(np.argmax(away)), len(theta) + 1
        weights = np.append(weights * (1.0 - 1.0 / size), 1.0 / size)
        theta = np.concatenate([theta, found.theta[[place]]])
        if noise is not None and found.noise is not None and len(found.noise) == n_components > 1:
            noise = np.concatenate([noise, found.noise[[place]]])
    one = Params(weights, theta, noise)
    start: Params = map_arrays(lambda leaf: np.repeat(leaf[None], n_sites, axis=0), one)
    return start


def steady_penalty(spec: FitSpec, n_sites: int, n_parameters: int) -> float:
    r"""Where lambda settles: :math:`C\sqrt{q + \log K} / (1 - \text{decay})`."""
    return float(full_penalty(spec.start_penalty, n_parameters, n_sites) / (1.0 - spec.algorithm.penalty_decay))


# -- alignment


def align(spec: FitSpec, params: Params) -> Params:
    """Relabel the components of every site, ``(K, R), (K, R, q)``, by the spec's alignment, in noise units."""
    if spec.start.alignment == "none":
        return params
    theta = spec.family.to_noise(params.theta, _common_noise(params))
    aligners: dict[str, Callable[[Array], Array]] = {
        "assignment": lambda t: align_by_assignment(t, generator_for(spec.seed, "", "align")),
        "stepwise": align_stepwise,
        "exhaustive": align_exhaustive,
    }
    return _relabelled(params, aligners[spec.start.alignment](theta))


def align_to(family: Family, params: Params, common: Params) -> Params:
    """Relabel every site's components, ``(K, R), (K, R, q)``, to a common start ``(R, q)``."""
    noise = _common_noise(params)
    theta, target = (family.to_noise(t, noise) for t in (params.theta, common.theta))
    return _relabelled(params, np.stack([best_assignment(own, target[None]) for own in theta]))


def _common_noise(params: Params) -> Array | None:
    """One noise ``(1, s)`` for all sites and components, ``(K, C, s)``: labels are not known yet."""
    return None if params.noise is None else np.median(params.noise, axis=(0, 1))[None]


def _relabelled(params: Params, order: Array) -> Params:
    # A noise that all components share has no labels.
    found: Params = map_arrays(lambda leaf: relabel(leaf, order) if leaf.shape[1] == order.shape[1] else leaf, params)
    return found


def middle_of(params: Params) -> Params:
    """The coordinate-wise median of aligned starts, ``(R,), (R, q)``."""
    middle: Params = map_arrays(lambda leaf: np.median(leaf, axis=0), params)
    return middle._replace(weights=middle.weights / middle.weights.sum())


# -- joint starts: one guess of all components, common to the sites, where local optima abound


def _joint_start(
    spec: FitSpec,
    names: tuple[str, ...],
    params: Params,
    penalty: Array,
    count: int,
    tell: Callable[[str], Progress],
) -> Phase[Params]:
    """The best joint start, ``(R,), (R, q)``.

    The sites improve all guesses; poor ones give way to variants of good ones. No site decides alone: guesses are
    nearly geometric medians, scores trimmed means.
    """
    generator, pool, n_sites = generator_for(spec.seed, "", "joint starts"), pool_of(params), len(penalty)
    guesses = first_guesses(params, names, count, generator)
    scores = np.zeros(count)
    for left in reversed(range(GENERATIONS)):
        weights = np.broadcast_to(guesses.weights, (n_sites, *guesses.weights.shape))
        for _ in range(GENERATION):
            sent = map_arrays(lambda leaf: np.broadcast_to(leaf, (n_sites, *leaf.shape)), guesses)
            replies = yield Ask(
                "joint_start", Candidates(sent._replace(weights=weights), penalty), tell("joint starts")
            )
            guesses, weights = next_guess(spec.family, replies.mail, guesses), replies.mail.params.weights
        scores = joint_scores(replies.mail)
        if left:
            guesses = breed(guesses, scores, pool, count, generator)
    winner: Params = map_arrays(lambda leaf: leaf[int(np.argmax(scores))], guesses)
    return winner


def first_guesses(params: Params, names: tuple[str, ...], count: int, generator: np.random.Generator) -> Params:
    """Guesses ``(M, R), (M, R, q)`` from aligned starts: their median, those of single sites, and variants of these.

    Sites are taken by name and components by value, so that neither the order of sites nor labels matter.
    """
    theta = params.theta[np.argsort(names)]
    donors = generator.permutation(len(theta))[: count - 1]
    guesses = np.stack([_sorted(guess) for guess in [np.median(theta, axis=0), *theta[donors]]])
    even = Params(np.full(guesses.shape[:2], 1.0 / guesses.shape[1]), guesses)
    if params.noise is not None:  # sorted components have no labels, and so one noise for all
        noise = np.median(params.noise.reshape(-1, params.noise.shape[-1]), axis=0)
        even = even._replace(noise=np.broadcast_to(noise, (len(guesses), *params.noise.shape[1:])))
    return breed(even, np.zeros(len(guesses)), pool_of(params), count, generator, keep=count)


def pool_of(params: Params) -> Array:
    """All components of all sites, ``(K R, q)``, in an order that depends on their values only."""
    return _sorted(params.theta.reshape(-1, params.theta.shape[-1]))


def _sorted(theta: Array) -> Array:
    return np.asarray(theta[np.lexsort(theta.T)])


def breed(
    guesses: Params,
    scores: Array,
    pool: Array,
    count: int,
    generator: np.random.Generator,
    keep: int | None = None,
) -> Params:
    """The better half of the guesses, and variants of these up to ``count``.

    A variant has one component replaced, most likely a rare one, by one that some site found and the guess does not
    have: what EM cannot do, which never moves a component from where it is not needed to where it is.
    """
    weights, theta = guesses.weights, guesses.theta
    best = np.argsort(-scores, kind="stable")[: max(1, count // 2) if keep is None else keep]
    family = [(weights[m], theta[m], m) for m in best]
    n_components = theta.shape[1]
    for child in range(count - len(best)):
        # Every other variant is the leader's: where only one component is missing, it is the one to mend.
        parent = best[0] if child % 2 == 0 else generator.choice(best)
        place = generator.choice(n_components, p=_normalized(1.0 / (weights[parent] + 0.1 / n_components)))
        distance = row_norm(pool[:, None] - theta[parent]).min(axis=1)
        # Beyond the upper fifth distance counts no more: a hostile site's components are not the likeliest draw.
        novelty = np.minimum(distance, np.quantile(distance, 0.8)) ** 2
        new = theta[parent].copy()
        new[place] = pool[generator.choice(len(pool), p=_normalized(novelty))]
        share = weights[parent].copy()
        share[place] = max(share[place], 1.0 / n_components)
        family.append((share / share.sum(), new, parent))
    shares, thetas, parents = (np.stack(leaves) for leaves in zip(*family, strict=True))
    return Params(shares, thetas, None if guesses.noise is None else guesses.noise[parents])


def _normalized(density: Array) -> Array:
    total = density.sum()
    return density / total if total > 0 else np.full(len(density), 1.0 / len(density))


def next_guess(family: Family, reply: StartReply, before: Params) -> Params:
    """Where the sites' answers ``(K, M, R), (K, M, R, q)`` move every guess, ``(M, R), (M, R, q)``.

    A component's guess is nearly the geometric median of the sites' estimates, whatever part of its rows a site sees in
    it: else a few sites with a single component would own whichever component the others hardly use. No site counts for
    more than the middle one. For every other guess, estimates are mixed with their nearest before.
    """
    guess = family.to_noise(before.theta, before.noise)
    theta = family.to_noise(reply.params.theta, before.noise)
    n_components = guess.shape[1]
    theta = np.where(np.isfinite(theta), theta, guess)
    say = np.broadcast_to(capped_rows(reply.n_rows, 1.0)[:, None, None], theta.shape[:-1])
    if FEWEST_MIXED <= len(theta) <= MOST_MIXED:
        # A minority does not lead these away; the others are the better ones where nobody lies, and scores decide.
        theta[:, 1::2] = nearest_neighbor_mixing(theta[:, 1::2], int(MOST_BAD * len(theta)))
    usual = np.median(row_norm(theta - guess), axis=0)
    threshold = np.broadcast_to(NEAR * usual, say.shape)
    moved = shrink_to_center(theta, say, threshold, guess, tol=1e-4, max_iterations=30).center
    found = family.from_noise(np.where(np.isfinite(moved), moved, guess), before.noise)
    middle = np.maximum(np.median(np.nan_to_num(reply.params.weights), axis=0), LEAST_SHARE / n_components)
    noise = None if reply.params.noise is None else np.median(reply.params.noise, axis=0)
    return Params(middle / middle.sum(axis=1, keepdims=True), found, noise)


def joint_scores(reply: StartReply) -> Array:
    """How well every guess serves the sites, ``(M,)``: its mean lead over the others, in log-likelihood per row.

    The lead of one over another is the trimmed mean of what each site says of the two. Were they scored one by one, a
    few hostile sites would make one look as good as to its best sites and another as bad as to its worst.
    """
    value = np.nan_to_num(reply.log_likelihood / reply.n_rows[:, None], nan=HOPELESS, neginf=HOPELESS, posinf=HOPELESS)
    lead = np.sort(value[:, :, None] - value[:, None, :], axis=0)
    cut = int(TRIMMED * len(lead))
    return np.asarray(lead[cut : len(lead) - cut].mean(axis=(0, 2)))
