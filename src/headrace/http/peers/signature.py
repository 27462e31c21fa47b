"""HMAC signatures of requests between brokers, with their principal. Pure.

A signature is for one method, target and body. Only brokers can read the secret in the keyspace.
"""

import hashlib
import hmac
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Sequence

import msgspec

from headrace.security.access.principal import Principal

HEADER = "headrace-seal"
_HEADER = HEADER.encode()
SECRET_SIZE = 32
SKEW_MS = 300_000
"""Maximum difference between the clocks of two brokers, as for OCI clients."""


class InvalidPeerSignature(Exception):
    """No signature, or not for this request."""


class SignedRequest(msgspec.Struct, frozen=True):
    """Content of a signature."""

    principal: Principal
    """Principal of the request."""
    sent_ms: int
    body: str
    """SHA-256 of the body, in hexadecimal."""


_decode = msgspec.json.Decoder(SignedRequest).decode


def seal_of(headers: Sequence[tuple[bytes, bytes]]) -> str | None:
    """Return a request's HMAC signature; None: a client sent it."""
    return next((value.decode("latin-1") for name, value in headers if name == _HEADER), None)


class PeerSigner:
    """Creates and verifies signatures with a secret."""

    def __init__(self, secret: bytes) -> None:
        """Use `secret`, `SECRET_SIZE` random bytes."""
        self._secret = secret

    def seal(self, method: str, target: bytes, body: bytes | bytearray, principal: Principal, now_ms: int) -> str:
        """Return the header for a request; `target` is path and query as sent."""
        content = msgspec.json.encode(SignedRequest(principal, now_ms, digest(body)))
        return f"{urlsafe_b64encode(content).decode()}.{self._mac(method, target, content)}"

    def read(self, value: str, method: str, target: bytes, now_ms: int) -> SignedRequest:
        """Verify a signature without the body (see `covers`).

        Raises InvalidPeerSignature with the reason, for the log.
        """
        text, _, mac = value.partition(".")
        try:
            content = urlsafe_b64decode(text)
        except ValueError:
            raise InvalidPeerSignature("not base64") from None
        if not hmac.compare_digest(mac.encode(), self._mac(method, target, content).encode()):
            raise InvalidPeerSignature("not made with this keyspace's secret, or for another request")
        found = _decode(content)
        if abs(now_ms - found.sent_ms) > SKEW_MS:
            raise InvalidPeerSignature(
                f"made {abs(now_ms - found.sent_ms) // 1000} s away from now by this machine's clock"
            )
        return found

    @staticmethod
    def covers(value: str, body: bytes | bytearray) -> bool:
        """Return whether a verified signature is for this body."""
        return hmac.compare_digest(_decode(urlsafe_b64decode(value.partition(".")[0])).body, digest(body))

    def _mac(self, method: str, target: bytes, content: bytes) -> str:
        return hmac.new(self._secret, b"%b %b\n%b" % (method.encode(), target, content), "sha256").hexdigest()


def digest(body: bytes | bytearray) -> str:
    """Return SHA-256 in hexadecimal."""
    return hashlib.sha256(body).hexdigest()
