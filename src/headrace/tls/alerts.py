"""Handshakes that fail tell the client why, by TLS' own alert (RFC 8446, section 6.2).

Event loops close a connection whose handshake fails without a word, and drop the alert that OpenSSL has ready. A client
with a certificate that is not taken sees a connection that ends, and many clients try again for ever.
"""

import contextlib
import socket
import ssl
from contextvars import ContextVar
from typing import Any, cast

ACCEPTED: ContextVar[socket.socket] = ContextVar("accepted")
"""The socket of the connection whose handshake begins, where the context is a `TellingContext`."""


class _Handshake(ssl.SSLObject):
    """The TLS of one connection."""

    accepted: socket.socket | None
    outgoing: ssl.MemoryBIO

    def do_handshake(self) -> None:
        """Go on with it; before this fails, the client is told."""
        try:
            super().do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except ssl.SSLError:
            if self.accepted is not None:
                # A few bytes: where the kernel does not take them at once, the client takes nothing anyway.
                with contextlib.suppress(OSError):
                    self.accepted.send(self.outgoing.read())
            raise


class TellingContext(ssl.SSLContext):
    """A context whose connections tell why their handshakes fail."""

    sslobject_class = _Handshake

    def wrap_bio(self, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO, *given: Any, **more: Any) -> _Handshake:
        """See `ssl.SSLContext`: event loops begin a connection so."""
        made = cast("_Handshake", super().wrap_bio(incoming, outgoing, *given, **more))
        made.accepted, made.outgoing = ACCEPTED.get(None), outgoing
        return made
