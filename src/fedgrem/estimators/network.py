"""An estimator whose fit runs elsewhere: what to send out, and how to take over what comes back."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from fedgrem.data.columns import Column, columns_from_plain
from fedgrem.data.dummies import levels_from
from fedgrem.data.federation import Federation
from fedgrem.engines.decentralized import Decentralized
from fedgrem.engines.remote.declaration import UNNAMED, check_over_network
from fedgrem.engines.remote.result import Finished
from fedgrem.errors import InputError
from fedgrem.estimators.selection import is_fixed
from fedgrem.fit.conversation import Progress
from fedgrem.fit.spec import FitSpec
from fedgrem.types import FitResult

if TYPE_CHECKING:
    from fedgrem.estimators.base import BaseFederatedMixture
    from fedgrem.estimators.selection import Search

Model = TypeVar("Model", bound="BaseFederatedMixture")
IN_PROCESS, SIMULATOR = "in-process", "flare-simulator"
ENGINES = (IN_PROCESS, SIMULATOR)


def spec_for(
    model: "BaseFederatedMixture",
    columns: Sequence[str] | None = None,
    *,
    candidate: bool = False,
    words: tuple[Column, ...] = (),
) -> FitSpec:
    """The fit that an estimator would do, in plain words and numbers; refused where it holds code or rows.

    A ``candidate`` is only compared with fits of other numbers of components. Of covariates that are ``words`` the
    levels are agreed on here, because no site shows them.
    """
    model._check_parameters()
    if model.privacy is not None and columns is None:
        raise InputError(UNNAMED)
    spec = model._spec(candidate=candidate, columns=None if columns is None else tuple(columns))
    spec = replace(spec, words=words)
    check_over_network(spec)
    if getattr(model, f"{model._theta_name}_init") is not None or model.weights_init is not None:
        raise InputError("starts cannot be given to a fit over a network yet; leave them out, or fit in process.")
    return spec


def check_engine(model: "BaseFederatedMixture", engine: Any) -> None:
    """Refuse an engine that is none, and one that does not go with what the model is to do."""
    if isinstance(engine, str) and engine in ENGINES:
        return
    if not isinstance(engine, Decentralized):
        raise InputError(f"engine must be one of {', '.join(map(repr, ENGINES))} or Decentralized(); got {engine!r}.")
    if engine.over not in ENGINES:
        raise InputError(f"over={engine.over!r}, expected one of {', '.join(map(repr, ENGINES))}.")
    if model.secure_sums:
        raise InputError(
            "secure_sums hides sites from a center, and without a server there is none; leave out one of the two."
        )
    if not is_fixed(model.n_components):
        raise InputError(
            f"without a server one number of components is fitted, got n_components={model.n_components!r}; give a "
            "number."
        )


def fit_without_a_server(
    spec: FitSpec, federation: Federation, engine: Decentralized, on_progress: Callable[[Progress], None] | None
) -> FitResult:
    """Fit among neighbours, in this process or in one for every site."""
    if engine.over == IN_PROCESS:
        return engine.fit(spec, federation, on_progress)
    from fedgrem.engines.flare.neighbours import fit_among_neighbours

    return fit_among_neighbours(spec, federation, engine.links(federation.names, spec.seed), engine.precision)


def fit_in_simulator(
    spec: FitSpec, federation: Federation, on_progress: Callable[[Progress], None] | None
) -> FitResult:
    """Fit on NVFlare's simulator, every site in a process of its own."""
    check_over_network(spec)
    from fedgrem.engines.flare import simulator

    return simulator.fit_in_simulator(spec, federation, on_progress).result


def adopt(model: Model, finished: Finished, columns: Sequence[str] | None, search: "Search | None" = None) -> Model:
    """Take over a fit that ran elsewhere, as if it had run here, and how its number of components was found."""
    result: Any = finished.result
    if words := finished.about.get("words"):
        regression: Any = model
        regression._words = levels_from(columns_from_plain(words))
    if columns is None:
        model.n_features_in_ = int(result.theta.shape[-1]) - int(model._units_plan().intercept)
    else:
        model.n_features_in_, model.feature_names_in_ = len(columns), np.array(columns, dtype=object)
    model._take_over(result, np.array(result.site_names), search)
    return model
