"""Large writes over TLS, such that what a client does not take is seen.

Event loops encrypt a write whole, and ask the socket only then whether it takes anything. However much that is, they
tell that nothing is left to be written, and who writes is not told to pause.
"""

import asyncio
import ssl
from typing import Final


# What a client has sent with TLS, and the event loop has not handed on when the connection has ended.
#
# uvloop drops it where reading was paused when the client left.
def unread(transport: asyncio.BaseTransport, room: memoryview) -> int:
    """Read on in a connection that has ended: how many bytes are in `room` now; 0: there are none, or it has no TLS."""
    secured = transport.get_extra_info("ssl_object")
    if not isinstance(secured, ssl.SSLObject):
        return 0
    try:
        return secured.read(len(room), room)  # type: ignore[return-value]  # a count, into a buffer
    except ssl.SSLError:
        return 0


PIECE: Final = 256 << 10
"""Bytes that are written at a time."""


def in_pieces(transport: asyncio.WriteTransport, size: int) -> bool:
    """Whether so many bytes are too many for one write: over TLS, where they are more than a piece."""
    return size > PIECE and transport.get_extra_info("ssl_object") is not None


def write(transport: asyncio.WriteTransport, data: bytes | bytearray | memoryview) -> None:
    """Write; over TLS in pieces, of which all after the first that is not taken count as left to be written."""
    if not in_pieces(transport, len(data)):
        transport.write(data)
        return
    view = memoryview(data)
    for start in range(0, len(view), PIECE):
        transport.write(view[start : start + PIECE])
