"""Models, pictures and rows on disk, as the command line keeps and reads them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fedgrem.data.files import FileTable, check_column, check_no_gaps, check_numeric, read_sites
from fedgrem.errors import InputError, ModelFileError

if TYPE_CHECKING:
    from fedgrem.estimators.base import BaseFederatedMixture

SOURCE = "source.json"
PICTURES = (".png", ".pdf", ".svg")


class Source(NamedTuple):
    """Which columns a model was fitted from."""

    site: str | None = None
    """The site column; None if every file was a site."""
    target: str | None = None


class Saved(NamedTuple):
    """A saved model and its source."""

    model: BaseFederatedMixture
    source: Source


class Rows(NamedTuple):
    """Rows for a saved model."""

    table: FileTable
    features: Any
    """The fitted columns."""
    response: Any
    weight: Any


def save(model: BaseFederatedMixture, folder: Path, source: Source) -> None:
    """Write a model, and beside it which columns it was fitted from, so that ``predict`` need not be told again."""
    from fedgrem.models import save_model

    save_model(model, folder)
    (folder / SOURCE).write_text(json.dumps(source._asdict(), indent=1) + "\n", encoding="utf-8")


def load(folder: Path) -> Saved:
    """Read a model; one saved from Python has no source, which is no mistake."""
    from fedgrem.models import load_model

    model = load_model(folder)
    try:
        stored = json.loads((folder / SOURCE).read_text(encoding="utf-8"))
        return Saved(model, Source(stored["site"], stored["target"]))
    except FileNotFoundError:
        return Saved(model, Source())
    except (ValueError, KeyError, TypeError) as error:
        raise ModelFileError(f"{folder / SOURCE} cannot be read ({error}); fit the model again.") from error


def rows_for(
    saved: Saved,
    files: list[Path],
    *,
    site: str | None = None,
    target: str | None = None,
    weight: str | None = None,
    blind: bool = False,
) -> Rows:
    """Rows for a saved model: its columns, numeric, without gaps unless EM fills them, and the response.

    With ``blind``, a regression's response may be missing from the files.
    """
    from fedgrem import FederatedRegressionMixture, FederatedTableMixture

    model, table = saved.model, read_sites(files, site=site)
    frame = table.frame
    names = model.source_columns
    if not names:
        raise InputError("the model was fitted on an array without column names; predict with it in Python.")
    lacking = [name for name in names if name not in frame.columns]
    if lacking:
        raise InputError(
            f"the data lacks the fitted column(s) {', '.join(lacking[:5])}{', ...' if len(lacking) > 5 else ''}; "
            f"its columns are {', '.join(frame.columns[:20])}."
        )
    response = None
    if isinstance(model, FederatedRegressionMixture):
        response = target or saved.source.target
        if response is None and not blind:
            raise InputError("the model is a regression, and its response column is not known; name it with --target.")
        if blind and target is None and response not in frame.columns:
            response = None
    for name in (target, response, weight):
        if name is not None:
            check_column(frame, name)
    aside = [name for name in (response, weight) if name is not None]
    mixed = isinstance(model, FederatedTableMixture)
    words = names if mixed else getattr(model, "levels_", {})
    columns = [name for name in names if name not in words]
    check_numeric(frame, [*columns, *aside])
    check_no_gaps(frame, aside if getattr(model, "missing", None) == "em" else [*columns, *aside])
    numbers = [None if name is None else frame[name].to_numpy() for name in (response, weight)]
    return Rows(table, frame.select(names), *numbers)


def prepare_network() -> None:
    """Before anything of NVFlare is imported: that it is there, what it compiles is kept, and its files are private."""
    from fedgrem.engines.flare.processes import check_flare, keep_bytecode, keep_private

    check_flare()
    keep_bytecode()
    keep_private()


def check_folder(folder: Path, *, force: bool) -> None:
    """Refuse a folder that a model cannot or should not be written to, before the fit and not after it."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file; give a folder to save the model in.")
    if folder.is_dir() and any(folder.iterdir()) and not force:
        raise InputError(f"{folder} exists and is not empty; give another folder, or --force to write into it.")
    check_writable(folder)


def check_picture(path: Path) -> None:
    """Refuse a picture that cannot be drawn, before the work and not after it."""
    if path.suffix.lower() not in PICTURES:
        raise InputError(f"{path} has the extension {path.suffix!r}; a plot can be saved as .png, .pdf or .svg.")
    check_writable(path)


def check_writable(path: Path) -> None:
    """Refuse a place that cannot be written to."""
    place = path
    while not place.exists() and place != place.parent:
        place = place.parent
    if not os.access(place, os.W_OK):
        raise InputError(f"{path} cannot be written; give a place where you may write.")
    if path.suffix and not path.is_dir() and not path.parent.is_dir():
        raise InputError(f"{path} cannot be written, because there is no folder {path.parent}; make it first.")
