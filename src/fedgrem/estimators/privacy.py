"""Differential privacy as an option of an estimator: the budgets of the sites, and the bounds of the columns."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from numbers import Real
from typing import Any

import numpy as np

from fedgrem.errors import InputError, InputTypeError
from fedgrem.fit.spec import read_ranges
from fedgrem.fit.verdicts import AT_CENTER, FALSE_ALARM, NOT_JUDGED, OWN_ANSWER, SIMILAR, SUSPECT
from fedgrem.kernels.privacy import LARGEST_EPSILON, mu_of
from fedgrem.types import Array, FitResult


@dataclass(frozen=True)
class Privacy:
    r"""What leaves a site is :math:`(\epsilon, \delta)`-differentially private for its rows; see docs/privacy.md.

    Whether one row, any one, is in a site's table changes the chances of anything that is found by a factor of at most
    :math:`e^\epsilon`, but for a chance of :math:`\delta`: of a whole fit, starts included.

    Parameters
    ----------
    epsilon : float, or a mapping of site names to floats, or None
        The budget of every site for this fit; None of a site that adds no noise, and for all in a fit over a network,
        where sites have budgets of their own.
    delta : float, default=1e-6
        Small beside one over the rows of a site.
    ranges : (low, high), or one such pair per column, or a mapping of column names to pairs
        Between what the study bounds every column, in its own units. They are agreed on and never read from the rows;
        cells beyond them are moved to them.

    Examples
    --------
    >>> from fedgrem import FederatedGaussianMixture, Privacy
    >>> from fedgrem.data.simulate import simulate
    >>> rows = simulate("gmm", n_sites=20, n_rows=500, seed=1).rows
    >>> private = Privacy(epsilon=4, delta=1e-6, ranges=(-10, 10))
    >>> model = FederatedGaussianMixture(5, covariance_type="identity", privacy=private, random_state=0).fit(rows)
    >>> model.means_.shape
    (20, 5, 10)
    """

    epsilon: Any = None
    delta: float = 1e-6
    ranges: Any = None

    def check(self) -> None:
        """Refuse numbers that are no budget, and bounds that are missing."""
        values = list(self.epsilon.values()) if isinstance(self.epsilon, Mapping) else [self.epsilon]
        for value in values:
            if value is not None:
                check_budget(value, self.delta)
        if self.ranges is None:
            raise InputError(
                "a private fit needs the bounds of every column, which the study agrees on and nobody reads from the "
                "rows: Privacy(..., ranges=(low, high)), one such pair per column, or {column: (low, high)}."
            )

    def as_plain(self) -> dict[str, Any]:
        """For JSON."""

        def plain(value: Any) -> Any:
            if isinstance(value, Mapping):
                return {str(name): plain(leaf) for name, leaf in value.items()}
            if value is None or isinstance(value, Real):
                return None if value is None else float(value)
            return [plain(leaf) for leaf in value]

        return {"epsilon": plain(self.epsilon), "delta": float(self.delta), "ranges": plain(self.ranges)}

    def ranges_of(self, names: Sequence[str]) -> tuple[tuple[float, float], ...]:
        """A pair per column."""
        given = self.ranges
        if isinstance(given, Mapping):
            missing = [name for name in names if name not in given]
            unknown = [str(name) for name in given if name not in names]
            if missing or unknown:
                wrong = [f"{what} {', '.join(some)}" for what, some in (("lack", missing), ("name", unknown)) if some]
                raise InputError(
                    f"the ranges {' and '.join(wrong)}; give (low, high) for each of the columns {', '.join(names)}."
                )
            return read_ranges([given[name] for name in names])
        pair = isinstance(given, Sequence) and len(given) == 2 and all(isinstance(end, Real) for end in given)
        found = read_ranges([given] * len(names) if pair else given)
        if len(found) != len(names):
            raise InputError(f"there are {len(found)} ranges and {len(names)} columns; give a pair for every column.")
        return found

    def budgets(self, names: Sequence[str]) -> dict[str, float]:
        r"""The :math:`\mu` of every site."""
        if self.epsilon is None:
            raise InputError(
                "epsilon is missing: give the budget of the sites, Privacy(epsilon=4, ...), or a mapping of site names "
                "to budgets. Only over a network sites have budgets of their own."
            )
        if not isinstance(self.epsilon, Mapping):
            return dict.fromkeys(names, mu_of(float(self.epsilon), self.delta))
        wrong = sorted(set(map(str, self.epsilon)) ^ set(names))
        if wrong:
            raise InputError(
                f"epsilon is given by site, and {', '.join(wrong)} is in one list only; name every site, with None for "
                "one that adds no noise."
            )
        given = {str(name): value for name, value in self.epsilon.items()}
        return {name: inf if given[name] is None else mu_of(float(given[name]), self.delta) for name in names}


def check_budget(epsilon: Any, delta: Any) -> None:
    """Refuse what is no budget."""
    for name, value in (("epsilon", epsilon), ("delta", delta)):
        if isinstance(value, bool) or not isinstance(value, Real):
            raise InputTypeError(f"{name} must be a number, got {value!r}.")
    if not 0.0 < epsilon <= LARGEST_EPSILON:
        raise InputError(
            f"epsilon must be above 0 and at most {LARGEST_EPSILON:g}, got {epsilon!r}; 1 is strict, 8 is lenient, and "
            "with 0 nothing could be said."
        )
    if not 0.0 < delta < 0.1:
        raise InputError(f"delta must be above 0 and small, such as 1e-6, got {delta!r}.")


def as_privacy(value: Any) -> Privacy | None:
    """The option of an estimator."""
    if value is None or isinstance(value, Privacy):
        return value
    raise InputTypeError(f"privacy must be None or Privacy(epsilon=..., delta=..., ranges=...), got {value!r}.")


def check_private(privacy: Privacy, model: Any) -> None:
    """Refuse a budget for a fit that cannot be private."""
    from fedgrem.estimators.selection import is_fixed

    privacy.check()
    if not is_fixed(model.n_components):
        raise InputError(
            "a private fit is of one number of components, for every further one would cost as much budget again; give "
            f"n_components as one number, got {model.n_components!r}."
        )
    if model.weights_init is not None or getattr(model, f"{model._theta_name}_init") is not None:
        raise InputError("a private fit finds its own starts; leave out weights_init and means_init, or privacy.")


def check_weights(weight: Array) -> None:
    """Refuse rows that would count for more than one."""
    if np.any(weight != 1.0):
        raise InputError("a private fit protects rows that count once; leave out sample_weight, or privacy.")


def private_verdicts(result: FitResult) -> Array:
    """One word per site, from its distance from the center beside what chance, noise and the others explain of that."""
    assert result.look is not None
    p_value, n_sites = result.look["p_value"], len(result.site_names)
    odd = p_value <= FALSE_ALARM
    own = result.influence.weight.min(axis=1) <= 0
    at_center = np.all(result.distance == 0.0, axis=1)
    words = np.where(odd, SUSPECT, np.where(own, OWN_ANSWER, np.where(at_center, AT_CENTER, SIMILAR)))
    return np.where(np.isnan(p_value) | (n_sites < 3), NOT_JUDGED, words)
