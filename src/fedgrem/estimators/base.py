"""What all federated mixtures share of fitting: store, validate, delegate, expose."""

import warnings
from collections.abc import Callable
from typing import Any, Self

import jax.numpy as jnp
import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.validation import validate_data

from fedgrem.algorithms.base import Algorithm
from fedgrem.algorithms.path import LOCAL_STEPS, MEMORY, PENALTIES
from fedgrem.algorithms.plan import Plan, Progress
from fedgrem.algorithms.pooled import InOnePot, start_plan_for
from fedgrem.algorithms.registry import ALGORITHMS, ALONE, build_algorithm, steady_penalty
from fedgrem.algorithms.rounds import run
from fedgrem.algorithms.selection import CRITERIA, Tally, tally
from fedgrem.algorithms.start import StartPlan
from fedgrem.data.federation import Federation, Units
from fedgrem.data.tables import Table, check_federation, check_target, gather, gather_values
from fedgrem.data.units import UnitsPlan, summarize_site
from fedgrem.engines.inprocess import InProcess
from fedgrem.errors import InputError, ShapeError
from fedgrem.estimators.fitted import FittedMixture
from fedgrem.estimators.network import IN_PROCESS, fit_elsewhere
from fedgrem.estimators.newcomer import fit_site
from fedgrem.estimators.parameters import check_choice, check_count, check_number, check_start, check_switch
from fedgrem.estimators.selection import Search, check_components, choose, fewest, is_fixed
from fedgrem.estimators.verdicts import expose_verdicts, wants_look
from fedgrem.families.base import Family
from fedgrem.kernels.precision import numpy_dtype, precision
from fedgrem.types import FitResult, NumpyArray, Params

NUMERIC: dict[str, Any] = {"dtype": np.float64, "ensure_all_finite": False, "ensure_min_samples": 2}
"""What scikit-learn checks of the rows; that they are finite is checked site by site, with better words."""


PAPERS_PENALTY = 2.0
OF_INPUT = ("n_features_in_", "feature_names_in_")
"""What scikit-learn's check of the rows writes, before a fit is known to succeed."""


class BaseFederatedMixture(FittedMixture):
    """One mixture per site, shrunk to a common center. Subclasses say what a component is."""

    n_components: Any
    criterion: str
    algorithm: str
    penalty: float | str
    fallback: str | None
    penalty_decay: float
    step_size: float
    step_weights: Any
    penalty_scaling: Any
    penalty_rows: Any
    center_solver: Any
    center_sweeps: int
    local_steps: int | str
    acceleration: bool | str
    max_rounds: int
    tol: float
    tol_errors: float
    n_init: int
    weights_init: Any
    align: bool
    alignment: Any
    random_state: Any

    def _store(self, arguments: dict[str, Any]) -> None:
        """Keep the constructor's arguments as they came, as scikit-learn asks; ``fit`` checks them."""
        for name in self._get_param_names():
            setattr(self, name, arguments[name])

    def _check_family(self, family: Family, n_features: int) -> None:
        """Anything a family can only check once the data is known."""

    # -- fitting

    def _fit(
        self,
        X: Any,
        y: Any,
        sites: Any,
        sample_weight: Any,
        on_progress: Callable[[Progress], None] | None,
        engine: str = IN_PROCESS,
    ) -> Self:
        self._check_parameters()
        family = self._family()
        table, federation = self._validate_federation(X, y, sites, sample_weight, family)
        with precision(self.dtype):
            self._check_family(family, federation.n_features)
            chosen, search = self, None
            if not is_fixed(self.n_components):

                def fitted(one: Self, tell: Callable[[Progress], None]) -> Tally:
                    return one._tally(*one._run(family, federation, engine, tell, score=True))

                chosen, search = choose(self, federation, fitted, on_progress)
            result, units = chosen._run(family, federation, engine, on_progress)
            self._forget()
            self.site_names_ = table.labels
            self._expose(result)
            self._expose_theta(result, units)
            self._expose_selection(search)
            expose_verdicts(self, result, units)
            self._expose_errors(result, units)
        self._warn(result)
        return self

    def _forget(self) -> None:
        """Drop what an earlier fit found: a fit with other options would not write all of it anew."""
        for name in self._fitted_names():
            if name not in OF_INPUT:
                delattr(self, name)

    def _run(
        self,
        family: Family,
        federation: Federation,
        engine: str,
        on_progress: Callable[[Progress], None] | None,
        *,
        score: bool = False,
    ) -> tuple[FitResult, Units | None]:
        """One fit of a number of components, and the units in which it ran."""
        if engine != IN_PROCESS:
            finished = fit_elsewhere(self, federation, engine, on_progress, score=score)
            return finished.result, finished.units
        algorithm = self._build_algorithm(family)
        units, scaled = self._standardize(federation)
        plan = self._plan(scaled, family, units)
        plan = plan._replace(start=start_plan_for(algorithm, plan.start), score=score)
        here = InProcess(algorithm, scaled, plan.start, dtype=numpy_dtype(self.dtype))
        return run(algorithm, here, plan, on_progress), units

    def _tally(self, result: FitResult, units: Units | None) -> Tally:
        """What a criterion needs to know of a fit that was scored."""
        constructor: Any = ALGORITHMS[self.algorithm]
        in_one_pot = isinstance(constructor, type) and issubclass(constructor, InOnePot)
        return tally(result, in_one_pot=in_one_pot, log_scale=self._log_volume(units))

    def _expose_selection(self, search: Search | None) -> None:
        """The curve by which the number of components was chosen, if it was."""
        if search is not None:
            self.selection_ = search.curve
            self.cost_["selection_exchanges"] = search.exchanges

    def _units_plan(self) -> UnitsPlan:
        """In which units the fit is to run."""
        return UnitsPlan(standardize=False)

    def _standardize(self, federation: Federation) -> tuple[Units | None, Federation]:
        """The units in which the fit is to run, and the rows in them; None leaves them as they are."""
        plan = self._units_plan()
        if plan.as_it_is:
            return None, federation
        units = plan.units([summarize_site(site) for site in federation.sites])
        return units, plan.apply(federation, units)

    def _check_parameters(self) -> None:
        check_components(self.n_components)
        check_choice("criterion", self.criterion, CRITERIA)
        check_count("max_rounds", self.max_rounds, least=1)
        check_count("n_init", self.n_init, least=1)
        check_count("center_sweeps", self.center_sweeps, least=1)
        if self.local_steps != "auto":
            check_count("local_steps", self.local_steps, least=1)
        check_switch("acceleration", self.acceleration)
        if self.penalty != "auto":
            check_number("penalty", self.penalty, least=0.0)
        if self.fallback is not None:
            check_choice("fallback", self.fallback, ("auto", "local"))
        check_switch("standard_errors", self.standard_errors)
        check_number("penalty_decay", self.penalty_decay, least=0.0, most=1.0, below=True)
        check_number("step_size", self.step_size, least=1e-6, most=2.0, below=True)
        check_number("tol", self.tol, least=0.0)
        check_number("tol_errors", self.tol_errors, least=0.0)
        check_choice("algorithm", self.algorithm, tuple(ALGORITHMS))
        check_choice("step_weights", self.step_weights, ("current", "initial"))
        check_choice("penalty_scaling", self.penalty_scaling, ("fixed", "step"))
        check_choice("penalty_rows", self.penalty_rows, ("auto", "component", "site"))
        check_choice("center_solver", self.center_solver, ("auto", "redescending", "exact", "alternating"))
        check_choice("alignment", self.alignment, ("assignment", "stepwise", "exhaustive"))
        check_choice("dtype", self.dtype, ("float64", "float32"))

    def _validate_federation(
        self, X: Any, y: Any, sites: Any, sample_weight: Any, family: Family
    ) -> tuple[Table, Federation]:
        table = gather(X, sites)
        check_federation(table, sites is not None)
        target = gather_values("y", y, table) if family.has_target else None
        if family.has_target:
            check_target(target, table)
            rows, target = validate_data(self, table.rows, target, y_numeric=True, **NUMERIC)
        else:
            rows = validate_data(self, table.rows, **NUMERIC)
        weight = gather_values("sample_weight", sample_weight, table)
        weight = np.ones(len(rows)) if weight is None else np.asarray(weight, dtype=float)
        if weight.shape != (len(rows),):
            raise ShapeError(f"sample_weight has shape {weight.shape}, expected ({len(rows)},), one weight per row.")
        columns = getattr(self, "feature_names_in_", None)
        members = [np.flatnonzero(table.site_of_row == k) for k in range(len(table.labels))]
        federation = Federation.from_sites(
            [str(label) for label in table.labels],
            [rows[rows_of_site] for rows_of_site in members],
            None if target is None else [target[rows_of_site] for rows_of_site in members],
            [weight[rows_of_site] for rows_of_site in members],
            columns=None if columns is None else [str(name) for name in columns],
            min_rows=fewest(self.n_components),
            missing_allowed=self._missing_allowed(),
        )
        federation.check_columns(constant_allowed=family.has_target)
        return table, federation

    def _build_algorithm(self, family: Family) -> Algorithm:
        return build_algorithm(self.algorithm, family, **self._options())

    def _options(self) -> dict[str, Any]:
        """What an algorithm may want to know."""
        chosen = self.penalty == "auto"
        return {
            "penalty": self._first_penalty(),
            "penalty_decay": float(self.penalty_decay),
            "step_size": float(self.step_size),
            "step_weights": self.step_weights,
            "penalty_scaling": self.penalty_scaling,
            "penalty_rows": ("component" if chosen else "site") if self.penalty_rows == "auto" else self.penalty_rows,
            "center_solver": ("redescending" if chosen else "exact")
            if self.center_solver == "auto"
            else self.center_solver,
            "center_sweeps": self.center_sweeps,
            "local_steps": (LOCAL_STEPS if self.tol > 0 else 1) if self.local_steps == "auto" else self.local_steps,
            "memory": MEMORY if (self.tol > 0 if self.acceleration == "auto" else self.acceleration) else 0,
        }

    def _tol_errors(self) -> float:
        """Standard errors; none where a given number of rounds is to be played."""
        return float(self.tol_errors) if self.tol > 0 else 0.0

    def _first_penalty(self) -> float:
        """C as far as it is known before the fit: the paper's, if it is to be chosen."""
        return PAPERS_PENALTY if self.penalty == "auto" else float(self.penalty)

    def _path(self) -> dict[str, Any]:
        """Which penalties a fit compares on held-out rows, as fields of a plan."""
        auto = self.penalty == "auto"
        fallback = auto if self.fallback == "auto" else self.fallback == "local"
        if self.algorithm != "fedgrem" or not (auto or fallback) or self.penalty == 0:
            return {}
        if auto:
            return {"path": PENALTIES, "fallback": fallback}
        return {"path": (0.0, float(self.penalty)), "given_penalty": float(self.penalty), "fallback": True}

    def _plan(self, federation: Federation, family: Family, units: Units | None) -> Plan:
        n_sites, n_parameters = len(federation.sites), family.n_parameters(federation.n_features)
        given = check_start(
            self.weights_init,
            getattr(self, f"{self._theta_name}_init"),
            ("weights_init", f"{self._theta_name}_init"),
            (n_sites, self.n_components, self._n_given(n_parameters)),
        )
        if given is not None:
            given = given[0], self._theta_in_units(given[1], units)
        alone = self.algorithm in ALONE
        return Plan(
            start=StartPlan(
                self.n_components, n_init=self.n_init, alignment=self.alignment, exchanges=0 if alone else 1
            ),
            max_rounds=self.max_rounds,
            tol=float(self.tol),
            tol_errors=self._tol_errors(),
            seed=self._seed(),
            given=None if given is None else Params(*(jnp.asarray(start) for start in given)),
            align=self.align,
            start_penalty=0.0
            if alone
            else steady_penalty(self._first_penalty(), self.penalty_decay, n_parameters, n_sites),
            look=wants_look(self.algorithm, n_sites),
            standard_errors=self._wants_errors(n_parameters),
            **self._path(),
        )

    def _n_given(self, n_parameters: int) -> int:
        """How many of a component's parameters a user gives as a start."""
        return n_parameters

    def _theta_in_units(self, theta: NumpyArray, units: Units | None) -> NumpyArray:
        """A start ``(K, R, q)`` as the user gave it, in the units of the fit."""
        return theta

    def _seed(self) -> int:
        if isinstance(self.random_state, int | np.integer):
            return int(self.random_state)
        return int(check_random_state(self.random_state).randint(np.iinfo(np.int32).max))

    def _expose_theta(self, result: FitResult, units: Units | None) -> None:
        """Component parameters in the units of the rows; the center's are ``center_``."""
        setattr(self, f"{self._theta_name}_", result.theta)
        self.center_ = result.center

    def _expose(self, result: FitResult) -> None:
        self.n_components_ = int(result.weights.shape[1])
        self.weights_ = result.weights
        middle = np.median(result.weights, axis=0)
        self.center_weights_ = middle / middle.sum()
        self.site_distance_ = result.distance
        self.at_center_ = self.site_distance_ == 0.0
        self.n_rows_ = result.n_rows
        self.vanished_ = result.weights * result.n_rows[:, None] < 1.0
        self.n_rounds_ = result.n_rounds
        self.converged_ = result.converged
        self.unsettled_sites_ = np.array(result.unsettled, dtype=str)
        self._expose_path(result.path)
        self.history_ = result.history
        self.cost_ = result.cost

    def _expose_path(self, path: dict[str, NumpyArray]) -> None:
        self.penalty_ = float(path["penalty"]) if path else self._first_penalty()
        if not path:
            return
        told = ("penalties", "gain", "error", "site_gain", "site_error", "noise_penalties", "noise_gain", "noise_error")
        self.penalty_path_ = {name: path[name] for name in told}
        self.covariance_penalty_ = float(path["covariance_penalty"])
        self.site_gain_, self.site_gain_se_ = path["chosen_gain"], path["chosen_error"]
        self.fitted_alone_ = path["released"]

    def _warn(self, result: FitResult) -> None:
        if not np.all(np.isfinite(result.theta)):
            broken = [n for n, t in zip(result.site_names, result.theta, strict=True) if not np.all(np.isfinite(t))]
            raise InputError(
                f"the fit diverged at site(s) {', '.join(broken)}; use step_weights='current', a smaller step_size, or "
                "columns on a common scale."
            )
        if not result.converged and self.tol > 0:
            moving = result.history["movement"][-1]
            sites = ", ".join(result.unsettled[:5]) + (", ..." if len(result.unsettled) > 5 else "")
            warnings.warn(
                f"not settled after {result.n_rounds} rounds: {len(result.unsettled)} of {len(result.site_names)} "
                f"site(s) ({sites}) still moved by up to {moving.max():.2g}, tol={self.tol:g}; raise max_rounds, tol "
                "or tol_errors.",
                ConvergenceWarning,
                stacklevel=4,
            )

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
        fit_site(self, rows, y, name, sample_weight)
        return self

    def _per_site(self) -> tuple[str, ...]:
        """Fitted arrays that have one entry per site, first."""
        names = ("weights_", f"{self._theta_name}_", "site_distance_", "at_center_", "n_rows_", "vanished_")
        return names + tuple(name for name in ("covariances_", "intercept_", "noise_") if hasattr(self, name))

    def _per_site_of_choice(self) -> tuple[tuple[str, Any], ...]:
        """Those that come from the choice of a penalty, and what stands for a site that had no part in it."""
        names = (("site_gain_", np.nan), ("site_gain_se_", np.nan), ("fitted_alone_", False))
        return names if hasattr(self, "fitted_alone_") else ()

    def _stored_units(self) -> Units | None:
        """The units in which the fit ran; None if those of the rows."""
        return Units(self.location_, self.scale_) if hasattr(self, "scale_") else None

    def _center_params(self, units: Units | None) -> Params:
        """The center in the units of the fit, ``(R,), (R, q), (C, s)``."""
        return Params(jnp.asarray(self.center_weights_), jnp.asarray(self.center_))

    def _spread_penalty(self, spread: Any) -> float:
        """What pulled the sites' spreads together; 0 where there are none."""
        if spread is None:
            return 0.0
        constant = getattr(self, "covariance_penalty", None)
        constant = getattr(self, "covariance_penalty_", self.penalty_) if constant is None else float(constant)
        n_sites = int(self.site_evidence_["in_fit"].sum())
        return 0.0 if constant == 0 else constant * float(np.sqrt(spread.shape[-1] + np.log(n_sites)))

    def _log_volume(self, units: Units | None) -> float:
        """By what a row's log density in the units of the fit exceeds that in its own units."""
        return 0.0
