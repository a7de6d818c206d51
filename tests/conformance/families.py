"""The conformance table: every registered family in every structure, rows drawn from it, its density by SciPy."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy import stats
from scipy.special import expit, logsumexp

from fedgrem.data.columns import Column
from fedgrem.data.federation import Federation, Site, stack_sites
from fedgrem.data.stack import Stack
from fedgrem.families.covariance import STRUCTURES
from fedgrem.families.gaussian import Gaussian
from fedgrem.families.generalized import RESPONSES, GeneralizedRegression
from fedgrem.families.parts import Counts
from fedgrem.families.poisson import Poisson
from fedgrem.families.regression import NOISES, LinearRegression
from fedgrem.families.table import Table
from fedgrem.types import Params

WEIGHTS = np.array([0.4, 0.6])


def unpadded(site, *, gaps=False):
    """A stack of one site with its rows and no others."""
    padded, n = stack_sites([site], gaps=gaps), len(site.rows)
    target = None if padded.target is None else padded.target[:, :n]
    observed = None if padded.observed is None else padded.observed[:, :n]
    return Stack(padded.names, padded.rows[:, :n], target, padded.weight[:, :n], observed)


@dataclass(frozen=True, eq=False)
class Case:
    """A family, two components of it, how rows come about, and the log density as SciPy knows it."""

    name: str
    family: Any
    theta: np.ndarray
    """(R, q) components that are well apart."""
    draw: Callable[..., Any]
    """(generator, (n, q) parameter of every row) -> rows, target."""
    log_density: Callable[..., Any]
    """(family, rows, target, (R, q), noise) -> (R, n)"""
    discrete: bool = False
    """Whether there are columns of counts or categories."""

    def __repr__(self):
        return self.name

    def rows(self, seed, n, theta=None):
        """Rows (n, p) and targets of an even mixture."""
        generator = np.random.default_rng(seed)
        theta = self.theta if theta is None else theta
        return self.draw(generator, theta[generator.integers(0, len(theta), size=n)])

    def site(self, seed, n, weight=None, name="site"):
        rows, target = self.rows(seed, n)
        return Site(name, rows, target, np.ones(n) if weight is None else np.asarray(weight, dtype=float))

    def stack(self, seed, n, weight=None):
        """A stack of one site, without padding."""
        return unpadded(self.site(seed, n, weight))

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

    def some_noise(self, seed=0):
        """(C, s) away from that of the rows; None where it is known."""
        shape = self.family.noise_shape(*self.theta.shape)
        return None if shape is None else 0.3 * np.random.default_rng(seed).normal(size=shape)

    def params(self, seed=0, shift=0.1):
        """One site's, ``(1, R), (1, R, q), (1, C, s)``, near the components."""
        noise = self.some_noise(seed)
        return Params(WEIGHTS[None], self.theta[None] + shift, None if noise is None else noise[None])

    def joint(self, stack, params, k=0):
        """(R, n) log densities of one site's rows plus log weights."""
        target = None if stack.target is None else stack.target[k]
        noise = None if params.noise is None else params.noise[k]
        density = self.log_density(self.family, stack.rows[k], target, params.theta[k], noise)
        with np.errstate(divide="ignore"):
            return density + np.log(params.weights[k])[:, None]

    def log_likelihood(self, stack, params, k=0):
        return float(stack.weight[k] @ logsumexp(self.joint(stack, params, k), axis=0))

    def covariances(self, noise):
        """(R, q, q): by what Q's gradient is multiplied; the noise of Gaussians, the variance of regressions."""
        n_components, size = self.theta.shape
        if isinstance(self.family, Gaussian):
            return np.broadcast_to(self.family.covariance.matrices(noise, size), (n_components, size, size))
        if isinstance(self.family, Table):
            found, own = np.tile(np.eye(size), (n_components, 1, 1)), self.family.layout.theta[0]
            if noise is not None:
                found[:, own, own] = self.family.covariance.matrices(noise, own.stop - own.start)
            return found
        one = np.ones((1, 1)) if noise is None else np.exp(2.0 * noise)
        return np.broadcast_to(one[..., None] * np.eye(size), (n_components, size, size))

    def with_family(self, **changes):
        return replace(self, family=replace(self.family, **changes))


def _gaussian_density(family, rows, target, theta, noise):
    size = theta.shape[1]
    matrices = np.broadcast_to(family.covariance.matrices(noise, size), (len(theta), size, size))
    found = [stats.multivariate_normal(t, m).logpdf(rows) for t, m in zip(theta, matrices, strict=True)]
    return np.array(found).reshape(len(theta), len(rows))


def _regression_density(family, rows, target, theta, noise):
    deviation = np.ones((1, 1)) if noise is None else np.exp(noise)
    return stats.norm.logpdf(target, theta @ rows.T, np.broadcast_to(deviation, (len(theta), 1)))


def _generalized_density(family, rows, target, theta, noise):
    eta = family.unit * theta @ rows.T
    if family.response == "binary":
        return stats.bernoulli.logpmf(target, expit(eta))
    return stats.poisson.logpmf(target, np.exp(eta))


def _poisson_density(family, rows, target, theta, noise):
    return stats.poisson.logpmf(rows, np.exp(theta)[:, None]).sum(axis=-1)


def _gaussian_rows(generator, theta):
    return theta + generator.normal(size=theta.shape), None


def _correlated_rows(generator, theta):
    return theta + generator.normal(size=theta.shape) @ np.array([[1.0, 0.6], [0.0, 0.8]]), None


def _regression_rows(generator, theta):
    x = generator.normal(size=theta.shape)
    return x, (x * theta).sum(axis=1) + generator.normal(size=len(theta))


def _answers(generator, theta):
    x = 2.0 * generator.normal(size=theta.shape)
    return x, (generator.random(len(theta)) < expit(2.0 * (x * theta).sum(axis=1))).astype(float)


def _responses_of_counts(generator, theta):
    x = generator.normal(size=theta.shape)
    return x, generator.poisson(np.exp((x * theta).sum(axis=1))).astype(float)


def _counts(generator, theta):
    return generator.poisson(np.exp(theta)).astype(float), None


SIGNS = np.array([[1.0, -1.0], [-1.0, 1.0]])

GAUSSIANS = [
    Case(f"gaussian-{kind}", Gaussian(structure()), 2.0 * SIGNS,
         _gaussian_rows if kind == "identity" else _correlated_rows, _gaussian_density)
    for kind, structure in STRUCTURES.items()
]  # fmt: skip
REGRESSIONS = [
    Case(f"regression-{noise}", LinearRegression(noise), 3.0 * SIGNS, _regression_rows, _regression_density)
    for noise in NOISES
]
# Of mirrored components, answers of yes or no tell next to nothing.
ACROSS = np.array([[1.5, 0.3], [0.2, -1.5]])
GENERALIZED = [
    Case(f"regression-{response}", GeneralizedRegression(response), ACROSS, draw, _generalized_density, True)
    for response, draw in zip(RESPONSES, (_answers, _responses_of_counts), strict=True)
]
POISSON = Case("poisson", Poisson(), 1.0 + 0.8 * SIGNS, _counts, _poisson_density, discrete=True)


def _part_densities(family, rows, theta, noise):
    """(R, n) by SciPy, a column of a table after the other; theta is in the order of the parts."""
    lay, total = family.layout, 0.0
    for part, q, _ in lay.plain:
        own, cells = theta[:, q], rows[:, part.columns]
        if isinstance(part, Counts):
            total = total + stats.poisson.logpmf(cells, own[:, None] ** 2 / 4.0).sum(axis=-1)
        else:
            assert part.n_levels == 2
            chance = np.sin(0.5 * own + np.pi / 4.0)[:, None] ** 2
            total = total + stats.bernoulli.logpmf(cells, chance).sum(axis=-1)
    if lay.continuous is not None:
        own, cells, p = theta[:, lay.theta[0]], rows[:, lay.continuous.columns], len(lay.continuous.columns)
        matrices = np.broadcast_to(family.covariance.matrices(noise[:, lay.noise[0]], p), (len(theta), p, p))
        found = [stats.multivariate_normal(t, m).logpdf(cells) for t, m in zip(own, matrices, strict=True)]
        total = total + np.array(found).reshape(len(theta), len(rows))
    return total


def _table_density(family, rows, target, theta, noise):
    return _part_densities(family, rows, theta, noise)


def _mixed_rows(generator, theta):
    """A number and an answer, whose parameters come the other way round."""
    chance = np.sin(0.5 * theta[:, 0] + np.pi / 4.0) ** 2
    return np.column_stack(
        [theta[:, 1] + generator.normal(size=len(theta)), generator.random(len(theta)) < chance]
    ), None


def _discrete_rows(generator, theta):
    """A count and an answer, likewise."""
    chance = np.sin(0.5 * theta[:, 0] + np.pi / 4.0) ** 2
    counts = generator.poisson(theta[:, 1] ** 2 / 4.0)
    return np.column_stack([counts, generator.random(len(theta)) < chance]).astype(float), None


NUMBER, ANSWER, COUNT = Column("x", "continuous"), Column("b", "binary", ("no", "yes")), Column("n", "count")
PAIR = (NUMBER, Column("y", "continuous"))
TABLES = [
    Case(
        "table-mixed",
        Table((NUMBER, ANSWER)),
        np.array([[0.9, -2.0], [-0.9, 2.0]]),
        _mixed_rows,
        _table_density,
        discrete=True,
    ),
    Case(
        "table-discrete",
        Table((COUNT, ANSWER)),
        np.array([[0.9, 2.0], [-0.9, 6.0]]),
        _discrete_rows,
        _table_density,
        discrete=True,
    ),
    *(
        Case(f"table-{kind}", Table(PAIR, STRUCTURES[kind]()), 2.0 * SIGNS, _correlated_rows, _table_density)
        for kind in ("diag", "tied", "full")
    ),
]
FAMILIES = [*GAUSSIANS, *REGRESSIONS, *GENERALIZED, POISSON, *TABLES]
"""Every shipped family, in every structure of its noise."""
PLAIN = [case for case in FAMILIES if case.some_noise() is None]
"""Those whose noise is known: the paper's, and counts."""
NOISY = [case for case in FAMILIES if case.some_noise() is not None]
"""Those that estimate it."""
BY_NAME = {case.name: case for case in FAMILIES}
GAUSSIAN, REGRESSION = BY_NAME["gaussian-identity"], BY_NAME["regression-unit"]
