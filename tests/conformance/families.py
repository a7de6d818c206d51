"""The conformance table FAMILIES: every kind of component, with rows drawn from it."""

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaln

from fedgrem.data.federation import Federation, Site
from fedgrem.families import Custom, Family, Gaussian, LinearRegression


def poisson_log_density(row, theta):
    """Independent counts with log rates theta."""
    return jnp.sum(row * theta - jnp.exp(theta) - gammaln(row + 1.0))


def poisson_start(key, rows):
    return jnp.log(rows.mean(axis=0) + 0.5) + 0.1 * jax.random.normal(key, (rows.shape[1],), dtype=rows.dtype)


def bernoulli_log_density(row, theta):
    """Independent yes/no answers with log odds theta."""
    return jnp.sum(row * theta - jnp.logaddexp(0.0, theta))


def bernoulli_start(key, rows):
    share = (rows.sum(axis=0) + 1.0) / (rows.shape[0] + 2.0)
    return jnp.log(share / (1.0 - share)) + 0.1 * jax.random.normal(key, (rows.shape[1],), dtype=rows.dtype)


def log_normal_log_density(row, theta):
    """Positive measurements, normal on the log scale: no density at the zeros of padding."""
    return jnp.sum(-0.5 * (jnp.log(row) - theta) ** 2 - jnp.log(row) - 0.5 * jnp.log(2.0 * jnp.pi))


def log_normal_start(key, rows):
    return jnp.log(rows).mean(axis=0) + 0.1 * jax.random.normal(key, (rows.shape[1],), dtype=rows.dtype)


@dataclass(frozen=True, eq=False)
class Case:
    """A family, two components of it, and how rows come about."""

    name: str
    family: Family
    theta: np.ndarray
    """(R, q) components that are well apart."""
    draw: Callable[[np.random.Generator, np.ndarray], tuple[np.ndarray, np.ndarray | None]]
    """(generator, (n, q) parameter of every row) -> rows, target."""

    def __repr__(self):
        return self.name

    def rows(self, seed, n, theta=None):
        """Rows (n, p) and targets of an even mixture."""
        generator = np.random.default_rng(seed)
        theta = self.theta if theta is None else theta
        return self.draw(generator, theta[generator.integers(0, len(theta), size=n)])

    def site_data(self, seed, n, n_padded=None, weight=None):
        rows, target = self.rows(seed, n)
        return Site("site", rows, target, np.ones(n) if weight is None else weight).as_data(n_padded)

    def federation(self, seed, sizes, names=None, drift=0.2):
        """Sites of given sizes whose components lie about the common ones."""
        generator = np.random.default_rng(seed)
        rows, targets = [], []
        for n in sizes:
            theta = self.theta + drift * generator.normal(size=self.theta.shape)
            x, y = self.rows(generator.integers(2**31), n, theta)
            rows.append(x)
            targets.append(y)
        names = names or [f"site-{k}" for k in range(len(sizes))]
        return Federation.from_sites(names, rows, targets if self.family.has_target else None)

    def near(self, seed, n_sites, scale=0.3):
        """Starts near the common components: weights (K, R) and theta (K, R, q)."""
        generator = np.random.default_rng(seed)
        theta = self.theta + scale * generator.normal(size=(n_sites, *self.theta.shape))
        return generator.dirichlet(np.full(len(self.theta), 8.0), size=n_sites), theta


def _regression_rows(generator, theta):
    x = generator.normal(size=theta.shape)
    return x, (x * theta).sum(axis=1) + generator.normal(size=len(theta))


SIGNS = np.array([[1.0, -1.0, 1.0, -1.0, 1.0], [-1.0, 1.0, -1.0, 1.0, 1.0]])

FAMILIES = [
    Case("gaussian", Gaussian(), 2.0 * SIGNS[:, :2], lambda g, t: (t + g.normal(size=t.shape), None)),
    Case("regression", LinearRegression(), 3.0 * SIGNS[:, :2], _regression_rows),
    Case(
        "poisson",
        Custom(poisson_log_density, poisson_start),
        1.0 + 0.8 * SIGNS[:, :2],
        lambda g, t: (g.poisson(np.exp(t)).astype(float), None),
    ),
    Case(
        "bernoulli",
        Custom(bernoulli_log_density, bernoulli_start),
        2.0 * SIGNS,
        lambda g, t: (g.binomial(1, 1.0 / (1.0 + np.exp(-t))).astype(float), None),
    ),
    Case(
        "log-normal",
        Custom(log_normal_log_density, log_normal_start),
        2.0 * SIGNS[:, :2],
        lambda g, t: (np.exp(t + g.normal(size=t.shape)), None),
    ),
]

SHIPPED = [case for case in FAMILIES if not isinstance(case.family, Custom)]
CUSTOM = [case for case in FAMILIES if isinstance(case.family, Custom)]


def _correlated_rows(generator, theta):
    return theta + generator.normal(size=theta.shape) @ np.array([[1.0, 0.6], [0.0, 0.8]]), None


WITH_NOISE = [
    *(
        Case(f"gaussian-{kind}", Gaussian(kind), 2.0 * SIGNS[:, :2], _correlated_rows)
        for kind in ("spherical", "diag", "tied", "full")
    ),
    *(
        Case(f"regression-{noise}", LinearRegression(noise=noise), 3.0 * SIGNS[:, :2], _regression_rows)
        for noise in ("shared", "component")
    ),
]
"""The same kinds of components with a noise that is estimated."""
