"""What the loaders share: a data set as it was published, progress, and the folder it is read from."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, TypeAlias

from fedgrem.errors import InputError
from fedgrem.types import Array

Progress: TypeAlias = Callable[[str, int, int | None], None]
"""Told the name of a file, the bytes that are there and the bytes in all (None if not known)."""


class RealData(NamedTuple):
    """A data set as it was published."""

    rows: Array
    """(N, p) float64."""
    labels: Array
    """(N,) integers from 0: the digit, or the kind of clothes. For scoring only."""
    sites: Array | None
    """(N,) integers from 1: who wrote the digit. None where the data set has no sites of its own."""
    columns: tuple[str, ...]
    """p names."""
    name: str


def checked_folder(folder: str | Path) -> Path:
    """The folder, if there is one."""
    path = Path(folder).expanduser()
    if not path.is_dir():
        raise InputError(
            f"{path} is not a folder; give one that holds the data (in the shell: --data FOLDER), or none to download "
            "them."
        )
    return path


def progress_of(on_progress: Progress | None, name: str) -> Callable[[int, int | None], None] | None:
    """Progress of one file, told with its name."""
    return None if on_progress is None else lambda done, total: on_progress(name, done, total)
