"""A rehearsal: what a site would send, played through on its own rows, with nobody listening."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedgrem.algorithms.align import derive_key
from fedgrem.algorithms.fedgrem import FedGrEM
from fedgrem.algorithms.path import first_requests
from fedgrem.data.units import Summary
from fedgrem.engines.flare.declaration import (
    CENSUS,
    INFORMATION,
    LOOK,
    PATH_SCORE,
    PATH_STEP,
    SCORE,
    STEP,
    Order,
    read_names,
)
from fedgrem.engines.flare.guard import Guard
from fedgrem.engines.flare.recipe import Recipe
from fedgrem.engines.flare.site import DeclinedError, Settings, SiteAtWork
from fedgrem.engines.flare.wire import encode, named_leaves, size
from fedgrem.errors import InputError
from fedgrem.kernels.precision import numpy_dtype, precision
from fedgrem.types import Broadcast, Params, StartReply, StartRequest

TITLES = {
    CENSUS: "First report (once per fit)",
    "local_start": "A start (a few times before round 1)",
    STEP: "A round (every round)",
    PATH_STEP: "The choice of the penalty (8 times before round 1, 12 times with an estimated noise)",
    PATH_SCORE: "What came of it (once or twice)",
    LOOK: "A last look (once, after the rounds)",
    INFORMATION: "Standard errors (once per fit, at its end)",
}


class Message(NamedTuple):
    """One message that would leave."""

    title: str
    fields: list[tuple[str, tuple[int, ...], Any]]
    """Name, shape and value."""
    size: int
    refused: str
    """Why the guard would not let it out; empty if it would."""


def rehearse(name: str, settings: Settings, n_components: int) -> list[Message]:
    """The messages of the first report, a start, the choice of the penalty, one round of FedGrEM, and its end."""
    regression = settings.target is not None
    recipe = Recipe(
        "regression" if regression else "gaussian",
        "fedgrem",
        n_components,
        {"noise": "shared"} if regression else {"covariance": "tied"},
        compare=True,
        choose=True,
        standardize=True,
        intercept=regression,
        missing=not regression,
        standard_errors=None,
    )
    site, guard = SiteAtWork(name, settings, recipe), Guard(settings, recipe, Path("/dev/null"))
    try:
        return [_message(guard, task, reply) for task, reply in play_once(site)]
    except DeclinedError as error:
        raise InputError(str(error)) from error


def play_once(site: SiteAtWork, *, compare: bool = False) -> list[tuple[str, Any]]:
    """The tasks of a fit of one site, once each, and its replies; with ``compare`` those that need other sites too.

    Whatever a site is asked in earnest it has then compiled.
    """
    recipe = site.recipe
    census = site.answer(CENSUS, encode(Order((), None, np.asarray(False))))
    units = recipe.units_plan.units([Summary(census.mean, census.deviation)])

    def ask(task: str, sent: Any) -> Any:
        return site.answer(task, encode(Order(sent, units, census.gaps)))

    nothing: Any = np.zeros(0, numpy_dtype(recipe.dtype))
    penalty: Any = np.zeros((), numpy_dtype(recipe.dtype))
    key: Any = derive_key(recipe.seed, site.name, "start")
    tried = Params(nothing, nothing)
    start = ask("local_start", StartRequest(key, tried, penalty))
    if compare:
        if start.params.spread is not None:
            start = ask("local_start", StartRequest(key, tried._replace(spread=start.params.spread), penalty))
        twice = jax.tree.map(lambda leaf: np.stack([leaf, leaf]), start.params)
        start = ask("local_compare", StartRequest(key, twice, penalty))
    step = ask(STEP, _first_round(recipe, start))
    if recipe.score:
        ask(SCORE, start.params)
    replies = [(CENSUS, census), ("local_start", start), *_penalties(recipe, start, key, ask), (STEP, step)]
    replies.append((LOOK, ask(LOOK, start.params)))
    if recipe.plan(1, start.params.theta.shape[-1]).standard_errors:
        replies.append((INFORMATION, ask(INFORMATION, start.params)))
    return replies


def _penalties(recipe: Recipe, start: StartReply, key: Any, ask: Callable[[str, Any], Any]) -> list[tuple[str, Any]]:
    """The messages of the choice of a penalty, if there is one."""
    algorithm, path = recipe.build_algorithm(), recipe.plan(2, start.params.theta.shape[-1]).path
    if not path or not isinstance(algorithm, FedGrEM):
        return []
    with precision(recipe.dtype):
        params, n_rows = jax.tree.map(jnp.asarray, (start.params, start.n_rows))
        requests = first_requests(algorithm, params, n_rows, jnp.asarray(key), path)
        sent = jax.tree.map(np.asarray, requests)
    return [(task, ask(task, request)) for task, request in zip((PATH_STEP, PATH_SCORE), sent, strict=True)]


def _first_round(recipe: Recipe, start: StartReply) -> Broadcast:
    """What the center of this one site would send it for round 1."""
    with precision(recipe.dtype):
        algorithm = recipe.build_algorithm()
        params, n_rows = jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], (start.params, start.n_rows))
        sent = algorithm.broadcast(algorithm.central_start(params, n_rows))
        one: Broadcast = jax.tree.map(lambda leaf: np.asarray(leaf[0]), sent)
    return one


def _message(guard: Guard, task: str, reply: Any) -> Message:
    refused = ""
    try:
        guard.let_out(task, encode(reply), job="rehearsal", exchange=0)
    except DeclinedError as error:
        refused = str(error)
    fields: list[tuple[str, tuple[int, ...], Any]]
    fields = [(name, np.shape(leaf), np.asarray(leaf)) for name, leaf in named_leaves(reply)]
    if task == CENSUS:
        fields = [(n, shape, read_names(value) if n == "names" else value) for n, shape, value in fields]
    return Message(TITLES[task], fields, size(encode(reply)), refused)
