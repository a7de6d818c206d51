"""What is to be fitted, in plain words and numbers: the only description of a fit, at the center and at the sites.

No code travels: a spec names a family and an algorithm of the installed package, and anything else is refused.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from itertools import chain
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np

from fedgrem.algorithms.base import Algorithm
from fedgrem.algorithms.center_rules import CENTER_RULES
from fedgrem.algorithms.registry import ALGORITHMS
from fedgrem.data.columns import Column, columns_from_plain
from fedgrem.data.dummies import dummy_names, levels_from
from fedgrem.data.units import UnitsPlan
from fedgrem.errors import InputError
from fedgrem.families.base import Family
from fedgrem.families.covariance import STRUCTURES
from fedgrem.families.registry import FAMILIES
from fedgrem.types import Params

PAPERS_PENALTY = 2.0
MOST_PARAMETERS = 400
"""Weights and component parameters of a site up to which standard errors are worth their message."""
COUNTS = {
    "n_components": 1000, "n_init": 1000, "short": 10_000, "long": 10_000, "joint_starts": 1000,
    "restart_rows": 1_000_000_000, "max_rounds": 1_000_000, "local_steps": 1000, "memory": 1000, "sweeps": 10_000,
    "levels": 65536, "covariate_components": 1000, "some": 2000,
}  # fmt: skip
"""The most that a site will work for."""
RANGES = {
    "step_size": "(0, 2)", "penalty_decay": "[0, 1)", "noise_penalty": "[0, inf]", "batch": "(0, 1]", "sites": "(0, 1]",
    "local_steps": "[1, inf]", "sweeps": "[1, inf]", "transfer": "[0, inf)", "covariate_components": "[1, inf]",
    "reg_covar": "[0, inf)", "approximation_step": "(0, 1]", "keep": "(0, 1]", "participation": "(0, 1]",
    "control_step": "[0, 1]", "ridge": "[0, inf)", "penalty": "[0, inf]", "tol": "[0, inf)", "n_components": "[1, inf]",
    "degrees": "[1, inf)", "prior_rows": "[0, inf)",
    "n_init": "[1, inf]", "short": "[0, inf]", "long": "[0, inf]", "restart_rows": "[1, inf]",
    "bad": "[0, 0.5)",
}  # fmt: skip
"""Between what the numbers of a fit may be."""
Alignment = Literal["assignment", "stepwise", "exhaustive", "none"]


@dataclass(frozen=True)
class StartPlan:
    """How starts are found."""

    n_init: int = 10
    """Restarts at each site."""
    short: int = 20
    """EM iterations from every restart."""
    long: int = 100
    """Further EM iterations from the best restart, and from every candidate of the exchange."""
    restart_rows: int | None = None
    """About how many rows of a larger site restarts look at; the best goes on with all. None is all for these too."""
    alignment: Alignment = "assignment"
    """How components of the sites are matched; "none" takes given starts as they are labelled."""
    joint_starts: int | None = None
    """Joint starts that all sites improve together before the exchange; None leaves it to the family, 0 is none."""


@dataclass(frozen=True)
class FitSpec:
    """A fit, before anybody's rows are known."""

    family: Family
    algorithm: Algorithm
    n_components: int
    penalty: float | None = None
    """C; None chooses it on held-out rows."""
    fallback: bool = True
    """Whether sites that clearly lose by being pulled, on held-out rows, are fitted alone."""
    start: StartPlan = field(default_factory=StartPlan)
    max_rounds: int = 1000
    tol: float = 1e-6
    """Relative movement below which a site counts as settled; 0 plays exactly ``max_rounds``."""
    seed: int = 0
    units: UnitsPlan = field(default_factory=lambda: UnitsPlan(standardize=False))
    missing: bool = False
    """Whether cells may be missing."""
    score: bool = False
    """Whether sites are asked at the end how well the fit explains their rows."""
    candidate: bool = False
    """Whether the fit is only compared with others by its score: no penalty is chosen, and nobody looks around."""
    some: int = 0
    """How many components there may be in all once those that only some sites have are looked for, after a fit in which
    all sites have all; 0 looks for none."""
    look: bool = True
    """Whether sites take a last look from the center after the rounds, for the verdicts."""
    standard_errors: bool | None = None
    """Whether the fit ends with an exchange about the precision of its parameters; None where that is no large one."""
    secure_sums: bool = False
    """Whether the center is to see nothing but sums over at least three sites."""
    ranges: tuple[tuple[float, float], ...] | None = None
    """(p, 2) between what the study bounds every column, in the units of the rows, for a fit of which nothing leaves a
    site that is not differentially private; None is a fit without."""
    columns: tuple[str, ...] | None = None
    """Column names, in order, that a site compares with its own; None asks for no names."""
    words: tuple[Column, ...] = ()
    """Columns of words among those, each with its levels: covariates of a regression, with a column of zeros and ones
    for every level but the first in their place."""
    given: Params | None = field(default=None, compare=False)
    """Starts ``(K, R), (K, R, q)``, in the units of the fit, instead of searching for them."""
    smaller: Params | None = field(default=None, compare=False)
    """The center ``(r,), (r, q), (C, s)`` of a fit with r <= R components, in the units of the fit: besides from the
    starts that are found, a fit that is scored is also played from there, and the better one is kept."""

    @property
    def start_penalty(self) -> float:
        """C by which sites weigh a distance from the common start, and of candidates: the paper's, if none is given."""
        return PAPERS_PENALTY if self.penalty is None else self.penalty

    @property
    def estimates_pull(self) -> bool:
        """Whether the center rule finds how strongly to pull, since no penalty is given."""
        return self.penalty is None and self.algorithm.estimates(self.family)

    def fitted_columns(self, columns: Sequence[str]) -> tuple[str, ...]:
        """Names of the columns of the fit, of sites that have these."""
        levels = levels_from(self.words)
        named = ([name] if name not in levels else dummy_names({name: levels[name]}) for name in columns)
        return tuple(chain.from_iterable(named))

    def wants_errors(self, n_parameters: int) -> bool:
        """Whether to ask for standard errors."""
        small = self.n_components * (1 + n_parameters) <= MOST_PARAMETERS
        return small if self.standard_errors is None else self.standard_errors

    def as_plain(self) -> dict[str, Any]:
        """Words, numbers, lists and dicts, for JSON."""
        plain: dict[str, Any] = {}
        for one in fields(self):
            value = getattr(self, one.name)
            plain[one.name] = as_plain(value)
        plain["units"] = self.units._asdict()
        for name in ("given", "smaller"):
            start = getattr(self, name)
            if start is not None:
                plain[name] = {k: None if v is None else np.asarray(v).tolist() for k, v in start._asdict().items()}
        return plain

    def to_json(self) -> str:
        """One line of JSON; :func:`read_spec` is the way back."""
        return json.dumps(self.as_plain())


def as_plain(value: Any) -> Any:
    """An object of the package by its name and options, and so on inwards; plain values as they are."""
    if isinstance(value, np.generic):
        return as_plain(value.item())
    if hasattr(value, "__dataclass_fields__") and not isinstance(value, Column):
        named = {"name": value.name} if hasattr(value, "name") else {}
        return named | {f.name: as_plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, float) and not np.isfinite(value):
        return str(value)  # JSON has no infinity
    if isinstance(value, Column):
        return value.as_plain()
    return [as_plain(one) for one in value] if isinstance(value, tuple) else value


def read_spec(plain: Any) -> FitSpec:
    """The spec of a job, from JSON or what JSON holds; whatever is unknown, of the wrong type or range is refused."""
    if isinstance(plain, str):
        try:
            plain = json.loads(plain)
        except ValueError as error:
            raise InputError(f"the spec is not JSON ({error}).") from error
    return FitSpec(**_options("the spec", FitSpec, plain, needed=("family", "algorithm", "n_components")))


def read_algorithm(plain: Any) -> Algorithm:
    """An algorithm from its name and options, checked as in a spec."""
    algorithm: Algorithm = _named("the model", "algorithm", plain)
    return algorithm


def _options(what: str, cls: Any, plain: Any, needed: tuple[str, ...] = ()) -> dict[str, Any]:
    """Checked values of the fields of a dataclass or NamedTuple; those that are needed must be there."""
    if not isinstance(plain, Mapping):
        raise InputError(f"{what} is a {type(plain).__name__}, expected a mapping of names to values.")
    hints = get_type_hints(cls)
    known = {f.name for f in fields(cls)} if hasattr(cls, "__dataclass_fields__") else set(cls._fields)
    unknown = sorted(str(name)[:40] for name in plain if name not in known)
    if unknown:
        raise InputError(f"{what} names {', '.join(unknown)}, which this fedgrem does not know; update it.")
    for name in needed:
        if name not in plain:
            raise InputError(f"{what} lacks {name}.")
    return {name: _checked(what, name, value, hints[name]) for name, value in plain.items()}


NAMED: dict[str, Mapping[str, Any]] = {
    "family": FAMILIES,
    "algorithm": ALGORITHMS,
    "covariance": STRUCTURES,
    "center": CENTER_RULES,
}
"""Fields that are objects of the package, by the registry that knows their names."""


def _checked(what: str, name: str, value: Any, hint: Any) -> Any:
    if name in NAMED:
        return _named(what, name, value)
    if name == "start":
        return StartPlan(**_options("the spec's start", StartPlan, value))
    if name == "units":
        return UnitsPlan(**_options("the spec's units", UnitsPlan, value, needed=("standardize",)))
    if name in ("given", "smaller"):
        return None if value is None else _params(name, value, per_site=name == "given")
    if name == "columns":
        if value is not None and (not isinstance(value, list | tuple) or not all(isinstance(n, str) for n in value)):
            raise InputError("the spec's columns are not a list of names.")
        return None if value is None else tuple(value)
    if name == "ranges":
        return None if value is None else read_ranges(value)
    if name in ("scaled", "kept"):
        if value is not None and (not isinstance(value, list | tuple) or not all(type(j) is int for j in value)):
            raise InputError(f"the spec's units have {name} columns that are not a list of places.")
        return None if value is None else tuple(value)
    if name in ("types", "words"):
        return columns_from_plain(value) if value or name == "types" else ()
    return _simple(what, name, value, hint)


def read_ranges(value: Any) -> tuple[tuple[float, float], ...]:
    """Bounds of columns, checked."""
    try:
        found = tuple((float(low), float(high)) for low, high in value)
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(f"ranges must be pairs of numbers, one per column; got {str(value)[:60]}.") from error
    for j, (low, high) in enumerate(found):
        if not (np.isfinite([low, high]).all() and low < high):
            raise InputError(f"the range of column number {j} is {low:g} to {high:g}; give two numbers that ascend.")
    if not found:
        raise InputError("ranges are empty; give a pair of numbers for every column.")
    return found


def _named(what: str, name: str, value: Any) -> Any:
    options = {"name": value} if isinstance(value, str) else value
    registry = NAMED[name]
    wanted = options.get("name") if isinstance(options, Mapping) else None
    if not isinstance(wanted, str) or wanted not in registry:
        raise InputError(f"{what} has {name}={str(wanted)[:40]!r}, expected one of {', '.join(registry)}.")
    rest = {key: leaf for key, leaf in options.items() if key != "name"}
    cls = registry[wanted]
    needed = tuple(f.name for f in fields(cls) if f.default is MISSING and f.default_factory is MISSING)
    return cls(**_options(f"{what}'s {name}", cls, rest, needed))


def _simple(what: str, name: str, value: Any, hint: Any) -> Any:
    kinds = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    if value is None and NoneType in kinds:
        return None
    found = _of_kind(what, name, value, kinds)
    if found is not None and name in RANGES and not _within(found, RANGES[name]):
        raise InputError(f"{what} has {name}={value!r}, expected a number in {RANGES[name]}.")
    if found is not None:
        return found
    most = f" of at most {COUNTS[name]}" if name in COUNTS else ""
    raise InputError(f"{what} has {name}={str(value)[:40]!r}, expected {_words(kinds)}{most}.")


def _of_kind(what: str, name: str, value: Any, kinds: tuple[Any, ...]) -> Any:
    """The value, if it is one of the kinds that a field may be; None otherwise."""
    for kind in kinds:
        if get_origin(kind) is Literal and isinstance(value, str) and value in get_args(kind):
            return value
        if kind is bool and isinstance(value, bool):
            return value
        if kind is int and type(value) is int and 0 <= value <= COUNTS.get(name, 2**63):
            return value
        if kind is float and isinstance(value, int | float) and not isinstance(value, bool):
            return _float(value)
        if kind is float and value in ("inf", "-inf"):
            return float(value)
    return None


def _float(value: float) -> float | None:
    """A whole number of JSON may be larger than any float."""
    try:
        return float(value)
    except OverflowError:
        return None


def _within(number: float, interval: str) -> bool:
    """Whether a number is in an interval.

    Examples
    --------
    >>> _within(0.0, "(0, 1]"), _within(1.0, "(0, 1]")
    (False, True)
    """
    low, high = (float(end) for end in interval[1:-1].split(","))
    above = number >= low if interval[0] == "[" else number > low
    return above and (number <= high if interval[-1] == "]" else number < high)


def _words(kinds: tuple[Any, ...]) -> str:
    words = {bool: "true or false", int: "a whole number", float: "a number", NoneType: "null"}
    literals = {kind: f"one of {', '.join(get_args(kind))}" for kind in kinds if get_origin(kind) is Literal}
    return " or ".join((words | literals).get(kind, str(kind)) for kind in kinds)


def _params(name: str, value: Any, *, per_site: bool) -> Params:
    try:
        noise = value.get("noise")
        weights, theta = (np.array(value[leaf], dtype=float) for leaf in ("weights", "theta"))
        if theta.ndim != 2 + per_site or weights.shape != theta.shape[:-1]:
            raise ValueError(weights.shape, theta.shape)
        return Params(weights, theta, None if noise is None else np.array(noise, dtype=float))
    except (TypeError, OverflowError, KeyError, ValueError, AttributeError) as error:
        lead = "K, " * per_site
        raise InputError(f"the spec's {name} start is not weights ({lead}R) and theta ({lead}R, q).") from error
