"""An estimator whose fit runs elsewhere: what to send out, and how to take over what comes back."""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from fedgrem.algorithms.plan import Progress
from fedgrem.algorithms.registry import ALONE
from fedgrem.data.federation import Federation
from fedgrem.engines.flare.recipe import FAMILIES, Recipe, check_over_network
from fedgrem.engines.flare.store import Finished
from fedgrem.errors import InputError
from fedgrem.estimators.verdicts import expose_verdicts
from fedgrem.kernels.precision import precision

if TYPE_CHECKING:
    from fedgrem.estimators.base import BaseFederatedMixture

Model = TypeVar("Model", bound="BaseFederatedMixture")
IN_PROCESS, SIMULATOR = "in-process", "flare-simulator"
ENGINES = (IN_PROCESS, SIMULATOR)


def recipe_for(model: "BaseFederatedMixture", columns: Sequence[str] | None = None, *, score: bool = False) -> Recipe:
    """The fit that an estimator would do, in plain words and numbers; refused where it holds code or rows.

    With ``score``, the sites are asked at the end how well it explains their rows.
    """
    model._check_parameters()
    family, units = model._family(), model._units_plan()
    name = next((name for name, kind in FAMILIES.items() if type(family) is kind), None)
    if name is None:
        raise InputError(
            f"{type(model).__name__} holds functions of your own, and no code travels to the sites; use Gaussian "
            "components or regressions, or the in-process engine."
        )
    if getattr(model, f"{model._theta_name}_init") is not None or model.weights_init is not None:
        raise InputError("starts cannot be given to a fit over a network yet; leave them out, or fit in process.")
    recipe = Recipe(
        family=name,
        algorithm=model.algorithm,
        n_components=int(model.n_components),
        family_options=asdict(family),  # type: ignore[call-overload]  # both families of FAMILIES are dataclasses
        algorithm_options=model._options(),
        start={
            "n_init": int(model.n_init),
            "alignment": model.alignment,
            "exchanges": 0 if model.algorithm in ALONE else 1,
        },
        penalty=model._first_penalty(),
        penalty_decay=float(model.penalty_decay),
        **_plain_path(model._path()),
        max_rounds=int(model.max_rounds),
        tol=float(model.tol),
        tol_errors=model._tol_errors(),
        seed=model._seed(),
        standardize=units.standardize,
        move=units.move,
        intercept=units.intercept,
        missing=model._missing_allowed(),
        score=score,
        dtype=model.dtype,
        columns=None if columns is None else tuple(columns),
        standard_errors=model._errors_switch,
    )
    check_over_network(recipe)
    return recipe


def _plain_path(path: dict[str, Any]) -> dict[str, Any]:
    """How a penalty is chosen, in a recipe's words."""
    if not path:
        return {}
    return {"choose": "given_penalty" not in path, "compare": True, "fallback": path["fallback"]}


def fit_elsewhere(
    model: "BaseFederatedMixture",
    federation: Federation,
    engine: str,
    on_progress: Callable[[Progress], None] | None,
    *,
    score: bool = False,
) -> Finished:
    """Fit on the engine of this name."""
    if engine != SIMULATOR:
        raise InputError(f"engine must be one of {', '.join(map(repr, ENGINES))}; got {engine!r}.")
    from fedgrem.engines.flare.simulator import fit_in_simulator

    return fit_in_simulator(recipe_for(model, score=score), federation, on_progress)


def adopt(model: Model, finished: Finished, columns: Sequence[str] | None) -> Model:
    """Take over a fit that ran elsewhere, as if it had run here."""
    result = finished.result
    n_columns = len(columns) if columns is not None else _n_columns(finished, model)
    model._forget()
    model.site_names_ = np.array(result.site_names)
    model.n_features_in_ = n_columns
    if columns is not None:
        model.feature_names_in_ = np.array(columns, dtype=object)
    with precision(model.dtype):
        model._expose(result)
        model._expose_theta(result, finished.units)
        expose_verdicts(model, result, finished.units)
        model._expose_errors(result, finished.units)
    model._warn(result)
    return model


def _n_columns(finished: Finished, model: "BaseFederatedMixture") -> int:
    return int(finished.result.theta.shape[-1]) - int(model._units_plan().intercept)
