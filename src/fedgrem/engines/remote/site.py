"""A site at work: its own rows, and the answer to each task. No network here; the same code is what is tested."""

import json
import os
import threading
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedgrem.data.columns import Column, encode
from fedgrem.data.dummies import levels_from, with_dummies
from fedgrem.data.federation import Federation, stack_sites
from fedgrem.data.files import check_column, check_no_gaps, check_numeric, read_table
from fedgrem.data.stack import Stack
from fedgrem.data.units import Census, take_census
from fedgrem.engines.remote.course import check_units, check_values
from fedgrem.engines.remote.declaration import CENSUS, Declaration, NamedCensus, Order, check_over_network, write_names
from fedgrem.engines.remote.floor import Answer, BelowFloorError, answer_above, rows_alike
from fedgrem.engines.remote.sums import NamedKeys, keep_own, secret_of_fit
from fedgrem.engines.remote.wire import Fields, digest_of
from fedgrem.errors import FedGrEMError, InputError, MessageError
from fedgrem.fit.private_site import TASKS as PRIVATE_TASKS
from fedgrem.fit.private_site import answer as private_answer
from fedgrem.fit.spec import FitSpec
from fedgrem.fit.sums_site import KEYS, OF_CENSUS, SUM_TASKS, answer, key_reply
from fedgrem.kernels.privacy import Draw, secure_normals
from fedgrem.kernels.threads import one_thread_each
from fedgrem.types import Array, map_arrays, named_arrays

SETTINGS = "fedgrem.json"
"""In the ``local`` folder of a site's kit. It never leaves the site."""
DEFAULT_CAP = 2**20
"""Bytes of the largest message that may leave a site, unless it says otherwise."""

DEFAULT_FLOOR = 10.0
"""Rows."""
DEFAULT_DELTA = 1e-6
DEFAULT_FITS = 30
"""Fits in a day: a search over numbers of components is as many fits as it tries."""

REASONS = {
    "rows": "its rows cannot be used; its own log says why",
    "columns": "its columns are not those of the fit; its own log says how they differ",
    "floor": "it would have to tell of fewer rows than the floor it has set",
    "order": "what it was sent does not fit the spec, or was not its turn",
    "often": "it has answered as many fits, or refused as many orders, as it does; its own log says which",
    "changed": "its rows are not those of its last fit, and differ by fewer than its floor",
    "budget": "its privacy budget is spent, or is none for such a fit; its own log says which",
    "guard": "its guard refused to let the answer out",
    "failed": "its computation failed; its own log says why",
}
"""Why a site did not answer. These words are all that the center is told: they carry no value of a row."""


class DeclinedError(FedGrEMError):
    """The site does not answer; ``code`` is a key of ``REASONS``, and the message stays at the site."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class Settings(NamedTuple):
    """What a site says about itself, to itself."""

    data: str
    """Path of a CSV, TSV or Parquet table."""
    columns: tuple[str, ...]
    target: str | None = None
    weight: str | None = None
    floor: float = DEFAULT_FLOOR
    """Rows below which nothing is said of a component, or of anything else; at most 1 for no such rule."""
    cap: int = DEFAULT_CAP
    """Bytes of the largest message that may leave."""
    words: bool = False
    """Whether columns may hold words, for fits of mixed columns."""
    fits_per_day: int = DEFAULT_FITS
    """Fits that are begun in any 24 hours."""
    epsilon: float | None = None
    """The privacy budget of one fit; None for a site that has none, and answers fits that are not private."""
    delta: float = DEFAULT_DELTA
    total_epsilon: float | None = None
    """That of the site's life, with the same delta; None is the same as for one fit."""
    ledger: str | None = None
    """Path of the file in which is kept what was spent of it."""
    least_sites: int = 3
    """Where answers open as a sum only: over how many sites it is at least."""

    @property
    def summarized(self) -> tuple[str, ...]:
        """The columns that a census summarizes, the response last."""
        return (*self.columns, *([] if self.target is None else [self.target]))


def settings_path(folder: Path, site: str | None = None) -> Path:
    """Where a kit keeps them; the simulator's sites share one ``local`` folder, and have a file each."""
    return folder / (SETTINGS if site is None else f"{site}-{SETTINGS}")


def write_settings(settings: Settings, folder: Path, site: str | None = None) -> None:
    """Keep the settings in a kit's ``local`` folder."""
    settings_path(folder, site).write_text(json.dumps(settings._asdict(), indent=1) + "\n", encoding="utf-8")


def read_settings(folder: Path, site: str | None = None) -> Settings:
    """The settings in a kit's ``local`` folder."""
    path = settings_path(folder, site)
    path = path if path.exists() else settings_path(folder)
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        return Settings(**stored | {"columns": tuple(stored["columns"])})
    except FileNotFoundError as error:
        raise InputError(f"{path} is missing; start the site with `fedgrem site start KIT --data ...`.") from error
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path} cannot be read ({error}); start the site again with --data and --columns.") from error


def read_rows(
    name: str, settings: Settings, types: tuple[Column, ...] = (), words: tuple[Column, ...] = ()
) -> Federation:
    """The rows of this site, as a federation of one; complaints may quote its cells and stay at the site.

    With ``types``, columns are coded by what the fit says of them; ``words`` become zeros and ones by their levels.
    """
    aside = [column for column in (settings.target, settings.weight) if column is not None]
    frame = read_table(settings.data)
    for column in (*settings.columns, *aside):
        check_column(frame, column)
    wordy = [column.name for column in types or words]
    check_numeric(frame, [column for column in (*settings.columns, *aside) if column not in wordy])
    check_no_gaps(frame, aside)
    table = with_dummies({name: frame.select(settings.columns)}, levels_from(words))[name]

    def numbers(column: str) -> Array:
        source = frame if column in aside else table
        return np.asarray(source[column].cast(float).fill_null(float("nan")).to_numpy(), dtype=np.float64)

    return Federation.from_sites(
        [name],
        [encode(frame, types) if types else np.column_stack([numbers(column) for column in table.columns])],
        None if settings.target is None else [numbers(settings.target)],
        None if settings.weight is None else [numbers(settings.weight)],
        columns=tuple(table.columns),
        missing_allowed=True,
    )


class SiteAtWork:
    """Answers tasks on its own rows, which are read when they are first needed.

    Tasks may arrive on several threads, and before anything else has started.
    """

    def __init__(
        self,
        name: str,
        settings: Settings,
        spec: FitSpec,
        *,
        draw: Draw = secure_normals,
        secret: bytes | None = None,
        keep: Path | None = None,
    ) -> None:
        self.name, self.settings, self.spec = name, settings, spec
        self.budget: float | None = None
        """Of a private fit, as the mu of :mod:`fedgrem.kernels.privacy`, once the guard has it paid for."""
        self._draw = draw
        self._keep = keep
        """A file for the site's own parameters at the end of a fit of sums, which nobody else has."""
        self._secret = os.urandom(32) if secret is None else secret
        """From which what it masks and seals with is made, where only sums open."""
        self._of_fit: bytes | None = None
        self.columns = spec.fitted_columns(settings.columns)
        """Of the fit: those of the site, but for words."""
        self._declaration = Declaration(spec, len(self.columns))
        self._lock = threading.Lock()
        self._federation: Federation | None = None
        self._ready: tuple[bytes, Stack] | None = None

    def check(self) -> None:
        """Whether the spec can be for this site at all; :class:`DeclinedError` where it cannot."""
        try:
            check_over_network(self.spec)
        except InputError as error:
            raise DeclinedError("order", str(error)) from error
        check_columns(self.settings, self.spec)

    def read(self, task: str, fields: Fields) -> Order:
        """An order as it came; :class:`DeclinedError` where it does not fit the spec."""
        try:
            check_over_network(self.spec)
            order = self._declaration.read_order(task, fields)
            check_values(task, order, self.spec)
            return order
        except (MessageError, InputError) as error:
            raise DeclinedError("order", str(error)) from error

    def work(self, task: str, order: Order, best: float = -np.inf) -> Answer:
        """The answer to an order, within the site's floor; :class:`DeclinedError` where there is none.

        ``best`` is the largest log-likelihood a row that was told in this fit.
        """
        with self._lock:
            federation = self.rows()
            if task in PRIVATE_TASKS:
                return self._private(federation, task, order)
            census = take_census(federation.sites[0])
            names = () if self.spec.columns is not None else write_names(self.settings.summarized)
            if task == CENSUS:
                told = {name: np.asarray(value) for name, value in census._asdict().items()}
                return Answer(NamedCensus(**told, names=names), [])
            if task == KEYS:
                return Answer(NamedKeys(*key_reply(self._own_secret(), self._declaration.n_summarized), names), [])
            if task == OF_CENSUS:
                return self._add(task, map_arrays(lambda leaf: np.asarray(leaf)[None], census), order)
            try:
                check_units(order, self.spec.units, census)
            except MessageError as error:
                raise DeclinedError("order", str(error)) from error
            if task in SUM_TASKS:
                return self._add(task, self._stack(federation, order), order)
            stack, mail = self._stack(federation, order), map_arrays(lambda leaf: leaf[None], order.mail)
            try:
                with np.errstate(all="ignore"), one_thread_each():
                    found = answer_above(self.spec, stack, task, mail, self.settings.floor, best)
            except BelowFloorError as error:
                raise DeclinedError("floor", str(error)) from error
            return found._replace(reply=map_arrays(lambda leaf: np.asarray(leaf[0]), found.reply))

    def _private(self, federation: Federation, task: str, order: Order) -> Answer:
        """Noise is the floor of a private answer: nothing else of it hangs on the rows."""
        if self.budget is None:
            raise DeclinedError("budget", "this fit has not been paid for; it is the guard that asks.")
        with np.errstate(all="ignore"), one_thread_each():
            rows = federation.sites[0].rows
            return Answer(private_answer(self.spec, task, rows, order.mail, self.budget, self._draw), [])

    def _add(self, task: str, rows: Stack | Census, order: Order) -> Answer:
        """What the site adds to a sum, masked; the floor holds for it as for an answer by itself."""
        here, least = int(order.mail.common.here.sum()), self.settings.least_sites
        if here < least:
            raise DeclinedError("order", f"the order asks for a sum over {here} sites; this site wants {least}.")
        held_back: set[int] = set()

        def perform(spec: FitSpec, stack: Stack, what: str, mail: Any) -> Any:
            found = answer_above(spec, stack, what, mail, self.settings.floor)
            held_back.update(found.held_back)
            return found.reply

        agreed, secret = digest_of(order._replace(mail=())).encode(), self._own_secret()
        try:
            with np.errstate(all="ignore"), one_thread_each():
                (reply,), held = answer(
                    self.spec, task, rows, [order.mail], [self.name], [secret], perform, agreed
                )  # fmt: skip
        except BelowFloorError as error:
            raise DeclinedError("floor", str(error)) from error
        except InputError as error:
            raise DeclinedError("order", str(error)) from error
        if task == "sum_end" and held is not None and self._keep is not None:
            own = self.settings._replace(columns=self.columns).summarized
            keep_own(self._keep, self.spec, own, order, map_arrays(lambda a: a[0], held.after))
        return Answer(reply, sorted(held_back))

    def _own_secret(self) -> bytes:
        if self._of_fit is None:
            self._of_fit = secret_of_fit(self._secret, self.name, self.spec.to_json(), self.digest())
        return self._of_fit

    def digest(self) -> str:
        """A hash of the rows, by which a later fit knows whether they are the same."""
        site = self.rows().sites[0]
        parts = (site.rows, site.row_weight) if site.target is None else (site.rows, site.row_weight, site.target)
        return sha256(b"".join(np.ascontiguousarray(part).tobytes() for part in parts)).hexdigest()

    def rows(self) -> Federation:
        """The rows of this site, read when they are first needed."""
        if self._federation is None:
            check_columns(self.settings, self.spec)
            try:
                types = getattr(self.spec.family, "types", ())
                federation = read_rows(self.name, self.settings, types, self.spec.words)
                _check_rows(federation, self.spec)
            except (FedGrEMError, OSError) as error:
                raise DeclinedError("rows", str(error)) from error
            private = self.spec.ranges is not None
            self._federation = federation if private else _above_floor(federation, self.spec, self.settings.floor)
        return self._federation

    def _stack(self, federation: Federation, order: Order) -> Stack:
        """The rows in the units of the order; kept until an order comes with other units."""
        key = b"".join(leaf.tobytes() for _, leaf in named_arrays((order.units, order.gaps)))
        if self._ready is None or self._ready[0] != key:
            site = self.spec.units.apply(federation, order.units).sites[0]
            self._ready = key, stack_sites([site], gaps=bool(order.gaps))
        return self._ready[1]


def _above_floor(federation: Federation, spec: FitSpec, floor: float) -> Federation:
    """Refuse a fit that would need fewer rows a component than the floor; leave out cells of columns of fewer."""
    if floor <= 1:
        return federation
    site = federation.sites[0]
    count = float(rows_alike(site.row_weight))
    if count < floor * spec.n_components:
        words = f"{len(site.rows)} rows" + f", which weigh like {count:.0f}" * (count < len(site.rows) - 0.5)
        raise DeclinedError(
            "floor",
            f"the site has {words}: with a floor of {floor:g} these are enough for {int(count / floor)} component(s), "
            f"and the fit has {spec.n_components}.",
        )
    there = ~np.isnan(site.rows)
    counts = rows_alike((there * site.row_weight[:, None]).T)
    rows = np.where(counts < floor, np.nan, site.rows)
    return federation if there.all() else replace(federation, sites=(replace(site, rows=rows),))


def check_columns(settings: Settings, spec: FitSpec) -> None:
    """Refuse a spec that is for other columns."""
    wants, has = spec.family.has_target, settings.target is not None
    if wants != has:
        needed = "a --target column, and the site has set none" if wants else "no --target, and the site has set one"
        raise DeclinedError("columns", f"the fit needs {needed}.")
    if spec.ranges is not None and len(spec.ranges) != len(settings.columns):
        raise DeclinedError(
            "columns", f"the fit bounds {len(spec.ranges)} column(s), and the site has {len(settings.columns)}."
        )
    if spec.ranges is not None and settings.weight is not None:
        raise DeclinedError("columns", "a private fit protects rows that count once, and the site has set --weight.")
    if spec.columns is not None and spec.columns != settings.columns:
        raise DeclinedError(
            "columns",
            f"the fit names the columns {', '.join(spec.columns)}, and the site {', '.join(settings.columns)}; "
            "give the same columns in the same order.",
        )
    wordy = [column.name for column in spec.words if column.name not in settings.columns]
    if wordy:
        raise DeclinedError("columns", f"the fit has levels of {wordy[0]!r}, which is no column of the site.")


def _check_rows(federation: Federation, spec: FitSpec) -> None:
    site = federation.sites[0]
    Federation.from_sites(
        [site.name],
        [site.rows],
        None if site.target is None else [site.target],
        [site.row_weight],
        columns=federation.columns,
        missing_allowed=spec.missing,
    )
    if site.target is not None:
        spec.family.check_target(site.name, site.target)
