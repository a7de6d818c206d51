"""What may travel: the messages of every task of a fit, their fields, shapes and types.

Nothing is listed by hand. The center, the site and the site's guard each find it out by playing the conversation of
the spec on made-up rows, of two sizes; so a message cannot drift from its declaration, and no shape depends on rows.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np

from fedgrem.data.federation import Federation, Units
from fedgrem.engines.inprocess import InProcess
from fedgrem.engines.remote.floor import params_of
from fedgrem.engines.remote.sums import PLAYED_SITES, NamedKeys, order_among, reply_among, sites_told
from fedgrem.engines.remote.wire import decode
from fedgrem.errors import InputError, MessageError
from fedgrem.families.registry import FAMILIES
from fedgrem.fit.conversation import Ask, Replies, converse
from fedgrem.fit.fit import fit
from fedgrem.fit.private_site import TASKS as PRIVATE_TASKS
from fedgrem.fit.spec import FitSpec
from fedgrem.fit.sums import Circle
from fedgrem.fit.sums_site import KEYS, SUM_TASKS, SumOrder, check_spec
from fedgrem.fit.tasks import AFTER_BIRTHS
from fedgrem.fit.tasks import TASKS as LOCAL_TASKS
from fedgrem.types import Array, map_arrays, named_arrays

CENSUS, STEP = "census", "step"
TASKS = (CENSUS, *LOCAL_TASKS, *PRIVATE_TASKS, *SUM_TASKS)
NAME_BYTES = 64
UNNAMED = (
    "the sites of a private fit say nothing of their columns, not even what they are called: name these, as in "
    "`fedgrem sites fit --columns age,bmi --ranges age=0:120,bmi=10:60`."
)
SPARE_ROWS = 8
"""Rows of the small made-up sites beyond one per component; the large ones have twice as many."""


class Order(NamedTuple):
    """What the center sends to one site: a site remembers its rows and nothing else."""

    mail: Any
    """What the task is given."""
    units: Units | None
    """The units of the fit; None leaves the rows as they are."""
    gaps: Any
    """() whether any site has missing cells."""


HELLO = Order((), None, np.asarray(False))
"""The first order, for the census or, in a fit of sums, for keys."""


class NamedCensus(NamedTuple):
    """What a site says before everything else: :class:`~fedgrem.data.units.Census`, and the names of its columns."""

    n_rows: Any
    """() the total row weight."""
    mean: Any
    """(p,) of every column, the response of a regression last; NaN where a column has not a single cell."""
    deviation: Any
    """(p,) standard deviations within the site."""
    seen: Any
    """(p,) the row weight of the cells that are there."""
    gaps: Any
    """() whether cells are missing."""
    names: Any
    """(p, 64) of the columns, in UTF-8 filled up with zeros; so that no site mixes up its columns. () where the spec
    names them: a site then compares them with its own, and says nothing of them."""


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


def check_over_network(spec: FitSpec) -> None:
    """Refuse what cannot be done where rows stay at the sites."""
    if type(spec.family) not in FAMILIES.values():
        raise InputError(
            "this model holds functions of your own, and no code travels to the sites; use Gaussian components or "
            "regressions, or the in-process engine."
        )
    if spec.algorithm.traits.pools_rows:
        raise InputError(
            f"{spec.algorithm.traits.title} pools the rows of all sites, and over a network rows stay where they are; "
            "use 'fedgrem', another federated algorithm, or the in-process engine."
        )
    if spec.ranges is not None and spec.columns is None:
        raise InputError(UNNAMED)
    if spec.words and (spec.columns is None or not spec.family.has_target):
        raise InputError(
            "levels of words are for covariates of a regression, and belong to columns that the fit names; give the "
            "columns too, as in `fedgrem sites fit --regression --columns age,cp --types cp=none|mild`."
        )
    if spec.given is not None:
        raise InputError("starts cannot be given to a fit over a network yet; leave them out, or fit in process.")
    if spec.secure_sums:
        if spec.ranges is not None:
            raise InputError("secure sums do not go with a private fit yet; leave out secure_sums, or privacy.")
        check_spec(spec, Circle.what, Circle.remedy)


class Declaration:
    """The messages of one fit, for sites of ``n_columns`` columns (without a response and without ones)."""

    def __init__(self, spec: FitSpec, n_columns: int) -> None:
        self.n_columns = n_columns
        # What a message looks like does not depend on these, and made-up rows are soon fitted.
        self.agreed_columns = spec.columns is not None
        start = replace(spec.start, n_init=1, short=1, long=1)
        self._spec = replace(spec, seed=0, max_rounds=1, start=start, columns=None)

    @property
    def n_summarized(self) -> int:
        """Columns that a census summarizes: the response of a regression too."""
        return self.n_columns + self._spec.family.has_target

    def read_order(self, task: str, fields: Any) -> Order:
        """An order as it came, checked against the declaration: the site's side of the check."""
        forms = self.forms(task, sites_told(fields), self._components_told(fields))
        order: Order = _read("the order", fields, [form.order for form in forms])
        units = order.units
        if units is not None and not (np.isfinite([*units.location, *units.scale]).all() and (units.scale > 0).all()):
            raise MessageError("the order's units are not finite and positive.")
        return order

    def read_reply(self, task: str, fields: Any, order: Order | None = None) -> Any:
        """A reply as it is about to leave, checked, as one to this order or to any: the guard's side."""
        forms = [form.reply for form in self.forms(task)] if order is None else [self.reply_to(task, order)]
        return _read("the reply", fields, forms)

    def reply_to(self, task: str, order: Order) -> Any:
        """What a site may answer to an order: the structure, with the shape and type of every field."""
        n_sites = len(order.mail.common.here) if isinstance(order.mail, SumOrder) else PLAYED_SITES
        forms = self.forms(task, n_sites, components_in(order))
        found = [form.reply for form in forms if _shapes(form.order) == _shapes(order)]
        if not found:
            raise MessageError(f"the order for {task!r} is of no declared shape; no site would take it.")
        return found[0]

    @property
    def first(self) -> str:
        """The task with which the fit begins by asking who is there; a private one has none."""
        if self._spec.ranges is not None:
            return ""
        return KEYS if self._spec.secure_sums else CENSUS

    def _components_told(self, fields: Any) -> int:
        """How many components an order says that it is about; of what is no order, as many as the fit begins with."""
        most = max(self._spec.some, self._spec.n_components)
        for name in ("mail.params.weights", "mail.weights") if self._spec.some else ():
            try:
                told = fields[name]["shape"][-1]
            except (TypeError, KeyError, IndexError):
                continue
            if type(told) is int and told > most:
                raise MessageError(f"the order is about {told} components, and this fit has at most {most}.")
            return told if type(told) is int and told > 0 else 0
        return 0

    def forms(self, task: str, n_sites: int = PLAYED_SITES, n_components: int = 0) -> "list[Form]":
        """The messages of a task: more than one pair where it is asked in several ways.

        A sum is over so many sites; of a fit with components that only some sites have, messages may be about another
        number of components than it begins with, and are those of a fit of that number.
        """
        if task and task == self.first:
            return [Form(HELLO, self._keys if self._spec.secure_sums else self._census)]
        played = task in TASKS and task not in (CENSUS, KEYS)
        known = self._play().forms if played else {}
        if task not in known:
            if self._spec.ranges is not None or self._spec.secure_sums:
                known = self._play().forms
            first = (self.first,) if self.first else ()
            listed = ", ".join((*first, *known)) if known else ", ".join(TASKS)
            raise MessageError(f"there is no task {task[:40]!r} in this fit; the tasks are {listed}.")
        if self._spec.some and n_components not in (0, self._spec.n_components) and task in AFTER_BIRTHS:
            errors = "information" in known
            other = replace(self._spec, n_components=n_components, standard_errors=errors, smaller=None)
            return _played(other, self.n_columns, False).after_births[task]
        if not self._spec.secure_sums:
            return known[task]
        return [Form(order_among(form.order, n_sites), reply_among(form.reply, n_sites)) for form in known[task]]

    def played(self) -> list[tuple[str, int]]:
        """The tasks in the order of a fit, and how often each is asked in a row, where that does not hang on rows."""
        return [(task, len(list(times))) for task, times in groupby(self._play().asked)]

    def _play(self) -> "_MadeUp":
        return _played(self._spec, self.n_columns, self._spec.smaller is not None)

    @property
    def _census(self) -> NamedCensus:
        column = blank((self.n_summarized,))
        return NamedCensus(blank(()), column, column, column, blank((), bool), self._names)

    @property
    def _keys(self) -> NamedKeys:
        return NamedKeys(blank((32,), np.uint8), blank((), np.int64), self._names)

    @property
    def _names(self) -> Any:
        return () if self.agreed_columns else blank((self.n_summarized, NAME_BYTES), np.uint8)


class Form(NamedTuple):
    """How an order and its reply look."""

    order: Order
    reply: Any


def _read(who: str, fields: Any, forms: list[Any]) -> Any:
    """A message of one of these forms; otherwise what is wrong with it as the first."""
    wrong: MessageError | None = None
    for form in forms:
        try:
            message = decode(fields, form)
            check_shapes(who, message, form)
            return message
        except MessageError as error:
            wrong = wrong or error
    assert wrong is not None
    raise wrong


@lru_cache(maxsize=128)
def _played(spec: FitSpec, n_columns: int, two_starts: bool) -> "_MadeUp":
    """Every task of the fit of a spec and its messages, from a play on made-up rows.

    Specs are equal whatever their starts, so ``two_starts`` says whether there is one from a smaller fit, which has
    rounds of its own.
    """
    made_up = _MadeUp(spec, n_columns)
    converse(fit(spec, made_up.site_names, rehearsed=True), made_up)
    return made_up


class _MadeUp:
    """A few sites with made-up rows, few and a few more, that answer every kind of message once, and again the same.

    What is masked hangs on all that came before, and is answered every time.
    """

    def __init__(self, spec: FitSpec, n_columns: int) -> None:
        self.site_names = ("here", "there", "yonder") if spec.secure_sums or spec.some else ("here", "there")
        self._few, self._more = (self._sites(spec, n_columns, n * (spec.n_components + SPARE_ROWS)) for n in (1, 2))
        self._replies: dict[Any, Replies] = {}
        self.forms: dict[str, list[Form]] = {}
        self.after_births: dict[str, list[Form]] = {}
        """Of what follows when sites were asked for components that only some have."""
        self.asked: list[str] = []

    def _sites(self, spec: FitSpec, n_columns: int, n_rows: int) -> InProcess:
        generator = np.random.default_rng(0)
        n_sites = len(self.site_names)
        counts = generator.poisson(4.0, (n_sites, n_rows, n_columns)).astype(float)  # of use to every family
        targets = list(generator.normal(size=(n_sites, n_rows))) if spec.family.has_target else None
        federation = Federation.from_sites(self.site_names, list(counts), targets)
        return InProcess(federation, spec, threads=1, secrets=[bytes([k]) * 32 for k in range(n_sites)])

    def ask(self, ask: Ask) -> Replies:
        """Run the task on few rows and on more, if it is new."""
        self.asked.append(ask.task)
        key = (ask.task, *_shapes(ask.mail))
        if key in self._replies and ask.task in SUM_TASKS:
            return self._few.ask(ask)
        if key not in self._replies:
            replies = self._replies[key] = self._few.ask(ask)
            alike = _shapes(replies.mail) == _shapes(self._more.ask(ask).mail)
            assert alike, f"the reply to {ask.task} depends on the number of rows"
            if ask.task not in (CENSUS, KEYS):
                self.forms.setdefault(ask.task, []).append(_form(ask, replies))
        if "birth" in self.asked:
            self.after_births.setdefault(ask.task, []).append(_form(ask, self._replies[key]))
        return self._replies[key]


def _form(ask: Ask, replies: Replies) -> Form:
    mail, reply = (map_arrays(lambda leaf: blank(leaf.shape[1:], leaf.dtype), m) for m in (ask.mail, replies.mail))
    units = map_arrays(lambda leaf: blank(leaf.shape, leaf.dtype), ask.agreed.units)
    return Form(Order(mail, units, HELLO.gaps), reply)


def components_in(order: Order) -> int:
    """How many components an order is about; 0 where it is about none."""
    params = params_of(order.mail)
    return 0 if params is None else int(np.shape(params.weights)[-1])


def _shapes(message: Any) -> list[Any]:
    return [(name, np.shape(leaf), np.asarray(leaf).dtype.str) for name, leaf in named_arrays(message)]


def blank(shape: tuple[int, ...], dtype: Any = float) -> Array:
    """An array of this type and shape that holds nothing."""
    return np.broadcast_to(np.zeros((), dtype), shape)


def check_shapes(who: str, message: Any, like: Any) -> None:
    """Refuse an array whose shape or type is not the declared one."""
    for (name, got), (_, expected) in zip(named_arrays(message), named_arrays(like), strict=True):
        if got.shape != expected.shape:
            raise MessageError(f"{who} has {name} of shape {got.shape}, expected {expected.shape}.")
        if got.dtype != expected.dtype:
            raise MessageError(f"{who} has {name} of type {got.dtype}, expected {expected.dtype}.")
