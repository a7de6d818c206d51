"""What a center rule is: a function of site estimates, and what it answers."""

from typing import ClassVar, NamedTuple, Protocol

from fedgrem.types import Array


class Centered(NamedTuple):
    """What a center rule answers."""

    shrunk: Array
    """(K, ..., R, q)"""
    center: Array
    """(..., R, q)"""
    trust: Array
    """(K, ..., R) in [0, 1]: by what the rule multiplied each site's weight."""
    iterations: Array
    gap: Array
    between: Array | None = None
    """(..., R) the between-site variance, where the rule estimates it."""


class CenterRule(Protocol):
    """A function of site estimates in noise units."""

    name: ClassVar[str]
    estimates: ClassVar[bool]
    """Whether it finds by itself how strongly to pull; a penalty that is given is a threshold all the same."""
    picks_columns: ClassVar[bool]
    """Whether components are to differ in few columns, which are sought before the rounds."""

    def __call__(
        self, theta: Array, weight: Array, threshold: Array, held: Array, start: Array, present: Array
    ) -> Centered:
        """The center, and the sites shrunk to it.

        Parameters
        ----------
        theta : (K, ..., R, q) estimates, aligned; start : (..., R, q) the last center.
        weight, threshold, held : (K, ..., R) what a site counts for, how far it is pulled, and how many rows its
            estimate rests on.
        present : (K,) whose estimates are of this round; the others have weight 0.
        """
        ...
