"""Certificates, keys and authorities as PEM files (KIP-651), read again when they change: no restart for a new one.

The certificate of the other side names the principal of a connection.

Alerts (RFC 8446, section 6) are sent here. Event loops close a connection whose handshake fails without a word, and
drop the alert that OpenSSL has ready: many clients would try again for ever. They send close_notify, but then wait for
that of the client. Clients with idle connections are not listening, and the RFC requires no wait.
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
    """Where everything lies."""

    keystore: Path
    """The private key, without a passphrase, and the chain of its certificate."""
    truststore: Path | None
    """Certificates of the authorities whose clients' certificates are taken."""
    client_auth: ClientAuth


class TlsContexts:
    """What handshakes are made with, as the files are now."""

    def __init__(self, files: TlsFiles) -> None:
        """Read the files; raises ValueError, saying which one is wrong and how."""
        self.files = files
        self._stamp = _look(files)
        self._context = _load(files)

    def current(self) -> ssl.SSLContext:
        """For one handshake. Files that changed and cannot be used leave it as it was, with a line in the log."""
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
    """What this server asks other brokers with, and by which it knows them, as its files are now.

    Besides the system's authorities it trusts those of the truststore, and certificates that are this server's own.
    """

    def __init__(self, files: TlsFiles | None) -> None:
        """`files`: its own; None: it has none. Nothing is read yet."""
        self._files = files
        self._stamp: _Stamp = ()
        self._context: ssl.SSLContext | None = None

    def current(self) -> ssl.SSLContext:
        """Return the context for one connection, rebuilt only after files change, because that takes 27 ms of CPU.

        Changed files that cannot be used are logged, and the old context is kept.

        Raises: OSError, ssl.SSLError: the files cannot be used, and never could.
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
            # The caller reports why it cannot be read.
            found.append((0, 0, 0))
        else:
            found.append((status.st_mtime_ns, status.st_size, status.st_ino))
    return tuple(found)


def _load(files: TlsFiles) -> ssl.SSLContext:
    context = AlertContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # A resumed session does not send its certificate again, even if it is no longer trusted. TLS 1.2 also resumes by
    # ids, which Python cannot disable: these end with the context (see `AlertContext`).
    context.options |= ssl.OP_NO_TICKET | ssl.OP_NO_RENEGOTIATION
    context.num_tickets = 0
    _read(files.keystore, "ssl.keystore.location", "a private key and its certificates")
    try:
        # Without a passphrase OpenSSL would ask for one on the terminal.
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
    """Whether a file can be read; raises ValueError."""
    try:
        with path.open("rb"):
            pass
    except OSError as error:
        raise ValueError(f"{setting}={path}: {error.strerror}; it has to be a file with {what} as PEM") from None


def _reason(error: Exception) -> str:
    found = getattr(error, "reason", None) or str(error) or type(error).__name__
    return str(found).lower().replace("_", " ")


class Tls(msgspec.Struct, frozen=True):
    """What a listener with TLS needs: certificates, and names for those of its clients."""

    contexts: TlsContexts
    mapping: Mapping

    def __post_init__(self) -> None:
        """Load the certificate parser at the start, and only with TLS."""
        importlib.import_module("cryptography.x509")


def principal_of(transport: asyncio.BaseTransport, mapping: Mapping) -> Principal | None:
    """The principal that a verified certificate names; ANONYMOUS without one. None: no rule has a name for it."""
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
"""The socket of the connection whose handshake begins, where the context is a `AlertContext`."""

_UNREAD = "APPLICATION_DATA_AFTER_CLOSE_NOTIFY"
"""OpenSSL's error for unread client data at the end of a connection."""


class _Secured(ssl.SSLObject):
    accepted: socket.socket | None
    outgoing: ssl.MemoryBIO
    told = False
    """Whether an alert was sent, so that OpenSSL cannot be used again."""

    def do_handshake(self) -> None:
        """Continue the handshake. Before a failure, send the alert.

        Raises: ssl.SSLError, also if a resumed session's certificate has expired.
        """
        try:
            super().do_handshake()
            self._check_resumed()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except ssl.SSLError:
            if self.accepted is not None:
                # A few bytes: where the kernel does not take them at once, the client takes nothing anyway.
                with contextlib.suppress(OSError):
                    self.accepted.send(self.outgoing.read())
            raise

    def _check_resumed(self) -> None:
        """Reject expired certificates of TLS 1.2 sessions resumed by id, because OpenSSL does not check their dates.

        A new context forgets sessions, so clients removed from the truststore are rejected.
        """
        certificate = self.getpeercert() if self.session_reused else None
        if certificate and ssl.cert_time_to_seconds(str(certificate["notAfter"])) < time():
            error = ssl.SSLError("certificate has expired")
            error.reason = "CERTIFICATE_HAS_EXPIRED"
            raise error

    def unwrap(self) -> None:
        """Send close_notify without waiting for the client's."""
        waiting = self.outgoing.pending
        try:
            if not self.told:
                super().unwrap()
                return
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError as error:
            # Unread requests of the client must not drop earlier responses.
            if error.reason != _UNREAD:
                raise
            self.told = True
        # What has not gone to the socket yet would be lost: event loops close it now.
        if waiting:
            raise ssl.SSLWantReadError


class AlertContext(ssl.SSLContext):
    """A context that sends alerts for failed handshakes, and closes without waiting for the client."""

    sslobject_class = _Secured

    def wrap_bio(self, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO, *given: Any, **more: Any) -> _Secured:
        """See `ssl.SSLContext`: event loops begin a connection so."""
        made = cast("_Secured", super().wrap_bio(incoming, outgoing, *given, **more))
        made.accepted, made.outgoing = ACCEPTED.get(None), outgoing
        return made
