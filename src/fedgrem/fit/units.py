"""The first phase: the sites say how large they are and summarize their columns; common units follow from that."""

import numpy as np

from fedgrem.data.units import Census
from fedgrem.errors import InputError
from fedgrem.fit.conversation import Agreed, Ask, Phase, Progress
from fedgrem.fit.spec import FitSpec
from fedgrem.types import Array, FitResult


def common_units(spec: FitSpec, names: tuple[str, ...]) -> Phase[tuple[Agreed, Census]]:
    """Ask every site for its census, and agree on the units of the fit; also returns what they said, ``(K, ...)``."""
    told = Progress("census", 0, spec.max_rounds, float("nan"))
    replies = yield Ask("census", (), told)
    census = spec.units.of_kept(replies.mail, spec.family.has_target)
    check_rows(spec, names, census)
    check_columns(spec, census)
    units = spec.units.units(census.mean, census.deviation)
    gaps = bool(np.any(census.gaps) or np.any(spec.units.constant(census.deviation)))
    return Agreed(units, gaps), census


def with_census(result: FitResult, census: Census, constant: Array) -> FitResult:
    """A result with what the sites said of their columns; ``constant`` (K, p) are those that count as missing."""
    return result._replace(
        seen=np.where(constant, 0.0, census.seen),
        column_mean=census.mean,
        column_deviation=census.deviation,
        site_gaps=census.gaps,
    )


def check_rows(spec: FitSpec, names: tuple[str, ...], census: Census) -> None:
    """Refuse more components than the largest site has rows: somebody must be able to tell them apart."""
    most = int(np.argmax(census.n_rows))
    if census.n_rows[most] < spec.n_components:
        raise InputError(
            f"the largest site, {names[most]!r}, has {census.n_rows[most]:g} row(s), fewer than the "
            f"{spec.n_components} components to fit; use fewer components, or merge sites that are alike."
        )


def check_columns(spec: FitSpec, census: Census) -> None:
    """Refuse a column that says nothing at any site, from what the sites say of it."""
    names = None if spec.columns is None else spec.fitted_columns(spec.columns)
    for j in range(census.mean.shape[1] - spec.family.has_target):
        place = j if spec.units.kept is None else spec.units.kept[j]
        name = names[place] if names is not None else f"number {place}"
        means = census.mean[:, j][~np.isnan(census.mean[:, j])]
        flat = not (census.deviation[:, j] > 0).any()
        if flat and spec.units.within:
            raise InputError(
                f"column {name!r} does not vary within any site, and the sites' own intercepts take what it explains; "
                "drop it, or use intercept='component'."
            )
        if not len(means):
            raise InputError(f"column {name!r} is missing in every row of every site; drop it.")
        if flat and np.all(means == means[0]) and (means[0] == 0 or not spec.family.has_target):
            raise InputError(
                f"column {name!r} is constant ({means[0]:g}) at every site and carries no information; drop it."
            )
