"""The event loop that a server runs on."""

import asyncio
from collections.abc import Callable


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop's, where it is installed; None: asyncio's own."""
    try:
        import uvloop  # noqa: PLC0415  # optional
    except ImportError:
        return None
    return uvloop.new_event_loop
