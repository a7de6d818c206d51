"""An estimator that finds its number of components: fits with several, and the one of the least criterion."""

import warnings
from collections.abc import Callable, Iterable
from functools import partial
from numbers import Integral
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from sklearn.base import clone

from fedgrem.algorithms.plan import Progress
from fedgrem.algorithms.selection import LARGEST, Tally, best_number, criteria, next_number
from fedgrem.data.federation import Federation
from fedgrem.errors import InputError
from fedgrem.estimators.parameters import check_count
from fedgrem.types import NumpyArray

if TYPE_CHECKING:
    from fedgrem.estimators.base import BaseFederatedMixture

Model = TypeVar("Model", bound="BaseFederatedMixture")
AUTO = "auto"
CANDIDATE: dict[str, Any] = {}
"""Options of the fits that are only compared, where they differ from those of the model."""
CANDIDATE_TOL, CANDIDATE_ROUNDS = 1e-4, 100
"""They need not settle as closely: a component too many creeps for hundreds of rounds and gains next to nothing."""


class SelectionWarning(UserWarning):
    """The number of components that was chosen may not be the best one."""


def check_components(value: Any) -> None:
    """A number of components, several to choose from, or "auto"."""
    if isinstance(value, str) and value != AUTO:
        raise InputError(f"n_components must be an integer >= 1, a range or list of them, or 'auto'; got {value!r}.")
    if isinstance(value, str):
        return
    if not isinstance(value, range | list | tuple | np.ndarray):
        check_count("n_components", value, least=1)
        return
    if len(value) == 0:
        raise InputError(f"n_components is empty ({value!r}); give at least one number, such as range(2, 13).")
    for number in value:
        check_count("every number in n_components", number, least=1)


def is_fixed(value: Any) -> bool:
    """Whether this is one number of components, with nothing to choose."""
    return isinstance(value, Integral)


def numbers(value: Any) -> list[int]:
    """The numbers to choose from, each once, the smallest first; none for "auto"."""
    return [] if isinstance(value, str) else sorted({int(n) for n in ([value] if is_fixed(value) else value)})


def fewest(value: Any) -> int:
    """The smallest number of components that may be fitted: every site must have as many rows."""
    return min(numbers(value), default=1)


class Search:
    """Which numbers of components to fit, and what has come of it; the fits are run by whoever asks."""

    def __init__(self, wanted: Any, criterion: str, limit: int | None = None) -> None:
        self._criterion, self.tallies = criterion, list[Tally]()
        self._listed = numbers(wanted)
        self._limit = LARGEST if limit is None else limit

    @property
    def curve(self) -> dict[str, NumpyArray]:
        """The curve so far."""
        return criteria(self.tallies)

    @property
    def best(self) -> int:
        """The number of the least criterion so far."""
        return best_number(self.curve, self._criterion)

    def next(self) -> int | None:
        """The next number to fit, or None if there is no more."""
        if not self._listed:
            return next_number(self.tallies, self._criterion, min(LARGEST, self._limit))
        left = [n for n in self._listed[len(self.tallies) :] if n <= self._limit]
        return left[0] if left else None

    def warn(self) -> None:
        """Say so where the choice is at an end of what was tried."""
        tried, best = self.curve["n_components"], self.best
        if len(tried) == 1:
            return
        told = ""
        if best == tried[-1]:
            told = f"largest tried; with more {self._criterion.upper()} may be better still"
        elif best == tried[0] > 1:
            told = f"smallest tried; with fewer {self._criterion.upper()} may be better still"
        if told:
            message = f"n_components: {best} is the {told}. Give a wider range."
            warnings.warn(message, SelectionWarning, stacklevel=5)


def candidate(model: Model, n_components: int) -> Model:
    """An unfitted copy with this number of components, for a fit that is only compared."""
    tol, rounds = max(model.tol, CANDIDATE_TOL), min(model.max_rounds, CANDIDATE_ROUNDS)
    return _copy(model, n_components=n_components, tol=tol, max_rounds=rounds, **CANDIDATE)


def _copy(model: Model, **changes: Any) -> Model:
    copy: Model = clone(model).set_params(**changes)
    return copy


def choose(
    model: Model,
    federation: Federation,
    fitted: Callable[[Model, Callable[[Progress], None]], Tally],
    on_progress: Callable[[Progress], None] | None,
) -> tuple[Model, dict[str, NumpyArray], int]:
    """A copy of the model with the best number of components, the curve, and the exchanges that it took.

    ``fitted`` fits a copy of the model and counts.
    """
    check_no_starts(model)
    model = _copy(model, random_state=model._seed())  # one seed for all fits, whatever it came from
    search = Search(model.n_components, model.criterion, _limit(model.n_components, federation))
    tell = on_progress or (lambda _: None)
    while (number := search.next()) is not None:
        search.tallies.append(fitted(candidate(model, number), partial(_tell, tell, number)))
    search.warn()
    exchanges = sum(one.exchanges for one in search.tallies)
    return _copy(model, n_components=search.best), search.curve, exchanges


def _tell(tell: Callable[[Progress], None], number: int, progress: Progress) -> None:
    """Pass on how a fit goes, with its number of components."""
    tell(progress._replace(stage=f"{number} component{'' if number == 1 else 's'}: {progress.stage}"))


def check_no_starts(model: "BaseFederatedMixture") -> None:
    """Starts are for one number of components."""
    given = [n for n in ("weights_init", f"{model._theta_name}_init") if getattr(model, n) is not None]
    if given:
        raise InputError(
            f"{' and '.join(given)} cannot go with n_components={model.n_components!r}: starts are for one number of "
            "components. Give the number, or leave the starts out."
        )


def _limit(wanted: Any, federation: Federation) -> int:
    """The most components that every site has rows for; a warning if more were asked for."""
    smallest = min(federation.sites, key=lambda site: int((site.row_weight > 0).sum()))
    limit = int((smallest.row_weight > 0).sum())
    beyond: Iterable[int] = [n for n in numbers(wanted) if n > limit]
    if beyond:
        warnings.warn(
            f"n_components: {_told(beyond)} not tried, because site {smallest.name!r} has only {limit} rows; leave it "
            "out to try them.",
            SelectionWarning,
            stacklevel=5,
        )
    return limit


def _told(values: Iterable[int]) -> str:
    listed = list(values)
    return f"{listed[0]} is" if len(listed) == 1 else f"{listed[0]} to {listed[-1]} are"
