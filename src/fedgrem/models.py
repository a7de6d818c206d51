"""Saved models: a folder with ``model.json`` and ``arrays.npz``; no pickle, and versioned."""

import json
from numbers import Integral
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from fedgrem import __version__
from fedgrem.errors import InputError, InputTypeError, ModelFileError
from fedgrem.estimators import (
    FederatedGaussianMixture,
    FederatedMixture,
    FederatedRegressionMixture,
    FederatedTableMixture,
)
from fedgrem.estimators.base import BaseFederatedMixture
from fedgrem.estimators.privacy import Privacy
from fedgrem.fit.spec import as_plain, read_algorithm

FORMAT = 2
"""Raised when a saved model can no longer be read by older releases."""
CLASSES: dict[str, type[BaseFederatedMixture]] = {
    cls.__name__: cls
    for cls in (FederatedGaussianMixture, FederatedRegressionMixture, FederatedMixture, FederatedTableMixture)
}


def save_model(model: BaseFederatedMixture, folder: str | Path) -> Path:
    """Write a fitted model into a folder, which is made if need be; returns the folder.

    The functions of a :class:`FederatedMixture` are code and are not saved: give them again to :func:`load_model`.
    """
    if not isinstance(model, BaseFederatedMixture):
        raise InputTypeError(
            f"a {type(model).__name__} is not saved as a folder; keep what it found, such as center_, with numpy.savez."
        )
    path = Path(folder)
    if path.exists() and not path.is_dir():
        raise InputError(f"{path} is a file; give a folder to save the model in.")
    arrays: dict[str, Any] = {}
    values = {name: _shelve(f"fit/{name}", value, arrays) for name, value in model.fitted_values().items()}
    parameters = {}
    for name, value in model.get_params(deep=False).items():
        if name in ("weights_init", f"{model._theta_name}_init") and value is not None:
            value = np.asarray(value, dtype=float)  # lists will do in a fit
        if name == "algorithm" and not isinstance(value, str):
            parameters[name] = {"algorithm": as_plain(value)}
        elif isinstance(value, Privacy):
            parameters[name] = {"privacy": value.as_plain()}
        elif not callable(value):
            parameters[name] = _shelve(f"parameter/{name}", value, arrays)
    document = {
        "format": FORMAT,
        "fedgrem": __version__,
        "class": type(model).__name__,
        "parameters": parameters,
        "fit": values,
    }
    path.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(path / "arrays.npz", **arrays)
    (path / "model.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return path


def load_model(folder: str | Path, **functions: Any) -> BaseFederatedMixture:
    """Read a model saved by :func:`save_model`.

    Parameters
    ----------
    folder : where it was saved.
    functions : ``log_density=`` and ``draw_start=`` of a :class:`FederatedMixture`; nothing for the other models.
    """
    path = Path(folder)
    try:
        document = json.loads((path / "model.json").read_text(encoding="utf-8"))
        with (path / "arrays.npz").open("rb") as file, np.load(file, allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files}
    except FileNotFoundError as error:
        raise ModelFileError(
            f"{path} holds no complete model: {error.filename} is missing; give a folder written by "
            "`fedgrem fit --out`."
        ) from error
    except (OSError, ValueError, BadZipFile) as error:
        raise ModelFileError(f"the model in {path} cannot be read ({error}); save it again.") from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        found = document.get("format") if isinstance(document, dict) else None
        wrote = document.get("fedgrem", "unknown") if isinstance(document, dict) else "unknown"
        raise ModelFileError(
            f"the model in {path} has format {found!r}, written by fedgrem {wrote}; this fedgrem {__version__} reads "
            f"format {FORMAT}. Fit it again, or open it with the release that wrote it."
        )
    return _rebuild(path, document, arrays, functions)


def _rebuild(
    path: Path, document: dict[str, Any], arrays: dict[str, Any], functions: dict[str, Any]
) -> BaseFederatedMixture:
    try:
        cls = CLASSES[document["class"]]
        parameters = {name: _unshelve(value, arrays) for name, value in document["parameters"].items()}
        model = cls(**parameters, **functions)
        for name, value in document["fit"].items():
            setattr(model, name, _unshelve(value, arrays))
    except KeyError as error:
        raise ModelFileError(f"the model in {path} lacks {error}; it is damaged, save it again.") from error
    except (TypeError, InputError) as error:
        raise ModelFileError(f"the model in {path} does not fit this fedgrem {__version__}: {error}") from error
    return model


def _shelve(name: str, value: Any, arrays: dict[str, Any]) -> Any:
    """A JSON value; arrays go into the other file under ``name``, and leave their name behind."""
    if isinstance(value, np.ndarray) and value.dtype != object:
        arrays[name] = value
        return {"array": name}
    if isinstance(value, np.ndarray):
        return {"objects": [_plain(item) for item in value.tolist()]}
    if isinstance(value, dict):
        return {"mapping": {key: _shelve(f"{name}/{key}", item, arrays) for key, item in value.items()}}
    return _plain(value)


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple | range) and all(isinstance(item, Integral) for item in value):
        return [int(item) for item in value]  # numbers of components to choose from
    if isinstance(value, list | tuple) and all(isinstance(item, str) for item in value):
        return list(value)  # levels of a column
    return None  # a RandomState, say: it steered the fit, but is not part of its result


def _unshelve(value: Any, arrays: dict[str, Any]) -> Any:
    if not isinstance(value, dict):
        return value
    if "algorithm" in value:
        return read_algorithm(value["algorithm"])
    if "privacy" in value:
        return Privacy(**value["privacy"])
    if "array" in value:
        return arrays[value["array"]]
    if "objects" in value:
        restored = np.empty(len(value["objects"]), dtype=object)
        restored[:] = value["objects"]
        return restored
    return {key: _unshelve(item, arrays) for key, item in value["mapping"].items()}
