"""An estimator that finds its number of components: fits with several, and the one of the least criterion."""

import warnings
from collections.abc import Callable, Mapping
from functools import partial
from numbers import Integral
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from sklearn.base import clone

from fedgrem.data.federation import Federation
from fedgrem.errors import InputError
from fedgrem.estimators.parameters import check_count
from fedgrem.fit.conversation import Progress
from fedgrem.fit.selection import LARGEST, Tally, best_number, criteria, next_number
from fedgrem.types import Array, Params

if TYPE_CHECKING:
    from fedgrem.estimators.base import BaseFederatedMixture

Model = TypeVar("Model", bound="BaseFederatedMixture")
AUTO = "auto"
CANDIDATE_TOL, CANDIDATE_ROUNDS = 1e-4, 25
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


def numbers_of(value: Any) -> list[int]:
    """The numbers to choose from, each once, the smallest first; none for "auto"."""
    return [] if isinstance(value, str) else sorted({int(n) for n in ([value] if is_fixed(value) else value)})


class Search:
    """Which numbers of components to fit, and what has come of it; the fits are run by the caller.

    Parameters
    ----------
    wanted : several numbers, or "auto".
    criterion : "bic" or "icl".
    rows : of every site: none is tried that exceeds the rows of the largest site.
    """

    def __init__(self, wanted: Any, criterion: str, rows: Mapping[str, float]) -> None:
        self.tallies: list[Tally] = []
        self._criterion = criterion
        self._largest, self._limit = max(rows.items(), key=lambda item: item[1], default=("", np.inf))
        listed = numbers_of(wanted)
        self._auto = not listed
        self._left, self._beyond = ([n for n in listed if (n > self._limit) is beyond] for beyond in (False, True))

    @property
    def curve(self) -> dict[str, Array]:
        """The curve so far."""
        return criteria(self.tallies, self._criterion)

    @property
    def best(self) -> int:
        """The number to choose so far."""
        return best_number(self.curve, self._criterion)

    @property
    def most(self) -> int:
        """Components that there may be in all with those that only some sites have."""
        return self.best + LARGEST

    def smaller(self, number: int) -> Params | None:
        """The center of the largest fit so far with no more components than this, for a fit to begin at."""
        below = [one for one in self.tallies if one.n_components <= number]
        return max(below, key=lambda one: one.n_components).center if below else None

    @property
    def exchanges(self) -> int:
        """Messages to every site so far."""
        return sum(one.exchanges for one in self.tallies)

    def next(self) -> int | None:
        """The next number to fit, or None if there is no more."""
        if self._auto:
            return next_number(self.tallies, self._criterion, int(min(LARGEST, self._limit)))
        left = self._left[len(self.tallies) :]
        return left[0] if left else None

    def warn(self, stacklevel: int = 2) -> None:
        """Say so where the choice is at an end of what was tried, or numbers could not be tried."""
        tried, best, told = self.curve["n_components"].tolist(), self.best, []
        if self._beyond or (self._auto and best == tried[-1] == self._limit):
            listed = ", ".join(map(str, self._beyond[:5])) + (", ..." if len(self._beyond) > 5 else "")
            told.append(
                f"{listed or 'more than that'} not tried, because the largest site, {self._largest!r}, has only "
                f"{self._limit:.6g} row(s)"
            )
        if best == tried[-1] and (self._auto or len(tried) > 1):
            told.append(f"the choice, {best}, is the largest tried; more may be better still, so give a wider range")
        elif best == tried[0] > 1 and len(tried) > 1:
            told.append(f"the choice, {best}, is the smallest tried; fewer may be better still, so give a wider range")
        if told:
            warnings.warn(f"n_components: {'; and '.join(told)}.", SelectionWarning, stacklevel=stacklevel + 1)


def candidate(model: Model, n_components: int) -> Model:
    """An unfitted copy with this number of components, for a fit that is only compared."""
    tol, rounds = max(model.tol, CANDIDATE_TOL), min(model.max_rounds, CANDIDATE_ROUNDS)
    return copy_with(model, n_components=n_components, tol=tol, max_rounds=rounds)


def copy_with(model: Model, **changes: Any) -> Model:
    """An unfitted copy with some options changed."""
    copy: Model = clone(model).set_params(**changes)
    return copy


def choose(
    model: Model,
    federation: Federation,
    fitted: Callable[[Model, Params | None, Callable[[Progress], None]], Tally],
    on_progress: Callable[[Progress], None] | None,
) -> tuple[Model, Search]:
    """A copy of the model with the best number of components, and how it was found.

    ``fitted`` fits a copy of the model, also from the center of a smaller fit, and counts.
    """
    check_no_starts(model)
    model = copy_with(model, random_state=model._seed())  # one seed for all fits, whatever it came from
    rows = {site.name: int((site.row_weight > 0).sum()) for site in federation.sites}
    search = Search(model.n_components, model.criterion, rows)
    tell = on_progress or (lambda _: None)
    while (number := search.next()) is not None:
        one = candidate(model, number)
        search.tallies.append(fitted(one, search.smaller(number), partial(_tell, tell, number)))
    search.warn(stacklevel=3)
    return copy_with(model, n_components=search.best), search


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
