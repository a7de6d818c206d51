"""Joint starts: what the center does between the sites' own starts and round 1 where local optima abound.

A track is one guess of all components, common to the sites. The sites improve every track on their own rows
(:func:`fedgrem.algorithms.start.local_track`); here their answers become the next guess, tracks are compared, and poor
ones give way to variants of good ones. No site decides alone: guesses are geometric medians, scores trimmed means.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from fedgrem.algorithms.base import capped_rows
from fedgrem.families.base import LEAST_SHARE, Family
from fedgrem.kernels.center import shrink_to_center
from fedgrem.kernels.median import median
from fedgrem.types import Array, NumpyArray, Params, StartReply

NEAR = 0.1
"""A site farther from a guess than this part of the median distance pulls no harder: nearly a geometric median."""
TRIMMED = 0.3
"""Part of the sites that is left out at either end when a track is scored."""
HOPELESS = -1e6
"""Stands for a score that is not a number."""


def first_tracks(params: Params, names: tuple[str, ...], n_tracks: int, generator: np.random.Generator) -> Params:
    """Tracks ``(M, R), (M, R, q)`` from aligned starts: their median, those of single sites, and variants of these.

    Sites are taken by name and components by value, so that neither the order of sites nor labels matter.
    """
    theta = np.asarray(params.theta)[np.argsort(names)]
    donors = generator.permutation(len(theta))[: n_tracks - 1]
    guesses = np.stack([_sorted(guess) for guess in [np.median(theta, axis=0), *theta[donors]]])
    even = Params(jnp.full(guesses.shape[:2], 1.0 / guesses.shape[1]), jnp.asarray(guesses))
    if params.spread is not None:  # sorted components have no labels, and so one noise for all
        noise = median(params.spread.reshape(-1, params.spread.shape[-1]))
        even = even._replace(spread=jnp.broadcast_to(noise, (len(guesses), *params.spread.shape[1:])))
    return breed(even, np.zeros(len(guesses)), pool_of(params), n_tracks, generator, keep=n_tracks)


def pool_of(params: Params) -> NumpyArray:
    """All components of all sites, ``(K R, q)``, in an order that depends on their values only."""
    theta = np.asarray(params.theta)
    return _sorted(theta.reshape(-1, theta.shape[-1]))


def _sorted(theta: NumpyArray) -> NumpyArray:
    return theta[np.lexsort(theta.T)]


def breed(
    tracks: Params,
    scores: NumpyArray,
    pool: NumpyArray,
    n_tracks: int,
    generator: np.random.Generator,
    keep: int | None = None,
) -> Params:
    """The better half of the tracks, and variants of these up to ``n_tracks``.

    A variant has one component replaced, most likely a rare one, by one that some site found and the track does not
    have: what EM cannot do, which never moves a component from where it is not needed to where it is.
    """
    weights, theta = np.asarray(tracks.weights), np.asarray(tracks.theta)
    best = np.argsort(-scores, kind="stable")[: max(1, n_tracks // 2) if keep is None else keep]
    family = [(weights[m], theta[m], m) for m in best]
    n_components = theta.shape[1]
    for child in range(n_tracks - len(best)):
        # Every other variant is the leader's: where only one component is missing, it is the one to mend.
        parent = best[0] if child % 2 == 0 else generator.choice(best)
        place = generator.choice(n_components, p=_normalized(1.0 / (weights[parent] + 0.1 / n_components)))
        distance = np.linalg.norm(pool[:, None] - theta[parent], axis=-1).min(axis=1)
        # Beyond the upper fifth distance counts no more: a hostile site's components are not the likeliest draw.
        novelty = np.minimum(distance, np.quantile(distance, 0.8)) ** 2
        new = theta[parent].copy()
        new[place] = pool[generator.choice(len(pool), p=_normalized(novelty))]
        share = weights[parent].copy()
        share[place] = max(share[place], 1.0 / n_components)
        family.append((share / share.sum(), new, parent))
    shares, thetas, parents = (np.stack(leaves) for leaves in zip(*family, strict=True))
    spread = None if tracks.spread is None else tracks.spread[jnp.asarray(parents)]
    return Params(jnp.asarray(shares), jnp.asarray(thetas), spread)


def _normalized(density: NumpyArray) -> NumpyArray:
    total = density.sum()
    return density / total if total > 0 else np.full(len(density), 1.0 / len(density))


@partial(jax.jit, static_argnames="family")
def next_guess(family: Family, reply: StartReply, before: Params) -> Params:
    """Where the sites' answers ``(K, M, R), (K, M, R, q)`` move every track, ``(M, R), (M, R, q)``.

    A component's guess is nearly the geometric median of the sites' estimates, whatever part of its rows a site sees in
    it: else a few sites with a single component would own whichever component the others hardly use.
    """
    guess = family.in_noise_units(before.theta, before.spread)
    theta = family.in_noise_units(reply.params.theta, before.spread)
    n_components = guess.shape[1]
    theta = jnp.where(jnp.isfinite(theta), theta, guess)
    weights = jnp.nan_to_num(reply.params.weights)
    say = jnp.broadcast_to(capped_rows(reply.n_rows)[:, None], (len(theta), n_components))

    def one(theta: Array, guess: Array) -> Array:
        distance = jnp.sqrt(jnp.sum((theta - guess) ** 2, axis=-1))
        threshold = jnp.broadcast_to(NEAR * median(distance), say.shape)
        return shrink_to_center(theta, say, threshold, guess, tol=1e-4, max_iterations=30).center

    moved = jax.vmap(one, in_axes=(1, 0))(theta, guess)
    middle = jnp.maximum(median(weights), LEAST_SHARE / n_components)
    found = family.from_noise_units(jnp.where(jnp.isfinite(moved), moved, guess), before.spread)
    spread = None if reply.params.spread is None else median(reply.params.spread)
    return Params(middle / middle.sum(axis=1, keepdims=True), found, spread)


def score(reply: StartReply) -> NumpyArray:
    """How well every track serves the sites, ``(M,)``: its mean lead over the others, in log-likelihood per row.

    The lead of one track over another is the trimmed mean of what each site says of the two. Were tracks scored one
    by one, a few hostile sites would make one look as good as to its best sites and another as bad as to its worst.
    """
    value = np.asarray(reply.log_likelihood) / np.asarray(reply.n_rows)[:, None]
    value = np.nan_to_num(value, nan=HOPELESS, neginf=HOPELESS, posinf=HOPELESS)
    lead = np.sort(value[:, :, None] - value[:, None, :], axis=0)
    cut = int(TRIMMED * len(lead))
    mean_lead: NumpyArray = lead[cut : len(lead) - cut].mean(axis=(0, 2))
    return mean_lead
