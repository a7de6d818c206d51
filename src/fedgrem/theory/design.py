"""A study before it has rows: how many sites, how similar, how well separated; and sites drawn from such a design."""

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from fedgrem.data.federation import Site, stack_sites
from fedgrem.data.simulate import Model
from fedgrem.errors import InputError
from fedgrem.families.covariance import Identity
from fedgrem.families.gaussian import Gaussian
from fedgrem.families.regression import LinearRegression
from fedgrem.kernels.randomness import generator_for
from fedgrem.types import Array, Params

FEWEST_KINDS, MOST_KINDS, PARAMETERS = 6, 40, 600
"""Sites of a draw whose information is found: so many that they have this number of parameters, within limits."""
LOOKED_AT = 1000
"""Rows from which the information of such a site is found."""
EVENNESS = 5.0
"""Weights are drawn from a Dirichlet distribution with this parameter, as in the paper's simulations."""
LEAST_KNOWN = 0.02
"""Of a direction, relative to the best known one: what overlaps so much stays within the rows all the same."""
MOST = 600
"""Parameters of a site, components times columns: the information matrix has its square."""


@dataclass(frozen=True)
class Design:
    """What a study is expected to be, in units of the noise within a component.

    Parameters
    ----------
    n_sites : K, of which ``n_outliers`` are bad; n_rows : of every site.
    n_features, n_components : columns, components.
    separation : the smallest distance between two of the common centers, Delta.
    h : distance of every site's component from its common center.
    model : "gmm" or "mor", Gaussian components or regressions.
    """

    n_sites: int = 10
    n_rows: int = 150
    n_features: int = 10
    n_components: int = 5
    separation: float = 3.0
    h: float = 0.5
    n_outliers: int = 0
    model: Model = "gmm"

    def __post_init__(self) -> None:
        for name, value, least in (
            ("sites", self.n_sites, 1),
            ("rows", self.n_rows, 1),
            ("columns", self.n_features, 1),
            ("components", self.n_components, 1),
            ("bad sites", self.n_outliers, 0),
        ):
            if value < least:
                raise InputError(f"the number of {name} must be at least {least}, got {value}.")
        if not 0.0 < self.separation < np.inf:
            raise InputError(
                f"the separation must be a positive number, got {self.separation:g}; 3 is three standard deviations."
            )
        if not 0.0 <= self.h < np.inf:
            raise InputError(f"the similarity must be a number of at least 0, got {self.h:g}; 0 is all sites alike.")
        if 2 * self.n_outliers >= self.n_sites:
            raise InputError(
                f"{self.n_outliers} of {self.n_sites} sites are bad; no method can tell the good ones unless they are "
                "the larger half. Plan with fewer bad sites."
            )
        if self.n_rows < 2 * self.n_components:
            raise InputError(
                f"{self.n_rows} rows a site are fewer than two for every one of {self.n_components} components; plan "
                f"with at least {2 * self.n_components} rows, or fewer components."
            )
        if self.n_components * self.n_features > MOST:
            raise InputError(
                f"{self.n_components} components of {self.n_features} columns have "
                f"{self.n_components * self.n_features} parameters, expected at most {MOST}; plan with fewer columns."
            )

    def but(self, **changed: Any) -> "Design":
        """The same design with something changed."""
        return replace(self, **changed)


class Draw(NamedTuple):
    """Common centers of a design and a few kinds of sites around them."""

    center: Array
    """(R, q)"""
    weights: Array
    """(M, R) of every kind of site."""
    information: Array
    """(M, R q, R q) of a row about theta, the weights not being known: Louis' formula, by simulated rows."""
    weights_information: Array
    """(M, R, R) of a row about log weights, theta being known."""
    known: Array
    """(M, R q, R q) the same as ``information`` if the weights were known."""
    theta: Array
    """(M, R, q) of every kind of site."""


def draw_centers(n_components: int, n_features: int, separation: float, generator: np.random.Generator) -> Array:
    """Centers ``(R, q)`` in random directions, the closest two ``separation`` apart."""
    centers = generator.normal(size=(n_components, n_features))
    if n_components == 1:
        return centers
    apart = np.linalg.norm(centers[:, None] - centers, axis=-1)[~np.eye(n_components, dtype=bool)]
    return np.asarray(centers * separation / apart.min())


@lru_cache(maxsize=64)
def draw(model: Model, n_features: int, n_components: int, separation: float, h: float, seed: int) -> Draw:
    """Centers and kinds of sites; nothing of it depends on how many sites or rows a design has."""
    generator = generator_for(seed, "", "truth")
    center = draw_centers(n_components, n_features, separation, generator)
    kinds = int(np.clip(PARAMETERS // center.size, FEWEST_KINDS, MOST_KINDS))
    weights = generator.dirichlet(np.full(n_components, EVENNESS), size=kinds)
    theta = center + scatter(h, (kinds, *center.shape), generator)
    return from_truth(model, center, weights, theta, generator)


def scatter(h: float, shape: tuple[int, ...], generator: np.random.Generator) -> Array:
    """Vectors of length h in random directions."""
    direction = generator.normal(size=shape)
    return np.asarray(h * direction / np.linalg.norm(direction, axis=-1, keepdims=True))


def from_truth(
    model: Model,
    center: Array,
    weights: Array,
    theta: Array,
    generator: np.random.Generator,
    looked_at: int = LOOKED_AT,
) -> Draw:
    """What a row of such sites tells, ``weights`` (M, R) and ``theta`` (M, R, q) in units of the noise."""
    n_components, size = center.shape
    sites = []
    for k, (w, t) in enumerate(zip(weights, theta, strict=True)):
        # As many rows of a component as it has on average: chance is to come from the site's own rows only.
        labels = np.searchsorted(np.cumsum(w), (np.arange(looked_at) + 0.5) / looked_at).clip(max=n_components - 1)
        noise = generator.normal(size=(looked_at, size))
        if model == "gmm":
            rows, target = t[labels] + noise, None
        else:
            rows, target = noise, (noise * t[labels]).sum(axis=1) + generator.normal(size=looked_at)
        sites.append(Site(str(k), rows, target, np.ones(looked_at)))
    family = Gaussian(Identity()) if model == "gmm" else LinearRegression("unit")
    matrix = family.information(stack_sites(sites, gaps=False), Params(weights, theta)) / looked_at
    of_weights, cross, of_theta = (
        matrix[:, :n_components, :n_components],
        matrix[:, :n_components, n_components:],
        matrix[:, n_components:, n_components:],
    )
    profiled = of_theta - np.swapaxes(cross, 1, 2) @ np.linalg.pinv(of_weights, rcond=1e-8, hermitian=True) @ cross
    return Draw(center, weights, regular(profiled), of_weights, regular(of_theta), theta)


def regular(matrix: Array) -> Array:
    """The nearest matrices without directions of which nothing is known."""
    values, vectors = np.linalg.eigh(0.5 * (matrix + np.swapaxes(matrix, -1, -2)))
    values = np.maximum(values, LEAST_KNOWN * values[..., -1:])
    return np.asarray((vectors * values[..., None, :]) @ np.swapaxes(vectors, -1, -2))
