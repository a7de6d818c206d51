"""The words of the package as types: NamedTuples of arrays, and nothing else.

A field documented as ``(R,)`` is one site's; the center holds the same tuples stacked, ``(K, R)``. Between the sites
and the components there may be further axes, one entry per fit: restarts, penalties, halves.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]


class Params(NamedTuple):
    """A mixture: weights, component parameters, and the noise about these where it is estimated."""

    weights: Array
    """(R,) on the simplex."""
    theta: Array
    """(R, q) one row per component; q = p for Gaussian means and regression coefficients."""
    noise: Array | None = None
    """(C, s) unconstrained numbers for the noise of all components (C = 1) or of each (C = R); None if it is known."""


class Sums(NamedTuple):
    """What an E-step finds: sums over the rows of a site, all that a step depends on."""

    features: Array
    """(R, t) posterior sums of the features of the rows; the first entry is the rows held."""
    rest: Array
    """(u,) sums of what no component owns."""
    log_likelihood: Array
    """()"""

    @property
    def held(self) -> Array:
        """(R,) rows held by every component."""
        return self.features[..., 0]


class Upload(NamedTuple):
    """What leaves a site in a round. No shape depends on the number of rows."""

    params: Params
    """The parameters after the local step."""
    step_scale: Array
    """(R,) how far this step went relative to ``step_size / weight``; 1 where curvature is that of a unit Gaussian."""
    n_rows: Array
    """() the total row weight."""
    log_likelihood: Array
    """() of the parameters received, or those before the last local step, on the site's own rows."""
    extra: Any = ()
    """An algorithm's own NamedTuple of arrays, declared in its module."""


class Broadcast(NamedTuple):
    """What the center sends to one site before a round."""

    params: Params
    """The parameters the site is to start from."""
    extra: Any = ()
    """An algorithm's own NamedTuple of arrays, declared in its module."""


class Central(NamedTuple):
    """All that the center holds between rounds."""

    params: Params
    """(K, R) and (K, R, q)."""
    center: Array
    """(R, q) the common center of each component."""
    n_rows: Array
    """(K,)"""
    noise: Array | None = None
    """(C, s) the common noise, in whose units distances from the center are measured; None if it is known."""
    extra: Any = ()
    """An algorithm's own NamedTuple of arrays."""
    weights: Array | None = None
    """(R,) the common weights; None unless weights may be shrunk to them."""


class Influence(NamedTuple):
    """What a central step decided: verdicts, standard errors, BIC and the report read it here."""

    weight: Array
    """(K, R) what each site's component counts for at the center; 0 for sites with no say."""
    threshold: Array
    """(K, R) the shrinkage threshold of each; 0 where nothing is pulled, infinity where all are moved to the center."""
    penalty: Array
    """() lambda of the round; 0 where there is none."""
    iterations: Array
    """() of the central problem."""
    gap: Array
    """() gradient norm of the central problem at its solution, in units of the common noise: the certificate."""
    between: Array | None = None
    """(R,) the between-site variance, in units of the common noise; None where penalties decide. Where it does, the
    threshold is by how much each was moved, a part of its distance."""
    noise_between: Array | None = None
    """(C,) likewise of the noise, in coordinates about the common one."""


class FitResult(NamedTuple):
    """A finished fit: arrays and plain values only, in the units of the fit."""

    site_names: tuple[str, ...]
    weights: Array
    """(K, R)"""
    theta: Array
    """(K, R, q)"""
    center: Array
    """(R, q)"""
    noise: Array | None
    """(K, C, s)"""
    center_noise: Array | None
    """(C, s)"""
    distance: Array
    """(K, R) of every component from its center, in units of the common noise."""
    n_rows: Array
    """(K,) total row weight of each site."""
    n_rounds: int
    converged: bool
    unsettled: tuple[str, ...]
    """Sites whose parameters still moved by more than the tolerance when they were last heard."""
    history: dict[str, Array]
    """One entry per round: the fields of :class:`~fedgrem.fit.rounds.RoundRecord`."""
    influence: Influence
    """Of the last round."""
    start_choice: Array
    """(K,) which candidate each site took in the exchange of starts; 0 is its own."""
    location: Array | None = None
    """(p,) or, with a response, (p + 1,): the units in which the fit ran; None if those of the rows."""
    scale: Array | None = None
    """The same."""
    cost: Mapping[str, int] = {}  # never written to; a read-only view could not be pickled
    """Exchanges and numbers sent, by purpose."""
    path: Mapping[str, Array] = {}
    """How the penalty was chosen: :meth:`fedgrem.fit.penalty.Choice.as_arrays`; empty if it was given."""
    look: dict[str, Array] | None = None
    """What the last look from the center found, by name, one entry per site; None if nobody was asked."""
    log_likelihood: Array | None = None
    """(K,) of the final parameters; None unless the fit was scored, NaN where a site did not say."""
    entropy: Array | None = None
    """(K,) likewise, of the rows' components given the rows."""
    column_mean: Array | None = None
    """(K, p) of every column at every site, the response last, in its own units; NaN where a site has no cell of it."""
    column_deviation: Array | None = None
    """(K, p) likewise; 0 where a column is constant."""
    site_gaps: Array | None = None
    """(K,) whether cells are missing at a site."""
    weights_variance: Array | None = None
    """(K, R); None, as the next two, if no standard errors were asked for."""
    theta_covariance: Array | None = None
    """(K, R, q, q) of the parameters of each component, NaN where nothing can be said."""
    center_covariance: Array | None = None
    """(R, q, q)"""
    seen: Array | None = None
    """(K, p) row weight of the cells that are there, by column, the response last."""
    common_weights: Array | None = None
    """(R,) that weights are shrunk to; None where they are each site's own."""
    held: Array | None = None
    """(K, R) which components a site has; None where all sites have all."""
    held_down: Array | None = None
    """(K,) the share of a site's rows that does not count, as these are of no component; None where all rows do."""
    columns: Array | None = None
    """(q,) places of the columns that a sparse fit is about, in which components differ; None for all columns."""
    columns_stand_out: bool = True
    """Whether any columns clearly vary together; components in columns that do not may be those of noise."""

    @property
    def from_sums(self) -> bool:
        """Whether nobody saw a single site: the fit was found from sums over sites, in passes."""
        return "passes" in self.history


def pick(params: Params, index: Any) -> Params:
    """The same entries of all arrays of a mixture."""
    found: Params = map_arrays(lambda leaf: leaf[index], params)
    return found


def components_of(params: Params, which: Any) -> Params:
    """Some components of a mixture ``(..., R)``; a noise that all share is theirs too."""
    weights, theta, noise = params
    if noise is not None and noise.shape[-2] == np.shape(weights)[-1]:
        noise = np.asarray(noise)[..., which, :]
    return Params(np.asarray(weights)[..., which], np.asarray(theta)[..., which, :], noise)


def map_arrays(function: Callable[..., Any], message: Any, *others: Any) -> Any:
    """Apply a function to every array of a message, a tree of NamedTuples; None stays None.

    Examples
    --------
    >>> map_arrays(lambda a: a + 1, Params(np.zeros(1), np.ones(1))).theta.tolist()
    [2.0]
    """
    if message is None:
        return None
    if isinstance(message, tuple):
        parts = [map_arrays(function, part, *(o[i] for o in others)) for i, part in enumerate(message)]
        return type(message)(*parts) if hasattr(message, "_fields") else tuple(parts)
    return function(message, *others)


def named_arrays(message: Any, name: str = "") -> list[tuple[str, Any]]:
    """The arrays of a message and their names, such as ``params.theta``; fields that are None are left out.

    Examples
    --------
    >>> [name for name, _ in named_arrays(Broadcast(Params(np.zeros(1), np.ones(1))))]
    ['params.weights', 'params.theta']
    """
    if message is None:
        return []
    if isinstance(message, tuple):
        names = getattr(message, "_fields", [str(i) for i in range(len(message))])
        parts = zip(names, message, strict=True)
        return [found for key, part in parts for found in named_arrays(part, f"{name}.{key}" if name else key)]
    return [(name, message)]


def count_numbers(message: Any) -> int:
    """How many numbers a message holds."""
    if isinstance(message, tuple):
        return sum(map(count_numbers, message))
    return 0 if message is None else np.size(message)
