"""The result of a fit on disk: one ``.npz`` with a JSON entry; no pickle, and replaced in one step."""

import io
import json
import os
from pathlib import Path
from typing import Any, NamedTuple
from zipfile import BadZipFile

import numpy as np

from fedgrem.errors import ModelFileError
from fedgrem.types import Array, FitResult, Influence

RESULT = "result.npz"
ABOUT = "about"
MAPPINGS = ("history", "path", "look", "influence")
"""Fields of a result that hold arrays by name."""


class Finished(NamedTuple):
    """A fit that ran over a network."""

    result: FitResult
    about: dict[str, Any]
    """``events``, ``out``, ``away``, ``columns``, ``n_rows`` and ``seconds_per_round``: plain values."""


def write_result(folder: Path, finished: Finished) -> None:
    """Keep the result of a fit: written under another name, then renamed."""
    result, about = finished
    arrays: dict[str, Any] = {}
    plain: dict[str, Any] = {}
    for name, value in (result._asdict() | {"influence": result.influence._asdict()}).items():
        if name in MAPPINGS:
            arrays |= {f"{name}/{key}": np.asarray(kept) for key, kept in (value or {}).items() if kept is not None}
        elif isinstance(value, np.ndarray):
            arrays[name] = value
        else:
            plain[name] = value
    text = np.frombuffer(json.dumps({"result": plain, ABOUT: about}).encode(), dtype=np.uint8)
    buffer = io.BytesIO()
    np.savez(buffer, **arrays | {ABOUT: text})
    temporary = folder / f"{RESULT}.tmp"
    with temporary.open("wb") as file:
        file.write(buffer.getbuffer())
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(folder / RESULT)


def read_result(folder: Path) -> Finished:
    """The result of a fit."""
    path = folder / RESULT
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files}
        about = json.loads(arrays.pop(ABOUT).tobytes())
    except FileNotFoundError as error:
        raise ModelFileError(f"{path} is missing; is the fit finished?") from error
    except (OSError, ValueError, KeyError, BadZipFile) as error:
        raise ModelFileError(f"{path} cannot be read ({error}).") from error
    values: dict[str, Any] = about["result"] | {name: kept for name, kept in arrays.items() if "/" not in name}
    values |= {name: tuple(values[name]) for name in ("site_names", "unsettled")}
    values |= {name: _under(name, arrays) for name in MAPPINGS}
    values |= {"influence": Influence(**values["influence"]), "look": values["look"] or None}
    return Finished(FitResult(**values), about[ABOUT])


def _under(folder: str, arrays: dict[str, Array]) -> dict[str, Array]:
    """The arrays whose names begin with ``folder/``, by the rest of them."""
    return {name.removeprefix(f"{folder}/"): kept for name, kept in arrays.items() if name.startswith(f"{folder}/")}
