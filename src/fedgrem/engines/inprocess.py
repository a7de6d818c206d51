"""All sites in one process: stacked by size, a few of them at a time, by a few threads where it pays."""

import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import numpy as np

from fedgrem.data.federation import Federation
from fedgrem.data.stack import Stack
from fedgrem.data.units import Census, take_census
from fedgrem.fit.conversation import Agreed, Ask, Replies
from fedgrem.fit.private_site import TASKS as PRIVATE_TASKS
from fedgrem.fit.private_site import answer as private_answer
from fedgrem.fit.spec import FitSpec
from fedgrem.fit.sums import Circle, with_own_answers
from fedgrem.fit.sums_site import KEYS, OF_CENSUS, SUM_TASKS, Held, KeyReply, SumOrder, SumReply, answer, key_reply
from fedgrem.fit.tasks import TASKS
from fedgrem.fit.units import with_census
from fedgrem.kernels.privacy import Draw, secure_normals
from fedgrem.types import Array, FitResult, map_arrays

ENOUGH = 300_000
"""Numbers (rows times fits times components) of an exchange from which on several threads pay."""


def cores() -> int:
    """How many threads there may be: the processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="fedgrem")


class InProcess:
    """Carries messages to the sites of a federation in this process.

    What a site answers depends on its own rows and mail only, to the bit: not on its neighbours in a stack, nor on the
    number of threads.

    Parameters
    ----------
    budgets : of a private fit, each site's by its name, as the mu of :mod:`fedgrem.kernels.privacy`; a site that is not
        named adds no noise.
    draw : where that noise comes from.
    """

    circle = Circle

    def __init__(
        self,
        federation: Federation,
        spec: FitSpec,
        *,
        threads: int | None = None,
        budgets: Mapping[str, float] | None = None,
        draw: Draw = secure_normals,
        secrets: list[bytes] | None = None,
    ) -> None:
        self._federation, self._spec = federation, spec
        self._budgets, self._draw = budgets or {}, draw
        self._threads = cores() if threads is None else threads
        self._pooled = spec.algorithm.traits.pools_rows
        self._ready: tuple[Agreed, list[tuple[Stack, Array]]] | None = None
        self._divided: dict[int, tuple[list[tuple[Stack, Array]], int]] = {}
        self._secrets = [os.urandom(32) for _ in federation.sites] if secrets is None else secrets
        """Of the sites, where the center only sees sums."""
        self.own: dict[str, Held] = {}
        """What every site last sealed for itself: in one process there are no secrets."""

    @property
    def site_names(self) -> tuple[str, ...]:
        """In the order of every stacked array."""
        return self._federation.names

    def ask(self, ask: Ask) -> Replies:
        """Run one task at every site that is asked."""
        n_sites = len(self.site_names)
        present = np.ones(n_sites, dtype=bool) if ask.to is None else ask.to
        if ask.task in PRIVATE_TASKS:
            return Replies(present, self._noisy(ask, present))
        if ask.task in SUM_TASKS:
            return Replies(present, self._masked(ask, present))
        if ask.task == "census":
            return Replies(present, _stack([take_census(site) for site in self._federation.sites]))
        if self._pooled:
            return Replies(present, self._of_pooled_rows(ask))
        parts, threads = self._parts(ask, _numbers(self._spec, ask))
        task, whole = TASKS[ask.task], len(parts) == 1 and len(parts[0][1]) == n_sites

        def one(part: tuple[Stack, Array]) -> Any:
            stack, places = part
            index = _as_slice(places)
            mail = ask.mail if whole else map_arrays(lambda leaf: leaf[index], ask.mail)
            with np.errstate(all="ignore"):  # of this thread
                return task(self._spec, stack, mail)

        replies = _side_by_side(one, parts, threads)
        return Replies(present, replies[0] if whole else _together(replies, [places for _, places in parts], n_sites))

    def _parts(self, ask: Ask, numbers: int) -> tuple[list[tuple[Stack, Array]], int]:
        """Who works on what, for so many numbers per row, and how many threads; the same in every full round."""
        stacks = self._stacks(ask.agreed)
        if ask.to is None and numbers in self._divided:
            return self._divided[numbers]
        work = []
        for stack, places in stacks:
            here = np.arange(len(places)) if ask.to is None else np.flatnonzero(ask.to[places])
            if len(here):
                work.append((stack, places) if len(here) == len(places) else (stack.select(here), places[here]))
        enough = sum(len(stack) * stack.size for stack, _ in work) * numbers >= ENOUGH
        threads = self._threads if enough else 1
        parts = [
            (stack if cut == slice(0, len(stack)) else stack.select(cut), places[cut])
            for stack, places in work
            for cut in stack.chunks(numbers, threads)
        ]
        if ask.to is None:
            self._divided[numbers] = parts, threads
        return parts, threads

    def _rows_for(self, ask: Ask, present: Array) -> list[tuple[Any, Array]]:
        """What a task about sums is given of the sites that are asked, and their places."""
        if ask.task == OF_CENSUS:
            asked = np.flatnonzero(present)
            return [(_stack([take_census(self._federation.sites[k]) for k in asked]), asked)]
        work = []
        for stack, places in self._stacks(ask.agreed):
            here = np.flatnonzero(present[places])
            if len(here):
                work.append((stack if len(here) == len(places) else stack.select(here), places[here]))
        return work

    def _noisy(self, ask: Ask, present: Array) -> Any:
        """What sites answer in a private fit; NaN for sites that were not asked."""
        told = []
        with np.errstate(all="ignore"):
            for k in np.flatnonzero(present):
                site = self._federation.sites[k]
                mail = map_arrays(lambda leaf, k=k: leaf[k], ask.mail)
                budget = self._budgets.get(site.name, np.inf)
                told.append(private_answer(self._spec, ask.task, site.rows, mail, budget, self._draw))
        stacked = map_arrays(lambda *leaves: np.stack(leaves), *told)
        return _together([stacked], [np.flatnonzero(present)], len(present))

    def _masked(self, ask: Ask, present: Array) -> Any:
        """What sites answer where only sums open; absent ones zeros."""
        sites = self._federation.sites
        if ask.task == KEYS:
            keys = [key_reply(s, self._width(k)) for k, s in enumerate(self._secrets)]
            return KeyReply(*(np.stack(leaves) for leaves in zip(*keys, strict=True)))
        orders = [_of_site(ask.mail, k) for k in range(len(sites))]
        told: dict[int, SumReply] = {}
        for rows, places in self._rows_for(ask, present):
            names, secrets = ([of[k] for k in places] for of in (self.site_names, self._secrets))
            with np.errstate(all="ignore"):
                replies, held = answer(self._spec, ask.task, rows, [orders[k] for k in places], names, secrets)
            told |= dict(zip(places.tolist(), replies, strict=True))
            if held is not None:
                self.own |= {name: map_arrays(lambda leaf, k=k: leaf[k], held) for k, name in enumerate(names)}
        blank = map_arrays(np.zeros_like, next(iter(told.values())))
        whole = [told.get(k, blank) for k in range(len(sites))]
        return map_arrays(lambda *leaves: np.stack(leaves), *whole)

    def revealed(self, result: FitResult) -> FitResult:
        """A fit from sums with what every site found: in one process all of them are looked at."""
        assert self._ready is not None
        census = _stack([take_census(site) for site in self._federation.sites])
        own = [self.own[name] for name in self.site_names]
        found = with_own_answers(self._spec, result, self._ready[1], own, self.circle.most_rows)
        return with_census(found, census, self._spec.units.constant(census.deviation))

    def _width(self, place: int) -> int:
        site = self._federation.sites[place]
        return int(site.rows.shape[1]) + (site.target is not None)

    def _stacks(self, agreed: Agreed) -> list[tuple[Stack, Array]]:
        """The rows in the units of the fit; kept until other units are agreed on."""
        if self._ready is None or self._ready[0] is not agreed:
            scaled = self._spec.units.apply(self._federation, agreed.units)
            if self._pooled:
                scaled = scaled.merged()
            self._ready = agreed, scaled.stacked(gaps=agreed.gaps)
            self._divided = {}
        return self._ready[1]

    def _of_pooled_rows(self, ask: Ask) -> Any:
        """The answer of the one site that all rows are, for everyone; it reads the mail of the first by name."""
        names = self.site_names
        first = names.index(min(names))
        ((stack, _),) = self._stacks(ask.agreed)
        reply = TASKS[ask.task](self._spec, stack, map_arrays(lambda leaf: leaf[[first]], ask.mail))
        told = map_arrays(lambda leaf: np.repeat(leaf, len(names), axis=0), reply)
        return told._replace(n_rows=np.array([site.row_weight.sum() for site in self._federation.sites]))


def _numbers(spec: FitSpec, ask: Ask) -> int:
    """About how many numbers a task holds for every row: fits side by side, times components."""
    fits = 1
    if ask.task == "start":
        fits = spec.start.n_init
    elif ask.task in ("compare", "joint_start"):
        fits = ask.mail.params.weights.shape[1]
    elif ask.task == "path_step":
        fits = ask.mail.fits.params.weights.shape[2]  # half of the rows, twice
    elif ask.task in ("path_score", "weights_score"):
        fits = ask.mail.fits.weights.shape[2]
    elif ask.task == "information":
        fits = 1 + ask.mail.theta.shape[-1]
    return int(fits * spec.n_components)


def _of_site(order: SumOrder, place: int) -> SumOrder:
    found: SumOrder = map_arrays(lambda leaf: leaf[place], order)
    return found


def _side_by_side(function: Callable[[Any], Any], items: list[Any], threads: int) -> list[Any]:
    if threads == 1 or len(items) == 1:
        return [function(item) for item in items]
    return list(_pool(threads).map(function, items))


def _stack(replies: list[Census]) -> Census:
    return Census(*(np.stack(leaves) for leaves in zip(*replies, strict=True)))


def _as_slice(places: Array) -> Any:
    """Places one after the other as a slice, which takes a part without a copy."""
    first, last = int(places[0]), int(places[-1])
    return slice(first, last + 1) if last - first + 1 == len(places) else places


def _together(replies: list[Any], places: list[Array], n_sites: int) -> Any:
    """Replies of parts of the sites as one, in site order; NaN for sites that were not asked."""
    where = np.concatenate(places)
    in_order = len(where) == n_sites and bool((np.diff(where) > 0).all())

    def join(*leaves: Array) -> Array:
        found = np.concatenate(leaves)
        if in_order:
            return found
        if len(where) == n_sites:
            whole = np.empty_like(found)
        else:
            kind = found.dtype if found.dtype.kind == "f" else float
            whole = np.full((n_sites, *found.shape[1:]), np.nan, dtype=kind)
        whole[where] = found
        return whole

    return map_arrays(join, *replies)
