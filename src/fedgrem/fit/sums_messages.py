"""What is said in a fit of sums: what all sites are sent alike, what each is sent besides, and what they answer."""

from typing import Any, NamedTuple

from fedgrem.kernels.passes import ClippedSums
from fedgrem.types import Array, Params


class Common(NamedTuple):
    """What all sites are sent alike, and can know to be sent alike: their masks hang on it."""

    keys: Array
    """(K, 32) the sites' public keys."""
    here: Array
    """(K,) who is to be in the sum."""
    chain: Array
    """(32,) a hash of the conversation so far."""
    content: Any
    """What the task is given."""


class SumOrder(NamedTuple):
    """What a site is sent."""

    common: Common
    place: Array
    """() which of the sites it is."""
    sealed: Array | None
    """(b,) what it sealed for itself when it last answered."""


class SumReply(NamedTuple):
    """What it answers."""

    masked: Array
    """(m,) whole numbers modulo 2^64: noise, but for their sum over all sites that are here."""
    sealed: Array | None
    """(b,) what it wants to be sent with the next order."""


class KeyReply(NamedTuple):
    """The first answer."""

    key: Array
    """(32,) a public key, made for this fit."""
    width: Array
    """() columns of its rows, the response among them."""


class Frame(NamedTuple):
    """In which units a center is sought, and how strongly sites are pulled."""

    units: Array | None
    """(..., C, s) the common noise, in units of which component parameters are told."""
    reference: Array | None
    """(..., C, s) about which noises are told."""
    penalty: Array
    """(...) lambda."""
    noise_penalty: Array
    """(...)"""
    cap: Array
    """() rows for which a site counts at the most."""
    parts: Array
    """() 0 for all rows; else fits ``(2, ...)`` see the rows outside one of two of so many parts."""


class Point(NamedTuple):
    """A center within a frame."""

    theta: Array
    """(..., R, q)"""
    noise: Array | None
    """(..., C, s)"""


class Middle(NamedTuple):
    """Where the middle of the sites' summaries is sought: of a column's mean and log deviation, and of the log rows."""

    center: Array
    """(3, p)"""
    limit: Array
    """(3, p) beyond which a site's distance from it is clipped."""


class MiddleSums(NamedTuple):
    """What the sites say of it, in units of the limit."""

    n_sites: Array
    """(3, p) that have cells of a column."""
    first: Array
    second: Array
    n_rows: Array
    gaps: Array


class Guess(NamedTuple):
    """Joint starts."""

    params: Params
    """(M, R), (M, R, q)"""
    penalty: Array
    """()"""
    cap: Array


class GuessSums(NamedTuple):
    """Where the sites' rows would move them, and how they like them."""

    say: Array
    """()"""
    mass: Array
    """(M, R)"""
    slope: Array
    """(M, R, q)"""
    weights: Array
    """(M, R)"""
    noise: Array | None
    """(M, C, s)"""
    score: Array
    """(M,)"""


class Begin(NamedTuple):
    """The common start."""

    params: Params


class Round(NamedTuple):
    """The end of a round, and the next one."""

    frame: Frame
    """Of the round that ends."""
    found: Point
    """Its center."""
    next_frame: Frame
    start: Point
    """The same center in the next frame, where the next search begins."""
    number: Array
    """() of the next round, from 0."""
    steps: Array
    """() local steps."""
    total_rows: Array
    """() of all sites."""


class Pass(NamedTuple):
    """One more pass of the search for the center."""

    frame: Frame
    at: Point


class End(NamedTuple):
    """The last center."""

    frame: Frame
    found: Point


class PassSums(NamedTuple):
    """What a site adds to a pass."""

    theta: ClippedSums
    noise: ClippedSums | None


class RoundSums(NamedTuple):
    """What a site adds in a round."""

    first: PassSums
    unsettled: Array
    """() 1 if the site still moves."""
    log_likelihood: Array


class EndSums(NamedTuple):
    """What is said of the sites together at the end."""

    say: Array
    """()"""
    weights: Array
    """(R,) times say."""
    at_center: Array
    """(R,) how many sites sit on the center of a component."""
    log_likelihood: Array


class GainSums(NamedTuple):
    """What the sites gain on held-out rows by every penalty, and how these gains vary together."""

    n_sites: Array
    """()"""
    gain: Array
    """(M,)"""
    products: Array
    """(M, M)"""


class Held(NamedTuple):
    """What a site seals for itself."""

    here: Array
    """(K,) 1 for who was in the last sum: who has left does not come back."""
    before: Params
    """Before its last local steps, ``(..., R)``."""
    after: Params
    """After them."""
    step_scale: Array
    """(..., R)"""
