"""Secure sums over a network: the first message, shapes that grow with the number of sites, the course, the secret.

What a site computes and how it is masked is in :mod:`fedgrem.fit.sums_site`; here is what its guard has to know of it.
"""

import json
import os
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedgrem.data.federation import Units
from fedgrem.engines.remote.wire import Fields, digest_of
from fedgrem.errors import InputError, MessageError
from fedgrem.families.gaussian import Gaussian
from fedgrem.fit.penalty import ROUNDS
from fedgrem.fit.spec import COUNTS, FitSpec
from fedgrem.fit.sums import GENERATION, GENERATIONS, MIDDLE_PASSES, MOST_PASSES
from fedgrem.fit.sums_site import KEYS, OF_CENSUS, SUM_TASKS, Begin, Guess, Round, SumOrder, SumReply
from fedgrem.types import Array, Params, named_arrays

PLAYED_SITES = 3
"""Of the play on made-up rows."""
MOST_SITES = 10_000
SECRET = "secret"
"""In a site's kit: 32 random bytes, which never leave it."""
OWN = "own-model.json"
"""In a site's kit: what it found in its last fit of sums."""
LENGTH = 32


class NamedKeys(NamedTuple):
    """What a site says before everything else in a fit of sums."""

    key: Any
    """(32,) its public key of this fit."""
    width: Any
    """() columns, the response among them."""
    names: Any
    """(p, 64) of the columns, as in a census; () where the spec names them."""


# -- messages


def sites_told(fields: Any) -> int:
    """Among how many sites an order says that it asks."""
    try:
        (count,) = fields["mail.common.here"]["shape"]
    except (TypeError, KeyError, ValueError):
        return PLAYED_SITES
    return count if type(count) is int and PLAYED_SITES <= count <= MOST_SITES else PLAYED_SITES


def order_among(order: Any, n_sites: int) -> Any:
    """The form of an order as played among three sites, among so many."""
    mail: SumOrder = order.mail
    common = mail.common._replace(
        keys=_blank((n_sites, LENGTH), np.uint8), here=_blank((n_sites,), mail.common.here.dtype)
    )
    return order._replace(mail=mail._replace(common=common, sealed=_longer(mail.sealed, n_sites)))


def reply_among(reply: SumReply, n_sites: int) -> SumReply:
    """Likewise of a reply: what a site seals for itself says who is here."""
    return reply._replace(sealed=_longer(reply.sealed, n_sites))


def _longer(sealed: Array | None, n_sites: int) -> Array | None:
    more = 8 * (n_sites - PLAYED_SITES)
    return None if sealed is None else _blank((sealed.size + more,), np.uint8)


def _blank(shape: tuple[int, ...], dtype: Any) -> Array:
    return np.broadcast_to(np.zeros((), dtype), shape)


def check_key(who: str, key: Array) -> None:
    """Refuse a public key with which nobody can share a secret: other sites would refuse every sum for it."""
    from fedgrem.kernels.masks import shared_secret

    try:
        shared_secret(bytes(range(LENGTH)), key.tobytes())
    except InputError as error:
        raise MessageError(f"{who} sent a public key that is none.") from error


def check_content(order: SumOrder, parts: tuple[int, ...]) -> None:
    """Refuse numbers that no fit sends, whatever their shapes."""
    content = order.common.content
    for name, leaf in named_arrays(content):
        unbounded = name.rpartition(".")[2] in ("penalty", "noise_penalty")  # may be infinite: one answer for all
        if np.isnan(leaf).any() or (not unbounded and np.isinf(leaf).any()):
            raise MessageError(f"the order's {name} is not finite.")
        if unbounded and np.any(leaf < 0):
            raise MessageError(f"the order's {name} is negative.")
        if name.endswith("parts") and int(leaf) not in (0, *parts):
            raise MessageError(f"the order cuts the rows in {int(leaf)} parts, expected 0, {parts[0]} or {parts[1]}.")
    if isinstance(content, Round) and not 1 <= int(content.steps) <= COUNTS["local_steps"]:
        raise MessageError(f"the order wants {int(content.steps)} local steps, expected 1 to {COUNTS['local_steps']}.")
    if isinstance(content, Guess | Begin):
        weights = content.params.weights
        if not (np.all(weights >= 0) and np.all(np.abs(weights.sum(axis=-1) - 1.0) <= 1e-6)):
            raise MessageError("the order's weights are not on the simplex.")


def told_of(order: SumOrder) -> dict[str, Any]:
    """What the log says of an order: its content, among whom, and the keys in a word that sites can compare."""
    from fedgrem.kernels.masks import fingerprint

    common = order.common
    about = {"keys": fingerprint([key.tobytes() for key in common.keys]), "here": common.here.tolist()}
    return about | {name: leaf.tolist() for name, leaf in named_arrays(common.content, "content")}


# -- the course


class Stretch(NamedTuple):
    """A part of the course: its tasks, of which it begins with the first, and how often they are asked in all."""

    tasks: tuple[str, ...]
    most: int


class Place(NamedTuple):
    """Where a fit of sums is: what the log keeps."""

    place: int = -1
    """Of the stretch."""
    asked: int = 0
    """Orders in it."""
    agreed: str = ""
    """Hash of the units."""
    keys: str = ""
    """Hash of all keys."""
    here: str = ""
    """0 or 1 for every site: who is in the sums."""
    last: str = ""
    """Hash of the last order."""


class SumCourse:
    """What has been asked in one fit of sums, and what may be asked next.

    Keys stay the same, and who was left out of a sum is in none after it: by two sums about the same, with a site and
    without, a center could find out what this site says, time and again.
    """

    def __init__(self, spec: FitSpec) -> None:
        path = [
            Stretch(("sum_begin",), 1),
            Stretch(("sum_round", "sum_pass"), MOST_PASSES * ROUNDS),
            Stretch(("sum_gain",), 1),
        ]
        self.stretches = [
            Stretch((KEYS,), 1),
            Stretch((OF_CENSUS,), MIDDLE_PASSES + 1),
            Stretch(("sum_guess",), GENERATIONS * GENERATION),
            *(path if spec.penalty is None else []),
            Stretch(("sum_begin",), 1),
            Stretch(("sum_round", "sum_pass"), MOST_PASSES * spec.max_rounds),
            Stretch(("sum_end",), 1),
        ]
        self.state = Place()
        self._taken: set[str] = set()

    def take(self, task: str, order: Any) -> bool:
        """Note an order, or refuse one that is out of turn; returns whether it was taken before."""
        digest = digest_of((task, order))
        if digest in self._taken:
            return True
        now = self.state
        keys, here, agreed = now.keys, now.here, now.agreed
        if task != KEYS:
            keys = digest_of(order.mail.common.keys)
            here = "".join("01"[int(one)] for one in order.mail.common.here)
            if now.keys and (keys != now.keys or len(here) != len(now.here)):
                raise MessageError("the order has other keys of the sites than those before it.")
            if now.here and any(a > b for a, b in zip(here, now.here, strict=True)):
                raise MessageError("the order asks for a sum with a site that was left out of one before.")
        if task not in (KEYS, OF_CENSUS):
            agreed = digest_of((order.units, order.gaps))
            if now.agreed and agreed != now.agreed:
                raise MessageError("the order has other units than those before it; they may not change in a fit.")
        place, asked = self._turn(task, here.count("0"))
        self.state = Place(place, asked, agreed, keys, here, digest)
        self._taken.add(digest)
        return False

    def restore(self, state: Any, digest: str) -> None:
        """Take over an order that was taken before, and where the fit was after it."""
        self.state = Place(*state)
        self._taken.add(digest)

    def _turn(self, task: str, lost: int) -> tuple[int, int]:
        """The stretch and how often it has been asked with this: once more for every site that is lost."""
        place, asked = self.state[:2]
        if task not in SUM_TASKS:
            raise MessageError(f"{task[:40]!r} is no task of a fit of sums; they are {', '.join(SUM_TASKS)}.")
        if place >= 0 and task in self.stretches[place].tasks:
            if asked < self.stretches[place].most + lost:
                return place, asked + 1
            raise MessageError(f"{task!r} was asked {asked} time(s), which is all that this fit needs.")
        if place + 1 < len(self.stretches) and task == self.stretches[place + 1].tasks[0]:
            return place + 1, 1
        raise MessageError(
            f"it is not the turn of {task!r}; before it came {self.stretches[place].tasks[0]!r}."
            if place >= 0
            else f"a fit of sums begins with {KEYS!r}, not with {task!r}."
        )


# -- the secret


def secret_in(folder: Path) -> bytes:
    """The secret of a site, from its kit; made when it is first needed, and by one worker only."""
    path = folder / SECRET
    if not path.exists():
        handle, name = tempfile.mkstemp(dir=folder, prefix=f"{SECRET}-")  # readable by its owner only
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(os.urandom(LENGTH))
                file.flush()
                os.fsync(file.fileno())
            os.link(name, path)
        except FileExistsError:
            pass  # another worker was quicker
        finally:
            Path(name).unlink()
    secret = path.read_bytes()
    if len(secret) != LENGTH:
        raise InputError(f"{path} has {len(secret)} bytes, expected {LENGTH}; delete it, and begin the fit again.")
    return secret


def secret_of_fit(secret: bytes, *what: str) -> bytes:
    """A secret for one site, one fit and the same rows; with other rows the site is another one."""
    from fedgrem.kernels.masks import derive

    return derive(secret, b"fit", *(one.encode() for one in what))


def keep_own(path: Path, spec: FitSpec, columns: tuple[str, ...], order: Any, params: Params) -> None:
    """Write down what a site has found for itself, in the units of its columns."""
    found = {"columns": columns} | {name: leaf.tolist() for name, leaf in own_answer(spec, order.units, params).items()}
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(json.dumps(found, indent=1) + "\n")


def own_answer(spec: FitSpec, units: Units | None, params: Params) -> dict[str, Array]:
    """Weights, and means and covariances or lines and standard deviations about them, as the columns are measured."""
    family: Any = spec.family
    theta, noise = params.theta, params.noise
    if isinstance(family, Gaussian):
        location, scale = (0.0, np.ones(theta.shape[1])) if units is None else units
        inside = family.covariance.matrices(noise, len(scale))
        inside = np.broadcast_to(inside * scale[:, None] * scale, (len(theta), len(scale), len(scale)))
        return {"weights": params.weights, "means": theta * scale + location, "covariances": inside}
    width = theta.shape[1] - spec.units.intercept
    location, scale = (np.zeros(width + 1), np.ones(width + 1)) if units is None else units
    coef, intercept = theta[:, :width] * scale[-1] / scale[:-1], np.zeros(len(theta))
    if spec.units.intercept:
        intercept = location[-1] + scale[-1] * theta[:, -1] - coef @ location[:-1]
    spread = np.ones(1) if noise is None else np.exp(noise[:, 0])
    spread = np.broadcast_to(scale[-1] * spread, len(theta))
    return {"weights": params.weights, "coef": coef, "intercept": intercept, "noise": spread}


def masked_in(fields: Fields) -> dict[str, int]:
    """How many numbers leave masked, and how many bytes the site sealed for itself."""
    sealed = fields.get("sealed")
    return {"masked": fields["masked"]["shape"][0]} | ({} if sealed is None else {"sealed": sealed["shape"][0]})
