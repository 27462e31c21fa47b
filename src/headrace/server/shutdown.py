"""How a server ends: who asks first says why, and with which status."""

import asyncio
import contextlib
import signal
from collections.abc import Iterator


class Stop:
    """Why and how the server ends."""

    def __init__(self) -> None:
        self._asked = asyncio.Event()
        self.reason = ""
        self.status = 0

    def ask(self, reason: str, status: int = 0) -> None:
        """End the server; the first reason counts."""
        if not self._asked.is_set():
            self.reason, self.status = reason, status
            self._asked.set()

    async def wait(self) -> None:
        """Until somebody asks."""
        await self._asked.wait()

    @contextlib.contextmanager
    def on_signals(self) -> Iterator[None]:
        """Ask when SIGTERM or SIGINT comes."""
        loop = asyncio.get_running_loop()
        signals = (signal.SIGTERM, signal.SIGINT)
        for number in signals:
            loop.add_signal_handler(number, self.ask, number.name)
        try:
            yield
        finally:
            for number in signals:
                loop.remove_signal_handler(number)
