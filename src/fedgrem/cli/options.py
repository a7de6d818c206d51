"""Options and arguments that several commands take, each worded once, and what an estimator is told of them."""

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from fedgrem.errors import InputError

if TYPE_CHECKING:
    from fedgrem.data.columns import Column


class Covariance(StrEnum):
    """What is estimated of the covariance within components."""

    tied = "tied"
    full = "full"
    diag = "diag"
    spherical = "spherical"
    identity = "identity"


class Noise(StrEnum):
    """What is estimated of the noise of regressions."""

    shared = "shared"
    component = "component"
    unit = "unit"


class Response(StrEnum):
    """What regressions explain."""

    gaussian = "gaussian"
    binary = "binary"
    counts = "count"  # "count" itself is a method of words


class Missing(StrEnum):
    """What to do about empty cells."""

    refuse = "refuse"
    em = "em"


class Criterion(StrEnum):
    """How a number of components is chosen."""

    bic = "bic"
    icl = "icl"


# -- rows

DataFiles: TypeAlias = Annotated[
    list[Path],
    typer.Argument(
        metavar="DATA",
        help="One CSV, TSV or Parquet table with a site column, or several: one per site.",
        show_default=False,
    ),
]
SiteColumn: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--site", "-s", metavar="COLUMN", help="Column that names the site of each row.", show_default="file names"
    ),
]
TargetColumn: TypeAlias = Annotated[
    str | None, typer.Option(metavar="COLUMN", help="Column to explain: fits regressions. See --response.")
]
WeightColumn: TypeAlias = Annotated[
    str | None, typer.Option(metavar="COLUMN", help="Column of row weights: 2 counts as two rows.")
]
Columns: TypeAlias = Annotated[
    str | None,
    typer.Option(metavar="A,B,...", help="Columns to use, separated by commas.", show_default="all others"),
]
DroppedColumns: TypeAlias = Annotated[
    str | None, typer.Option(metavar="A,B,...", help="Columns to leave out, separated by commas.")
]
MissingOption: TypeAlias = Annotated[
    Missing, typer.Option("--missing", help="Empty cells: refuse them, or let EM fill in what is expected of them.")
]
RobustOption: TypeAlias = Annotated[
    bool,
    typer.Option("--robust-rows", help="Rows of no component (far off, a clump, heavy tails) are to move nothing."),
]
TableOption: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--table", help="Fit mixed columns: numbers, counts, yes/no, categories; empty cells are missing. See --types."
    ),
]
TypesOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--types",
        metavar="A=TYPE,B=X|Y,...",
        help="With --table, what columns are: continuous, robust, binary, categorical, count, or their levels; over a "
        "network, also the levels of a regression's words.",
        show_default="read from all sites",
    ),
]

# -- a fit

Components: TypeAlias = Annotated[
    str,
    typer.Option(
        "--components",
        "-r",
        metavar="N|A:B|auto",
        help="Components of the mixture; of several (2:12, or 2,4,8, or auto) the best by --criterion.",
        show_default=False,
    ),
]
ModelFolder: TypeAlias = Annotated[
    Path, typer.Option("--out", "-o", metavar="FOLDER", help="Folder to save the model in.", show_default=False)
]
CovarianceOption: TypeAlias = Annotated[
    Covariance | None,
    typer.Option(
        "--covariance",
        help="`tied`: one matrix for all components; `full`: one each; `identity`: the paper's unit one.",
        show_default="tied",
    ),
]
NoiseOption: TypeAlias = Annotated[
    Noise | None,
    typer.Option(
        "--noise",
        help="Of regressions. `shared`: one variance for all components; `component`: one each; `unit`: the paper's, "
        "known and without an intercept.",
        show_default="shared",
    ),
]
ResponseOption: TypeAlias = Annotated[
    Response,
    typer.Option(
        "--response",
        help="Of regressions, what is explained. `gaussian`: numbers; `binary`: 0 or 1, by log odds; `count`: counts, "
        "by log rates.",
    ),
]
CriterionOption: TypeAlias = Annotated[
    Criterion, typer.Option("--criterion", help="What chooses among numbers of components.")
]
Penalty: TypeAlias = Annotated[
    str,
    typer.Option(
        metavar="C",
        help="Pull to the center: 0 fits each site alone, inf gives one answer for all; auto chooses on held-out rows.",
    ),
]
MostRounds: TypeAlias = Annotated[int, typer.Option(metavar="N", min=1, help="Stop after so many rounds.")]
Tolerance: TypeAlias = Annotated[
    float, typer.Option(metavar="X", min=0.0, help="Stop when the sites move less than this.")
]
Restarts: TypeAlias = Annotated[
    int, typer.Option(metavar="N", min=1, help="Restarts at each site before the first round.")
]
Seed: TypeAlias = Annotated[int, typer.Option(metavar="N", min=0, help="Same seed, same result.")]
Force: TypeAlias = Annotated[bool, typer.Option("--force", help="Write into --out even if it is not empty.")]

# -- a saved model

ModelArgument: TypeAlias = Annotated[
    Path, typer.Argument(metavar="MODEL", help="A folder written by `fedgrem fit`.", show_default=False)
]
FittedSite: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--site", "-s", metavar="COLUMN", help="Column that names the site of each row.", show_default="as fitted"
    ),
]
FittedTarget: TypeAlias = Annotated[
    str | None,
    typer.Option(metavar="COLUMN", help="Response column of a regression mixture.", show_default="as fitted"),
]

# -- a study over a network

StudyFolder: TypeAlias = Annotated[
    Path, typer.Argument(metavar="STUDY", help="A folder made by `fedgrem sites init`.", show_default=False)
]
Foreground: TypeAlias = Annotated[
    bool, typer.Option("--foreground", help="Do not return: for a supervisor such as systemd.")
]


def group(help: str) -> typer.Typer:
    """Commands under one name."""
    names = {"help_option_names": ["-h", "--help"]}
    return typer.Typer(help=help, no_args_is_help=True, rich_markup_mode="markdown", context_settings=names)


# -- what an estimator is told


def fit_options(
    numbers: int | str | list[int],
    penalty: str,
    criterion: Criterion,
    max_rounds: int,
    tol: float,
    n_init: int,
    seed: int,
) -> dict[str, Any]:
    """Of the fit."""
    return {
        "n_components": numbers,
        "penalty": penalty_of(penalty),
        "criterion": criterion.value,
        "max_rounds": max_rounds,
        "tol": tol,
        "n_init": n_init,
        "random_state": seed,
    }


def family_options(
    regression: bool,
    covariance: Covariance | None,
    noise: Noise | None,
    missing: Missing,
    table: bool = False,
    types: str | None = None,
    response: Response = Response.gaussian,
    robust: bool = False,
) -> dict[str, Any]:
    """Of its components; what belongs to the other kind of mixture is refused."""
    if response is not Response.gaussian and not regression:
        raise InputError(f"--response {response.value} is for regressions, and no column to explain was named.")
    if types and not table:
        raise InputError("--types says what the columns of a table are; give --table too.")
    if table:
        if regression:
            raise InputError("--table is for rows without a response; leave --target or --regression out.")
        if noise is not None:
            raise InputError(f"--noise {noise.value} is for regressions; with --table, use --covariance.")
        if robust:
            raise InputError('--robust-rows does not go with --table; call columns with far rows "robust" in --types.')
        kind = covariance or Covariance.diag
        if kind in (Covariance.spherical, Covariance.identity):
            raise InputError(f"--covariance {kind.value} does not go with --table; use diag, tied or full.")
        return {"columns": read_types(types), "covariance_type": kind.value}
    if regression:
        if covariance is not None:
            raise InputError(
                f"--covariance {covariance.value} is for Gaussian components; of regressions, say what to estimate of "
                "the noise: --noise shared, component or unit."
            )
        return {"response": response.value, "noise": (noise or Noise.shared).value, "robust_rows": robust}
    if noise is not None:
        raise InputError(
            f"--noise {noise.value} is for regressions, and no column to explain was named; use --covariance instead."
        )
    kind = covariance or Covariance.tied
    return {"covariance_type": kind.value, "missing": missing.value, "robust_rows": robust}


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
