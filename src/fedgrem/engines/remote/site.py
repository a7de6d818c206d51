"""A site at work: its own rows, and the answer to each task. No network here; the same code is what is tested."""

import json
import threading
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedgrem.data.federation import Federation, stack_sites
from fedgrem.data.files import check_column, check_no_gaps, check_numeric, read_table
from fedgrem.data.stack import Stack
from fedgrem.data.units import take_census
from fedgrem.engines.remote.declaration import CENSUS, Declaration, NamedCensus, Order, check_over_network, write_names
from fedgrem.engines.remote.wire import Fields
from fedgrem.errors import FedGrEMError, InputError, MessageError
from fedgrem.fit.spec import FitSpec
from fedgrem.fit.tasks import TASKS
from fedgrem.kernels.threads import one_thread_each
from fedgrem.types import Array, map_arrays, named_arrays

SETTINGS = "fedgrem.json"
"""In the ``local`` folder of a site's kit. It never leaves the site."""
DEFAULT_CAP = 2**20
"""Bytes of the largest message that may leave a site, unless it says otherwise."""

REASONS = {
    "rows": "its rows cannot be used; its own log says why",
    "columns": "its columns are not those of the fit; its own log says how they differ",
    "floor": "a component holds fewer of its rows than the floor it has set",
    "order": "what it was sent does not fit the spec",
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
    floor: float = 0.0
    """Rows that every component must hold, or the site does not answer."""
    cap: int = DEFAULT_CAP
    """Bytes of the largest message that may leave."""

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


def read_rows(name: str, settings: Settings) -> Federation:
    """The rows of this site, as a federation of one; complaints may quote its cells and stay at the site."""
    aside = [column for column in (settings.target, settings.weight) if column is not None]
    frame = read_table(settings.data)
    for column in (*settings.columns, *aside):
        check_column(frame, column)
    check_numeric(frame, (*settings.columns, *aside))
    check_no_gaps(frame, aside)

    def numbers(column: str) -> Array:
        return np.asarray(frame[column].cast(float).fill_null(float("nan")).to_numpy(), dtype=np.float64)

    return Federation.from_sites(
        [name],
        [np.column_stack([numbers(column) for column in settings.columns])],
        None if settings.target is None else [numbers(settings.target)],
        None if settings.weight is None else [numbers(settings.weight)],
        columns=settings.columns,
        missing_allowed=True,
    )


class SiteAtWork:
    """Answers tasks on its own rows, which are read when they are first needed.

    Tasks may arrive on several threads, and before anything else has started.
    """

    def __init__(self, name: str, settings: Settings, spec: FitSpec) -> None:
        self.name, self.settings, self.spec = name, settings, spec
        self._declaration = Declaration(spec, len(settings.columns))
        self._lock = threading.Lock()
        self._federation: Federation | None = None
        self._ready: tuple[bytes, Stack] | None = None
        self._last: tuple[str, Fields, Any] | None = None

    def answer(self, task: str, fields: Fields) -> Any:
        """The reply to an order; :class:`DeclinedError` where there is none.

        The last reply is remembered: a center that hears nothing asks the same again, and the work is not done twice.
        """
        with self._lock:
            if self._last is None or self._last[:2] != (task, fields):
                self._last = task, fields, self._computed(task, fields)
            return self._last[2]

    def _computed(self, task: str, fields: Fields) -> Any:
        try:
            check_over_network(self.spec)
            order = self._declaration.read_order(task, fields)
        except (MessageError, InputError) as error:
            raise DeclinedError("order", str(error)) from error
        federation = self._rows()
        if task == CENSUS:
            found = take_census(federation.sites[0])._asdict()
            census = {name: np.asarray(value) for name, value in found.items()}
            return NamedCensus(**census, names=write_names(self.settings.summarized))
        stack = self._stack(federation, order)
        with np.errstate(all="ignore"), one_thread_each():
            reply = TASKS[task](self.spec, stack, map_arrays(lambda leaf: leaf[None], order.mail))
        return map_arrays(lambda leaf: np.asarray(leaf[0]), reply)

    def _rows(self) -> Federation:
        if self._federation is None:
            check_columns(self.settings, self.spec)
            try:
                federation = read_rows(self.name, self.settings)
                _check_rows(federation, self.spec)
            except (FedGrEMError, OSError) as error:
                raise DeclinedError("rows", str(error)) from error
            self._federation = federation
        return self._federation

    def _stack(self, federation: Federation, order: Order) -> Stack:
        """The rows in the units of the order; kept until an order comes with other units."""
        key = b"".join(leaf.tobytes() for _, leaf in named_arrays((order.units, order.gaps)))
        if self._ready is None or self._ready[0] != key:
            site = self.spec.units.apply(federation, order.units).sites[0]
            self._ready = key, stack_sites([site], gaps=bool(order.gaps))
        return self._ready[1]


def check_columns(settings: Settings, spec: FitSpec) -> None:
    """Refuse a spec that is for other columns."""
    wants, has = spec.family.has_target, settings.target is not None
    if wants != has:
        needed = "a --target column, and the site has set none" if wants else "no --target, and the site has set one"
        raise DeclinedError("columns", f"the fit needs {needed}.")
    if spec.columns is not None and spec.columns != settings.columns:
        raise DeclinedError(
            "columns",
            f"the fit names the columns {', '.join(spec.columns)}, and the site {', '.join(settings.columns)}; "
            "give the same columns in the same order.",
        )


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
