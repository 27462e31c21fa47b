"""Who asks: HTTP signatures verified, only read, or ignored, as `oci.auth` says."""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import structlog

from headrace.oci import signatures
from headrace.oci.api_keys import KeyDirectory
from headrace.oci.errors import NOT_AUTHENTICATED, OciError
from headrace.oci.settings import OciSettings
from headrace.oci.signatures import ApiKey, BadSignature, Signature
from headrace.security.access.principal import ANONYMOUS, Principal

_log = structlog.get_logger("headrace.oci.api")


class Keys(Protocol):
    """Where public keys are found."""

    def verify(self, key: ApiKey, signature: bytes, signed: bytes) -> bool:
        """Whether this key made this signature of these bytes; False too when there is no such key."""


class RequestAuthenticator(Protocol):
    """Tells who sent a request."""

    @property
    def computes(self) -> bool:
        """Whether that takes a computation with the client's key, of milliseconds where the key is long."""

    def authenticate(
        self,
        method: str,
        raw_target: bytes,
        headers: Sequence[tuple[bytes, bytes]],
        *,
        signs_body: bool,
        now_ms: int,
    ) -> Principal:
        """Who sent this. Raises OciError 401."""

    def check_body(self, headers: Sequence[tuple[bytes, bytes]], body: bytes) -> None:
        """Whether the body is the one that was signed. Raises OciError 401."""


class Authenticator:
    """Tells who sent a request. One for all requests of a server."""

    def __init__(self, settings: OciSettings, keys: Keys | None = None) -> None:
        """As `oci.auth` says; `keys` stands for the directory `oci.auth.keys`, in tests."""
        self._mode = settings.auth
        self._keys: Keys = KeyDirectory(Path(settings.auth_keys)) if keys is None else keys

    @property
    def computes(self) -> bool:
        """Whether a signature is verified, with a key of whatever length was put there."""
        return self._mode == "verify"

    def authenticate(
        self,
        method: str,
        raw_target: bytes,
        headers: Sequence[tuple[bytes, bytes]],
        *,
        signs_body: bool,
        now_ms: int,
    ) -> Principal:
        """Who sent this request. Its body, which may not be there yet, is for `check_body`.

        Args:
            method: `GET`, ...
            raw_target: path and query exactly as they were received, nothing decoded.
            headers: names and values as they were received; the case of names does not count.
            signs_body: False for PutMessages, whose signature leaves the body out.
            now_ms: the time by the wall clock, milliseconds since 1970.

        Raises:
            OciError: 401, whatever is wrong. Why is told in the log only.
        """
        if self._mode == "off":
            return ANONYMOUS
        try:
            return self._read(method, raw_target, headers, signs_body=signs_body, now_ms=now_ms)
        except BadSignature as error:
            raise _refused(error) from None

    def check_body(self, headers: Sequence[tuple[bytes, bytes]], body: bytes) -> None:
        """Whether a body is the one whose hash was signed.

        Args:
            headers: as for `authenticate`, which has seen to it that the hash is there if it has to be.
            body: the whole body.

        Raises:
            OciError: 401.
        """
        if self._mode == "verify":
            try:
                signatures.check_body(signatures.headers_of(headers), body)
            except BadSignature as error:
                raise _refused(error) from None

    def _read(
        self,
        method: str,
        raw_target: bytes,
        pairs: Sequence[tuple[bytes, bytes]],
        *,
        signs_body: bool,
        now_ms: int,
    ) -> Principal:
        headers = signatures.headers_of(pairs)
        if "authorization" not in headers:
            raise BadSignature("there is no Authorization header")
        signature = signatures.parse(headers["authorization"].decode("latin-1"))
        signatures.check_coverage(signature.names, method, headers, signs_body=signs_body)
        if self._mode == "verify":
            signed = signatures.signing_string(signature.names, method, raw_target, headers)
            signatures.check_date(signature.names, headers, now_ms)
            self._verify(signature, signed)
        return Principal.of(signature.key_id.tenancy, signature.key_id.user)

    def _verify(self, signature: Signature, signed: bytes) -> None:
        key = signature.key_id
        if not isinstance(key, ApiKey):
            # Who issued a token, or made a resource's key, is known to Oracle's services only.
            raise BadSignature("only API keys can be verified: tokens and resource principals cannot")
        if not self._keys.verify(key, signature.value, signed):
            raise BadSignature(f"no key of {key.tenancy}/{key.user}/{key.fingerprint} made this signature")


def _refused(error: BadSignature) -> OciError:
    _log.info("not authenticated", reason=str(error))
    return OciError(401, NOT_AUTHENTICATED)
