"""Options and arguments that several commands take: each worded once."""

from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from fedgrem.errors import InputError

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

# -- rows for a saved model

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


def listed(names: str) -> list[str]:
    """Names separated by commas.

    Examples
    --------
    >>> listed("age, bmi,")
    ['age', 'bmi']
    """
    return [name.strip() for name in names.split(",") if name.strip()]
