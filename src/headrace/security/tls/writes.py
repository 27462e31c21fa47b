"""Large writes over TLS, such that what a client does not take is seen.

Event loops encrypt a write whole, and ask the socket only then whether it takes anything. However much that is, they
tell that nothing is left to be written, and who writes is not told to pause.
"""

import asyncio
from typing import Final

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
