"""Seals: by them a broker knows that a request comes from another broker of its keyspace, and on whose behalf. Pure.

A seal is JSON and an HMAC-SHA256 with a secret that is kept in the keyspace, which brokers alone can read. It holds for
one method, one target and one body.
"""

import hashlib
import hmac
from base64 import urlsafe_b64decode, urlsafe_b64encode

import msgspec

from headrace.security.access.principal import Principal

HEADER = "headrace-seal"
SECRET_SIZE = 32
SKEW_MS = 300_000
"""How far the clocks of two brokers may be apart: as far as those of OCI's clients."""


class InvalidPeerSignature(Exception):
    """Not a seal, or not one for this request."""


class SignedRequest(msgspec.Struct, frozen=True):
    """What a seal says."""

    principal: Principal
    """On whose behalf it is asked."""
    sent_ms: int
    body: str
    """SHA-256 of the body, in hexadecimal."""


_decode = msgspec.json.Decoder(SignedRequest).decode


class PeerSigner:
    """Makes and reads seals with one secret."""

    def __init__(self, secret: bytes) -> None:
        """Use `secret`, `SECRET_SIZE` random bytes."""
        self._secret = secret

    def seal(self, method: str, target: bytes, body: bytes | bytearray, principal: Principal, now_ms: int) -> str:
        """The header's value for a request; `target` is its path and query as they are sent."""
        content = msgspec.json.encode(SignedRequest(principal, now_ms, digest(body)))
        return f"{urlsafe_b64encode(content).decode()}.{self._mac(method, target, content)}"

    def read(self, value: str, method: str, target: bytes, now_ms: int) -> SignedRequest:
        """What the seal of a request says; whether its body is the one that was sealed is for `covers` to tell.

        Raises:
            InvalidPeerSignature: why, for the log.
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
        """Whether a seal that `read` has let through was made for this body."""
        return hmac.compare_digest(_decode(urlsafe_b64decode(value.partition(".")[0])).body, digest(body))

    def _mac(self, method: str, target: bytes, content: bytes) -> str:
        return hmac.new(self._secret, b"%b %b\n%b" % (method.encode(), target, content), "sha256").hexdigest()


def digest(body: bytes | bytearray) -> str:
    """SHA-256 of a body, in hexadecimal."""
    return hashlib.sha256(body).hexdigest()
