"""What may travel: the messages of every task, their fields, shapes and types.

Nothing is listed by hand. The center, the site and the site's guard each derive a message's declaration from the recipe
and the one function that computes it, by tracing it without data; so a message cannot drift from its declaration.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple

import jax
import numpy as np

from fedgrem.algorithms.base import Algorithm
from fedgrem.algorithms.fedgrem import FedGrEM
from fedgrem.algorithms.path import TWO, PathRequest, ScoreRequest, hurried
from fedgrem.algorithms.tasks import local_task
from fedgrem.data.federation import Units
from fedgrem.engines.flare.recipe import Recipe
from fedgrem.engines.flare.wire import decode, named_leaves
from fedgrem.errors import MessageError
from fedgrem.kernels.precision import numpy_dtype, precision
from fedgrem.types import Broadcast, Array, Params, SiteData, StartRequest

CENSUS = "census"
"""The first task: a site says how many rows it has, and summarizes its columns."""
START_TASKS = ("local_size", "local_start", "local_compare", "local_track")
STEP, SCORE, LOOK, INFORMATION = "local_step", "local_score", "local_look", "local_information"
AFTER_TASKS = (SCORE, LOOK, INFORMATION)
"""Asked when the rounds are over: of a site that does not answer nothing is known, and the fit stands."""
PATH_STEP, PATH_SCORE = "path_step", "path_score"
TASKS = (CENSUS, *START_TASKS, PATH_STEP, PATH_SCORE, STEP, *AFTER_TASKS)
NAME_BYTES = 64
SOME_ROWS = 8
"""Rows of the made-up site that is traced; no shape of a message depends on it."""


class Order(NamedTuple):
    """What the center sends to one site: a site remembers its rows and nothing else."""

    sent: Any
    """What the task is given: nothing, a :class:`~fedgrem.types.StartRequest`, a :class:`~fedgrem.types.Broadcast`,
    :class:`~fedgrem.types.Params`, or the requests of :mod:`fedgrem.algorithms.path`."""
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
    names: Any
    """(p, 64) of the columns, in UTF-8 filled up with zeros; so that no site mixes up its columns."""


def write_names(names: Sequence[str]) -> Array:
    """Names as numbers, ``(p, 64)``.

    Examples
    --------
    >>> read_names(write_names(["age", "größe"]))
    ['age', 'größe']
    """
    table = np.zeros((len(names), NAME_BYTES), dtype=np.uint8)
    for row, name in zip(table, names, strict=True):
        raw = name.encode()[:NAME_BYTES]
        row[: len(raw)] = np.frombuffer(raw, dtype=np.uint8)
    return table


def read_names(table: Array) -> list[str]:
    """The way back."""
    return [row.tobytes().rstrip(b"\0").decode(errors="replace") for row in np.asarray(table, dtype=np.uint8)]


class Declaration:
    """The messages of one fit, for sites of ``n_columns`` columns (without a response and without ones)."""

    def __init__(self, recipe: Recipe, n_columns: int) -> None:
        self.recipe, self.n_columns = recipe, n_columns
        self._family = recipe.build_family()
        self._replies: dict[str, Any] = {}

    @property
    def n_summarized(self) -> int:
        """Columns that a census summarizes: the response of a regression too."""
        return self.n_columns + self._family.has_target

    def order(self, task: str, *, held: bool = False, n_candidates: int | None = None) -> Order:
        """The declaration of what a site is sent.

        Before round 1 an order may also say how large the noise is (``held``), and how many starts are to be compared
        depends on the number of sites.
        """
        if task not in TASKS:
            raise MessageError(f"there is no task {task[:40]!r}; the tasks are {', '.join(TASKS)}.")
        column = number_like(np.float64, (self.n_summarized,))
        units = None if self.recipe.units_plan.as_it_is or task == CENSUS else Units(column, column)
        sent: Any = ()
        if task == STEP:
            sent = self._step_request
        elif task in (PATH_STEP, PATH_SCORE):
            sent = self._path_request(task)
        elif task in AFTER_TASKS:
            sent = self._params
        elif task in START_TASKS:
            sent = self._start_request(task, held, 2 if n_candidates is None else n_candidates)
        return Order(sent, units, number_like(np.bool_, ()))

    def read_order(self, task: str, fields: Any) -> Order:
        """An order as it came, checked against the declaration: the site's side of the check."""
        named = fields if isinstance(fields, dict) else {}
        held = "sent.candidates.spread" in named and task in ("local_start", "local_size")
        tried = named.get("sent.candidates.weights", {}) if task == "local_compare" else {}
        count = [*(tried.get("shape") or []), 2][0] if isinstance(tried, dict) else 2
        most = 2 + self.recipe.start_plan.donors
        declared = self.order(task, held=held, n_candidates=min(count, most) if type(count) is int else 2)
        order: Order = decode(fields, declared)
        check_shapes("the order", order, declared)
        if order.units is not None and not (
            np.all(np.isfinite(order.units.location))
            and np.all(np.isfinite(order.units.scale) & (order.units.scale > 0))
        ):
            raise MessageError("the order's units are not finite and positive.")
        return order

    def reply(self, task: str) -> Any:
        """The declaration of an answer: its structure, with the shape and type of every field."""
        if task not in self._replies:
            self._replies[task] = self._trace(task)
        return self._replies[task]

    def _trace(self, task: str) -> Any:
        if task == CENSUS:
            number, column = number_like(np.float64, ()), number_like(np.float64, (self.n_summarized,))
            names = number_like(np.uint8, (self.n_summarized, NAME_BYTES))
            return Census(number, column, column, number_like(np.bool_, ()), names)
        with precision(self.recipe.dtype):
            step = local_task(task, self.recipe.build_algorithm(), self.recipe.start_plan)
            return jax.eval_shape(step, self._some_data, self.order(task).sent)

    @cached_property
    def _params(self) -> Params:
        """One site's parameters."""
        with precision(self.recipe.dtype):
            start = local_task("local_start", self.recipe.build_algorithm(), self.recipe.start_plan)
            nothing = Params(self._float((0,)), self._float((0,)))
            request = StartRequest(number_like(np.uint32, (2,)), nothing, self._float(()))
            params: Params = jax.eval_shape(start, self._some_data, request).params
        return params

    def _start_request(self, task: str, held: bool, n_candidates: int) -> StartRequest:
        one, plan = self._params, self.recipe.start_plan
        if task == "local_start":
            tried = Params(self._float((0,)), self._float((0,)), one.spread if held else None)
        elif task == "local_size":
            tried = one if held else one._replace(spread=None)
        else:
            tracks = self._family.start_tracks if plan.tracks is None else plan.tracks
            count = tracks if task == "local_track" else n_candidates
            tried = jax.tree.map(lambda leaf: number_like(leaf.dtype, (count, *leaf.shape)), one)
        return StartRequest(number_like(np.uint32, (2,)), tried, self._float(()))

    def _path_request(self, task: str) -> Any:
        algorithm = self.recipe.build_algorithm()
        if not self.recipe.compare or not isinstance(algorithm, FedGrEM):
            raise MessageError("the recipe asks for no comparison of penalties.")
        count = TWO * len(self.recipe.plan(2, self.n_columns + self.recipe.intercept).path)
        cut = number_like(np.uint32, (2,)), number_like(np.int32, ())
        one = self._params if task == PATH_SCORE else self._request_of(hurried(algorithm))
        members = jax.tree.map(lambda leaf: number_like(leaf.dtype, (count, *leaf.shape)), one)
        return ScoreRequest(*cut, members) if task == PATH_SCORE else PathRequest(*cut, members)

    @cached_property
    def _step_request(self) -> Broadcast:
        return self._request_of(self.recipe.build_algorithm())

    def _request_of(self, algorithm: Algorithm) -> Broadcast:
        """What a site is sent in a round of this algorithm."""
        with precision(self.recipe.dtype):
            two = jax.tree.map(lambda leaf: number_like(leaf.dtype, (2, *leaf.shape)), self._params)
            central = jax.eval_shape(algorithm.central_start, two, self._float((2,)))
            stacked = jax.eval_shape(algorithm.broadcast, central)
        one: Broadcast = jax.tree.map(lambda leaf: number_like(leaf.dtype, leaf.shape[1:]), stacked)
        return one

    @property
    def _some_data(self) -> SiteData:
        width, n = self.n_columns + self.recipe.intercept, SOME_ROWS
        wide, long = self._float((width, n)), self._float((n,))
        return SiteData(wide, long, long, self._float((n, width)))

    def _float(self, shape: tuple[int, ...]) -> Any:
        return number_like(numpy_dtype(self.recipe.dtype), shape)


def check_shapes(who: str, message: Any, like: Any) -> None:
    """Refuse an array whose shape or type is not the declared one."""
    for (name, got), (_, expected) in zip(named_leaves(message), named_leaves(like), strict=True):
        what = name or "its value"
        if np.shape(got) != tuple(expected.shape):
            raise MessageError(f"{who} has {what} of shape {np.shape(got)}, expected {tuple(expected.shape)}.")
        if np.dtype(got.dtype) != np.dtype(expected.dtype):
            raise MessageError(f"{who} has {what} of type {got.dtype}, expected {np.dtype(expected.dtype)}.")


def number_like(dtype: Any, shape: tuple[int, ...]) -> Any:
    """An array of this type and shape that holds nothing."""
    return jax.ShapeDtypeStruct(shape, np.dtype(dtype))  # type: ignore[no-untyped-call]  # JAX gives it no types
