"""The words of the package as types: NamedTuples of arrays, and nothing else.

A field documented as ``(R,)`` is one site's; the center holds the same tuples stacked, ``(K, R)``.
"""

from typing import Any, NamedTuple, TypeAlias

import jax
import numpy as np

Array: TypeAlias = jax.Array
NumpyArray: TypeAlias = np.ndarray[Any, np.dtype[Any]]


class SiteData(NamedTuple):
    """The rows of one site, as its local step sees them. They never leave the site."""

    columns: Array
    """(p, n) features; rows run along the fastest axis, which is what makes the E-step fast."""
    target: Array
    """(n,) responses of a regression; zeros where the family has none."""
    row_weight: Array
    """(n,) sample weights; a row of weight 0 is padding and counts for nothing."""
    rows_first: Array | None = None
    """(n, p) the same features once more, for sums over rows: half the time of a step goes into reading them."""

    observed: Array | None = None
    """(p, n) 1 where a cell was recorded and 0 where it is missing, and 0 in ``columns``; None if none is missing."""

    @property
    def rows(self) -> Array:
        """(n, p) features, for products of the kind ``mass @ rows``."""
        return self.columns.T if self.rows_first is None else self.rows_first


class Params(NamedTuple):
    """A mixture: weights and component parameters."""

    weights: Array
    """(R,) on the simplex."""
    theta: Array
    """(R, q) one row per component; q = p for Gaussian means and regression coefficients."""
    spread: Array | None = None
    """(C, s) unconstrained numbers for the noise of all components (C = 1) or of each (C = R); None if it is known."""


class Upload(NamedTuple):
    """What leaves a site in a round. No shape depends on the number of rows."""

    params: Params
    """The parameters after the local step."""
    step_scale: Array
    """(R,) how far this step went relative to ``step_size / weight``; 1 where curvature is that of a unit Gaussian."""
    n_rows: Array
    """() the total row weight."""
    log_likelihood: Array
    """() of the parameters received, on the site's own rows."""
    extra: Any = ()
    """An algorithm's own NamedTuple of arrays, declared in its module."""


class Broadcast(NamedTuple):
    """What the center sends to one site before a round."""

    params: Params
    """The parameters the site is to start from."""
    first_weights: Array
    """(R,) the site's weights before round 1, by which the paper scales its steps."""
    extra: Any = ()
    """An algorithm's own NamedTuple of arrays, declared in its module."""


class StartRequest(NamedTuple):
    """What the center sends to ask for a start."""

    key: Array
    """(2,) random key derived from (seed, site name, purpose)."""
    candidates: Params
    """(M, R) and (M, R, q): starts to try, or joint starts to improve; M may be 0.

    In a comparison the site's own comes first and the common one second.
    """
    penalty: Array
    """() lambda: what a distance from the common start costs in the comparison."""


class StartReply(NamedTuple):
    """What a site answers to a :class:`StartRequest`."""

    params: Params
    """The best start this site found, judged on its own rows; where joint starts are improved, all M of them."""
    n_rows: Array
    """() the total row weight."""
    log_likelihood: Array
    """() of that start; (M,) where joint starts are improved."""
    choice: Array
    """() which candidate won, 0 being the site's own; (M,) zeros where nothing is chosen."""


class Score(NamedTuple):
    """What a site says of a finished fit."""

    n_rows: Array
    """() the total row weight."""
    log_likelihood: Array
    """() of the site's parameters, on its own rows."""
    entropy: Array
    """() of the rows' components given the rows, in nats: 0 where every row surely belongs to one."""


class Central(NamedTuple):
    """All that the center holds between rounds."""

    params: Params
    """(K, R) and (K, R, q)."""
    center: Array
    """(R, q) the common center of each component."""
    n_rows: Array
    """(K,)"""
    first_weights: Array
    """(K, R)"""
    penalty: Array
    """() lambda of the last round."""
    extra: Any = ()
    """An algorithm's own NamedTuple of arrays."""
    spread: Array | None = None
    """(C, s) the common noise, in whose units distances from the center are measured; None if it is known."""


class RoundRecord(NamedTuple):
    """What the history keeps of one round."""

    log_likelihood: Array
    """(K,) of the parameters each site received."""
    movement: Array
    """(K,) relative movement of each site's parameters."""
    center_movement: Array
    """() relative movement of the center."""
    penalty: Array
    """() lambda."""
    distance: Array
    """(K,) largest distance over components of a site from the center, in units of the common noise."""
    solver_iterations: Array
    """() of the central problem."""
    movement_in_errors: Array
    """(K,) movement of each site's parameters in units of about their standard errors."""
    solver_gap: Array
    """() gradient norm of the central problem at its solution, in units of the common noise: the certificate."""


class FitResult(NamedTuple):
    """A finished fit: NumPy arrays and plain values only."""

    site_names: tuple[str, ...]
    weights: NumpyArray
    """(K, R)"""
    theta: NumpyArray
    """(K, R, q)"""
    center: NumpyArray
    """(R, q)"""
    spread: NumpyArray | None
    """(K, C, s)"""
    center_spread: NumpyArray | None
    """(C, s)"""
    distance: NumpyArray
    """(K, R) of every component from its center, in units of the common noise."""
    n_rows: NumpyArray
    """(K,) total row weight of each site."""
    n_rounds: int
    converged: bool
    unsettled: tuple[str, ...]
    """Sites whose parameters still moved by more than the tolerance in the last round."""
    history: dict[str, NumpyArray]
    start_choice: NumpyArray
    """(K,) which candidate each site took in the last exchange of starts; -1 is its own."""
    cost: dict[str, int]
    """Exchanges and numbers sent, by purpose."""
    path: dict[str, NumpyArray]
    """How the penalty was chosen: the fields of a :class:`~fedgrem.algorithms.path.Choice`; empty if it was given."""
    log_likelihood: NumpyArray | None = None
    """(K,) of the final parameters; None unless the fit was scored, NaN where a site did not say."""
    entropy: NumpyArray | None = None
    """(K,) likewise, of the rows' components given the rows."""
    look: dict[str, NumpyArray] | None = None
    """What the last look from the center found, by name, one entry per site; None if nobody was asked."""
    weights_variance: NumpyArray | None = None
    """(K, R); None, as the next two, if no standard errors were asked for."""
    theta_covariance: NumpyArray | None = None
    """(K, R, q, q) of the parameters of each component, NaN where nothing can be said."""
    center_covariance: NumpyArray | None = None
    """(R, q, q)"""
