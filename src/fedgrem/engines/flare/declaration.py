"""What may travel: the messages of every task, their fields, shapes and types.

Nothing is listed by hand. The center, the site and the site's guard each derive a message's declaration from the recipe
and the one function that computes it, by tracing it without data; so a message cannot drift from its declaration.
"""

from functools import cached_property
from typing import Any, NamedTuple, TypeAlias

import jax
import numpy as np

from fedgrem.algorithms.tasks import local_task
from fedgrem.data.federation import Units
from fedgrem.engines.flare.recipe import Recipe
from fedgrem.engines.flare.wire import named_leaves
from fedgrem.errors import MessageError
from fedgrem.kernels.precision import numpy_dtype, precision
from fedgrem.types import Broadcast, Params, SiteData, StartRequest

CENSUS = "census"
"""The first task: a site says how many rows it has, and summarizes its columns."""
START_TASKS = ("local_size", "local_start", "local_compare", "local_track")
STEP = "local_step"
TASKS = (CENSUS, *START_TASKS, STEP)
SOME_ROWS = 8
"""Rows of the made-up site that is traced; no shape of a message depends on it."""

Shapes: TypeAlias = tuple[tuple[str, tuple[int, ...], str], ...]


class Order(NamedTuple):
    """What the center sends to one site: a site remembers its rows and nothing else."""

    sent: Any
    """What the task is given: nothing, a :class:`~fedgrem.types.StartRequest` or a :class:`~fedgrem.types.Broadcast`."""
    units: Units | None
    """The units of the fit; None leaves the rows as they are."""
    gaps: Any
    """() whether any site has empty cells."""


class Census(NamedTuple):
    """What a site says before everything else."""

    n_rows: Any
    """() the total row weight."""
    mean: Any
    """(p,) of every column, the response of a regression last; NaN where a column has not a single cell."""
    deviation: Any
    """(p,) standard deviations within the site."""
    gaps: Any
    """() whether cells are empty."""


class Declaration:
    """The messages of one fit, for sites of ``n_columns`` columns (without a response and without ones)."""

    def __init__(self, recipe: Recipe, n_columns: int) -> None:
        self.recipe, self.n_columns = recipe, n_columns
        self._family = recipe.build_family()
        self._replies: dict[tuple[str, bool, Shapes], Any] = {}

    @property
    def n_summarized(self) -> int:
        """Columns that a census summarizes: the response of a regression too."""
        return self.n_columns + self._family.has_target

    def like_order(self, task: str, names: set[str]) -> Order:
        """The structure of an order; of the fields that may be absent, those in ``names`` are there."""
        if task not in TASKS:
            raise MessageError(f"there is no task {task[:40]!r}; the tasks are {', '.join(TASKS)}.")
        here = np.zeros(())
        units = None if self.recipe.units_plan.as_it_is or task == CENSUS else Units(here, here)
        sent: Any = ()
        if task == STEP:
            sent = self.step_request
        elif task in START_TASKS:
            spread: Any = here if "sent.candidates.spread" in names else None
            sent = StartRequest(here, Params(here, here, spread), here)  # type: ignore[arg-type]
        return Order(sent, units, here)

    def check_order(self, task: str, order: Order) -> None:
        """Refuse an order that the declaration does not know: the site's side of the check."""
        check_shapes("the order", order.gaps, _number(np.bool_, ()))
        if order.units is not None:
            column: Any = _number(np.float64, (self.n_summarized,))
            check_shapes("the order's units", order.units, Units(column, column))
            if not (np.all(np.isfinite(order.units.location)) and np.all(order.units.scale > 0)):
                raise MessageError("the order's units are not finite and positive.")
        if task == STEP:
            check_shapes("the order", order.sent, self.step_request)

    def reply(self, task: str, order: Order) -> Any:
        """The declaration of the answer to an order: its structure, with the shape and type of every field."""
        shapes = tuple((name, np.shape(leaf), np.dtype(leaf.dtype).str) for name, leaf in named_leaves(order.sent))
        key = (task, bool(order.gaps), shapes)
        if key not in self._replies:
            self._replies[key] = self._trace(*key)
        return self._replies[key]

    def _trace(self, task: str, gaps: bool, shapes: Shapes) -> Any:
        if task == CENSUS:
            number, column = _number(np.float64, ()), _number(np.float64, (self.n_summarized,))
            return Census(number, column, column, _number(np.bool_, ()))
        leaves = {name: _number(dtype, shape) for name, shape, dtype in shapes}
        like = self.like_order(task, {f"sent.{name}" for name in leaves}).sent
        sent = jax.tree.unflatten(jax.tree.structure(like), [leaves[name] for name, _ in named_leaves(like)])
        with precision(self.recipe.dtype):
            step = local_task(task, self.recipe.build_algorithm(), self.recipe.start_plan)
            try:
                return jax.eval_shape(step, self._some_data(gaps), sent)
            except (TypeError, ValueError, IndexError) as error:
                raise MessageError(f"what was sent for {task} does not fit the recipe.") from error

    @cached_property
    def step_request(self) -> Broadcast:
        """The declaration of what a site is sent in a round."""
        with precision(self.recipe.dtype):
            algorithm = self.recipe.build_algorithm()
            start = local_task("local_start", algorithm, self.recipe.start_plan)
            nothing = Params(self._float((0,)), self._float((0,)))
            request = StartRequest(_number(np.uint32, (2,)), nothing, self._float(()))
            params = jax.eval_shape(start, self._some_data(gaps=False), request).params
            two = jax.tree.map(lambda leaf: _number(leaf.dtype, (2, *leaf.shape)), params)
            central = jax.eval_shape(algorithm.central_start, two, self._float((2,)))
            stacked = jax.eval_shape(algorithm.broadcast, central)
        one: Broadcast = jax.tree.map(lambda leaf: _number(leaf.dtype, leaf.shape[1:]), stacked)
        return one

    def _some_data(self, gaps: bool) -> SiteData:
        width, n = self.n_columns + self.recipe.intercept, SOME_ROWS
        wide, long = self._float((width, n)), self._float((n,))
        return SiteData(wide, long, long, self._float((n, width)), wide if gaps else None)

    def _float(self, shape: tuple[int, ...]) -> Any:
        return _number(numpy_dtype(self.recipe.dtype), shape)


def check_shapes(who: str, message: Any, like: Any) -> None:
    """Refuse an array whose shape or type is not the declared one."""
    for (name, got), (_, expected) in zip(named_leaves(message), named_leaves(like), strict=True):
        what = name or "its value"
        if np.shape(got) != tuple(expected.shape):
            raise MessageError(f"{who} has {what} of shape {np.shape(got)}, expected {tuple(expected.shape)}.")
        if np.dtype(got.dtype) != np.dtype(expected.dtype):
            raise MessageError(f"{who} has {what} of type {got.dtype}, expected {np.dtype(expected.dtype)}.")


def _number(dtype: Any, shape: tuple[int, ...]) -> Any:
    return jax.ShapeDtypeStruct(shape, np.dtype(dtype))
