"""A last look after the rounds: every site compares the center with the answer its own rows would give from there."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedgrem.algorithms.base import Engine
from fedgrem.algorithms.local import gradient_upload
from fedgrem.families.base import Family, expect
from fedgrem.types import Array, Central, NumpyArray, Params, SiteData

STEPS = 20
"""Gradient steps from the center: enough to say where the rows pull, too few to fit the noise of a rare component."""
STEP_SIZE = 0.95


class Look(NamedTuple):
    """What a site answers. No shape depends on the number of rows."""

    params: Params
    """Where its rows lead from the center, with nothing that pulls back."""
    n_rows: Array
    """() the total row weight."""
    log_likelihood: Array
    """() of these parameters."""
    at_center: Array
    """() of the center's components, with the weights that suit this site best."""


def local_look(family: Family, data: SiteData, center: Params) -> Look:
    """Gradient EM from the center on one site's rows: of the weights alone, then of everything.

    Twice the difference of the two log-likelihoods is about chi-squared where a site is at the center, whatever the
    units of the rows, the size of the site and the overlap of the components.
    """

    def follow(free: Array) -> tuple[Params, Array]:
        def once(_: int, params: Params) -> Params:
            moved = gradient_upload(family, data, params, STEP_SIZE, None).params
            held = center._replace(weights=moved.weights)
            after: Params = jax.tree.map(lambda new, old: jnp.where(free, new, old), moved, held)
            return after

        params = jax.lax.fori_loop(0, STEPS, once, center)
        return params, expect(family, data, params)[1]

    # One after the other, by one program: it is compiled once, and memory stays that of one E-step.
    both, log_likelihood = jax.lax.map(follow, jnp.asarray([False, True]))
    own: Params = jax.tree.map(lambda leaf: leaf[1], both)
    return Look(own, data.row_weight.sum(), log_likelihood[1], log_likelihood[0])


def look_around(engine: Engine, central: Central) -> dict[str, NumpyArray]:
    """Ask every site for a look from the center; stacked arrays by name, NaN where a site did not answer."""
    weights = np.median(central.params.weights, axis=0)
    center = Params(weights / weights.sum(), central.center, central.spread)
    n_sites = len(engine.site_names)
    # Copied in NumPy: nothing to compile.
    sent: Params = jax.tree.map(lambda leaf: jax.device_put(np.tile(leaf, (n_sites, *(1,) * np.ndim(leaf)))), center)
    look: Look = engine.ask("local_look", sent)
    found = {"theta": look.params.theta, "log_likelihood": look.log_likelihood, "at_center": look.at_center}
    return {name: np.array(leaf) for name, leaf in found.items()}
