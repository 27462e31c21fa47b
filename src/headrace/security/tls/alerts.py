"""TLS' own alerts: why a handshake fails, and that a connection ends (RFC 8446, section 6).

Event loops close a connection whose handshake fails without a word, and drop the alert that OpenSSL has ready. A client
with a certificate that is not taken sees a connection that ends, and many clients try again for ever.

They say that a connection ends (close_notify), but then wait for the client to say so, too. Clients with idle
connections are not listening: a server would stop only when that wait is over. The RFC asks nobody to wait.
"""

import contextlib
import socket
import ssl
from contextvars import ContextVar
from time import time
from typing import Any, cast

ACCEPTED: ContextVar[socket.socket] = ContextVar("accepted")
"""The socket of the connection whose handshake begins, where the context is a `AlertContext`."""

_UNREAD = "APPLICATION_DATA_AFTER_CLOSE_NOTIFY"
"""OpenSSL's word for what the client had sent and nobody has read when the connection ended."""


class _Secured(ssl.SSLObject):
    """The TLS of one connection."""

    accepted: socket.socket | None
    outgoing: ssl.MemoryBIO
    told = False
    """Whether the client has been told that it ends, and OpenSSL cannot be asked again."""

    def do_handshake(self) -> None:
        """Go on with it; before this fails, the client is told.

        Raises:
            ssl.SSLError, also where a session is resumed whose certificate has expired meanwhile.
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
        """Tickets are off, but clients of TLS 1.2 may resume a session by its id, and OpenSSL looks at no date then.

        It forgets sessions when the context is made anew, so what was taken out of the truststore is refused.
        """
        certificate = self.getpeercert() if self.session_reused else None
        if certificate and ssl.cert_time_to_seconds(str(certificate["notAfter"])) < time():
            error = ssl.SSLError("certificate has expired")
            error.reason = "CERTIFICATE_HAS_EXPIRED"
            raise error

    def unwrap(self) -> None:
        """Tell the client that the connection ends; what the client says to that is not waited for."""
        waiting = self.outgoing.pending
        try:
            if not self.told:
                super().unwrap()
                return
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError as error:
            # The client's next requests, which nobody reads any more, are no reason to drop the answers before them.
            if error.reason != _UNREAD:
                raise
            self.told = True
        # What has not gone to the socket yet would be lost: event loops close it now.
        if waiting:
            raise ssl.SSLWantReadError


class AlertContext(ssl.SSLContext):
    """A context whose connections tell why their handshakes fail, and end without the client's consent."""

    sslobject_class = _Secured

    def wrap_bio(self, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO, *given: Any, **more: Any) -> _Secured:
        """See `ssl.SSLContext`: event loops begin a connection so."""
        made = cast("_Secured", super().wrap_bio(incoming, outgoing, *given, **more))
        made.accepted, made.outgoing = ACCEPTED.get(None), outgoing
        return made
