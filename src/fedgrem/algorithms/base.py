"""What an algorithm is: a local step and a central step, and what it says of itself."""

from dataclasses import fields
from typing import Any, ClassVar, Literal, NamedTuple, Protocol

import numpy as np

from fedgrem.algorithms.center_rules import Redescending
from fedgrem.algorithms.centered import CenterRule
from fedgrem.data.stack import Stack
from fedgrem.families.base import Family
from fedgrem.kernels.randomness import generator_for
from fedgrem.types import Array, Broadcast, Central, Influence, Params, Upload, map_arrays


class Traits(NamedTuple):
    """What tables, pictures and verdicts need to know of an algorithm; nobody asks for its class."""

    title: str
    sharing: Literal["none", "pulled", "all"]
    """What sites have in common at the end: nothing, what the pull brings together, or all component parameters."""
    pools_rows: bool = False
    """Whether it needs the rows of all sites in one place, which only the in-process engine has."""
    pulls: bool = False
    """Whether it has a penalty that says how strongly sites are pulled together."""
    center: str = ""
    """Why there is no common center to hold a new site against; empty where there is one."""
    starts_alone: bool = False
    """Whether sites do not even exchange starts: nothing leaves them that could help another."""
    whole_rows: bool = False
    """Whether its sites send sums over complete rows, so that no cell may be missing."""


class Pull(NamedTuple):
    """How strongly a fit pulls its sites together."""

    penalty: Array
    """(...) C, one per fit; 0 fits every site alone."""
    noise_penalty: Array
    """(...) C of the noise."""
    pulled: Array
    """(K,) False for sites that keep their own answer and have no part in the center."""
    weights_penalty: Array | float = 0.0
    """() C of the mixture weights; 0 leaves every site its own."""
    estimated: bool = False
    """Whether the center rule finds how strongly to pull, and penalties only bound that."""
    lacking: Array | None = None
    """(K, R) which components a site lacks; None where all sites have all."""


class Algorithm(Protocol):
    """A local step and a central step: functions of arrays, each written once for every engine.

    Options are the fields of a frozen dataclass: plain values, so that a :class:`~fedgrem.fit.spec.FitSpec` can say it.
    """

    name: ClassVar[str]
    traits: ClassVar[Traits]

    @property
    def noise_penalty(self) -> float | None:
        """C of the noise; None where it is chosen, or that of everything else."""
        ...

    @property
    def penalty_decay(self) -> float:
        """Of the recursion of lambda."""
        ...

    @property
    def pool_weights(self) -> bool | Literal["auto"]:
        """Whether mixture weights are shrunk to common ones too."""
        ...

    @property
    def rule(self) -> CenterRule:
        """How estimates of sites become a center, where they are pulled to one."""
        ...

    def estimates(self, family: Family) -> bool:
        """Whether its center rule finds how strongly to pull sites of this family together."""
        ...

    @property
    def picks_columns(self) -> bool:
        """Whether its components are to differ in few columns, which are sought before the rounds."""
        ...

    def invited(self, seed: int, number: int, names: tuple[str, ...]) -> Array:
        """(K,) which sites are asked in round ``number``; drawn by name, so that their order does not matter."""
        ...

    def begin(self, family: Family, start: Params, n_rows: Array, pull: Pull) -> Central:
        """What the center holds before round 1, from aligned starts ``(K, ..., R), (K, ..., R, q)``."""
        ...

    def broadcast(self, family: Family, central: Central) -> Broadcast:
        """What each site is sent, stacked ``(K, ...)``."""
        ...

    def local_step(self, family: Family, stack: Stack, sent: Broadcast, seed: int) -> Upload:
        """The sites' work in a round, each on its own rows; random numbers come from (seed, site, purpose)."""
        ...

    def central_step(
        self, family: Family, central: Central, uploads: Upload, present: Array
    ) -> tuple[Central, Influence]:
        """The center's work in a round; sites that are not ``present`` (K,) have no say and stay as they are."""
        ...


class Options:
    """What algorithms share: their options by name, as scikit-learn reads them, and what holds where they have none."""

    noise_penalty: Any = None
    penalty_decay: Any = 0.1
    pool_weights: Any = False
    rule: Any = Redescending()
    picks_columns: Any = False

    def estimates(self, family: Family) -> bool:
        """Whether the center rule finds how strongly to pull: no."""
        return False

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The options by name."""
        own: Any = self  # every algorithm is a dataclass; its name and traits are no options
        return {one.name: getattr(self, one.name) for one in fields(own)}

    def invited(self, seed: int, number: int, names: tuple[str, ...]) -> Array:
        """(K,) which sites are asked in a round: all."""
        return np.ones(len(names), dtype=bool)


def lots(seed: int, purpose: str, number: int, names: tuple[str, ...]) -> Array:
    """(K,) numbers in [0, 1) that the sites draw for a round, each by its name."""
    return np.array([generator_for(seed, name, purpose, number).random() for name in names])


def keep_absent(params: Params, before: Params, present: Array) -> Params:
    """Sites that did not answer keep what they had."""
    if present.all():
        return params

    def kept(new: Array, old: Array) -> Array:
        return np.where(present.reshape(-1, *(1,) * (new.ndim - 1)), new, old)

    found: Params = map_arrays(kept, params, before)
    return found


def middle(leaf: Array | None) -> Array | None:
    """The coordinate-wise median over sites."""
    return None if leaf is None else np.asarray(np.median(leaf, axis=0))


def middle_weights(weights: Array) -> Array:
    """Mixture weights ``(..., R)`` in the middle of those of the sites."""
    found = np.median(weights, axis=0)
    return np.asarray(found / found.sum(axis=-1, keepdims=True))


def on_center(theta: Array, center: Array) -> Array:
    """(..., R, 1) which components are exactly the center's."""
    return np.asarray((theta == center).all(axis=-1, keepdims=True))


def full_penalty(constant: Array | float, size: float, n_sites: int) -> Array:
    """Lambda that belongs to C, for a block of ``size`` parameters."""
    return np.asarray(constant * np.sqrt(size + np.log(n_sites)))


def for_all(leaf: Array, n_sites: int) -> Array:
    """A common array as each of K sites gets it, ``(K, ...)``."""
    return np.broadcast_to(leaf, (n_sites, *leaf.shape))


def vanished(weights: Array, n_rows: Array) -> Array:
    """Components ``(K, ..., R)`` of which a site holds less than one row.

    A component of one row far from all others holds all but some 1e-12 of it. Were it to begin again for that, it would
    do so for ever.
    """
    return np.asarray(weights * n_rows.reshape(-1, *(1,) * (weights.ndim - 1)) < 0.999)


def no_pull(weights: Array, weight: Array | None = None, threshold: float = 0.0) -> Influence:
    """The influence of a central step without a pull: what sites count for, and no problem to solve."""
    counted = np.zeros_like(weights) if weight is None else np.broadcast_to(weight[:, None], weights.shape)
    none = np.zeros(())
    return Influence(counted, np.full(weights.shape, threshold), none, np.zeros((), dtype=int), none)
