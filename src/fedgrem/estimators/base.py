"""What all federated mixtures share of fitting: store, make a FitSpec, run it, expose what came of it."""

import copy
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import validate_data

from fedgrem.algorithms.base import Algorithm, middle_weights, vanished
from fedgrem.algorithms.holders import FEWEST, weights_of_holders
from fedgrem.algorithms.registry import as_algorithm
from fedgrem.data.federation import Federation, Units
from fedgrem.data.tables import Table, check_federation, check_target, gather, gather_values
from fedgrem.data.units import take_census
from fedgrem.engines.decentralized import Decentralized
from fedgrem.engines.inprocess import InProcess
from fedgrem.errors import InputError, InputTypeError, ShapeError
from fedgrem.estimators.fitted import FittedMixture
from fedgrem.estimators.network import IN_PROCESS, SIMULATOR, check_engine, fit_in_simulator, fit_without_a_server
from fedgrem.estimators.newcomer import fit_site
from fedgrem.estimators.notes import ColumnWarning, column_notes
from fedgrem.estimators.parameters import (
    check_bool,
    check_choice,
    check_count,
    check_number,
    check_start,
    check_switch,
    seed_of,
)
from fedgrem.estimators.privacy import as_privacy, check_private, check_weights
from fedgrem.estimators.progress import teller
from fedgrem.estimators.selection import Search, check_components, choose, is_fixed
from fedgrem.estimators.verdicts import expose_verdicts, log_volume
from fedgrem.families.bounded import stand_out
from fedgrem.fit.columns import run_sparse
from fedgrem.fit.conversation import Progress
from fedgrem.fit.fit import run
from fedgrem.fit.private import LOST_IN_NOISE
from fedgrem.fit.selection import CRITERIA, Tally, tally
from fedgrem.fit.spec import PAPERS_PENALTY, FitSpec, StartPlan, as_plain, read_algorithm
from fedgrem.types import Array, FitResult, Params

NUMERIC: dict[str, Any] = {"dtype": np.float64, "ensure_all_finite": False, "ensure_min_samples": 2}
"""What scikit-learn checks of the rows; that they are finite is checked site by site, with better words."""
OF_INPUT = ("n_features_in_", "feature_names_in_")
"""What scikit-learn's check of the rows writes, before a fit is known to succeed."""
ALIGNMENTS = ("assignment", "stepwise", "exhaustive")


def some_stand_out(result: FitResult, *, has_target: bool) -> bool:
    """Whether any site holds down more of its rows than clean ones would have it."""
    assert result.held_down is not None
    return bool(stand_out(result.held_down, result.n_rows, 1 if has_target else result.theta.shape[-1]).any())


@dataclass(kw_only=True, repr=False, eq=False)
class BaseFederatedMixture(FittedMixture):
    """One mixture per site, shrunk to a common center. Subclasses say what a component is.

    Options are fields, kept as they came, as scikit-learn asks; ``fit`` checks them.
    """

    penalty: float | str = "auto"
    algorithm: Any = "fedgrem"
    criterion: str = "bic"
    fallback: str | None = "auto"
    standard_errors: bool | str = "auto"
    max_rounds: int = 1000
    tol: float = 1e-6
    n_init: int = 10
    weights_init: Any = None
    align: bool | str = True
    verbose: int = 0
    random_state: Any = None

    def set_params(self, **params: Any) -> Self:
        """Set options; ``algorithm__step_size=0.5`` sets one of the algorithm's, whether it is a name or an object."""
        nested = {
            name.removeprefix("algorithm__"): params.pop(name)
            for name in list(params)
            if name.startswith("algorithm__")
        }
        super().set_params(**params)
        if nested:
            algorithm: Any = as_algorithm(self.algorithm)
            known = algorithm.get_params()
            unknown = [name for name in nested if name not in known]
            if unknown:
                listed = ", ".join(known) or "none"
                raise InputError(
                    f"{algorithm.traits.title} has no option {', '.join(unknown)}; its options are {listed}."
                )
            self.algorithm = replace(algorithm, **nested)
        return self

    # -- fitting

    def fit(
        self,
        X: Any,
        y: Any = None,
        *,
        sites: Any = None,
        sample_weight: Any = None,
        on_progress: Callable[[Progress], None] | None = None,
        engine: str | Decentralized = IN_PROCESS,
    ) -> Self:
        """Fit one mixture per site, shrunk to a common center; returns ``self``.

        Parameters
        ----------
        X : (N, p) array or data frame; or a dict or list of them, one per site.
        y : (N,) responses of a regression; or a dict or list of them, as X. Ignored where there is no response.
        sites : (N,) site labels, or the name of the site column of a frame; None is one site.
        sample_weight : (N,) weights >= 0; a row of weight 2 counts as two rows.
        on_progress : called with a :class:`~fedgrem.fit.conversation.Progress` before every exchange.
        engine : "in-process"; "flare-simulator": every site in a process of its own, on NVFlare; or
            ``Decentralized("ring")``: no server, neighbours in a graph only, see docs/decentralized.md.
        """
        self._check_parameters()
        check_engine(self, engine)
        table, federation = self._validate_federation(X, y, sites, sample_weight)
        with teller(on_progress, self.verbose) as tell:
            chosen, search = self, None
            if not is_fixed(self.n_components):

                def fitted(one: Self, smaller: Params | None, tell: Callable[[Progress], None]) -> Tally:
                    return one._tally(one._run(federation, engine, tell, candidate=True, smaller=smaller))

                chosen, search = choose(self, federation, fitted, tell)
            smaller = None if search is None else search.smaller(search.best)
            some = 0 if search is None else search.most
            result = chosen._run(federation, engine, tell, smaller=smaller, some=some)
            if self.robust_rows == "auto" and not some_stand_out(result, has_target=self._has_target):
                plain = copy.copy(chosen)
                plain.robust_rows = False
                result = plain._run(federation, engine, tell, smaller=smaller, some=some)
        self._take_over(result, table.labels, search)
        return self

    def _check_family(self, federation: Federation) -> None:
        """Anything that is only known, or can only be checked, once the rows are there."""

    def _take_over(self, result: FitResult, labels: Array, search: Search | None) -> None:
        """Expose all that a fit found."""
        self._forget()
        self.site_names_ = labels
        self._expose(result)
        self._expose_theta(result)
        self.selection_: dict[str, Array] = {} if search is None else search.curve
        if search is not None:
            self.cost_["selection_exchanges"] = search.exchanges
        expose_verdicts(self, result)
        self._expose_errors(result)
        self._note(result)
        self._warn(result)

    def _forget(self) -> None:
        """Drop what an earlier fit found."""
        for name in self._fitted_names():
            if name not in OF_INPUT:
                delattr(self, name)

    def _run(
        self,
        federation: Federation,
        engine: str | Decentralized,
        on_progress: Callable[[Progress], None] | None,
        *,
        candidate: bool = False,
        smaller: Params | None = None,
        some: int = 0,
    ) -> FitResult:
        """One fit of a number of components; a candidate is only compared with others."""
        self._check_family(federation)
        spec = self._spec(candidate=candidate)
        spec = replace(spec, score=spec.score or smaller is not None, smaller=smaller, some=some)
        if spec.algorithm.picks_columns:
            if engine != IN_PROCESS:
                raise InputError("center='sparse' is for fits in process as yet; leave engine out.")
            return run_sparse(spec, lambda one: InProcess(federation, one), on_progress)
        if engine != IN_PROCESS and spec.ranges is not None:
            raise InputError("a private fit runs in process, or over a network of sites; leave engine out.")
        if engine == SIMULATOR:
            return fit_in_simulator(spec, federation, on_progress)
        spec = replace(spec, given=self._given(federation))
        if not isinstance(engine, str):
            return fit_without_a_server(spec, federation, engine, on_progress)
        privacy = as_privacy(self.privacy)
        here = InProcess(federation, spec, budgets=None if privacy is None else privacy.budgets(federation.names))
        result = run(spec, here, on_progress)
        return here.revealed(result) if spec.secure_sums else result

    def _spec(self, *, candidate: bool = False, columns: tuple[str, ...] | None = None) -> FitSpec:
        """The fit in plain words and numbers."""
        auto, privacy = self.penalty == "auto", as_privacy(self.privacy)
        family: Any = self._family()
        if self.robust_rows is not False:
            family = replace(family, robust_rows=True)
        align = "assignment" if self.align is True else self.align
        return FitSpec(
            family=family,
            algorithm=self._algorithm(),
            n_components=int(self.n_components),
            penalty=None if auto else float(self.penalty),
            fallback=auto if self.fallback == "auto" else self.fallback == "local",
            start=StartPlan(n_init=int(self.n_init), alignment="none" if align is False else align),  # type: ignore[arg-type]
            max_rounds=int(self.max_rounds),
            tol=float(self.tol),
            seed=self._seed(),
            units=self._units_plan(),
            missing=self._missing_allowed(),
            score=candidate,
            candidate=candidate,
            look=not candidate,
            standard_errors=False if candidate else self._errors_switch,
            columns=columns,
            secure_sums=bool(self.secure_sums),
            ranges=None if privacy is None else privacy.ranges_of(columns or self._column_names()),
        )

    def _algorithm(self) -> Algorithm:
        """The algorithm; one that is only named takes the paper's single steps where all rounds are to be played."""
        found: Any = as_algorithm(self.algorithm)
        if self.tol == 0 and isinstance(self.algorithm, str) and "local_steps" in found.get_params():
            found = replace(found, local_steps=1, memory=0)
        algorithm: Algorithm = found
        return algorithm

    def _given(self, federation: Federation) -> Params | None:
        """Starts that the user gave, in the units of the fit."""
        n_parameters = self._start_size(federation.n_features)
        given = check_start(
            self.weights_init,
            getattr(self, f"{self._theta_name}_init"),
            ("weights_init", f"{self._theta_name}_init"),
            (len(federation.sites), int(self.n_components), n_parameters),
        )
        if given is None:
            return None
        census = [take_census(site) for site in federation.sites]
        units = self._units_plan().units(np.stack([c.mean for c in census]), np.stack([c.deviation for c in census]))
        return Params(given[0], given[1] if units is None else self._theta_in_units(given[1], units))

    def _start_size(self, n_features: int) -> int:
        """Numbers of a component in a start as the user gives it."""
        return self._family().n_parameters(n_features)

    def _theta_in_units(self, theta: Array, units: Units) -> Array:
        """A start ``(K, R, q)`` as the user gave it, in the units of the fit."""
        return theta

    def _tally(self, result: FitResult) -> Tally:
        """What a criterion needs to know of a fit that was scored."""
        pooled = as_algorithm(self.algorithm).traits.pools_rows
        return tally(result, pooled=pooled, log_volume=log_volume(self, result))

    def _check_parameters(self) -> None:
        check_components(self.n_components)
        check_choice("criterion", self.criterion, CRITERIA)
        check_count("max_rounds", self.max_rounds, least=1)
        check_count("n_init", self.n_init, least=1)
        if self.penalty != "auto":
            check_number("penalty", self.penalty, least=0.0)
        if self.fallback is not None:
            check_choice("fallback", self.fallback, ("auto", "local"))
        check_switch("standard_errors", self.standard_errors)
        check_number("tol", self.tol, least=0.0)
        if not isinstance(self.align, bool | np.bool_):
            check_choice("align", self.align, ALIGNMENTS)
        if not isinstance(self.verbose, int | np.integer):
            raise InputTypeError(f"verbose must be 0 or 1, got {self.verbose!r}.")
        check_bool("secure_sums", self.secure_sums)
        if self.secure_sums and not is_fixed(self.n_components):
            raise InputError(
                f"secure sums fit one number of components, got n_components={self.n_components!r}; give a number."
            )
        privacy = as_privacy(self.privacy)
        if privacy is not None:
            check_private(privacy, self)
        check_switch("robust_rows", self.robust_rows)
        algorithm = as_algorithm(self.algorithm)
        read_algorithm(as_plain(algorithm))  # its options, by the rules of a site that is asked to run it
        traits = algorithm.traits
        for name in ("penalty", "fallback"):
            if getattr(self, name) not in ("auto", None) and not traits.pulls:
                raise InputError(
                    f"{name}={getattr(self, name)!r} is for algorithms that pull sites to the center, and "
                    f"{traits.title} does not; leave it out, or use algorithm='fedgrem'."
                )
        if algorithm.picks_columns:
            self._check_sparse()
        for said, asked in (("missing='em'", self._missing_allowed()), ("robust_rows", self.robust_rows is not False)):
            if asked and traits.whole_rows:
                raise InputError(
                    f"{said} does not go with {traits.title}, whose sites send sums over complete rows; use "
                    "'fedgrem', 'fedem', 'tgmm' or a local or pooled one."
                )
        for said, asked in (("secure_sums", self.secure_sums), ("privacy", privacy is not None)):
            if asked and self.robust_rows is not False:
                raise InputError(f"robust_rows does not go with {said} yet; leave one of them out.")

    def _check_sparse(self) -> None:
        """Refuse what a center of few columns does not go with."""
        init = f"{self._theta_name}_init"
        if not self._picks_columns:
            raise InputError(
                "center='sparse' is for FederatedGaussianMixture and FederatedRegressionMixture, and this is a "
                f"{type(self).__name__}; use another center rule, or leave it out."
            )
        if not is_fixed(self.n_components):
            raise InputError(
                f"center='sparse' fits other columns for every number of components, and these cannot be compared; "
                f"give n_components as one number, got {self.n_components!r}."
            )
        if getattr(self, init) is not None:
            raise InputError(f"center='sparse' searches for its columns and starts; leave out {init}.")

    def _validate_federation(self, X: Any, y: Any, sites: Any, sample_weight: Any) -> tuple[Table, Federation]:
        table = gather(X, sites)
        check_federation(table, sites is not None)
        has_target = self._has_target
        target = gather_values("y", y, table) if has_target else None
        if has_target:
            check_target(target, table)
            rows, target = validate_data(self, table.rows, target, y_numeric=True, **NUMERIC)
        else:
            rows = validate_data(self, table.rows, **NUMERIC)
        weight = gather_values("sample_weight", sample_weight, table)
        weight = np.ones(len(rows)) if weight is None else np.asarray(weight, dtype=float)
        if weight.shape != (len(rows),):
            raise ShapeError(f"sample_weight has shape {weight.shape}, expected ({len(rows)},), one weight per row.")
        if self.privacy is not None:
            check_weights(weight)
        columns = getattr(self, "feature_names_in_", None)
        members = [np.flatnonzero(table.site_of_row == k) for k in range(len(table.labels))]
        federation = Federation.from_sites(
            [str(label) for label in table.labels],
            [rows[rows_of_site] for rows_of_site in members],
            None if target is None else [target[rows_of_site] for rows_of_site in members],
            [weight[rows_of_site] for rows_of_site in members],
            columns=None if columns is None else [str(name) for name in columns],
            missing_allowed=self._missing_allowed(),
        )
        federation.check_columns(constant_allowed=has_target)
        return table, federation

    def _seed(self) -> int:
        return seed_of(self.random_state)

    def _expose_theta(self, result: FitResult) -> None:
        """Component parameters in the units of the rows; the center's are ``center_``."""
        setattr(self, f"{self._theta_name}_", result.theta)
        self.center_ = result.center

    def _expose(self, result: FitResult) -> None:
        self.n_components_ = int(result.weights.shape[1])
        self.weights_ = result.weights
        common = result.common_weights
        if result.held is not None:
            common = weights_of_holders(result.weights)
        self.center_weights_ = middle_weights(result.weights) if common is None else common
        self.has_component_ = np.ones(result.weights.shape, dtype=bool) if result.held is None else result.held.copy()
        self.site_distance_ = result.distance
        has = self.has_component_
        self.at_center_ = (self.site_distance_ == 0.0) & has
        if result.held is not None:
            self.at_center_ &= has.sum(axis=0) >= FEWEST  # what fewer have has no center
        influence = result.influence
        self.site_threshold_ = np.broadcast_to(influence.threshold, result.weights.shape).copy()
        unknown = np.full(result.weights.shape[1], np.nan)
        self.between_site_variance_ = unknown if influence.between is None else np.array(influence.between)
        unknown = np.full(0 if result.noise is None else result.noise.shape[1], np.nan)
        self.noise_between_site_variance_ = (
            unknown if influence.noise_between is None else np.array(influence.noise_between)
        )
        self.n_rows_ = result.n_rows
        self.rows_held_down_ = np.zeros(len(result.n_rows)) if result.held_down is None else result.held_down
        self.vanished_ = vanished(result.weights, result.n_rows) & has
        self.n_rounds_ = result.n_rounds
        self.converged_ = result.converged
        self.unsettled_sites_ = np.array(result.unsettled, dtype=str)
        if result.columns is not None:
            self.informative_columns_ = np.array(result.columns)
        self._expose_path(result)
        self.history_ = {name: kept.copy() for name, kept in result.history.items()}
        if result.seen is not None:  # from sums nobody knows of single sites
            self.history_["log_likelihood"] -= log_volume(self, result)
        self.cost_ = dict(result.cost)

    def _expose_path(self, result: FitResult) -> None:
        path, n_sites, algorithm = result.path, len(result.site_names), as_algorithm(self.algorithm)
        self.penalty_ = c = float(path["penalty"]) if path else self._given_penalty()
        given = c if algorithm.noise_penalty is None else algorithm.noise_penalty
        self.noise_penalty_ = float(path["noise_penalty"] if path else given)
        pooled = c if algorithm.pool_weights is True else 0.0  # only if that was asked for
        self.weights_penalty_ = float(path["weights_penalty"]) if path else pooled
        told = ("penalties", "gain", "error", "site_gain", "site_error", "noise_penalties", "noise_gain", "noise_error")
        self.penalty_path_ = {name: path[name] for name in told} if path else {}
        unknown = np.full(n_sites, np.nan)
        self.site_gain_, self.site_gain_se_ = path.get("chosen_gain", unknown), path.get("chosen_error", unknown)
        self.local_only_ = path.get("local_only", np.zeros(n_sites, dtype=bool))

    def _given_penalty(self) -> float:
        """C where no path chose it; of an algorithm that has none, the one that says what its sites share."""
        traits = as_algorithm(self.algorithm).traits
        if not traits.pulls:
            return np.inf if traits.sharing == "all" else 0.0
        return PAPERS_PENALTY if self.penalty == "auto" else float(self.penalty)

    def _column_names(self) -> list[str]:
        """Of the rows as they came."""
        return [str(name) for name in getattr(self, "feature_names_in_", [f"x{j}" for j in range(self.n_features_in_)])]

    def _names_of(self, result: FitResult) -> list[str]:
        """Of the columns that a fit is about."""
        names = self._column_names()
        return names if result.columns is None else [names[j] for j in result.columns]

    def _column_notes(self, result: FitResult) -> tuple[list[str], list[str]]:
        """Sentences about columns that say nothing at a site, to warn by and to know."""
        grave, _ = column_notes(self._names_of(result), result, {}, (), completed=False)
        return ([], grave) if self._has_target else (grave, [])  # a covariate may be constant beside an intercept

    def _note(self, result: FitResult) -> None:
        """Say what columns are missing or constant at sites, in ``notes_`` and as a warning."""
        grave, mild = self._column_notes(result)
        if not result.columns_stand_out:
            how = (
                "go with the response: it may not depend on any"
                if self._has_target
                else ("vary together: there may be no components")
            )
            grave.append(f"no columns clearly {how}, or there are too few rows to find them.")
        if self.privacy is not None and not result.converged:
            mild.append(f"{LOST_IN_NOISE[0].upper()}{LOST_IN_NOISE[1:]}.")
        self.notes_ = np.array([*grave, *mild], dtype=str)
        if grave:
            more = f" And {len(grave) - 3} more like it, in notes_." if len(grave) > 3 else ""
            warnings.warn(" ".join(grave[:3]) + more, ColumnWarning, stacklevel=5)

    def _warn(self, result: FitResult) -> None:
        unseen = result.from_sums and np.isnan(result.theta).all() and np.isfinite(result.center).all()
        if not unseen and not np.all(np.isfinite(result.theta)):
            broken = [n for n, t in zip(result.site_names, result.theta, strict=True) if not np.all(np.isfinite(t))]
            self._forget()
            raise InputError(
                f"the fit diverged at site(s) {', '.join(broken)}; use an algorithm whose steps settle, such as the "
                "default FedGrEM(), a smaller step_size, or columns on a common scale."
            )
        if result.converged or (self.tol == 0 and self.privacy is None):
            return
        told = f"not settled after {result.n_rounds} rounds"
        if self.privacy is not None:
            told = f"{LOST_IN_NOISE}."
        elif result.from_sums:
            told += f", and from sums nobody can say which sites still move; raise max_rounds or tol, now {self.tol:g}."
        else:
            sites = ", ".join(result.unsettled[:5]) + (", ..." if len(result.unsettled) > 5 else "")
            told += (
                f": {len(result.unsettled)} of {len(result.site_names)} site(s) ({sites}) still moved by up to "
                f"{result.history['movement'][-1].max():.2g}, tol={self.tol:g}; raise max_rounds or tol."
            )
        warnings.warn(told, ConvergenceWarning, stacklevel=4)

    # -- one more site

    def fit_site(self, rows: Any, y: Any = None, *, name: str, sample_weight: Any = None) -> Self:
        """Fit one more site against the stored center, with no other site present, and add it; returns ``self``.

        The new site takes the local steps of the fit, each pulled towards the center, from the center and from a start
        of its own; the better answer is kept. It gets a verdict like the others, who stay as they are, and so does the
        center. The model holds no rows: it can be sent to where the new rows are.

        Parameters
        ----------
        rows : (n, p) array or data frame of the new site, with the columns of the fit.
        y : (n,) responses of a regression.
        name : of the new site; ``predict(X, sites=name)`` then uses its mixture.
        sample_weight : (n,) weights >= 0; a row of weight 2 counts as two rows.
        """
        if self.privacy is not None:
            raise InputError("one more site would not be private; fit all sites again, each with its budget.")
        fit_site(self, rows, y, name, sample_weight)
        return self

    def _per_site(self) -> tuple[str, ...]:
        """Fitted arrays that have one entry per site, first."""
        names = (
            "weights_", f"{self._theta_name}_", "site_distance_", "at_center_", "site_threshold_", "n_rows_",
            "rows_held_down_", "vanished_", "site_gain_", "site_gain_se_", "local_only_", "has_component_",
        )  # fmt: skip
        return names + tuple(name for name in ("covariances_", "intercept_", "noise_") if hasattr(self, name))
