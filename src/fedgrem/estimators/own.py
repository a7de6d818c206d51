"""Mixtures that a user writes as one log density."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from fedgrem.data.federation import Federation
from fedgrem.errors import InputError, InputTypeError, ShapeError
from fedgrem.estimators.density import FederatedDensity
from fedgrem.estimators.parameters import check_count
from fedgrem.families.base import Family
from fedgrem.families.own import OwnDensity, check_jax
from fedgrem.types import Array


@dataclass(kw_only=True, repr=False, eq=False)
class FederatedMixture(FederatedDensity):
    """One mixture per site of components that you write as a log density, shrunk to a common center.

    Parameters
    ----------
    log_density : callable ``(row, theta_r) -> scalar``
        Log density of one row ``(p,)`` under one component's parameters ``(q,)``, written with ``jax.numpy``.
    draw_start : callable ``(key, rows) -> theta_r``
        A start ``(q,)`` for one component from a few random rows ``(start_rows, p)`` of a site; ``key`` is a
        ``jax.random`` key, for starts that need noise of their own.
    n_components : int, range or list of int, or "auto", default=1
        R, the same at every site, or several to choose from.
    draw_row : callable ``(generator, theta_r) -> row``, optional
        One random row ``(p,)`` of a component, with a NumPy ``Generator``; only :meth:`sample` needs it.
    start_rows : int, default=5
    weights_init : array of shape (K, R), optional
    params_init : array of shape (K, R, q), optional
        Starts, with sites in the order of ``site_names_``, instead of searching for them.
    penalty, algorithm, criterion, fallback, standard_errors, max_rounds, tol, n_init, align, verbose, random_state :
        as in :class:`FederatedGaussianMixture`.

    Attributes
    ----------
    site_names_ : (K,)
    weights_, params_ : (K, R), (K, R, q)
    center_, center_weights_ : (R, q) the common center, and the median weights that go with it, (R,)
    weights_se_, params_se_, center_se_, at_center_, site_distance_, site_verdict_, penalty_, selection_, ... :
        as in :class:`FederatedGaussianMixture`

    Examples
    --------
    Counts, with Poisson components on the scale of the log rate:

    >>> import jax.numpy as jnp
    >>> import numpy as np
    >>> from fedgrem import FederatedMixture
    >>> def poisson(row, log_rate):
    ...     return jnp.sum(row * log_rate - jnp.exp(log_rate))
    >>> def start(key, rows):
    ...     return jnp.log(rows.mean(axis=0) + 0.5)
    >>> generator = np.random.default_rng(0)
    >>> rates = np.array([[1.0, 9.0], [9.0, 1.0]])
    >>> rows = {name: generator.poisson(rates[generator.integers(2, size=80)]) for name in ("north", "south", "east")}
    >>> model = FederatedMixture(poisson, start, n_components=2, random_state=0).fit(rows)
    >>> model.params_.shape
    (3, 2, 2)
    """

    _theta_name: ClassVar[str] = "params"

    log_density: Callable[..., Any] | None = field(default=None, kw_only=False)
    draw_start: Callable[..., Any] | None = field(default=None, kw_only=False)
    n_components: Any = field(default=1, kw_only=False)
    draw_row: Callable[..., Any] | None = None
    start_rows: int = 5
    params_init: Any = None

    def _family(self) -> Family:
        for name in ("log_density", "draw_start"):
            if not callable(getattr(self, name)):
                raise InputTypeError(
                    f"{name} must be a function in jax.numpy, got {getattr(self, name)!r}; see the example of "
                    "FederatedMixture."
                )
        assert self.log_density is not None
        assert self.draw_start is not None
        return OwnDensity(self.log_density, self.draw_start, self.start_rows)

    def _generator(self) -> Any:
        return np.random.default_rng(self._seed())

    def _draw(self, k: int | None, labels: Array, generator: Any) -> Array:
        if self.draw_row is None:
            raise InputError(
                "a log density does not say how to draw from it; give draw_row=, a function of a NumPy Generator and "
                "one component's parameters that returns a row."
            )
        params = self._params_of(k).theta
        return np.stack([np.asarray(self.draw_row(generator, params[r]), dtype=float) for r in labels])

    def _check_parameters(self) -> None:
        super()._check_parameters()
        check_count("start_rows", self.start_rows, least=1)

    def _check_family(self, federation: Federation) -> None:
        """Trace the user's functions once, on shapes only, so that a mistake is named here and not deep in a fit."""
        check_jax()
        import jax

        family: Any = self._family()
        with jax.enable_x64(True):
            rows = jax.ShapeDtypeStruct((self.start_rows, federation.n_features), np.float64)  # type: ignore[no-untyped-call]
            row = jax.ShapeDtypeStruct((federation.n_features,), np.float64)  # type: ignore[no-untyped-call]
            key = jax.ShapeDtypeStruct((2,), np.uint32)  # type: ignore[no-untyped-call]
            start = _trace("draw_start", family.row_start, key, rows)
            if len(start.shape) != 1 or not np.issubdtype(start.dtype, np.floating):
                raise ShapeError(
                    f"draw_start returned shape {start.shape} of {start.dtype}, expected (q,) floats: the parameters "
                    "of one component."
                )
            value = _trace("log_density", family.log_density, row, start)
        if value.shape != ():
            raise ShapeError(
                f"log_density returned shape {value.shape}, expected a scalar for one row and one component."
            )


def _trace(name: str, function: Callable[..., Any], *shapes: Any) -> Any:
    import jax

    try:
        return jax.eval_shape(function, *shapes)
    except Exception as error:
        raise InputError(
            f"{name} failed on inputs of shape {', '.join(str(s.shape) for s in shapes)}: {error}; write it with "
            "jax.numpy, for one row and one component."
        ) from error
