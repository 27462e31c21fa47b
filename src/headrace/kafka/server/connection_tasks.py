"""What goes on for one connection beside the turns in which its bytes come."""

import asyncio
from collections.abc import Coroutine
from typing import Any

from headrace.kafka.server.request_context import Exchange


class Work:
    """It ends with the connection, but for what waits for storage."""

    __slots__ = ("_tasks",)

    def __init__(self) -> None:
        """Nothing goes on."""
        self._tasks: dict[asyncio.Task[None], Exchange | None] = {}

    def keep(self, work: Coroutine[Any, Any, None], exchange: Exchange | None = None) -> asyncio.Task[None]:
        """Do something that ends with the connection, unless it is for an exchange that is kept then."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[task] = exchange
        task.add_done_callback(self._tasks.pop)
        return task

    def let_go(self) -> bool:
        """The client is gone: end all but what waits for storage, which is counted until it is through; whether any is.

        What comes to wait for something else then, such as other members, is ended the next time.
        """
        for task, exchange in self._tasks.items():
            if exchange is None or not exchange.stays:
                task.cancel()
        return bool(self._tasks)
