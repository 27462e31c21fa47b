"""TLS contexts from PEM files (KIP-651), reloaded after changes.

Alerts (RFC 8446, section 6) are sent here. Event loops drop OpenSSL's alert after a failed handshake, and many clients
would then retry forever. They also wait for the client's close_notify, which the RFC does not require, and which idle
clients do not send.
"""

import asyncio
import contextlib
import importlib
import socket
import ssl
from contextvars import ContextVar
from pathlib import Path
from time import time
from typing import Any, Literal, cast

import msgspec
import structlog

from headrace.security.access.principal import ANONYMOUS, Mapping, Principal

_log = structlog.get_logger("headrace.security.tls")

ClientAuth = Literal["none", "requested", "required"]
_VERIFY = {"none": ssl.CERT_NONE, "requested": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}
_Stamp = tuple[tuple[int, int, int], ...]


class TlsFiles(msgspec.Struct, frozen=True):
    """Paths of the files."""

    keystore: Path
    """Private key without a passphrase, and certificate chain."""
    truststore: Path | None
    """Certificates of the authorities of client certificates."""
    client_auth: ClientAuth


class TlsContexts:
    """The current context of a listener."""

    def __init__(self, files: TlsFiles) -> None:
        self.files = files
        self._stamp = _look(files)
        self._context = _load(files)

    def current(self) -> ssl.SSLContext:
        """Return the context for one handshake. Invalid changes are logged, and the old context is kept."""
        try:
            stamp = _look(self.files)
            if stamp != self._stamp:
                self._stamp = stamp
                self._context = _load(self.files)
                _log.info("certificates reloaded", keystore=str(self.files.keystore))
        except ValueError as error:
            _log.error("new certificates cannot be used; the old ones stay in use", reason=str(error))
        return self._context


class PeerContext:
    """The current context for connections to other brokers.

    It trusts the system's authorities, the truststore, and this server's own certificates.
    """

    def __init__(self, files: TlsFiles | None) -> None:
        self._files = files
        self._stamp: _Stamp = ()
        self._context: ssl.SSLContext | None = None

    def current(self) -> ssl.SSLContext:
        """Return the context for one connection, rebuilt only after changes, as that takes 27 ms of CPU.

        See `TlsContexts.current`. Raises OSError or ssl.SSLError if no context exists.
        """
        stamp = () if self._files is None else _look(self._files)
        if self._context is None:
            self._context = self._made()
        elif stamp != self._stamp:
            try:
                self._context = self._made()
            except (OSError, ValueError) as error:
                reason = _reason(error)
                _log.error(
                    "requests to other brokers cannot use new certificates; the old ones stay in use", reason=reason
                )
        self._stamp = stamp
        return self._context

    def _made(self) -> ssl.SSLContext:
        context = ssl.create_default_context()
        if self._files is None:
            return context
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        context.load_verify_locations(self._files.keystore)
        if self._files.truststore is not None:
            context.load_verify_locations(self._files.truststore)
        context.load_cert_chain(self._files.keystore, password="")
        return context


def _look(files: TlsFiles) -> _Stamp:
    found = []
    for path in (files.keystore, files.truststore):
        if path is None:
            continue
        try:
            status = path.stat()
        except OSError:
            # The caller reports the error.
            found.append((0, 0, 0))
        else:
            found.append((status.st_mtime_ns, status.st_size, status.st_ino))
    return tuple(found)


def _load(files: TlsFiles) -> ssl.SSLContext:
    context = AlertContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # A resumed session does not send its certificate again, even if it is no longer trusted. TLS 1.2 also resumes by
    # session id, which Python cannot disable; such sessions end with the context.
    context.options |= ssl.OP_NO_TICKET | ssl.OP_NO_RENEGOTIATION
    context.num_tickets = 0
    _read(files.keystore, "ssl.keystore.location", "a private key and its certificates")
    try:
        # Without a passphrase, OpenSSL would prompt for one.
        context.load_cert_chain(files.keystore, password="")
    except (ssl.SSLError, ValueError) as error:
        raise ValueError(
            f"ssl.keystore.location={files.keystore}: expected a private key without a passphrase and its certificates "
            f"as PEM, found otherwise ({_reason(error)}); headrace tls create DIR makes such files"
        ) from None
    if files.truststore is not None:
        _read(files.truststore, "ssl.truststore.location", "certificates of authorities")
        try:
            context.load_verify_locations(files.truststore)
        except (ssl.SSLError, ValueError) as error:
            raise ValueError(
                f"ssl.truststore.location={files.truststore}: expected certificates of authorities as PEM, "
                f"found otherwise ({_reason(error)})"
            ) from None
    context.verify_mode = _VERIFY[files.client_auth]
    return context


def _read(path: Path, setting: str, what: str) -> None:
    try:
        with path.open("rb"):
            pass
    except OSError as error:
        raise ValueError(f"{setting}={path}: {error.strerror}; it has to be a file with {what} as PEM") from None


def _reason(error: Exception) -> str:
    found = getattr(error, "reason", None) or str(error) or type(error).__name__
    return str(found).lower().replace("_", " ")


class Tls(msgspec.Struct, frozen=True):
    """TLS configuration of a listener."""

    contexts: TlsContexts
    mapping: Mapping

    def __post_init__(self) -> None:
        """Load the certificate parser at the start, and only with TLS."""
        importlib.import_module("cryptography.x509")


def principal_of(transport: asyncio.BaseTransport, mapping: Mapping) -> Principal | None:
    """Return the principal of a verified certificate: ANONYMOUS without one, None if no rule matches."""
    tls = transport.get_extra_info("ssl_object")
    der = None if tls is None else tls.getpeercert(binary_form=True)
    if not der:
        return ANONYMOUS
    from cryptography import x509  # noqa: PLC0415  # loaded with `Tls`

    try:
        distinguished = x509.load_der_x509_certificate(der).subject.rfc4514_string()
    except ValueError as error:
        _log.warning("a client's certificate has no readable name", reason=str(error))
        return None
    name = mapping.name(distinguished)
    return None if name is None else Principal(name or ANONYMOUS.name)


ACCEPTED: ContextVar[socket.socket] = ContextVar("accepted")
"""Socket of the connection whose handshake starts with an `AlertContext`."""

_UNREAD = "APPLICATION_DATA_AFTER_CLOSE_NOTIFY"
"""OpenSSL's error for unread client data at the end of a connection."""


class _Secured(ssl.SSLObject):
    accepted: socket.socket | None
    outgoing: ssl.MemoryBIO
    told = False
    """Whether an alert was sent, so that OpenSSL cannot be used again."""

    def do_handshake(self) -> None:
        """Continue the handshake. Before a failure, send the alert."""
        try:
            super().do_handshake()
            self._check_resumed()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except ssl.SSLError:
            if self.accepted is not None:
                # A few bytes; if the kernel does not take them, the client does not read.
                with contextlib.suppress(OSError):
                    self.accepted.send(self.outgoing.read())
            raise

    def _check_resumed(self) -> None:
        """Reject expired certificates of TLS 1.2 sessions resumed by id, which OpenSSL does not check."""
        certificate = self.getpeercert() if self.session_reused else None
        if certificate and ssl.cert_time_to_seconds(str(certificate["notAfter"])) < time():
            error = ssl.SSLError("certificate has expired")
            error.reason = "CERTIFICATE_HAS_EXPIRED"
            raise error

    def unwrap(self) -> None:
        waiting = self.outgoing.pending
        try:
            if not self.told:
                super().unwrap()
                return
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError as error:
            # Unread client requests must not drop earlier responses.
            if error.reason != _UNREAD:
                raise
            self.told = True
        # The event loop would close the socket and drop unsent bytes.
        if waiting:
            raise ssl.SSLWantReadError


class AlertContext(ssl.SSLContext):
    """A context that sends alerts, and closes without waiting for the client."""

    sslobject_class = _Secured

    def wrap_bio(self, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO, *given: Any, **more: Any) -> _Secured:
        """See `ssl.SSLContext`."""
        made = cast("_Secured", super().wrap_bio(incoming, outgoing, *given, **more))
        made.accepted, made.outgoing = ACCEPTED.get(None), outgoing
        return made
