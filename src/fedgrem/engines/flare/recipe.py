"""What is to be fitted, in plain words and numbers: all that a job says, at the center and at the sites.

No code travels: a recipe names a family and an algorithm of the installed package, and anything else is refused.
"""

import inspect
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from fedgrem.algorithms.base import Algorithm
from fedgrem.algorithms.information import worth_asking
from fedgrem.algorithms.path import PENALTIES
from fedgrem.algorithms.plan import Plan
from fedgrem.algorithms.pooled import InOnePot
from fedgrem.algorithms.registry import ALGORITHMS, ALONE, build_algorithm, steady_penalty
from fedgrem.algorithms.start import StartPlan
from fedgrem.data.units import UnitsPlan
from fedgrem.errors import InputError
from fedgrem.families.base import Family
from fedgrem.families.gaussian import COVARIANCES, Gaussian
from fedgrem.families.regression import NOISES, LinearRegression
from fedgrem.kernels.precision import Precision

FAMILIES: dict[str, type[Any]] = {"gaussian": Gaussian, "regression": LinearRegression}
"""What a site agrees to fit; a user's own density is code, and code does not travel."""
WORDS: dict[str, tuple[str, ...]] = {
    "family": tuple(FAMILIES),
    "algorithm": tuple(ALGORITHMS),
    "dtype": ("float64", "float32"),
    "alignment": ("assignment", "stepwise", "exhaustive"),
    "covariance": COVARIANCES,
    "noise": NOISES,
    "step_weights": ("current", "initial"),
    "penalty_scaling": ("fixed", "step"),
    "penalty_rows": ("component", "site"),
    "center_solver": ("redescending", "exact", "alternating"),
}
"""Options that are words, and the words they may be; every other option is a number or a switch."""
COUNTS = {"n_components": 1000, "n_init": 1000, "max_rounds": 1_000_000, "exchanges": 100, "tracks": 1000}
"""The most that a site will work for."""


@dataclass(frozen=True)
class Recipe:
    """A fit, before anybody's rows are known."""

    family: str
    algorithm: str
    n_components: int
    family_options: dict[str, Any] = field(default_factory=dict)
    algorithm_options: dict[str, Any] = field(default_factory=dict)
    start: dict[str, Any] = field(default_factory=dict)
    """Fields of :class:`~fedgrem.algorithms.start.StartPlan` other than ``n_components``."""
    penalty: float = 2.0
    penalty_decay: float = 0.1
    compare: bool = False
    """Whether penalties are compared on held-out rows before round 1."""
    choose: bool = False
    """Whether the best of them is taken, instead of ``penalty``."""
    fallback: bool = False
    """Whether sites that clearly lose in the comparison are fitted alone."""
    max_rounds: int = 1000
    tol: float = 1e-6
    tol_errors: float = 0.0
    seed: int = 0
    standardize: bool = False
    move: bool = True
    intercept: bool = False
    missing: bool = False
    """Whether cells may be empty."""
    score: bool = False
    """Whether sites are asked at the end how well the fit explains their rows."""
    dtype: Precision = "float64"
    columns: tuple[str, ...] | None = None
    """Column names, in order, that a site compares with its own; None asks for no names."""
    standard_errors: bool | None = False
    """Whether the fit ends with an exchange about the precision of its parameters; None where that is no large one."""

    @property
    def units_plan(self) -> UnitsPlan:
        """How rows are put before the fit."""
        return UnitsPlan(self.standardize, self.move, self.intercept)

    @property
    def start_plan(self) -> StartPlan:
        """How starts are found."""
        return StartPlan(self.n_components, **self.start)

    def plan(self, n_sites: int, width: int) -> Plan:
        """How the fit is run once the sites and the number of their columns, ones included, are known."""
        alone = self.algorithm in ALONE
        n_parameters = self.build_family().n_parameters(width)
        path = PENALTIES if self.choose else (0.0, self.penalty)
        return Plan(
            start=self.start_plan,
            max_rounds=self.max_rounds,
            tol=self.tol,
            tol_errors=self.tol_errors,
            seed=self.seed,
            start_penalty=0.0 if alone else steady_penalty(self.penalty, self.penalty_decay, n_parameters, n_sites),
            path=path if self.compare else (),
            given_penalty=None if self.choose else self.penalty,
            fallback=self.fallback,
            score=self.score,
            look=n_sites > 1,
            standard_errors=worth_asking(self.standard_errors, self.n_components, n_parameters),
        )

    def build_family(self) -> Family:
        """What a component is."""
        family: Family = FAMILIES[self.family](**self.family_options)
        return family

    def build_algorithm(self) -> Algorithm:
        """The two steps; the same object at the center and at every site."""
        return build_algorithm(self.algorithm, self.build_family(), **self.algorithm_options)

    def as_plain(self) -> dict[str, Any]:
        """Words, numbers, lists and dicts, for JSON."""
        plain = asdict(self)
        return plain | {"columns": None if self.columns is None else list(self.columns)}


def read_recipe(plain: Any) -> Recipe:
    """The recipe of a job; whatever is unknown, of the wrong type or out of range is refused by name."""
    known = {f.name for f in fields(Recipe)}
    if not isinstance(plain, Mapping):
        raise InputError(f"the recipe is a {type(plain).__name__}, expected a mapping of names to values.")
    unknown = sorted(str(name) for name in plain if name not in known)
    if unknown:
        raise InputError(f"the recipe names {', '.join(unknown)}, which this fedgrem does not know; update it.")
    values = dict(plain)
    columns = values.get("columns")
    if columns is not None:
        if not isinstance(columns, list | tuple) or not all(isinstance(name, str) for name in columns):
            raise InputError("the recipe's columns are not a list of names.")
        values["columns"] = tuple(columns)
    for name in ("family_options", "algorithm_options", "start"):
        options = values.setdefault(name, {})
        if not isinstance(options, Mapping):
            raise InputError(f"the recipe's {name} are not a mapping of names to values.")
        values[name] = dict(options)
        _check_values(values[name])
    _check_values(
        {k: v for k, v in values.items() if k not in ("columns", "family_options", "algorithm_options", "start")}
    )
    for name in ("family", "algorithm", "n_components"):
        if name not in values:
            raise InputError(f"the recipe lacks {name}.")
    _check_options(values)
    recipe = Recipe(**values)
    check_over_network(recipe)
    return recipe


def check_over_network(recipe: Recipe) -> None:
    """Refuse what cannot be done where rows stay at the sites."""
    constructor: Any = ALGORITHMS[recipe.algorithm]
    if inspect.isclass(constructor) and issubclass(constructor, InOnePot):
        raise InputError(
            f"algorithm {recipe.algorithm!r} puts the rows of all sites in one pot, and over a network rows stay where "
            "they are; use 'fedgrem', another federated algorithm, or the in-process engine."
        )


def _check_values(values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        if name in WORDS:
            if value not in WORDS[name]:
                raise InputError(
                    f"the recipe has {name}={str(value)[:40]!r}, expected one of {', '.join(WORDS[name])}."
                )
        elif not (value is None or isinstance(value, bool | int | float)):
            raise InputError(f"the recipe has {name}={str(value)[:40]!r}, expected a number.")
        elif name in COUNTS and not (value is None or (type(value) is int and 0 <= value <= COUNTS[name])):
            raise InputError(f"the recipe has {name}={value!r}, expected a whole number up to {COUNTS[name]}.")


def _check_options(values: dict[str, Any]) -> None:
    known = {
        "family_options": set(inspect.signature(FAMILIES[values["family"]]).parameters),
        "start": {f.name for f in fields(StartPlan)} - {"n_components"},
    }
    for name, names in known.items():
        unknown = sorted(set(values[name]) - names)
        if unknown:
            raise InputError(f"the recipe's {name} hold {', '.join(unknown)}; known are {', '.join(sorted(names))}.")
