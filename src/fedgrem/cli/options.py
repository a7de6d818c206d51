"""Options and arguments of the commands, those that several take worded once, and what an estimator is told of them."""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, is_dataclass
from enum import StrEnum
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, TypeVar, get_type_hints

import typer

from fedgrem.errors import InputError

if TYPE_CHECKING:
    from fedgrem.data.columns import Column

Command = TypeVar("Command", bound=Callable[..., None])
Covariance = StrEnum("Covariance", "tied full diag spherical identity")
Noise = StrEnum("Noise", "shared component unit")
Response = StrEnum("Response", {"gaussian": "gaussian", "binary": "binary", "counts": "count"})  # str has a count
Missing = StrEnum("Missing", "refuse em")
Criterion = StrEnum("Criterion", "bic icl")


def option(
    metavar: str | None,
    help: str,
    *names: str,
    default: str | bool = True,
    least: float | None = None,
    most: float | None = None,
) -> Any:
    """An option of a command; ``default`` says in words what the default is, where the value does not."""
    return typer.Option(*names, metavar=metavar, help=help, show_default=default, min=least, max=most)


def argument(metavar: str, help: str, callback: Callable[[str], str] | None = None) -> Any:
    """An argument of a command."""
    return typer.Argument(metavar=metavar, help=help, show_default=False, callback=callback)


def examples(*lines: str) -> Callable[[Command], Command]:
    """A command whose help ends with these calls."""

    def told(command: Command) -> Command:
        calls = (line if "`" in line else f"`{line}`" for line in lines)
        command.__doc__ = "\n\n* ".join([f"{inspect.getdoc(command)}\n\nFor example:", *calls])
        return command

    return told


def with_options(command: Callable[..., None]) -> Callable[..., None]:
    """A command that takes one option for every field of its dataclass arguments."""
    hints, given = get_type_hints(command, include_extras=True), inspect.signature(command).parameters
    groups: dict[str, Any] = {name: kind for name, kind in hints.items() if is_dataclass(kind)}
    parameters: list[inspect.Parameter] = []
    for name, one in given.items():
        if name in groups:
            of_field = get_type_hints(groups[name], include_extras=True)
            taken = [(field.name, field.default, of_field[field.name]) for field in fields(groups[name])]
        else:
            taken = [(name, one.default, hints[name])]
        parameters += [inspect.Parameter(n, one.KEYWORD_ONLY, default=d, annotation=kind) for n, d, kind in taken]

    @wraps(command)
    def flat(**values: Any) -> None:
        for name, group in groups.items():
            values[name] = group(**{field.name: values.pop(field.name) for field in fields(group)})
        command(**values)

    flat.__annotations__ = {one.name: one.annotation for one in parameters}
    flat.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return flat


SiteColumn: TypeAlias = Annotated[
    str | None, option("COLUMN", "Column that names the site of each row.", "--site", "-s", default="file names")
]
Components: TypeAlias = Annotated[
    str, option(
        "N|A:B|auto", "Components of the mixture; of several (2:12, or 2,4,8, or auto) the best by --criterion.",
        "--components", "-r", default=False,
    ),
]  # fmt: skip
DataFiles: TypeAlias = Annotated[
    list[Path], argument("DATA", "One CSV, TSV or Parquet table with a site column, or several: one per site.")
]
ModelFolder: TypeAlias = Annotated[Path, option("FOLDER", "Folder to save the model in.", "--out", "-o", default=False)]
CriterionOption: TypeAlias = Annotated[Criterion, option(None, "What chooses among numbers of components.")]
WeightColumn: TypeAlias = Annotated[str | None, option("COLUMN", "Column of row weights: 2 counts as two rows.")]
Seed: TypeAlias = Annotated[int, option("N", "Same seed, same result.", least=0)]
Force: TypeAlias = Annotated[bool, option(None, "Write into --out even if it is not empty.", "--force")]
ModelArgument: TypeAlias = Annotated[Path, argument("MODEL", "A folder written by `fedgrem fit`.")]
FittedSite: TypeAlias = Annotated[
    str | None, option("COLUMN", "Column that names the site of each row.", "--site", "-s", default="as fitted")
]
FittedTarget: TypeAlias = Annotated[
    str | None, option("COLUMN", "Response column of a regression mixture.", default="as fitted")
]
StudyFolder: TypeAlias = Annotated[Path, argument("STUDY", "A folder made by `fedgrem sites init`.")]
Foreground: TypeAlias = Annotated[
    bool, option(None, "Do not return: for a supervisor such as systemd.", "--foreground")
]


@dataclass(frozen=True)
class RowOptions:
    """Which rows and columns of tables are fitted."""

    site: SiteColumn = None
    target: Annotated[str | None, option("COLUMN", "Column to explain: fits regressions. See --response.")] = None
    weight: WeightColumn = None
    columns: Annotated[str | None, option("A,B,...", "Columns to use, separated by commas.", default="all others")] = (
        None
    )
    drop: Annotated[str | None, option("A,B,...", "Columns to leave out, separated by commas.")] = None


@dataclass(frozen=True)
class FamilyOptions:
    """What a component is."""

    covariance: Annotated[Covariance | None, option(
        None, "`tied`: one matrix for all components; `full`: one each; `identity`: the paper's unit one.",
        default="tied",
    )] = None  # fmt: skip
    noise: Annotated[Noise | None, option(
        None, "Of regressions. `shared`: one variance for all components; `component`: one each; `unit`: the paper's, "
        "known and without an intercept.", default="shared",
    )] = None  # fmt: skip
    response: Annotated[Response, option(
        None, "Of regressions, what is explained. `gaussian`: numbers; `binary`: 0 or 1, by log odds; `count`: counts, "
        "by log rates.",
    )] = Response.gaussian  # fmt: skip
    missing: Annotated[
        Missing, option(None, "Empty cells: refuse them, or let EM fill in what is expected of them.")
    ] = Missing.refuse
    table: Annotated[bool, option(
        None, "Fit mixed columns: numbers, counts, yes/no, categories; empty cells are missing. See --types.",
        "--table",
    )] = False  # fmt: skip
    types: Annotated[str | None, option(
        "A=TYPE,B=X|Y,...", "With --table, what columns are: continuous, robust, binary, categorical, count, or their "
        "levels; over a network, also the levels of a regression's words.", default="read from all sites",
    )] = None  # fmt: skip
    robust_rows: Annotated[
        bool, option(None, "Rows of no component (far off, a clump, heavy tails) are to move nothing.", "--robust-rows")
    ] = False

    def told(self, regression: bool) -> dict[str, Any]:
        """As an estimator takes it; what belongs to the other kind of mixture is refused."""
        covariance, noise, response = self.covariance, self.noise, self.response
        if response is not Response.gaussian and not regression:
            raise InputError(f"--response {response.value} is for regressions, and no column to explain was named.")
        if self.types and not self.table:
            raise InputError("--types says what the columns of a table are; give --table too.")
        if self.table:
            if regression:
                raise InputError("--table is for rows without a response; leave --target or --regression out.")
            if noise is not None:
                raise InputError(f"--noise {noise.value} is for regressions; with --table, use --covariance.")
            if self.robust_rows:
                raise InputError(
                    '--robust-rows does not go with --table; call columns with far rows "robust" in --types.'
                )
            kind = covariance or Covariance.diag
            if kind in (Covariance.spherical, Covariance.identity):
                raise InputError(f"--covariance {kind.value} does not go with --table; use diag, tied or full.")
            return {"columns": read_types(self.types), "covariance_type": kind.value}
        if regression:
            if covariance is not None:
                raise InputError(
                    f"--covariance {covariance.value} is for Gaussian components; of regressions, say what to estimate "
                    "of the noise: --noise shared, component or unit."
                )
            kept = {"response": response.value, "noise": (noise or Noise.shared).value}
            return kept | {"robust_rows": self.robust_rows}
        if noise is not None:
            raise InputError(
                f"--noise {noise.value} is for regressions, and no column to explain was named; use --covariance "
                "instead."
            )
        kept = {"covariance_type": (covariance or Covariance.tied).value, "missing": self.missing.value}
        return kept | {"robust_rows": self.robust_rows}


@dataclass(frozen=True)
class FitOptions:
    """How a mixture is fitted."""

    penalty: Annotated[str, option(
        "C", "Pull to the center: 0 fits each site alone, inf gives one answer for all; auto chooses on held-out rows.",
    )] = "auto"  # fmt: skip
    criterion: CriterionOption = Criterion.bic
    max_rounds: Annotated[int, option("N", "Stop after N rounds.", least=1)] = 1000
    tol: Annotated[float, option("X", "Stop when the sites move less than this.", least=0.0)] = 1e-6
    n_init: Annotated[int, option("N", "Restarts at each site before the first round.", least=1)] = 10
    seed: Seed = 0

    def told(self, components: int | str | list[int]) -> dict[str, Any]:
        """As an estimator takes it."""
        names = {"criterion": self.criterion.value, "random_state": self.seed, "n_components": components}
        rest = {"max_rounds": self.max_rounds, "tol": self.tol, "n_init": self.n_init}
        return names | rest | {"penalty": penalty_of(self.penalty)}


def group(help: str) -> typer.Typer:
    """Commands under one name."""
    names = {"help_option_names": ["-h", "--help"]}
    return typer.Typer(help=help, no_args_is_help=True, rich_markup_mode="markdown", context_settings=names)


def estimator(options: dict[str, Any], regression: bool) -> Any:
    """An unfitted model of these options."""
    from fedgrem import FederatedGaussianMixture, FederatedRegressionMixture, FederatedTableMixture, Privacy

    if "privacy" in options:
        options = options | {"privacy": Privacy(**options["privacy"])}
    if "columns" in options:
        return FederatedTableMixture(**options)
    return FederatedRegressionMixture(**options) if regression else FederatedGaussianMixture(**options)


def read_bounds(text: str) -> dict[str, list[float]] | list[float]:
    """Bounds of columns as they were typed: by name, or one pair for all.

    Examples
    --------
    >>> read_bounds("age=0:120,bmi=10:60"), read_bounds("-1:1")
    ({'age': [0.0, 120.0], 'bmi': [10.0, 60.0]}, [-1.0, 1.0])
    """

    def pair(bounds: str) -> list[float]:
        low, _, high = bounds.partition(":")
        try:
            return [float(low), float(high)]
        except ValueError as error:
            raise InputError(f"--ranges has {bounds!r}, expected LOW:HIGH, as in age=0:120.") from error

    if "=" not in text:
        return pair(text)
    return {name.strip(): pair(bounds) for name, _, bounds in (one.partition("=") for one in listed(text))}


def read_types(text: str | None) -> dict[str, Any]:
    """Types of columns as they were typed.

    Examples
    --------
    >>> read_types("age=continuous,cp=none|some|much")
    {'age': 'continuous', 'cp': ['none', 'some', 'much']}
    """
    found: dict[str, Any] = {}
    for one in listed(text):
        name, mark, kind = one.partition("=")
        if not (name and mark and kind):
            raise InputError(f"--types has {one!r}, expected COLUMN=TYPE or COLUMN=LEVEL|LEVEL.")
        found[name.strip()] = [level.strip() for level in kind.split("|")] if "|" in kind else kind.strip()
    return found


def covariates_of_words(types: str | None, columns: Sequence[str] | None) -> "tuple[Column, ...]":
    """Columns of words with their levels, as they were typed, among those that were named."""
    from fedgrem.data.columns import CONTINUOUS, declared_columns

    told = read_types(types)
    if told and columns is None:
        raise InputError("--types needs --columns: over a network no site shows what its columns hold.")
    for name, kind in told.items():
        if isinstance(kind, str):
            raise InputError(
                f"--types of a regression names the levels of words, as in {name}=none|mild; got {kind!r}."
            )
        if name not in (columns or ()):
            raise InputError(f"--types names {name!r}, which is not among --columns.")
    numbers = dict.fromkeys(columns or (), CONTINUOUS)
    return tuple(column for column in declared_columns(columns or (), numbers | told) if column.levels)


def penalty_of(text: str) -> float | str:
    """A penalty as it was typed.

    Examples
    --------
    >>> penalty_of("auto"), penalty_of("2"), penalty_of("inf")
    ('auto', 2.0, inf)
    """
    if text == "auto":
        return text
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not number >= 0:
        raise InputError(f"--penalty must be auto or a number >= 0, got {text!r}.")
    return number


def read_components(text: str) -> int | list[int] | str:
    """A number of components, several to choose from, or "auto".

    Examples
    --------
    >>> read_components("5"), read_components("2:4"), read_components("2,8"), read_components("auto")
    (5, [2, 3, 4], [2, 8], 'auto')
    """
    words = text.strip().lower()
    if words == "auto":
        return words
    try:
        if ":" in words:
            first, last = (int(word) for word in words.split(":"))
            numbers = list(range(first, last + 1))
        else:
            numbers = [int(word) for word in words.split(",")]
    except ValueError:
        numbers = []
    if not numbers or min(numbers) < 1:
        raise typer.BadParameter(
            f"{text!r} is no number of components; give one (5), a range (2:12), a list (2,4,8) or auto.",
            param_hint="--components",
        )
    return numbers[0] if len(numbers) == 1 and ":" not in words else numbers


def listed(names: str | None) -> list[str]:
    """Names separated by commas.

    Examples
    --------
    >>> listed("age, bmi,")
    ['age', 'bmi']
    """
    return [name.strip() for name in (names or "").split(",") if name.strip()]
