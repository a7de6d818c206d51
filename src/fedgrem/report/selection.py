"""How a model came by its number of components, in plain values."""

from typing import Any

import numpy as np

from fedgrem.estimators.base import BaseFederatedMixture


def cell(value: float | None) -> str:
    """A number of the curve, as a table shows it."""
    if value is None:
        return "-"
    return f"{value:,.1f}" if isinstance(value, float) else f"{value:,}"


def selection_of(model: BaseFederatedMixture) -> dict[str, Any] | None:
    """The curve: lists of equal length, with the criterion and the number it chose; None where it was given.

    A value that is not finite, of a fit that no site could judge, becomes None.
    """
    curve = getattr(model, "selection_", None)
    if curve is None:
        return None
    plain = {
        name: [None if isinstance(v, float) and not np.isfinite(v) else v for v in column.tolist()]
        for name, column in curve.items()
    }
    return {"criterion": model.criterion, "chosen": int(model.n_components_)} | plain
