"""Authenticate requests as `oci.auth` requires."""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import structlog

from headrace.oci import signatures
from headrace.oci.api_keys import KeyDirectory
from headrace.oci.errors import NOT_AUTHENTICATED, OciError
from headrace.oci.settings import UNCONFIGURED, OciSettings
from headrace.oci.signatures import ApiKey, BadSignature, Signature
from headrace.security.access.principal import ANONYMOUS, Principal

_log = structlog.get_logger("headrace.oci.api")


class Keys(Protocol):
    """A store of public keys."""

    def verify(self, key: ApiKey, signature: bytes, signed: bytes) -> bool:
        """Return whether a known key signed these bytes."""


class RequestAuthenticator(Protocol):
    """Authenticates requests."""

    @property
    def computes(self) -> bool:
        """Whether authentication verifies a signature, which takes milliseconds for long keys."""

    def authenticate(
        self,
        method: str,
        raw_target: bytes,
        headers: Sequence[tuple[bytes, bytes]],
        *,
        signs_body: bool,
        now_ms: int,
    ) -> Principal:
        """Return the principal. `check_body` checks the body later.

        `raw_target` is not decoded, and header names have any case. PutMessages has `signs_body=False`.

        Raises OciError 401. Only the log has the reason.
        """

    def check_body(self, headers: Sequence[tuple[bytes, bytes]], body: bytes) -> None:
        """Check the body against its signed hash. Raises OciError 401."""


class Authenticator:
    """Follows `oci.auth`."""

    def __init__(self, settings: OciSettings, keys: Keys | None = None) -> None:
        self._mode = settings.auth
        self._keys: Keys = KeyDirectory(Path(settings.auth_keys)) if keys is None else keys

    @property
    def computes(self) -> bool:
        """See `RequestAuthenticator`."""
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
        """See `RequestAuthenticator`."""
        if self._mode == "refuse":
            raise OciError(401, UNCONFIGURED)
        if self._mode == "off":
            return ANONYMOUS
        try:
            return self._read(method, raw_target, headers, signs_body=signs_body, now_ms=now_ms)
        except BadSignature as error:
            raise _refused(error) from None

    def check_body(self, headers: Sequence[tuple[bytes, bytes]], body: bytes) -> None:
        """See `RequestAuthenticator`."""
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
            # Only Oracle's services can verify tokens and resource keys.
            raise BadSignature("only API keys can be verified: tokens and resource principals cannot")
        if not self._keys.verify(key, signature.value, signed):
            raise BadSignature(f"no key of {key.tenancy}/{key.user}/{key.fingerprint} made this signature")


def _refused(error: BadSignature) -> OciError:
    _log.info("authentication failed", reason=str(error))
    return OciError(401, NOT_AUTHENTICATED)
