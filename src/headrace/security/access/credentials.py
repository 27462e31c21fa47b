"""SCRAM credentials (RFC 5802, RFC 7677), also for passwords of other mechanisms. Pure."""

import hashlib
import hmac
from enum import Enum

import msgspec

LEAST_ITERATIONS = 4096
"""Of PBKDF2, as in Kafka and RFC 7677."""
MOST_ITERATIONS = 16384
"""As in Kafka. More iterations would make each login take seconds."""


class Mechanism(Enum):
    """SASL mechanisms."""

    SCRAM_SHA_256 = "SCRAM-SHA-256"
    SCRAM_SHA_512 = "SCRAM-SHA-512"

    @property
    def hash(self) -> str:
        """Name in `hashlib`."""
        return self.value.removeprefix("SCRAM-").replace("-", "").lower()

    @property
    def number(self) -> int:
        """Number in Kafka (KIP-554)."""
        return 1 if self is Mechanism.SCRAM_SHA_256 else 2

    @classmethod
    def numbered(cls, number: int) -> "Mechanism | None":
        """Return the mechanism of a number."""
        return next((each for each in cls if each.number == number), None)


class Credential(msgspec.Struct, frozen=True):
    """A user's credential for one mechanism. It does not reveal the password."""

    salt: bytes
    iterations: int
    stored_key: bytes
    server_key: bytes

    def fits(self, mechanism: Mechanism, salted: bytes) -> bool:
        """Return whether a salted password matches."""
        return hmac.compare_digest(_stored(mechanism, salted), self.stored_key)


def salt(mechanism: Mechanism, password: str, with_salt: bytes, iterations: int) -> bytes:
    """Return a salted password (`Hi` of RFC 5802), which takes 1 ms or more."""
    return hashlib.pbkdf2_hmac(mechanism.hash, password.encode(), with_salt, iterations)


def credential(mechanism: Mechanism, salted: bytes, with_salt: bytes, iterations: int) -> Credential:
    """Return the credential of a salted password."""
    server_key = hmac.digest(salted, b"Server Key", mechanism.hash)
    return Credential(with_salt, iterations, _stored(mechanism, salted), server_key)


def invented(mechanism: Mechanism, secret: bytes, name: str) -> Credential:
    """Return the credential of an unknown user: always the same, and valid for no password."""
    seed = hmac.digest(secret, f"{mechanism.value} {name}".encode(), "sha512")
    nobody = hmac.digest(secret, seed, mechanism.hash)
    return Credential(seed[:16], LEAST_ITERATIONS, nobody, nobody)


def _stored(mechanism: Mechanism, salted: bytes) -> bytes:
    client_key = hmac.digest(salted, b"Client Key", mechanism.hash)
    return hashlib.new(mechanism.hash, client_key).digest()
