"""What the center keeps on disk: a checkpoint after every round, and the result. No pickle; replaced in one step."""

import io
import json
import os
from pathlib import Path
from typing import Any, NamedTuple
from zipfile import BadZipFile

import jax
import jax.numpy as jnp
import numpy as np

from fedgrem.algorithms.path import Choice
from fedgrem.algorithms.rounds import LoopState, Saved
from fedgrem.algorithms.search import Starts
from fedgrem.data.federation import Units
from fedgrem.engines.flare.declaration import Census
from fedgrem.engines.flare.recipe import Recipe
from fedgrem.engines.flare.roster import Roster, Rules
from fedgrem.engines.flare.wire import named_leaves
from fedgrem.errors import ModelFileError
from fedgrem.kernels.precision import precision
from fedgrem.types import FitResult, Array, Params, RoundRecord

CHECKPOINT, RESULT = "checkpoint.npz", "result.npz"
ABOUT = "about"


class Checkpoint(NamedTuple):
    """All that a run needs to go on."""

    roster: Roster
    exchange: int
    saved: Saved | None
    """None before the first round is finished: starts are searched for again."""


class Finished(NamedTuple):
    """A fit that ran over a network."""

    result: FitResult
    units: Units | None
    about: dict[str, Any]
    """``events``, ``out``, ``away``, ``seconds_per_round`` and other plain values."""


def write_checkpoint(folder: Path, recipe: Recipe, checkpoint: Checkpoint) -> None:
    """Keep a checkpoint: written under another name, then renamed, so that there is always a whole one."""
    roster, saved = checkpoint.roster, checkpoint.saved
    about: dict[str, Any] = {
        "recipe": recipe.as_plain(),
        "exchange": checkpoint.exchange,
        "names": roster.names,
        "rules": roster.rules._asdict(),
        "strikes": roster.strikes,
        "out": roster.out,
        "away": sorted(roster.away),
        "events": roster.events,
        "census": sorted(roster.census),
        "start_cost": None if saved is None else saved.starts.cost,
    }
    arrays = {
        f"census/{k}/{name}": leaf
        for k, site in enumerate(about["census"])
        for name, leaf in named_leaves(roster.census[site])
    }
    if saved is not None:
        arrays |= {f"starts/params/{name}": leaf for name, leaf in named_leaves(saved.starts.params)}
        arrays |= {"starts/n_rows": saved.starts.n_rows, "starts/choice": saved.starts.choice}
        arrays |= {f"state/{name}": leaf for name, leaf in named_leaves(saved.state)}
        arrays |= {f"records/{name}": leaf for name, leaf in named_leaves(saved.records)}
        arrays |= {} if saved.choice is None else {f"choice/{n}": leaf for n, leaf in saved.choice._asdict().items()}
    _write(folder / CHECKPOINT, about, arrays)


def read_checkpoint(folder: Path, recipe: Recipe) -> Checkpoint | None:
    """The last checkpoint of this recipe, or None if there is none."""
    if not (folder / CHECKPOINT).exists():
        return None
    about, arrays = _read(folder / CHECKPOINT)
    if about["recipe"] != json.loads(json.dumps(recipe.as_plain())):
        raise ModelFileError(f"{folder / CHECKPOINT} is of another fit; resume that one, or begin a new one.")
    census = {
        site: Census(*(arrays[f"census/{k}/{name}"] for name in Census._fields))
        for k, site in enumerate(about["census"])
    }
    roster = Roster(
        about["names"],
        Rules(**about["rules"]),
        census,
        about["strikes"],
        about["out"],
        set(about["away"]),
        about["events"],
    )
    with precision(recipe.dtype):
        return Checkpoint(roster, about["exchange"], _saved(recipe, about, arrays))


def _saved(recipe: Recipe, about: dict[str, Any], arrays: dict[str, Array]) -> Saved | None:
    if about["start_cost"] is None:
        return None
    spread = arrays.get("starts/params/spread")
    params = Params(*(jnp.asarray(arrays[f"starts/params/{name}"]) for name in ("weights", "theta")))
    params = params if spread is None else params._replace(spread=jnp.asarray(spread))
    n_rows = jnp.asarray(arrays["starts/n_rows"])
    central = jax.eval_shape(recipe.build_algorithm().central_start, params, n_rows)
    like = LoopState(central, n_rows, n_rows, n_rows)
    leaves = [jnp.asarray(arrays[f"state/{name}"]) for name, _ in named_leaves(like)]
    state: LoopState = jax.tree.unflatten(jax.tree.structure(like), leaves)
    kept: list[Any] = [arrays[f"records/{name}"] for name in RoundRecord._fields]
    starts = Starts(params, n_rows, arrays["starts/choice"], about["start_cost"])
    return Saved(starts, state, RoundRecord(*kept), _choice(_under("choice", arrays)))


def _choice(kept: dict[str, Any]) -> Choice | None:
    return Choice(**{name: value if value.ndim else value.item() for name, value in kept.items()}) if kept else None


def write_result(folder: Path, finished: Finished) -> None:
    """Keep the result of a fit."""
    result, arrays, plain = finished.result, {}, {}
    for name, value in result._asdict().items():
        if isinstance(value, np.ndarray):
            arrays[f"result/{name}"] = value
        elif isinstance(value, dict) and name in ("history", "path", "look"):
            arrays |= {f"{name}/{key}": np.asarray(kept) for key, kept in value.items()}
        else:
            plain[name] = value
    if finished.units is not None:
        arrays |= {f"units/{name}": leaf for name, leaf in finished.units._asdict().items()}
    _write(folder / RESULT, {"result": plain, "about": finished.about}, arrays)


def read_result(folder: Path) -> Finished:
    """The result of a fit."""
    about, arrays = _read(folder / RESULT)
    plain: dict[str, Any] = about["result"]
    values = _under("result", arrays)
    plain |= {"site_names": tuple(plain["site_names"]), "unsettled": tuple(plain["unsettled"])}
    plain |= {
        "history": _under("history", arrays),
        "path": _under("path", arrays),
        "look": _under("look", arrays) or None,
    }
    units = Units(arrays["units/location"], arrays["units/scale"]) if "units/location" in arrays else None
    return Finished(FitResult(**plain | values), units, about["about"])


def _under(folder: str, arrays: dict[str, Array]) -> dict[str, Array]:
    """The arrays whose names begin with ``folder/``, by the rest of them."""
    return {name.removeprefix(f"{folder}/"): kept for name, kept in arrays.items() if name.startswith(f"{folder}/")}


def _write(path: Path, about: dict[str, Any], arrays: dict[str, Any]) -> None:
    buffer = io.BytesIO()
    text = np.frombuffer(json.dumps(about).encode(), dtype=np.uint8)
    named = {ABOUT: text} | {name: np.asarray(leaf) for name, leaf in arrays.items()}
    np.savez(buffer, **named)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    with temporary.open("wb") as file:
        file.write(buffer.getbuffer())
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Array]]:
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files}
        return json.loads(arrays.pop(ABOUT).tobytes()), arrays
    except FileNotFoundError as error:
        raise ModelFileError(f"{path} is missing; is the fit finished?") from error
    except (OSError, ValueError, KeyError, BadZipFile) as error:
        raise ModelFileError(f"{path} cannot be read ({error}).") from error
