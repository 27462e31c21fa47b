"""What a client has sent with TLS, and the event loop has not handed on when the connection has ended.

uvloop drops it where reading was paused when the client left.
"""

import asyncio
import ssl


def unread(transport: asyncio.BaseTransport, room: memoryview) -> int:
    """Read on in a connection that has ended: how many bytes are in `room` now; 0: there are none, or it has no TLS."""
    secured = transport.get_extra_info("ssl_object")
    if not isinstance(secured, ssl.SSLObject):
        return 0
    try:
        return secured.read(len(room), room)  # type: ignore[return-value]  # a count, into a buffer
    except ssl.SSLError:
        return 0
