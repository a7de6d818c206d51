"""The first phase: the sites say how large they are and summarize their columns; common units follow from that."""

import numpy as np

from fedgrem.data.units import Census
from fedgrem.errors import InputError
from fedgrem.fit.conversation import Agreed, Ask, Phase, Progress
from fedgrem.fit.spec import FitSpec


def common_units(spec: FitSpec, names: tuple[str, ...]) -> Phase[tuple[Agreed, Census]]:
    """Ask every site for its census, and agree on the units of the fit; also returns the census."""
    told = Progress("census", 0, spec.max_rounds, float("nan"))
    replies = yield Ask("census", (), told)
    census: Census = replies.mail
    check_rows(spec, names, census)
    check_columns(spec, census)
    units = spec.units.units(census.mean, census.deviation)
    return Agreed(units, bool(np.any(census.gaps))), census


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
    for j in range(census.mean.shape[1] - spec.family.has_target):
        name = spec.columns[j] if spec.columns is not None else f"number {j}"
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
