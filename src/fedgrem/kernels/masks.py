"""Numbers that only open as a sum: pairwise masks, after Bonawitz et al., "Practical secure aggregation" (CCS 2017).

Every two sites share a secret (X25519) that the center does not know. For every sum they stretch it (HKDF, AES in
counter mode) to one mask, which one of them adds and the other takes away, modulo 2^64: what a site sends looks like
noise, and the masks cancel when all of them are added up. What a site keeps between two messages travels with them,
sealed (AES-GCM) with a key of its own.
"""

import hashlib
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from fedgrem.errors import InputError, MissingExtraError
from fedgrem.types import Array

try:
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
    from cryptography.hazmat.primitives.ciphers import Cipher
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    from cryptography.hazmat.primitives.ciphers.algorithms import AES
    from cryptography.hazmat.primitives.ciphers.modes import CTR
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF
except ImportError as missing:
    raise MissingExtraError(
        'secure sums need the cryptography package; `pip install "fedgrem[secure]"` brings it.'
    ) from missing

FEWEST = 3
"""Sites in a sum: of two, each would know the other's part."""
UNIT = 2.0**-32
"""Numbers travel as whole multiples of this."""
KEY = 32
"""Bytes of a key."""


def largest(n_sites: int) -> float:
    """The largest number that a site may add, so that no sum of so many sites can overflow.

    Examples
    --------
    >>> largest(2) == 2.0**30
    True
    """
    return float(2.0**63 * UNIT / n_sites) if n_sites > 1 else float(2.0**63 * UNIT)


def derive(secret: bytes, *purpose: bytes) -> bytes:
    """A key for a purpose (HKDF with SHA-256)."""
    return HKDF(hashes.SHA256(), KEY, salt=None, info=b"fedgrem\x1f" + b"\x1f".join(purpose)).derive(secret)


def public_key(secret: bytes) -> bytes:
    """What others are told of a secret of 32 bytes."""
    return X25519PrivateKey.from_private_bytes(secret).public_key().public_bytes_raw()


@lru_cache(maxsize=4096)
def shared_secret(secret: bytes, other: bytes) -> bytes:
    """What a site shares with another one, from its own secret and the other's public key."""
    try:
        return X25519PrivateKey.from_private_bytes(secret).exchange(X25519PublicKey.from_public_bytes(other))
    except ValueError as error:
        raise InputError(
            "a public key of another site is none; the center has changed it, or the site lies."
        ) from error


def mask(secret: bytes, place: int, keys: Sequence[bytes], here: Array, purpose: bytes, count: int) -> Array:
    """(count,) what site ``place`` adds for its pairs with all that are ``here``: whole numbers modulo 2^64."""
    total = np.zeros(count, dtype=np.uint64)
    for other in np.flatnonzero(here).tolist():
        if other == place:
            continue
        key = derive(shared_secret(secret, keys[other]), b"mask", purpose)
        stream = Cipher(AES(key), CTR(bytes(16))).encryptor().update(bytes(8 * count))
        drawn = np.frombuffer(stream, dtype="<u8")
        total = total + drawn if place < other else total - drawn
    return total


def to_whole(numbers: Array, n_sites: int, who: str) -> Array:
    """Numbers as multiples of ``UNIT`` modulo 2^64; one that could overflow a sum is refused."""
    most = largest(n_sites)
    if not np.all(np.abs(numbers) < most):
        bad = np.asarray(numbers)[~(np.abs(numbers) < most)][0]
        raise InputError(
            f"site {who!r} would add {bad:.3g} to a sum, and what is not below {most:.3g} could overflow it; "
            "put its columns on the scale of the other sites'."
        )
    return np.rint(numbers / UNIT).astype(np.int64).view(np.uint64)


def opened_sum(masked: Array) -> Array:
    """The sum of what all sites of a sum sent, ``(K, count)``, as numbers again.

    Examples
    --------
    >>> secrets = [derive(bytes([k]) * 32, b"site") for k in range(3)]
    >>> keys = [public_key(secret) for secret in secrets]
    >>> sent = [
    ...     to_whole(np.array([0.5, -float(k)]), 3, "") + mask(secrets[k], k, keys, np.ones(3, bool), b"1", 2)
    ...     for k in range(3)
    ... ]
    >>> opened_sum(np.stack(sent)).tolist()
    [1.5, -3.0]
    """
    return np.asarray(np.add.reduce(masked.view(np.uint64), axis=0).view(np.int64) * UNIT)


def seal(key: bytes, text: bytes) -> bytes:
    """A text that only the holder of the key can read, unchanged. A key is for one text."""
    return AESGCM(key).encrypt(bytes(12), text, None)


def unseal(key: bytes, sealed: bytes) -> bytes:
    """The way back."""
    try:
        return AESGCM(key).decrypt(bytes(12), sealed, None)
    except InvalidTag as error:
        raise InputError("what the site sealed for itself comes back changed, or out of turn.") from error


def fingerprint(keys: Sequence[bytes]) -> str:
    """Of all public keys of a fit, for the sites to compare: a center that put its own in their place shows.

    Examples
    --------
    >>> fingerprint([bytes(32)])
    '6668-7aad-f862-bd77'
    """
    found = hashlib.sha256(b"".join(keys)).hexdigest()[:16]
    return "-".join(found[k : k + 4] for k in range(0, 16, 4))
